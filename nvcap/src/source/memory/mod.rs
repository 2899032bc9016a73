//! Reading a traced process from outside: its mappings, its memory, its rings. No BPF, no stop.

pub mod captured;
mod channel_snapshot;
pub mod chip;
pub mod devices;
#[cfg(test)]
mod fake_memory;
mod history;
pub mod maps;
pub mod notifier;
pub mod places;
pub mod probe;
pub mod ring;
pub mod scan;
pub mod snapshot;
pub mod tokens;
pub mod va_inference;
