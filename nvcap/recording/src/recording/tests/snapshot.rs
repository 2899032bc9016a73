//! A snapshot with every field set, for tests.

use super::{at, submission};
use nvcap_decode::record::*;

/// Returns a snapshot in which each word of its enums occurs once.
pub(super) fn snapshot() -> ProcessSnapshot {
    let channel = |n: u32, place, size, target, token_from| SnapshotChannel {
        facts: ChannelFacts {
            channel: ChannelId(n),
            ring: CpuVa(0x2_0460_0000),
            userd: CpuVa(0x2_0460_2000),
            place,
            size,
            target,
            moved: n == 1,
            token_from,
            error: (n == 2).then_some(31),
            overwritten: 1,
            recycled: 2,
            unreadable: 3,
            elsewhere: 4,
            ring_gone: n == 3,
        },
        gp_get: 1022,
        gp_put: 3,
        first: match submission(15, n, 64) {
            Record::Submission(s) if n == 1 => vec![s],
            _ => Vec::new(),
        },
    };
    let thread = |tid: u32| Thread {
        tid,
        name: "worker".into(),
        state: 'D',
        ticks: 9,
        wchan: Some("futex_wait".into()),
        syscall: Some(202),
        call: None,
        argument: Some(0x7fff_0000_0000),
        native: Some(NativeStack {
            frames: vec![NativeFrame {
                module: "libc.so.6".into(),
                function: Some("poll".into()),
                offset: Some(4),
                address: 0x1000,
                file: None,
                line: None,
            }],
            end: StackEnd::Cut,
        }),
        python: Some(PythonStack::new(
            vec![PythonFrame::new(
                "Trainer.step".into(),
                "train.py".into(),
                Some(7),
            )],
            true,
            false,
        )),
    };
    let bare = Thread {
        tid: 5,
        state: 'R',
        ..Thread::default()
    };
    let mut xid =
        Xid::parse("NVRM: Xid (PCI:0000:c1:00 GPU-I:01 GPU-CI:02): 31, pid=7, name=x, Ch 0100000a")
            .unwrap();
    xid.channels = vec![ChannelId(1), ChannelId(2)];
    ProcessSnapshot {
        at: at(15),
        took_ns: 1,
        finding_ns: 2,
        reading_ns: 3,
        rank: Some(0),
        ranks: Some(8),
        python: Some("3.12".into()),
        unused: 4,
        notes: vec!["a note".into(), String::new()],
        memory: vec![MemoryRange {
            start: CpuVa(0x1000),
            len: 0x2000,
        }],
        channels: vec![
            channel(
                0,
                RingPlace::Habit,
                RingSize::Habit,
                EntryTarget::Unused,
                None,
            ),
            channel(
                1,
                RingPlace::Alike,
                RingSize::Wrapped,
                EntryTarget::Parses,
                Some(TokenFrom::Notifier),
            ),
            channel(
                2,
                RingPlace::Sought,
                RingSize::Room,
                EntryTarget::Readable,
                Some(TokenFrom::Given),
            ),
            channel(
                3,
                RingPlace::Given,
                RingSize::Room,
                EntryTarget::Elsewhere,
                None,
            ),
        ],
        threads: vec![thread(4), bare],
        xids: vec![xid],
    }
}
