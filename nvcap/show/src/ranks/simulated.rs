//! A job of several ranks in virtual time: each GPU does one work after the other, and a collective ends in all ranks when the last has come.

use super::job::{Call, Class, Comm, Job, Rank, Work};

/// Error of a begin, ns.
pub(super) const ERROR: u64 = 1_000;

/// A simulated job. Each rank's clock is off by a constant of its own within the error.
pub(super) struct Simulated {
    pub(super) job: Job,
    /// Time at which each GPU is free, and at which each host submits next.
    free: Vec<u64>,
    host: Vec<u64>,
    /// Number of each call, by rank: calls with the same number belong together.
    pub(super) numbers: Vec<Vec<u64>>,
    calls: u64,
    epochs: Vec<u32>,
    /// True if nothing of a call is known but its order.
    pub(super) untimed: bool,
}

impl Simulated {
    pub(super) fn new(ranks: usize) -> Self {
        let mut job = Job {
            has_times: true,
            ..Job::default()
        };
        for n in 0..ranks {
            job.ranks.push(Rank {
                number: Some(n as u32),
                pid: 100 + n as u32,
                gpu: Some(n as u32),
                ..Rank::default()
            });
        }
        Self {
            job,
            free: vec![1_000_000_000; ranks],
            host: vec![999_000_000; ranks],
            numbers: vec![Vec::new(); ranks],
            calls: 0,
            epochs: vec![0; ranks],
            untimed: false,
        }
    }

    /// A time as this rank's records have it.
    fn shown(rank: usize, time: u64) -> u64 {
        time + [0, 400, 150, 300][rank % 4]
    }

    fn work(&mut self, rank: usize, name: &str, class: Class, begin: u64, end: u64) {
        let work = Work {
            begin: Self::shown(rank, begin),
            end: Self::shown(rank, end),
            there: Some(Self::shown(rank, self.host[rank])),
            name: self.job.names.number(name),
            class,
        };
        self.job.ranks[rank].works.push(work);
    }

    /// Runs a kernel in one rank.
    pub(super) fn kernel(&mut self, rank: usize, name: &str, ns: u64) {
        let begin = self.free[rank].max(self.host[rank]);
        self.free[rank] = begin + ns;
        self.work(rank, name, Class::Kernel, begin, begin + ns);
    }

    /// Makes the host wait for the GPU, and `ns` longer.
    pub(super) fn pause(&mut self, rank: usize, ns: u64) {
        self.host[rank] = self.free[rank] + ns;
    }

    /// Leaves the GPU idle up to a time, for which no rank is to blame.
    pub(super) fn idle_until(&mut self, rank: usize, time: u64) {
        self.free[rank] = self.free[rank].max(time);
    }

    /// Runs a collective of these ranks on a communicator.
    pub(super) fn collective(&mut self, comm: u64, ranks: &[usize], kind: &str, ns: u64) {
        let begin = |of: &Self, r: usize| of.free[r].max(of.host[r]);
        let last = ranks.iter().map(|r| begin(self, *r)).max().unwrap_or(0);
        for &rank in ranks {
            let begin = begin(self, rank);
            self.call(comm, rank, kind, Some((begin, last + ns)));
            self.free[rank] = last + ns;
        }
        self.calls += 1;
    }

    /// Begins a call of one rank that does not end.
    pub(super) fn waits(&mut self, comm: u64, rank: usize, kind: &str) {
        let begin = self.free[rank].max(self.host[rank]);
        self.call(comm, rank, kind, None);
        let call = self.job.ranks[rank].calls.last_mut().expect("a call");
        call.begin = Some(Self::shown(rank, begin));
    }

    /// Ends the trace, `ns` behind the last work.
    pub(super) fn end(&mut self, ns: u64) {
        let until = self.free.iter().max().expect("ranks") + ns;
        for (rank, losses) in self.job.ranks.iter_mut().zip(&self.epochs) {
            (rank.until, rank.losses) = (until, *losses);
        }
    }

    fn call(&mut self, comm: u64, rank: usize, kind: &str, span: Option<(u64, u64)>) {
        let span = span.map(|(a, b)| (Self::shown(rank, a), Self::shown(rank, b)));
        let call = Call {
            // Another address in each rank.
            comm: Comm::Argument(0x7f00_0000_0000 + comm * 0x1000 + rank as u64 * 0x10_0000),
            kind: self.job.names.number(kind),
            begin: span.map(|s| s.0),
            error: ERROR / 2,
            end_error: ERROR / 2,
            end: span.map(|s| s.1),
            submitted: Some(self.host[rank]),
            epoch: self.epochs[rank],
        };
        let call = match self.untimed {
            true => Call {
                begin: None,
                end: None,
                ..call
            },
            false => call,
        };
        if let Some((begin, end)) = span.filter(|_| !self.untimed) {
            let work = Work {
                begin,
                end,
                there: Some(begin),
                name: self.job.names.number(&format!("nccl{kind}")),
                class: Class::Collective,
            };
            self.job.ranks[rank].works.push(work);
        }
        self.job.ranks[rank].calls.push(call);
        self.numbers[rank].push(self.calls);
    }

    /// Drops the newest calls of a rank from the trace, which says so.
    pub(super) fn lose(&mut self, rank: usize, calls: usize) {
        let kept = self.numbers[rank].len() - calls;
        self.numbers[rank].truncate(kept);
        self.job.ranks[rank].calls.truncate(kept);
        self.epochs[rank] += 1;
    }

    /// Drops the first calls of a rank, which came before it was seen.
    pub(super) fn forget(&mut self, rank: usize, calls: usize) {
        self.numbers[rank].drain(..calls);
        self.job.ranks[rank].calls.drain(..calls);
    }
}
