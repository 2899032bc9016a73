//! Program counters of a running process, sampled by the GPU itself. nvcap is a client of the driver, with a profiler object that is bound to the
//! context of that process, and reads the stream of samples (`nvcap sample`).
//!
//! Nothing is written into the process, its memory or its command stream, and the process is not stopped. Only registers of the performance
//! monitors are set, by a programme that was seen in a profiler's own calls ([`nvcap_decode::samples::Programme`]); clocks and power features stay
//! as they are. The samples begin and end with a method (PM_TRIGGER) in a submission of nvcap's own. However nvcap ends, the driver frees all of
//! this with the client's file.

mod context;
mod error;
mod handles;
mod session;

pub use context::Context;
pub use error::Error;
pub use handles::{Candidates, contexts, of_candidates};
pub use session::{Options, STREAM_LEN, Session, Stream};
