//! Shares of the GPUs in a recording: which process had which GPU for how long, by the driver's own record of context switches.

mod words;
mod works;

use std::collections::{BTreeMap, HashMap};

use nvcap_decode::record::{Identity, Life, Record, Switches};
use nvcap_decode::switches::{GpuView, Period, Scope, Told};

pub use words::{idle, instance_name, lacks, per_second, title, unnamed, verdicts};
pub use works::{Work, Works};

/// The most processes whose names are kept.
const MOST_NAMES: usize = 1 << 16;
/// The most bytes that are kept of their names, and of those of their places.
const MOST_BYTES: usize = 1 << 24;
/// The most names that are kept for one number, of processes that had it one after the other.
const MOST_LATER: usize = 4;

/// A GPU whose switches were recorded.
#[derive(Clone, Debug)]
struct Gpu {
    scope: Scope,
    period: Period,
    /// GPU time up to which windows came, ns.
    to: u64,
}

/// Identities of the processes that had a GPU.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// Identities that windows tell.
    known: HashMap<u32, Option<Identity>>,
    /// Names of other processes of the trace.
    names: HashMap<u32, Option<Identity>>,
    /// Bytes of all that was told.
    bytes: usize,
}

/// Joins the identities of two processes that had one id, for sums by that id are those of both. What they do not have in common is left out. `None`:
/// nothing is known of that process.
#[must_use]
pub fn both(before: Option<&Identity>, after: Option<&Identity>) -> Option<Identity> {
    let name = |of: Option<&Identity>| of.map_or("?".to_owned(), |of| of.comm.clone());
    let (first, last) = (name(before), name(after));
    let later = format!(", later {last}");
    let is_told = first == last || first.ends_with(&later);
    let comm = match first.matches(", later ").count() < MOST_LATER {
        true if !is_told => first + &later,
        _ => first,
    };
    let (Some(a), Some(b)) = (before, after) else {
        let comm = Some(comm).filter(|_| before.is_some() || after.is_some())?;
        return Some(Identity {
            comm,
            ..Identity::default()
        });
    };
    Some(Identity {
        comm,
        inner_pid: a.inner_pid.filter(|_| a.inner_pid == b.inner_pid),
        uid: a.uid.filter(|_| a.uid == b.uid),
        user: a.user.clone().filter(|_| a.user == b.user),
        cgroup: a.cgroup.clone().filter(|_| a.cgroup == b.cgroup),
        container: a.container.clone().filter(|_| a.container == b.container),
        pod: a.pod.clone().filter(|_| a.pod == b.pod),
        gpus: Vec::new(),
    })
}

/// Keeps the identity of a process, where there is room beside what is kept.
fn keep(
    all: &mut HashMap<u32, Option<Identity>>,
    kept: &mut usize,
    pid: u32,
    who: Option<Identity>,
) {
    let length = |who: &Option<Identity>| who.as_ref().map_or(0, bytes);
    let before = all.get(&pid);
    let sum = kept
        .saturating_sub(before.map_or(0, length))
        .saturating_add(length(&who));
    if sum <= MOST_BYTES && (before.is_some() || all.len() < MOST_NAMES) {
        *kept = sum;
        all.insert(pid, who);
    }
}

/// Returns the length of an identity's texts.
fn bytes(of: &Identity) -> usize {
    let long = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let container = of.container.as_ref();
    let container = container.map_or(0, |c| c.id.len() + long(&c.runtime) + long(&c.name));
    let pod = { of.pod.as_ref() }.map_or(0, |p| {
        p.uid.len() + long(&p.qos) + long(&p.name) + long(&p.namespace)
    });
    of.comm.len() + long(&of.user) + long(&of.cgroup) + container + pod
}

impl Holders {
    /// Takes the next record.
    pub fn record(&mut self, record: &Record) {
        match record {
            Record::Switches(window) => {
                for (pid, identity) in &window.processes {
                    self.tell(*pid, identity.as_ref());
                }
            }
            Record::Process(p) => match &p.life {
                Life::Present { name } | Life::Exec { name }
                    if p.at.tid == 0 || p.at.tid == p.at.pid =>
                {
                    let identity = Identity {
                        comm: name.clone(),
                        ..Identity::default()
                    };
                    keep(&mut self.names, &mut self.bytes, p.at.pid, Some(identity));
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// Takes the identity of a process; none where nothing is known of it.
    pub(crate) fn tell(&mut self, pid: u32, who: Option<&Identity>) {
        let who = match self.known.get(&pid) {
            None => who.cloned(),
            Some(before) if before.as_ref() == who => return,
            Some(before) => both(before.as_ref(), who),
        };
        keep(&mut self.known, &mut self.bytes, pid, who);
    }

    /// Returns the identity of a process, where that is known.
    #[must_use]
    pub fn identity<'a>(&'a self, pid: u32) -> Option<&'a Identity> {
        let of = |names: &'a HashMap<u32, Option<Identity>>| names.get(&pid)?.as_ref();
        of(&self.known).or_else(|| of(&self.names))
    }
}

/// Shares of a recording.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    gpus: BTreeMap<u32, Gpu>,
    holders: Holders,
}

impl Shares {
    /// Takes the next record.
    pub fn record(&mut self, record: &Record) {
        self.holders.record(record);
        if let Record::Switches(window) = record {
            self.window(window);
        }
    }

    fn window(&mut self, window: &Switches) {
        let gpu = self.gpus.entry(window.gpu).or_insert_with(|| Gpu {
            scope: window.scope,
            period: Period::new(window.from.gpu_ns),
            to: window.from.gpu_ns,
        });
        // A window between them is not there.
        if gpu.to != window.from.gpu_ns {
            gpu.period.take(&Told::Missing(0));
        }
        window.told.iter().for_each(|told| gpu.period.take(told));
        gpu.to = gpu.to.max(window.to.gpu_ns);
    }

    /// Tells whether no context switches were recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Returns the GPUs with their sums, by number.
    #[must_use]
    pub fn views(&self) -> Vec<GpuView> {
        let view = |(number, gpu): (&u32, &Gpu)| gpu.period.view(*number, gpu.scope, gpu.to, 0);
        self.gpus.iter().map(view).collect()
    }

    /// Returns the identity of a process, where that is known.
    #[must_use]
    pub fn identity(&self, pid: u32) -> Option<&Identity> {
        self.holders.identity(pid)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use nvcap_decode::record::{At, Process};
    pub(crate) use nvcap_decode::switches::made_up::told as switch;
    use nvcap_decode::switches::{Tag, Who, made_up};

    use super::*;

    /// A window of a GPU that says who process 1 is.
    pub(crate) fn window(gpu: u32, times: (u64, u64), told: Vec<Told>) -> Record {
        let train = Identity {
            comm: "train".to_owned(),
            ..Identity::default()
        };
        Record::Switches(Box::new(Switches {
            processes: vec![(1, Some(train))],
            ..made_up::window(gpu, times, told)
        }))
    }

    /// Takes a window that says of process 7 who it is.
    fn told(holders: &mut Holders, who: Option<Identity>) {
        let Record::Switches(mut of) = window(0, (0, 1), Vec::new()) else {
            unreachable!()
        };
        of.processes = vec![(7, who)];
        holders.record(&Record::Switches(of));
    }

    #[test]
    fn a_number_that_several_processes_had_is_all_of_theirs() {
        let who = |comm: &str, uid| {
            Some(Identity {
                comm: comm.to_owned(),
                uid: Some(uid),
                user: Some("ada".to_owned()),
                cgroup: Some(comm.to_owned()),
                ..Identity::default()
            })
        };
        let mut holders = Holders::default();
        let mut shown = Vec::new();
        let turns = [
            None,
            who("a", 1),
            who("a", 1),
            who("b", 1),
            who("b", 2),
            None,
        ];
        for of in turns
            .into_iter()
            .chain((0..9).map(|n| who(&n.to_string(), 1)))
        {
            told(&mut holders, of);
            shown.push(holders.identity(7).cloned().unwrap_or_default());
        }
        let names: Vec<_> = shown.iter().map(|of| of.comm.as_str()).collect();
        let expected = [
            "",
            "?, later a",
            "?, later a",
            "?, later a, later b",
            "?, later a, later b",
            "?, later a, later b, later ?",
            "?, later a, later b, later ?, later 0",
        ];
        assert_eq!(names[..7], expected);
        assert_eq!(names[14], expected[6]);
        let mut holders = Holders::default();
        told(&mut holders, who("a", 1));
        told(&mut holders, who("b", 1));
        let of = holders.identity(7).unwrap();
        let user = of.user.as_deref();
        assert_eq!((of.uid, user, &of.cgroup), (Some(1), Some("ada"), &None));
    }

    #[test]
    fn names_have_a_bound_in_bytes() {
        let mut holders = Holders::default();
        for pid in 0..64 {
            let Record::Switches(mut of) = window(0, (0, 1), Vec::new()) else {
                unreachable!()
            };
            let who = Identity {
                cgroup: Some("x".repeat(MOST_BYTES / 16)),
                ..Identity::default()
            };
            of.processes = vec![(pid, Some(who))];
            holders.record(&Record::Switches(of));
        }
        let kept = (0..64).filter(|pid| holders.identity(*pid).is_some());
        assert_eq!(kept.count(), 16);
    }

    #[test]
    fn windows_are_summed_up_and_a_gap_is_unknown() {
        let mut shares = Shares::default();
        assert!(shares.is_empty());
        shares.record(&Record::Process(Process {
            at: At::of_process(1, 2),
            life: Life::Present {
                name: "notebook".to_owned(),
            },
        }));
        let first = vec![
            switch(Tag::END, 1, 1_400),
            switch(Tag::BEGIN, 2, 1_500),
            switch(Tag::END, 2, 1_900),
            switch(Tag::BEGIN, 1, 2_000),
        ];
        shares.record(&window(3, (1_000, 3_000), first));
        shares.record(&window(3, (3_000, 4_000), vec![switch(Tag::END, 1, 3_500)]));
        let [gpu] = &shares.views()[..] else {
            panic!("one GPU");
        };
        let engine = &gpu.engines[0];
        let held: Vec<_> = { engine.holders.iter() }
            .map(|(who, held, _)| (*who, held.resident_ns))
            .collect();
        assert_eq!(held, [(Who::Process(1), 1_900), (Who::Process(2), 400)]);
        assert_eq!(
            (gpu.ns, engine.switch_ns, engine.nobody_ns),
            (3_000, 200, 500)
        );
        let name = |pid| shares.identity(pid).map(|who| who.comm.as_str());
        assert_eq!(
            [name(1), name(2), name(3)],
            [Some("train"), Some("notebook"), None]
        );
        // A file between is not there.
        shares.record(&window(
            3,
            (9_000, 9_500),
            vec![switch(Tag::BEGIN, 2, 9_100)],
        ));
        let view = &shares.views()[0];
        assert_eq!((view.ns, view.engines[0].unknown_ns), (8_500, 5_600));
        assert_eq!(view.missing, 0);
    }
}
