//! The names of kernels, found in the process's own memory: no injection, no restart, nothing of CUPTI.
//!
//! libcuda keeps a record of each function, which holds the program's address and a pointer to the function's name; the name
//! lies in the cubin image of the function's module, which libcuda keeps too. `layout` learns where in a record the pointer
//! is; `images` reads images; `scan` searches memory; `files` reads the
//! fat binaries of mapped files; `resolver` puts them together for one process; `programs` finds
//! programs in submissions as they come, and what overwrites them (`copies`); `namer` does so beside a live source.

mod copies;
pub(crate) mod files;
mod images;
mod layout;
pub(crate) mod namer;
mod programs;
pub(crate) mod resolver;
pub(super) mod scan;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, io};

use nvcap_decode::record::{At, Kernel, Record};
use nvcap_decode::wire::GpuVa;
use nvcap_process::memory::chip;
use programs::Programs;
use resolver::{Ask, Resolver};

/// The kernels of a process's programs, each with the registers of its launch; none where the memory may not be read.
#[must_use]
pub fn of(pid: u32, programs: &[(GpuVa, Option<u32>)]) -> Vec<Kernel> {
    let asks = asks(pid, programs);
    match Resolver::open(pid) {
        Ok(mut resolver) if !asks.is_empty() => resolver.resolve(&asks),
        _ => Vec::new(),
    }
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

/// The kernel of one program of a process, and where the image with its function begins, if it has one. The programs of
/// `records`, what the process has submitted, make sure that the name is right: the more are known the better.
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

/// The kernel of `program` among those that are asked for.
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
