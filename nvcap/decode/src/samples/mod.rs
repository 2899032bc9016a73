//! Program counters that the GPU samples by itself: the stream of its PC sampler, the samples by program counter, and the register
//! programme that starts the sampler. No I/O, no clock, no panic.
//!
//! Each streaming multiprocessor (SM) writes one sample per period, of one of its warps, into the stream of the performance monitors (PMA).
//! The samples of all SMs are mixed in the stream, in records of 32 bytes.
//!
//! - [`stream`]: the stream's records and samples; every byte is decoded, or counted as not understood.
//! - [`counts`]: samples by program counter and stall reason.
//! - [`programme`]: the register programme, taken from a profiler's own calls.
//!
//! ```
//! use nvcap_decode::samples::{Sample, Stream};
//!
//! let sample = Sample { sm: 14, pc: 0x7f00_0000_1230, warp: 5, reason: 8, issued: true };
//! let records = nvcap_decode::samples::stream::records(14, &[sample; 28]);
//! let (mut stream, mut read) = (Stream::default(), 0);
//! stream.take(&records, |s| {
//!     assert_eq!(s, sample);
//!     read += 1;
//! });
//! assert_eq!((read, stream.totals().samples), (28, 28));
//! ```

pub mod counts;
pub mod programme;
pub mod stream;

pub use counts::{Counter, Counts};
pub use programme::{Call, Operation, Programme, Step};
pub use stream::{RECORD_LEN, Sample, Stream, Totals, reason};
