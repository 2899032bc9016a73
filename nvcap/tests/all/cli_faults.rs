//! Recordings with a fault of the GPU, as a user meets them: the event, the verdict and the status.

use std::fs;

use nvcap_decode::ledger::STATUS_FAULTED;
use nvcap_decode::record::{
    At, Channel, ChannelId, Fault, FaultSource, Kernel, Life, Notification, Origin, Process,
    Record, Suspect, SuspectKind,
};
use nvcap_decode::wire::GpuVa;
use serde_json::Value;

use crate::common::cli::{Folder, nvcap, text};
use crate::common::schema::Schema;
use crate::common::training::written;

const PID: u32 = 4711;
const PROGRAM: u64 = 0x7f4f_4f7a_3000;

fn at(time_ns: u64) -> At {
    At {
        time_ns,
        pid: PID,
        tid: PID,
    }
}

fn fault(time_ns: u64, suspects: &[u64]) -> Record {
    let suspect = |program: &u64| Suspect {
        channel: ChannelId(0),
        index: 7,
        kind: SuspectKind::Kernel,
        program: Some(GpuVa(*program)),
        grid: [4, 1, 1],
        block: [256, 1, 1],
        near: None,
        kernel: None,
    };
    Record::Fault(Box::new(Fault {
        at: at(time_ns),
        source: FaultSource::Notifier,
        code: 31,
        channel: Some(ChannelId(0)),
        group: vec![ChannelId(3)],
        assumed: false,
        token: Some(0xb),
        notification: Some(Notification {
            time: 1,
            info32: 31,
            info16: 0,
            status: 0xffff,
        }),
        message: None,
        suspects: suspects.iter().map(suspect).collect(),
        only_these: true,
    }))
}

/// A recording of a program that had launched these kernels when its channel was stopped.
fn recording(suspects: &[u64]) -> Vec<u8> {
    let process = |time_ns, life| {
        Record::Process(Process {
            at: at(time_ns),
            life,
        })
    };
    let channel = Channel {
        at: at(2_000),
        id: ChannelId(0),
        gpu: Some(0),
        token: Some(0xb),
        class: Some(0xc86f),
        engine: Some(1),
        handle: None,
        ring_gpu: None,
        ring: None,
        entries: Some(1024),
        userd: None,
        origin: Origin::Allocated,
    };
    let kernel = Kernel::called(at(3_000), PROGRAM, "_Z3badPfi");
    let name = "bad".to_owned();
    let records = [
        process(1_000, Life::Present { name }),
        Record::Channel(Box::new(channel)),
        Record::Kernel(Box::new(kernel)),
        fault(5_000, suspects),
        process(6_000, Life::Exit { process: true }),
    ];
    written(&records, false)
}

#[test]
fn a_recording_with_a_fault_says_it() {
    let folder = Folder::new("faults");
    let schema = Schema::of_output();
    for (suspects, said) in [
        (&[PROGRAM][..], "Xid 31 in bad(float*, int)"),
        (
            &[PROGRAM, PROGRAM + 0x100],
            "Xid 31 in one of: bad(float*, int), the kernel at 0x7f4f4f7a3100",
        ),
        (&[], "Xid 31 on channel 0"),
    ] {
        let file = folder.path("fault.pcapng");
        fs::write(&file, recording(suspects)).unwrap();
        let verdict = format!("complete, and the GPU faulted: {said}: ");
        for command in ["decode", "stats"] {
            let shown = nvcap(&[command, &file]);
            let all = text(&shown.stdout) + &text(&shown.stderr);
            assert!(all.contains(&verdict), "{command}: {all}");
            assert_eq!(shown.status.code(), Some(STATUS_FAULTED.into()), "{all}");
            let json = nvcap(&[command, "--json", &file]);
            assert_eq!(json.status.code(), Some(STATUS_FAULTED.into()));
            let lines = text(&json.stdout);
            let objects: Vec<Value> = { lines.lines() }
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            for object in &objects {
                let fits = schema.check(object);
                assert!(fits.is_ok(), "{}", schema.explain(object));
            }
            let ledger = objects.iter().find(|o| o["type"] == "ledger").unwrap();
            assert_eq!(ledger["complete"], true);
            assert_eq!(ledger["faults"][0]["text"], said);
            assert_eq!(ledger["faults"][0]["symbol"], "FIFO_ERROR_MMU_ERR_FLT");
            let events: Vec<&Value> = objects.iter().filter(|o| o["type"] == "fault").collect();
            assert_eq!(events.len(), usize::from(command == "decode"));
            for event in events {
                assert_eq!(
                    event["suspects"].as_array().map(Vec::len),
                    Some(suspects.len())
                );
            }
        }
        let line = text(&nvcap(&["decode", &file]).stdout);
        let wanted =
            "FAULT Xid 31 on channel 0 (token 0x0000b): a fault of the memory management unit";
        assert!(line.contains(wanted), "{line}");
    }
}
