//! The measurements. A time of the GPU is the time between two releases in one submission, with the measured work between them. A time of
//! the processor is taken by CLOCK_MONOTONIC: from a store to the moment at which its effect is seen.

mod copies;
mod inline;
mod kernel;
mod latencies;

pub(crate) use copies::{Buffers, bind as bind_copy, copies, warm_up};
pub(crate) use inline::{bind as bind_compute, inline};
pub(crate) use kernel::kernel;
pub(crate) use latencies::{accesses, latencies};

use super::error::Error;

/// The semaphores of a submission: its start, its end, and a semaphore that the processor releases.
const START: usize = 0;
const END: usize = 1;
const GATE: usize = 2;

/// Number of runs before the runs that count.
const WARM_UP: usize = 2;

/// Times of several runs of one measurement.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Times {
    /// The mean of the middle half of the runs, ns: of the fastest pass but one; with fewer than three passes, of the fastest.
    pub ns: f64,
    /// The shortest time, ns.
    pub min_ns: f64,
    /// The longest time, ns.
    pub max_ns: f64,
    /// Number of runs.
    pub runs: usize,
    /// The times of the two fastest passes, ns.
    #[serde(skip)]
    fastest: [f64; 2],
    #[serde(skip)]
    passes: usize,
}

impl Times {
    /// Summarises these times in ns; `None` without any.
    pub(crate) fn of(mut all: Vec<f64>) -> Option<Self> {
        all.sort_by(f64::total_cmp);
        // The GPU's clock counts in steps (32 ns on Hopper), so a median would jump; a few runs are disturbed, so a mean
        // would drift.
        let middle = &all[all.len() / 4..all.len() - all.len() / 4];
        let ns = middle.iter().sum::<f64>() / middle.len() as f64;
        Some(Self {
            min_ns: *all.first()?,
            max_ns: *all.last()?,
            runs: all.len(),
            ..Self::one(ns)
        })
    }

    /// Makes the times of one run.
    pub fn one(ns: f64) -> Self {
        Self {
            ns,
            min_ns: ns,
            max_ns: ns,
            runs: 1,
            fastest: [ns, f64::INFINITY],
            passes: 1,
        }
    }

    /// Adds another pass over the same work. Disturbances add time, so that a fast pass counts; but a single pass may be fast by chance.
    fn join(&mut self, other: &Self) {
        let [first, second] = self.fastest;
        self.fastest = [first.min(other.ns), second.min(first.max(other.ns))];
        self.passes += 1;
        self.ns = self.fastest[usize::from(self.passes >= 3)];
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.runs += other.runs;
    }
}

/// Measures `runs` calls, each of which returns its own time in ns.
fn repeat(runs: usize, mut once: impl FnMut() -> Result<f64, Error>) -> Result<Times, Error> {
    for _ in 0..WARM_UP {
        once()?;
    }
    let all: Result<Vec<f64>, Error> = (0..runs.max(1)).map(|_| once()).collect();
    Times::of(all?).ok_or(Error::Nothing)
}

/// A transfer of some size.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Point {
    /// Number of its bytes.
    pub bytes: u64,
    /// Times of its runs.
    #[serde(flatten)]
    pub times: Times,
    /// Rate, 10^9 bytes a second.
    pub gb_per_s: f64,
}

impl Point {
    /// Makes the point of a transfer of `bytes` with these times, and computes its rate.
    pub fn new(bytes: u64, times: Times) -> Self {
        let gb_per_s = bytes as f64 / times.ns;
        Self {
            bytes,
            times,
            gb_per_s,
        }
    }
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Host to device.
    H2D,
    /// Device to host.
    D2H,
    /// Device to device.
    D2D,
    /// From the pushbuffer to the device.
    Inline,
}

impl Way {
    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::H2D => "H2D",
            Self::D2H => "D2H",
            Self::D2D => "D2D",
            Self::Inline => "inline",
        }
    }
}

/// Transfers of growing size, by one engine in one way.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Series {
    /// The engine: `CE2`, `compute`.
    pub engine: String,
    /// NV2080_ENGINE_TYPE.
    pub engine_type: u32,
    /// Direction of the transfers.
    pub way: Way,
    /// Times of two releases with nothing between them, which are a part of every time.
    pub nothing: Times,
    /// Points by size.
    pub points: Vec<Point>,
}

impl Series {
    /// Adds another pass over the same transfers.
    pub(crate) fn join(&mut self, other: &Self) {
        self.nothing.join(&other.nothing);
        for (point, other) in self.points.iter_mut().zip(&other.points) {
            point.times.join(&other.times);
            *point = Point::new(point.bytes, point.times.clone());
        }
    }
}

/// A time that belongs to no transfer.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Latency {
    /// Its name, one word.
    pub name: &'static str,
    /// Description of what was measured.
    pub what: String,
    /// Times of its runs.
    #[serde(flatten)]
    pub times: Times,
}

impl Latency {
    /// Adds another pass over the same work.
    pub(crate) fn join(&mut self, other: &Self) {
        self.times.join(&other.times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_half_counts() {
        let times = Times::of(vec![1.0, 10.0, 12.0, 1000.0]).unwrap();
        assert_eq!((times.ns, times.min_ns, times.max_ns), (11.0, 1.0, 1000.0));
        assert_eq!(Times::of(vec![5.0]).unwrap().ns, 5.0);
        assert_eq!(Times::of(vec![]), None);
    }

    #[test]
    fn the_fastest_pass_but_one_counts() {
        let mut times = Times::of(vec![30.0, 31.0]).unwrap();
        times.join(&Times::of(vec![20.0, 22.0]).unwrap());
        let all = (times.ns, times.min_ns, times.max_ns, times.runs);
        assert_eq!(all, (21.0, 20.0, 31.0, 4));
        times.join(&Times::of(vec![25.0]).unwrap());
        assert_eq!((times.ns, times.runs), (25.0, 5));
        times.join(&Times::of(vec![24.0]).unwrap());
        times.join(&Times::of(vec![7.0]).unwrap());
        assert_eq!((times.ns, times.min_ns), (21.0, 7.0));
    }
}
