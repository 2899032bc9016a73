//! Scans of all channels of an address space, if the token does not tell which channel was rung; and the claim on a channel.
//!
//! The user program decides what the scans prove about tokens (`session/token_evidence.rs` there).

use nvcap_common::{Header, MISSES, NO_TOKEN, PUTS, Put, Scan, SharedChannel, flag, kind, trust};

use crate::{
    maps::{CHANNELS, SPACES, TOKENS, changed, count, fetch_add, reserve, submit, words},
    read,
    walk::{Walk, phase, scanning, token_key},
};

#[inline(always)]
pub fn channel(index: u32) -> Option<&'static mut SharedChannel> {
    // SAFETY: the claim makes this program the only one to write the owner's fields.
    CHANNELS.get_ptr_mut(index).map(|c| unsafe { &mut *c })
}

#[inline(always)]
pub fn scan(w: &mut Walk, what: u32) {
    count(|s| s.scans += 1);
    w.scanning = what;
    w.noted = 0;
    w.next = SPACES.get(w.space).map_or(0, |s| s.head);
    w.phase = phase::NEXT;
}

/// Claims a channel, or leaves it to its present owner.
#[inline(always)]
pub fn take(w: &mut Walk, c: &mut SharedChannel) {
    if fetch_add(&raw mut c.claim, 1) == 0 {
        w.served = 1;
        w.phase = phase::LOOK;
    } else {
        count(|s| s.contended += 1);
        w.contended = 1;
        w.phase = if w.scanning != 0 {
            phase::NEXT
        } else {
            phase::DONE
        };
    }
}

/// Continues a scan: notes the next channel's GP_PUT, and takes its entries if they may be the doorbell's.
///
/// GP_PUT is noted without a claim, whichever channel the entries belong to: at each doorbell of a token its own channel has moved since
/// the doorbell before, even if another walk has taken the entries.
#[inline(always)]
pub fn next(w: &mut Walk) {
    if w.next == 0 || w.noted >= PUTS as u32 {
        tell_scan(w);
        w.noted = 0;
        if w.next == 0 {
            w.phase = phase::DONE;
        }
        return;
    }
    w.channel = w.next - 1;
    let Some(c) = channel(w.channel) else {
        w.next = 0;
        return;
    };
    w.next = c.next;
    if c.live == 0 || c.space != w.space {
        return;
    }
    let Some((_, put)) = read::positions(c) else {
        return;
    };
    if put != c.start || c.done != u64::from(c.start) {
        w.puts[w.noted as usize & (PUTS - 1)] = Put {
            channel: w.channel,
            put,
        };
        w.noted += 1;
    }
    if w.scanning == scanning::NOTE {
        return;
    }
    if c.looks == 0 {
        c.looks = 1;
    }
    // A known token's channel is left to its own doorbell, which is on its way: whoever took its entries would leave
    // nothing to that doorbell. Nothing is said of a doorbell whose token is not known.
    let left = c.owned != 0 && c.hits != 0 && w.token != NO_TOKEN;
    let moved = put >= c.entries || (u64::from(put) ^ c.done) & (u64::from(c.entries) - 1) != 0;
    if moved && (!left || is_rung(w)) {
        take(w, c);
    }
}

/// Tells whether the token has become known as this channel's since the walk began. If so, this is the channel's own doorbell, and no
/// other is on its way. The token is published before `owned` is set.
#[inline(always)]
fn is_rung(w: &Walk) -> bool {
    // SAFETY: a plain integer is read.
    TOKENS
        .get_ptr_mut(token_key(w))
        .is_some_and(|v| unsafe { (*v).channel } == w.channel)
}

/// Sends what a scan has seen.
#[inline(always)]
fn tell_scan(w: &Walk) {
    let p = reserve(size_of::<Scan>()).cast::<Scan>();
    if p.is_null() {
        return;
    }
    let contended = if w.contended != 0 { flag::CONTENDED } else { 0 };
    let part = if w.next != 0 { flag::PART } else { 0 };
    // Field by field: the whole would not fit on the stack.
    // SAFETY: p has room for a Scan.
    unsafe {
        (&raw mut (*p).header).write(Header {
            kind: kind::SCAN,
            flags: contended | part,
            len: 0,
            ..w.header
        });
        (&raw mut (*p).token).write(w.token);
        (&raw mut (*p).advanced).write(w.advanced);
        (&raw mut (*p).channel).write(w.last);
        (&raw mut (*p).space).write(w.space);
        (&raw mut (*p).doorbell).write(w.doorbell);
        (&raw mut (*p).ip).write(w.ip);
        (&raw mut (*p).trust).write(w.trust);
        (&raw mut (*p).noted).write(w.noted);
        words::<PUTS>((&raw mut (*p).puts).cast(), (&raw const w.puts).cast());
    }
    submit(p.cast(), crate::maps::WAKEUP);
}

/// Decides, after the walk of the token's assumed channel, whether all channels are scanned.
#[inline(always)]
pub fn judge(w: &mut Walk) {
    let found = w.advanced != 0;
    if w.trust == trust::CONCLUDED {
        if found && w.misses == 0 {
            return;
        }
        let misses = if found { 0 } else { w.misses + 1 };
        let enough = misses >= MISSES;
        if let Some(v) = TOKENS.get_ptr_mut(token_key(w)) {
            // SAFETY: a plain integer; of two processors that write it at once, one count is enough.
            unsafe { (*v).misses = if enough { 0 } else { misses } };
            changed();
        }
        if enough {
            scan(w, scanning::TAKE);
        }
    } else if !found {
        scan(w, scanning::TAKE);
    } else if w.trust == trust::GUESS {
        scan(w, scanning::NOTE);
    }
}
