//! This machine's processes, by `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::host::Host;
use super::source::{Opened, System};
use super::view::Owner;
use crate::host;
use crate::host::census::{Census, Change};
use crate::host::choice::Whom;
use crate::procfs::{self, auxv::Auxv, mem::Memory, stat::Stat};
use crate::record::Identity;
use crate::source::clock;
use crate::source::memory::maps::{self, Area};

const SECOND: u64 = 1_000_000_000;
/// With so many processes that may not be looked into, those that have ended are forgotten.
const MOST_HIDDEN: usize = 4096;
/// Ticks of the kernel's accounting in a second.
const TICKS: u64 = 100;

/// How they are found.
enum Finder {
    Named(Vec<u32>, Box<host::Host>),
    All {
        census: Box<Census>,
        /// The processes that use a GPU, by id: the owner, and whether they used one when the first round looked.
        found: BTreeMap<u32, (Owner, bool)>,
    },
}

/// See the module.
pub(crate) struct Machine {
    finder: Finder,
    /// Processes that may not be looked into, whether or not they use a GPU.
    hidden: BTreeSet<u32>,
    /// When nvcap began, in ticks since the machine's start.
    began: u64,
}

/// Whose a process is.
fn owner(who: &Identity) -> Owner {
    let word = |text: Option<&String>| text.cloned().unwrap_or_default();
    let pod = who.pod.as_ref();
    let container = who.container.as_ref();
    Owner {
        namespace: word(pod.and_then(|p| p.namespace.as_ref())),
        pod: word(pod.map(|p| p.name.as_ref().unwrap_or(&p.uid))),
        container: word(container.map(|c| c.name.as_ref().unwrap_or(&c.id))),
    }
}

impl Machine {
    /// Of the processes that are meant.
    pub(crate) fn new(whom: Whom) -> Self {
        let finder = match whom {
            Whom::Named(pids) => Finder::Named(pids, Box::new(host::Host::new(Path::new("/")))),
            Whom::All(choice, root) => Finder::All {
                census: Box::new(Census::new(host::Host::new(&root), choice)),
                found: BTreeMap::new(),
            },
        };
        Self {
            finder,
            hidden: BTreeSet::new(),
            began: clock::read(libc::CLOCK_BOOTTIME).unwrap_or(0) / (SECOND / TICKS),
        }
    }

    /// Whose a process is, and whether all that it has submitted is new.
    fn about(&mut self, pid: u32, start: u64) -> (Owner, bool) {
        match &mut self.finder {
            Finder::Named(_, host) => {
                let who = host.identity(pid, &host::Uses::default());
                let owner = who.map(|who| owner(&who)).unwrap_or_default();
                (owner, start > self.began)
            }
            Finder::All { found, .. } => {
                let (owner, was_there) = found.get(&pid).cloned().unwrap_or_default();
                (owner, !was_there)
            }
        }
    }

    /// Whether all processes that were named have ended.
    pub(crate) fn is_over(&self) -> bool {
        match &self.finder {
            Finder::Named(pids, _) => pids.iter().all(|pid| procfs::has_ended(*pid)),
            Finder::All { .. } => false,
        }
    }
}

impl Host<Machine> {
    /// Whether all processes that were named have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.system.is_over()
    }

    /// How many processes may not be looked into, so that nobody knows whether they use a GPU.
    pub(crate) fn hidden(&self) -> usize {
        self.system.hidden.len()
    }
}

impl System for Machine {
    type Memory = Memory;

    fn find(&mut self, known: &dyn Fn(u32) -> bool) -> Vec<u32> {
        let all: Vec<u32> = match &mut self.finder {
            Finder::Named(pids, _) => pids.clone(),
            Finder::All { census, found } => {
                let is_due = census.next() <= Instant::now();
                let changes = if is_due { census.round() } else { Vec::new() };
                for change in changes {
                    match change {
                        Change::Came(it) => {
                            self.hidden.remove(&it.pid);
                            found.insert(it.pid, (owner(&it.identity), it.was_there));
                        }
                        Change::Differs(it) => {
                            if let Some((owner_then, _)) = found.get_mut(&it.pid) {
                                *owner_then = owner(&it.identity);
                            }
                        }
                        Change::Went(pid) => {
                            found.remove(&pid);
                        }
                        Change::Hidden(it) => {
                            if self.hidden.len() >= MOST_HIDDEN {
                                self.hidden.retain(|pid| procfs::exists(*pid));
                            }
                            self.hidden.insert(it.pid);
                        }
                        // Nobody tells this census of mappings.
                        Change::Missed(_) => {}
                    }
                }
                found.keys().copied().collect()
            }
        };
        all.into_iter().filter(|pid| !known(*pid)).collect()
    }

    fn open(&mut self, pid: u32) -> io::Result<Opened<Memory>> {
        let memory = Memory::open(pid)?;
        let stat = Stat::of_process(pid)?;
        let auxv = Auxv::of_process(pid)?;
        let mut image = auxv.bytes().to_vec();
        let mut random = [0; 16];
        if let Some(at) = auxv.random_at()
            && memory.read(at, &mut random).is_ok()
        {
            image.extend_from_slice(&random);
        }
        let start = stat.start.unwrap_or(0);
        let (owner, is_new) = self.about(pid, start);
        let since_boot = clock::read(libc::CLOCK_BOOTTIME).unwrap_or(0);
        let age = since_boot.saturating_sub(start.saturating_mul(SECOND / TICKS));
        Ok(Opened {
            name: procfs::name(pid, None).unwrap_or_default(),
            owner,
            is_new,
            image,
            began_unix_ns: self.unix_ns().saturating_sub(age),
            memory,
        })
    }

    fn areas(&mut self, pid: u32) -> io::Result<Vec<Area>> {
        maps::areas(pid)
    }

    fn pages(&mut self, pid: u32) -> u64 {
        procfs::pages(pid)
    }

    fn has_ended(&mut self, pid: u32) -> bool {
        procfs::has_ended(pid)
    }

    fn clocks(&mut self) -> (u64, u64) {
        let cpu = clock::read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0);
        (clock::now(), cpu)
    }

    fn unix_ns(&mut self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |s| s.as_nanos() as u64)
    }
}
