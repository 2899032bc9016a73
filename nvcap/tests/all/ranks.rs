//! `nvcap ranks` of recordings of a job of which it is known who held up whom.

use std::fs;

use crate::common::cli::{Folder, nvcap, refused, text};
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
        verdict.starts_with(&expected) && verdict.contains(" late: 5 more of gemm before each, "),
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
            (vec![&each[0], "-e", "op=launch"], 1, "leave out -e"),
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
