//! The interface between the BPF programs and the user program: records, shared state and limits; and the words of ring
//! [`entry`]s, which both sides parse.
//!
//! Every type is `repr(C)`, has no unnamed padding and is valid for any bit pattern, so that the user program may read it from
//! ring-buffer bytes. The BPF programs write records, and the user program reads them. Both write the state of channels and
//! sites; each field says who may write it.
#![no_std]

pub mod entry;
mod record;
mod shared;

pub use record::*;
pub use shared::*;

/// Number of registers in [`Site::regs`]. The index is the number in instructions: on x86-64 rax rcx rdx rbx rsp rbp rsi rdi
/// r8..r15, on aarch64 x0..x30 and sp.
pub const REGS: usize = if cfg!(nvcap_arch = "aarch64") { 32 } else { 16 };
/// Distance from the trap of a write watchpoint to the end of the store, bytes. x86-64 traps behind the store. aarch64 traps
/// before it: its four bytes are still to be executed, and the doorbell has not been rung. Everywhere else a store is identified
/// by its end.
pub const TRAP_TO_END: u64 = if cfg!(nvcap_arch = "aarch64") { 4 } else { 0 };
/// GPFIFO entries carried by one [`Submit`].
pub const BATCH: usize = 16;
/// Sizes of record payloads. A payload is stored in the smallest size that holds it.
pub const CLASSES: [usize; 6] = [64, 256, 2048, 8192, 32768, 65536];
/// The most pushbuffer bytes of one [`Data`]. Longer segments come in several.
pub const CHUNK: usize = 65536;
/// The most channels that can be known at the same time.
pub const MAX_CHANNELS: u32 = 8192;
/// The most address spaces (processes between two execs) that can be known at the same time.
pub const MAX_SPACES: u32 = 8192;
/// The most bytes of an ioctl's nested parameters that are copied.
pub const MAX_NESTED: usize = 16384;
/// Number of code bytes in a [`Site`] before the trap's address, and as many after it.
pub const CODE: usize = 32;
/// "No token": the register from which the store takes the token is not known yet.
pub const NO_TOKEN: u32 = u32::MAX;

/// Number of looks at a channel of which one reads GP_GET (a power of two): see `read.rs`, `positions`.
pub const GET_EVERY: u64 = 16;
/// "Not read": in [`Submit::get`].
pub const NO_GET: u32 = u32::MAX;

/// The most bytes of a stack that are taken.
pub const MOST_STACK: u32 = 65536 - 4096;

/// The most Python frames of a stack.
pub const MOST_PYTHON: usize = 64;
/// The most bytes of a Python frame that are read.
pub const MOST_PYTHON_SPAN: u32 = 128;
/// Bit of [`PythonFrame::code`]; see there.
pub const PYTHON_ENTRY: u64 = 1 << 63;
/// In [`PythonWalk`]: the version has no such field.
pub const NO_FIELD: u32 = u32::MAX;
/// Number of places for threads of Pythons, a power of two.
pub const PYTHON_THREADS: u32 = 1 << 14;
/// Number of places, from [`python_place`] on, at which a thread may be.
pub const PYTHON_PROBES: u32 = 8;

/// Returns the first place at which a thread may be in the table of threads.
#[inline(always)]
pub const fn python_place(tid: u32) -> u32 {
    tid.wrapping_mul(0x9e37_79b1) >> 18
}

/// Number of words of memory around each register that a [`Windows`] holds.
pub const WINDOW: usize = 128;
/// Number of words of a [`WINDOW`] that lie before the register's address.
pub const WINDOW_BEFORE: usize = 16;
/// The most [`Windows`] that are sent for one channel.
pub const MAX_WINDOWS: u32 = 24;
/// Number of reads of GP_PUT in a row that must equal the process's own copy before the copy is trusted.
pub const AGREED: u32 = 16;
/// In [`SharedChannel::agreed`]: the copy was wrong once and is never trusted again.
pub const NEVER: u32 = u32::MAX;
/// In [`SiteValue::own`]: the place of the process's own copy of GP_PUT is not known.
pub const NO_OWN: u32 = u32::MAX;
/// The most values of GP_PUT in one [`Scan`]. Further values are in further records.
pub const PUTS: usize = 32;
/// Number of doorbells in a row, of a token of [`trust::CONCLUDED`], at which its channel had nothing new; after them all
/// channels are scanned.
pub const MISSES: u32 = 4;
