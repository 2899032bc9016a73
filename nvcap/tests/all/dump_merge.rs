//! `nvcap dump --merge`: looks of several ranks, grouped.

use crate::common::schema::Schema;
use nvcap_show::output::dump::{
    MergeError, Merged, Status, last_look, merge, merged_json, merged_text,
};
use serde_json::{Value, json};

/// A look of one rank: at a collective's kernel, or idle in the data loader.
fn look(rank: u32, hangs: bool) -> Value {
    let (channels, line) = if hangs {
        let channel = json!({
            "running": {"kind": "kernel", "operation": {
                "kernel": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                "grid": [24, 1, 1], "block": [544, 1, 1],
                "args": format!("{:016x}0000", (0x7f20_0000_0000 + 0x10_0000 * u64::from(rank)).swap_bytes()),
                // Differs from process to process.
                "program": 0x7f00_0000 + rank,
            }, "behind": 3},
            "semaphore": {"newest": 1045},
            "wait": null,
            "root": null,
        });
        (json!([channel]), 88)
    } else {
        (json!([{"running": null, "wait": null, "root": null}]), 31)
    };
    json!({
        "type": "dump", "version": 1,
        "processes": [{
            "pid": 100 + rank, "name": "python", "rank": rank,
            "verdict": if hangs { "hang" } else { "idle" },
            "channels": channels, "xids": [],
            "threads": [
                {"tid": 7, "python": {"frames": [{"function": "other", "file": "x.py", "line": rank}]}},
                {"tid": 100 + rank, "python": {"frames": [
                    {"function": "synchronize", "file": "/usr/lib/python3/dist-packages/torch/cuda/__init__.py", "line": 954 + rank},
                    {"function": "step", "file": "train.py", "line": line},
                    {"function": "<module>", "file": "train.py", "line": 120},
                ]}},
            ],
        }],
    })
}

fn merged(looks: Vec<Value>) -> Merged {
    let looks: Vec<(String, Value)> = looks
        .into_iter()
        .enumerate()
        .map(|(n, look)| (format!("r{n}.json"), look))
        .collect();
    merge(&looks)
}

fn text(merged: &Merged) -> String {
    let mut out = Vec::new();
    merged_text(&mut out, merged, false);
    String::from_utf8(out).unwrap()
}

#[test]
fn the_odd_one_is_named_first() {
    let merged = merged((0..8).map(|rank| look(rank, rank != 3)).collect());
    assert_eq!((merged.processes, merged.groups.len()), (8, 2));
    assert_eq!(merged.status(), Status::Hang);
    let [odd, others] = &merged.groups[..] else {
        panic!()
    };
    assert!(odd.odd && !others.odd);
    assert_eq!(odd.members.len(), 1);
    assert_eq!((odd.members[0].rank, odd.members[0].pid), (Some(3), 103));
    assert_eq!(odd.state.python.as_deref(), Some("step (train.py:31)"));
    assert_eq!(others.members.len(), 7);
    let text = text(&merged);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "8 processes in 2 states; the odd one out first");
    assert_eq!(
        lines[5],
        "1 process: rank 3, r3.json (pid 103 python): IDLE"
    );
    assert!(text.contains("7 processes: ranks 0-2, 4-7: HANG"), "{text}");
    assert!(
        text.contains("has not ended: kernel ncclDevKernel_AllReduce_Sum_f32_RING_LL grid 24x1x1 block 544x1x1"),
        "{text}"
    );
    assert!(text.contains("python at step (train.py:88)"), "{text}");
    let mut line = Vec::new();
    merged_json(&mut line, &merged);
    let value: Value = serde_json::from_slice(&line).unwrap();
    Schema::of("merge").check(&value).unwrap();
}

#[test]
fn who_has_not_come_to_a_collective() {
    // Of rank 6 there is no look.
    let all = merged(
        (0..8)
            .filter(|r| *r != 6)
            .map(|rank| look(rank, rank != 3))
            .collect(),
    );
    let [collective] = &all.collectives[..] else {
        panic!("{all:?}")
    };
    assert_eq!(
        (&*collective.kind, collective.submission),
        ("AllReduce", Some(1042))
    );
    assert_eq!(
        collective.present[1].communicator.as_deref(),
        Some("0x7f2000100000")
    );
    assert_eq!(collective.not_looked_at, [6]);
    let shown = text(&all);
    for line in [
        "6 processes are in all-reduce: ranks 0-2, 4-5, 7 (submission 1042 of their channels)",
        "  has not come: rank 3, r3.json (pid 103 python): idle, has not submitted all-reduce; python at step (train.py:31)",
        "  there is no look of rank 6",
    ] {
        assert!(shown.lines().any(|l| l == line), "{line}\n{shown}");
    }
    let mut line = Vec::new();
    merged_json(&mut line, &all);
    Schema::of("merge")
        .check(&serde_json::from_slice(&line).unwrap())
        .unwrap();
    // It has submitted it, behind a kernel that does not end; and ranks need not be in the same submission.
    let mut behind = look(1, false);
    behind["processes"][0]["channels"] = json!([{
        "running": {"kind": "kernel", "operation": {"kernel": "gemm"}, "behind": 1},
        "last": [
            {"done": true, "operations": [{"kernel": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}]},
            {"done": false, "operations": [{"kernel": "gemm"}, {"kernel": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}]},
        ],
    }]);
    let mut other = look(2, true);
    other["processes"][0]["channels"][0]["semaphore"]["newest"] = json!(7);
    let all = merged(vec![look(0, true), behind.clone(), other]);
    assert!(all.collectives[0].absent[0].submitted, "{all:?}");
    assert_eq!(all.collectives[0].submission, None);
    behind["processes"][0]["channels"][0]["last"][1]["done"] = json!(true);
    let all = merged(vec![look(0, true), behind]);
    assert!(!all.collectives[0].absent[0].submitted, "{all:?}");
    assert_eq!(merged(vec![look(0, false)]).collectives, []);
}

/// A process says how many ranks its job has, also where nobody is in a collective.
#[test]
fn ranks_without_a_look_are_told() {
    let mut one = look(0, false);
    assert!(merged(vec![one.clone()]).not_looked_at.is_empty());
    one["processes"][0]["ranks"] = json!(4);
    let all = merged(vec![one, look(2, false)]);
    assert_eq!(all.not_looked_at, vec![1u32, 3]);
    let shown = text(&all);
    assert!(
        shown.lines().any(|l| l == "there is no look of ranks 1, 3"),
        "{shown}"
    );
    let mut line = Vec::new();
    merged_json(&mut line, &all);
    Schema::of("merge")
        .check(&serde_json::from_slice(&line).unwrap())
        .unwrap();
}

#[test]
fn of_two_the_one_that_never_came() {
    for looks in [
        [look(0, true), look(1, false)],
        [look(0, false), look(1, true)],
    ] {
        let merged = merged(looks.to_vec());
        assert_eq!(merged.groups[0].state.verdict, "idle", "{merged:?}");
        assert!(merged.groups[0].odd && !merged.groups[1].odd);
    }
}

#[test]
fn an_error_comes_first_and_equal_ones_are_one() {
    let mut error = look(1, true);
    error["processes"][0]["xids"] = json!([{"code": 31}]);
    let mut same = error.clone();
    same["processes"][0]["rank"] = Value::Null;
    let all = merged(vec![look(0, false), error, same, look(2, true)]);
    assert_eq!(all.groups[0].state.xids, [31].into());
    assert_eq!(all.groups[0].members.len(), 2);
    assert!(
        text(&all).contains("the kernel log has Xid 31, a fault of the memory management unit")
    );
    let one = merged(vec![look(0, true), look(1, true)]);
    assert_eq!(one.groups.len(), 1);
    assert!(!one.groups[0].odd);
    assert!(text(&one).starts_with("2 processes in 1 state\n"));
    assert_eq!(merged(vec![]).status(), Status::Idle);
}

#[test]
fn the_last_look_of_a_file_counts() {
    let lines = format!("{}\n{}\n", look(0, true), look(0, false));
    assert_eq!(last_look(&lines).unwrap(), look(0, false));
    let pretty = serde_json::to_string_pretty(&look(0, true)).unwrap();
    assert_eq!(last_look(&pretty).unwrap(), look(0, true));
    assert_eq!(
        last_look(&format!("{pretty}{{\"type\": ")).unwrap(),
        look(0, true)
    );
    assert_eq!(last_look("{}"), Err(MergeError::NoLook));
    assert_eq!(last_look(""), Err(MergeError::NoLook));
    assert!(matches!(
        last_look("process 4711"),
        Err(MergeError::Json(_))
    ));
    assert!(matches!(last_look("{"), Err(MergeError::Json(_))));
    let newer = json!({"type": "dump", "version": 2});
    assert_eq!(last_look(&newer.to_string()), Err(MergeError::Version(2)));
    // Whatever the members are, nothing panics.
    for wrong in [
        json!({"processes": 3}),
        json!({"processes": [{}, 1, {"channels": [{}], "threads": [[]]}]}),
        json!({"processes": [{"rank": 4_294_967_295u32, "channels": [{"running": {"behind": 9, "operation": {
            "kernel": "ncclDevKernel_AllGather_RING_LL", "args": "xyz"}}, "semaphore": {"newest": 3}, "last": 1}]}]}),
    ] {
        let _ = text(&merged(vec![wrong]));
    }
}
