//! Doorbells at which no ring is read, where the user asked for that: they are left to a later doorbell, or only counted.

use aya_ebpf::Global;
use nvcap_common::{Mode, NO_TOKEN, trust};

use crate::{
    maps::{TOKENS, count, fetch_add},
    scan::{channel, token_key},
    walk::Walk,
};

#[unsafe(no_mangle)]
static MODE: Global<Mode> = Global::new(Mode::EACH);

/// Whether this doorbell's ring is not read now; then the doorbell has been noted.
#[inline(always)]
pub fn passes(w: &Walk) -> bool {
    let mode = MODE.load();
    if mode.every == 1 || w.token == NO_TOKEN {
        return false;
    }
    let Some(known) = TOKENS.get_ptr(token_key(w)) else {
        return false;
    };
    // SAFETY: plain integers.
    let known = unsafe { *known };
    // Whose the others are comes to light where rings are read.
    if known.trust != trust::TOLD && known.trust != trust::CONCLUDED {
        return false;
    }
    let Some(c) = channel(known.channel) else {
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
    } else if waiting + 1 >= mode.every || w.header.time_ns - c.waiting_since >= mode.within_ns {
        return false;
    }
    c.waiting = waiting + 1;
    c.hits += 1;
    count(|s| s.put_off += 1);
    true
}
