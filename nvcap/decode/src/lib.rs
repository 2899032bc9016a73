//! The command streams that NVIDIA's userspace driver submits to the GPU: modelled and decoded.
//!
//! A program hands work to the GPU without a system call. It writes *methods*, which are writes to registers of an engine, into
//! memory (the *pushbuffer*), puts an *entry* that points to them into the ring of a *channel*, and rings a *doorbell*. This
//! crate says what such bytes mean: the methods by name, and the launches, copies, semaphores and inline writes that they
//! make up. Who submitted them, and what memory an address lies in, it knows from the driver's calls.
//!
//! It is the lowest crate of the [`nvcap`](https://github.com/nvcap/nvcap) program, which captures the streams of running processes.
//!
//! ```
//! use nvcap_decode::decode::{Decoded, pushbuffer};
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
//! | the rings of a process that hangs | [`hang::analyse`] |
//! | single words: ring entries, method headers | [`wire`] |
//! | a recording, a capture or a log of the driver's calls | the crate `nvcap-recording`, which gives [`record::Record`]s |
//! | records to be decoded, counted and shown | the crate `nvcap-show`: `pipeline::Pipeline`, with the sinks of `output` |
//!
//! # The way of the data
//!
//! ```text
//! source ── Record ──> driver model (who) ──> decoder (what) ── Event ──> sinks
//! ```
//!
//! [`record`] has the raw facts, [`driver`] makes clients, memory objects and channels of them, [`decode`] makes
//! [`Event`](decode::event::Event)s, and the [`ledger`] states what was captured and what is missing. Nothing here does I/O or
//! reads a clock, and nothing panics, whatever the bytes.
//!
//! # Features
//!
//! | feature | meaning |
//! | --- | --- |
//! | `serde` | `Serialize` for what the decoder, the driver model and `hang` say |
//! | `zstd` | images of code that are compressed by zstd |
//!
//! # What stays
//!
//! Enums and structs that will grow are `#[non_exhaustive]`. Options are structs with a `Default`: name the fields that you set,
//! and end with `..Default::default()`. `api.txt` beside this crate lists the whole interface.

pub mod cubin;
pub mod decode;
pub mod driver;
pub mod glob;
pub mod gpu_time;
pub mod hang;
pub mod ledger;
pub mod record;
mod tables;
pub mod wire;
