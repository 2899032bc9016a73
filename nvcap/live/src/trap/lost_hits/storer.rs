//! A process that only stores to one word, bound to one processor, and counts its SIGTRAPs. It is forked and never executes another program,
//! so that it must not call anything that takes a lock or allocates.

use std::{
    ffi::c_int,
    io,
    ptr::NonNull,
    sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::SeqCst},
};

/// Orders of the parent to the child.
mod order {
    pub(super) const WAIT: u32 = 0;
    pub(super) const STORE: u32 = 1;
    pub(super) const END: u32 = 2;
}

/// Memory that a child shares with its parent.
#[repr(C, align(4096))]
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The word that the child stores to, alone on its page.
    pub word: AtomicU32,
    counts: Counts,
}

/// Counts of a child.
#[repr(C, align(2048))]
#[derive(Debug, Default)]
struct Counts {
    order: AtomicU32,
    stores: AtomicU64,
    behind: AtomicU64,
    traps: AtomicU64,
    causeless: AtomicU64,
    code: AtomicI32,
}

/// Result of the stores of a child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    /// Number of stores.
    pub stores: u64,
    /// Number of SIGTRAPs.
    pub traps: u64,
    /// SIGTRAPs for debug exceptions right behind the store, for which the kernel found no cause.
    pub causeless: u64,
    /// `si_code` of the last other SIGTRAP.
    pub other_code: Option<i32>,
}

/// The child. It is ended when this value is dropped.
#[derive(Debug)]
pub(super) struct Storer {
    shared: NonNull<Shared>,
    /// Its process id.
    pub pid: u32,
    has_ended: bool,
}

impl Storer {
    /// Forks a child that waits. With `int1` it executes that instruction after each time that it has made this many stores: the exception
    /// looks as without a cause, as one with a DR6 that names no breakpoint.
    ///
    /// # Errors
    /// Those of mmap(2) and fork(2).
    pub(super) fn new(processor: Option<usize>, int1: Option<u64>) -> io::Result<Self> {
        let shared = map()?;
        // SAFETY: the child calls `child` alone, which neither allocates nor takes a lock.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: mapped until this process ends.
            child(unsafe { shared.as_ref() }, processor, int1);
        }
        let error = io::Error::last_os_error();
        let storer = Self {
            shared,
            pid: pid as u32,
            has_ended: pid < 0,
        };
        if pid < 0 { Err(error) } else { Ok(storer) }
    }

    /// Returns the address of the word that the child stores to.
    pub(super) fn address(&self) -> u64 {
        self.shared().word.as_ptr() as u64
    }

    /// Lets the child store.
    pub(super) fn start(&self) {
        self.shared().counts.order.store(order::STORE, SeqCst);
    }

    /// Ends the child, and returns its counts.
    ///
    /// # Errors
    /// When the child was killed.
    pub(super) fn end(&mut self) -> io::Result<Stored> {
        self.shared().counts.order.store(order::END, SeqCst);
        let status = self.wait();
        let counts = &self.shared().counts;
        let (traps, causeless) = (counts.traps.load(SeqCst), counts.causeless.load(SeqCst));
        if status != 0 {
            return Err(io::Error::other(format!(
                "a process of nvcap's own was killed (wait status {status:#x})"
            )));
        }
        Ok(Stored {
            stores: counts.stores.load(SeqCst),
            traps,
            causeless,
            other_code: (traps > causeless).then(|| counts.code.load(SeqCst)),
        })
    }

    /// Returns the number of stores so far.
    #[cfg(test)]
    pub(super) fn stores(&self) -> u64 {
        self.shared().counts.stores.load(SeqCst)
    }

    fn shared(&self) -> &Shared {
        // SAFETY: mapped until self is dropped; all its members are atomic.
        unsafe { self.shared.as_ref() }
    }

    fn wait(&mut self) -> c_int {
        let mut status = 0;
        if !std::mem::replace(&mut self.has_ended, true) {
            // SAFETY: a child of this process that nobody else waits for.
            while unsafe { libc::waitpid(self.pid as i32, &mut status, 0) } < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
        status
    }
}

impl Drop for Storer {
    fn drop(&mut self) {
        if !self.has_ended {
            // SAFETY: a child that was not waited for, so that the number is its own.
            unsafe { libc::kill(self.pid as i32, libc::SIGKILL) };
            self.wait();
        }
        // SAFETY: mapped by `map`, and the child is gone.
        unsafe { libc::munmap(self.shared.as_ptr().cast(), size_of::<Shared>()) };
    }
}

fn map() -> io::Result<NonNull<Shared>> {
    // SAFETY: a new mapping.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Shared>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // Zeros are valid for all members.
    NonNull::new(p.cast()).ok_or_else(|| io::Error::other("mmap gave address 0"))
}

/// Counts of this process, for the handler.
static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(std::ptr::null_mut());

fn child(shared: &Shared, processor: Option<usize>, int1: Option<u64>) -> ! {
    COUNTS.store((&raw const shared.counts).cast_mut(), SeqCst);
    // SAFETY: system calls with constants and with structures of this frame, which zero is a value of.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if let Some(processor) = processor {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor, &mut one);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one);
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut());
    }
    let counts = &shared.counts;
    while counts.order.load(SeqCst) == order::WAIT {
        // SAFETY: no memory is touched.
        unsafe { libc::usleep(1000) };
    }
    let mut n = 0;
    while counts.order.load(SeqCst) == order::STORE {
        store(shared, n as u32);
        n += 1;
        counts.stores.store(n, SeqCst);
        if int1.is_some_and(|every| n % every == 0) {
            without_cause(counts);
        }
    }
    // SAFETY: ends this process, without what its parent would do at its end.
    unsafe { libc::_exit(0) }
}

/// Stores, after noting the address right behind the store, where the processor will be.
#[cfg(target_arch = "x86_64")]
fn store(shared: &Shared, value: u32) {
    // SAFETY: both addresses are of atomic members.
    unsafe {
        std::arch::asm!(
            "lea {behind}, [rip + 2f]", "mov [{note}], {behind}", "mov dword ptr [{word}], {value:e}", "2:",
            behind = out(reg) _, note = in(reg) shared.counts.behind.as_ptr(), word = in(reg) shared.word.as_ptr(), value = in(reg) value,
            options(nostack, preserves_flags)
        );
    }
}

/// Raises an exception without a cause, where the handler expects one.
#[cfg(target_arch = "x86_64")]
fn without_cause(counts: &Counts) {
    // SAFETY: the kernel sends SIGTRAP, which has a handler; the address is of an atomic member.
    unsafe {
        std::arch::asm!(
            "lea {behind}, [rip + 2f]", "mov [{note}], {behind}", ".byte 0xf1", "2:",
            behind = out(reg) _, note = in(reg) counts.behind.as_ptr(),
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn store(shared: &Shared, value: u32) {
    shared
        .word
        .store(value, std::sync::atomic::Ordering::Relaxed);
}

#[cfg(not(target_arch = "x86_64"))]
fn without_cause(_counts: &Counts) {}

extern "C" fn on_trap(_signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: set before the handler was, and mapped until this process ends; the kernel gives both pointers.
    let (counts, info) = unsafe { (&*COUNTS.load(SeqCst), &*info) };
    counts.traps.fetch_add(1, SeqCst);
    // SAFETY: SIGTRAP of an exception has an address; of a kill, the word is the sender's id, which is no address of an instruction.
    let address = unsafe { info.si_addr() } as u64;
    let behind = counts.behind.load(SeqCst);
    let is_behind = address == behind || (address + 1 == behind && skip_int1(context));
    if info.si_code == libc::TRAP_BRKPT && is_behind && is_debug_exception(context) {
        counts.causeless.fetch_add(1, SeqCst);
    } else {
        counts.code.store(info.si_code, SeqCst);
    }
}

/// Tells whether exception 1, the debug exception, caused the signal.
#[cfg(target_arch = "x86_64")]
fn is_debug_exception(context: *mut libc::c_void) -> bool {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a ucontext.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_TRAPNO as usize] == 1
}

/// Continues behind an int1 that would be executed again, and tells whether there was one. (Virtual machines of KVM on AMD processors raise its
/// exception before the instruction.)
#[cfg(target_arch = "x86_64")]
fn skip_int1(context: *mut libc::c_void) -> bool {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a ucontext, which it may change.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let rip = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    // SAFETY: where this process was interrupted, which is code.
    let is_int1 = unsafe { *(*rip as *const u8) } == 0xf1;
    *rip += i64::from(is_int1);
    is_int1
}

#[cfg(not(target_arch = "x86_64"))]
fn skip_int1(_context: *mut libc::c_void) -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn is_debug_exception(_context: *mut libc::c_void) -> bool {
    false
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn stored(int1: Option<u64>, meanwhile: impl FnOnce(&Storer)) -> Stored {
        let mut storer = Storer::new(None, int1).expect("a child");
        storer.start();
        nvcap_waiting::until("1000 stores", || storer.stores() >= 1000);
        meanwhile(&storer);
        storer.end().expect("it ends by itself")
    }

    #[test]
    fn a_debug_exception_without_a_cause_is_told_from_other_traps() {
        let all = stored(None, |_| ());
        assert!(all.stores >= 1000);
        assert_eq!((all.traps, all.causeless, all.other_code), (0, 0, None));
        let all = stored(Some(100), |_| ());
        assert_eq!(
            (all.causeless, all.traps),
            (all.stores / 100, all.stores / 100)
        );
        let sent = |storer: &Storer| {
            // SAFETY: the child of this test.
            assert_eq!(unsafe { libc::kill(storer.pid as i32, libc::SIGTRAP) }, 0);
            let traps = &storer.shared().counts.traps;
            nvcap_waiting::until("the signal has come", || traps.load(SeqCst) > 0);
        };
        let all = stored(None, sent);
        assert_eq!(
            (all.traps, all.causeless, all.other_code),
            (1, 0, Some(libc::SI_USER))
        );
    }

    #[test]
    fn a_child_that_was_killed_is_an_error() {
        let mut storer = Storer::new(None, None).expect("a child");
        // SAFETY: the child of this test.
        assert_eq!(unsafe { libc::kill(storer.pid as i32, libc::SIGKILL) }, 0);
        let error = storer.end().expect_err("it was killed").to_string();
        assert!(error.contains("was killed"), "{error}");
    }
}
