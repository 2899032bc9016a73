//! Reading a traced process from outside: its mappings, its memory, its rings. No BPF, no stop.

pub(crate) mod captured;
mod channel_snapshot;
pub(crate) mod chip;
pub(crate) mod devices;
#[cfg(test)]
mod fake_memory;
mod history;
pub(crate) mod maps;
pub(crate) mod notifier;
pub(crate) mod places;
pub(crate) mod probe;
pub(crate) mod ring;
pub(crate) mod scan;
pub(crate) mod snapshot;
pub(crate) mod tokens;
pub(crate) mod va_inference;
