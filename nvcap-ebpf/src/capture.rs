//! Walks a channel's ring: new entries and their pushbuffer bytes go into the ring buffer.
//!
//! A walk is a small state machine in a per-processor map. It can so continue over as many steps as the kernel allows in
//! one program, and in further programs by tail call. A walk that cannot go on (ring buffer full, too many entries for one
//! trap) leaves the channel's `done` at the first entry that was not completely reported. The next doorbell of the channel,
//! or the user program, reports that entry again.

use nvcap_common::{
    AGREED, BATCH, CHUNK, CLASSES, Data, Gap, Header, NEVER, NO_OWN, NO_TOKEN, RANGES,
    SharedChannel, Submit, entry as raw, flag, kind, trust,
};

use crate::{
    cached_put,
    maps::{NO_WAKEUP, XLATE, count, discard, fetch_add, reserve, submit, wakeup_if_needed, words},
    read::{FEW, bounded, read_user},
    scan::{channel, judge, next, scan, take},
    walk::{self, Walk, phase, scanning},
};

const PAGE: u64 = 4096;

/// Flag in [`Walk::deferred`]: the ring buffer was full.
const PUT_OFF: u32 = 1;
/// Flag in [`Walk::deferred`]: the postponed work has been counted.
const PUT_OFF_COUNTED: u32 = 2;

/// Starts with the channel that the token names; without one, scans all channels.
#[inline(always)]
pub fn begin(w: &mut Walk) {
    w.advanced = 0;
    w.deferred = 0;
    w.contended = 0;
    w.rounds = 0;
    w.scanning = 0;
    if w.rung != 0 {
        if w.trust == trust::GUESS {
            // The registers may belong to another channel.
            w.own = NO_OWN;
            w.learn = 0;
        }
        if let Some(c) = channel(w.channel) {
            c.hits += 1;
            take(w, c);
            return;
        }
    } else {
        w.trust = trust::TOLD;
    }
    if w.token != NO_TOKEN {
        count(|s| s.unknown_token += 1);
    }
    scan(w, scanning::TAKE);
}

/// Makes one step; false when the walk is at its end. A step runs through as many phases as follow each other directly, so
/// that a doorbell with one entry takes two steps.
#[inline(always)]
pub fn step() -> bool {
    let Some(at) = walk::phase_at() else {
        return false;
    };
    // Read again each time: the phases change it through pointers of their own.
    // SAFETY: it lies in a map.
    let phase = || unsafe { at.read_volatile() };
    if phase() == phase::NEXT {
        nvcap_next();
    }
    if phase() == phase::LOOK {
        nvcap_look();
    }
    if phase() == phase::BATCH {
        nvcap_batch();
    }
    if phase() == phase::ENTRY {
        nvcap_entry();
    }
    if phase() == phase::XLATE {
        nvcap_translate();
    }
    if phase() == phase::DATA {
        nvcap_data();
    }
    if phase() == phase::RELEASE {
        nvcap_release();
    }
    phase() < phase::DONE
}

/// The phases as global functions: the verifier checks each once, separately, and not once for each path through the phases
/// before it.
macro_rules! global {
    ($($name:ident is $phase:ident,)*) => { $(
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name() -> u32 {
            if let Some(w) = walk::walk() {
                $phase(w);
            }
            0
        }
    )* };
}
global! {
    nvcap_next is next,
    nvcap_look is look,
    nvcap_batch is batch,
    nvcap_entry is entry,
    nvcap_translate is translate,
    nvcap_data is data,
    nvcap_release is release,
}

#[inline(always)]
fn look(w: &mut Walk) {
    w.phase = phase::RELEASE;
    let Some(c) = channel(w.channel) else { return };
    let entries = u64::from(c.entries);
    if c.live == 0 {
        return;
    }
    w.batched = u32::from(c.waiting != 0);
    c.waiting = 0;
    let Some((get, put)) = cached_put::positions(w, c) else {
        if w.scanning == 0 {
            c.unread += 1;
        }
        return;
    };
    if u64::from(put) >= entries {
        c.beyond = c.beyond.saturating_add(1);
        return;
    }
    c.unread = 0;
    w.get = get;
    w.put = put;
    c.looks += 1;
    if cached_put::is_ahead(w, c) && !step_back(w, c) {
        w.deferred |= PUT_OFF;
        return;
    }
    // The registers belong to one trap and serve one look.
    w.own = NO_OWN;
    w.learn = 0;
    let seen = c.seen;
    let target = seen + (u64::from(w.put).wrapping_sub(seen) & (entries - 1));
    c.seen = target;
    if c.done == target {
        c.empty += 1;
        return;
    }
    if target - c.done >= entries {
        // Overwritten before anybody could read them: all but the last full ring of entries.
        let missing = target - c.done - (entries - 1);
        if !gap(w, c.done, missing) {
            w.deferred |= PUT_OFF;
            return;
        }
        c.done += missing;
    }
    w.advanced += 1;
    w.last = w.channel;
    w.late_until = seen;
    if c.looks == 1 && target - c.done > 1 {
        // The first look: entries before the newest may have been rung for earlier.
        w.late_until = target - 1;
    }
    w.cursor = c.done;
    w.target = target;
    w.phase = phase::BATCH;
}

/// Stops trusting the process's own copy of GP_PUT. Entries beyond GP_PUT that were captured because of the copy may differ
/// from the submitted ones: they count as lost, and are captured again when they are rung for.
#[inline(always)]
fn step_back(w: &Walk, c: &mut SharedChannel) -> bool {
    if c.agreed >= AGREED {
        let beyond = c.seen.wrapping_sub(u64::from(w.put)) & (u64::from(c.entries) - 1);
        if beyond != 0 && beyond <= FEW {
            if !gap(w, c.seen - beyond, beyond) {
                return false;
            }
            c.seen -= beyond;
            if c.done > c.seen {
                c.done = c.seen;
            }
        }
        count(|s| s.cached_put_wrong += 1);
    }
    c.agreed = NEVER;
    true
}

#[inline(always)]
fn gap(w: &Walk, position: u64, missing: u64) -> bool {
    let p = reserve(size_of::<Gap>());
    if p.is_null() {
        return false;
    }
    // SAFETY: p has room for a Gap.
    unsafe {
        p.cast::<Gap>().write(Gap {
            header: Header {
                kind: kind::GAP,
                flags: 0,
                len: 0,
                ..w.header
            },
            position,
            count: missing,
            channel: w.channel,
            pad: 0,
        });
    }
    submit(p, NO_WAKEUP);
    true
}

#[inline(always)]
fn batch(w: &mut Walk) {
    w.phase = phase::RELEASE;
    let Some(c) = channel(w.channel) else { return };
    if w.cursor == w.target {
        return;
    }
    let entries = u64::from(c.entries);
    let at = w.cursor & (entries - 1);
    let mut n = w.target - w.cursor;
    if n > entries - at {
        n = entries - at;
    }
    // Starts at a multiple of 64 bytes: see `read.rs`.
    let first = if c.ring & 63 == 0 { at & 7 } else { 0 };
    if n > BATCH as u64 - first {
        n = BATCH as u64 - first;
    }
    let mut span = first + n;
    if span > BATCH as u64 {
        span = BATCH as u64;
    }
    let len = span as u32 * 8;
    if !read_user(
        (&raw mut w.batch).cast(),
        bounded::<{ 8 * BATCH as u32 }>(len),
        c.ring + 8 * (at - first),
    ) {
        if gap(w, w.cursor, w.target - w.cursor) {
            c.done = w.target;
        }
        return;
    }
    let p = reserve(size_of::<Submit>());
    if p.is_null() {
        w.deferred |= PUT_OFF;
        return;
    }
    let late = if w.cursor < w.late_until {
        flag::LATE
    } else {
        0
    };
    let scanned = if w.scanning != 0 || w.trust == trust::GUESS {
        flag::SCANNED
    } else {
        0
    };
    let before = if w.before != 0 { flag::BEFORE } else { 0 };
    let batched = if w.batched != 0 { flag::BATCHED } else { 0 };
    let p = p.cast::<Submit>();
    // Field by field, and arrays word by word: a copy of the whole calls memcpy, which is a loop over bytes here.
    // SAFETY: p has room for a Submit.
    unsafe {
        (&raw mut (*p).header).write(Header {
            kind: kind::SUBMIT,
            flags: late | scanned | before | batched,
            len: 0,
            ..w.header
        });
        (&raw mut (*p).channel).write(w.channel);
        (&raw mut (*p).token).write(w.token);
        (&raw mut (*p).position).write(w.cursor);
        (&raw mut (*p).get).write(w.get);
        (&raw mut (*p).put).write(w.put);
        (&raw mut (*p).count).write(n as u32);
        (&raw mut (*p).space).write(w.space);
        (&raw mut (*p).ip).write(w.ip);
        (&raw mut (*p).doorbell).write(w.doorbell);
        (&raw mut (*p).target).write(w.target);
        (&raw mut (*p).extended).write(c.extended);
        words::<2>((&raw mut (*p).comm).cast(), (&raw const w.comm).cast());
        (&raw mut (*p).first).write(first as u32);
        (&raw mut (*p).pad).write(0);
        words::<BATCH>((&raw mut (*p).entries).cast(), (&raw const w.batch).cast());
    }
    let p = p.cast();
    submit(p, wakeup_if_needed());
    w.count = n as u32;
    w.first = first as u32;
    w.index = 0;
    w.phase = phase::ENTRY;
}

/// Returns an entry of the batch.
#[inline(always)]
fn nth(w: &Walk, index: u32) -> u64 {
    w.batch[((w.first + index) & (BATCH as u32 - 1)) as usize]
}

/// Takes a control entry, which may set the extended base.
#[inline(always)]
fn control(c: &mut SharedChannel, e: u64) {
    if raw::opcode(e) == raw::SET_EXTENDED_BASE {
        c.extended = raw::extended_base(e as u32);
    }
}

#[inline(always)]
fn entry(w: &mut Walk) {
    let Some(c) = channel(w.channel) else {
        w.phase = phase::RELEASE;
        return;
    };
    if w.index >= w.count {
        w.cursor += u64::from(w.count);
        w.index = 0;
        w.count = 0;
        c.done = w.cursor;
        w.phase = if w.cursor == w.target {
            phase::RELEASE
        } else {
            phase::BATCH
        };
        return;
    }
    let e = nth(w, w.index);
    let words = raw::dwords(e);
    if words == 0 {
        control(c, e);
        w.index += 1;
        return;
    }
    w.address = c.extended | (e & raw::ADDRESS);
    w.left = words * 4;
    w.offset = 0;
    w.paged = 0;
    start_translation(w, c);
}

/// Starts the search for the process's address of `address`.
#[inline(always)]
fn start_translation(w: &mut Walk, c: &SharedChannel) {
    w.room = u64::MAX;
    w.low = 0;
    w.high = RANGES as u32;
    w.phase = if c.xlate != 0 {
        phase::XLATE
    } else {
        phase::DATA
    };
}

/// An address that cannot be read.
const NOWHERE: u64 = 1 << 63;

/// Makes one step of a binary search among the channel's ranges. The verifier checks one step, however long the search is.
#[inline(always)]
fn translate(w: &mut Walk) {
    let Some(c) = channel(w.channel) else {
        w.phase = phase::RELEASE;
        return;
    };
    let Some(x) = XLATE.get_ptr(c.xlate) else {
        w.phase = phase::DATA;
        return;
    };
    // SAFETY: plain integers; the user program replaces the value whole.
    let x = unsafe { &*x };
    if w.high > x.count {
        w.high = x.count;
    }
    if w.low < w.high {
        let middle = (w.low + w.high) / 2;
        if x.ranges[middle as usize & (RANGES - 1)].gpu <= w.address {
            w.low = middle + 1;
        } else {
            w.high = middle;
        }
        return;
    }
    w.phase = phase::DATA;
    // The last range that begins at the address or before it.
    let r = x.ranges[w.low.wrapping_sub(1) as usize & (RANGES - 1)];
    let offset = w.address.wrapping_sub(r.gpu);
    if w.low != 0 && offset < r.len {
        w.room = r.len - offset;
        w.beyond = r.gpu + r.len;
        w.address = r.cpu + offset;
    } else if x.complete != 0 {
        w.address = NOWHERE;
    }
}

#[inline(always)]
fn data(w: &mut Walk) {
    let to_page_end = (PAGE - (w.address & (PAGE - 1))) as u32;
    let mut span = if w.left > CHUNK as u32 {
        CHUNK as u32
    } else {
        w.left
    };
    if w.paged != 0 && span > to_page_end {
        span = to_page_end;
    }
    if u64::from(span) > w.room {
        span = w.room as u32;
    }
    if span as usize <= CLASSES[0] {
        chunk::<{ CLASSES[0] }>(w, span, to_page_end)
    } else if span as usize <= CLASSES[1] {
        chunk::<{ CLASSES[1] }>(w, span, to_page_end)
    } else if span as usize <= CLASSES[2] {
        chunk::<{ CLASSES[2] }>(w, span, to_page_end)
    } else if span as usize <= CLASSES[3] {
        chunk::<{ CLASSES[3] }>(w, span, to_page_end)
    } else if span as usize <= CLASSES[4] {
        chunk::<{ CLASSES[4] }>(w, span, to_page_end)
    } else {
        chunk::<{ CLASSES[5] }>(w, span, to_page_end)
    }
}

/// Copies `span` bytes, at most SIZE.
#[inline(always)]
fn chunk<const SIZE: usize>(w: &mut Walk, span: u32, to_page_end: u32) {
    let p = reserve(size_of::<Data>() + SIZE);
    if p.is_null() {
        w.deferred |= PUT_OFF;
        w.phase = phase::RELEASE;
        return;
    }
    // The compiler knows the bound from the choice of SIZE and would drop this check; the verifier of Linux 6.1 does not
    // carry it that far ("R2 unbounded memory access"). So the check is made on a value that the compiler cannot see
    // through.
    let bounded = core::hint::black_box(span);
    if bounded as usize > SIZE {
        discard(p);
        return;
    }
    // SAFETY: SIZE bytes follow the fixed part, and it is no more.
    let ok = read_user(unsafe { p.add(size_of::<Data>()) }, bounded, w.address);
    if !ok && span > to_page_end {
        // One page of it is missing; a failed read does not say which.
        w.paged = 1;
        discard(p);
        return;
    }
    let (flags, len) = if ok { (0, span) } else { (flag::MISSING, 0) };
    if !ok {
        count(|s| s.unreadable += 1);
    }
    // SAFETY: p has room for a Data.
    unsafe {
        p.cast::<Data>().write(Data {
            header: Header {
                kind: kind::DATA,
                flags,
                len,
                ..w.header
            },
            position: w.cursor + u64::from(w.index),
            channel: w.channel,
            offset: w.offset,
            span,
            pad: 0,
        });
    }
    submit(p, NO_WAKEUP);
    w.offset += span;
    w.left -= span;
    w.address = w.address.wrapping_add(u64::from(span));
    w.room -= u64::from(span);
    if w.left == 0 {
        w.index += 1;
        w.phase = phase::ENTRY;
    } else if w.room == 0
        && let Some(c) = channel(w.channel)
    {
        w.address = w.beyond;
        start_translation(w, c);
    }
}

/// Marks everything as done that the walk has reported completely. Control entries, which have no bytes, are done with
/// their batch.
#[inline(always)]
fn settle(w: &Walk, c: &mut SharedChannel) {
    if w.count == 0 {
        return;
    }
    let mut index = w.index;
    for _ in 0..BATCH {
        let e = nth(w, index);
        if index >= w.count || raw::dwords(e) != 0 {
            break;
        }
        control(c, e);
        index += 1;
    }
    c.done = w.cursor + u64::from(index);
}

#[inline(always)]
fn release(w: &mut Walk) {
    w.phase = phase::DONE;
    let Some(c) = channel(w.channel) else { return };
    settle(w, c);
    w.count = 0;
    if w.deferred != 0 {
        // Once for a doorbell, however many channels it leaves.
        if w.deferred & PUT_OFF_COUNTED == 0 {
            w.deferred |= PUT_OFF_COUNTED;
            count(|s| s.deferred += 1);
        }
        give_up(w, c);
    } else {
        let left = fetch_add(&raw mut c.claim, w.served.wrapping_neg()) - w.served;
        if left != 0 {
            // Doorbells that came meanwhile left the channel to this walk.
            w.served = left;
            w.phase = phase::LOOK;
            return;
        }
    }
    if w.scanning != 0 {
        w.phase = phase::NEXT;
    } else if w.trust != trust::TOLD && w.deferred == 0 {
        judge(w);
    }
}

/// Gives the channel back in any case. The next doorbell reports entries that came meanwhile.
#[inline(always)]
fn give_up(w: &mut Walk, c: &mut SharedChannel) {
    for _ in 0..16 {
        let left = fetch_add(&raw mut c.claim, w.served.wrapping_neg()) - w.served;
        w.served = left;
        if left == 0 {
            break;
        }
    }
}

/// Ends a walk that has used up the steps of one trap.
#[inline(always)]
pub fn abandon(w: &mut Walk) {
    count(|s| s.cut += 1);
    if w.phase != phase::NEXT
        && w.phase < phase::DONE
        && let Some(c) = channel(w.channel)
    {
        settle(w, c);
        give_up(w, c);
    }
    w.phase = phase::DONE;
}
