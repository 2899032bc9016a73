//! Reading of a process from outside: its mappings, its memory, its rings. It uses no BPF, and does not stop the process.
//!
//! - [`maps`], [`devices`], `places`: the process's mappings, and the driver's among them.
//! - [`scan`]: finding its rings; [`ring`]: reading their entries and bytes.
//! - [`snapshot`], [`captured`], `channel_snapshot`, `history`: one look at all its channels, as far back as their rings reach.
//! - [`decoded`]: the entries of such a look, decoded, and the semaphores in them.
//! - [`feeds`]: the engine that a channel feeds, found from the entries of its ring.
//! - [`probe`]: one look at its mappings, channels and positions.
//! - [`notifier`], `tokens`: error notifiers, and the work-submit tokens in them.
//! - `va_inference`: pushbuffers whose addresses in the process are not the GPU's.
//! - [`chip`]: the GPUs of this machine.

pub mod captured;
mod channel_snapshot;
pub mod chip;
pub mod decoded;
pub mod devices;
#[cfg(test)]
mod fake_memory;
pub mod feeds;
mod history;
pub mod maps;
pub mod notifier;
pub(crate) mod places;
pub mod probe;
pub mod reuse;
pub mod ring;
pub mod scan;
pub mod snapshot;
pub mod tokens;
pub(crate) mod va_inference;
