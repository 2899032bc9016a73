//! The names of kernels, found in the process's own memory: without injection, restart or CUPTI.
//!
//! libcuda keeps a record of each function, which holds the program's address and a pointer to the function's name. The name lies in the
//! cubin image of the function's module, which libcuda keeps too. `layout` learns the place of the pointer in a record; `images` reads
//! images; `scan` searches memory; `files` reads the fat binaries of mapped files; `resolver` uses all of these for one process; `programs`
//! finds programs in submissions as they come, and what overwrites them (`copies`); `namer` does the work beside a live source, with a limit
//! of waiting requests (`backlog`).

mod backlog;
mod copies;
pub(crate) mod files;
mod images;
mod in_step;
mod layout;
pub(crate) mod namer;
mod programs;
pub(crate) mod resolver;
pub(crate) mod scan;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use nvcap_decode::record::{At, Kernel, Record};
use nvcap_decode::wire::GpuVa;
use nvcap_process::memory::chip;
use programs::Programs;
use resolver::{Ask, Resolver};

/// The kernels of a process's programs; none where the memory may not be read. `programs`: each with the registers of its launch.
#[must_use]
pub fn of(pid: u32, programs: &[(GpuVa, Option<u32>)]) -> Vec<Kernel> {
    let asks = asks(pid, programs);
    match Resolver::open(pid) {
        Ok(mut resolver) if !asks.is_empty() => resolver.resolve(&asks),
        _ => Vec::new(),
    }
}

/// The most bytes of a function's code before one of its instructions.
const MOST_BEFORE: u64 = 512 << 10;

/// The most words between a function's beginning and its instruction that equal other addresses of its code.
const MOST_NEARER: usize = 8;

/// The most addresses that are looked for.
const MOST_SOUGHT: usize = 1 << 20;

/// Least alignment of a program.
const PROGRAM_ALIGNED: u64 = 128;

/// The kernels that contain these instructions of a process, as far as they are found. `counters`: the instructions' GPU addresses, in order.
///
/// A loaded program's address is in a record of libcuda's. So, of all addresses before the instructions, those count that are found as a word
/// in memory.
///
/// # Errors
/// Those of reading the process's maps and memory.
pub fn of_counters(pid: u32, counters: &[u64]) -> io::Result<Vec<Kernel>> {
    let mut resolver = Resolver::open(pid)?;
    let memory = scan::Ordinary::open(pid)?;
    let sought = sought_before(counters);
    let found = scan::search(&memory, &scan::runs(pid)?, &sought);
    let mut programs: Vec<u64> = found.places.iter().map(|(program, _)| *program).collect();
    programs.dedup();
    log::debug!(
        "process {pid}: {} of {} addresses in front of {} instructions are in its memory",
        programs.len(),
        sought.len(),
        counters.len()
    );
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut left = counters.to_vec();
    for further in 0..MOST_NEARER {
        let nearest = nearest(&programs, &left, further);
        if nearest.is_empty() {
            break;
        }
        let nearest: Vec<_> = nearest.into_iter().map(|p| (GpuVa(p), None)).collect();
        let named = resolver.resolve(&asks(pid, &nearest));
        let holds = |kernel: &Kernel, counter: u64| {
            let offset = counter.checked_sub(kernel.program.0);
            offset.is_some_and(|offset| kernel.bytes.is_none_or(|bytes| offset < bytes))
        };
        left.retain(|counter| !named.iter().any(|kernel| holds(kernel, *counter)));
        kernels.extend(named);
    }
    Ok(kernels)
}

/// The nearest program before each instruction, after `further` nearer ones are skipped.
fn nearest(programs: &[u64], counters: &[u64], further: usize) -> BTreeSet<u64> {
    let before = |counter: &u64| {
        let behind = programs.partition_point(|program| program <= counter);
        let program = *programs.get(behind.checked_sub(1 + further)?)?;
        (counter - program <= MOST_BEFORE).then_some(program)
    };
    counters.iter().filter_map(before).collect()
}

/// The addresses at which the functions with these instructions may begin.
fn sought_before(counters: &[u64]) -> Vec<u64> {
    let (mut all, mut next) = (Vec::new(), 0);
    for counter in counters {
        let first = counter.saturating_sub(MOST_BEFORE).max(next);
        let mut at = first.next_multiple_of(PROGRAM_ALIGNED);
        while at <= *counter && all.len() < MOST_SOUGHT {
            all.push(at);
            at += PROGRAM_ALIGNED;
        }
        next = next.max(at);
    }
    all
}

fn asks(pid: u32, programs: &[(GpuVa, Option<u32>)]) -> Vec<Ask> {
    let ask = |&(program, registers): &(GpuVa, Option<u32>)| Ask {
        at: At {
            pid,
            ..At::default()
        },
        program,
        registers,
        code: None,
    };
    programs.iter().map(ask).collect()
}

/// The kernel of one program of a process, and the beginning of the image with its function, if it has one. The programs of `records` (the
/// process's submissions) confirm the name: the more are known, the better.
///
/// # Errors
/// Those of opening the process's memory.
pub fn of_program(
    pid: u32,
    program: GpuVa,
    records: &[Record],
) -> io::Result<Option<(Kernel, Option<u64>)>> {
    let mut programs = programs_of(records).remove(&pid).unwrap_or_default();
    if programs.iter().all(|(p, _)| *p != program) {
        programs.push((program, None));
    }
    let mut resolver = Resolver::open(pid)?;
    Ok(one_of(&mut resolver, program, &asks(pid, &programs)))
}

/// The kernel of `program` among the requested ones.
fn one_of(resolver: &mut Resolver, program: GpuVa, asks: &[Ask]) -> Option<(Kernel, Option<u64>)> {
    let mut kernels = resolver.resolve(asks).into_iter();
    let kernel = kernels.find(|k| k.program == program)?;
    Some((kernel, resolver.image_of(program)))
}

/// The kernels of the programs that records of running processes launch, as records.
#[must_use]
pub fn of_records(records: &[Record]) -> Vec<Record> {
    let asked = programs_of(records);
    let kernels = asked.iter().flat_map(|(pid, programs)| of(*pid, programs));
    kernels.map(|k| Record::Kernel(Box::new(k))).collect()
}

/// The programs that records launch, with the registers of a thread, by process.
fn programs_of(records: &[Record]) -> BTreeMap<u32, Vec<(GpuVa, Option<u32>)>> {
    let class = chip::only().map(|c| c.compute);
    let mut known: BTreeMap<u32, Programs> = BTreeMap::new();
    let mut asked: BTreeMap<u32, Vec<(GpuVa, Option<u32>)>> = BTreeMap::new();
    for record in records {
        let pid = record.at().pid;
        let new = match record {
            Record::Submission(s) => known.entry(pid).or_default().of(s, class),
            Record::QmdCopy(i) => {
                let new = known.entry(pid).or_default().of_image(&i.bytes, class);
                new.into_iter().collect()
            }
            _ => continue,
        };
        let new = new.into_iter().map(|n| (GpuVa(n.address), n.registers));
        asked.entry(pid).or_default().extend(new);
    }
    asked
}
