//! Tests in step: nvcap publishes how far it has read, and the software GPU goes on only that far. The software GPU thus waits for a slow
//! nvcap.
//!
//! nvcap and the program share a file, named by the environment variable [`FILE`]. The file is a table of the last value that was read of
//! each ring, timestamp and word. The module is a part of nvcap only with the feature `in-step`, in a build with debug assertions: a
//! release ignores the variable. The program queries with [`Table::told`] and waits with [`Table::wait`]; nvcap publishes with [`tell`].
//! The table holds atomic words and has no locks, because either side may be killed at any moment.
//!
//! In the other direction, the program publishes when it writes a timestamp ([`Table::at_once`]), and nvcap repeats a read during which
//! such a write came ([`apart`]). The reason: a program may lose its processor between its look at the clock and its write, and a GPU
//! cannot.

mod table;
mod tell;

pub use table::{ARMED, FILE, GUARD, Kind, NAMED, Table, Told};
pub use tell::{PATIENCE_NS, Rings, apart, armed, begin, end, is_on, tell};
