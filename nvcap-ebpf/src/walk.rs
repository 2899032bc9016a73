//! The state of a walk, which lies in a per-processor map from step to step.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use nvcap_common::{BATCH, Header, PUTS, Put, REGS, SiteValue, TokenKey};

/// Next step of a walk.
pub mod phase {
    /// Take the next channel of the space.
    pub const NEXT: u32 = 0;
    /// Read GP_PUT.
    pub const LOOK: u32 = 1;
    /// Read a run of ring entries.
    pub const BATCH: u32 = 2;
    /// Start on an entry.
    pub const ENTRY: u32 = 3;
    /// Translate its address.
    pub const XLATE: u32 = 4;
    /// Copy its bytes.
    pub const DATA: u32 = 5;
    /// Give the channel back.
    pub const RELEASE: u32 = 6;
    /// End.
    pub const DONE: u32 = 7;
}

/// Work of a scan on a channel, in [`Walk::scanning`].
pub mod scanning {
    /// Takes its new entries.
    pub const TAKE: u32 = 1;
    /// Notes its GP_PUT only.
    pub const NOTE: u32 = 2;
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Walk {
    pub header: Header,
    pub ip: u64,
    pub doorbell: u64,
    pub comm: [u8; 16],
    pub regs: [u64; REGS],
    /// Stack pointer, frame pointer and link register: set only where stacks are taken.
    pub sp: u64,
    pub fp: u64,
    pub lr: u64,
    pub token: u32,
    pub space: u32,
    pub phase: u32,
    /// Channel being walked.
    pub channel: u32,
    /// Index + 1 of the next channel of a scan.
    pub next: u32,
    /// Nonzero: a scan of every channel of the space; one of [`scanning`].
    pub scanning: u32,
    /// Certainty of the token's channel, one of `nvcap_common::trust`.
    pub trust: u32,
    /// Number of doorbells in a row at which that channel had nothing new.
    pub misses: u32,
    /// Valid values in `puts`.
    pub noted: u32,
    /// Number of channels that had new entries.
    pub advanced: u32,
    pub last: u32,
    pub rounds: u32,
    /// Full ring buffer, and whether it was counted: bits of `capture`.
    pub deferred: u32,
    /// Nonzero: another processor owned a channel meanwhile.
    pub contended: u32,
    pub get: u32,
    pub put: u32,
    pub count: u32,
    pub index: u32,
    pub left: u32,
    pub offset: u32,
    /// Nonzero: reads are made page by page, because a larger read failed.
    pub paged: u32,
    /// Bounds of the search in XLATE.
    pub low: u32,
    pub high: u32,
    /// Index of the first valid entry in `batch`.
    pub first: u32,
    /// The process's own copy of GP_PUT at the trap, or NO_OWN.
    pub own: u32,
    /// Nonzero: windows are to be sent.
    pub learn: u32,
    /// Nonzero: at an execution breakpoint on the doorbell's store.
    pub before: u32,
    /// Nonzero: `channel`, `trust` and `misses` are those of the token that was rung.
    pub rung: u32,
    /// Nonzero: doorbells before this one left their entries to this look.
    pub batched: u32,
    /// The thread that this processor last looked for at an execution breakpoint, and the end of the thread's store. Its
    /// doorbell may trap, too.
    pub looked_tid: u32,
    pub looked_ip: u64,
    pub looked_ns: u64,
    /// Results that are kept from trap to trap.
    pub known: Known,
    /// Number of claims served so far.
    pub served: u64,
    pub cursor: u64,
    pub target: u64,
    /// Position before which entries were in the ring at an earlier look.
    pub late_until: u64,
    pub address: u64,
    /// Bytes from `address` on that lie in one range of XLATE.
    pub room: u64,
    /// GPU address of the first byte behind that range.
    pub beyond: u64,
    pub batch: [u64; BATCH],
    /// Values of GP_PUT that a scan saw since its last record.
    pub puts: [Put; PUTS],
}

/// Results of the last doorbell on this processor; see `known.rs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Known {
    pub generation: u64,
    /// Instruction pointer at the trap.
    pub ip: u64,
    pub doorbell: u64,
    pub site: SiteValue,
    pub pid: u32,
    pub space: u32,
    pub token: u32,
    pub channel: u32,
    pub trust: u32,
    pub pad: u32,
}

#[inline(always)]
pub fn token_key(w: &Walk) -> TokenKey {
    TokenKey {
        doorbell: w.doorbell,
        space: w.space,
        token: w.token,
    }
}

#[map]
static WALK: PerCpuArray<Walk> = PerCpuArray::with_max_entries(1, 0);

/// This processor's walk.
#[inline(always)]
pub fn walk() -> Option<&'static mut Walk> {
    // SAFETY: breakpoint programs do not nest on a processor, and nothing else uses this map.
    WALK.get_ptr_mut(0).map(|w| unsafe { &mut *w })
}

/// Returns the place of the phase in this processor's walk.
#[inline(always)]
pub fn phase_at() -> Option<*const u32> {
    // SAFETY: a place in a map's value, of which no reference is made.
    WALK.get_ptr(0).map(|w| unsafe { &raw const (*w).phase })
}
