//! Formats that the kernel, nvcap's programs in it and the driver hand over: type information, mappings, records of the ring buffer and of
//! context switches, and the GPU's stream of samples.

use nvcap_decode::record::MOST_BYTES;
use nvcap_decode::samples::{Sample, Stream};
use nvcap_decode::switches::{RECORD_LEN, Residence, Sequence, Switch};
use nvcap_decode::wire::entry;
use nvcap_live::trap::{
    assemble::{Assembler, Raw, parse},
    btf::Btf,
};
use nvcap_process::procfs::maps::lines;

use super::{Seeds, holds};
use crate::mutate::Mutant;

/// Two bytes that are a length, what is of that length, and the rest.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    Some(rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len())))
}

/// A kernel's type information and a module's on top of it: a search ends, and the module's types come after the kernel's.
pub(super) fn check_btf(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let Some((kernel, module)) = split(&mutant.bytes) else {
        return Ok(());
    };
    let search = |btf: &Btf| {
        for (of, member) in [("s", "a"), ("s", "b"), ("task_struct", "mm"), ("s", "none")] {
            let _ = btf.offset(of, member);
        }
        ["f", "g"].map(|name| btf.function(name))
    };
    let Some(kernel) = Btf::parse(kernel.to_vec(), None) else {
        return Ok(());
    };
    let of_kernel = search(&kernel);
    let Some(module) = Btf::parse(module.to_vec(), Some(Box::new(kernel))) else {
        return Ok(());
    };
    let last = of_kernel.iter().flatten().map(|f| f.id).max();
    for own in search(&module).iter().flatten() {
        holds(last.is_none_or(|last| own.id > last), || {
            format!("{own:?} of a module is not after its kernel's")
        })?;
    }
    Ok(())
}

/// At most one mapping a line, and none that ends before it begins.
pub(super) fn check_maps(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let most = mutant.bytes.iter().filter(|b| **b == b'\n').count() + 1;
    let (mut mappings, mut backward) = (0, false);
    lines(&mutant.bytes, &mut |line| {
        mappings += 1;
        backward |= line.end < line.start;
    });
    holds(!backward, || "an end before its start".to_owned())?;
    holds(mappings <= most, || format!("{mappings} of {most} lines"))
}

/// Checks that joined records have no more bytes than their entries point to and than a submission may have; nothing of a
/// record is given that is not in it.
pub(super) fn check_ring_records(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let (mut assembler, mut out) = (Assembler::default(), Vec::new());
    let mut calls = Vec::new();
    let mut rest = mutant.bytes.as_slice();
    while let Some((record, next)) = split(rest) {
        rest = next;
        match parse(record) {
            Some(Raw::Submit(r)) => assembler.submit(&r, &mut out),
            Some(Raw::Data(r, bytes)) => assembler.data(&r, bytes, &mut out),
            Some(Raw::Gap(r)) => assembler.flush(r.channel, &mut out),
            Some(Raw::IoctlEnter(r, bytes)) => calls.extend(assembler.enter(&r, bytes)),
            Some(Raw::IoctlExit(r, bytes)) => calls.extend(assembler.exit(&r, bytes)),
            Some(Raw::Nested(r, bytes)) => calls.extend(assembler.nested(&r, bytes)),
            Some(Raw::Life(r)) => calls.extend(assembler.gone(r.header.tid)),
            _ => {}
        }
    }
    for channel in assembler.unfinished() {
        assembler.flush(channel, &mut out);
    }
    let len = mutant.bytes.len();
    for (call, _) in calls {
        let nested = call.nested.iter().flat_map(|n| [&n.input, &n.output]);
        let has = |all: usize, bytes: &nvcap_decode::record::Bytes| all + bytes.data.len();
        let given = nested.chain([&call.input, &call.output]).fold(0, has);
        holds(given <= len, || {
            format!("{given} B of a call, of {len} B of records")
        })?;
    }
    for gathered in &out {
        let mut all = 0;
        for segment in &gathered.segments {
            let most = entry::len(segment.entry);
            let had = segment.bytes.len();
            holds(had <= most as usize, || format!("{had} of {most} B"))?;
            let within =
                |h: &nvcap_decode::wire::Hole| h.offset <= most && h.len <= most - h.offset;
            holds(segment.holes.iter().all(within), || {
                format!("a hole beyond {most} B: {:?}", segment.holes)
            })?;
            all += had;
        }
        holds(all <= MOST_BYTES, || format!("a submission of {all} B"))?;
    }
    Ok(())
}

/// The driver's records of context switches: all times of an engine add up, and what was read is formed again.
pub(super) fn check_switches(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let (mut residence, mut sequence) = (Residence::new(0), Sequence::default());
    let mut last = 0;
    for switch in mutant.bytes.chunks(RECORD_LEN).filter_map(Switch::read) {
        if sequence.missing(switch.sequence, 0) > 0x8000 {
            residence.lost();
        }
        residence.take(&switch);
        last = last.max(switch.time_ns);
        let formed = Switch::read(&switch.bytes());
        holds(formed.is_some_and(|s| s.who() == switch.who()), || {
            format!("{switch:?} is formed as {formed:?}")
        })?;
    }
    for engine in residence.sums(last) {
        let held: u64 = engine.holders.values().map(|h| h.resident_ns).sum();
        let all = held + engine.switch_ns + engine.nobody_ns + engine.unknown_ns;
        holds(all == engine.ns, || format!("{all} ns of {engine:?}"))?;
    }
    Ok(())
}

/// The GPU's stream of PC samples: every byte is counted, and what was read is formed again.
pub(super) fn check_samples(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let mut stream = Stream::default();
    let mut formed = Ok(());
    stream.take(&mutant.bytes, |sample| {
        let again = Sample::read(sample.sm, &sample.bytes());
        if again != Some(sample) {
            formed = Err(format!("{sample:?} is formed as {again:?}"));
        }
    });
    formed?;
    let bytes = stream.totals().bytes();
    holds(bytes == mutant.bytes.len() as u64, || {
        format!("{bytes} of {} B are counted", mutant.bytes.len())
    })
}
