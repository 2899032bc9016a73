//! Operations, one file for each kind: they turn the values of a subchannel's methods into the command that they give the GPU.
//!
//! This module only reads registers and data words; the decoder decides the order of events.

pub(super) mod copy;
pub(super) mod driver_kernels;
pub(super) mod inline;
pub(super) mod launch;
pub(super) mod other;
pub(super) mod semaphore;
