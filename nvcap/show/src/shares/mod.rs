//! Shares of the GPUs in a recording: which process had which GPU for how long, by the driver's own record of context switches.

mod words;
mod works;

use std::collections::{BTreeMap, HashMap};

use nvcap_decode::record::{Identity, Life, Record, Switches};
use nvcap_decode::switches::{GpuView, Period, Scope, Told};

pub use words::{idle, instance_name, lacks, per_second, title, unnamed, verdicts};
pub use works::{Work, Works};

/// Processes whose names are kept at most.
const MOST_NAMES: usize = 1 << 16;

/// A GPU whose switches were recorded.
#[derive(Clone, Debug)]
struct Gpu {
    scope: Scope,
    period: Period,
    /// GPU time up to which windows came, ns.
    to: u64,
}

/// Who the processes are that had a GPU.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// As the windows tell.
    known: HashMap<u32, Identity>,
    /// Names of other processes of the trace.
    names: HashMap<u32, Identity>,
}

impl Holders {
    /// Takes the next record.
    pub fn record(&mut self, record: &Record) {
        match record {
            Record::Switches(window) => {
                for (pid, identity) in &window.processes {
                    if let Some(identity) = identity
                        && self.known.len() < MOST_NAMES
                    {
                        self.known.insert(*pid, identity.clone());
                    }
                }
            }
            Record::Process(p) => match &p.life {
                Life::Present { name } | Life::Exec { name }
                    if (p.at.tid == 0 || p.at.tid == p.at.pid) && self.names.len() < MOST_NAMES =>
                {
                    let identity = Identity {
                        comm: name.clone(),
                        ..Identity::default()
                    };
                    self.names.insert(p.at.pid, identity);
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// Returns who a process is, where that is known.
    #[must_use]
    pub fn identity(&self, pid: u32) -> Option<&Identity> {
        self.known.get(&pid).or_else(|| self.names.get(&pid))
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

    /// Returns who a process is, where that is known.
    #[must_use]
    pub fn identity(&self, pid: u32) -> Option<&Identity> {
        self.holders.identity(pid)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use nvcap_decode::record::{At, Process};
    use nvcap_decode::switches::{Reading, Switch, Tag, Who};

    use super::*;

    /// A switch of a process whose context is ten times its number.
    pub(crate) fn switch(tag: Tag, pid: u32, time_ns: u64) -> Told {
        Told::Switch(Switch {
            tag,
            pid,
            context: 10 * pid,
            time_ns,
            ..Switch::default()
        })
    }

    /// A window of a GPU whose clock is a second behind the host's.
    pub(crate) fn window(gpu: u32, (from, to): (u64, u64), told: Vec<Told>) -> Record {
        let reading = |gpu_ns| Reading {
            host_ns: gpu_ns + 1_000_000_000,
            gpu_ns,
            error_ns: 500,
        };
        Record::Switches(Box::new(Switches {
            at: At {
                time_ns: to + 1_000_000_000,
                ..At::default()
            },
            gpu,
            scope: Scope::AllUsers,
            from: reading(from),
            to: reading(to),
            told,
            processes: vec![(
                1,
                Some(Identity {
                    comm: "train".to_owned(),
                    ..Identity::default()
                }),
            )],
        }))
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
