//! Tests in step: nvcap tells how far it has read, and the software GPU goes on only that far, so that whoever is slow is waited for.
//!
//! nvcap and the program share a file, named by the environment variable [`FILE`]: a table of what was read last of each ring,
//! time stamp and word. It is a part of nvcap only with the feature `in-step`, in a build with debug assertions: a release ignores the variable. The program looks with
//! [`Table::told`] and waits with [`Table::wait`]; nvcap tells with [`tell`]. The table is full of atomic words and nothing waits for a lock:
//! either side may be killed at any moment.
//!
//! The other way round the program tells when it writes a time stamp ([`Table::at_once`]), and nvcap repeats a read that this came into
//! ([`apart`]): a program may lose its processor between its look at the clock and its write, which no GPU does.

mod table;
mod tell;

pub use table::{ARMED, FILE, GUARD, Kind, NAMED, Table, Told};
pub use tell::{PATIENCE_NS, Rings, apart, armed, begin, end, is_on, tell};
