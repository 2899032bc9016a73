//! Reads and changes hash maps for the user program, which runs this program itself (BPF_PROG_TEST_RUN).
//!
//! During a trace, the user program does not use bpf(2)'s own operations on hash maps: while they run, the kernel marks the
//! processor as busy with BPF, and skips any program on a kprobe or a breakpoint that is due there. On a preemptible kernel
//! the user program may lose the processor in the middle of such an operation. Driver calls and doorbells of the thread
//! that gets the processor then go unseen for as long as that thread runs. Running a BPF program marks nothing, and a raw
//! tracepoint's program runs with preemption disabled.

use aya_ebpf::{
    macros::{map, raw_tracepoint},
    maps::Array,
    programs::RawTracePointContext,
};
use nvcap_common::{Request, request};

use crate::{
    maps::{self, BPF_F_MMAPABLE, PROCS, SITES, TOKENS, XLATE},
    process::BIRTHS,
};

#[map]
static REQUEST: Array<Request> = Array::with_max_entries(1, BPF_F_MMAPABLE);

const ENOENT: i64 = -2;
const EINVAL: i64 = -22;

/// Carries out the request. The program is attached to nothing.
#[raw_tracepoint]
pub fn table(_ctx: RawTracePointContext) -> i32 {
    let Some(r) = REQUEST.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: the user program waits for this program's end before it touches the request again.
    let r = unsafe { &mut *r };
    r.result = carry_out(r);
    0
}

#[inline(always)]
fn carry_out(r: &mut Request) -> i64 {
    match r.what {
        request::GET_PROC => found(PROCS.get_ptr(r.id), &mut r.proc),
        request::SET_PROC => changed(PROCS.insert(r.id, r.proc, 0)),
        request::FORGET_PROC => changed(PROCS.remove(r.id)),
        request::SET_TOKEN => changed(TOKENS.insert(r.token, r.channel, 0)),
        request::FORGET_TOKEN => changed(TOKENS.remove(r.token)),
        request::SET_SITE => changed(SITES.insert(r.site, r.store, 0)),
        request::FORGET_SITE => changed(SITES.remove(r.site)),
        request::SET_RANGES => {
            // Too large for the stack: the map reads it in place.
            let ranges = &r.ranges;
            done(XLATE.insert(r.id, ranges, 0))
        }
        request::GET_BIRTH => found(BIRTHS.get_ptr(r.id), &mut r.birth),
        _ => EINVAL,
    }
}

/// Does as [`done`], for maps in which doorbells are looked up.
#[inline(always)]
fn changed<E>(result: Result<(), E>) -> i64
where
    i64: From<E>,
{
    maps::changed();
    done(result)
}

#[inline(always)]
fn done<E>(result: Result<(), E>) -> i64
where
    i64: From<E>,
{
    match result {
        Ok(()) => 0,
        Err(e) => e.into(),
    }
}

#[inline(always)]
fn found<T: Copy>(value: Option<*const T>, to: &mut T) -> i64 {
    match value {
        Some(value) => {
            // SAFETY: plain integers of a map's value.
            *to = unsafe { *value };
            0
        }
        None => ENOENT,
    }
}
