//! Doorbells at which no ring is read, if the user asked for that: they are left to a later doorbell, or only counted.

use aya_ebpf::Global;
use nvcap_common::{Mode, trust};

use crate::{
    maps::{count, fetch_add},
    scan::channel,
    walk::Walk,
};

#[unsafe(no_mangle)]
static MODE: Global<Mode> = Global::new(Mode::EACH);

/// Tells whether this doorbell's ring is left unread for now. If so, the doorbell has been noted.
#[inline(always)]
pub fn passes(w: &Walk) -> bool {
    let mode = MODE.load();
    // Whose the others are comes to light where rings are read.
    let certain = w.trust == trust::TOLD || w.trust == trust::CONCLUDED;
    if mode.every == 1 || w.rung == 0 || !certain {
        return false;
    }
    let Some(c) = channel(w.channel) else {
        return false;
    };
    if c.live == 0 {
        return false;
    }
    if mode.every == 0 {
        c.hits += 1;
        fetch_add(&raw mut c.counted, 1);
        c.counted_before += u64::from(w.before);
        count(|s| s.counted += 1);
        return true;
    }
    // Whoever reads the ring sets `waiting` to 0 before it reads GP_PUT: a doorbell that is noted here is either in what that read
    // shows, or waits for the next one.
    let waiting = c.waiting;
    if waiting == 0 {
        c.waiting_since = w.header.time_ns;
    } else if waiting + 1 >= mode.every
        // A small ring must not go round meanwhile.
        || 16 * (waiting + 1) >= u64::from(c.entries) || w.header.time_ns - c.waiting_since >= mode.within_ns
    {
        return false;
    }
    c.waiting = waiting + 1;
    c.hits += 1;
    count(|s| s.put_off += 1);
    true
}
