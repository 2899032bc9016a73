//! Context switches as the driver records them: the context that had the graphics and compute engine of a GPU at each time. No I/O, no
//! clock, no panic.
//!
//! The driver writes records of 32 bytes into an event buffer (NV_EVENT_BUFFER, cl90cd.h and cl90cdfecs.h). A context's slice begins
//! when its state is restored, and ends when its state is saved.
//!
//! - [`mod@record`]: one record, from its bytes; the number of records that are missing before it.
//! - [`told`]: news of a GPU: records, gaps between them, and processes that have ended.
//! - [`residence`]: sums of slices; [`period`]: sums by process, with the missing parts.
//! - [`turns`]: the parts of any stretch of time that were a process's turn.
//! - [`slices`]: single slices, from the windows of a recording ([`crate::record::Switches`]).
//!
//! ```
//! use nvcap_decode::switches::{Residence, Switch, Tag, Who};
//!
//! // Process 4711 has the engine from 1,000 to 5,000 ns.
//! let of = |tag, time_ns| Switch { tag, pid: 4711, time_ns, ..Switch::default() };
//! let mut residence = Residence::new(0);
//! residence.take(&of(Tag::BEGIN, 1_000));
//! residence.take(&of(Tag::END, 5_000));
//! let sums = residence.sums(10_000);
//! assert_eq!(sums[0].holders[&(Who::Process(4711), 0)].resident_ns, 4_000);
//! ```

#[doc(hidden)]
pub mod made_up;
pub mod period;
pub mod record;
pub mod residence;
pub mod slices;
pub mod told;
pub mod turns;

pub use period::{EngineView, GpuView, Period};
pub use record::{Instance, RECORD_LEN, Sequence, Switch, Tag, Who};
pub use residence::{EngineSums, Held, Residence};
pub use slices::{Slice, SliceTime, Slices};
pub use told::{Reading, Scope, Told};
pub use turns::Turns;
