//! The process's own copy of GP_PUT, which is cheap to read.
//!
//! GP_PUT lies in video memory, and a read over PCIe costs a microsecond. The submitting library keeps a copy in its own
//! memory, near an address that a register holds at the doorbell's store. The user program finds its place from the
//! windows that [`show`] sends (`trap/cached_put.rs` there); nothing here depends on a version of libcuda. The copy is
//! trusted for a channel only after it equalled GP_PUT [`AGREED`] times in a row, and it is compared again whenever GP_PUT
//! is read. Once it was ahead of GP_PUT it is never trusted again, and entries that were captured too early count as lost.
//! A copy that lags costs only time: if it shows nothing new, GP_PUT is read from USERD.

use aya_ebpf::{cty::c_void, helpers::generated::bpf_probe_read_user};
use nvcap_common::{
    AGREED, Header, MAX_WINDOWS, NEVER, NO_GET, NO_OWN, REGS, SharedChannel, SiteValue, WINDOW,
    Windows, kind, window_start,
};

use crate::{
    maps::{NO_WAKEUP, count, reserve, submit},
    read::{self, FEW, read_user},
    walk::Walk,
};

/// Reads the copy, if its place is known for this store.
#[inline(always)]
pub fn prepare(w: &mut Walk, site: SiteValue) {
    w.learn = site.learn;
    if site.own as usize >= REGS || site.word as usize >= WINDOW {
        return;
    }
    let near = w.regs[site.own as usize & (REGS - 1)];
    let mut own = 0u32;
    if read_user(
        (&raw mut own).cast(),
        4,
        window_start(near).wrapping_add(4 * u64::from(site.word)),
    ) {
        w.own = own;
    }
}

/// Reads GP_PUT in the cheapest way, and GP_GET from time to time.
#[inline(always)]
pub fn positions(w: &Walk, c: &mut SharedChannel) -> Option<(u32, u32)> {
    // The registers belong to the channel that was rung, not to the others of a scan.
    if w.own == NO_OWN || w.scanning != 0 {
        let positions = read::positions(c);
        if let Some((_, put)) = positions
            && w.learn != 0
            && w.scanning == 0
        {
            show(w, c, put);
        }
        return positions;
    }
    let new = u64::from(w.own).wrapping_sub(c.seen) & (u64::from(c.entries) - 1);
    if c.agreed >= AGREED
        && c.agreed != NEVER
        && w.own < c.entries
        && new != 0
        && new <= FEW
        && !read::is_full(c)
    {
        count(|s| s.cached_put += 1);
        return Some((NO_GET, w.own));
    }
    let positions = read::positions(c);
    if let Some((_, put)) = positions
        && c.agreed != NEVER
    {
        if put == w.own {
            if c.agreed < AGREED {
                c.agreed += 1;
            }
        } else if !ahead(w.own, put, c) {
            // Another thread submitted in between, or the word is no copy.
            c.agreed = 0;
        }
    }
    positions
}

/// Tells whether the copy in `own`, which was read first, is a few entries ahead of `put`.
#[inline(always)]
fn ahead(own: u32, put: u32, c: &SharedChannel) -> bool {
    let by = own.wrapping_sub(put) & (c.entries - 1);
    by != 0 && by <= FEW as u32
}

/// Tells whether a read of GP_PUT (in `w.put`) shows that the copy is ahead: the process writes it before GP_PUT, or it is
/// no copy.
#[inline(always)]
pub fn is_ahead(w: &Walk, c: &SharedChannel) -> bool {
    w.own != NO_OWN && w.scanning == 0 && c.agreed != NEVER && ahead(w.own, w.put, c)
}

/// Tells whether `to` is within 64 KiB of `from`.
#[inline(always)]
fn is_near(from: u64, to: u64) -> bool {
    from.wrapping_sub(to).wrapping_add(1 << 16) < 1 << 17
}

/// Sends the memory around the registers.
#[inline(always)]
fn show(w: &Walk, c: &mut SharedChannel, put: u32) {
    if c.windows >= MAX_WINDOWS {
        return;
    }
    let p = reserve(size_of::<Windows>()).cast::<Windows>();
    if p.is_null() {
        return;
    }
    c.windows += 1;
    // No branch may carry over into the next round: verifiers would follow all combinations.
    for r in 0..REGS {
        let from = window_start(w.regs[r]);
        // GP_PUT itself is no copy, and the memory around it and around the ring is video memory.
        let near = is_near(from, c.get_put) | is_near(from, c.ring);
        let from = if near { 0 } else { from };
        // SAFETY: p has room for a Windows; the helper checks `from`.
        unsafe {
            let to = (&raw mut (*p).words[r]).cast();
            let error = bpf_probe_read_user(to, 4 * WINDOW as u32, from as *const c_void);
            (&raw mut (*p).errors[r]).write(error as i32);
        }
    }
    // SAFETY: as above.
    unsafe {
        (&raw mut (*p).header).write(Header {
            kind: kind::WINDOWS,
            flags: 0,
            len: 0,
            ..w.header
        });
        (&raw mut (*p).ip).write(w.ip);
        (&raw mut (*p).space).write(w.space);
        (&raw mut (*p).channel).write(w.channel);
        (&raw mut (*p).put).write(put);
        (&raw mut (*p).pad).write(0);
    }
    submit(p.cast(), NO_WAKEUP);
}
