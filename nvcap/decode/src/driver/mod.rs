//! The driver model: from ioctls and mappings to clients, memory objects, channels and engines. Pure.
//!
//! A [`Model`] consumes the [`Record`](crate::record::Record)s of one trace in order and answers with [`Change`]s, on which
//! a live tracer must act at once (a doorbell page was mapped, a channel's ring can be read, its token is known). Between
//! records it can be asked for owners of objects, and where a GPU virtual address lies in the process.
//! lies in the process.
//!
//! ```text
//! Record ──> Model::record ──> Vec<Change>          (live: arm breakpoints, fill the channel table)
//!                │
//!                ├── channels(), gpus(), report()   (tables)
//!                └── resolve(), translations(), place()
//! ```
//!
//! A library can give a log of the driver's calls to the model, and query it afterwards. This example has the one mapping
//! that a tracer acts on first:
//!
//! ```
//! use nvcap::driver::{Change, Model, ModelOptions};
//! use nvcap::source::file::ioctl_log::{LogOptions, read};
//!
//! // A log's line, as tests/gpu/ioctl_log.c writes them: 64 KiB of /dev/nvidia0, written only.
//! let line = "MMAP /dev/nvidia0 fd=16 addr=0x7f0000000000 len=0x10000 prot=2 flags=0x1 off=0x0 pid=4711 tid=4711\n";
//! let log = read(line.as_bytes(), LogOptions::default())?;
//!
//! let mut model = Model::new(ModelOptions::default());
//! let changes: Vec<Change> = log.records.iter().flat_map(|record| model.record(record)).collect();
//! let [Change::DoorbellPage { pid, cpu_va, .. }] = &changes[..] else { panic!("{changes:?}") };
//! assert_eq!((*pid, cpu_va.0), (4711, 0x7f00_0000_0000));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! It reads no file, no clock and no memory of the traced process; it never panics on any record, and its state is bounded
//! by the objects that the traced processes hold open in the driver (and by fixed limits beyond that). How it works and its
//! grounds: docs/driver-model.md.

mod call;
mod channel;
mod class;
mod facts;
pub mod fields;
mod gpu;
mod life;
mod model;
pub mod names;
mod object;
mod process;
pub mod report;
mod resolve;
mod rm;
mod rm_control;
mod rm_map;
mod space;
mod uvm;
mod version;
mod view;

pub use call::{Call, Family, Structure, Subject, allocation_size, rm_request};
pub use call::{number, uvm_argument_size, uvm_argument_sizes};

pub use facts::{Field, Layout, Named, Range, layout, layouts, newer_release, releases};
pub use gpu::Gpu;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use model::MADE;
pub use model::{Change, Model, ModelOptions, Stats};
pub use object::{Aperture, Caching, ObjectRef, Space};
pub use process::is_doorbell_shape;
pub use resolve::{AddressMap, Resolved, Translation};
pub use version::{NotAVersion, Version};
pub use view::{
    BoundEngine, ChannelView, DoorbellView, GroupView, MappingView, MappingWhat, ObjectView,
};

/// The page's example is compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/driver-model.md")]
struct DocumentationPage;
