//! What crosses between the BPF programs and the user program: records, shared state, limits.
//!
//! Everything is `repr(C)`, without padding that is not named, and valid for any bit pattern, so that the user
//! program may read it from ring-buffer bytes. The BPF programs write it; the user program reads it. Channel and
//! site state is written by both: who may write what is said at each field.
#![no_std]

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
/// In [`Channel::agreed`]: the copy was wrong once and is never believed again.
pub const NEVER: u32 = u32::MAX;
/// In [`SiteValue::own`]: not known where the process keeps its own copy of GP_PUT.
pub const NO_OWN: u32 = u32::MAX;

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
    /// [`super::Life`]: a thread ended; `child` is 1 when the process did.
    pub const EXIT: u16 = 14;
    /// [`super::Header`] alone: a module of the kernel is being loaded.
    pub const MODULE: u16 = 15;
    /// [`super::Windows`].
    pub const WINDOWS: u16 = 16;
}

/// Flags in [`Header::flags`].
pub mod flag {
    /// Submit: some of these entries were in the ring at an earlier doorbell.
    pub const LATE: u16 = 1;
    /// Submit: found by looking at every channel of the process, not by its token.
    pub const SCANNED: u16 = 2;
    /// Data: these bytes could not be read.
    pub const MISSING: u16 = 4;
    /// Nested: after the call (else before).
    pub const AFTER: u16 = 8;
    /// Ioctl records: the argument could not be read.
    pub const UNREADABLE: u16 = 16;
    /// Scan: a channel was passed over, because somebody else was looking at it.
    pub const CONTENDED: u16 = 32;
}

/// First in every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Header {
    /// One of [`kind`].
    pub kind: u16,
    /// Of [`flag`].
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
    /// Token written to the doorbell, or [`NO_TOKEN`].
    pub token: u32,
    /// Ring position of the first valid entry, counted without wrapping.
    pub position: u64,
    /// GP_GET as read with GP_PUT, or [`NO_GET`].
    pub get: u32,
    /// GP_PUT.
    pub put: u32,
    /// Valid entries.
    pub count: u32,
    /// Address space.
    pub space: u32,
    /// The trap's instruction pointer.
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
    /// Bytes this record accounts for (equal to `header.len` unless MISSING).
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
    /// Instruction pointer at the trap.
    pub ip: u64,
    /// The watched address.
    pub doorbell: u64,
    /// Address space.
    pub space: u32,
    /// Nonzero: `code` could not be read.
    pub code_error: u32,
    /// General registers after the store.
    pub regs: [u64; REGS],
    /// Bytes from `ip - CODE` to `ip + CODE`.
    pub code: [u8; 2 * CODE],
}

/// The memory around each register at a trap, for finding where the process keeps its own copy of GP_PUT.
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
    /// By register: 0 where its window could be read.
    pub errors: [i32; REGS],
    /// Words from [`window_start`] of each register on.
    pub words: [[u32; WINDOW]; REGS],
}

/// Address of a register's first word in [`Windows`].
#[inline(always)]
pub const fn window_start(register: u64) -> u64 {
    (register & !3).wrapping_sub(4 * WINDOW_BEFORE as u64)
}

/// End of a look at every channel of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    /// Header; `len` is 0.
    pub header: Header,
    /// Token, or [`NO_TOKEN`].
    pub token: u32,
    /// How many channels had new entries.
    pub advanced: u32,
    /// The last that had.
    pub channel: u32,
    /// Address space.
    pub space: u32,
    /// The watched address.
    pub doorbell: u64,
    /// Instruction pointer.
    pub ip: u64,
}

/// Ring entries that are gone.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// Header; `len` is 0.
    pub header: Header,
    /// First missing position.
    pub position: u64,
    /// How many.
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
    /// Bytes the argument has.
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
    /// Bytes the argument has.
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
    /// Bytes there are.
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

/// Addresses were given up.
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
    /// FORK, THREAD: the child's id. EXIT: 1 when the process ended. EXEC: 1 when the space was kept.
    pub child: u32,
    /// Address space after the event.
    pub space: u32,
    /// Command name, NUL padded.
    pub comm: [u8; 16],
}

/// A traced process, in PROCS by thread group id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proc {
    /// Its address space, an index into SPACES; 0 is "none yet".
    pub space: u32,
    /// Of [`proc_flag`].
    pub flags: u32,
}

/// Flags in [`Proc::flags`].
pub mod proc_flag {
    /// Children become traced.
    pub const FOLLOW: u32 = 1;
    /// Record its ioctls.
    pub const IOCTLS: u32 = 2;
    /// The next exec keeps the address space's number (the command that nvcap starts).
    pub const KEEP: u32 = 4;
}

/// Who made a thread, in BIRTHS by its thread id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Birth {
    /// CLOCK_MONOTONIC, ns: after the thread inherited its maker's breakpoints.
    pub time_ns: u64,
    /// The thread that made it.
    pub parent: u32,
    /// Unused, 0.
    pub pad: u32,
}

/// An address space: the head of its list of channels. Written by the user program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    /// Index + 1 of the first channel, 0 for none.
    pub head: u32,
    /// Unused, 0.
    pub pad: u32,
}

/// A channel as the BPF programs see it, in CHANNELS by index.
///
/// `claim` is a lock that nobody waits for: whoever adds 1 to it and finds 0 owns the channel until it has
/// subtracted what it served and got 0 back; whoever finds more leaves the work to the owner. Only the owner writes
/// `done`, `seen` and `extended`; the other fields are the user program's, set before the channel is linked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Channel {
    /// Requests since it was free.
    pub claim: u64,
    /// Ring position up to which everything was reported (or reported as a gap).
    pub done: u64,
    /// Ring position of the newest GP_PUT seen.
    pub seen: u64,
    /// Address bits 56:40 of segments, from the last control entry that set them, already shifted.
    pub extended: u64,
    /// Address of the eight bytes GP_GET, GP_PUT in the process (USERD + 0x88).
    pub get_put: u64,
    /// Address of the ring in the process.
    pub ring: u64,
    /// Entries in the ring, a power of two.
    pub entries: u32,
    /// Nonzero while it lives.
    pub live: u32,
    /// Index + 1 of the next channel of the space, 0 at the end.
    pub next: u32,
    /// Its address space.
    pub space: u32,
    /// Doorbells whose token named it.
    pub hits: u64,
    /// Doorbells that found nothing new.
    pub empty: u64,
    /// Reads of USERD that failed.
    pub errors: u64,
    /// Reads of USERD that did not.
    pub looks: u64,
    /// Key in XLATE of what its GPU addresses are in the process; 0: the same.
    pub xlate: u32,
    /// Reads of GP_PUT in a row that found what the process's own copy said, or [`NEVER`]. The owner's.
    pub agreed: u32,
    /// [`Windows`] sent. The owner's.
    pub windows: u32,
    /// Unused, 0.
    pub pad: u32,
}

/// Key of TOKENS.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenKey {
    /// Address of the doorbell word: tokens are unique per GPU only.
    pub doorbell: u64,
    /// Address space.
    pub space: u32,
    /// Token.
    pub token: u32,
}

/// Value of TOKENS.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenValue {
    /// Index of the channel.
    pub channel: u32,
    /// Nonzero: concluded from ring movement, not told by the driver. When such a doorbell finds nothing new, all
    /// channels are looked at.
    pub guessed: u32,
}

/// Key of SITES.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SiteKey {
    /// Instruction pointer at the trap.
    pub ip: u64,
    /// Address space.
    pub space: u32,
    /// Unused, 0.
    pub pad: u32,
}

/// Value of SITES: what is known of a store to a doorbell.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteValue {
    /// The register that holds the token, or [`u32::MAX`] where that cannot be told.
    pub register: u32,
    /// The register near whose address the process keeps its own copy of GP_PUT, or [`NO_OWN`].
    pub own: u32,
    /// Index of the copy among the words of that register's window.
    pub word: u32,
    /// Nonzero: [`Windows`] are asked for.
    pub learn: u32,
}

/// Translation of GPU addresses that are not the process's own, in XLATE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Range {
    /// First GPU address.
    pub gpu: u64,
    /// Bytes.
    pub len: u64,
    /// The process's address of the first byte.
    pub cpu: u64,
}

/// Ranges a GPU address space may have in XLATE, a power of two.
pub const RANGES: usize = 256;

/// Value of XLATE: what a GPU address space's addresses are in the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ranges {
    /// Valid ranges.
    pub count: u32,
    /// Nonzero: what no range has is not mapped in the process; else it is at the same address there.
    pub complete: u32,
    /// By GPU address, not overlapping.
    pub ranges: [Range; RANGES],
}

/// Counters of the BPF programs, one set a processor, in STATS.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Doorbell traps of traced processes.
    pub hits: u64,
    /// Traps in processes that are not traced (inherited into a child that is not followed).
    pub foreign: u64,
    /// Traps at a store not decoded yet.
    pub unknown_site: u64,
    /// Traps whose token names no known channel.
    pub unknown_token: u64,
    /// Scans of all channels of a process.
    pub scans: u64,
    /// Submissions put off because the ring buffer was full: caught up at a later doorbell.
    pub deferred: u64,
    /// Walks that ended before the end because one trap may do only so much.
    pub cut: u64,
    /// Driver records (ioctls, mappings, processes) dropped because the ring buffer was full.
    pub dropped: u64,
    /// Pushbuffer reads that failed.
    pub unreadable: u64,
    /// Traps that left the work to another processor that was already walking the channel.
    pub contended: u64,
    /// Looks at a channel that took GP_PUT from the process's own copy.
    pub own_put: u64,
    /// Channels whose process's copy of GP_PUT was found to be ahead of GP_PUT.
    pub own_put_wrong: u64,
}

/// What the user program tells the BPF programs, in CONFIG[0].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// Major number of /dev/nvidia-uvm, 0 when not loaded.
    pub uvm_major: u32,
    /// Major number of /dev/nvidiactl and /dev/nvidiaN.
    pub nvidia_major: u32,
    /// Mixed into opaque file numbers so that no kernel address leaves the kernel.
    pub secret: u64,
    /// Nonzero: GP_GET is read at every doorbell, not at every [`GET_EVERY`]th.
    pub gp_get: u32,
    /// Unused, 0.
    pub pad: u32,
}

/// Kernel structure offsets, from BTF, in bytes: set before the programs are loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Offsets {
    /// `task_struct.pid`
    pub task_pid: u32,
    /// `task_struct.tgid`
    pub task_tgid: u32,
    /// `task_struct.files`
    pub task_files: u32,
    /// `task_struct.signal`
    pub task_signal: u32,
    /// `signal_struct.live`
    pub signal_live: u32,
    /// `files_struct.fdt`
    pub files_fdt: u32,
    /// `fdtable.fd`
    pub fdt_fd: u32,
    /// `fdtable.max_fds`
    pub fdt_max: u32,
    /// `file.f_inode`
    pub file_inode: u32,
    /// `inode.i_rdev`
    pub inode_rdev: u32,
    /// `vm_area_struct.vm_start`
    pub vma_start: u32,
    /// `vm_area_struct.vm_end`
    pub vma_end: u32,
    /// `vm_area_struct.vm_flags`
    pub vma_flags: u32,
    /// `vm_area_struct.vm_file`
    pub vma_file: u32,
    /// `pt_regs`: first, second, third and fifth argument of a system call; its number.
    pub regs: [u32; 5],
    /// System call numbers: ioctl, mmap, munmap.
    pub syscalls: [u32; 3],
}
