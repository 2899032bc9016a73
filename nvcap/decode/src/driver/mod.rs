//! The driver model: it turns ioctls and mappings into clients, memory objects, channels and engines, without side effects.
//!
//! A [`Model`] consumes the [`Record`](crate::record::Record)s of one trace in order and answers with [`Change`]s, on which a live tracer
//! must act at once (a doorbell page was mapped, a channel's ring can be read, its token is known). Between records, callers can ask it for
//! the owners of objects, and for the place of a GPU virtual address in the process.
//!
//! ```text
//! Record ──> Model::record ──> Vec<Change>          (live: arm breakpoints, fill the channel table)
//!                │
//!                ├── channels(), gpus(), report()   (tables)
//!                └── resolve(), translations(), place()
//! ```
//!
//! The mapping on which a tracer acts first:
//!
//! ```
//! use nvcap_decode::driver::{Change, Model, ModelOptions};
//! use nvcap_decode::record::{At, CpuVa, Device, Mapping, Record};
//!
//! // 64 KiB of /dev/nvidia0, written only.
//! let doorbells = Mapping {
//!     at: At::of_process(1_000, 4711),
//!     device: Device::Gpu(0),
//!     fd: Some(16),
//!     file: 1,
//!     start: CpuVa(0x7f00_0000_0000),
//!     len: 0x1_0000,
//!     read: false,
//!     write: true,
//!     found: false,
//! };
//! let mut model = Model::new(ModelOptions::default());
//! let changes = model.record(&Record::Mapping(doorbells));
//! let [Change::DoorbellPage { pid, cpu_va, .. }] = &changes[..] else { panic!("{changes:?}") };
//! assert_eq!((*pid, cpu_va.0), (4711, 0x7f00_0000_0000));
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
mod rm_channel;
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

/// Documentation page whose example is compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/driver-model.md")]
struct DocumentationPage;
