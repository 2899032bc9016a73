//! Division of each rank's time by what ran.

use super::job::{Class, Rank};

/// A rank's time, ns. All but `hidden` add up to the span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    /// Time from the begin of the first work to the end of the last.
    pub(super) span: u64,
    /// Time in which kernels ran that are no collectives.
    pub(super) compute: u64,
    /// Part of `compute` in which a collective ran, too.
    pub(super) hidden: u64,
    /// Time in which collectives alone ran, and all ranks had come.
    pub(super) exposed: u64,
    /// Time in which collectives alone ran, and one waited for other ranks.
    pub(super) waiting: u64,
    /// Time in which copies alone ran.
    pub(super) copying: u64,
    /// Time in which nothing is known to have run, and there were works whose times are not known.
    pub(super) unknown: u64,
    /// Time in which nothing ran.
    pub(super) idle: u64,
}

/// Sums up a rank's time. `waits`: the times in which its collectives waited for others.
pub(super) fn of(rank: &Rank, waits: &[(u64, u64)]) -> Shares {
    const KERNEL: usize = 0;
    const COPY: usize = 1;
    const COLLECTIVE: usize = 2;
    const WAIT: usize = 3;
    const UNKNOWN: usize = 4;
    let works = rank.works.iter().map(|w| {
        let of = match w.class {
            Class::Kernel => KERNEL,
            Class::Copy => COPY,
            Class::Collective => COLLECTIVE,
        };
        (of, w.begin, w.end)
    });
    let waits = waits.iter().map(|(from, to)| (WAIT, *from, *to));
    let mut turns: Vec<(u64, usize, i64)> = Vec::new();
    for (of, from, to) in works.chain(waits).filter(|(_, from, to)| from < to) {
        turns.push((from, of, 1));
        turns.push((to, of, -1));
    }
    let mut shares = Shares::default();
    // The span is that of what is timed.
    let times = || turns.iter().map(|(time, ..)| *time);
    let (Some(first), Some(last)) = (times().min(), times().max()) else {
        return shares;
    };
    shares.span = last - first;
    let unknown = rank.unknown.iter();
    for (from, to) in unknown.map(|(from, to)| ((*from).max(first), (*to).min(last))) {
        if from < to {
            turns.push((from, UNKNOWN, 1));
            turns.push((to, UNKNOWN, -1));
        }
    }
    turns.sort_unstable();
    let (mut at, mut running) = (first, [0i64; 5]);
    for (time, of, change) in turns {
        let ns = time - at;
        at = time;
        let runs = |of: usize| running[of] > 0;
        if runs(KERNEL) {
            shares.compute += ns;
            shares.hidden += if runs(COLLECTIVE) { ns } else { 0 };
        } else if runs(WAIT) {
            shares.waiting += ns;
        } else if runs(COLLECTIVE) {
            shares.exposed += ns;
        } else if runs(COPY) {
            shares.copying += ns;
        } else if runs(UNKNOWN) {
            shares.unknown += ns;
        } else {
            shares.idle += ns;
        }
        running[of] += change;
    }
    shares
}
