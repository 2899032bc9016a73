//! Records of the ring buffer: the BPF programs write them, the user program reads them.

use crate::{BATCH, Birth, CODE, MOST_PYTHON, REGS, WINDOW, WINDOW_BEFORE};

/// Kinds of record, in [`Header::kind`].
pub mod kind {
    /// [`super::Submit`].
    pub const SUBMIT: u16 = 1;
    /// [`super::Data`].
    pub const DATA: u16 = 2;
    /// [`super::Site`].
    pub const SITE: u16 = 3;
    /// [`super::Scan`].
    pub const SCAN: u16 = 4;
    /// [`super::Gap`].
    pub const GAP: u16 = 5;
    /// [`super::IoctlEnter`].
    pub const IOCTL_ENTER: u16 = 6;
    /// [`super::IoctlExit`].
    pub const IOCTL_EXIT: u16 = 7;
    /// [`super::Nested`].
    pub const NESTED: u16 = 8;
    /// [`super::Mmap`].
    pub const MMAP: u16 = 9;
    /// [`super::Munmap`].
    pub const MUNMAP: u16 = 10;
    /// [`super::Life`]: a child process.
    pub const FORK: u16 = 11;
    /// [`super::Life`]: a thread.
    pub const THREAD: u16 = 12;
    /// [`super::Life`]: a new program.
    pub const EXEC: u16 = 13;
    /// [`super::Life`]: a thread ended.
    pub const EXIT: u16 = 14;
    /// [`super::Header`] alone: a kernel module is being loaded.
    pub const MODULE: u16 = 15;
    /// [`super::Windows`].
    pub const WINDOWS: u16 = 16;
    /// [`super::Stack`], in a ring buffer of its own.
    pub const STACK: u16 = 17;
    /// [`super::PythonFrames`], before the STACK of the same doorbell.
    pub const PYTHON: u16 = 18;
    /// [`super::Life`]: a debug exception without a cause sent SIGTRAP to the process.
    pub const STRAY: u16 = 19;
}

/// Flags in [`Header::flags`].
pub mod flag {
    /// Submit: some of these entries were in the ring at an earlier doorbell.
    pub const LATE: u16 = 1;
    /// Submit: found by a scan of all channels of the process, or by a token whose channel is only a guess.
    pub const SCANNED: u16 = 2;
    /// Data: these bytes could not be read.
    pub const MISSING: u16 = 4;
    /// Nested: parameters after the call; without the flag, before it.
    pub const AFTER: u16 = 8;
    /// Ioctl records: the argument could not be read.
    pub const UNREADABLE: u16 = 16;
    /// Scan: a channel was skipped because another processor was walking it.
    pub const CONTENDED: u16 = 32;
    /// Scan: more values of GP_PUT follow in another record of the same doorbell.
    pub const PART: u16 = 64;
    /// Submit: made at an execution breakpoint on the doorbell's store. See [`crate::TRAP_TO_END`] for watchpoints.
    pub const BEFORE: u16 = 128;
    /// Submit: doorbells before this one left their entries to it.
    pub const BATCHED: u16 = 256;
}

/// First member of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Header {
    /// One of [`kind`].
    pub kind: u16,
    /// Bits of [`flag`].
    pub flags: u16,
    /// Valid payload bytes after the record's fixed part.
    pub len: u32,
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// Thread group id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
}

/// New GPFIFO entries of one channel. Their bytes follow as [`Data`] records in entry order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Submit {
    /// Header; `len` is 0.
    pub header: Header,
    /// Index of the channel in CHANNELS.
    pub channel: u32,
    /// Token written to the doorbell, or [`crate::NO_TOKEN`].
    pub token: u32,
    /// Ring position of the first valid entry, counted without wrapping.
    pub position: u64,
    /// GP_GET as read with GP_PUT, or [`crate::NO_GET`].
    pub get: u32,
    /// GP_PUT.
    pub put: u32,
    /// Valid entries.
    pub count: u32,
    /// Address space.
    pub space: u32,
    /// Address of the instruction behind the doorbell's store.
    pub ip: u64,
    /// Address of the doorbell word.
    pub doorbell: u64,
    /// Ring position behind the last entry that this walk will report.
    pub target: u64,
    /// Address bits 56:40 that hold for the first valid entry, already shifted.
    pub extended: u64,
    /// Thread name, NUL padded.
    pub comm: [u8; 16],
    /// Index of the first valid entry in `entries` (reads begin at a multiple of 64 bytes).
    pub first: u32,
    /// Unused, 0.
    pub pad: u32,
    /// The entries.
    pub entries: [u64; BATCH],
}

/// Pushbuffer bytes of one entry.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Data {
    /// Header; `len` bytes follow (none when MISSING).
    pub header: Header,
    /// Ring position of the entry.
    pub position: u64,
    /// Index of the channel.
    pub channel: u32,
    /// Offset of these bytes in the entry's segment.
    pub offset: u32,
    /// Bytes of the segment that this record covers (equal to `header.len` unless MISSING).
    pub span: u32,
    /// Unused, 0.
    pub pad: u32,
}

/// A trap at an instruction whose token register is not known.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Header; `len` is 0.
    pub header: Header,
    /// Address of the instruction behind the doorbell's store.
    pub ip: u64,
    /// The watched address.
    pub doorbell: u64,
    /// Address space.
    pub space: u32,
    /// Nonzero: `code` could not be read.
    pub code_error: u32,
    /// Registers at the trap.
    pub regs: [u64; REGS],
    /// Bytes from `ip - CODE` to `ip + CODE`.
    pub code: [u8; 2 * CODE],
}

/// Memory around each register at a trap, from which the process's own copy of GP_PUT is found.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Header; `len` is 0.
    pub header: Header,
    /// Instruction pointer at the trap.
    pub ip: u64,
    /// Address space.
    pub space: u32,
    /// Index of the channel.
    pub channel: u32,
    /// GP_PUT as read from USERD.
    pub put: u32,
    /// Unused, 0.
    pub pad: u32,
    /// By register: 0 if its window could be read.
    pub errors: [i32; REGS],
    /// Words by register, from [`window_start`] of each on.
    pub words: [[u32; WINDOW]; REGS],
}

/// Address of a register's first word in [`Windows`].
#[inline(always)]
pub const fn window_start(register: u64) -> u64 {
    (register & !3).wrapping_sub(4 * WINDOW_BEFORE as u64)
}

/// The user stack of the thread that rang a doorbell. `header.len` bytes of the stack follow, from the stack pointer upward. The
/// [`Submit`]s of the same doorbell have the same time and thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// Header.
    pub header: Header,
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer: the address of the first byte.
    pub sp: u64,
    /// Frame pointer register (rbp, x29).
    pub fp: u64,
    /// Link register, on processors that have one.
    pub lr: u64,
    /// Address space.
    pub space: u32,
    /// Number of bytes that were asked for. Fewer came if the memory of the stack ended, or a page of it is not in memory.
    pub wanted: u32,
}

/// A frame of Python.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PythonFrame {
    /// The code object; 0 for a frame of the interpreter itself, which lies between the frames of two of its calls.
    /// [`crate::PYTHON_ENTRY`] is set if the version marks the frame with which a call of the interpreter began.
    pub code: u64,
    /// The instruction, as the frame has it.
    pub instruction: u64,
}

/// The Python frames of the thread that rang a doorbell, the newest first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PythonFrames {
    /// Header; `len` is 0.
    pub header: Header,
    /// Valid frames.
    pub count: u32,
    /// Nonzero: there are more frames, or one could not be read.
    pub cut: u32,
    /// The frames.
    pub frames: [PythonFrame; MOST_PYTHON],
}

/// A scan of all channels of a process: the end of the scan or, if [`flag::PART`] is set, the part before this record.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    /// Header; `len` is 0.
    pub header: Header,
    /// Token, or [`crate::NO_TOKEN`].
    pub token: u32,
    /// Number of channels that had new entries.
    pub advanced: u32,
    /// The last channel that had new entries.
    pub channel: u32,
    /// Address space.
    pub space: u32,
    /// The watched address.
    pub doorbell: u64,
    /// Instruction pointer.
    pub ip: u64,
    /// Certainty of the token's channel, one of [`crate::trust`].
    pub trust: u32,
    /// Valid values in `puts`.
    pub noted: u32,
    /// GP_PUT of each channel of the address space that has moved since following it began, whether or not the scan took its entries.
    pub puts: [Put; crate::PUTS],
}

/// The GP_PUT of a channel at a doorbell, in [`Scan`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// Index of the channel in CHANNELS.
    pub channel: u32,
    /// GP_PUT.
    pub put: u32,
}

/// Ring entries that were lost.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// Header; `len` is 0.
    pub header: Header,
    /// First missing position.
    pub position: u64,
    /// Number of missing positions.
    pub count: u64,
    /// Index of the channel.
    pub channel: u32,
    /// Unused, 0.
    pub pad: u32,
}

/// An ioctl begins; `header.len` argument bytes follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoctlEnter {
    /// Header.
    pub header: Header,
    /// Opaque number of the open file.
    pub file: u64,
    /// Opaque number of the open file that the argument names (NV_ESC_RM_MAP_MEMORY), else 0.
    pub named_file: u64,
    /// The argument.
    pub arg: u64,
    /// dev_t of the device file (kernel encoding: major << 20 | minor).
    pub dev: u32,
    /// File descriptor, or -1.
    pub fd: i32,
    /// Request.
    pub request: u32,
    /// Size of the argument in bytes.
    pub full_len: u32,
}

/// An ioctl returns; `header.len` argument bytes follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoctlExit {
    /// Header.
    pub header: Header,
    /// Result.
    pub result: i64,
    /// Request.
    pub request: u32,
    /// Size of the argument in bytes.
    pub full_len: u32,
}

/// Parameters an ioctl's argument points to; `header.len` bytes follow. Comes after its Enter or Exit record.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Nested {
    /// Header.
    pub header: Header,
    /// Address in the process.
    pub address: u64,
    /// Size of the parameters in bytes.
    pub full_len: u64,
}

/// A device file was mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mmap {
    /// Header; `len` is 0.
    pub header: Header,
    /// Opaque number of the open file.
    pub file: u64,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// PROT_READ 1, PROT_WRITE 2.
    pub prot: u32,
    /// dev_t.
    pub dev: u32,
    /// File descriptor, or -1.
    pub fd: i32,
    /// Address space.
    pub space: u32,
}

/// A range of addresses was unmapped.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Munmap {
    /// Header; `len` is 0.
    pub header: Header,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub size: u64,
}

/// A process event.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// Header; `len` is 0.
    pub header: Header,
    /// FORK, THREAD: the child's id. EXIT: [`Life::ENDED`] if the process ended, and from bit [`Life::SIGNAL`] on the signal that ended
    /// the process. EXEC: 1 if the space was kept. STRAY: 0.
    pub child: u32,
    /// Address space after the event.
    pub space: u32,
    /// Command name, NUL padded.
    pub comm: [u8; 16],
    /// FORK, THREAD: breakpoints that the child inherited, in the form of [`Birth::breakpoints`].
    pub breakpoints: [u64; Birth::MOST],
}

impl Life {
    /// In `child` of EXIT: the process ended.
    pub const ENDED: u32 = 1;
    /// In `child` of EXIT: the lowest bit of the signal.
    pub const SIGNAL: u32 = 8;
}
