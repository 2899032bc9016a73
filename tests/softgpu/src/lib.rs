//! The software GPU: lays out memory, forms submissions and rings doorbells as libcuda does, with no GPU.
//!
//! Two halves. The content of submissions is pure and follows from a seed alone, so that a test knows what a tracer must
//! have seen: [`form`] forms operations with nvcap's encoder, [`stream`] forms submissions, [`plan`] assigns them to
//! channels. The other half submits: [`layout`] has the addresses, [`memory`] maps them, [`store`] holds the two doorbell
//! instructions, [`device`] gets everything from the driver if there is one, [`run`] does the work with threads, forks and
//! execs. The pure half does no I/O.

pub mod calls;
pub mod device;
pub mod form;
pub mod hang;
pub mod kernels;
pub mod layout;
pub mod memory;
pub mod plan;
pub mod rng;
pub mod run;
pub mod store;
pub mod stream;
