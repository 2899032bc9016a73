//! Ranks of a job that hold up others: collectives matched over ranks, the rank that came last to each, the others' waits, and what the last one did
//! instead.
//!
//! - `collect`: a sink that keeps each rank's work and its calls of collectives.
//! - `of_profile`: the same of traces of torch.profiler.
//! - `job`: what was collected.
//! - `matching`: calls of one communicator in each rank, matched by their order and checked by their times.
//! - `arrivals`: who came last, and by how much.
//! - `causes`: work of the last one since the collective before, beside that of the others.
//! - `shares`: each rank's time by what it went to.
//! - `analysis`: all of it, and the verdict.
//! - `drawn`: single calls.
//! - `unmet`: ranks and patterns that fit nothing.
//! - `text`, `json`: how it is shown.
//!
//! Everything but `collect` and `of_profile` knows neither records nor events nor a clock: times are numbers.

mod analysis;
mod arrivals;
mod causes;
mod collect;
mod drawn;
mod earlier;
mod job;
mod json;
pub(crate) mod kinds;
mod matching;
mod of_profile;
mod shares;
mod text;
mod unmet;

#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

pub use analysis::Analysis;
pub use collect::{Collector, Gathered, Options, RankOf, Works};
pub use drawn::{Came, Drawn};
pub use of_profile::OfProfile;
