//! Source of the counts: finds, opens and reads processes; made up in tests.

use std::collections::BTreeMap;
use std::io;

use super::view::{Owner, Refused};
use nvcap_process::memory::maps::Area;
use nvcap_process::procfs::mem::ReadMemory;

/// A process that has just been found.
#[derive(Debug)]
pub struct Opened<M> {
    /// Its memory, which becomes unreadable when it ends or executes another program.
    pub memory: M,
    /// Its name.
    pub name: String,
    /// Owner of the process.
    pub owner: Owner,
    /// Its container's id; empty where it is in none.
    pub container_id: String,
    /// True if the process began after nvcap: all that it has submitted counts.
    pub is_new: bool,
    /// Its program image, which forked processes have from their parents.
    pub image: Vec<u8>,
    /// Time at which it began, ns since the epoch.
    pub began_unix_ns: u64,
}

/// Memory of a process for work that reads it often and may be given up in the middle of it.
pub trait Lends: ReadMemory {
    /// The memory, as the work reads it.
    type Lent: ReadMemory;
    /// Does the work and waits for it.
    ///
    /// # Errors
    /// Where it was given up: all that it was given is gone.
    fn lend<T, W>(&self, work: W) -> io::Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Self::Lent) -> T + Send + 'static;
}

/// Source that finds and reads processes; a made-up one in tests.
pub trait System {
    /// A process's memory.
    type Memory: Lends;
    /// Processes that use a GPU and are not `known`.
    fn find(&mut self, known: &dyn Fn(u32) -> bool) -> Vec<u32>;
    /// Opens one.
    ///
    /// # Errors
    /// When it is gone or may not be looked into.
    fn open(&mut self, pid: u32) -> io::Result<Opened<Self::Memory>>;
    /// Describes a process that was found and cannot be opened, for this reason.
    fn refused(&mut self, pid: u32, why: String) -> Refused;
    /// Processes that may not even be looked into for whether they use a GPU.
    fn hidden(&self) -> &BTreeMap<u32, Refused>;
    /// The instance of each GPU (by minor number) in MIG mode that it uses, where that is known.
    fn instances(&mut self, pid: u32) -> BTreeMap<u32, u32>;
    /// Its mappings.
    ///
    /// # Errors
    /// As [`System::open`].
    fn areas(&mut self, pid: u32) -> io::Result<Vec<Area>>;
    /// The size of its address space, pages.
    fn pages(&mut self, pid: u32) -> u64;
    /// Tells whether a process has ended.
    fn has_ended(&mut self, pid: u32) -> bool;
    /// The clock, ns, and the CPU time that nvcap has used, ns.
    fn clocks(&mut self) -> (u64, u64);
    /// The clock, ns, and the CPU time that the calling thread has used, ns: for work that is lent a process's memory.
    fn lent_clocks(&self) -> impl FnMut() -> (u64, u64) + Send + 'static;
    /// The time since the epoch, ns.
    fn unix_ns(&mut self) -> u64;
}
