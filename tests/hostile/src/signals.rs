//! Signals of all kinds while it submits.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::bed::{Bed, CHANNELS, say};
use crate::process::{fork, handle, map_any, raise, wait};

static TAKEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid structure.
    let code = unsafe { (*info).si_code };
    // Counts only signals from this program itself: some machines deliver a lost breakpoint hit as a SIGTRAP.
    if code == libc::SI_TKILL || code == libc::SI_USER {
        TAKEN.fetch_add(1, Ordering::Relaxed);
    }
}

extern "C" fn submit(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // Rings of the usual size: the handler has no other way to the bed.
    let bed = Bed {
        entries: softgpu::layout::ENTRIES,
        files: false,
    };
    bed.submit(0);
    TAKEN.fetch_add(1, Ordering::Relaxed);
}

/// Stops itself, and a child continues it.
pub fn stopped(bed: &Bed) -> Result<()> {
    // SAFETY: reads an id.
    let own = unsafe { libc::getpid() };
    for _ in 0..3 {
        bed.submit_many(20);
        let child = fork(move || {
            // Repeated until it has stopped, however long that takes, and has ended this child: an earlier signal would be lost.
            // SAFETY: reads an id; another one once the parent has ended.
            while unsafe { libc::getppid() } == own {
                std::thread::sleep(Duration::from_millis(10));
                // SAFETY: the parent, which waits for this child.
                unsafe { libc::kill(own, libc::SIGCONT) };
            }
        })?;
        raise(libc::SIGSTOP);
        bed.submit_many(20);
        // SAFETY: a child of this process that has not been waited for yet.
        unsafe { libc::kill(child, libc::SIGKILL) };
        wait(child);
    }
    Ok(())
}

/// Ignores stray SIGTRAPs in modes without a handler of their own: some virtual machines rarely deliver a tracer's
/// breakpoint hit as a plain SIGTRAP (docs/limitations.md).
pub fn survive_lost_hits() {
    extern "C" fn pass(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    handle(libc::SIGTRAP, libc::SA_RESTART, pass);
}

/// Handles SIGTRAP itself, and sends it to itself.
pub fn trap_handler(bed: &Bed) -> Result<()> {
    handle(libc::SIGTRAP, 0, count);
    for _ in 0..20 {
        raise(libc::SIGTRAP);
        bed.submit_many(5);
    }
    say(&format!("taken {}", TAKEN.load(Ordering::Relaxed)));
    Ok(())
}

/// Ten thousand signals to the thread that submits.
pub fn storm(bed: &Bed) -> Result<()> {
    handle(libc::SIGUSR1, 0, count);
    // SAFETY: the id of this thread, which lives until the scope ends.
    let own = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..10_000 {
                // SAFETY: as above.
                unsafe { libc::pthread_kill(own, libc::SIGUSR1) };
            }
        });
        for n in 0..400 {
            bed.submit(n % CHANNELS);
        }
    });
    ensure!(TAKEN.load(Ordering::Relaxed) > 0, "no signal was taken");
    Ok(())
}

/// A timer that goes off every 500 us.
pub fn timers(bed: &Bed) -> Result<()> {
    handle(libc::SIGALRM, 0, count);
    let each = libc::timeval {
        tv_sec: 0,
        tv_usec: 500,
    };
    let set = |each| {
        let timer = libc::itimerval {
            it_interval: each,
            it_value: each,
        };
        // SAFETY: the kernel reads the structure.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()) }
    };
    ensure!(set(each) == 0, "setitimer");
    bed.submit_many(200);
    Ok(())
}

/// Submits from a signal handler with its own stack.
pub fn other_stack(bed: &Bed) -> Result<()> {
    const SIZE: usize = 1 << 18;
    let stack = libc::stack_t {
        ss_sp: map_any(SIZE, libc::PROT_READ | libc::PROT_WRITE, 0)? as *mut libc::c_void,
        ss_flags: 0,
        ss_size: SIZE,
    };
    // SAFETY: memory made just now, which nobody else uses.
    let failed = unsafe { libc::sigaltstack(&stack, ptr::null_mut()) } != 0;
    ensure!(!failed, "sigaltstack");
    handle(libc::SIGUSR2, libc::SA_ONSTACK, submit);
    for _ in 0..50 {
        raise(libc::SIGUSR2);
        bed.submit_many(2);
    }
    say(&format!("taken {}", TAKEN.load(Ordering::Relaxed)));
    Ok(())
}

/// All signals are blocked, and some are pending.
pub fn blocked(bed: &Bed) -> Result<()> {
    // SAFETY: a signal set, which sigfillset fills.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, ptr::null_mut());
    }
    for signal in [libc::SIGTRAP, libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD] {
        raise(signal);
    }
    bed.submit_many(100);
    Ok(())
}
