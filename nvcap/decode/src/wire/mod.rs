//! Formats that the hardware and the driver write into memory, word by word. This is the bottom module, which imports nothing of the other
//! modules. Every fact about a format is here once, and all readers of such bytes use it.
//!
//! - [`words`]: little-endian words of a slice of bytes.
//! - [`entry`]: GPFIFO entries, their lengths and the extended base.
//! - [`header`]: method headers.
//! - [`stream`]: headers with their data, across the ends of entries.
//! - `method`: methods with the same address in every class.
//! - `engine`: the engine that a channel feeds, by the classes it binds and the subchannels it uses.
//! - `release`: the semaphore release that ends a submission.
//! - `read_memory`: memory that is read at its own addresses.
//! - `hash`: maps by numbers.
//! - `graph_table`: the tables of the driver's kernels that continue a CUDA graph.
//!
//! A channel's ring holds entries of 8 bytes; each points to a segment of words; the words are method headers, each with its data. A
//! [`Stream`](stream::Stream) reads segments in order, because a method's data may continue in the next one:
//!
//! ```
//! use nvcap_decode::wire::{GpuVa, entry::{self, EntryKind}, stream::{Item, Stream}};
//!
//! // An entry and its three words: two methods from 0x400 on, on subchannel 4.
//! let raw = entry::segment(GpuVa(0x2_0080_0000), 12, false, false, false);
//! let words: [u32; 3] = [0x2002_8100, 0x7f4f, 0x2800_0000];
//! let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
//!
//! let EntryKind::Segment { address, len, .. } = entry::read(raw, 0) else { panic!() };
//! assert_eq!((address, len), (GpuVa(0x2_0080_0000), 12));
//!
//! let mut stream = Stream::default();
//! let mut writes = Vec::new();
//! for item in stream.runs(&bytes, len, &[]) {
//!     let Item::Run(run) = item else { panic!("{item:?}") };
//!     writes.extend(run.writes().map(|w| (run.subchannel, w.address, w.data)));
//! }
//! assert_eq!(writes, [(4, 0x400, 0x7f4f), (4, 0x404, 0x2800_0000)]);
//! ```

pub mod engine;
pub mod entry;
pub mod graph_table;
pub mod hash;
pub mod header;
pub mod method;
pub mod read_memory;
pub mod release;
pub mod stream;
pub mod words;

/// An address that a GPU uses in some address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GpuVa(pub u64);

/// Defines the methods of every address type.
macro_rules! address {
    ($t:ty) => {
        impl std::fmt::Debug for $t {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
        impl std::fmt::Display for $t {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
        impl std::fmt::LowerHex for $t {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::LowerHex::fmt(&self.0, f)
            }
        }
        impl From<$t> for u64 {
            fn from(address: $t) -> Self {
                address.0
            }
        }
        #[cfg(feature = "serde")]
        impl serde::Serialize for $t {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_u64(self.0)
            }
        }
    };
}
pub(crate) use address;
address!(GpuVa);

/// A part of a pushbuffer segment that could not be read. Its bytes are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Offset from the segment's start, bytes.
    pub offset: u32,
    /// Length, bytes.
    pub len: u32,
}
