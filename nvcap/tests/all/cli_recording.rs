//! `nvcap stats` and `nvcap diff`, and reading that is interrupted, as a user meets them. Numbers are those of tests/captures/h200-mixed,
//! whose program (tests/gpu/work.cu) copied and cleared in the sizes that its phases are named after.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::common::cli::{
    Folder, argument, interrupt_while_it_reads, nvcap, text, with_one_block_less,
};
use crate::common::files::{capture, fixture};
use crate::common::schema::Schema;
use serde_json::Value;

/// The capture and its phases.
fn mixed() -> Option<(String, String)> {
    let recording = argument(capture("h200-mixed.orc.xz")?);
    let phases = argument(capture("h200-mixed.phases")?);
    Some((recording, phases))
}

fn shown(args: &[&str]) -> String {
    let out = nvcap(args);
    assert_eq!(
        out.status.code(),
        Some(0),
        "{args:?}: {}",
        text(&out.stderr)
    );
    text(&out.stdout)
}

/// The object of type `of` among the lines, which all fit the schema.
fn object(args: &[&str], of: &str) -> Value {
    let schema = Schema::of_output();
    let out = nvcap(args);
    let lines = text(&out.stdout);
    let mut objects = lines.lines().map(|line| {
        let value: Value = serde_json::from_str(line).unwrap();
        schema
            .check(&value)
            .unwrap_or_else(|e| panic!("{e}: {}", schema.explain(&value)));
        value
    });
    objects
        .find(|value| value["type"] == of)
        .unwrap_or_else(|| panic!("{args:?}: no {of}"))
}

/// Thresholds as (series, what, up to, way above, from, pieces, certain).
fn thresholds(stats: &Value) -> Vec<String> {
    let all = stats["thresholds"].as_array().unwrap();
    let words = |t: &Value| {
        let series = t["series"].as_str().unwrap_or("-");
        let (what, above) = (t["what"].as_str().unwrap(), t["above"].as_str().unwrap());
        let certain = t["certain"].as_bool().unwrap();
        format!(
            "{series} {what} {} {above} {} {} {certain}",
            t["up_to"], t["from"], t["piece_bytes"]
        )
    };
    all.iter().map(words).collect()
}

#[test]
fn thresholds_of_moves_are_found_by_series_of_phases() {
    let Some((recording, phases)) = mixed() else {
        return;
    };
    let args = ["stats", &recording, "--phases", &phases];
    let stats = object(&[&args[..], &["--json"]].concat(), "stats");
    let found = thresholds(&stats);
    for expected in [
        "h2d_pinned h2d 24576 copy engine 28672 null true",
        "h2d_async h2d 24576 copy engine 28672 null true",
        "h2d_pageable h2d 65536 copy engine, staged 262144 1048576 true",
        "memset memset 4096 kernel 8192 null true",
    ] {
        assert!(found.iter().any(|f| f == expected), "{expected}: {found:?}");
    }
    // Copies to pageable memory are made in pieces, too; to pinned memory at once.
    let moves = stats["moves"].as_array().unwrap();
    let row = |series: &str, how: &str| {
        let row = moves
            .iter()
            .find(|m| m["series"] == series && m["how"] == how);
        row.unwrap_or_else(|| panic!("{series} {how}"))
    };
    let pageable = row("d2h_pageable", "copy engine, staged");
    assert_eq!(
        (&pageable["piece_bytes"], &pageable["most"]),
        (&(1 << 20).into(), &(16 << 20).into())
    );
    let pinned = row("d2h_pinned", "copy engine");
    assert_eq!(
        (&pinned["piece_bytes"], &pinned["most"]),
        (&Value::Null, &(16 << 20).into())
    );
    assert_eq!(row("d2d", "kernel")["count"], 15);
    let lines = shown(&args);
    for line in [
        "h2d_pinned: h2d inline up to 24576 B, copy engine from 28672 B",
        "h2d_pageable: h2d inline up to 65536 B, copy engine, staged from 262144 B, in pieces of 1048576 B",
        "memset: memset inline up to 4096 B, kernel from 8192 B",
    ] {
        assert!(lines.lines().any(|l| l == line), "{line}: {lines}");
    }
}

/// Without phases nobody says which memory was pinned: what is claimed still holds.
#[test]
fn thresholds_without_phases_claim_what_the_stream_shows() {
    let Some((recording, _)) = mixed() else {
        return;
    };
    let stats = object(&["stats", &recording, "--json"], "stats");
    assert_eq!(
        thresholds(&stats),
        [
            "- h2d 24576 copy engine 28672 null false",
            "- h2d 65536 copy engine, staged 262144 1048576 true",
            "- memset 4096 kernel 8192 null true",
        ]
    );
}

#[test]
fn graphs_have_their_bytes_by_nodes() {
    let Some((recording, _)) = mixed() else {
        return;
    };
    let stats = object(&["stats", &recording, "--json"], "stats");
    let replays = stats["graphs"]["replays"].as_array().unwrap();
    let bytes_of = |nodes: u64| {
        let of = replays.iter().filter(|r| r["nodes"] == nodes);
        of.map(|r| r["bytes_each"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    for (nodes, bytes) in [
        (1, 76),
        (8, 92),
        (32, 108),
        (64, 140),
        (128, 204),
        (256, 316),
        (512, 572),
        (1024, 1052),
    ] {
        assert_eq!(bytes_of(nodes), [bytes], "{nodes} nodes");
    }
    assert!(
        replays
            .iter()
            .all(|r| r["doorbells_each"] == 1 && r["uploaded"] == 0)
    );
    // Eleven graphs were uploaded by themselves (cudaGraphUpload).
    assert_eq!(stats["graphs"]["uploads"]["submissions"], 11);
    assert_eq!(stats["costs"]["replays"], 23);
    assert_eq!(stats["waits"].as_array().unwrap().len(), 1);
    // Who releases the semaphore is known, also where the release itself is not shown.
    let some = [
        "stats",
        &recording,
        "--json",
        "-e",
        "op=semaphore && channel=8",
    ];
    let waits = object(&some, "stats");
    assert_eq!(waits["waits"], stats["waits"]);
    assert_eq!(waits["waits"][0]["for_channel"], 16);
    let histogram = stats["histograms"]["submission_bytes"].as_array().unwrap();
    let counts = histogram.iter().map(|b| b["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 600);
}

#[test]
fn stats_by_something_are_one_table_whose_rows_add_up() {
    let Some((recording, phases)) = mixed() else {
        return;
    };
    for (by, rows) in [("channel", 20), ("thread", 5), ("gpu", 1), ("phase", 151)] {
        let stats = object(
            &[
                "stats", &recording, "--phases", &phases, "--by", by, "--json",
            ],
            "stats",
        );
        let table = &stats["by"];
        assert_eq!(table["by"], by);
        let all = table["rows"].as_array().unwrap();
        assert_eq!(all.len(), rows, "{by}");
        for (member, sum) in [
            ("submissions", 600),
            ("bytes", 3_149_368),
            ("launches", 4_355),
        ] {
            let of = all.iter().map(|r| r[member].as_u64().unwrap());
            assert_eq!(of.sum::<u64>(), sum, "{by} {member}");
        }
        assert!(stats.get("moves").is_none());
    }
    let stats = object(&["stats", &recording, "--by", "kernel", "--json"], "stats");
    let first = &stats["by"]["rows"][0];
    assert_eq!(
        (&first["launches"], &first["gpu"]),
        (&4225.into(), &Value::Null)
    );
    let out = nvcap(&["stats", &recording, "--by", "phase"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("--phases FILE"));
    for useless in ["-q", "--explain-streams"] {
        let out = nvcap(&["stats", &recording, useless]);
        assert_eq!(out.status.code(), Some(2), "{useless}");
    }
}

#[test]
fn an_incomplete_recording_ends_stats_with_3() {
    let out = nvcap(&["stats", &argument(fixture("h200-cut.orc"))]);
    assert_eq!(out.status.code(), Some(3));
    assert!(text(&out.stdout).contains("INCOMPLETE"));
}

/// Records from before Ctrl-C are shown, and the ledger says that the rest was not read.
#[test]
fn reading_that_is_interrupted_ends_with_a_ledger() {
    let bytes = fs::read(fixture("h200-cut.orc")).unwrap();
    for (command, status, says) in [
        ("stats", 3, "captured 42 submissions"),
        ("decode", 3, "captured 42 submissions"),
        ("diff", 2, "nothing was compared"),
    ] {
        let mut args = vec![command, "-"];
        let whole = argument(fixture("h200-cut.orc"));
        if command == "diff" {
            args.push(&whole);
        }
        let mut child = Command::new(env!("CARGO_BIN_EXE_nvcap"))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(&bytes).unwrap();
        interrupt_while_it_reads(&child);
        // Its standard input is still open: nothing but the signal ends it.
        let (mut out, mut err) = (String::new(), String::new());
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        assert_eq!(
            child.wait().unwrap().code(),
            Some(status),
            "{command}: {err}"
        );
        let all = out + &err;
        assert!(all.contains("reading was interrupted"), "{command}: {all}");
        assert!(all.contains(says), "{command}: {all}");
        drop(input);
    }
}

/// A capture of copies by a copy engine: bytes and destination of each.
fn copies(all: &[(u32, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, (bytes, dst)) in all.iter().enumerate() {
        let at = i as u32;
        let words = [
            // INC_METHOD of subchannel 4: SET_OBJECT; OFFSET_IN and OUT, upper and lower; LINE_LENGTH_IN; LAUNCH_DMA.
            0x2001_8000,
            0xc8b5,
            0x2004_8100,
            1,
            0x1000,
            2,
            *dst,
            0x2001_8106,
            *bytes,
            0x2001_80c0,
            0x182,
        ];
        out.extend_from_slice(b"ORC1");
        out.extend_from_slice(&77u32.to_le_bytes());
        out.extend_from_slice(&(1000 + u64::from(at)).to_le_bytes());
        out.extend_from_slice(&0x7000_0090u64.to_le_bytes());
        for n in [0x10012, at, at + 1, 1] {
            out.extend_from_slice(&u32::to_le_bytes(n));
        }
        out.extend_from_slice(&0x7f00_0000u64.to_le_bytes());
        let entry = 0x2_0080_0000u64 | ((words.len() as u64) << 42);
        out.extend_from_slice(&entry.to_le_bytes());
        out.extend_from_slice(&(words.len() as u32 * 4).to_le_bytes());
        for w in words {
            out.extend_from_slice(&w.to_le_bytes());
        }
    }
    out
}

#[test]
fn diff_ends_with_0_without_differences_and_with_1_with_one() {
    let folder = Folder::new("diff");
    let write = |name: &str, all: &[(u32, u32)]| {
        let path = folder.path(name);
        fs::write(&path, copies(all)).unwrap();
        path
    };
    let a = write("a", &[(64, 0x100), (128, 0x200), (64, 0x100), (32, 0x300)]);
    let moved = write(
        "moved",
        &[(64, 0x900), (128, 0x800), (64, 0x900), (32, 0x700)],
    );
    let other = write(
        "other",
        &[(64, 0x900), (128, 0x800), (64, 0x800), (32, 0x700)],
    );
    let more = write(
        "more",
        &[
            (64, 0x100),
            (128, 0x200),
            (4, 0x50),
            (64, 0x100),
            (32, 0x300),
        ],
    );
    for args in [
        vec!["diff", &a, &a],
        vec!["diff", &a, &moved],
        vec!["diff", "--any-data", &a, &other],
    ] {
        let said = shown(&args);
        assert_eq!(
            said, "no difference in 4 submissions of 176 B\n",
            "{args:?}"
        );
    }
    // Another buffer.
    let out = nvcap(&["diff", "-U0", &a, &other]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    let said = text(&out.stdout);
    assert!(said.contains("data#1") && said.contains("data#2"), "{said}");
    assert!(
        said.contains("1 line of the first and 1 of the second alone, in 1 hunk"),
        "{said}"
    );
    // One copy more: with its doorbell, and nothing else.
    let out = nvcap(&["diff", &a, &more]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    let said = text(&out.stdout);
    let added: Vec<&str> = said
        .lines()
        .filter(|l| l.starts_with('+') && !l.starts_with("+++"))
        .collect();
    assert_eq!(added.len(), 3, "{said}");
    assert!(
        added
            .iter()
            .any(|l| l.starts_with("+copy h2d 4 B ce linear")),
        "{said}"
    );
    assert_eq!(added[0], "+doorbell 1 entry 44 B", "{said}");
    assert!(
        !said
            .lines()
            .any(|l| l.starts_with('-') && !l.starts_with("---")),
        "{said}"
    );
    let row = |what: &str| {
        let line = said
            .lines()
            .find(|l| l.ends_with(what))
            .unwrap_or_else(|| panic!("{what}: {said}"));
        line.split_whitespace()
            .take(3)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(row("  doorbells"), ["4", "5", "+1"]);
    assert_eq!(row("  bytes submitted"), ["176", "220", "+44"]);
    assert_eq!(row(" LAUNCH_DMA"), ["4", "5", "+1"]);
    // Counts alone, and of some operations alone.
    let brief = text(&nvcap(&["diff", "-q", &a, &more]).stdout);
    assert!(said.ends_with(&brief) && !brief.contains("@@"), "{brief}");
    let out = nvcap(&["diff", "-e", "op=bind", &a, &other]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stdout));
}

#[test]
fn a_launch_that_changed_is_shown_as_the_two_that_it_was_and_is() {
    let Some((recording, _)) = mixed() else {
        return;
    };
    assert!(
        shown(&["diff", &recording, &recording]).starts_with("no difference in 600 submissions")
    );
    let folder = Folder::new("diff-launch");
    let changed = folder.path("changed.orc");
    fs::write(&changed, with_one_block_less(recording.as_ref())).unwrap();
    let out = nvcap(&["diff", "-U0", &recording, &changed]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    let said = text(&out.stdout);
    let hunk = said.lines().skip_while(|l| !l.starts_with("@@"));
    let hunk: Vec<&str> = hunk.take_while(|l| !l.is_empty()).collect();
    assert_eq!(hunk.len(), 3, "{said}");
    let last = "1 line of the first and 1 of the second alone, in 1 hunk\n";
    assert!(said.ends_with(&format!("\n\n{last}")), "{said}");
    assert!(hunk[0].ends_with(" @@ ch8 gr"), "{said}");
    assert!(
        hunk[1].starts_with("-launch grid 7x5x3 block 32x4x2"),
        "{said}"
    );
    assert!(
        hunk[2].starts_with("+launch grid 7x5x2 block 32x4x2"),
        "{said}"
    );
    // The same as JSON.
    let found = object(&["diff", "--json", "-U0", &recording, &changed], "diff");
    assert_eq!(
        (&found["differs"], &found["only_a"], &found["only_b"]),
        (&true.into(), &1.into(), &1.into())
    );
    let line = &found["channels"][0]["hunks"][0]["lines"][0];
    assert_eq!(line["sign"], "-");
    assert!(
        line["text"]
            .as_str()
            .unwrap()
            .starts_with("launch grid 7x5x3")
    );
}

/// Doorbells, bytes of pushbuffer, and how often each method of a class was written, with the values of those written.
#[derive(Default)]
struct Written {
    doorbells: u64,
    bytes: u64,
    methods: BTreeMap<(u32, u32), Vec<u32>>,
}

/// The class of methods below 0x100, which are the host's.
const HOST: u32 = 0xc86f;
const COMPUTE: u32 = 0xcbc0;
const COPY: u32 = 0xc8b5;

/// Counts the words of a capture by the layouts of tests/gpu/oracle.c and of NVIDIA's class headers, without nvcap's decoder.
fn written(name: &str) -> Option<Written> {
    let mut bytes = Vec::new();
    let mut reader = nvcap_recording::file::packed::open(&capture(name)?).unwrap();
    reader.read_to_end(&mut bytes).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut all = Written::default();
    let mut at = 0;
    while at < bytes.len() {
        assert_eq!(&bytes[at..at + 4], b"ORC1");
        let entries = word(at + 36);
        all.doorbells += 1;
        at += 48;
        for _ in 0..entries {
            let len = word(at + 8) as usize;
            at += 12;
            let words: Vec<u32> = (at..at + len).step_by(4).map(word).collect();
            all.entry(&words);
            at += len;
        }
    }
    Some(all)
}

impl Written {
    fn entry(&mut self, words: &[u32]) {
        self.bytes += words.len() as u64 * 4;
        let mut words = words.iter().copied();
        while let Some(header) = words.next() {
            let (kind, count) = (header >> 29, header >> 16 & 0x1fff);
            let (subchannel, first) = (header >> 13 & 7, (header & 0xfff) * 4);
            let mut write = |method: u32, data: u32| {
                // The driver binds compute to subchannel 1 and copies to 4.
                let class = match (method, subchannel) {
                    (..0x100, _) => HOST,
                    (_, 1) => COMPUTE,
                    (_, 4) => COPY,
                    other => panic!("{other:x?}"),
                };
                let values = self.methods.entry((class, method)).or_default();
                values.push(data);
            };
            match kind {
                // Immediate: the data is in the header.
                4 => write(first, count),
                // Each word to the next method, all to the same, or all but the first to the second.
                1 | 3 | 5 => {
                    for n in 0..count {
                        let step = [0, n, 0, 0, 0, n.min(1)][kind as usize];
                        write(first + step * 4, words.next().unwrap());
                    }
                }
                0 if header == 0 => {}
                _ => panic!("{header:x}"),
            }
        }
    }

    fn count(&self, class: u32, method: u32) -> u64 {
        let values = self.methods.get(&(class, method));
        values.map_or(0, |v| v.len() as u64)
    }

    /// Returns the number of barriers of the scheduler that have this action (SEND_SIGNALING_PCAS2_B, bits 3:0).
    fn actions(&self, action: u32) -> u64 {
        let values = &self.methods[&(COMPUTE, 0x2c0)];
        values.iter().filter(|v| *v & 0xf == action).count() as u64
    }
}

/// Two real recordings of one program, without and with CUPTI: what is told is what the captures' words say.
#[test]
fn two_recordings_of_a_program_differ_in_what_their_words_differ_in() {
    let names = ["h200-graphs.orc.xz", "h200-graphs-cupti.orc.xz"];
    let [Some(a), Some(b)] = names.map(written) else {
        return;
    };
    let files = names.map(|name| argument(capture(name).expect("as before")));
    let args = ["diff", "-q", "--json", &files[0], &files[1]];
    let found = object(&args, "diff");
    assert_eq!(nvcap(&args).status.code(), Some(1));
    assert_eq!(found["differs"], true);
    // (what, name) to (first, second), and the bytes.
    let sums: BTreeMap<(&str, &str), [&Value; 4]> = { found["sums"].as_array().unwrap().iter() }
        .map(|s| {
            let [of, name] = ["of", "name"].map(|m| s[m].as_str().unwrap());
            ((of, name), ["a", "b", "a_bytes", "b_bytes"].map(|m| &s[m]))
        })
        .collect();
    let doorbells = sums[&("doorbells", "")].map(|v| v.as_u64().unwrap());
    assert_eq!(
        doorbells,
        [a.doorbells, b.doorbells, a.bytes, b.bytes],
        "doorbells and bytes"
    );
    assert_eq!(doorbells, [921, 646, 1_664_480, 2_144_716]);
    // All methods that differ, and no others.
    let told: BTreeMap<(u32, u32), [u64; 2]> = { sums.iter() }
        .filter(|((of, _), _)| *of == "method")
        .map(|((_, name), counts)| {
            let mut words = name.split(' ');
            let class = match words.next().unwrap() {
                "HOPPER_CHANNEL_GPFIFO_A" => HOST,
                "HOPPER_COMPUTE_A" => COMPUTE,
                "HOPPER_DMA_COPY_A" => COPY,
                other => panic!("{other}"),
            };
            let method = words.next().unwrap().strip_prefix("0x").unwrap();
            let method = u32::from_str_radix(method, 16).unwrap();
            (
                (class, method),
                [counts[0], counts[1]].map(|n| n.as_u64().unwrap()),
            )
        })
        .collect();
    let methods = a.methods.keys().chain(b.methods.keys());
    let wanted: BTreeMap<(u32, u32), [u64; 2]> = methods
        .map(|&(class, method)| ((class, method), [&a, &b].map(|w| w.count(class, method))))
        .filter(|(_, [a, b])| a != b)
        .collect();
    assert!(wanted.len() > 20, "{wanted:x?}");
    assert_eq!(told, wanted);
    // Operations: inline writes are launches of compute's own copy, and barriers have their action in a word.
    let count = |name: &str| sums[&("operation", name)][..2].to_vec();
    let inline: [u64; 2] = [0, 1].map(|n| {
        let of_inline = sums
            .iter()
            .filter(|((_, name), _)| name.starts_with("inline"));
        of_inline
            .map(|(_, counts)| counts[n].as_u64().unwrap())
            .sum()
    });
    assert_eq!(inline, [&a, &b].map(|w| w.count(COMPUTE, 0x1b0)));
    for (action, name) in [
        (3, "barrier pcas_invalidate_copy_schedule"),
        (7, "barrier pcas_decrement_dependence"),
    ] {
        assert_eq!(
            count(name),
            [a.actions(action), b.actions(action)],
            "{name}"
        );
    }
    // What docs/diff.md says of the phase `chain`.
    for (name, bytes) in [("h200-graphs", 420), ("h200-graphs-cupti", 41_316)] {
        let [file, phases] = ["orc.xz", "phases"]
            .map(|end| argument(capture(&format!("{name}.{end}")).expect("as before")));
        let args = [
            "stats", "--json", "--by", "phase", "--phases", &phases, &file,
        ];
        let stats = object(&args, "stats");
        let rows = stats["by"]["rows"].as_array().unwrap();
        let row = rows.iter().find(|r| r["name"] == "chain").unwrap();
        let counts = ["submissions", "launches", "bytes"].map(|m| row[m].as_u64().unwrap());
        assert_eq!(counts, [3, 120, bytes], "{name}");
    }
    // Text has the same numbers, and its lines fit on few screens unless all are asked for.
    let shown = |option: &str| text(&nvcap(&["diff", option, &files[0], &files[1]]).stdout);
    let few = shown("-U0");
    assert!(few.lines().count() < 120, "{few}");
    assert!(few.contains("more methods, which differ less (-v shows all)"));
    let last = "4893 lines of the first and 23269 of the second alone, in ";
    assert!(few.lines().last().unwrap().starts_with(last), "{few}");
    let changes = |text: &str| {
        let mut lines = text.lines().skip_while(|l| !l.starts_with("@@"));
        let lines = lines.by_ref().take_while(|l| !l.is_empty());
        lines.filter(|l| l.starts_with(['-', '+'])).count()
    };
    assert_eq!(changes(&few), 40);
    let left_out = format!("... {} lines more of ", 4893 + 23_269 - 40);
    assert!(few.lines().any(|l| l.starts_with(&left_out)), "{few}");
    let all = shown("-v");
    assert_eq!(changes(&all), 4893 + 23_269);
    assert!(!all.contains("-v shows all"));
    let text = all;
    for (line, end) in [
        ("921 646 -275", "doorbells"),
        ("135 74 -61", "graph replay"),
    ] {
        let found = text
            .lines()
            .find(|l| l.ends_with(&format!("  {end}")))
            .unwrap();
        let words: Vec<&str> = found.split_whitespace().take(3).collect();
        assert_eq!(words.join(" "), line);
    }
}

#[test]
fn trouble_ends_diff_with_2_and_a_recording_that_lacks_something_with_3() {
    let cut = argument(fixture("h200-cut.orc"));
    let out = nvcap(&["diff", &cut, &cut]);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stdout));
    assert!(text(&out.stderr).contains("INCOMPLETE"));
    for args in [
        vec!["diff", &cut, "/nonexistent"],
        vec!["diff", &cut],
        vec!["diff", "-", "-"],
        vec!["diff", "--no-such-option", &cut, &cut],
        vec!["diff", &cut, "/bin/sh"],
    ] {
        let out = nvcap(&args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(!out.stderr.is_empty(), "{args:?}");
    }
}
