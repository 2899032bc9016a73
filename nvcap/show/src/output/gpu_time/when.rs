//! Times at which an entry was worked on, on the host's clock.

use nvcap_decode::decode::event::{Context, GpuTime, GpuWait};

/// Longest time from a doorbell to its trap, ns (gpu_time/rules.rs).
const ARRIVAL_NS: u64 = 10_000;

/// The times of an entry, ns; what is not known is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct When {
    /// Time at which the GPU began, ns.
    pub begin: Option<u64>,
    /// Time at which it had ended, ns; not before the begin.
    pub end: Option<u64>,
    /// The time in which the channel waited for a semaphore.
    pub wait: Option<(u64, u64, GpuWait)>,
}

/// Tells whether a submission's time is that of its doorbell. Otherwise (observed, or late) the submission was in the ring before that time.
pub(crate) fn is_at_doorbell(c: &Context) -> bool {
    !c.how.is_after() && !c.late
}

/// Returns a time at which a submission was not in its ring yet, where that is known, ns.
pub(super) fn absent(c: &Context) -> Option<u64> {
    match c.at.time().filter(|_| is_at_doorbell(c)) {
        Some(at) => Some(at.saturating_sub(ARRIVAL_NS)),
        None => c.absent_ns,
    }
}

impl When {
    /// The times of an entry. Work cannot begin before its doorbell: a begin that lies before the doorbell by no more than its error is
    /// moved to the doorbell.
    pub(crate) fn of(c: &Context, time: &GpuTime) -> Self {
        let Some(start) = time.start else {
            return Self::default();
        };
        let mut begin = start.host_ns;
        if let Some(doorbell) = c.at.time().filter(|_| is_at_doorbell(c))
            && begin < doorbell
            && doorbell - begin <= start.host_error_ns
        {
            begin = doorbell;
        }
        let wait = time.wait.filter(|w| w.ns > 0).and_then(|w| {
            let before = start.gpu_ns.checked_sub(time.ready_gpu_ns?)?;
            let until = begin.checked_sub(before)?;
            Some((until.checked_sub(w.ns)?, until, w))
        });
        Self {
            begin: Some(begin),
            end: time.duration.map(|d| begin.saturating_add(d.ns)),
            wait,
        }
    }
}
