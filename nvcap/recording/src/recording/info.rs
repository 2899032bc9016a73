//! Facts about a trace, at the beginning and at the end of its recording.

use super::decode::{observed, trapped};
use super::messages as m;
use nvcap_decode::ledger::{Observed, Trapped};
use nvcap_decode::record::Stamp;
use nvcap_decode::wire::GpuVa;

/// Description of the trace: the traced programs, the machine, and the way of tracing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceInfo {
    /// Name and version of nvcap.
    pub program: String,
    /// Release of the driver, if it was known.
    pub driver: Option<String>,
    /// Release of the kernel.
    pub kernel: String,
    /// Processor of the machine.
    pub processor: String,
    /// Time of `CLOCK_MONOTONIC` at which the recording began, ns.
    pub monotonic_ns: u64,
    /// Time of `CLOCK_REALTIME` at the time `monotonic_ns`, ns.
    pub realtime_ns: u64,
    /// Way in which submissions were captured: `trap`, `observe`, or the format from which the recording was made.
    pub how: String,
    /// True if the GPU's timestamps were read.
    pub gpu_time: bool,
    /// True if stacks were taken.
    pub stacks: bool,
    /// True if the records are in the order of their times. The records of a live trace are in the order in
    /// which they came.
    pub in_order: bool,
    /// True if users' data was left out.
    pub redacted: bool,
    /// Command that was traced, with its arguments.
    pub command: Vec<String>,
    /// Number of this file among the trace's files, counted from 0.
    pub file: u32,
    /// Number of records of earlier files that this file would need but lacks.
    pub left_out: u64,
    /// GPUs of the machine. Empty if the machine has none, or if nothing was known about them.
    pub gpus: Vec<HostGpu>,
}

/// A GPU of the machine on which the recording was made, as the driver describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostGpu {
    /// Number N of `/dev/nvidiaN`.
    pub minor: u32,
    /// Name of the model.
    pub model: Option<String>,
    /// UUID, `GPU-...`.
    pub uuid: Option<String>,
    /// PCI address, such as `0000:c1:00.0`.
    pub bus: Option<String>,
}

impl std::fmt::Display for HostGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GPU {}", self.minor)?;
        let known = [&self.model, &self.bus, &self.uuid];
        for (n, value) in known.into_iter().flatten().enumerate() {
            write!(f, "{} {value}", if n == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

impl TraceInfo {
    /// Returns the time of day at a time of `CLOCK_MONOTONIC`, ns.
    pub(super) fn realtime_of(&self, monotonic_ns: u64) -> u64 {
        let offset = self.realtime_ns.wrapping_sub(self.monotonic_ns);
        monotonic_ns.wrapping_add(offset)
    }

    /// Returns a description of the processor and the GPUs, as text for people.
    pub(super) fn hardware(&self) -> String {
        let gpus = self.gpus.iter().map(ToString::to_string);
        let all = { [self.processor.clone()].into_iter() }.chain(gpus);
        all.collect::<Vec<_>>().join("; ")
    }

    /// Makes the message of a file whose first record has the number `first`.
    pub(super) fn message(&self, first: u64) -> m::Trace {
        m::Trace {
            program: self.program.clone(),
            driver: self.driver.clone(),
            kernel: self.kernel.clone(),
            processor: self.processor.clone(),
            monotonic_ns: self.monotonic_ns,
            realtime_ns: self.realtime_ns,
            how: self.how.clone(),
            gpu_time: self.gpu_time,
            stacks: self.stacks,
            in_order: self.in_order,
            redacted: self.redacted,
            command: self.command.clone(),
            file: self.file,
            left_out: self.left_out,
            gpus: { self.gpus.iter().cloned() }
                .map(|g| m::HostGpu {
                    minor: g.minor,
                    model: g.model,
                    uuid: g.uuid,
                    bus: g.bus,
                })
                .collect(),
            first,
        }
    }

    pub(super) fn of(t: m::Trace) -> Self {
        Self {
            program: t.program,
            driver: t.driver,
            kernel: t.kernel,
            processor: t.processor,
            monotonic_ns: t.monotonic_ns,
            realtime_ns: t.realtime_ns,
            how: t.how,
            gpu_time: t.gpu_time,
            stacks: t.stacks,
            in_order: t.in_order,
            redacted: t.redacted,
            command: t.command,
            file: t.file,
            left_out: t.left_out,
            gpus: { t.gpus.into_iter() }
                .map(|g| HostGpu {
                    minor: g.minor,
                    model: g.model,
                    uuid: g.uuid,
                    bus: g.bus,
                })
                .collect(),
        }
    }
}

/// A reading of a GPU's clock at one moment, which lies between two known times of the processor's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuClock {
    /// A process that uses the GPU.
    pub pid: u32,
    /// Semaphore beside which the GPU wrote its time.
    pub address: GpuVa,
    /// Time of the GPU's clock, ns.
    pub gpu_ns: u64,
    /// Latest known time of `CLOCK_MONOTONIC` before the moment, ns.
    pub before_ns: u64,
    /// Earliest known time of `CLOCK_MONOTONIC` after the moment, ns.
    pub seen_ns: u64,
}

impl GpuClock {
    /// Makes a reading from a stamp, if the stamp has a time of the GPU and the moment is bounded on both sides.
    pub(super) fn of(pid: u32, stamp: &Stamp) -> Option<Self> {
        Some(Self {
            pid,
            address: stamp.address,
            gpu_ns: stamp.gpu_ns?,
            before_ns: stamp.before_ns,
            seen_ns: stamp.seen_ns,
        })
        .filter(|c| c.before_ns != 0 && c.before_ns <= c.seen_ns)
    }

    /// Returns the uncertainty of the moment, ns.
    pub(super) fn width(&self) -> u64 {
        self.seen_ns.saturating_sub(self.before_ns)
    }
}

/// Facts that a live trace gives at its end besides its records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndInfo {
    /// Time of the last record, ns.
    pub time_ns: u64,
    /// Account of observing.
    pub observed: Option<Observed>,
    /// Stacks, if they were taken: one for this many doorbells, and the number of doorbells that were skipped.
    pub stack_sample: Option<(u32, u64)>,
    /// Number of packets that could not be written (a full disk).
    pub unwritten: u64,
    /// Clocks of the GPUs by process, if the timestamps were read.
    pub gpu_clocks: Vec<GpuClock>,
    /// Account of the trap.
    pub trapped: Option<Trapped>,
    /// Data that stacks lack, in words, each with a count.
    pub left_out_of_stacks: Vec<(String, u64)>,
}

impl EndInfo {
    pub(super) fn message(&self) -> m::End {
        m::End {
            time_ns: self.time_ns,
            observed: self.observed.as_ref().map(Into::into),
            stack_sample: { self.stack_sample }.map(|(every, skipped)| m::StackSample {
                every,
                passed: skipped,
            }),
            unwritten: self.unwritten,
            gpu_clocks: { self.gpu_clocks.iter() }
                .map(|c| m::GpuClock {
                    pid: c.pid,
                    address: c.address.0,
                    gpu_ns: c.gpu_ns,
                    before_ns: c.before_ns,
                    seen_ns: c.seen_ns,
                })
                .collect(),
            trapped: self.trapped.as_ref().map(Into::into),
            left_out_of_stacks: { self.left_out_of_stacks.iter().cloned() }
                .map(|(what, count)| m::LeftOutOfStacks { what, count })
                .collect(),
        }
    }

    pub(super) fn of(e: m::End) -> Self {
        Self {
            time_ns: e.time_ns,
            observed: e.observed.map(observed),
            stack_sample: e.stack_sample.map(|s| (s.every, s.passed)),
            unwritten: e.unwritten,
            gpu_clocks: { e.gpu_clocks.into_iter() }
                .map(|c| GpuClock {
                    pid: c.pid,
                    address: GpuVa(c.address),
                    gpu_ns: c.gpu_ns,
                    before_ns: c.before_ns,
                    seen_ns: c.seen_ns,
                })
                .collect(),
            trapped: e.trapped.map(trapped),
            left_out_of_stacks: { e.left_out_of_stacks.into_iter() }
                .map(|l| (l.what, l.count))
                .collect(),
        }
    }
}
