//! The programs that a hit on a doorbell breakpoint runs. They find the process and the token, and then walk the ring.
//!
//! The program has two forms, of which one is chosen at load: with bpf_loop (Linux 5.17 and later), and with a bounded loop that
//! continues by tail call.

use aya_ebpf::{
    cty::c_void,
    helpers::generated::{bpf_loop, bpf_probe_read_user},
    macros::perf_event,
    programs::PerfEventContext,
};
use nvcap_common::{CODE, NO_OWN, NO_TOKEN, REGS, Site, TRAP_TO_END, kind};

use crate::{
    cached_put, capture, kernel, known,
    maps::{MORE, WAKEUP, count, generation, reserve, submit, words},
    mode, python, stack,
    walk::{self, Walk, phase},
};

/// Time after the trap of an execution breakpoint from which a watchpoint's trap at the same store may be of the store's next
/// execution, ns.
const SAME_STORE_NS: u64 = 100_000;
/// Steps of one walk with bpf_loop.
const STEPS: u32 = 1 << 17;
/// Steps of one program without bpf_loop, and number of programs in a row.
const STEPS_A_ROUND: u32 = 128;
const ROUNDS: u32 = 32;

#[perf_event]
pub fn doorbell_loop(ctx: PerfEventContext) -> u32 {
    let Some(w) = walk::walk() else { return 0 };
    if !begin(&ctx, w) {
        return 0;
    }
    let mut none = 0u64;
    // SAFETY: the callback takes the index and the address of `none`.
    unsafe { bpf_loop(STEPS, one_step as *mut c_void, (&raw mut none).cast(), 0) };
    if w.phase < phase::DONE {
        capture::abandon(w);
    }
    0
}

extern "C" fn one_step(_index: u64, _none: *mut c_void) -> i64 {
    i64::from(!capture::step())
}

#[perf_event]
pub fn doorbell_tail(ctx: PerfEventContext) -> u32 {
    let Some(w) = walk::walk() else { return 0 };
    if begin(&ctx, w) {
        go_on(&ctx, w);
    }
    0
}

#[perf_event]
pub fn doorbell_more(ctx: PerfEventContext) -> u32 {
    if let Some(w) = walk::walk() {
        go_on(&ctx, w);
    }
    0
}

/// A step as a global function: the verifier checks it once, separately, and not once for each round and each state of the calling
/// loop. It returns 0 at the walk's end.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn nvcap_step() -> u32 {
    u32::from(capture::step())
}

#[inline(always)]
fn go_on(ctx: &PerfEventContext, w: &mut Walk) {
    for _ in 0..STEPS_A_ROUND {
        if nvcap_step() == 0 {
            return;
        }
    }
    w.rounds += 1;
    if w.rounds < ROUNDS {
        // SAFETY: slot 0 holds doorbell_more; where it does not, the call returns.
        unsafe { MORE.tail_call(ctx, 0) };
    }
    capture::abandon(w);
}

#[inline(always)]
fn begin(ctx: &PerfEventContext, w: &mut Walk) -> bool {
    let (pid, tid) = kernel::ids();
    registers(ctx, w);
    // The address of an execution breakpoint is that of the instruction.
    w.before = u32::from(w.doorbell == w.ip);
    if w.before == 0 {
        w.ip += TRAP_TO_END;
    }
    let (ip, generation) = (w.ip, generation());
    let Some(space) = known::space(w, pid, generation) else {
        count(|s| s.foreign += 1);
        return false;
    };
    let looked = w.looked_tid == tid && w.looked_ip == w.ip;
    w.looked_tid = 0;
    if w.before == 0 && looked && kernel::now() - w.looked_ns < SAME_STORE_NS {
        // The watchpoint behind an execution breakpoint: nothing came between.
        count(|s| s.again += 1);
        return false;
    }
    count(|s| s.hits += 1);
    w.header = kernel::header(kind::SUBMIT);
    w.space = space;
    let site_value = known::site(w, pid, generation);
    if w.before != 0 {
        let Some(value) = site_value else {
            // Not this trace's any more: the process has executed another program.
            return false;
        };
        // The watchpoint's trap has the same registers, as far as the doorbell's address and the token go.
        w.doorbell =
            w.regs[value.base as usize & (REGS - 1)].wrapping_add_signed(value.displacement);
        if w.doorbell & 0xfff != u64::from(value.offset) {
            return false;
        }
        w.ip += u64::from(value.len);
        w.looked_tid = tid;
        w.looked_ip = w.ip;
        w.looked_ns = w.header.time_ns;
        count(|s| s.before += 1);
    }
    w.token = NO_TOKEN;
    w.rung = 0;
    if let Some(value) = &site_value
        && (value.register as usize) < REGS
    {
        w.token = w.regs[value.register as usize & (REGS - 1)] as u32;
        w.rung = u32::from(known::token(w, (pid, ip), value, generation));
    }
    if mode::passes(w) {
        return false;
    }
    kernel::comm_into(&mut w.comm);
    if stack::wanted() && stack::is_drawn() {
        stack_registers(ctx, w);
        python::nvcap_python();
        stack::nvcap_stack();
    }
    w.own = NO_OWN;
    w.learn = 0;
    match site_value {
        Some(value) => cached_put::prepare(w, value),
        None => {
            count(|s| s.unknown_site += 1);
            site(w);
        }
    }
    capture::begin(w);
    w.phase < phase::DONE
}

#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn registers(ctx: &PerfEventContext, w: &mut Walk) {
    // SAFETY: a BPF_PROG_TYPE_PERF_EVENT context: whole fields may be loaded.
    let r = unsafe { &(*ctx.ctx).regs };
    w.ip = r.rip;
    // SAFETY: as above.
    w.doorbell = unsafe { (*ctx.ctx).addr };
    w.regs = [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15,
    ];
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn registers(ctx: &PerfEventContext, w: &mut Walk) {
    // SAFETY: a BPF_PROG_TYPE_PERF_EVENT context: whole fields may be loaded.
    let r = unsafe { &(*ctx.ctx).regs };
    w.ip = r.pc;
    // SAFETY: as above.
    w.doorbell = unsafe { (*ctx.ctx).addr };
    // One by one: an array that is made first takes half of a program's stack.
    macro_rules! take {
        ($($number:literal)*) => { $( w.regs[$number] = r.regs[$number]; )* };
    }
    take!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30);
    w.regs[31] = r.sp;
}

#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn stack_registers(ctx: &PerfEventContext, w: &mut Walk) {
    // SAFETY: a BPF_PROG_TYPE_PERF_EVENT context: whole fields may be loaded.
    let r = unsafe { &(*ctx.ctx).regs };
    (w.sp, w.fp, w.lr) = (r.rsp, r.rbp, 0);
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn stack_registers(ctx: &PerfEventContext, w: &mut Walk) {
    // SAFETY: a BPF_PROG_TYPE_PERF_EVENT context: whole fields may be loaded.
    let r = unsafe { &(*ctx.ctx).regs };
    (w.sp, w.fp, w.lr) = (r.sp, r.regs[29], r.regs[30]);
}

/// Sends the registers and code bytes that the user program needs to decode the store.
#[inline(always)]
fn site(w: &Walk) {
    let p = reserve(size_of::<Site>()).cast::<Site>();
    if p.is_null() {
        return;
    }
    // SAFETY: p has room for a Site, and `code` for 2 * CODE bytes.
    unsafe {
        (&raw mut (*p).header).write(nvcap_common::Header {
            kind: kind::SITE,
            ..w.header
        });
        (&raw mut (*p).ip).write(w.ip);
        (&raw mut (*p).doorbell).write(w.doorbell);
        (&raw mut (*p).space).write(w.space);
        words::<REGS>((&raw mut (*p).regs).cast(), (&raw const w.regs).cast());
        let from = (w.ip - CODE as u64) as *const c_void;
        let code = (&raw mut (*p).code).cast();
        let rc = bpf_probe_read_user(code, 2 * CODE as u32, from);
        (&raw mut (*p).code_error).write(rc as u32);
    }
    submit(p.cast(), WAKEUP);
}
