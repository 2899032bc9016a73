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

/// The engine of a channel from the NV2080_ENGINE_TYPE number it was allocated for
/// (cl2080_notification.h of the open kernel module).
#[must_use]
pub fn engine_from_rm(number: u32) -> Engine {
    match number {
        0 => Engine::Unknown,
        0x01..=0x08 => Engine::Graphics,
        0x09..=0x12 => Engine::Copy(Some(number - 0x09)),
        0x13..=0x1a => Engine::Nvdec(number - 0x13),
        0x1b..=0x1d => Engine::Nvenc(number - 0x1b),
        0x26 => Engine::Sec2,
        0x2b..=0x32 => Engine::Nvjpg(number - 0x2b),
        0x33 => Engine::Ofa(0),
        0x34..=0x3d => Engine::Copy(Some(number - 0x34 + 10)),
        0x3e => Engine::Ofa(1),
        0x3f => Engine::Nvenc(3),
        other => Engine::Other(other),
    }
}

/// `name/pid`, `name/pid:tid`: who submitted. The thread is left out where it is the first one or unknown.
pub struct Who<'a>(pub &'a Context);

impl fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.thread.as_deref().unwrap_or("?");
        let at = self.0.at;
        if at.tid == 0 || at.tid == at.pid {
            f.pad(&format!("{name}/{}", at.pid))
        } else {
            f.pad(&format!("{name}/{}:{}", at.pid, at.tid))
        }
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
