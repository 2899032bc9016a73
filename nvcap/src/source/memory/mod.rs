//! Reading a traced process from outside: its mappings, its memory, its rings. No BPF, no stop.

pub mod find;
pub mod look;
#[cfg(test)]
mod made_up;
pub mod maps;
pub mod process;
pub mod ring;
mod seek;
