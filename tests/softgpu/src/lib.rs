//! The software GPU: memory laid out and submissions formed and rung as libcuda does it, with no GPU.
//!
//! Two halves. What is submitted is pure and follows from a seed alone, so that a test can say what a tracer must
//! have seen: [`form`] forms operations with nvcap's encoder, [`stream`] forms submissions, [`plan`] says which channel gets which. How it is
//! submitted is the other half: [`layout`] says where things lie, [`memory`] maps them, [`store`] holds the two
//! doorbell instructions, [`device`] asks the driver for everything where there is one, [`run`] does the work with threads, forks and execs. The pure half does no I/O.

pub mod device;
pub mod form;
pub mod hang;
pub mod layout;
pub mod memory;
pub mod plan;
pub mod rng;
pub mod run;
pub mod store;
pub mod stream;
