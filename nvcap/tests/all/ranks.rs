//! `nvcap ranks` of recordings of a job of which it is known who held up whom.

use std::fs;

use crate::common::cli::{Folder, nvcap, page_data, refused, text};
use crate::common::job::{self, FIRST_PID, GEMM_NS, Job};
use nvcap_decode::record::Record;
use serde_json::Value;

const STEPS: u32 = 80;
const BOOTED: u64 = 1_700_000_000_000_000_000;

fn file(folder: &Folder, name: &str, bytes: &[u8]) -> String {
    let path = folder.path(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// All ranks in one file.
fn together(folder: &Folder, job: &Job) -> String {
    let all = job.records.iter().flatten();
    file(folder, "node.pcapng", &job::written(all, 1, true, BOOTED))
}

/// The object, and the ledgers behind it.
fn shown(args: &[&str], status: i32) -> (Value, Vec<Value>) {
    let args: Vec<&str> = ["ranks", "--json"].iter().chain(args).copied().collect();
    let out = nvcap(&args);
    assert_eq!(out.status.code(), Some(status), "{}", text(&out.stderr));
    let out = text(&out.stdout);
    let mut objects = out.lines().map(|line| serde_json::from_str(line).unwrap());
    (objects.next().unwrap(), objects.collect())
}

/// The figures of the only kind on the only communicator, against what happened.
fn assert_true(found: &Value, job: &Job, straggler: usize) {
    let of = &found["communicators"][0];
    assert_eq!(
        found["communicators"].as_array().unwrap().len(),
        1,
        "{found}"
    );
    assert_eq!(
        (&of["certain"], &of["doubts"]),
        (&true.into(), &serde_json::json!([])),
        "{of}"
    );
    let kind = &of["kinds"][0];
    assert_eq!(kind["kind"], "AllReduce");
    for counted in ["calls", "matched", "timed", "attributed"] {
        assert_eq!(kind[counted], STEPS, "{counted}");
    }
    let calls = job.arrivals[0].len();
    let (mut skews, mut waited) = (Vec::new(), 0);
    for call in 0..calls {
        let begins = || job.arrivals.iter().map(|a| a[call]);
        let last = begins().max().unwrap();
        skews.push(last - begins().min().unwrap());
        waited += begins().map(|b| last - b).sum::<u64>();
    }
    skews.sort_unstable();
    let number = |of: &Value| of.as_u64().unwrap();
    let error = number(&kind["skew_ns"]["error"]);
    // Better than a fiftieth of the skew.
    assert!(error * 50 < skews[calls / 2], "{error}");
    let median = number(&kind["skew_ns"]["median"]);
    assert!(
        median.abs_diff(skews[calls / 2]) <= error,
        "{median} {skews:?}"
    );
    let (sum, sum_error) = (number(&kind["waited_ns"]), number(&kind["waited_error_ns"]));
    assert!(
        sum.abs_diff(waited) <= sum_error && sum_error * 50 < sum,
        "{sum} {waited} {sum_error}"
    );
    for (n, member) in kind["members"].as_array().unwrap().iter().enumerate() {
        let last = if n == straggler { STEPS } else { 0 };
        assert_eq!(member["last"], last, "{member}");
    }
}

#[test]
fn a_straggler_is_found_in_one_file_of_all_ranks() {
    let folder = Folder::new("ranks-one");
    let job = job::run(STEPS, &[4, 9, 4]);
    let path = together(&folder, &job);
    let ranks: Vec<String> = (0..3).map(|n| format!("{}={n}", FIRST_PID + n)).collect();
    let named: Vec<&str> = { ranks.iter() }.flat_map(|r| ["--rank", r]).collect();
    let args: Vec<&str> = [&*path].into_iter().chain(named.iter().copied()).collect();
    let (found, ledgers) = shown(&args, 0);
    assert_true(&found, &job, 1);
    assert_eq!(ledgers.len(), 1);
    assert_eq!(ledgers[0]["type"], "ledger");
    let verdict = found["verdict"].as_str().unwrap();
    let expected = format!("rank 1 comes last in 100.0 % of {STEPS} all-reduces, ");
    assert!(
        verdict.starts_with(&expected)
            && verdict.contains(" late on average: 5 more of gemm before each, "),
        "{verdict}"
    );
    let causes = &found["communicators"][0]["kinds"][0]["members"][1]["causes"];
    assert_eq!(causes["works"][0]["name"], "gemm");
    let extra = causes["works"][0]["more_ns"].as_u64().unwrap();
    assert!(extra >= 5 * GEMM_NS * (u64::from(STEPS) - 1), "{extra}");
    // All time of each rank is told.
    for rank in found["ranks"].as_array().unwrap() {
        let ns = |of: &str| rank[of].as_u64().unwrap();
        let parts = [
            "compute_ns",
            "exposed_ns",
            "waiting_ns",
            "copying_ns",
            "unknown_ns",
            "idle_ns",
        ];
        assert_eq!(parts.map(ns).iter().sum::<u64>(), ns("span_ns"), "{rank}");
    }
    // Text says the same first.
    let out = nvcap(&[&["ranks"], &args[..]].concat());
    let out = text(&out.stdout);
    assert_eq!(out.lines().next(), Some(verdict));
    assert!(
        out.contains("communicator 0: ranks 0-2") && out.contains("complete"),
        "{out}"
    );
}

#[test]
fn a_straggler_is_found_in_a_file_of_each_rank() {
    let folder = Folder::new("ranks-each");
    let job = job::run(STEPS, &[6, 3]);
    let each: Vec<String> = { job.records.iter().zip(1..) }
        .map(|(records, n)| {
            let bytes = job::written(records, n, true, BOOTED + u64::from(n) * 1_000_000);
            file(&folder, &format!("rank{n}.pcapng"), &bytes)
        })
        .collect();
    let (found, ledgers) = shown(&[&each[0], &each[1]], 0);
    assert_true(&found, &job, 0);
    assert_eq!(ledgers.len(), 2);
    // Nobody said which rank each is: they have no numbers of their own making.
    let verdict = found["verdict"].as_str().unwrap();
    assert!(
        verdict.starts_with(&format!("process {FIRST_PID} on GPU 0 comes last")),
        "{verdict}"
    );
    assert_eq!(found["ranks"][0]["rank"], Value::Null);
    let out = nvcap(&["ranks", &each[0], &each[1]]);
    let out = text(&out.stdout);
    assert!(
        out.contains("which rank a process is was not told: --rank PID=RANK"),
        "{out}"
    );
    assert!(out.contains("rank2.pcapng: complete"), "{out}");
    // Of another host.
    let bytes = job::written(&job.records[1], 7, true, BOOTED + 60_000_000_000);
    let other = file(&folder, "other.pcapng", &bytes);
    refused(
        &["ranks"],
        &[
            (vec![&each[0], &other], 1, "are of two hosts"),
            (vec![&each[0], "--rank", "0"], 2, "is no rank of a process"),
            (vec![&each[0], "-e", "op=launch"], 2, "leave out -e"),
            (
                vec![&each[0], "--rank", "7=0", "--rank", "7=1"],
                2,
                "--rank 7=0 and --rank 7=1 are of one process",
            ),
            (
                vec![&each[0], "--rank", "7=0", "--rank", "8=0"],
                2,
                "--rank 7=0 and --rank 8=0 are of one rank",
            ),
            (vec![&each[0], "-p", "1"], 2, "cannot be used with"),
            (vec!["/nowhere.pcapng"], 1, "/nowhere.pcapng"),
        ],
    );
    // One rank alone.
    let (found, _) = shown(&[&each[0]], 0);
    assert!(
        found["verdict"]
            .as_str()
            .unwrap()
            .contains("alone called collectives"),
        "{found}"
    );
}

/// Submissions with two all-reduces of a rank are missing: those behind are matched with the right ones, and that is said.
#[test]
fn a_loss_does_not_shift_the_matching_in_silence() {
    let folder = Folder::new("ranks-loss");
    let mut job = job::run(STEPS, &[2, 5]);
    let is_lost = |n: &usize| (60..66).contains(n);
    let mut submissions = 0;
    job.records[0].retain(|record| {
        let is_submission = matches!(record, Record::Submission(_));
        submissions += usize::from(is_submission);
        !(is_submission && is_lost(&submissions))
    });
    let (found, ledgers) = shown(&[&together(&folder, &job)], 3);
    assert_eq!(ledgers[0]["gaps"], 6);
    let of = &found["communicators"][0];
    assert_eq!(of["certain"], false);
    let kind = &of["kinds"][0];
    assert_eq!(
        (&kind["calls"], &kind["matched"]),
        (&STEPS.into(), &(STEPS - 2).into()),
        "{of}"
    );
    // Rank 1 is the last in all of them: had they been shifted, it would not be.
    assert_eq!(kind["members"][1]["last"], kind["timed"], "{kind}");
    let doubts = of["doubts"].as_array().unwrap();
    assert!(doubts.iter().any(|d| d["what"] == "loss"), "{of}");
    let verdict = found["verdict"].as_str().unwrap();
    assert!(
        verdict.contains("; not certain: entries of process 4711 on GPU 0 are missing"),
        "{verdict}"
    );
}

#[test]
fn without_times_it_is_said_what_to_type() {
    let folder = Folder::new("ranks-untimed");
    let job = job::run(5, &[2, 3]);
    let all = job
        .records
        .iter()
        .flatten()
        .filter(|r| !matches!(r, Record::Stamps(_)));
    let path = file(
        &folder,
        "untimed.pcapng",
        &job::written(all, 1, false, BOOTED),
    );
    let (found, _) = shown(&[&path], 0);
    let verdict = found["verdict"].as_str().unwrap();
    assert!(
        verdict.contains("5 calls are matched by their order")
            && verdict.contains("nvcap record --gpu-time"),
        "{verdict}"
    );
    let kind = &found["communicators"][0]["kinds"][0];
    assert_eq!((&kind["matched"], &kind["timed"]), (&5.into(), &0.into()));
    assert_eq!(kind["skew_ns"]["median"], Value::Null);
    assert_eq!(found["communicators"][0]["doubts"][0]["what"], "order");
}

/// Ranks of processes that are not there, and patterns that no kernel's name fits, are told with what there is.
#[test]
fn what_was_asked_for_and_is_not_there_is_said() {
    let folder = Folder::new("ranks-unmet");
    let job = job::run(STEPS, &[2, 4]);
    let path = together(&folder, &job);
    let of = format!("{FIRST_PID}=0");
    let args = [
        "--rank",
        &of,
        "--rank",
        "99=1",
        "--collective",
        "*exchange*",
    ];
    let (found, _) = shown(&[&[&*path], &args[..]].concat(), 0);
    let processes = format!("{FIRST_PID}, {}", FIRST_PID + 1);
    let lines = [
        format!("no work of a process 99, of --rank 99=1, was seen: there are calls of processes {processes}"),
        "no kernel's name fits --collective '*exchange*': there are gemm, ncclDevKernel_AllReduce_Sum_f32_RING_LL".to_owned(),
    ];
    assert_eq!(
        found["doubts"],
        serde_json::json!([
            {"what": "rank", "given": "99=1", "text": lines[0]},
            {"what": "collective", "given": "*exchange*", "text": lines[1]},
        ])
    );
    let out = nvcap(&[&["ranks", &*path], &args[..]].concat());
    let out = text(&out.stdout);
    for line in &lines {
        assert!(out.lines().any(|l| l == line), "{out}");
    }
    let (found, _) = shown(&[&*path, "--rank", &of, "--collective", "gem?"], 0);
    assert_eq!(found["doubts"], serde_json::json!([]));
}

/// Kernels of others are collectives where a pattern says so.
#[test]
fn a_pattern_names_collectives() {
    let folder = Folder::new("ranks-pattern");
    let mut job = job::run(STEPS, &[2, 4]);
    for record in job.records.iter_mut().flatten() {
        if let Record::Kernel(kernel) = record
            && kernel.name.contains("nccl")
        {
            kernel.name = "_Z8exchangePf".to_owned();
        }
    }
    let path = together(&folder, &job);
    let (found, _) = shown(&[&path], 0);
    assert!(
        found["verdict"]
            .as_str()
            .unwrap()
            .starts_with("no collective was seen"),
        "{found}"
    );
    assert_eq!(found["processes_without_collectives"], 2);
    let (found, _) = shown(&[&path, "--collective", "*change*"], 0);
    let of = &found["communicators"][0];
    assert_eq!(of["kinds"][0]["kind"], "exchange");
    assert_eq!(of["kinds"][0]["members"][1]["last"], STEPS);
    // Its first argument need not be a communicator.
    assert_eq!(
        (
            &of["members"][0]["communicator"],
            &of["members"][0]["channel"]
        ),
        (&Value::Null, &0.into())
    );
    assert_eq!(of["doubts"][0]["what"], "channel");
}

#[test]
fn each_call_is_listed_where_that_is_asked_for() {
    let folder = Folder::new("ranks-arrivals");
    let job = job::run(STEPS, &[4, 9, 4]);
    let path = together(&folder, &job);
    let ranks: Vec<String> = (0..3).map(|n| format!("{}={n}", FIRST_PID + n)).collect();
    let named: Vec<&str> = { ranks.iter() }.flat_map(|r| ["--rank", r]).collect();
    let args: Vec<&str> = [&*path, "--arrivals"].into_iter().chain(named).collect();
    let (found, _) = shown(&args, 0);
    let listed = found["communicators"][0]["arrivals"].as_array().unwrap();
    assert_eq!(listed.len(), STEPS as usize);
    for arrival in listed {
        let call = arrival["call"].as_u64().unwrap() as usize - 1;
        assert_eq!(arrival["last"], serde_json::json!(["rank 1"]), "{arrival}");
        let order = arrival["order"].as_array().unwrap();
        assert_eq!(order.last().unwrap()["name"], "rank 1", "{arrival}");
        for came in order {
            let rank: usize = came["name"].as_str().unwrap()[5..].parse().unwrap();
            let began = job.arrivals[rank][call];
            let off = came["begin_ns"].as_u64().unwrap().abs_diff(began);
            assert!(off <= came["error_ns"].as_u64().unwrap(), "{began} {came}");
        }
    }
    let out = text(&nvcap(&[&["ranks"], &args[..]].concat()).stdout);
    let rows = || out.lines().filter(|line| line.contains(", rank 1 +"));
    assert_eq!(rows().count(), STEPS as usize, "{out}");
    assert!(rows().all(|row| row.contains("AllReduce")), "{out}");
    // Nothing is listed unasked.
    let (found, _) = shown(&[&*path], 0);
    assert!(found["communicators"][0]["arrivals"].is_null());
}

#[test]
fn the_page_has_the_ranks_where_there_are_several() {
    let folder = Folder::new("ranks-page");
    let data = |args: &[&str]| -> Value {
        let out = nvcap(&[&["report"], args].concat());
        page_data(&text(&out.stdout))
    };
    let job = job::run(STEPS, &[4, 9, 4]);
    let path = together(&folder, &job);
    let (found, _) = shown(&[&*path], 0);
    let page = data(&[&*path]);
    assert_eq!(page["ranks"], found);
    // What a filter hides may be a collective.
    assert!(data(&[&*path, "-e", "op=launch"])["ranks"].is_null());
    let one = job::run(STEPS, &[4]);
    assert!(data(&[&*together(&folder, &one)])["ranks"].is_null());
}

#[test]
fn time_says_that_ranks_wait_for_others() {
    let folder = Folder::new("ranks-time");
    let job = job::run(STEPS, &[4, 9, 4]);
    let path = together(&folder, &job);
    let (found, _) = shown(&[&*path], 0);
    let sums = |args: &[&str]| -> Value {
        let out = nvcap(&[&["time", "--json", &*path], args].concat());
        let out = text(&out.stdout);
        serde_json::from_str(out.lines().next().unwrap()).unwrap()
    };
    let all = sums(&[]);
    for (n, gpu) in all["gpus"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            gpu["waiting_for_ranks_ns"], found["ranks"][n]["waiting_ns"],
            "{gpu}"
        );
        let expected = if n == 1 {
            "GPU-bound"
        } else {
            "waiting for peers"
        };
        assert_eq!(gpu["verdict"], expected, "{gpu}");
    }
    let of = |sums: &Value, name: &str| -> Vec<Value> {
        let rows = sums["kernels"].as_array().unwrap().iter();
        rows.filter(|row| row["kernel"].as_str().unwrap().starts_with(name))
            .cloned()
            .collect()
    };
    let gemm = of(&all, "gemm");
    assert_eq!(gemm.len(), 1, "{gemm:?}");
    let counts: Vec<u64> = { gemm[0]["processes"].as_array().unwrap().iter() }
        .map(|of| of["count"].as_u64().unwrap())
        .collect();
    assert_eq!(counts, [4, 9, 4].map(|n| n * u64::from(STEPS)));
    let by = of(&sums(&["--by", "process"]), "gemm");
    assert_eq!(by.len(), 3, "{by:?}");
    for row in &by {
        let place = row["pid"].as_u64().unwrap() - u64::from(FIRST_PID);
        assert_eq!(
            row["count"].as_u64().unwrap(),
            counts[place as usize],
            "{row}"
        );
    }
    let out = text(&nvcap(&["time", &*path]).stdout);
    assert!(
        out.starts_with("GPU 0: waiting for peers; work ran in "),
        "{out}"
    );
    assert!(
        out.contains(" % it was a collective that waited for another rank"),
        "{out}"
    );
    assert!(out.contains("of each process"), "{out}");
}

#[test]
fn a_timeline_has_arrows_from_the_last_rank() {
    let folder = Folder::new("ranks-perfetto");
    let job = job::run(STEPS, &[4, 9, 4]);
    let path = together(&folder, &job);
    let out = nvcap(&["export", "perfetto", &path]);
    // Each name stands in the file once; the unit tests look at the arrows.
    let has = |name: &str| out.stdout.windows(name.len()).any(|w| w == name.as_bytes());
    let last = format!("process {} on GPU 1 has come", FIRST_PID + 1);
    assert!(has("collectives") && has("comes last") && has(&last));
    let one = together(&folder, &job::run(STEPS, &[4]));
    let out = nvcap(&["export", "perfetto", &one]);
    assert!(!out.stdout.windows(10).any(|w| w == b"comes last"));
}

/// Names are found beside a trace, and are in a recording behind launches of theirs: what is read of it is as if they had been there before.
#[test]
fn names_that_come_last_are_known_before() {
    let folder = Folder::new("ranks-late-names");
    let mut job = job::run(STEPS, &[2, 4]);
    let first = together(&folder, &job);
    for records in &mut job.records {
        let (names, others): (Vec<Record>, Vec<Record>) = std::mem::take(records)
            .into_iter()
            .partition(|r| matches!(r, Record::Kernel(_)));
        assert_eq!(names.len(), 2);
        *records = others.into_iter().chain(names).collect();
    }
    let all = job.records.iter().flatten();
    let bytes = job::written(all, 1, true, BOOTED);
    let last = file(&folder, "last.pcapng", &bytes);
    for words in ["ranks --json", "decode", "decode --json", "stats", "time"] {
        let of = |file: &str| {
            let args: Vec<&str> = words.split(' ').chain([file]).collect();
            let out = nvcap(&args);
            assert_eq!(out.status.code(), Some(0), "{words}: {}", text(&out.stderr));
            text(&out.stdout).replace("last.pcapng", "node.pcapng")
        };
        let (expected, found) = (of(&first), of(&last));
        assert!(expected.contains("AllReduce"), "{words}: {expected}");
        let mut found = found.lines();
        for line in expected.lines() {
            assert_eq!(Some(line), found.next(), "{words}");
        }
        assert_eq!(None, found.next(), "{words}");
    }
    let same = nvcap(&["diff", &first, &last]);
    assert_eq!(same.status.code(), Some(0), "{}", text(&same.stdout));
}
