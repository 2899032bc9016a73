//! The Python frames of the thread that rang: addresses of code objects and instructions. The user program finds their names.
//!
//! The frames cannot change during the walk, because the thread stands in the trap, and its frames are its own.

use aya_ebpf::{
    macros::map,
    maps::{Array, PerCpuArray},
};
use nvcap_common::{
    Header, MOST_PYTHON, MOST_PYTHON_SPAN, NO_FIELD, PYTHON_ENTRY, PYTHON_PROBES, PYTHON_THREADS,
    PythonFrame, PythonFrames, PythonThread, PythonWalk, kind, python_place,
};

use crate::{
    kernel::user64,
    maps::{BPF_F_MMAPABLE, NO_WAKEUP, STACKS, reserve_in, submit},
    read::{bounded, read_user},
    stack, walk,
};

/// Layouts by address space. If stacks are taken, the loader makes the map as long as there may be spaces.
#[map]
static PYTHONS: Array<PythonWalk> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map(name = "PYTHON_THREADS")]
static THREADS: Array<PythonThread> = Array::with_max_entries(1, BPF_F_MMAPABLE);

const WORDS: usize = MOST_PYTHON_SPAN as usize / 8;

/// A frame's bytes.
#[map]
static PYTHON_FRAME: PerCpuArray<[u64; WORDS]> = PerCpuArray::with_max_entries(1, 0);

/// Takes the Python frames of the current thread. It is a global function, so that the verifier checks it once, separately.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn nvcap_python() -> u32 {
    if !stack::wanted() {
        return 0;
    }
    let Some(w) = walk::walk() else { return 0 };
    let Some(o) = PYTHONS.get(w.space) else {
        return 0;
    };
    if o.known == 0 {
        return 0;
    }
    let Some(bytes) = PYTHON_FRAME.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this processor's own; programs of breakpoints do not nest.
    let bytes = unsafe { &mut *bytes };
    let state = state_of(w.header.tid, w.space, o);
    if state == 0 {
        return 0;
    }
    let p = reserve_in(&STACKS, size_of::<PythonFrames>()).cast::<PythonFrames>();
    if p.is_null() {
        return 0;
    }
    let mut frame = user64(state + u64::from(o.state_frame));
    if o.cframe_frame != NO_FIELD && frame != 0 {
        frame = user64(frame + u64::from(o.cframe_frame));
    }
    let mut count = 0u32;
    let span = bounded::<MOST_PYTHON_SPAN>(o.span);
    for _ in 0..MOST_PYTHON {
        if frame == 0 || !read_user(bytes.as_mut_ptr().cast(), span, frame) {
            break;
        }
        frame = at(bytes, o.previous);
        let owner = at(bytes, o.owner) as u8;
        let inner = o.owner != NO_FIELD && u32::from(owner) >= o.first_inner_owner;
        let entry = o.entry != NO_FIELD && at(bytes, o.entry) as u8 != 0;
        let code = match (inner, at(bytes, o.code) & !7) {
            (true, _) => 0,
            (false, code) if entry => code | PYTHON_ENTRY,
            (false, code) => code,
        };
        let mut instruction = at(bytes, o.instruction);
        if o.instruction_bytes == 4 {
            instruction &= 0xffff_ffff;
        }
        let place = count as usize & (MOST_PYTHON - 1);
        // SAFETY: place is below the array's length.
        unsafe {
            (&raw mut (*p).frames)
                .cast::<PythonFrame>()
                .add(place)
                .write(PythonFrame { code, instruction });
        }
        count += 1;
    }
    // SAFETY: p has room for a PythonFrames; the frames behind `count` are not read.
    unsafe {
        (&raw mut (*p).header).write(Header {
            kind: kind::PYTHON,
            flags: 0,
            len: 0,
            ..w.header
        });
        (&raw mut (*p).count).write(count);
        (&raw mut (*p).cut).write(u32::from(frame != 0));
    }
    submit(p.cast(), NO_WAKEUP);
    1
}

/// Returns the address of the thread's state, if it is known and still the thread's; else 0.
#[inline(always)]
fn state_of(tid: u32, space: u32, o: &PythonWalk) -> u64 {
    let first = python_place(tid);
    for probe in 0..PYTHON_PROBES {
        let Some(t) = THREADS.get((first + probe) & (PYTHON_THREADS - 1)) else {
            return 0;
        };
        if t.tid == tid && t.space == space {
            let is_its =
                o.state_thread == NO_FIELD || user64(t.state + u64::from(o.state_thread)) == t.id;
            return if is_its { t.state } else { 0 };
        }
    }
    0
}

/// Returns the word at an offset in a frame's bytes, as far as it lies in the aligned word there.
#[inline(always)]
fn at(bytes: &[u64; WORDS], offset: u32) -> u64 {
    bytes[(offset / 8) as usize & (WORDS - 1)] >> (8 * (offset & 7))
}
