//! What crosses between the BPF programs and the user program: records, shared state, limits; and the words of ring
//! [`entry`]s, which both take apart.
//!
//! Everything is `repr(C)`, without padding that is not named, and valid for any bit pattern, so that the user
//! program may read it from ring-buffer bytes. The BPF programs write it; the user program reads it. Channel and
//! site state is written by both: who may write what is said at each field.
#![no_std]

pub mod entry;
mod record;
mod shared;

pub use record::*;
pub use shared::*;

/// Bytes of registers' names that index [`Site::regs`]: the x86 instruction encoding's own numbering
/// (rax rcx rdx rbx rsp rbp rsi rdi r8..r15); on aarch64 x0..x15.
pub const REGS: usize = 16;
/// GPFIFO entries carried by one [`Submit`].
pub const BATCH: usize = 16;
/// The sizes of record payloads: a payload goes into the smallest that holds it.
pub const CLASSES: [usize; 6] = [64, 256, 2048, 8192, 32768, 65536];
/// The most pushbuffer bytes one [`Data`] carries; longer segments come in several.
pub const CHUNK: usize = 65536;
/// Channels that can be known at once.
pub const MAX_CHANNELS: u32 = 8192;
/// Address spaces (processes between two execs) that can be known at once.
pub const MAX_SPACES: u32 = 8192;
/// The most bytes copied of an ioctl's nested parameters.
pub const MAX_NESTED: usize = 16384;
/// Code bytes sent with a [`Site`]: this many before the trap's address and as many after it.
pub const CODE: usize = 32;
/// "No token": the store's register is not known yet.
pub const NO_TOKEN: u32 = u32::MAX;

/// GP_GET is read at every so many looks at a channel (a power of two): see `read.rs`, `positions`.
pub const GET_EVERY: u64 = 16;
/// "Not read": in [`Submit::get`].
pub const NO_GET: u32 = u32::MAX;

/// Words that a [`Windows`] shows of the memory around each register, and how many of them lie before it.
pub const WINDOW: usize = 128;
/// As [`WINDOW`]: those before the register's address.
pub const WINDOW_BEFORE: usize = 16;
/// [`Windows`] that one channel sends at most.
pub const MAX_WINDOWS: u32 = 24;
/// Reads of GP_PUT in a row that must have found what the process's own copy said before that copy is believed.
pub const AGREED: u32 = 16;
/// In [`SharedChannel::agreed`]: the copy was wrong once and is never believed again.
pub const NEVER: u32 = u32::MAX;
/// In [`SiteValue::own`]: not known where the process keeps its own copy of GP_PUT.
pub const NO_OWN: u32 = u32::MAX;
