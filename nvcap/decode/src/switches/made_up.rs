//! Switches and windows for tests.

use super::{Reading, Scope, Switch, Tag, Told};
use crate::record::{At, Switches};

/// The host's clock less a GPU's, ns.
pub const OFFSET: u64 = 600_000;

/// Makes a switch of a process whose only context is ten times its process id.
pub fn switch(tag: Tag, pid: u32, time_ns: u64) -> Switch {
    Switch {
        tag,
        pid,
        context: pid * 10,
        time_ns,
        ..Switch::default()
    }
}

/// Makes news of a beginning or an end of such a process.
pub fn told(tag: Tag, pid: u32, time_ns: u64) -> Told {
    Told::Switch(switch(tag, pid, time_ns))
}

/// Makes a slice of such a process.
pub fn slice(pid: u32, from: u64, to: u64) -> [Told; 2] {
    [told(Tag::BEGIN, pid, from), told(Tag::END, pid, to)]
}

/// Returns a reading at a time of a GPU's clock, which is [`OFFSET`] behind the host's.
pub fn reading(gpu_ns: u64) -> Reading {
    Reading {
        host_ns: gpu_ns + OFFSET,
        gpu_ns,
        error_ns: 100,
    }
}

/// Makes a window of a GPU.
pub fn window(gpu: u32, (from, to): (u64, u64), told: Vec<Told>) -> Switches {
    let (from, to) = (reading(from), reading(to));
    Switches {
        at: At {
            time_ns: to.host_ns,
            ..At::default()
        },
        gpu,
        scope: Scope::AllUsers,
        from,
        to,
        told,
        processes: Vec::new(),
    }
}
