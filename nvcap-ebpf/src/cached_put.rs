//! The process's own copy of GP_PUT, which costs nothing to read.
//!
//! GP_PUT lies in video memory, and a read over PCIe costs a microsecond. Who writes it keeps a copy in its own memory,
//! near an address that is in a register at the doorbell's store. Where that is, the user program finds out from what
//! [`show`] sends (`cached_put.rs` there); nothing here knows a version of libcuda. The copy is believed of a channel only
//! after it was found equal to GP_PUT [`AGREED`] times in a row, it is compared again whenever GP_PUT is read, and it is
//! never believed again once it was ahead of GP_PUT: then what was captured too early counts as lost. A copy that lags
//! costs nothing but time: what is not new is read from USERD.

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

/// Reads the copy, where the store is known to have one.
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

/// GP_PUT, and GP_GET every now and then, at the least cost.
#[inline(always)]
pub fn positions(w: &Walk, c: &mut SharedChannel) -> Option<(u32, u32)> {
    // The registers tell of the channel that was rung, not of those that are looked at besides.
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
            // Another thread went on in between, or it is no copy.
            c.agreed = 0;
        }
    }
    positions
}

/// `own`, which was read first, is a few entries ahead of `put`.
#[inline(always)]
fn ahead(own: u32, put: u32, c: &SharedChannel) -> bool {
    let by = own.wrapping_sub(put) & (c.entries - 1);
    by != 0 && by <= FEW as u32
}

/// A read of GP_PUT (in `w.put`) shows that the copy is ahead: it is written before GP_PUT, or it is no copy.
#[inline(always)]
pub fn is_ahead(w: &Walk, c: &SharedChannel) -> bool {
    w.own != NO_OWN && w.scanning == 0 && c.agreed != NEVER && ahead(w.own, w.put, c)
}

/// Within 64 KiB of it.
#[inline(always)]
fn is_near(from: u64, to: u64) -> bool {
    from.wrapping_sub(to).wrapping_add(1 << 16) < 1 << 17
}

/// Sends what is in memory around the registers.
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
    // Without a branch that outlives its round: verifiers would follow all combinations.
    for r in 0..REGS {
        let from = window_start(w.regs[r]);
        // GP_PUT itself is no copy, and what lies about it and the ring is video memory.
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
