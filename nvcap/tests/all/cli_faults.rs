//! Recordings with a fault of the GPU, as a user meets them: the event, the verdict and the status.

use std::fs;

use nvcap_decode::ledger::{STATUS_COMPLETE, STATUS_FAULTED};
use nvcap_decode::record::{
    At, Channel, ChannelId, Fault, FaultSource, Kernel, Life, Near, Notification, Origin, Process,
    Record, Suspect, SuspectKind, Xid,
};
use nvcap_decode::wire::GpuVa;
use serde_json::Value;

use crate::common::cli::{Folder, nvcap, page_data, text};
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
        channel: Some(ChannelId(0)),
        group: vec![ChannelId(3)],
        token: Some(0xb),
        notification: Some(Notification {
            time: 1,
            info32: 31,
            info16: 0,
            status: 0xffff,
        }),
        suspects: suspects.iter().map(suspect).collect(),
        ..Fault::of_notifier(at(time_ns), 31)
    }))
}

/// A recording of a program that had launched these kernels when its channel was stopped.
fn recording(suspects: &[u64]) -> Vec<u8> {
    recording_of(fault(5_000, suspects))
}

fn recording_of(fault: Record) -> Vec<u8> {
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
        fault,
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
        (&[], "Xid 31 on channels 0, 3"),
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
        let wanted = "FAULT Xid 31 on channel 0 (token 0x0000b), with 1 other channel: a fault of the memory management unit";
        assert!(line.contains(wanted), "{line}");
    }
}

/// An exception of an SM whose process the driver did not log may be another program's.
#[test]
fn an_error_of_no_known_process_is_no_fault_of_the_program() {
    let line = "NVRM: Xid (PCI:0000:35:00): 13, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Illegal Instruction Parameter";
    let folder = Folder::new("fault-of-gpu");
    let file = folder.path("fault.pcapng");
    let error = Record::Fault(Box::new(Fault {
        source: FaultSource::KernelLog,
        message: Xid::parse(line).map(Box::new),
        only_these: false,
        ..Fault::of_notifier(At::of_process(5_000, 0), 13)
    }));
    fs::write(&file, recording_of(error)).unwrap();
    let shown = nvcap(&["decode", &file]);
    let all = text(&shown.stdout) + &text(&shown.stderr);
    let said = "GPU 0000:35:00 had Xid 13 of no known process, Illegal Instruction Parameter";
    assert!(all.contains(&format!("complete, and {said}: ")), "{all}");
    assert!(!all.contains("GPU faulted"), "{all}");
    assert_eq!(shown.status.code(), Some(STATUS_COMPLETE.into()), "{all}");
    let schema = Schema::of_output();
    let json = nvcap(&["decode", "--json", &file]);
    let objects = text(&json.stdout);
    for line in objects.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        assert!(schema.check(&object).is_ok(), "{}", schema.explain(&object));
        match object["type"].as_str() {
            Some("fault") => assert_eq!(object["pid"], Value::Null),
            Some("ledger") => {
                let fault = &object["faults"][0];
                assert_eq!(
                    (&fault["pid"], &fault["pci"]),
                    (&Value::Null, &"0000:35:00".into())
                );
                assert_eq!(fault["text"], said);
            }
            _ => {}
        }
    }
    assert!(objects.contains("\"type\":\"fault\""));
}

#[test]
fn the_page_and_the_nearest_argument_are_told() {
    let mut record = fault(5_000, &[PROGRAM]);
    let Record::Fault(told) = &mut record else {
        panic!("{record:?}")
    };
    told.source = FaultSource::Both;
    let line = "NVRM: Xid (PCI:0000:35:00): 31, pid=4711, name=bad, channel 0x0000000b, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 \
                GPCCLIENT_T1_0 faulted @ 0x7f12_00600000. Fault is of type FAULT_PTE ACCESS_TYPE_VIRT_WRITE";
    told.message = Xid::parse(line).map(Box::new);
    told.suspects[0].near = Some(Near {
        offset: 8,
        value: 0x7f12_0040_0000,
    });
    let folder = Folder::new("faults-page");
    let file = folder.path("fault.pcapng");
    fs::write(&file, recording_of(record)).unwrap();
    let shown = nvcap(&["decode", &file]);
    let all = text(&shown.stdout) + &text(&shown.stderr);
    let page = "a write to the page at 0x7f1200600000, where nothing is mapped";
    for wanted in [
        format!(
            "in bad(float*, int); {page}; the nearest argument, at +0x8, is 0x7f1200400000, 2.0 MiB before it"
        ),
        format!("complete, and the GPU faulted: Xid 31 in bad(float*, int), {page}: "),
    ] {
        assert!(all.contains(&wanted), "{all}");
    }
    let schema = Schema::of_output();
    let json = text(&nvcap(&["decode", "--json", &file]).stdout);
    let objects = json
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap());
    for object in objects.filter(|o| o["type"] == "fault" || o["type"] == "ledger") {
        let fits = schema.check(&object);
        assert!(fits.is_ok(), "{}", schema.explain(&object));
        let access = match object["type"] == "fault" {
            true => &object["access"],
            false => &object["faults"][0]["access"],
        };
        assert_eq!(
            (&access["page"], &access["kind"]),
            (&0x7f12_0060_0000_u64.into(), &"write".into())
        );
    }
}

/// The fault of `the_page_and_the_nearest_argument_are_told` in the page of `report` and in the table `faults`.
#[test]
fn a_report_and_a_table_have_the_fault() {
    let folder = Folder::new("faults-elsewhere");
    for (suspects, cause) in [
        (&[PROGRAM][..], "bad(float*, int)"),
        (&[PROGRAM, PROGRAM + 0x100], ""),
        (&[], ""),
    ] {
        let (file, page) = (folder.path("fault.pcapng"), folder.path("fault.html"));
        fs::write(&file, recording(suspects)).unwrap();
        let made = nvcap(&["report", &file, "--force", "-o", &page]);
        let said = text(&made.stderr);
        assert_eq!(made.status.code(), Some(STATUS_FAULTED.into()), "{said}");
        let page = fs::read_to_string(&page).unwrap();
        let data = page_data(&page);
        let [mark] = &data["faults"]["marks"].as_array().unwrap()[..] else {
            panic!("{}", data["faults"])
        };
        assert_eq!(mark["channel"], 0);
        let what = mark["what"].as_str().unwrap();
        assert!(what.starts_with("Xid 31 "), "{what}");
        let table = nvcap(&["export", "csv", &file, "--table", "faults"]);
        let rows = text(&table.stdout);
        let (head, row) = rows.trim_end().split_once('\n').unwrap();
        let at = head.split(',').position(|name| name == "cause").unwrap();
        // Commas stand in texts in quotes alone.
        let cells: Vec<&str> = row.split(',').collect();
        if cause.is_empty() {
            assert!(!row.contains("\"bad(float*, int)\""), "{row}");
        } else {
            assert!(row.contains(&format!("\"{cause}\"")), "{row}");
        }
        assert!(at > 0 && cells.contains(&"31"), "{row}");
    }
}

#[test]
fn the_exception_of_an_sm_is_told() {
    let mut record = fault(5_000, &[PROGRAM]);
    let Record::Fault(told) = &mut record else {
        panic!("{record:?}")
    };
    told.code = 13;
    let line = "NVRM: Xid (PCI:0000:35:00): 13, pid=4711, name=bad, Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): Misaligned Address; \
                Graphics Exception: ESR 0x517730=0x501000f";
    told.message = Xid::parse(line).map(Box::new);
    let folder = Folder::new("faults-exception");
    let file = folder.path("fault.pcapng");
    fs::write(&file, recording_of(record)).unwrap();
    let shown = nvcap(&["decode", &file]);
    let all = text(&shown.stdout) + &text(&shown.stderr);
    for wanted in [
        "complete, and the GPU faulted: Xid 13 in bad(float*, int), Misaligned Address: ",
        "in bad(float*, int); Misaligned Address; kernel log: Graphics SM Warp",
    ] {
        assert!(all.contains(wanted), "{all}");
    }
    let json = text(&nvcap(&["decode", "--json", &file]).stdout);
    assert_eq!(
        json.matches("\"exception\":\"Misaligned Address\"").count(),
        2,
        "{json}"
    );
}

#[test]
fn an_xid_is_explained() {
    let said = |args: &[&str]| {
        let out = nvcap(&[&["explain", "xid"][..], args].concat());
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    let (status, one) = said(&["31"]);
    assert_eq!(status, Some(0));
    assert!(
        one.starts_with("Xid 31 FIFO_ERROR_MMU_ERR_FLT: a fault of the memory management unit\n"),
        "{one}"
    );
    assert!(one.contains("usual causes") && one.contains("compute-sanitizer"));
    let (_, all) = said(&[]);
    assert!(
        all.lines().count() > 100 && all.contains("  79  GPU_HAS_FALLEN_OFF_THE_BUS  "),
        "{all}"
    );
    let (_, json) = said(&["79", "--json"]);
    let object: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&object["xid"], &object["whole_gpu"]),
        (&79.into(), &true.into())
    );
    // The first is no number, the others none of an Xid.
    for (wrong, of) in [("0x1f", 2), ("4000000000", 1), ("999999", 1)] {
        let (status, said) = said(&[wrong]);
        assert!(
            status == Some(of) && said.contains("nvcap explain xid lists all"),
            "{said}"
        );
    }
}
