//! Context switches of recordings: of two GPUs whose slices are known.

use std::fs;

use nvcap_decode::ledger::STATUS_NO_GPU;
use nvcap_decode::record::{At, Identity, Life, Process, Record, Switches};
use nvcap_decode::switches::{Instance, Reading, Scope, Switch, Tag, Told};

use crate::common::cli::{Folder, nvcap, page_data, refused, text};
use crate::common::job::{self, BEGIN};
use crate::common::schema::Schema;
use serde_json::Value;

const TRAIN: u32 = 4711;
const NOTEBOOK: u32 = 4712;
/// The GPUs' clock less the host's, ns.
const APART: u64 = 1_700_000_000_000_000_000;
/// A round of both processes on GPU 0, and the parts of it, ns.
const ROUND: u64 = 1_000_000;
const TRAIN_NS: u64 = 600_000;
const SWITCH_NS: u64 = 50_000;
const WINDOW: u64 = 10_000_000;

fn reading(host_ns: u64) -> Reading {
    Reading {
        host_ns,
        gpu_ns: host_ns + APART,
        error_ns: 700,
    }
}

fn switch(tag: Tag, pid: u32, host_ns: u64) -> Switch {
    Switch {
        tag,
        pid,
        context: 0x5c00_0000 + pid,
        time_ns: host_ns + APART,
        ..Switch::default()
    }
}

fn window(gpu: u32, from: u64, told: Vec<Told>) -> Record {
    let python = Identity {
        comm: "train.py".to_owned(),
        uid: Some(1000),
        user: Some("ada".to_owned()),
        ..Identity::default()
    };
    Record::Switches(Box::new(Switches {
        at: At {
            time_ns: from + WINDOW,
            ..At::default()
        },
        gpu,
        scope: Scope::AllUsers,
        from: reading(from),
        to: reading(from + WINDOW),
        told,
        processes: vec![(TRAIN, Some(python)), (NOTEBOOK, None)],
    }))
}

/// Both processes by turns on GPU 0 for `windows` windows, and one of them on an instance of GPU 1.
pub fn records(windows: u64) -> Vec<Record> {
    let mut records = Vec::new();
    for from in (0..windows).map(|i| BEGIN + i * WINDOW) {
        let mut told = Vec::new();
        for begin in (from..from + WINDOW).step_by(ROUND as usize) {
            let slices = [
                (TRAIN, begin, begin + TRAIN_NS),
                (
                    NOTEBOOK,
                    begin + TRAIN_NS + SWITCH_NS,
                    begin + ROUND - SWITCH_NS,
                ),
            ];
            for (pid, from, to) in slices {
                told.push(Told::Switch(switch(Tag::BEGIN, pid, from)));
                told.push(Told::Switch(switch(Tag::END, pid, to)));
            }
        }
        records.push(window(0, from, told));
        let instance = Some(Instance {
            gpu: 2,
            compute: Some(0),
        });
        let begin = switch(Tag::BEGIN, NOTEBOOK, from);
        let told = (from == BEGIN).then_some(Told::Switch(Switch { instance, ..begin }));
        records.push(window(1, from, told.into_iter().collect()));
    }
    records
}

fn file(folder: &Folder, records: &[Record]) -> String {
    let path = folder.path("run.pcapng");
    fs::write(&path, job::written(records, 1, false, APART)).unwrap();
    path
}

fn shown(args: &[&str], status: i32) -> String {
    let out = nvcap(args);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(status), "{args:?}: {said}");
    text(&out.stdout)
}

#[test]
fn a_recording_says_who_had_the_gpus() {
    let folder = Folder::new("shares");
    let file = file(&folder, &records(10));
    assert_eq!(shown(&["share", &file], 0), SHARES);
    let json = shown(&["share", "--json", &file], 0);
    let [first, second] = json.lines().collect::<Vec<_>>()[..] else {
        panic!("{json}");
    };
    let object = |line| -> Value { serde_json::from_str(line).unwrap() };
    let (first, second) = (object(first), object(second));
    let [_, notebook] = &first["processes"].as_array().unwrap()[..] else {
        panic!("{first}");
    };
    assert_eq!(
        (&notebook["pid"], &notebook["slices"], &second["mig"]),
        (&NOTEBOOK.into(), &100.into(), &2.into())
    );
    assert_eq!(notebook["resident_seconds"], 0.03);
    // In the trace's account.
    let ledger = shown(&["decode", "-q", "--json", &file], 0);
    let ledger: Value = serde_json::from_str(ledger.lines().last().unwrap()).unwrap();
    Schema::of_output().check(&ledger).unwrap();
    assert_eq!(ledger["switches"]["records"], 401);
    assert!(shown(&["decode", "-q", &file], 0).contains("401 records of context switches"));
}

#[test]
fn slices_are_in_the_table_the_trace_and_the_page() {
    let folder = Folder::new("shares-exported");
    let file = file(&folder, &records(2));
    let table = shown(&["export", "csv", &file, "--table", "slices"], 0);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 1 + 40 + 1, "{table}");
    let begin = BEGIN + TRAIN_NS + SWITCH_NS;
    let end = BEGIN + ROUND - SWITCH_NS;
    let expected = format!(
        "0,,,process,{NOTEBOOK},,{},{begin},{end},{},{},{}",
        0x5c00_0000 + NOTEBOOK,
        end - begin,
        begin + APART,
        end + APART
    );
    assert_eq!(lines[2], expected);
    assert!(lines[1].contains(",train.py,"), "{}", lines[1]);
    // What has not ended has no end.
    let last = format!(
        "1,2,0,process,{NOTEBOOK},,{},{BEGIN},,,{},",
        0x5c00_0000 + NOTEBOOK,
        BEGIN + APART
    );
    assert_eq!(lines[41], last);
    let trace = folder.path("run.pftrace");
    shown(&["export", "perfetto", &file, "-o", &trace], 0);
    let trace = fs::read(&trace).unwrap();
    for name in [
        "contexts",
        "contexts of MIG 2/0",
        "train.py (4711)",
        "process 4712 begins; its end was not recorded",
    ] {
        let has = trace.windows(name.len()).any(|w| w == name.as_bytes());
        assert!(has, "{name}");
    }
    let page = folder.path("run.html");
    shown(&["report", &file, "-o", &page], 0);
    let shares = &page_data(&fs::read_to_string(&page).unwrap())["shares"];
    let engine = &shares["engines"][0];
    assert_eq!(
        (&engine["title"], &engine["switches"]),
        (&"GPU 0".into(), &39.into())
    );
    assert_eq!(
        (&engine["rows"][0]["name"], &engine["rows"][0]["share"]),
        (&"train.py".into(), &0.6.into())
    );
    assert!(
        shares["said"][0]
            .as_str()
            .unwrap()
            .starts_with("2 processes shared GPU 0")
    );
}

#[test]
fn losses_are_said_and_cost_no_submission() {
    let folder = Folder::new("shares-lost");
    let told = vec![
        Told::Switch(switch(Tag::BEGIN, TRAIN, BEGIN)),
        Told::Missing(7),
        Told::Switch(switch(Tag::END, TRAIN, BEGIN + 9_000_000)),
    ];
    let file = file(&folder, &[window(0, BEGIN, told)]);
    let said = shown(&["share", &file], 3);
    assert!(said.contains("GPU 0: at least 7 records missing"), "{said}");
    assert!(
        said.contains("not known                     90.00 %"),
        "{said}"
    );
    let ledger = shown(&["decode", "-q", &file], 0);
    let words = "2 records of context switches, at least 7 missing: the driver lost them (no submission is missing for that)";
    assert!(ledger.contains(words), "{ledger}");
}

/// The slices are those of all processes: a program that uses no GPU is still one.
#[test]
fn a_program_without_a_gpu_is_one_beside_others_slices() {
    let folder = Folder::new("shares-no-gpu");
    let script = Record::Process(Process {
        at: At::of_process(BEGIN, 77),
        life: Life::Present {
            name: "script".to_owned(),
        },
    });
    let records = [vec![script], records(1)].concat();
    let file = file(&folder, &records);
    let said = shown(&["decode", "-q", &file], STATUS_NO_GPU.into());
    assert!(said.contains("no GPU was used"), "{said}");
}

#[test]
fn what_says_nothing_of_it_is_refused() {
    let folder = Folder::new("shares-none");
    let without = folder.path("none.pcapng");
    fs::write(&without, job::written(&[], 1, false, APART)).unwrap();
    let file = file(&folder, &records(1));
    refused(
        &["share"],
        &[
            (vec![&*without], 1, "does not say who had the GPUs"),
            (vec![&*file, "-p", "1"], 2, "cannot be used with"),
            (vec![&*file, "--duration", "1"], 2, "cannot be used with"),
            (vec![&*file, "-o", &*file], 2, "would"),
        ],
    );
}

/// `nvcap share`.
const SHARES: &str = "\
GPU 0: 100 ms
     PID COMM            USER            SHARE    SLICES      MEAN   LONGEST       /s  POD OR CONTAINER
    4711 train.py        ada           60.00 %       100    600 us    600 us   1000.0
    4712 ?               -             30.00 %       100    300 us    300 us   1000.0
         lost in switches               9.95 %       199   50.0 us             1990.0
         nobody had it                  0.05 %
2 processes shared GPU 0: 10.0 % of it was lost in 1990 switches/s of 50.0 us
GPU 1, MIG 2/0: 100 ms
     PID COMM            USER            SHARE    SLICES      MEAN   LONGEST       /s  POD OR CONTAINER
    4712 ?               -            100.00 %         1    100 ms    100 ms     10.0
         lost in switches               0.00 %         0      0 ns                0.0
1 process had GPU 1, MIG 2/0
";
