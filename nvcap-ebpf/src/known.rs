//! What the last doorbell on this processor was found to be. The next one mostly comes from the same process, store and channel, and is
//! spared the look-ups in three hash maps.
//!
//! Invariant: what is kept was found in the generation that it names, and whoever changes one of these maps begins another generation
//! after that. So nothing outlives a change, and a doorbell beside one is treated as if it had come just before.

use aya_ebpf::{macros::map, maps::Array};
use nvcap_common::{Proc, SiteKey, SiteValue, TokenValue, trust};

use crate::{
    maps::{SITES, TOKENS, fetch_add, traced},
    scan::token_key,
    walk::Walk,
};

#[map]
static GENERATION: Array<u64> = Array::with_max_entries(1, 0);

/// See the module.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Known {
    pub generation: u64,
    /// Where the trap was.
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

/// PROCS, SITES or TOKENS has changed.
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

/// The address space of the process, if it is traced. Where that is known, its store is, too.
#[inline(always)]
pub fn space(w: &Walk, pid: u32, generation: u64) -> Option<u32> {
    let k = &w.known;
    if k.generation == generation && k.pid == pid && k.ip == w.ip {
        return Some(k.space);
    }
    traced(pid).map(|Proc { space, .. }| space)
}

/// What is known of the store at `ip`.
#[inline(always)]
pub fn site(w: &Walk, pid: u32, generation: u64) -> Option<SiteValue> {
    let k = &w.known;
    if k.generation == generation && k.pid == pid && k.ip == w.ip {
        return Some(k.site);
    }
    let key = SiteKey {
        ip: w.ip,
        space: w.space,
        pad: 0,
    };
    // SAFETY: plain integers; the user program replaces the value whole.
    SITES.get_ptr(key).map(|site| unsafe { *site })
}

/// Whose the token is. What was found is kept, where the trap was at `ip`, a store that is known.
#[inline(always)]
pub fn token(w: &mut Walk, (pid, ip): (u32, u64), site: &SiteValue, generation: u64) -> bool {
    let k = &w.known;
    if k.generation == generation
        && k.pid == pid
        && k.ip == ip
        && k.doorbell == w.doorbell
        && k.token == w.token
    {
        (w.channel, w.trust, w.misses) = (k.channel, k.trust, 0);
        return true;
    }
    let Some(v) = TOKENS.get_ptr(token_key(w)) else {
        return false;
    };
    // SAFETY: plain integers.
    let TokenValue {
        channel,
        trust,
        misses,
    } = unsafe { *v };
    (w.channel, w.trust, w.misses) = (channel, trust, misses);
    // The others are looked at again until it is certain whose they are.
    if trust == trust::TOLD || trust == trust::CONCLUDED && misses == 0 {
        w.known = Known {
            generation,
            ip,
            doorbell: w.doorbell,
            site: *site,
            pid,
            space: w.space,
            token: w.token,
            channel,
            trust,
            pad: 0,
        };
    }
    true
}
