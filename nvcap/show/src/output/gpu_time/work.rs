//! The work of ring entries (launches, copies, graph replays), and the table row under which it is counted.

use super::when::absent;
use crate::output::kernels;
use crate::output::names::{direction, for_driver, is_timed};
use nvcap_decode::decode::event::{Context, GpuDuration, GpuTime, Operation, PartOf};
use nvcap_decode::record::ChannelId;

/// Least error, ns, from which on a duration counts as not known if the error is above a tenth of it, too: the end came while stamps were not read.
const VAGUE_NS: u64 = 100_000;
/// The most launches and copies of one entry that are kept; the rest are only counted.
const MOST_TOGETHER: usize = 16;

/// Kind of work that a row sums up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// A kernel, by its name as the compiler wrote it.
    Kernel(String),
    /// A kernel without a name, by its program's address.
    Program(u64),
    /// A kernel of which neither name nor address is known.
    Unknown,
    /// Replays of graphs.
    Graph,
    /// Copies.
    Copy(&'static str),
    /// Copies that fill.
    Fill,
    /// Copies and fills by which the driver makes a context or loads a module.
    Driver(PartOf),
    /// Works that one entry makes the GPU do together: their number, and the first of them.
    Together(usize, Vec<What>),
    /// Work of one process, where each has rows of its own.
    Of(u32, Box<What>),
}

/// The work of one entry. Its time is that of all launches and copies of the entry together.
#[derive(Debug)]
struct Shared {
    serial: u64,
    channel: ChannelId,
    pid: u32,
    gpu: Option<u32>,
    absent: Option<u64>,
    submitted: Option<u64>,
    entry: u32,
    time: GpuTime,
    count: usize,
    /// The first launches and copies, each with its text.
    works: Vec<(What, String)>,
    bytes: u64,
}

/// The work of an entry, whole.
#[derive(Debug)]
pub struct Done {
    /// Kind of work that the entry is counted as.
    pub what: What,
    /// The row's name as people read it.
    pub text: String,
    /// Times of the work, as far as they were seen.
    pub time: GpuTime,
    /// Time for which the GPU worked on it, where that is known well enough to be counted.
    pub duration: Option<GpuDuration>,
    /// The bytes that it moved.
    pub bytes: u64,
    /// Channel of the entry.
    pub channel: ChannelId,
    /// Its process.
    pub pid: u32,
    /// Its GPU.
    pub gpu: Option<u32>,
    /// Time at which it was not in the ring yet, where that is known, ns.
    pub absent: Option<u64>,
    /// Time at which its submission was seen, ns.
    pub submitted: Option<u64>,
}

/// Collects the launches and copies of each entry. Several of one entry have only a common time: they count as one work of their own
/// ([`What::Together`]), so that none of them gets the time of another.
#[derive(Debug, Default)]
pub struct Entries {
    /// The entry whose work comes now.
    now: Option<Shared>,
}

impl Entries {
    /// Takes an operation. If it begins a new entry, returns the work of the entry before.
    pub fn operation(
        &mut self,
        c: &Context,
        entry: u32,
        time: &GpuTime,
        op: &Operation,
    ) -> Option<Done> {
        if !is_timed(op) {
            return None;
        }
        let is_same = |s: &Shared| (s.serial, s.entry) == (c.serial, entry);
        let done = match self.now.as_ref().is_some_and(is_same) {
            true => None,
            false => self.finish(),
        };
        let now = self.now.get_or_insert_with(|| Shared {
            serial: c.serial,
            channel: c.channel,
            pid: c.at.pid,
            gpu: c.gpu,
            absent: absent(c),
            submitted: c.at.time(),
            entry,
            time: *time,
            count: 0,
            works: Vec::new(),
            bytes: 0,
        });
        let (what, bytes) = what(c, entry, op);
        now.count += 1;
        now.bytes = now.bytes.saturating_add(bytes);
        if now.works.len() < MOST_TOGETHER {
            let text = text(&what, op);
            now.works.push((what, text));
        }
        done
    }

    /// Ends the last entry and returns its work.
    pub fn finish(&mut self) -> Option<Done> {
        let mut of = self.now.take()?;
        // The time may be that of other entries' work, too, for which this entry stands.
        let count = of.count.max(of.time.works as usize);
        let (what, text) = match (count, of.works.pop()) {
            (1, Some(only)) => only,
            (_, last) => {
                of.works.extend(last);
                let text = together(count, &of.works);
                let works = of.works.into_iter().map(|(what, _)| what);
                (What::Together(count, works.collect()), text)
            }
        };
        Some(Done {
            what,
            text,
            time: of.time,
            duration: told(&of.time),
            bytes: of.bytes,
            channel: of.channel,
            pid: of.pid,
            gpu: of.gpu,
            absent: of.absent,
            submitted: of.submitted,
        })
    }
}

/// Returns the time from begin to end, where that is known well enough to be counted, by the same rule everywhere.
pub(crate) fn elapsed(time: &GpuTime) -> Option<GpuDuration> {
    let is_vague = |d: &GpuDuration| d.error_ns > VAGUE_NS && d.error_ns > d.ns / 10;
    time.duration.filter(|d| !is_vague(d))
}

/// Returns the time for which it worked: that from begin to end, without the time in which others had the GPU.
pub(in crate::output) fn told(time: &GpuTime) -> Option<GpuDuration> {
    elapsed(time).and(time.worked())
}

/// Returns the kind of work that an operation of an entry is counted as, and the bytes that it moves.
pub fn what(c: &Context, entry: u32, op: &Operation) -> (What, u64) {
    match op {
        Operation::Copy(copy) if let Some(part) = c.part_of(entry) => {
            (What::Driver(part), copy.bytes)
        }
        Operation::Launch(l) => match (&l.kernel, l.program) {
            (Some(kernel), _) => (What::Kernel(kernel.name.clone()), 0),
            (None, Some(program)) => (What::Program(program.0), 0),
            (None, None) => (What::Unknown, 0),
        },
        Operation::Graph(_) => (What::Graph, 0),
        Operation::Copy(copy) if copy.src.is_none() => (What::Fill, copy.bytes),
        Operation::Copy(copy) => {
            let direction = copy.direction.map_or("", direction);
            (What::Copy(direction), copy.bytes)
        }
        _ => (What::Unknown, 0),
    }
}

/// A row's name as people read it.
pub fn text(what: &What, op: &Operation) -> String {
    match (what, op) {
        (What::Kernel(_), Operation::Launch(l)) => l
            .kernel
            .as_deref()
            .map_or_else(String::new, |k| kernels::text(k, true)),
        (What::Kernel(name), _) => name.clone(),
        (What::Program(program), _) => format!("program {program:#x}"),
        (What::Unknown, _) => "kernel of an unknown program".to_owned(),
        (What::Graph, _) => "graph replay (all its kernels)".to_owned(),
        (What::Copy(""), _) => "copy of a direction that is not known".to_owned(),
        (What::Copy(direction), _) => format!("copy {direction}"),
        (What::Fill, _) => "fill".to_owned(),
        (What::Driver(part), _) => for_driver(*part).to_owned(),
        // Made of the texts of its parts.
        (What::Together(count, _), _) => format!("{count} in one entry"),
        (What::Of(_, what), _) => text(what, op),
    }
}

/// Describes the work of one entry: `3 in one entry: a, 2 x b`.
fn together(count: usize, works: &[(What, String)]) -> String {
    const SHOWN: usize = 4;
    let mut runs: Vec<(usize, &str)> = Vec::new();
    for (_, text) in works {
        match runs.last_mut() {
            Some((times, of)) if of == text => *times += 1,
            _ => runs.push((1, text)),
        }
    }
    let mut named = 0;
    let mut parts = Vec::new();
    for (times, of) in runs.iter().take(SHOWN) {
        named += times;
        parts.push(match times {
            1 => (*of).to_owned(),
            _ => format!("{times} x {of}"),
        });
    }
    if named < count {
        parts.push(format!("{} more", count - named));
    }
    format!("{count} in one entry: {}", parts.join(", "))
}

impl What {
    /// Returns the bytes of its names.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Kernel(name) => name.len(),
            Self::Together(_, works) => works.iter().map(Self::bytes).sum(),
            _ => 0,
        }
    }

    /// Tells whether the work is in the table of copies.
    pub fn is_copy(&self) -> bool {
        match self {
            Self::Copy(_) | Self::Fill | Self::Driver(_) => true,
            Self::Together(_, works) => works.iter().all(Self::is_copy),
            Self::Of(_, what) => what.is_copy(),
            _ => false,
        }
    }

    /// Returns the number of launches or copies of this work.
    pub fn works(&self) -> usize {
        match self {
            Self::Together(count, _) => *count,
            Self::Of(_, what) => what.works(),
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_described_by_its_first_works() {
        let of = |names: &[&str], count| {
            let works: Vec<_> = names
                .iter()
                .map(|n| (What::Kernel((*n).to_owned()), (*n).to_owned()))
                .collect();
            together(count, &works)
        };
        assert_eq!(of(&["a", "b", "b"], 3), "3 in one entry: a, 2 x b");
        assert_eq!(
            of(&["a", "b", "a", "b", "c"], 40),
            "40 in one entry: a, b, a, b, 36 more"
        );
        let copies = What::Together(2, vec![What::Copy("h2d"), What::Fill]);
        let mixed = What::Together(2, vec![What::Copy("h2d"), What::Unknown]);
        assert!(copies.is_copy() && !mixed.is_copy());
    }
}
