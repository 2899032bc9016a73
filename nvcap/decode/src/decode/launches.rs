//! Launches of a submission: PCAS by PCAS, and at the end of each entry the further grids that they cause to run.

use super::event::Memory;
use super::{
    class_dispatch::Reg,
    event::{Barrier, Body, Event, Launch, LaunchHow, LaunchKind, Operation, QmdFrom},
    graph::{Named, Started, is_alone},
    ops::launch::Reader,
    pcas::{Effect, PcasAction},
    submission::SubmissionDecoder,
};
use crate::wire::{GpuVa, words::u64_at};

impl SubmissionDecoder<'_> {
    /// Runs the QMDs that an entry of `bytes` bytes names, once the entry has been read. This is not left to the end of the submission:
    /// entries of several doorbells may be fetched together as one submission, whereas libcuda commits a unit of work as one entry.
    pub(super) fn end_of_entry(&mut self, bytes: u64) {
        if !self.wants.operations {
            return;
        }
        let named = std::mem::take(&mut self.named);
        let mut replay = None;
        if !named.is_empty() {
            let started =
                self.graphs
                    .start(&named, &self.written, self.shadow, self.space, self.context);
            replay = self.start(started, bytes);
        }
        self.written.clear();
        for (context, graph) in self.graphs.complete(self.context, self.space, replay) {
            self.counts.graphs += 1;
            let operation = Operation::Graph(Box::new(graph));
            (self.sink)(&Event {
                entry: context.last_entry(),
                context: &context,
                body: Body::Operation(&operation),
            });
        }
    }

    /// Emits the grids that run. Returns the number of the graph replay to which they belong.
    fn start(&mut self, started: Started, bytes: u64) -> Option<u64> {
        let joined = started
            .graph
            .then(|| self.graphs.join(&started, self.context, self.space, bytes));
        let mut place = joined.map_or(0, |j| j.1);
        for (run, view) in started.into_runs() {
            let (how, at) = (run.how, run.address);
            let mut launch = match view {
                Some(view) => run.reader.launch_of(how, at, view, self.shadow, self.space),
                None => run.reader.launch(how, at, self.shadow, self.space),
            };
            launch.pcas = run.action;
            self.name(&mut launch);
            if let Some((replay, _)) = joined {
                launch.replay = Some(replay);
                self.graphs.count(replay, &launch);
                if launch.kind != LaunchKind::Companion {
                    launch.place = Some(place);
                    place += 1;
                }
            }
            self.launch(launch);
        }
        joined.map(|j| j.0)
    }

    /// Sets the kernel of a launch: the program's, not the one that a profiler has put in its place.
    fn name(&mut self, launch: &mut Launch) {
        self.driver_writes.launch(self.space, launch, self.shadow);
        if launch.stand_in.is_none() || launch.stand_in != launch.program {
            self.kernels
                .name(self.context.at.pid, launch, self.context.at.time_ns);
        }
    }

    /// Counts and emits a launch.
    pub(super) fn launch(&mut self, mut launch: Launch) {
        self.name(&mut launch);
        let image = launch
            .qmd
            .is_some_and(|q| self.qmd_copies.contains(&(self.space, q.0)));
        if image && launch.qmd_from.is_some() {
            launch.qmd_from = Some(QmdFrom::Image);
        }
        launch.arg_memory = self.arg_memory(&launch);
        if launch.kind != LaunchKind::Companion {
            self.counts.launches += 1;
            self.counts.kernels += u64::from(launch.kind == LaunchKind::User);
            self.counts.nodes += u64::from(launch.replay.is_some());
            self.counts.unresolved += u64::from(launch.kind == LaunchKind::Unresolved);
            self.counts.qmds_from_memory += u64::from(launch.qmd_from == Some(QmdFrom::Image));
        }
        self.operation(&Operation::Launch(Box::new(launch)));
    }

    /// Returns the memory to which a launch's arguments point.
    fn arg_memory(&self, launch: &Launch) -> Vec<(u32, Memory)> {
        let params = launch.kernel.as_ref().and_then(|k| k.params.as_deref());
        let args = launch.args.as_deref().unwrap_or(&[]);
        let pointers = params.unwrap_or_default().iter().filter(|p| p.size == 8);
        pointers
            .filter_map(|p| {
                let value = u64_at(args, p.offset as usize).filter(|v| *v > 0xffff)?;
                let memory = self.places.memory(self.space, GpuVa(value))?;
                Some((p.offset, memory))
            })
            .collect()
    }

    /// Handles a PCAS, which is a launch by itself, a QMD of a graph, or nothing that runs.
    pub(super) fn pcas(&mut self, action: PcasAction, subchannel: u8, method: u16, data: u32) {
        let Some(sub) = self.subs.get(usize::from(subchannel)) else {
            return;
        };
        self.only_inline = false;
        let address = u64::from(sub.get(Reg::PcasA)) << 8;
        let reader = Reader::of(sub);
        let class = sub.plan.class;
        if action.effect() == Effect::Schedules
            && let Some(view) = reader.view(address, self.shadow, self.space)
        {
            let here = self.written.contains(&address);
            if is_alone(&view, reader, here, self.shadow, self.space) {
                let how = LaunchHow::Scheduled;
                let mut launch = reader.launch_of(how, address, view, self.shadow, self.space);
                launch.pcas = Some(action);
                return self.launch(launch);
            }
        }
        if action.effect() != Effect::None {
            self.named.push(Named {
                address,
                action,
                reader,
            });
        }
        // The grids that it causes to run are emitted at the end of the entry.
        self.operation(&Operation::Barrier(Barrier {
            what: action.name(),
            class,
            method,
            data,
            address: Some(GpuVa(address)),
        }));
    }
}
