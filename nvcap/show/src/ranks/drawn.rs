//! Single calls with the arrivals of their ranks, for lists and pictures.

use std::collections::BTreeMap;

use super::analysis::{Analysis, Seen};
use super::arrivals::Arrival;

/// A call of all ranks of a communicator, for a picture of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// The number of the communicator.
    pub communicator: usize,
    /// The number of the call, from 1.
    pub call: u64,
    /// Kind of the call, such as `AllReduce`.
    pub kind: String,
    /// Time from the first rank's arrival to the last one's, ns.
    pub skew: u64,
    /// The most by which `skew` may be wrong, ns.
    pub error: u64,
    /// The ranks, in the order of their arrivals.
    pub came: Vec<Came>,
}

/// Arrival of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Came {
    /// The rank, as sentences name it.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its GPU.
    pub gpu: Option<u32>,
    /// Begin of its kernel, ns.
    pub begin: u64,
    /// Its end, where that is known.
    pub end: Option<u64>,
    /// True if the rank came last: alone, or with others whose order is within the error.
    pub is_last: bool,
}

impl Analysis {
    /// Number of ranks that called collectives.
    #[must_use]
    pub fn rank_count(&self) -> usize {
        self.job.ranks.len()
    }

    /// Returns the processes that have not come to a call in which others wait.
    #[must_use]
    pub fn absent(&self) -> Vec<u32> {
        let all = self.seen.iter().filter_map(|s| s.absent.as_ref());
        let mut pids: Vec<u32> = all
            .flat_map(|a| a.absent.iter().map(|r| self.job.ranks[*r].pid))
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Adds the places of processes in their programs.
    #[must_use]
    pub fn with_places(self, places: BTreeMap<u32, String>) -> Self {
        Self { places, ..self }
    }

    /// Returns the time in which collectives waited for other ranks, ns, by process and GPU, of ranks that waited.
    #[must_use]
    pub fn waits(&self) -> Vec<(u32, Option<u32>, u64)> {
        let all = self.job.ranks.iter().zip(&self.shares);
        all.filter(|(_, its)| its.waiting > 0)
            .map(|(rank, its)| (rank.pid, rank.gpu, its.waiting))
            .collect()
    }

    /// The calls to which all ranks came at known times.
    pub fn calls(&self) -> impl Iterator<Item = Drawn> + '_ {
        let all = self.seen.iter().enumerate();
        all.flat_map(move |(communicator, seen)| {
            { seen.arrivals.iter() }.map(move |arrival| self.drawn(communicator, seen, arrival))
        })
    }

    fn drawn(&self, communicator: usize, seen: &Seen, arrival: &Arrival) -> Drawn {
        let call = &seen.of.calls[arrival.call];
        let mut came: Vec<Came> = { seen.of.members.iter().zip(&call.of).enumerate() }
            .filter_map(|(n, (member, call))| {
                let rank = &self.job.ranks[member.rank];
                let call = &rank.calls[(*call)?];
                Some(Came {
                    name: self.job.name(member.rank),
                    pid: rank.pid,
                    gpu: rank.gpu,
                    begin: call.begin?,
                    end: call.end,
                    is_last: arrival.last.contains(&n),
                })
            })
            .collect();
        came.sort_by_key(|c| c.begin);
        Drawn {
            communicator,
            call: arrival.call as u64 + 1,
            kind: self.job.names.text(arrival.kind).to_owned(),
            skew: arrival.skew,
            error: arrival.error,
            came,
        }
    }

    /// Returns the ranks of an arrival in their order, each with the time of its begin and the error of that.
    pub(super) fn order(&self, seen: &Seen, arrival: &Arrival) -> Vec<(usize, u64, u64)> {
        let call = &seen.of.calls[arrival.call];
        let mut all: Vec<(usize, u64, u64)> = { seen.of.members.iter().zip(&call.of) }
            .filter_map(|(member, n)| {
                let call = &self.job.ranks[member.rank].calls[(*n)?];
                Some((member.rank, call.begin?, call.error))
            })
            .collect();
        all.sort_by_key(|(_, begin, _)| *begin);
        all
    }
}
