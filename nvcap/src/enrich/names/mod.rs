//! The names of kernels, found in the process's own memory: no injection, no restart, nothing of CUPTI.
//!
//! libcuda keeps a record of each function, which holds the program's address and a pointer to the function's name; the name
//! lies in the cubin image of the function's module, which libcuda keeps too. [`layout`] learns where in a record the pointer
//! is; [`images`] reads images; [`scan`] searches memory; [`files`] reads the
//! fat binaries of mapped files; [`resolver`] puts them together for one process; [`programs`] finds
//! programs in submissions as they come; [`namer`] does so beside a live source.

pub(crate) mod files;
mod images;
mod layout;
#[cfg(feature = "trap")]
pub(crate) mod namer;
mod programs;
pub(crate) mod resolver;
pub(super) mod scan;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::record::{At, Kernel, Record};
use crate::source::memory::chip;
use crate::wire::GpuVa;
use programs::Programs;
use resolver::{Ask, Resolver};

/// The kernels of a process's programs, each with the registers of its launch; none where the memory may not be read.
#[must_use]
pub(crate) fn of(pid: u32, programs: &[(GpuVa, Option<u32>)]) -> Vec<Kernel> {
    let asks: Vec<Ask> = programs
        .iter()
        .map(|&(program, registers)| Ask {
            at: At {
                pid,
                ..At::default()
            },
            program,
            registers,
            code: None,
        })
        .collect();
    match Resolver::open(pid) {
        Ok(mut resolver) if !asks.is_empty() => resolver.resolve(&asks),
        _ => Vec::new(),
    }
}

/// The kernels of the programs that records of running processes launch, as records.
#[must_use]
pub(crate) fn of_records(records: &[Record]) -> Vec<Record> {
    let class = chip::only().map(|c| c.compute);
    let mut known: BTreeMap<u32, Programs> = BTreeMap::new();
    let mut asked: BTreeMap<u32, Vec<(GpuVa, Option<u32>)>> = BTreeMap::new();
    for record in records {
        let pid = record.at().pid;
        let new = match record {
            Record::Submission(s) => known.entry(pid).or_default().of(s, class),
            Record::Image(i) => {
                let new = known.entry(pid).or_default().of_image(&i.bytes, class);
                new.into_iter().collect()
            }
            _ => continue,
        };
        let new = new
            .into_iter()
            .map(|n| (GpuVa(n.address), Some(n.registers)));
        asked.entry(pid).or_default().extend(new);
    }
    let kernels = asked.iter().flat_map(|(pid, programs)| of(*pid, programs));
    kernels.map(|k| Record::Kernel(Box::new(k))).collect()
}
