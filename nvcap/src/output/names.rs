//! Short names that every sink spells the same: engines, processes and threads, places. Knows no format.

use std::fmt;

use crate::decode::event::{Context, Direction, Engine, LaunchKind};

/// `gr`, `ce2`, `nvdec0`, ...: an engine as users write it in filters.
#[derive(Clone, Copy)]
pub struct EngineName(pub Engine);

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Engine::Graphics => f.pad("gr"),
            Engine::Copy(None) => f.pad("ce"),
            Engine::Copy(Some(n)) => f.pad(&format!("ce{n}")),
            Engine::Nvdec(n) => f.pad(&format!("nvdec{n}")),
            Engine::Nvenc(n) => f.pad(&format!("nvenc{n}")),
            Engine::Nvjpg(n) => f.pad(&format!("nvjpg{n}")),
            Engine::Ofa(n) => f.pad(&format!("ofa{n}")),
            Engine::Sec2 => f.pad("sec2"),
            Engine::Other(n) => f.pad(&format!("eng{n:#x}")),
            Engine::Unknown => f.pad("?"),
        }
    }
}

/// `name/pid:tid`: who submitted. The thread id is left out where it is the process's first thread or not known, the
/// name and the process id where they are not known.
pub struct Who<'a>(pub &'a Context);

impl fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.0.at;
        let mut text = String::new();
        if let Some(name) = &self.0.thread {
            text.push_str(name);
            text.push('/');
        }
        match at.pid {
            0 => text.push('?'),
            pid => text.push_str(&pid.to_string()),
        }
        if at.tid != 0 && at.tid != at.pid {
            text.push(':');
            text.push_str(&at.tid.to_string());
        }
        f.pad(&text)
    }
}

/// `h2d`, `d2h`, `d2d`, `h2h`, `p2p`.
#[must_use]
pub fn direction(d: Direction) -> &'static str {
    match d {
        Direction::HostToDevice => "h2d",
        Direction::DeviceToHost => "d2h",
        Direction::DeviceToDevice => "d2d",
        Direction::HostToHost => "h2h",
        Direction::PeerToPeer => "p2p",
    }
}

/// The name of a launch's kind in filters and JSON.
#[must_use]
pub fn launch_kind(k: LaunchKind) -> &'static str {
    match k {
        LaunchKind::User => "user",
        LaunchKind::Companion => "companion",
        LaunchKind::DriverMemset => "driver_memset",
        LaunchKind::DriverCopy => "driver_copy",
        LaunchKind::Unresolved => "unresolved",
    }
}
