//! The maps, and the few functions that access them.

use aya_ebpf::{
    cty::c_void,
    helpers::generated::{
        bpf_get_smp_processor_id, bpf_ringbuf_discard, bpf_ringbuf_query, bpf_ringbuf_reserve,
        bpf_ringbuf_submit,
    },
    macros::map,
    maps::{Array, HashMap, ProgramArray, RingBuf},
};
use nvcap_common::{
    Config, MAX_CHANNELS, MAX_SPACES, Proc, Ranges, SharedChannel, SiteKey, SiteValue, Space,
    Stats, TokenKey, TokenValue,
};

/// Flag of maps that the user program can read and write by mmap.
pub const BPF_F_MMAPABLE: u32 = 1 << 10;

#[map]
pub static RECORDS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);
/// Ring buffer of stacks. It is separate because stacks are large, and must not take the room of entries. The loader sets its
/// size.
#[map]
pub static STACKS: RingBuf = RingBuf::with_byte_size(4096, 0);
#[map]
pub static CONFIG: Array<Config> = Array::with_max_entries(1, 0);
/// Counters by processor. The map is an array, because the user program maps its memory, which is not possible for a
/// per-processor map (`table.rs` gives the reason). The loader makes it as long as there may be processors.
#[map]
pub static STATS: Array<Stats> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
pub static PROCS: HashMap<u32, Proc> = HashMap::with_max_entries(MAX_SPACES, 0);
#[map]
pub static SPACES: Array<Space> = Array::with_max_entries(MAX_SPACES, BPF_F_MMAPABLE);
#[map]
pub static CHANNELS: Array<SharedChannel> = Array::with_max_entries(MAX_CHANNELS, BPF_F_MMAPABLE);
#[map]
pub static TOKENS: HashMap<TokenKey, TokenValue> = HashMap::with_max_entries(4 * MAX_CHANNELS, 0);
#[map]
pub static SITES: HashMap<SiteKey, SiteValue> = HashMap::with_max_entries(4096, 0);
#[map]
pub static XLATE: HashMap<u32, Ranges> = HashMap::with_max_entries(256, 0);
/// Slot 0: the program that continues a walk (kernels without bpf_loop).
#[map]
pub static MORE: ProgramArray = ProgramArray::with_max_entries(1, 0);
/// Number of the next address space. 0 stands for none, so that counting starts at 1.
#[map]
pub static NEXT_SPACE: Array<u64> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Counts the changes of PROCS, SITES and TOKENS.
#[map]
static GENERATION: Array<u64> = Array::with_max_entries(1, 0);

/// Nonzero while the reader waits for longer than between two looks of its own.
#[map]
pub static ASLEEP: Array<u32> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Flag that does not wake the reader, which looks by itself every millisecond or so.
pub const NO_WAKEUP: u64 = 1;
/// Flag that wakes the reader now.
pub const WAKEUP: u64 = 2;
const AVAIL_DATA: u64 = 0;
const RING_SIZE: u64 = 1;

fn records() -> *mut c_void {
    (&raw const RECORDS).cast_mut().cast()
}

/// Adds to a word and returns its previous value. Never relaxed: LLVM 22 then drops the fetch and returns the addend.
#[inline(always)]
pub fn fetch_add(p: *mut u64, v: u64) -> u64 {
    // SAFETY: callers pass pointers into map values.
    unsafe {
        core::intrinsics::atomic_xadd::<u64, u64, { core::intrinsics::AtomicOrdering::SeqCst }>(
            p, v,
        )
    }
}

/// Reserves room in the ring buffer, which must be submitted or discarded.
#[inline(always)]
pub fn reserve(size: usize) -> *mut u8 {
    reserve_in(&RECORDS, size)
}

/// As [`reserve`], in a ring buffer of the caller's choice.
#[inline(always)]
pub fn reserve_in(ring: &'static RingBuf, size: usize) -> *mut u8 {
    let ring = (&raw const *ring).cast_mut().cast();
    // SAFETY: the helper takes any size and answers null when it does not fit.
    unsafe { bpf_ringbuf_reserve(ring, size as u64, 0).cast() }
}

#[inline(always)]
pub fn submit(p: *mut u8, flags: u64) {
    // SAFETY: p came from reserve and is given up here.
    unsafe { bpf_ringbuf_submit(p.cast(), flags) }
}

#[inline(always)]
pub fn discard(p: *mut u8) {
    // SAFETY: p came from reserve and is given up here.
    unsafe { bpf_ringbuf_discard(p.cast(), NO_WAKEUP) }
}

/// Copies N words of 8 bytes into a record, one by one. (The compiler would call memcpy, a loop over bytes that the verifier
/// goes through round by round.)
///
/// # Safety
/// Both must have room for N words, at a multiple of 8.
#[inline(always)]
pub unsafe fn words<const N: usize>(to: *mut u64, from: *const u64) {
    for i in 0..N {
        // SAFETY: within both, by the caller's word.
        unsafe { to.add(i).write_volatile(from.add(i).read()) };
    }
}

/// Wakes the reader if it sleeps, else only when a quarter of the ring buffer waits for it.
#[inline(always)]
pub fn wakeup_if_needed() -> u64 {
    if ASLEEP.get(0).is_some_and(|a| *a != 0) {
        return WAKEUP;
    }
    // SAFETY: queries of a ring buffer have no effect.
    let (waiting, size) = unsafe {
        (
            bpf_ringbuf_query(records(), AVAIL_DATA),
            bpf_ringbuf_query(records(), RING_SIZE),
        )
    };
    if waiting > size / 4 {
        WAKEUP
    } else {
        NO_WAKEUP
    }
}

/// Changes this processor's counters.
#[inline(always)]
pub fn count(f: impl FnOnce(&mut Stats)) {
    // SAFETY: the helper has no preconditions.
    let processor = unsafe { bpf_get_smp_processor_id() } as u32;
    if let Some(s) = STATS.get_ptr_mut(processor) {
        // SAFETY: this processor's own value; nothing that runs on it meanwhile writes the same field.
        f(unsafe { &mut *s });
    }
}

/// The traced process's entry, if it is traced.
#[inline(always)]
pub fn traced(pid: u32) -> Option<Proc> {
    // SAFETY: values are plain integers; a torn read is impossible for 8 bytes.
    PROCS.get_ptr(pid).map(|p| unsafe { *p })
}

/// Takes note that PROCS, SITES or TOKENS has changed: earlier results from them belong to an earlier generation.
#[inline(always)]
pub fn changed() {
    if let Some(g) = GENERATION.get_ptr_mut(0) {
        fetch_add(g, 1);
    }
}

#[inline(always)]
pub fn generation() -> u64 {
    // SAFETY: a live value; volatile, for others change it meanwhile.
    GENERATION
        .get_ptr(0)
        .map_or(0, |g| unsafe { g.read_volatile() })
}
