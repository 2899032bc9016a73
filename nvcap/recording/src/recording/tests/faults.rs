//! Faults for the tests of recordings.

use nvcap_decode::record::{
    At, ChannelId, Fault, FaultSource, Near, Notification, Record, Suspect, SuspectKind, Xid,
};
use nvcap_decode::wire::GpuVa;

/// Returns faults with all members, and with none.
pub(super) fn all() -> Vec<Record> {
    let suspect = |kind, program: Option<u64>| Suspect {
        channel: ChannelId(1),
        index: 5,
        kind,
        program: program.map(GpuVa),
        grid: [1, 2, 3],
        block: [32, 1, 0],
        near: program.map(|value| Near { offset: 8, value }),
        kernel: None,
    };
    let full = Fault {
        at: At {
            time_ns: 15,
            pid: 4711,
            tid: 0,
        },
        source: FaultSource::Both,
        code: 31,
        channel: Some(ChannelId(1)),
        group: vec![ChannelId(2), ChannelId(7)],
        assumed: true,
        token: Some(0x1_000a),
        notification: Some(Notification {
            time: u64::MAX,
            info32: 31,
            info16: 7,
            status: 0xffff,
        }),
        message: Some(Box::new(Xid {
            code: 31,
            text: "MMU Fault".into(),
            ..Xid::default()
        })),
        memory: None,
        suspects: vec![
            suspect(SuspectKind::Kernel, Some(0x7f00_0000_1000)),
            suspect(SuspectKind::Copy, None),
        ],
        only_these: true,
    };
    let bare = Fault {
        source: FaultSource::KernelLog,
        channel: None,
        group: Vec::new(),
        token: None,
        notification: None,
        message: None,
        suspects: Vec::new(),
        only_these: false,
        assumed: false,
        ..full.clone()
    };
    [full, bare].map(|f| Record::Fault(Box::new(f))).into()
}
