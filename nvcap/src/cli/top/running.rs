//! Work of each process at most moments since the last reading, by name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use nvcap_decode::wire::GpuVa;
use nvcap_live::enrich;
use nvcap_monitor::counts::detail::{Doing, Samples};
use nvcap_show::output::kernels::{self, Name};

/// Work of each process at most moments since the last reading, by name.
#[derive(Default)]
pub(super) struct Running {
    processes: BTreeMap<u32, Process>,
}

/// Facts about one process.
#[derive(Default)]
struct Process {
    began_unix_ns: u64,
    before: BTreeMap<Doing, f64>,
    /// Names of programs that were asked for; `None` for a program without a name.
    names: HashMap<GpuVa, Option<Arc<Name>>>,
}

impl Running {
    /// Returns the text for a process with these samples; empty if it had no work.
    pub(super) fn text(
        &mut self,
        (pid, began_unix_ns): (u32, u64),
        samples: Samples<'_>,
    ) -> String {
        let (sampled, programs) = samples;
        let of = self.processes.entry(pid).or_default();
        if of.began_unix_ns != began_unix_ns {
            *of = Process {
                began_unix_ns,
                ..Process::default()
            };
        }
        let before = |doing: &Doing| of.before.get(doing).copied().unwrap_or(0.0);
        let step = sampled
            .at
            .iter()
            .map(|(doing, n)| (*doing, n - before(doing)));
        let most = step
            .filter(|(_, n)| *n > 0.0)
            // Work on one channel is reported in preference to waits on many.
            .max_by(|a, b| {
                let works = |(doing, _): &(Doing, f64)| *doing != Doing::Wait;
                works(a).cmp(&works(b)).then(a.1.total_cmp(&b.1))
            });
        of.before.clone_from(&sampled.at);
        match most.map(|(doing, _)| doing) {
            None => String::new(),
            Some(Doing::Kernel(program)) => {
                let registers = programs.get(&program).copied().flatten();
                let name = of.names.entry(program).or_insert_with(|| {
                    let all = enrich::names::of(pid, &[(program, registers)]);
                    all.first().map(kernels::name)
                });
                match name {
                    Some(name) => name.short.clone(),
                    None => format!("prog {program:#x}"),
                }
            }
            Some(Doing::Graph) => "a graph".to_owned(),
            Some(Doing::Copy(path)) => format!("copy {path}"),
            Some(Doing::Wait) => "waits for a semaphore".to_owned(),
            Some(Doing::Other) => "other work".to_owned(),
            Some(Doing::Unread) => "work that cannot be read".to_owned(),
        }
    }

    /// Forgets the processes that are not among these.
    pub(super) fn keep(&mut self, pids: &[u32]) {
        self.processes.retain(|pid, _| pids.contains(pid));
    }
}
