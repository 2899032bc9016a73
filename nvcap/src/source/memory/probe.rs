//! One look at a running process: its mappings of the driver's files and the rings in them, as records. Stops
//! nothing and changes nothing in it.

use std::{collections::BTreeMap, io};

use super::{maps, scan, snapshot};
use crate::procfs;
use crate::procfs::mem::Memory;
use crate::record::{At, ChannelId, CpuVa, Life, Process, Record};

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probe {
    /// The process, its mappings, its channels.
    pub records: Vec<Record>,
    /// GP_GET and GP_PUT of each channel.
    pub positions: Vec<(ChannelId, u32, u32)>,
    /// Slots behind the last used ring that are all zero: channels that were never used, or nothing.
    pub unused: usize,
}

/// Looks. Channels are numbered from `first`.
///
/// # Errors
/// Those of reading `/proc/PID/maps` and of opening `/proc/PID/mem`: no such process, or not the right to.
pub(crate) fn probe(pid: u32, first: u32) -> io::Result<Probe> {
    let memory = Memory::open(pid)?;
    let areas = maps::areas(pid)?;
    let name = procfs::name(pid, None).unwrap_or_default();
    let at = At {
        time_ns: 0,
        pid,
        tid: 0,
    };
    let mut probe = Probe::default();
    probe.records.push(Record::Process(Process {
        at,
        life: Life::Present { name },
    }));
    let mapped = areas.iter().filter_map(|a| a.record(at));
    probe.records.extend(mapped.map(Record::Mapping));
    let mut found = scan::rings(&memory, &areas);
    // Of slots that are all zero those before a used one are channels; of those behind nothing can be said.
    let all = found.len();
    let area_of = |f: &scan::Found| {
        let area = areas.iter().find(|a| a.start <= f.ring && f.ring < a.end);
        area.map(|a| a.start)
    };
    let used: Vec<(Option<u64>, u64)> = found
        .iter()
        .filter(|f| f.used)
        .map(|f| (area_of(f), f.ring))
        .collect();
    found.retain(|f| {
        used.iter()
            .any(|(area, ring)| *area == area_of(f) && *ring >= f.ring)
    });
    probe.unused = all - found.len();
    // As `nvcap dump` knows them.
    let tokens = snapshot::tokens_found(&memory, &areas, scan::Effort::Usual);
    let tokens: BTreeMap<CpuVa, u32> = tokens.iter().map(|t| (t.ring, t.token)).collect();
    for (f, number) in found.iter().zip(first..) {
        let id = ChannelId(number);
        probe.positions.push((id, f.get, f.put));
        let mut channel = f.channel(at, id);
        channel.token = channel
            .token
            .or_else(|| tokens.get(&CpuVa(f.ring)).copied());
        probe.records.push(Record::Channel(Box::new(channel)));
    }
    Ok(probe)
}
