mod faults;
mod header;
mod long;
mod made;
mod newer;
mod published;
mod samples;
mod snapshot;
mod switches;
mod zeros;

use proptest::prelude::*;
use std::sync::Arc;

use self::made::{skipped, trapped};
use super::*;
use nvcap_decode::ledger::{Ledger, Margin, Observed};
use nvcap_decode::record::*;
use nvcap_decode::wire::{GpuVa, Hole};

fn at(time_ns: u64) -> At {
    At {
        time_ns,
        pid: 4711,
        tid: 4712,
    }
}

fn submission(time_ns: u64, channel: u32, bytes: usize) -> Record {
    Record::Submission(Submission {
        absent_ns: time_ns.checked_sub(1_000),
        at: at(time_ns),
        channel: ChannelId(channel),
        token: Some(0x10012),
        position: 1 << 40,
        gp_get: Some(7),
        prev_put: 8,
        gp_put: 0,
        ip: Some(u64::MAX),
        doorbell: Some(CpuVa(0x7f00_0000_0090)),
        how: How::Trapped,
        late: true,
        thread: Some("python".into()),
        segments: vec![
            Segment::default(),
            Segment {
                entry: 0xdead_beef_0000_1234,
                bytes: (0..bytes).map(|n| (n * 7) as u8).collect(),
                holes: vec![Hole { offset: 4, len: 8 }],
            },
        ],
    })
}

fn bytes(data: &[u8]) -> Bytes {
    Bytes {
        data: data.to_vec(),
        full_len: 4096,
    }
}

/// Returns records of every kind, each with every field set and with none.
fn all_records() -> Vec<Record> {
    let frame = Frame {
        module: "libcuda.so.1".into(),
        symbol: Some("cuLaunchKernel".into()),
        offset: Some(12),
        address: 0x1234,
        file: Some("a.cu".into()),
        line: Some(7),
        python: false,
        inlined: true,
    };
    let calls = Arc::new(Calls {
        frames: vec![frame, Frame::default()],
        api: Some("cuLaunchKernel".into()),
        end: StackEnd::Cut,
    });
    let mut all = Vec::new();
    for device in [
        Device::Control,
        Device::Gpu(3),
        Device::Uvm,
        Device::Other(195, 254),
    ] {
        all.push(Record::Ioctl(Box::new(Ioctl {
            at: at(1),
            end_ns: Some(2),
            device,
            fd: Some(-1),
            file: u64::MAX,
            named_file: 9,
            request: 0xc020_462a,
            result: Some(-22),
            input: bytes(b"in"),
            output: bytes(b""),
            nested: Some(Nested {
                address: CpuVa(1),
                input: bytes(b"a"),
                output: bytes(b"b"),
            }),
        })));
    }
    all.push(Record::Ioctl(Box::new(Ioctl {
        at: At::default(),
        end_ns: None,
        device: Device::Control,
        fd: None,
        file: 0,
        named_file: 0,
        request: 0,
        result: None,
        input: Bytes::default(),
        output: Bytes::default(),
        nested: None,
    })));
    all.push(Record::Mapping(Mapping {
        at: at(3),
        device: Device::Gpu(0),
        fd: None,
        file: 4,
        start: CpuVa(0x1000),
        len: 0x2000,
        read: true,
        write: false,
        found: true,
    }));
    all.push(Record::Unmapping(Unmapping {
        at: at(4),
        start: CpuVa(0x1000),
        len: 0x2000,
    }));
    for life in [
        Life::Present {
            name: String::new(),
        },
        Life::Fork { child: 5 },
        Life::Thread { child: 6 },
        Life::Exec { name: "x y".into() },
        Life::Exit { process: true },
        Life::Exit { process: false },
        Life::Identity(Box::default()),
        Life::Identity(Box::new(identity())),
    ] {
        all.push(Record::Process(Process { at: at(5), life }));
    }
    for origin in [
        Origin::Allocated,
        Origin::Found,
        Origin::Notified,
        Origin::Given,
        Origin::Recorded,
    ] {
        all.push(Record::Channel(Box::new(Channel {
            at: at(6),
            id: ChannelId(u32::MAX),
            gpu: Some(0),
            token: Some(1),
            class: Some(0xc86f),
            engine: Some(9),
            handle: Some((1, 2)),
            ring_gpu: Some(GpuVa(3)),
            ring: Some(CpuVa(4)),
            entries: Some(1024),
            userd: Some(CpuVa(5)),
            origin,
        })));
    }
    all.push(Record::Channel(Box::new(Channel::bare(
        At::default(),
        ChannelId(0),
        Origin::Found,
    ))));
    all.push(submission(7, 1, 100));
    for how in [How::Observed, How::Recorded] {
        all.push(Record::Submission(Submission {
            absent_ns: None,
            at: at(8),
            channel: ChannelId(2),
            token: None,
            position: 0,
            gp_get: None,
            prev_put: 0,
            gp_put: 0,
            ip: None,
            doorbell: None,
            how,
            late: false,
            thread: None,
            segments: Vec::new(),
        }));
    }
    all.push(Record::Gpu(Gpu {
        at: at(9),
        minor: 1,
        pci_device: 0x2335,
    }));
    all.push(Record::QmdCopy(Box::new(QmdCopy {
        at: at(10),
        address: GpuVa(1),
        bytes: vec![3; 70_000],
        found: CpuVa(2),
    })));
    let params = vec![
        KernelParam { offset: 0, size: 8 },
        KernelParam { offset: 8, size: 0 },
    ];
    for (by, params) in [
        (NamedBy::Record, None),
        (NamedBy::Code, Some(Vec::new())),
        (NamedBy::RecordAndCode, Some(params)),
        (NamedBy::File, None),
    ] {
        all.push(Record::Kernel(Box::new(Kernel {
            at: at(11),
            program: GpuVa(0x7fe6_777b_6000),
            name: "_Z4vaddPf".into(),
            bytes: params.as_ref().map(|_| 128),
            params,
            by,
            certain: true,
            driver: by == NamedBy::Code,
            variables: vec![
                Variable {
                    name: "_ZN1a5tableE".into(),
                    bytes: 4000,
                    constant: by == NamedBy::Code,
                };
                usize::from(by != NamedBy::File)
            ],
        })));
    }
    for calls in [calls.clone(), Arc::default(), calls] {
        all.push(Record::Stack(Stack { at: at(12), calls }));
    }
    all.push(Record::Skipped(skipped()));
    all.push(Record::Stamps(Box::new(Stamps {
        at: at(13),
        from_ns: 12,
        reads: 1000,
        stamps: [None, Some(u64::MAX)]
            .map(|gpu_ns| Stamp {
                address: GpuVa(0x2_0000_0010),
                payload: 5,
                gpu_ns,
                before_ns: 1,
                seen_ns: 2,
            })
            .to_vec(),
    })));
    for what in [
        Lost::Entries {
            position: 3,
            count: 4,
        },
        Lost::Records {
            kind: RecordKind::PreemptedCalls,
            count: 5,
        },
        Lost::UnknownChannel {
            token: None,
            count: 1,
        },
        Lost::UnknownChannel {
            token: Some(0),
            count: 1,
        },
        Lost::Stacks { count: 9 },
        Lost::Notifiers { count: 3 },
        Lost::Untraced { why: "why".into() },
    ] {
        let channel = matches!(what, Lost::Entries { .. }).then_some(ChannelId(1));
        all.push(Record::Loss(Loss {
            at: at(14),
            channel,
            what,
        }));
    }
    all.push(Record::Snapshot(Box::new(snapshot::snapshot())));
    all.extend(faults::all());
    all.extend(samples::all());
    all.extend(switches::all());
    all
}

fn info() -> TraceInfo {
    TraceInfo {
        program: "nvcap test".into(),
        driver: Some("580.159.04".into()),
        kernel: "6.1".into(),
        processor: "a processor".into(),
        monotonic_ns: 1_000,
        realtime_ns: 1_700_000_000_000_000_000,
        how: "trap".into(),
        gpu_time: true,
        stacks: true,
        in_order: false,
        redacted: false,
        command: vec!["./vadd".into(), "a b".into()],
        file: 0,
        left_out: 0,
        gpus: vec![
            HostGpu {
                minor: 0,
                model: Some("NVIDIA H200".into()),
                uuid: Some("GPU-12ab".into()),
                bus: Some("0000:c1:00.0".into()),
            },
            HostGpu {
                minor: 3,
                ..HostGpu::default()
            },
        ],
    }
}

fn end() -> EndInfo {
    EndInfo {
        time_ns: 0,
        observed: Some(Observed {
            looks: 3,
            margins: vec![Margin {
                channel: ChannelId(1),
                looks: 2,
                largest_part: 0.25,
                ..Margin::default()
            }],
            budget: Some(0.05),
            ..Observed::default()
        }),
        stack_sample: Some((100, 7)),
        unwritten: 1,
        gpu_clocks: Vec::new(),
        trapped: Some(trapped()),
        left_out_of_stacks: vec![("tables".into(), 3), ("names".into(), 1)],
    }
}

fn file_of(records: &[Record]) -> Vec<u8> {
    let mut to = Vec::new();
    let mut writer = Writer::new(info(), 7);
    writer.begin_section(&mut to);
    let mut ledger = Ledger::new();
    for record in records {
        ledger.record(record);
        writer.record(record, &mut to);
    }
    writer.end(end(), &ledger, b"{}", &mut to);
    to
}

/// Reads the records and the errors.
fn read(bytes: &[u8]) -> (Vec<Record>, Vec<String>) {
    let (mut records, mut errors) = (Vec::new(), Vec::new());
    for item in Reader::new(bytes) {
        match item {
            Ok(Item::Record(record)) => records.push(record),
            Ok(_) => {}
            Err(e) => errors.push(e.to_string()),
        }
    }
    (records, errors)
}

#[test]
fn every_record_comes_back_as_it_was() {
    let all = all_records();
    let (records, errors) = read(&file_of(&all));
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(records.len(), all.len());
    for (read, written) in records.iter().zip(&all) {
        assert_eq!(read, written);
    }
}

#[test]
fn beginning_and_end_come_back() {
    let bytes = file_of(&[submission(2_000, 1, 5)]);
    let mut reader = Reader::new(&bytes[..]);
    assert_eq!(reader.trace(), Some(&info()));
    let items: Vec<Item> = reader.map(Result::unwrap).collect();
    assert_eq!(items.len(), 3);
    assert_eq!(items[0], Item::Trace(info()));
    let wanted = EndInfo {
        time_ns: 2_000,
        ..end()
    };
    assert_eq!(items[2], Item::End(wanted));
}

#[test]
fn long_records_take_several_packets() {
    for bytes in [
        kind::MOST_PART - 100,
        kind::MOST_PART,
        3 * kind::MOST_PART + 1,
    ] {
        let all = [submission(1, 1, bytes), submission(2, 1, 8)];
        let file = file_of(&all);
        let (records, errors) = read(&file);
        assert_eq!((&records[..], errors.len()), (&all[..], 0));
        // Without its second part, the whole record is missing.
        if bytes > 3 * kind::MOST_PART {
            let mut cut = file.clone();
            cut.drain(300_000..310_000);
            let (records, errors) = read(&cut);
            assert_eq!(records, &all[1..]);
            let said = "1 of the records up to number 2 are missing, the first is number 0";
            assert!(errors.iter().any(|e| e == said), "{errors:?}");
        }
    }
}

#[test]
fn a_later_section_depends_on_none_before() {
    let mut to = Vec::new();
    let mut writer = Writer::new(info(), 7);
    writer.begin_section(&mut to);
    let all = all_records();
    for record in &all {
        writer.record(record, &mut to);
    }
    let mut later = Vec::new();
    writer.continued(&mut to);
    writer.begin_file(3, &mut later);
    for record in &all[..4] {
        writer.again(record, &mut later);
    }
    for record in &all {
        writer.record(record, &mut later);
    }
    writer.end(end(), &Ledger::new(), b"{}", &mut later);
    let (records, errors) = read(&later);
    let wanted: Vec<&Record> = all[..4].iter().chain(&all).collect();
    assert_eq!(records.iter().collect::<Vec<_>>(), wanted);
    assert_eq!(errors, Vec::<String>::new());
    let (records, errors) = read(&to);
    assert_eq!((records.len(), errors.len()), (all.len(), 0));
    // In the other order, the first file's records cannot be shown, and this is reported.
    let reversed = [&later[..], &to[..]].concat();
    let (_, errors) = read(&reversed);
    let said = format!("{} records of earlier files came behind", all.len());
    assert!(
        errors.len() == 1 && errors[0].starts_with(&said),
        "{errors:?}"
    );
    // After the first file, its records come once.
    to.extend_from_slice(&later);
    let (records, errors) = read(&to);
    assert_eq!(records.len(), 2 * all.len());
    assert_eq!(errors, Vec::<String>::new());
}

/// Test of a later file whose beginning could not be written: its missing records are known nevertheless.
#[test]
fn a_later_file_says_what_is_missing_at_its_beginning() {
    let (mut lost, mut later) = (Vec::new(), Vec::new());
    let mut writer = Writer::new(info(), 7);
    writer.begin_section(&mut lost);
    let all = numbered(9);
    all[..4].iter().for_each(|r| writer.record(r, &mut lost));
    writer.begin_file(0, &mut lost);
    all[4..7].iter().for_each(|r| writer.record(r, &mut lost));
    writer.begin_section(&mut later);
    all[7..].iter().for_each(|r| writer.record(r, &mut later));
    writer.end(end(), &Ledger::new(), b"{}", &mut later);
    let (records, errors) = read(&later);
    assert_eq!(records, all[7..]);
    let said = "3 of the records up to number 9 are missing, the first is number 4";
    assert_eq!(errors, [said]);
}

#[test]
fn packets_of_other_traces_are_counted() {
    let mut bytes = file_of(&[submission(1, 1, 5)]);
    let mut other = Vec::new();
    let mut writer = Writer::new(info(), 8);
    writer.begin_section(&mut other);
    writer.record(&submission(1, 1, 5), &mut other);
    bytes.extend_from_slice(&other);
    let (records, errors) = read(&bytes);
    assert_eq!(records.len(), 1);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].starts_with("2 packets are of other traces"),
        "{errors:?}"
    );
}

#[test]
fn what_is_no_recording_has_no_records() {
    let mut network = Vec::new();
    crate::pcapng::section(&mut network, &crate::pcapng::Options::new());
    assert!(!is_recording(&network));
    assert!(is_recording(&file_of(&[])));
    let (records, errors) = read(&network);
    assert_eq!(
        (records.len(), &errors[..]),
        (0, &["the file has no records".to_owned()][..])
    );
    assert_eq!(read(b"").1.len(), 1);
}

fn numbered(n: u64) -> Vec<Record> {
    (0..n)
        .map(|i| submission(i + 1, i as u32 % 3, i as usize * 5 % 300))
        .collect()
}

#[test]
fn a_file_that_was_cut_gives_all_whole_records() {
    let all = numbered(200);
    let bytes = file_of(&all);
    let mut seed = 1u64;
    for _ in 0..1_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let cut = (seed >> 33) as usize % bytes.len();
        let (records, errors) = read(&bytes[..cut]);
        assert_eq!(records[..], all[..records.len()]);
        assert!(!errors.is_empty(), "{cut}");
        // The whole packets in the file, one after another.
        let mut end = 0;
        let mut whole = 0;
        while let Some(len) = bytes.get(end + 4..end + 8) {
            let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
            if end + len > cut {
                break;
            }
            let is_record = bytes[end] == 6 && bytes[end + 28 + 9] == 6;
            whole += usize::from(is_record);
            end += len;
        }
        assert_eq!(records.len(), whole, "{cut}");
    }
}

#[test]
fn what_damage_hides_is_said() {
    let all = numbered(200);
    let bytes = file_of(&all);
    let mut seed = 2u64;
    let mut hidden = 0;
    for _ in 0..1_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let place = (seed >> 33) as usize % bytes.len();
        let mut damaged = bytes.clone();
        damaged[place] ^= 1 << (seed >> 20 & 7);
        let (records, errors) = read(&damaged);
        // None is changed; at most one is missing, and that is reported.
        assert!(records.iter().all(|r| all.contains(r)), "{place}");
        assert!(records.len() + 1 >= all.len(), "{place}");
        assert!(records.len() == all.len() || !errors.is_empty(), "{place}");
        hidden += all.len() - records.len();
    }
    assert!(hidden > 800, "{hidden}");
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
        read(&bytes);
    }

    #[test]
    fn any_change_is_read(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        let mut bytes = file_of(&all_records());
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        read(&bytes);
    }
}

/// Returns an identity with every member set.
fn identity() -> Identity {
    let some = |text: &str| Some(text.to_owned());
    Identity {
        comm: "a b".into(),
        inner_pid: Some(7),
        uid: Some(0),
        user: some("ann"),
        cgroup: some("/x"),
        container: Some(Container {
            id: "abc".into(),
            runtime: some("docker"),
            name: some("c"),
        }),
        pod: Some(Pod {
            uid: "u".into(),
            qos: some("burstable"),
            name: some("p"),
            namespace: some("n"),
        }),
        gpus: vec![UsedGpu {
            minor: 3,
            uuid: some("GPU-1"),
        }],
    }
}
