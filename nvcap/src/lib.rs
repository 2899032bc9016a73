//! The command streams that NVIDIA's userspace driver submits to the GPU: read, modelled, decoded.
//!
//! A program hands work to the GPU without a system call. It writes *methods*, which are writes to registers of an engine, into
//! memory (the *pushbuffer*), puts an *entry* that points to them into the ring of a *channel*, and rings a *doorbell*. This
//! library says what such bytes mean: the methods by name, and the launches, copies, semaphores and inline writes that they
//! make up. Who submitted them, and what memory an address lies in, it knows from the driver's calls.
//!
//! It is the library of the [`nvcap`](https://github.com/nvcap/nvcap) program, which captures the streams of running processes.
//!
//! ```
//! use nvcap::decode::{Decoded, pushbuffer};
//!
//! // One method of the copy class of Hopper (clc8b5.h): LAUNCH_DMA with its data in the header.
//! let bytes = 0x8182_80c0_u32.to_le_bytes();
//! let found = pushbuffer(&bytes, 0xc8b5);
//! let Decoded::Method(write) = &found[0] else { panic!() };
//! assert_eq!((write.id().to_string(), write.data), ("LAUNCH_DMA".to_owned(), 0x182));
//! ```
//!
//! # Where to begin
//!
//! | you have | begin with |
//! | --- | --- |
//! | bytes of a pushbuffer | [`decode::pushbuffer`] |
//! | submissions of channels | [`decode::Decoder`], which keeps what one leaves for the next |
//! | a class and a method's number, or a QMD | [`decode::explain`] |
//! | calls of the driver | [`driver::Model`] |
//! | a capture or a log of the driver's calls | [`source::file`], which gives [`record::Record`]s |
//! | the rings of a process that hangs | [`hang::analyse`] |
//! | single words: ring entries, method headers | [`wire`] |
//! | records to be decoded, counted and shown | `pipeline::Pipeline`, with the sinks of `output` |
//!
//! # The way of the data
//!
//! ```text
//! source ── Record ──> driver model (who) ──> decoder (what) ── Event ──> sinks
//! ```
//!
//! [`record`] has the raw facts, [`driver`] makes clients, memory objects and channels of them, [`decode`] makes
//! [`Event`](decode::event::Event)s, and the [`ledger`] states what was captured and what is missing. None of these does I/O or
//! reads a clock, and none panics, whatever the bytes.
//!
//! # Features
//!
//! Without any (`default-features = false`) the library is the rooms linked above, and needs no kernel and no root.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `serde` | `Serialize` for what the decoder, the driver model and `hang` say |
//! | `capture` | `capture`: recordings (pcapng files of records), written and read |
//! | `output` | `output`: text, JSON, statistics, filters; `pipeline`: from records to sinks |
//! | `xz`, `zstd` | files that are compressed so (gzip needs no feature) |
//! | `cli`, `trap`, `parquet`, `serve`, `otlp`, `bench` | the program, its live tracing, its Parquet files, its metrics, and sending them, its measurements of the GPU; nothing that a library's user can call |
//!
//! # What stays
//!
//! Enums and structs that will grow are `#[non_exhaustive]`. Options are structs with a `Default`: name the fields that you set,
//! and end with `..Default::default()`. `nvcap/api.txt` in the repository lists the whole interface.

// A standard stream that is full or closed must not end a trace: `output::writer` and `output::message` know what to do then.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// What is `pub` is a part of the library's interface; what another room needs is `pub(crate)`.
#![cfg_attr(feature = "trap", warn(unreachable_pub))]
#![cfg_attr(
    not(feature = "trap"),
    allow(
        dead_code,
        unused_imports,
        reason = "rooms have items that only the program's rooms call, which this build leaves out"
    )
)]

#[cfg(feature = "capture")]
pub mod capture;
#[cfg(feature = "output")]
mod cubin;
pub mod decode;
pub mod driver;
pub mod hang;
pub mod ledger;
#[cfg(feature = "capture")]
mod pcapng;
mod read_ahead;
pub mod record;
pub mod source;
mod tables;
#[cfg(test)]
#[allow(
    dead_code,
    reason = "builds with few features have few tests that wait"
)]
mod waiting;
pub mod wire;

#[cfg(feature = "output")]
mod blocked_write;
#[cfg(feature = "output")]
mod glob;
#[cfg(feature = "output")]
mod gpu_time;
#[cfg(feature = "output")]
pub mod output;
#[cfg(feature = "output")]
pub mod pipeline;

#[cfg(all(feature = "bench", target_os = "linux"))]
mod bench;
#[cfg(feature = "cli")]
mod cli;
#[cfg(feature = "cli")]
mod code;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod counts;
#[cfg(feature = "cli")]
mod diff;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod dump;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod enrich;
#[cfg(feature = "cli")]
mod export;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod host;
#[cfg(all(feature = "in-step", target_os = "linux"))]
#[doc(hidden)]
pub mod in_step;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod procfs;
#[cfg(all(feature = "serve", target_os = "linux"))]
mod serve;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod stacks;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod study;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod top;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod watch;

/// The `nvcap` program, for its main.rs alone.
#[cfg(feature = "cli")]
#[doc(hidden)]
pub use cli::main;

/// What the software GPU calls of `nvcap bench`. No part of the interface: it changes without notice.
#[cfg(all(feature = "bench", target_os = "linux"))]
#[doc(hidden)]
pub mod raw_bench {
    pub use crate::bench::gpu::Submission;
    pub use crate::bench::report::{submissions, text};
    pub use crate::bench::rm::{Access, Error, Mapping, Os};
    pub use crate::bench::{CopyEngine, Measured, Options, copy_engines, measure};
}

/// What nvcap's own integration tests and fuzz targets call of the rooms that are private. No part of the interface: it changes without notice.
#[cfg(feature = "trap")]
#[doc(hidden)]
pub mod internals {
    pub use crate::capture::recording_with;
    pub use crate::cubin::{
        Bank, Function as CodeFunction, Image, MOST_READ, Param, beginnings, compare,
        control::Control,
        fatbin::{Content, Entry, NotUnpacked, Packing, entries},
    };
    pub use crate::dump::{DumpOptions, look};
    pub use crate::enrich::images::{Found, Part, search_in};
    pub use crate::output::arguments::{Argument, arguments};
    pub use crate::procfs::maps::{Line, lines};
    pub use crate::source::channels_file::ChannelsFile;
    pub use crate::source::memory::{captured::SnapshotOptions, scan::Effort, snapshot::take};
    pub use crate::source::observe::session::{ObserveOptions, Session};
    pub use crate::source::run::Source;
    pub use crate::source::trap::assemble::{Assembler, Gathered, Raw, parse};
    pub use crate::source::trap::btf::{Btf, Function};
    pub use crate::wire::peek::Peek;
}
