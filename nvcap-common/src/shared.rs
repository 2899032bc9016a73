//! Maps: the common knowledge of processes, channels, tokens and stores; and the BPF programs' settings and counters.

/// A traced process, in PROCS by thread group id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proc {
    /// Its address space, an index into SPACES; 0 for none yet.
    pub space: u32,
    /// Bits of [`proc_flag`].
    pub flags: u32,
}

/// Flags in [`Proc::flags`].
pub mod proc_flag {
    /// Children become traced.
    pub const FOLLOW: u32 = 1;
    /// The process's ioctls are recorded.
    pub const IOCTLS: u32 = 2;
    /// The next exec keeps the address space's number (the command that nvcap starts).
    pub const KEEP: u32 = 4;
}

/// Birth of a thread, in BIRTHS by its thread id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Birth {
    /// CLOCK_MONOTONIC, ns: a time after the thread inherited its maker's breakpoints, and before it runs.
    pub time_ns: u64,
    /// Inherited breakpoints, then zeros. A breakpoint is the number of the event of which it is a copy (PERF_EVENT_IOC_ID), with
    /// [`Birth::IDLE`] if the copy runs no program.
    pub breakpoints: [u64; Birth::MOST],
}

/// Breakpoint that a thread inherited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Number of the event of which the breakpoint is a copy.
    pub number: u64,
    /// True if the copy runs a program, because the event had one when it was copied.
    pub runs: bool,
}

impl Birth {
    /// The most breakpoints in a [`Birth`]: twice the registers of a thread, whose use the kernel may miscount.
    pub const MOST: usize = 8;
    /// In [`Birth::breakpoints`]: the breakpoint runs no program.
    pub const IDLE: u64 = 1 << 63;

    /// Returns the breakpoints that the thread inherited.
    pub fn inherited(&self) -> impl Iterator<Item = Inherited> + '_ {
        let all = self.breakpoints.iter().take_while(|word| **word != 0);
        all.map(|word| Inherited {
            number: word & !Self::IDLE,
            runs: word & Self::IDLE == 0,
        })
    }
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
/// `claim` is a lock for which nobody waits. A program that adds 1 to it and finds 0 owns the channel until it has subtracted the claims that it
/// served and got 0 back. A program that finds more leaves the work to the owner. Only the owner writes `done`, `seen` and `extended`; the user
/// program sets the other fields before it links the channel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedChannel {
    /// Claims since the channel was last free.
    pub claim: u64,
    /// Ring position up to which everything was reported, as entries or as a gap.
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
    /// Nonzero while the channel exists.
    pub live: u32,
    /// Index + 1 of the next channel of the space, 0 at the end.
    pub next: u32,
    /// Address space of the channel.
    pub space: u32,
    /// Number of doorbells whose token named the channel.
    pub hits: u64,
    /// Number of doorbells that found nothing new.
    pub empty: u64,
    /// Number of doorbells since the last read of USERD at which USERD could not be read. Written by the owner.
    pub unread: u64,
    /// Reads of USERD.
    pub looks: u64,
    /// Key in XLATE of the translation of the channel's GPU addresses; 0 if they are the process's own addresses.
    pub xlate: u32,
    /// Number of reads of GP_PUT in a row that equalled the process's own copy, or [`crate::NEVER`]. Written by the owner.
    pub agreed: u32,
    /// [`crate::Windows`] sent. Written by the owner.
    pub windows: u32,
    /// Number of looks that found GP_PUT beyond the ring: the value is no GP_PUT, or the ring is another. Written by the owner.
    pub beyond: u32,
    /// Nonzero: the channel's token is known, and scans for other tokens leave its entries to its own doorbell, once that was rung.
    pub owned: u32,
    /// GP_PUT at which following the channel began: scans do not note a channel that is still there.
    pub start: u32,
    /// Doorbells since the last look at the ring, which were left to a later look ([`Mode::every`]).
    pub waiting: u64,
    /// CLOCK_MONOTONIC of the first of these doorbells, ns.
    pub waiting_since: u64,
    /// Number of doorbells that were counted, and at which the channel's ring was not read.
    pub counted: u64,
    /// Number of doorbells of `counted` that were at an execution breakpoint.
    pub counted_before: u64,
}

/// Key of TOKENS.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenKey {
    /// Address of the doorbell word, which is needed because tokens are unique per GPU only.
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
    /// Certainty of the channel, one of [`trust`].
    pub trust: u32,
    /// Number of doorbells in a row at which the channel had nothing new, if `trust` is [`trust::CONCLUDED`]. Written by the BPF programs.
    pub misses: u32,
}

/// Certainty of a token's channel, in [`TokenValue::trust`].
pub mod trust {
    /// Told by the driver or the user: no doorbell with the token scans.
    pub const TOLD: u32 = 0;
    /// Not known. Each doorbell with the token notes the GP_PUT of all channels, and scans them when the channel has nothing new.
    pub const GUESS: u32 = 1;
    /// Concluded from the rings. A doorbell scans after [`crate::MISSES`] in a row at which the channel had nothing new.
    pub const CONCLUDED: u32 = 2;
    /// Uncertain whether the doorbell is of the channel's GPU: a doorbell at which the channel has nothing new scans.
    pub const MAYBE: u32 = 3;
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

/// Value of SITES: the facts about a store instruction that rings a doorbell.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteValue {
    /// The register that holds the token, or [`u32::MAX`] where it cannot be determined.
    pub register: u32,
    /// The register whose address lies near the process's own copy of GP_PUT, or [`crate::NO_OWN`].
    pub own: u32,
    /// Index of the copy among the words of that register's window.
    pub word: u32,
    /// Nonzero: the BPF programs are to send [`crate::Windows`].
    pub learn: u32,
    /// Register that holds the doorbell's address less `displacement`, for a store at which an execution breakpoint stops.
    pub base: u32,
    /// Length of the store's instruction, bytes.
    pub len: u32,
    /// Bytes that the store adds to the address in register `base`.
    pub displacement: i64,
    /// The doorbell's offset in its page of 4 KiB. What the store writes at other offsets is no doorbell.
    pub offset: u32,
    /// Unused, 0.
    pub pad: u32,
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

/// The most ranges of one GPU address space in XLATE, a power of two.
pub const RANGES: usize = 256;

/// Value of XLATE: the places of a GPU address space's addresses in the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ranges {
    /// Valid ranges.
    pub count: u32,
    /// Nonzero: an address outside all ranges is not mapped in the process. 0: the process has it at the same address.
    pub complete: u32,
    /// Sorted by GPU address, not overlapping.
    pub ranges: [Range; RANGES],
}

/// A request to the BPF program `table` for an operation on one of the hash maps, and its result. It is the first element of REQUEST. The user
/// program writes it and then runs `table`; nothing else reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Operation, one of [`request`].
    pub what: u32,
    /// Key in PROCS, BIRTHS or XLATE.
    pub id: u32,
    /// Result of the map operation: 0, or a negative error number.
    pub result: i64,
    /// Key in TOKENS.
    pub token: TokenKey,
    /// Value in TOKENS.
    pub channel: TokenValue,
    /// Key in SITES.
    pub site: SiteKey,
    /// Value in SITES.
    pub store: SiteValue,
    /// Value in PROCS.
    pub proc: Proc,
    /// Value in BIRTHS.
    pub birth: Birth,
    /// Value in XLATE.
    pub ranges: Ranges,
}

/// Operations, in [`Request::what`].
pub mod request {
    /// PROCS: reads the value of `id` into `proc`.
    pub const GET_PROC: u32 = 1;
    /// PROCS: sets the value of `id` to `proc`.
    pub const SET_PROC: u32 = 2;
    /// PROCS: removes `id`.
    pub const FORGET_PROC: u32 = 3;
    /// TOKENS: sets the value of `token` to `channel`.
    pub const SET_TOKEN: u32 = 4;
    /// TOKENS: removes `token`.
    pub const FORGET_TOKEN: u32 = 5;
    /// SITES: sets the value of `site` to `store`.
    pub const SET_SITE: u32 = 6;
    /// SITES: removes `site`.
    pub const FORGET_SITE: u32 = 7;
    /// XLATE: sets the value of `id` to `ranges`.
    pub const SET_RANGES: u32 = 8;
    /// BIRTHS: reads the value of `id` into `birth`.
    pub const GET_BIRTH: u32 = 9;
}

/// Counters of the BPF programs, one set for each processor, in STATS by the processor's number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Number of doorbell traps of traced processes.
    pub hits: u64,
    /// Number of traps in processes that are not traced (a breakpoint inherited by a child that is not followed).
    pub foreign: u64,
    /// Traps at a store not decoded yet.
    pub unknown_site: u64,
    /// Traps whose token names no known channel.
    pub unknown_token: u64,
    /// Scans of all channels of a process.
    pub scans: u64,
    /// Doorbells whose work was postponed because the ring buffer was full: a later doorbell does it, or nvcap.
    pub deferred: u64,
    /// Walks that stopped early because one trap may take only so many steps.
    pub cut: u64,
    /// Driver records (ioctls, mappings, processes) dropped because the ring buffer was full.
    pub dropped: u64,
    /// Pushbuffer reads that failed.
    pub unreadable: u64,
    /// Traps that left the work to another processor that was already walking the channel.
    pub contended: u64,
    /// Looks at a channel that took GP_PUT from the process's own copy of it.
    pub cached_put: u64,
    /// Channels where the process's own copy was found to be ahead of GP_PUT.
    pub cached_put_wrong: u64,
    /// Stacks dropped because their ring buffer was full.
    pub stacks_lost: u64,
    /// Doorbells whose stack was not taken because only one in so many is.
    pub stacks_passed: u64,
    /// Traps of `hits` that were at an execution breakpoint, before the doorbell was rung.
    pub before: u64,
    /// Traps at a doorbell behind an execution breakpoint whose program had already looked.
    pub again: u64,
    /// Doorbells whose entries were left to a later look ([`Mode::every`]).
    pub put_off: u64,
    /// Doorbells that were counted, and whose entries are not read.
    pub counted: u64,
    /// SIGTRAPs for debug exceptions without a cause, in traced processes.
    pub stray: u64,
}

/// Choice of the doorbells at which rings are read, set before the programs are loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Number of doorbells of a channel of which one reads its ring: 1 for each, 0 for none. A doorbell whose channel is not certain reads the
    /// ring in any case, because this makes the channel known.
    pub every: u64,
    /// Time since the first doorbell that was left to a later look after which the ring is read, too, ns.
    pub within_ns: u64,
}

impl Mode {
    /// Mode in which each doorbell reads.
    pub const EACH: Self = Self {
        every: 1,
        within_ns: 0,
    };
}

/// Layout of the Python frames of a process, for walking them, in PYTHONS by address space. All are byte offsets; [`crate::NO_FIELD`] if the
/// version has no such field. Written by the user program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonWalk {
    /// Nonzero: there is a Python.
    pub known: u32,
    /// In a thread state: the newest frame, or a pointer to the structure that has it.
    pub state_frame: u32,
    /// In the structure to which `state_frame` points: the newest frame.
    pub cframe_frame: u32,
    /// In a thread state: the thread's id.
    pub state_thread: u32,
    /// Bytes of a frame that hold all fields below, up to [`crate::MOST_PYTHON_SPAN`].
    pub span: u32,
    /// In a frame: its caller's frame.
    pub previous: u32,
    /// In a frame: the code object, with a tag in its lowest 3 bits.
    pub code: u32,
    /// In a frame: the instruction.
    pub instruction: u32,
    /// Size of the instruction field: 4 or 8.
    pub instruction_bytes: u32,
    /// In a frame: the byte that names the frame's owner.
    pub owner: u32,
    /// First owner that means the interpreter itself; greater ones mean it, too.
    pub first_inner_owner: u32,
    /// In a frame: the byte that tells whether a call of the interpreter began with the frame.
    pub entry: u32,
}

/// A thread of a Python, in PYTHON_THREADS at one of the [`crate::PYTHON_PROBES`] places from [`crate::python_place`] on. Written by the user
/// program, which writes `tid` last.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonThread {
    /// Thread id; 0: the place is free.
    pub tid: u32,
    /// Address space.
    pub space: u32,
    /// Address of the thread's state.
    pub state: u64,
    /// Thread id in the thread state. If another id is there, the state belongs to another thread by now.
    pub id: u64,
}

/// Settings that the user program gives to the BPF programs, the first element of CONFIG.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// Major number of /dev/nvidia-uvm, 0 when not loaded.
    pub uvm_major: u32,
    /// Major number of /dev/nvidiactl and /dev/nvidiaN.
    pub nvidia_major: u32,
    /// Number that is mixed into opaque file numbers, so that no kernel address leaves the kernel.
    pub secret: u64,
    /// Nonzero: GP_GET is read at every doorbell, not at every [`crate::GET_EVERY`]th.
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
    /// `task_struct.exit_code`
    pub task_exit_code: u32,
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
    /// `task_struct.perf_event_ctxp`; its last element if it is an array.
    pub task_events: u32,
    /// `perf_event_context.event_list`
    pub context_events: u32,
    /// `perf_event.event_entry`
    pub event_entry: u32,
    /// `perf_event.attr.type`
    pub event_type: u32,
    /// `perf_event.parent`
    pub event_parent: u32,
    /// `perf_event.id`
    pub event_id: u32,
    /// `perf_event.prog`
    pub event_prog: u32,
    /// `pt_regs`: first, second, third and fifth argument of a system call; its number.
    pub regs: [u32; 5],
    /// System call numbers: ioctl, mmap, munmap.
    pub syscalls: [u32; 3],
}
