//! Short names that every sink spells the same: engines, processes and threads, places. Knows no format.

use std::fmt;

use nvcap_decode::decode::event::{
    ChipBy, Context, Direction, Engine, LaunchHow, LaunchKind, Operation, PartOf,
};

/// The latest time that was shown, to notice what is shown out of the order of times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Latest(Option<u64>);

impl Latest {
    /// Takes the time of what is shown now; `true` if something with a later time was shown before.
    pub(crate) fn is_passed(&mut self, time: Option<u64>) -> bool {
        let passed = time.is_some() && time < self.0;
        self.0 = self.0.max(time);
        passed
    }
}

/// An operation's kind, as `op` of JSON and of filters.
pub(crate) fn operation_name(op: &Operation) -> &'static str {
    match op {
        Operation::Launch(_) => "launch",
        Operation::Graph(_) => "graph",
        Operation::Copy(_) => "copy",
        Operation::Inline(_) => "inline",
        Operation::Load(_) => "load",
        Operation::Semaphore(_) => "semaphore",
        Operation::Barrier(_) => "barrier",
        Operation::Bind(_) => "bind",
        Operation::Draw(_) => "draw",
        Operation::Video(_) => "video",
        Operation::Host(_) => "host",
    }
}

/// An engine as users write it in filters: `gr`, `ce2`, `nvdec0`, ...
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

/// An engine's name for JSON; `None` (null) if the engine is not known.
#[must_use]
pub(crate) fn known_engine(engine: Engine) -> Option<String> {
    (engine != Engine::Unknown).then(|| EngineName(engine).to_string())
}

/// A process's or thread's name; `None` if the source gives an empty one, which means that it could not be read.
#[must_use]
pub(crate) fn known_name(name: &str) -> Option<&str> {
    Some(name).filter(|n| !n.is_empty())
}

/// Submitter as `name/pid:tid`. The thread id is left out where it is the process's first thread or not known, the name and the process id where they
/// are not known.
pub(crate) struct Who<'a>(pub &'a Context);

impl fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.0.at;
        let mut text = String::new();
        if let Some(name) = self.0.thread.as_deref().and_then(known_name) {
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

/// Returns the short name of a direction: `h2d`, `d2h`, `d2d`, `h2h`, `p2p`; `h2a` and others for arrays.
#[must_use]
pub(crate) fn direction(d: Direction) -> &'static str {
    match d {
        Direction::HostToDevice => "h2d",
        Direction::DeviceToHost => "d2h",
        Direction::DeviceToDevice => "d2d",
        Direction::HostToHost => "h2h",
        Direction::PeerToPeer => "p2p",
        Direction::HostToArray => "h2a",
        Direction::ArrayToHost => "a2h",
        Direction::DeviceToArray => "d2a",
        Direction::ArrayToDevice => "a2d",
        Direction::ArrayToArray => "a2a",
    }
}

/// Returns the way in which a launch was commanded, as filters and JSON name it.
#[must_use]
pub(crate) fn launch_how(h: LaunchHow) -> &'static str {
    match h {
        LaunchHow::InlineQmd => "inline_qmd",
        LaunchHow::Scheduled => "scheduled",
        LaunchHow::Released => "released",
        LaunchHow::Dependent => "dependent",
        LaunchHow::Macro => "macro",
        LaunchHow::Launch => "launch",
    }
}

/// The evidence for a chip, as JSON names it.
#[must_use]
pub(crate) fn chip_by(by: ChipBy) -> &'static str {
    match by {
        ChipBy::Given => "given",
        ChipBy::Pci => "pci",
        ChipBy::Bound => "bound",
        ChipBy::QmdVersion => "qmd_version",
        ChipBy::Methods => "methods",
        ChipBy::Channel => "channel",
    }
}

/// The name of a launch's kind in filters and JSON.
#[must_use]
pub(crate) fn launch_kind(k: LaunchKind) -> &'static str {
    match k {
        LaunchKind::User => "user",
        LaunchKind::Companion => "companion",
        LaunchKind::DriverMemset => "driver_memset",
        LaunchKind::DriverCopy => "driver_copy",
        LaunchKind::DriverGraph => "driver_graph",
        LaunchKind::Driver => "driver",
        LaunchKind::Unresolved => "unresolved",
    }
}

/// A process id; `None` if it is 0, which in records means that it is not known.
#[must_use]
pub(crate) fn known_pid(pid: u32) -> Option<u32> {
    (pid != 0).then_some(pid)
}

/// A process id as text: `4711`, `?`.
#[must_use]
pub fn pid_name(pid: u32) -> String {
    known_pid(pid).map_or_else(|| "?".to_owned(), |p| p.to_string())
}

/// Returns a GPU's name: `gpu0`, `gpu?`.
#[must_use]
pub(crate) fn gpu_name(minor: Option<u32>) -> String {
    minor.map_or_else(|| "gpu?".to_owned(), |m| format!("gpu{m}"))
}

/// A channel's work-submit token as every text has it: `0x0000a`, `?` where it is not known.
#[must_use]
pub fn token_name(token: Option<u32>) -> String {
    token.map_or_else(|| "?".to_owned(), |token| format!("{token:#07x}"))
}

/// Returns words for copies, fills and writes that are the driver's own: `the driver, for a module`.
#[must_use]
pub(crate) const fn for_driver(part: PartOf) -> &'static str {
    match part {
        PartOf::Context => "the driver, for a context",
        PartOf::Module => "the driver, for a module",
    }
}

/// Tells whether the GPU times of an entry are shown at this operation: launches, copies and graph replays, but not the nodes of a replay.
pub fn is_timed(op: &Operation) -> bool {
    match op {
        Operation::Launch(l) => l.replay.is_none() && l.kind != LaunchKind::Companion,
        Operation::Graph(_) => true,
        Operation::Copy(copy) => copy.dst.is_some(),
        _ => false,
    }
}
