//! One look at a running process: its mappings of the driver's files and the rings in them, as records. The look
//! stops nothing and changes nothing in the process.

use std::{collections::BTreeMap, io, time::Duration};

use super::{
    captured::{ChannelSnapshot, SnapshotOptions},
    channel_snapshot::Reader,
    feeds,
    history::resolve,
    maps, scan, snapshot,
};
use crate::procfs;
use crate::procfs::mem::{Memory, ReadMemory};
use nvcap_decode::decode::event::Engine;
use nvcap_decode::record::{At, ChannelId, CpuVa, Life, Process, Record};

/// Result of a probe of a process.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    /// Records of the process, its mappings and its channels.
    pub records: Vec<Record>,
    /// GP_GET and GP_PUT of each channel.
    pub positions: Vec<(ChannelId, u32, u32)>,
    /// Engine of each channel, if the entries of its ring show it.
    pub engines: Vec<(ChannelId, Engine)>,
    /// Number of slots behind the last used ring that are all zero: channels that were never used, or no
    /// channels.
    pub unused: usize,
}

/// Looks at a process. Channels are numbered from `first`.
///
/// # Errors
/// The errors of reading `/proc/PID/maps` and of opening `/proc/PID/mem`: no such process, or no right to read it.
pub fn probe(pid: u32, first: u32) -> io::Result<Probe> {
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
    // Slots that are all zero before a used slot are channels. Of those behind the last used slot nothing is known.
    let all = found.len();
    let area_of = |f: &scan::FoundRing| {
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
    // The tokens are found as for `nvcap dump`.
    let tokens = snapshot::tokens_found(&memory, &areas, scan::Effort::Usual);
    let tokens: BTreeMap<CpuVa, u32> = tokens.iter().map(|t| (t.ring, t.token)).collect();
    probe.engines = engines(&memory, &areas, at, &found, first);
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

/// Number of newest entries that are read to find a channel's engine, besides the entries at the beginning of its ring.
const LAST: u32 = 4;

/// Returns the engines that used channels feed, in the terms of `nvcap dump`.
fn engines(
    memory: &impl ReadMemory,
    areas: &[maps::Area],
    at: At,
    found: &[scan::FoundRing],
    first: u32,
) -> Vec<(ChannelId, Engine)> {
    let places = scan::Places::new(areas);
    let reader = Reader {
        memory,
        places: &places,
        at,
        options: SnapshotOptions {
            last: LAST,
            before: 0,
            effort: scan::Effort::Usual,
            known_rings: &[],
            patience: Duration::ZERO,
        },
    };
    let mut patience = Duration::ZERO;
    let mut seen: Vec<_> = { found.iter().zip(first..) }
        .filter(|(f, _)| f.used)
        .map(|(f, number)| reader.see(ChannelId(number), *f, &mut patience))
        .collect();
    resolve(memory, &places, &mut seen);
    let engine = |s: &ChannelSnapshot| feeds::engine(s.first.iter().chain(&s.submissions));
    seen.iter().map(|s| (s.channel.id, engine(s))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::fake_memory::{FakeMemory, Ring};

    #[test]
    fn an_engine_is_told_by_what_is_in_the_ring() {
        let mut memory = FakeMemory::cuda();
        // Classes bound at the beginning of the ring, with many entries behind; then a subchannel only; then nothing that shows an engine.
        memory.submit(Ring::slot(0), 0, &[0x2001_2000, 0xcbc0], 0);
        for n in 1..40 {
            memory.submit(Ring::slot(0), n, &[0x2001_0017, n as u32], 0);
        }
        memory.submit(Ring::slot(1), 0, &[0x2001_80c0, 0x182], 0);
        memory.submit(Ring::slot(2), 0, &[0x2001_0017, 7], 0);
        let areas = memory.areas().to_vec();
        let found = scan::search(&memory, &areas, scan::Effort::Usual).found;
        let at = At::of_process(1, 7);
        let engines = engines(&memory, &areas, at, &found, 5);
        let expected = [
            (ChannelId(5), Engine::Graphics),
            (ChannelId(6), Engine::Copy(None)),
            (ChannelId(7), Engine::Unknown),
        ];
        assert_eq!(engines[..3], expected);
    }
}
