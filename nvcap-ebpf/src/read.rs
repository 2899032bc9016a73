//! Reads of the traced process's memory in the doorbell program, at the lowest possible cost for video memory.

use core::mem::MaybeUninit;

use aya_ebpf::{cty::c_void, helpers::generated::bpf_probe_read_user};
use nvcap_common::{GET_EVERY, NO_GET, SharedChannel};

use crate::maps::CONFIG;

/// Reads the process's memory; false if it cannot be read.
#[inline(always)]
pub fn read_user(to: *mut u8, len: u32, from: u64) -> bool {
    // SAFETY: callers bound len by the size behind `to`; the helper checks `from`.
    unsafe { bpf_probe_read_user(to.cast(), len, from as *const c_void) == 0 }
}

/// Bounds a value by `MAX`, in a form that the verifier recognizes. Linux 6.1's verifier forgets a bound once the value
/// is shifted and truncated, and the compiler drops a second comparison unless the value is hidden from it.
#[inline(always)]
pub fn bounded<const MAX: u32>(len: u32) -> u32 {
    let len = core::hint::black_box(len);
    if len > MAX { MAX } else { len }
}

/// Reads GP_GET and GP_PUT.
///
/// The kernel copies user memory with `rep movsb`. On video memory that costs whole reads over PCIe: two when the address
/// is a multiple of 64, four when it is not, whatever the length up to 128 (docs/verification.md).
#[inline(always)]
fn get_put(at: u64) -> Option<(u32, u32)> {
    let mut words = MaybeUninit::<[u64; 2]>::uninit();
    // USERD is aligned: GP_GET lies 8 behind a multiple of 64.
    let pair = if at & 63 == 8 {
        if !read_user(words.as_mut_ptr().cast(), 16, at - 8) {
            return None;
        }
        // SAFETY: the helper has written both.
        let [_, pair] = unsafe { words.assume_init() };
        pair
    } else {
        let mut word = MaybeUninit::<u64>::uninit();
        if !read_user(word.as_mut_ptr().cast(), 8, at) {
            return None;
        }
        // SAFETY: the helper has written it.
        unsafe { word.assume_init() }
    };
    Some((pair as u32, (pair >> 32) as u32))
}

/// Reads GP_PUT by one read over PCIe, if that gives its value.
///
/// The helper for strings loads whole words, as a plain `mov` does, and returns the bytes before the first zero byte. For
/// a GP_PUT below 65536 these are all its nonzero bytes, unless its lowest byte is zero: then nothing is known.
#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn put_alone(at: u64, entries: u64) -> Option<u32> {
    use aya_ebpf::helpers::generated::bpf_probe_read_user_str;

    if entries > 1 << 16 {
        return None;
    }
    let mut word = 0u64;
    // SAFETY: 8 bytes of ours; the helper checks the address.
    let n =
        unsafe { bpf_probe_read_user_str((&raw mut word).cast(), 8, (at + 4) as *const c_void) };
    match n {
        2 => Some(word as u32 & 0xff),
        3 => Some(word as u32 & 0xffff),
        _ => None,
    }
}

/// Returns nothing: on other machines the helper may read byte by byte.
#[cfg(not(bpf_target_arch = "x86_64"))]
#[inline(always)]
fn put_alone(_at: u64, _entries: u64) -> Option<u32> {
    None
}

/// Number of new entries above which a look needs a full read before it is trusted.
pub const FEW: u64 = 64;

/// True when GP_GET and GP_PUT are to be read together at this look.
#[inline(always)]
pub fn is_full(c: &SharedChannel) -> bool {
    CONFIG.get(0).is_none_or(|f| f.gp_get != 0) || c.looks & (GET_EVERY - 1) == 0
}

/// Reads GP_PUT, and GP_GET from time to time.
#[inline(always)]
pub fn positions(c: &SharedChannel) -> Option<(u32, u32)> {
    let entries = u64::from(c.entries);
    if !is_full(c)
        && let Some(put) = put_alone(c.get_put, entries)
        && u64::from(put).wrapping_sub(c.seen) & (entries - 1) <= FEW
    {
        return Some((NO_GET, put));
    }
    get_put(c.get_put)
}
