//! Shares of the GPUs: which process had which GPU for how long, from the driver's own record of context switches.

mod windows;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::rc::Rc;

use crate::counts::system::owner;
use crate::counts::view::{Key, Named, Shares};
use nvcap_decode::driver::Version;
use nvcap_decode::record::Identity;
use nvcap_decode::switches::{EngineView, GpuView, Period, Reading, Scope, Told, Who};
use nvcap_live::switches::{Refusal, Source};
use nvcap_process::clock;
use nvcap_process::host::Host;
use nvcap_process::host::uses::Uses;
use nvcap_process::procfs::stat::Stat;
use nvcap_process::rm::{Error, Os};
use nvcap_show::shares::both;

pub use windows::Windows;

struct Gpu {
    scope: Scope,
    /// Period since the measurement began, where that is kept.
    whole: Option<Period>,
    /// Period since the GPU was shown last.
    part: Period,
}

impl Gpu {
    fn take(&mut self, told: &Told) {
        if let Some(whole) = &mut self.whole {
            whole.take(told);
        }
        self.part.take(told);
    }
}

/// Tells whether process ids here are the host's, which the driver tells.
#[must_use]
pub fn has_host_pids() -> bool {
    /// The inode number of the machine's initial PID namespace, the same in every Linux.
    const INITIAL_PID_NAMESPACE: u64 = 0xeffffffc;
    let namespace = std::fs::metadata("/proc/self/ns/pid");
    namespace.is_ok_and(|m| m.ino() == INITIAL_PID_NAMESPACE)
}

/// The most sums by owner; what comes after them is added to the host's.
const MOST_KEYS: usize = 1000;

/// Processes that have or had one id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    /// Start of the newest process, where that could be found: the id may be another one's later.
    start: Option<u64>,
    /// Identity of the newest process.
    who: Option<Identity>,
    /// Identity of all that had the id while the sums were made.
    all: Option<Identity>,
}

impl Known {
    /// Looks again who has the id.
    fn look(&mut self, start: Option<u64>, identity: impl FnOnce() -> Option<Identity>) {
        if start.is_none() || start == self.start {
            return;
        }
        let who = identity();
        *self = Self {
            start,
            all: both(self.all.as_ref(), who.as_ref()),
            who,
        };
    }
}

/// The shares of GPUs.
pub struct Share {
    source: Source,
    gpus: BTreeMap<u32, Gpu>,
    /// `None` where process ids are those of another PID namespace.
    host: Option<Host>,
    /// Processes that have had a GPU.
    known: BTreeMap<u32, Known>,
    /// Processes that have an engine, and had ended at the last reading.
    ending: BTreeSet<u32>,
}

/// Tells whether a process is there and no zombie, as far as this user may know.
fn is_there(pid: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{pid}/exe"));
    !program.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

impl Share {
    /// Begins to measure the GPUs with these minor numbers; all where none is given. Also returns those that refuse.
    ///
    /// # Errors
    /// When the driver takes no client, there is no such GPU, or it does not tell its time.
    pub fn open(
        os: Rc<dyn Os>,
        version: Option<Version>,
        only: &[u32],
        host_root: &Path,
    ) -> Result<(Self, Vec<Refusal>), Error> {
        let (source, refusals) = Source::open(os, version, only)?;
        let mut gpus = BTreeMap::new();
        for (gpu, scope) in source.gpus() {
            let began = source.time(gpu)?;
            let (whole, part) = (Some(Period::new(began)), Period::new(began));
            gpus.insert(gpu, Gpu { scope, whole, part });
        }
        let share = Self {
            source,
            gpus,
            host: has_host_pids().then(|| Host::new(host_root)),
            known: BTreeMap::new(),
            ending: BTreeSet::new(),
        };
        Ok((share, refusals))
    }

    /// Keeps no sums since the beginning, and forgets processes: for a caller that goes on for months and adds up the parts.
    #[must_use]
    pub fn of_parts_alone(mut self) -> Self {
        for gpu in self.gpus.values_mut() {
            gpu.whole = None;
        }
        self
    }

    /// Adds a part to sums by owner; with `by_process` by process, too. Processes that are not in the part are forgotten.
    pub fn add(&mut self, part: &[GpuView], by_process: bool, to: &mut Shares) {
        let seen = add(part, |pid| self.identity(pid), by_process, to);
        self.keep(&seen);
    }

    /// Forgets whose processes are not in the part.
    pub fn forget(&mut self, part: &[GpuView]) {
        self.keep(&processes(part));
    }

    fn keep(&mut self, seen: &BTreeSet<u32>) {
        self.known.retain(|pid, known| {
            known.all.clone_from(&known.who);
            seen.contains(pid)
        });
    }

    /// The GPUs that are measured, and the users that their drivers tell of.
    pub fn gpus(&self) -> impl Iterator<Item = (u32, Scope)> {
        self.gpus.iter().map(|(gpu, of)| (*gpu, of.scope))
    }

    /// Reads what the driver has recorded. Best done some times a second: the driver tells of a process only while it is there, and so does `/proc`.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn poll(&mut self) -> Result<(), Error> {
        self.poll_each(|_, _| {})
    }

    /// Polls, and gives each piece of news with its GPU, in the order in which they happened.
    fn poll_each(&mut self, mut each: impl FnMut(u32, Told)) -> Result<(), Error> {
        let mut seen = BTreeSet::new();
        let gpus = &mut self.gpus;
        self.source.poll(|gpu, told| {
            if let Told::Switch(switch) = &told
                && let Who::Process(pid) = switch.who()
            {
                seen.insert(pid);
            }
            if let Some(of) = gpus.get_mut(&gpu) {
                of.take(&told);
            }
            each(gpu, told);
        })?;
        for pid in seen {
            let Some(host) = &mut self.host else { break };
            let start = Stat::of_process(pid).ok().and_then(|stat| stat.start);
            let mut identity = || host.identity(pid, &Uses::default()).ok();
            match self.known.entry(pid) {
                Entry::Occupied(mut known) => known.get_mut().look(start, identity),
                Entry::Vacant(new) => {
                    let who = identity();
                    let all = who.clone();
                    new.insert(Known { start, who, all });
                }
            }
        }
        self.look_for_ends(each)
    }

    /// Ends what a process had that has ended: the driver may not tell of that. Its files were closed by the last reading at the latest, so this one
    /// has taken all its records.
    fn look_for_ends(&mut self, mut each: impl FnMut(u32, Told)) -> Result<(), Error> {
        if self.host.is_none() {
            return Ok(());
        }
        let before = std::mem::take(&mut self.ending);
        for (number, gpu) in &mut self.gpus {
            let holding: Vec<u32> = gpu.part.holding().collect();
            for pid in holding.into_iter().filter(|pid| !is_there(*pid)) {
                if !before.contains(&pid) {
                    self.ending.insert(pid);
                    continue;
                }
                let by_ns = self.source.time(*number)?;
                let ended = Told::Ended { pid, by_ns };
                gpu.take(&ended);
                each(*number, ended);
            }
        }
        Ok(())
    }

    /// Reads both clocks.
    fn reading(&self, gpu: u32) -> Result<Reading, Error> {
        let before = clock::now();
        let gpu_ns = self.source.time(gpu)?;
        let error_ns = clock::now().saturating_sub(before).div_ceil(2);
        Ok(Reading {
            host_ns: before + error_ns,
            gpu_ns,
            error_ns,
        })
    }

    /// Returns the identity of a process, with all that had its id before; `None` where it had ended before nvcap looked, or has another id here.
    #[must_use]
    pub fn identity(&self, pid: u32) -> Option<&Identity> {
        self.known.get(&pid)?.all.as_ref()
    }

    /// Returns the period since the last call. Polls.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn part(&mut self) -> Result<Vec<GpuView>, Error> {
        let now = self.times()?;
        // Drops that no record has followed yet are counted with the next one.
        let views = self.views(&now, |gpu| Some(&gpu.part), |_| 0);
        for (gpu, of) in &mut self.gpus {
            of.part.restart(now[gpu]);
        }
        Ok(views)
    }

    /// Returns the period since the beginning. Polls.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn whole(&mut self) -> Result<Vec<GpuView>, Error> {
        let now = self.times()?;
        let dropped = |gpu| self.source.dropped(gpu);
        Ok(self.views(&now, |gpu| gpu.whole.as_ref(), dropped))
    }

    /// Returns the GPUs' times up to which everything is read.
    fn times(&mut self) -> Result<BTreeMap<u32, u64>, Error> {
        let mut times = BTreeMap::new();
        for gpu in self.gpus.keys() {
            times.insert(*gpu, self.source.time(*gpu)?);
        }
        self.poll()?;
        Ok(times)
    }

    fn views(
        &self,
        now: &BTreeMap<u32, u64>,
        of: impl Fn(&Gpu) -> Option<&Period>,
        dropped: impl Fn(u32) -> u64,
    ) -> Vec<GpuView> {
        let view = |(number, gpu): (&u32, &Gpu)| {
            Some(of(gpu)?.view(*number, gpu.scope, now[number], dropped(*number)))
        };
        self.gpus.iter().filter_map(view).collect()
    }
}

/// The processes that are in a part.
fn processes(part: &[GpuView]) -> BTreeSet<u32> {
    let holders = part.iter().flat_map(|gpu| &gpu.engines);
    let holders = holders.flat_map(|engine| &engine.holders);
    let of = |(who, ..): &(Who, _, _)| match *who {
        Who::Process(pid) => Some(pid),
        _ => None,
    };
    holders.filter_map(of).collect()
}

/// Adds a part to sums by owner. Returns the processes in it.
fn add<'a>(
    part: &[GpuView],
    identity: impl Fn(u32) -> Option<&'a Identity>,
    by_process: bool,
    to: &mut Shares,
) -> BTreeSet<u32> {
    let mut seen = BTreeSet::new();
    for gpu in part {
        let place = |engine: &EngineView| Key {
            gpu: Some(gpu.gpu),
            instance: engine.instance.map(|instance| instance.gpu.into()),
            ..Key::default()
        };
        for engine in &gpu.engines {
            for (who, held, _) in &engine.holders {
                let mut key = place(engine);
                if let Who::Process(pid) = *who
                    && let Some(identity) = identity(pid)
                {
                    seen.insert(pid);
                    key.owner = owner(identity);
                    key.process = by_process.then(|| Named {
                        pid,
                        name: identity.comm.clone(),
                    });
                }
                let full = to.resident_ns.len() >= MOST_KEYS;
                if full && !to.resident_ns.contains_key(&key) {
                    key = place(engine);
                }
                *to.resident_ns.entry(key).or_default() += held.resident_ns;
            }
            let sums = to.engines.entry(place(engine)).or_default();
            sums.switches += engine.switches;
            sums.switch_ns += engine.switch_ns;
            sums.unknown_ns += engine.unknown_ns;
        }
        if gpu.missing > 0 {
            let key = Key {
                gpu: Some(gpu.gpu),
                ..Key::default()
            };
            to.engines.entry(key).or_default().missing += gpu.missing;
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use nvcap_decode::switches::Held;

    use super::*;

    #[test]
    fn a_number_that_another_process_has_is_looked_at_again() {
        let who = |comm: &str| {
            Some(Identity {
                comm: comm.to_owned(),
                ..Identity::default()
            })
        };
        let mut known = Known {
            start: Some(7),
            who: who("a"),
            all: who("a"),
        };
        let first = known.clone();
        known.look(Some(7), || panic!("it is the same"));
        known.look(None, || panic!("it has ended"));
        assert_eq!(known, first);
        known.look(Some(9), || who("b"));
        let expected = Known {
            start: Some(9),
            who: who("b"),
            all: who("a, later b"),
        };
        assert_eq!(known, expected);
    }

    #[test]
    fn sums_by_owner_grow_and_are_bounded() {
        use nvcap_decode::record::Container;

        let identity = Identity {
            comm: "python3".to_owned(),
            container: Some(Container {
                id: "c1".to_owned(),
                ..Container::default()
            }),
            ..Identity::default()
        };
        let held = |resident_ns| Held {
            resident_ns,
            slices: 1,
            longest_ns: resident_ns,
        };
        let engine = |pids: std::ops::Range<u32>| EngineView {
            holders: { pids.map(|pid| (Who::Process(pid), held(10), 1)) }
                .chain([(Who::Hidden, held(3), 1)])
                .collect(),
            switches: 2,
            switch_ns: 5,
            unknown_ns: 1,
            ..EngineView::default()
        };
        let gpu = |pids| GpuView {
            gpu: 1,
            scope: Scope::AllUsers,
            began_ns: 0,
            ns: 100,
            engines: vec![engine(pids)],
            missing: 4,
            strange: 0,
        };
        let mut shares = Shares::default();
        let known = |pid| (pid > 0).then_some(&identity);
        for _ in 0..2 {
            // Process 0 is not known: its time is the host's.
            let seen = add(&[gpu(0..3)], known, false, &mut shares);
            assert_eq!(seen, [1, 2].into());
        }
        let sums: Vec<_> = { shares.resident_ns.iter() }
            .map(|(key, ns)| (key.owner.container.as_str(), key.gpu, *ns))
            .collect();
        assert_eq!(sums, [("", Some(1), 26), ("c1", Some(1), 40)]);
        let of = shares.engines.values().copied().collect::<Vec<_>>();
        let [of] = of[..] else { panic!("{of:?}") };
        assert_eq!(
            (of.switches, of.switch_ns, of.unknown_ns, of.missing),
            (4, 10, 2, 8)
        );
        let mut shares = Shares::default();
        add(&[gpu(1..3_000)], known, true, &mut shares);
        assert_eq!(shares.resident_ns.len(), MOST_KEYS + 1);
        assert_eq!(shares.resident_ns.values().sum::<u64>(), 2_999 * 10 + 3);
    }
}
