//! Tests of the section header, which is for people, and of the first packet, which is for readers.

use super::*;

/// Returns the text of an option of the file's first block.
fn option(file: &[u8], wanted: u16) -> Option<String> {
    let half = |at: usize| u16::from_le_bytes([file[at], file[at + 1]]);
    let mut at = 24;
    while half(at) != 0 {
        let len = usize::from(half(at + 2));
        let value = &file[at + 4..at + 4 + len];
        if half(at) == wanted {
            return Some(String::from_utf8(value.to_vec()).unwrap());
        }
        at += 4 + len.next_multiple_of(4);
    }
    None
}

#[test]
fn hardware_is_the_processor_and_the_gpus() {
    let hardware = |info: TraceInfo| {
        let mut to = Vec::new();
        Writer::new(info.clone(), 7).begin_section(&mut to);
        assert_eq!(Reader::new(&to[..]).trace(), Some(&info));
        option(&to, crate::pcapng::option::HARDWARE).unwrap()
    };
    let both = "a processor; GPU 0: NVIDIA H200, 0000:c1:00.0, GPU-12ab; GPU 3";
    assert_eq!(hardware(info()), both);
    // Without GPUs, as in recordings of earlier versions.
    let none = TraceInfo {
        gpus: Vec::new(),
        ..info()
    };
    assert_eq!(hardware(none), "a processor");
}

/// Test that the closest reading of each process's clock is at the trace's end, and in the comment of the section that follows it.
#[test]
fn clocks_of_gpus_are_told_where_they_are_known() {
    let stamps = |pid, times: &[(Option<u64>, u64, u64)]| {
        let stamp = |(gpu_ns, before_ns, seen_ns): &(Option<u64>, u64, u64)| Stamp {
            address: GpuVa(0x1000 + before_ns),
            payload: 1,
            gpu_ns: *gpu_ns,
            before_ns: *before_ns,
            seen_ns: *seen_ns,
        };
        Record::Stamps(Box::new(Stamps {
            at: At { pid, ..at(9) },
            from_ns: 1,
            reads: 1,
            stamps: times.iter().map(stamp).collect(),
        }))
    };
    let mut to = Vec::new();
    let mut writer = Writer::new(info(), 7);
    writer.begin_section(&mut to);
    let comment =
        |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(1_000)]).into_owned();
    let pair = "MONOTONIC 1000, REALTIME 1700000000000000000";
    assert!(comment(&to).contains(pair) && !comment(&to).contains("GPU of"));
    // Without a time of the GPU, without a beginning, in reversed order: none of them is a clock.
    let none = [(None, 3, 4), (Some(7), 0, 4), (Some(7), 5, 4)];
    let is_channel = |r: &Record| matches!(r, Record::Channel(_));
    let channel = all_records().into_iter().find(is_channel).unwrap();
    writer.record(&channel, &mut to);
    writer.record(&stamps(4711, &none), &mut to);
    let begun = to.len();
    let some = [(Some(70), 10, 90), (Some(80), 50, 60), (Some(90), 70, 99)];
    writer.record(&stamps(4711, &some), &mut to);
    // When the file's first section began, no clock was known. A second section follows, with the same channels.
    let of = |at: &[u8]| String::from_utf8_lossy(at).into_owned();
    let section = of(&to[begun..]);
    assert!(
        section.contains("GPU of process 4711: 80 at MONOTONIC 50 to 60"),
        "{section}"
    );
    let Record::Channel(c) = &channel else {
        unreachable!()
    };
    let name = format!("channel {}", c.id.0);
    assert_eq!(section.matches(&name).count(), 1, "{section}");
    assert!(
        section.contains(&format!("process {}", c.at.pid)),
        "{section}"
    );
    let known = to.len();
    writer.record(&stamps(5, &some[..1]), &mut to);
    assert!(
        !of(&to[known..]).contains("GPU of process"),
        "one is enough"
    );
    assert_eq!(read(&to).0.len(), 4);
    let mut next = Vec::new();
    writer.begin_file(0, &mut next);
    let said = comment(&next);
    assert!(
        said.contains("GPU of process 4711: 80 at MONOTONIC 50 to 60"),
        "{said}"
    );
    writer.end(end(), &Ledger::new(), b"{}", &mut next);
    let last = Reader::new(&next[..]).filter_map(Result::ok).last();
    let Some(Item::End(end)) = last else {
        panic!("{last:?}");
    };
    let clocks = end.gpu_clocks.iter();
    let clocks: Vec<_> = clocks
        .map(|c| (c.pid, c.address.0, c.gpu_ns, c.before_ns, c.seen_ns))
        .collect();
    assert_eq!(
        clocks,
        [(5, 0x100a, 70, 10, 90), (4711, 0x1032, 80, 50, 60)]
    );
}
