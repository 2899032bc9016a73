//! Results of the last doorbell on this processor. The next doorbell mostly comes from the same process, store and channel, and so needs no
//! look-ups in three hash maps.
//!
//! Invariant: kept results were found in the generation that they name. A program that changes one of these maps begins another generation
//! afterwards. So no result outlives a change, and a doorbell that comes during a change is treated as if it had come just before.

use nvcap_common::{Proc, SiteKey, SiteValue, TokenValue, trust};

use crate::{
    maps::{SITES, TOKENS, traced},
    walk::{Known, Walk, token_key},
};

/// Returns the address space of the process, if the process is traced. If the result is known, so is the store.
#[inline(always)]
pub fn space(w: &Walk, pid: u32, generation: u64) -> Option<u32> {
    let k = &w.known;
    if k.generation == generation && k.pid == pid && k.ip == w.ip {
        return Some(k.space);
    }
    traced(pid).map(|Proc { space, .. }| space)
}

/// Returns the known facts about the store at `ip`.
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

/// Finds the token's channel; false if there is none. The result is kept if the trap was at `ip`, a known store.
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
