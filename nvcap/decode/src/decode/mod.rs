//! The decoder: bytes in, values out. No I/O, no clock, no kernel, no panic on any input.
//!
//! A pushbuffer is a sequence of method writes, and the meaning of a method depends on the class that SET_OBJECT has bound
//! to its subchannel. Most methods store a value; some trigger an operation with the stored values: a copy, a launch, a
//! semaphore's release. The decoder keeps the bindings and the values of each channel, and gives the method writes and the
//! *operations* that they make up.
//!
//! [`pushbuffer()`] decodes bare bytes. A [`Decoder`] takes the submissions of many channels in order: bindings, unfinished data and writes
//! to GPU memory of one submission carry over to the next, as they do on the GPU.
//!
//! The module builds on [`crate::wire`], which reads ring entries and method headers. From the bottom up, each part usable by itself:
//!
//! - [`classes`]: the name of every method of every engine class, and the meaning of its bits.
//! - [`qmd`], [`view`]: the structure that describes a grid launch, and the launch itself.
//! - [`shadow`]: writes to GPU memory that were seen in the stream.
//! - [`Decoder`]: the whole decoder, from submissions to [`event::Event`]s.
//! - [`encode`]: the inverse, for tests and for programs that submit without a GPU.
//! - [`explain`]: the explanation in full of one method write or one QMD.
//!
//! A submission, event by event:
//!
//! ```
//! use nvcap_decode::decode::{DecodeOptions, Decoder, event::Body};
//! use nvcap_decode::record::{At, ChannelId, How, Segment, Submission};
//!
//! // SET_OBJECT HOPPER_DMA_COPY_A on subchannel 4, then LAUNCH_DMA as immediate data.
//! let words: [u32; 3] = [0x2001_8000, 0xc8b5, 0x8182_80c0];
//! let segment = Segment {
//!     entry: nvcap_decode::wire::entry::segment(nvcap_decode::wire::GpuVa(0x2_0080_0000), 12, false, false, false),
//!     bytes: words.iter().flat_map(|w| w.to_le_bytes()).collect(),
//!     holes: Vec::new(),
//! };
//! let submission = Submission {
//!     at: At { time_ns: 1, pid: 2, tid: 3 },
//!     channel: ChannelId(0),
//!     token: Some(0x10012),
//!     position: 0,
//!     gp_get: None,
//!     prev_put: 0,
//!     gp_put: 1,
//!     ip: None,
//!     doorbell: None,
//!     how: How::Trapped,
//!     late: false,
//!     absent_ns: None,
//!     thread: None,
//!     segments: vec![segment],
//! };
//! let mut decoder = Decoder::new(DecodeOptions::default());
//! let context = decoder.context(&submission, 0);
//! let mut names = Vec::new();
//! decoder.submission(&submission, &context, &(), &mut |event| {
//!     if let Body::Method(write) = event.body {
//!         names.push(write.id().to_string());
//!     }
//! });
//! assert_eq!(names, ["SET_OBJECT", "LAUNCH_DMA"]);
//! ```

mod chips;
mod class_dispatch;
pub mod classes;
mod decoder;
pub mod defaults;
mod driver_writes;
pub mod encode;
mod entries;
pub mod event;
mod evidence;
pub mod explain;
mod graph;
mod inlines;
mod kernels;
mod launches;
mod named_values;
mod ops;
pub mod pcas;
mod pushbuffer;
pub mod qmd;
pub mod qmd_copy;
pub mod shadow;
mod state;
mod submission;
pub mod view;
mod wants;

pub use decoder::{DecodeOptions, Decoder, SHADOW_BYTES};
pub use named_values::Names;
pub use ops::launch::{arguments_at, own_program_at};
pub use pushbuffer::{Decoded, pushbuffer};
pub use state::engine_of;
pub use wants::{Counts, Places, Wants};
