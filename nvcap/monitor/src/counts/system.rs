//! This machine's processes, by `/proc`.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::host::Host;
use super::patient::{Patient, Readers};
use super::source::{Opened, System};
use super::view::{Owner, Refused};
use nvcap_decode::record::Identity;
use nvcap_process::clock;
use nvcap_process::host;
use nvcap_process::host::census::{Census, Change};
use nvcap_process::host::choice::Whom;
use nvcap_process::memory::maps::{self, Area};
use nvcap_process::procfs::{
    self,
    auxv::Auxv,
    mem::{Memory, ReadMemory as _},
    stat::Stat,
};

const SECOND: u64 = 1_000_000_000;
/// Number of processes that a round asks whether they have ended, of those that may not be looked into.
const ASKED: usize = 64;
/// Key of the entry that says that `/proc` hides processes: the id of no process.
const OTHERS: u32 = 0;
/// Ticks of the kernel's accounting in a second.
const TICKS: u64 = 100;

/// Way in which processes are found.
enum Finder {
    Named(Vec<u32>, Box<host::Host>),
    All {
        census: Box<Census>,
        /// The processes that use a GPU, by id.
        found: BTreeMap<u32, Known>,
    },
}

/// A process that uses a GPU.
struct Known {
    who: Identity,
    /// True if the process used a GPU when the first round looked.
    was_there: bool,
}

/// The processes of this machine, read from `/proc`.
pub struct Machine {
    finder: Finder,
    /// Processes that may not be looked into, whether or not they use a GPU.
    hidden: BTreeMap<u32, Refused>,
    /// The last hidden process that was asked whether it has ended.
    asked: u32,
    /// Time at which nvcap began, in ticks since the machine's start.
    began: u64,
    /// Threads that read memory, where a process that does not answer is given up; none where each is waited for.
    readers: Option<Readers>,
}

/// Returns the owner of a process.
pub(crate) fn owner(who: &Identity) -> Owner {
    let word = |text: Option<&String>| text.cloned().unwrap_or_default();
    let pod = who.pod.as_ref();
    let container = who.container.as_ref();
    Owner {
        namespace: word(pod.and_then(|p| p.namespace.as_ref())),
        pod: word(pod.map(|p| p.name.as_ref().unwrap_or(&p.uid))),
        container: word(container.map(|c| c.name.as_ref().unwrap_or(&c.id))),
    }
}

/// A process that cannot be looked into.
fn refused(who: Identity, why: String, uses_gpu: bool) -> Refused {
    let number = who.uid.map(|uid| uid.to_string());
    Refused {
        name: who.comm,
        user: who.user.or(number).unwrap_or_default(),
        why,
        uses_gpu,
    }
}

impl Machine {
    /// Creates the system of the processes that are meant.
    pub fn new(whom: Whom) -> Self {
        let finder = match whom {
            Whom::Named(pids) => Finder::Named(pids, Box::new(host::Host::new(Path::new("/")))),
            Whom::All(choice, root) => Finder::All {
                census: Box::new(Census::new(host::Host::new(&root), choice)),
                found: BTreeMap::new(),
            },
        };
        Self {
            finder,
            hidden: BTreeMap::new(),
            asked: 0,
            began: clock::read(libc::CLOCK_BOOTTIME).unwrap_or(0) / (SECOND / TICKS),
            readers: None,
        }
    }

    /// Gives up processes whose memory does not answer: nobody else waits for them.
    pub fn patient(self, readers: Readers) -> Self {
        Self {
            readers: Some(readers),
            ..self
        }
    }

    /// Tells who a process is, and whether all that it has submitted is new.
    fn about(&mut self, pid: u32, start: u64) -> (Identity, bool) {
        // In the same tick, too: what it did before that is less than a tick's.
        let began_since = start >= self.began;
        match &mut self.finder {
            Finder::Named(_, host) => {
                let who = host.identity(pid, &host::Uses::default());
                (who.unwrap_or_default(), began_since)
            }
            Finder::All { found, .. } => {
                let known = found.get(&pid);
                let who = known.map(|known| known.who.clone());
                let was_there = known.is_some_and(|known| known.was_there);
                // The first round may come some time after nvcap's begin.
                (who.unwrap_or_default(), began_since || !was_there)
            }
        }
    }

    /// Forgets those of the hidden processes that have ended. Each of them is asked once in some rounds.
    fn forget_ended(&mut self) {
        let after = |pid: u32| (Bound::Excluded(pid), Bound::<u32>::Unbounded);
        let next = self.hidden.range(after(self.asked)).take(ASKED);
        let next: Vec<u32> = next.map(|(pid, _)| *pid).collect();
        // Behind the last one, the first is next.
        self.asked = next
            .last()
            .filter(|_| next.len() == ASKED)
            .copied()
            .unwrap_or(0);
        for pid in next {
            if pid != OTHERS && procfs::has_ended(pid) {
                self.hidden.remove(&pid);
            }
        }
    }

    /// Tells whether all processes that were named have ended.
    pub(crate) fn is_over(&self) -> bool {
        match &self.finder {
            Finder::Named(pids, _) => pids.iter().all(|pid| procfs::has_ended(*pid)),
            Finder::All { .. } => false,
        }
    }
}

impl Host<Machine> {
    /// Tells whether all processes that were named have ended.
    pub fn is_over(&self) -> bool {
        self.system.is_over()
    }
}

impl System for Machine {
    type Memory = Patient<Memory>;

    fn find(&mut self, known: &dyn Fn(u32) -> bool) -> Vec<u32> {
        self.forget_ended();
        let all: Vec<u32> = match &mut self.finder {
            Finder::Named(pids, _) => pids.clone(),
            Finder::All { census, found } => {
                let is_due = census.next() <= Instant::now();
                let changes = if is_due { census.round() } else { Vec::new() };
                for change in changes {
                    match change {
                        Change::Came(it) => {
                            self.hidden.remove(&it.pid);
                            let (who, was_there) = (it.identity, it.was_there);
                            found.insert(it.pid, Known { who, was_there });
                        }
                        Change::Differs(it) => {
                            if let Some(known) = found.get_mut(&it.pid) {
                                known.who = it.identity;
                            }
                        }
                        Change::Went(pid) => {
                            self.hidden.remove(&pid);
                            found.remove(&pid);
                            if let Some(readers) = &self.readers {
                                readers.forget(pid);
                            }
                        }
                        // One that was found before is counted on, or is refused when it is opened.
                        Change::Hidden(it, why) => {
                            if !found.contains_key(&it.pid) {
                                let it = (it.pid, refused(it.identity, why, false));
                                self.hidden.extend([it]);
                            }
                        }
                        Change::NotSeen(why) => {
                            let who = Identity {
                                comm: "all that /proc hides (hidepid)".to_owned(),
                                ..Identity::default()
                            };
                            let it = refused(who, why, false);
                            self.hidden.insert(OTHERS, it);
                        }
                        // Nobody tells this census of mappings.
                        Change::Missed(_) | Change::NotAllTold => {}
                    }
                }
                found.keys().copied().collect()
            }
        };
        all.into_iter().filter(|pid| !known(*pid)).collect()
    }

    fn open(&mut self, pid: u32) -> io::Result<Opened<Patient<Memory>>> {
        let memory = Memory::open(pid)?;
        let stat = Stat::of_process(pid)?;
        let start = stat.start.unwrap_or(0);
        let memory = match &self.readers {
            Some(readers) => readers.open(pid, start, memory)?,
            None => Patient::waiting(memory),
        };
        let auxv = Auxv::of_process(pid)?;
        let mut image = auxv.bytes().to_vec();
        let mut random = [0; 16];
        if let Some(at) = auxv.random_at()
            && memory.read_bytes(at, &mut random).is_ok()
        {
            image.extend_from_slice(&random);
        }
        let (who, is_new) = self.about(pid, start);
        let since_boot = clock::read(libc::CLOCK_BOOTTIME).unwrap_or(0);
        let age = since_boot.saturating_sub(start.saturating_mul(SECOND / TICKS));
        Ok(Opened {
            name: procfs::name(pid, None).unwrap_or_default(),
            owner: owner(&who),
            container_id: who.container.map(|c| c.id).unwrap_or_default(),
            is_new,
            image,
            began_unix_ns: self.unix_ns().saturating_sub(age),
            memory,
        })
    }

    fn refused(&mut self, pid: u32, why: String) -> Refused {
        match &mut self.finder {
            Finder::Named(_, host) => {
                let who = host.identity(pid, &host::Uses::default());
                refused(who.unwrap_or_default(), why, false)
            }
            Finder::All { found, .. } => {
                let who = found.get(&pid).map(|known| known.who.clone());
                refused(who.unwrap_or_default(), why, true)
            }
        }
    }

    fn hidden(&self) -> &BTreeMap<u32, Refused> {
        &self.hidden
    }

    fn instances(&mut self, pid: u32) -> BTreeMap<u32, u32> {
        host::mig::instances(pid)
    }

    fn areas(&mut self, pid: u32) -> io::Result<Vec<Area>> {
        match &self.readers {
            Some(readers) => readers.about(pid, move || maps::areas(pid))?,
            None => maps::areas(pid),
        }
    }

    fn pages(&mut self, pid: u32) -> u64 {
        procfs::pages(pid)
    }

    fn has_ended(&mut self, pid: u32) -> bool {
        procfs::has_ended(pid)
    }

    fn clocks(&mut self) -> (u64, u64) {
        (clock::now(), clock::own_cpu())
    }

    fn lent_clocks(&self) -> impl FnMut() -> (u64, u64) + Send + 'static {
        || (clock::now(), clock::thread_cpu())
    }

    fn unix_ns(&mut self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |s| s.as_nanos() as u64)
    }
}
