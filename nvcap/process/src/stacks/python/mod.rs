//! Python frames of a process's threads, read from outside through the process's memory. It uses no ptrace, stops nothing, and runs no code
//! in the process.
//!
//! CPython keeps the needed data in plain structures. The variable `_PyRuntime` leads to the interpreters, an interpreter to
//! its thread states, a thread state to its newest frame, and each frame to its caller's frame and to its code object. The code
//! object has the function's name, the file's name, and a table from instructions to lines.
//!
//! The offsets of the fields differ between minor versions (`offsets`). CPython 3.13 and later publish them in the process;
//! 3.10 to 3.12 do not.
//!
//! The process goes on running while it is read, so any structure may be gone or half written. Everything that is read is checked: objects
//! by their type, instructions by the size of their code, and a chain of frames by several walks. Data that fails a check is left out;
//! nothing is guessed.

mod elf;
pub(crate) mod find;
pub mod frames;
mod lines;
pub mod objects;
pub(crate) mod offsets;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
pub mod threads;

use std::fmt;

use offsets::Offsets;

/// The CPython of a process: its address, and the offsets of its structures' fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Python {
    /// Version of the CPython.
    pub version: Version,
    /// Address of `_PyRuntime`.
    runtime: u64,
    /// Addresses of the type objects against which types are checked.
    types: Types,
    /// Offsets of the fields of the structures.
    offsets: Offsets,
}

/// Addresses of type objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Types {
    /// `PyCode_Type`.
    code: u64,
    /// `PyUnicode_Type`.
    unicode: u64,
    /// `PyBytes_Type`.
    bytes: u64,
}

/// A version of CPython.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Major version: 3.
    pub major: u8,
    /// Minor version: 10 to 14.
    pub minor: u8,
    /// Patch release; `None` for 3.10, which does not show it.
    pub patch: Option<u8>,
    /// True if built without the global interpreter lock.
    pub free_threaded: bool,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if let Some(patch) = self.patch {
            write!(f, ".{patch}")?;
        }
        f.write_str(if self.free_threaded { "t" } else { "" })
    }
}

impl Python {
    /// Returns the offsets of the structures' fields. A walk elsewhere (in a BPF program) needs their `walk`.
    pub fn offsets(&self) -> &Offsets {
        &self.offsets
    }
}
