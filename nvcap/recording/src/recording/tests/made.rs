//! Records of the modes of the trap, in which each field has its own value.

use super::at;
use nvcap_decode::ledger::{Captured, Trapped, Windows};
use nvcap_decode::record::{ChannelId, Skipped, SkippedWhy};

pub(super) fn skipped() -> Skipped {
    Skipped {
        at: at(13),
        channel: ChannelId(3),
        position: 1 << 33,
        entries: 7,
        doorbells: Some(5),
        why: SkippedWhy::Counted,
    }
}

pub(super) fn trapped() -> Trapped {
    let mut windows = Windows::default();
    for n in 1..9 {
        let captured = Captured {
            submissions: n,
            entries: n + n % 2,
            bytes: 2000 * n,
        };
        windows.add(1000 * n, captured);
    }
    Trapped {
        hits: 9,
        runs: 8,
        before: 7,
        deferred: 6,
        put_off: 5,
        counted: 4,
        stray_traps: 3,
        duty: Some(windows.duty(1_000_000, 1_000, 2)),
    }
}
