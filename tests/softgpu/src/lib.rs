//! The software GPU: lays out memory, forms submissions and rings doorbells as libcuda does, with no GPU.
//!
//! Two halves. The content of submissions is pure and follows from a seed alone, so that a test knows what a tracer must
//! have seen: [`form`] forms operations with nvcap's encoder, [`stream`] forms submissions, [`plan`] assigns them to
//! channels. The other half submits: [`layout`] has the addresses, [`memory`] maps them, [`store`] holds the two doorbell
//! instructions, [`device`] gets everything from the driver if there is one, [`log`] keeps who rang when, [`in_step`] waits for those who trace it, [`run`] does the work with threads, forks and
//! execs, and [`timed`] also runs what is submitted, in the time that a GPU takes, with collectives that wait for other processes ([`peers`]). The pure half does no I/O.

pub mod calls;
pub mod clients;
pub mod clock;
pub mod device;
pub mod doorbells;
pub mod engine;
pub mod form;
pub mod hang;
pub mod in_step;
pub mod kernels;
pub mod layout;
pub mod log;
pub mod mapping;
pub mod measured;
pub mod memory;
pub mod peers;
pub mod plan;
pub mod rm;
pub mod rng;
pub mod run;
pub mod sampling;
mod say;
pub mod served;
mod step;
pub mod store;
pub mod stream;
pub mod switches;
pub mod timed;
pub mod truth;
mod waits;
