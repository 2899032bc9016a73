//! Reading a traced process from outside: its mappings, its memory, its rings. No BPF, no stop.

pub mod chip;
pub mod dump;
pub mod elsewhere;
pub mod find;
mod history;
pub mod look;
#[cfg(test)]
mod made_up;
pub mod maps;
pub mod notifier;
pub mod places;
pub mod process;
pub mod ring;
mod seek;
pub mod seen;
pub mod snapshot;
pub mod tasks;
pub mod tokens;
