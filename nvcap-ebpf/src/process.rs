//! Processes and threads: forks, execs and exits of traced processes.
//!
//! Address spaces get their numbers here, at the moment when they begin, so that no doorbell of a child or of a newly executed program is
//! ever taken for one of its parent or predecessor.

use aya_ebpf::{
    macros::{map, raw_tracepoint},
    maps::{LruHashMap, PerCpuArray},
    programs::RawTracePointContext,
};
use aya_log_ebpf::{debug, warn};
use nvcap_common::{Birth, Header, Life, MAX_SPACES, Proc, kind, proc_flag};

use crate::{
    kernel,
    maps::{NEXT_SPACE, PROCS, WAKEUP, changed, count, fetch_add, reserve, submit, traced},
};

const SIGTRAP: u32 = 5;
/// `si_code` of a debug exception that neither a single step nor a breakpoint is known to have caused.
const TRAP_BRKPT: u32 = 1;
/// Offset of `si_code` in `struct kernel_siginfo`, which is that of siginfo_t.
const INFO_CODE: u32 = 8;
/// The bits of `task_struct.exit_code` that hold the signal.
const EXIT_SIGNAL: u32 = 0x7f;

/// Birth of each thread. When a running process is armed, births tell which threads inherited their breakpoints.
#[map]
pub static BIRTHS: LruHashMap<u32, Birth> = LruHashMap::with_max_entries(16384, 0);

/// Breakpoints of a thread that has inherited none.
const NONE: [u64; Birth::MOST] = [0; Birth::MOST];
/// `PERF_TYPE_BREAKPOINT`
const BREAKPOINT: u32 = 5;
/// The most events of a thread that are searched for breakpoints: profilers have events of their own among them.
const MOST_EVENTS: u32 = 32;

/// A birth in the making.
///
/// It lies in a map: the verifier keeps no state of what is written there. On the stack each count and each breakpoint is a state of its own in each
/// round of the loop: it went through 316,683 instructions (Linux 6.18) for the program, which are 12,125 so.
#[repr(C)]
struct Draft {
    birth: Birth,
    /// Number of breakpoints so far.
    count: u64,
}

#[map]
static DRAFT: PerCpuArray<Draft> = PerCpuArray::with_max_entries(1, 0);

/// Writes the birth of a thread that does not run yet, with the breakpoints that it has inherited.
#[inline(always)]
fn bear(task: u64) -> Option<&'static Birth> {
    let draft = DRAFT.get_ptr_mut(0)?;
    // SAFETY: this processor's own value. A program does not run again on a processor on which it has not ended.
    let (birth, count) = unsafe { (&raw mut (*draft).birth, &raw mut (*draft).count) };
    // SAFETY: as above.
    let breakpoints = unsafe {
        (*birth).time_ns = kernel::now();
        (*birth).breakpoints = NONE;
        count.write_volatile(0);
        (&raw mut (*birth).breakpoints).cast::<u64>()
    };
    let o = kernel::offsets();
    let context = kernel::read64(task, o.task_events);
    let head = context + u64::from(o.context_events);
    let mut at = match context {
        0 => 0,
        _ => kernel::read64(head, 0),
    };
    for _ in 0..MOST_EVENTS {
        if at == 0 || at == head {
            break;
        }
        let event = at - u64::from(o.event_entry);
        let parent = kernel::read64(event, o.event_parent);
        if parent != 0 && kernel::read32(event, o.event_type) == BREAKPOINT {
            let runs = kernel::read64(event, o.event_prog) != 0;
            let number = kernel::read64(parent, o.event_id);
            // SAFETY: as above; volatile, for the compiler would keep it in a register.
            let n = unsafe { count.read_volatile() } as usize;
            if n >= Birth::MOST {
                break;
            }
            let idle = if runs { 0 } else { Birth::IDLE };
            // SAFETY: as above, and n is less than their number.
            unsafe {
                breakpoints.add(n).write(number | idle);
                count.write_volatile(n as u64 + 1);
            }
        }
        at = kernel::read64(at, 0);
    }
    // SAFETY: as above.
    Some(unsafe { &*birth })
}

#[inline(always)]
fn life(what: u16, child: u32, space: u32, birth: Option<&Birth>) {
    let p = reserve(size_of::<Life>());
    if p.is_null() {
        count(|s| s.dropped += 1);
        return;
    }
    // SAFETY: p has room for a Life.
    unsafe {
        p.cast::<Life>().write(Life {
            header: kernel::header(what),
            child,
            space,
            comm: kernel::comm(),
            breakpoints: birth.map_or(NONE, |b| b.breakpoints),
        })
    };
    submit(p, WAKEUP);
}

/// sched_process_fork(parent, child)
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn process_fork(ctx: RawTracePointContext) -> i32 {
    let (pid, _) = kernel::ids();
    let Some(proc) = traced(pid) else { return 0 };
    let o = kernel::offsets();
    let child: u64 = ctx.arg(1);
    let child_pid = kernel::read32(child, o.task_tgid);
    let child_tid = kernel::read32(child, o.task_pid);
    let is_thread = child_pid == pid;
    if !is_thread && proc.flags & proc_flag::FOLLOW == 0 {
        return 0;
    }
    let birth = bear(child);
    if let Some(birth) = birth {
        let _ = BIRTHS.insert(child_tid, birth, 0);
    }
    if is_thread {
        life(kind::THREAD, child_tid, proc.space, birth);
    } else {
        // The child shares its parent's shared mappings: until it executes another program, its rings are its parent's.
        let inserted = PROCS.insert(child_pid, proc, 0);
        changed();
        if inserted.is_err() {
            warn!(
                &ctx,
                "child {} of process {} is not followed: too many processes", child_pid, pid
            );
        }
        life(kind::FORK, child_pid, proc.space, birth);
    }
    0
}

/// sched_process_exec(task, old pid, binary)
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn process_exec(ctx: RawTracePointContext) -> i32 {
    let (pid, _) = kernel::ids();
    let Some(proc) = traced(pid) else { return 0 };
    if proc.flags & proc_flag::KEEP != 0 {
        // The command that nvcap itself starts: its address space was prepared before it ran.
        let _ = PROCS.insert(
            pid,
            Proc {
                flags: proc.flags & !proc_flag::KEEP,
                ..proc
            },
            0,
        );
        changed();
        life(kind::EXEC, 1, proc.space, None);
        return 0;
    }
    let space = match NEXT_SPACE.get_ptr_mut(0) {
        Some(p) => fetch_add(p, 1) as u32 + 1,
        None => 0,
    };
    // Space 0 has no channels: nothing is captured, and every doorbell is reported as unknown.
    let space = if space < MAX_SPACES { space } else { 0 };
    if space == 0 {
        warn!(
            &ctx,
            "process {} executes something else, but there is no address space number left", pid
        );
    } else {
        debug!(
            &ctx,
            "process {} executes something else: address space {}", pid, space
        );
    }
    let _ = PROCS.insert(pid, Proc { space, ..proc }, 0);
    changed();
    life(kind::EXEC, 0, space, None);
    0
}

/// sched_process_exit(task)
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn process_exit(ctx: RawTracePointContext) -> i32 {
    let (pid, _) = kernel::ids();
    let Some(proc) = traced(pid) else { return 0 };
    let o = kernel::offsets();
    let task: u64 = ctx.arg(0);
    let last = kernel::read32(kernel::read64(task, o.task_signal), o.signal_live) == 0;
    let mut child = 0;
    if last {
        let signal = kernel::read32(task, o.task_exit_code) & EXIT_SIGNAL;
        child = Life::ENDED | signal << Life::SIGNAL;
    }
    let _ = BIRTHS.remove(kernel::ids().1);
    life(kind::EXIT, child, proc.space, None);
    if last {
        let _ = PROCS.remove(pid);
        changed();
    }
    0
}

/// signal_generate(signal, information, task, ...). If the kernel finds no cause of a debug exception, for example because the machine
/// lost which breakpoint it belongs to, the kernel sends SIGTRAP with this code.
#[raw_tracepoint(tracepoint = "signal_generate")]
pub fn signal_generate(ctx: RawTracePointContext) -> i32 {
    let (signal, info, task): (u64, u64, u64) = (ctx.arg(0), ctx.arg(1), ctx.arg(2));
    // Values that are no address stand for signals without information.
    if signal as u32 != SIGTRAP || info <= 1 || kernel::read32(info, INFO_CODE) != TRAP_BRKPT {
        return 0;
    }
    let o = kernel::offsets();
    let (pid, _) = kernel::ids();
    if kernel::read32(task, o.task_tgid) != pid {
        return 0;
    }
    let Some(proc) = traced(pid) else { return 0 };
    count(|s| s.stray += 1);
    life(kind::STRAY, 0, proc.space, None);
    0
}

/// module_load(module): the module's functions can be probed from here on.
#[raw_tracepoint(tracepoint = "module_load")]
pub fn module_load(_ctx: RawTracePointContext) -> i32 {
    let p = reserve(size_of::<Header>());
    if p.is_null() {
        // nvcap also looks at the modules now and then.
        return 0;
    }
    // SAFETY: p has room for a Header.
    unsafe { p.cast::<Header>().write(kernel::header(kind::MODULE)) };
    submit(p, WAKEUP);
    0
}
