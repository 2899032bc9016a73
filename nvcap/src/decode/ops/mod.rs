//! Operations, one file a kind: from the values of a subchannel's methods to what the GPU is told to do.
//!
//! Everything here reads registers and data words; the order of events is the decoder's business.

pub(super) mod copy;
pub(super) mod driver_kernels;
pub(super) mod inline;
pub(super) mod launch;
pub(super) mod other;
pub(super) mod semaphore;
