//! Signals of the user during a trace, or while a file is read. The first signal ends the trace or the reading. The captured data is still
//! shown after it, as long as somebody takes the output. A write that nobody takes is given up after a while, or at a further signal.

use std::{
    io,
    os::fd::RawFd,
    ptr,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use super::error::{Error, Result, no_thread};
use nvcap_recording::blocked_write;

/// Signals that ask for the end.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Longest time that one write may take once the end was asked for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Signal that interrupts a write. Its default action is to be ignored, so that a signal which comes too late does no harm.
const INTERRUPTION: i32 = libc::SIGURG;

static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// True once tracing has ended: a signal from then on concerns the output.
static TRACED: AtomicBool = AtomicBool::new(false);
/// Descriptor to which the handler writes, so that the thread that minds the output need not poll.
static EVENT: AtomicI32 = AtomicI32::new(-1);
/// Descriptor to which the handler writes, so that the tracing thread need not poll. Nobody reads from it, so it stays readable.
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// True once the handlers are installed.
static CAUGHT: AtomicBool = AtomicBool::new(false);
/// True once any signal has come.
static CAME: AtomicBool = AtomicBool::new(false);
/// Number of signals that have come.
static COUNT: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(signal: i32) {
    SIGNAL.store(signal, Ordering::SeqCst);
    CAME.store(true, Ordering::SeqCst);
    COUNT.fetch_add(1, Ordering::SeqCst);
    let one = 1u64.to_ne_bytes();
    for event in [&EVENT, &WAKE] {
        // SAFETY: async-signal-safe; eight bytes, to a descriptor that stays open.
        unsafe { libc::write(event.load(Ordering::SeqCst), one.as_ptr().cast(), 8) };
    }
}

/// Signal that asks for recordings to be sealed.
const SEALING: i32 = libc::SIGUSR2;
/// True while sealing was asked for and has not been done.
static SEAL: AtomicBool = AtomicBool::new(false);

extern "C" fn on_sealing(_signal: i32) {
    SEAL.store(true, Ordering::SeqCst);
}

extern "C" fn on_no_sealing(_signal: i32) {}

/// Makes nvcap survive the sealing signal if it has no recording to seal, because a user may send the signal to every nvcap of the machine.
/// Started programs are not affected: handlers are not inherited.
pub fn survive_sealing() {
    handle(SEALING, on_no_sealing, libc::SA_RESTART);
}

/// Makes the sealing signal set the returned flag from now on. The code that seals the recordings clears the flag.
pub fn sealing() -> &'static AtomicBool {
    handle(SEALING, on_sealing, libc::SA_RESTART);
    &SEAL
}

/// Tells whether sealing was asked for and has not been done.
pub fn asks_for_sealing() -> bool {
    SEAL.load(Ordering::SeqCst)
}

extern "C" fn on_interruption(_signal: i32) {}

fn handle(signal: i32, handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: an all-zero sigaction is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = flags;
    // SAFETY: the handlers do only async-signal-safe work.
    unsafe { libc::sigaction(signal, &action, ptr::null_mut()) };
}

/// Installs the handlers, if they are not installed yet. `shows` is the id of the thread that writes the output.
///
/// # Errors
/// When there are no more file descriptors or threads.
pub fn catch(shows: i32) -> Result<()> {
    let failed = |e: io::Error| {
        Error::new(
            "preparing for signals",
            e,
            "raise the limit on open files (ulimit -n)",
        )
    };
    if CAUGHT.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    for to in [&EVENT, &WAKE] {
        // SAFETY: makes a descriptor.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if event < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        to.store(event, Ordering::SeqCst);
    }
    let event = EVENT.load(Ordering::SeqCst);
    handle(INTERRUPTION, on_interruption, 0);
    for signal in ENDING {
        handle(signal, on_signal, libc::SA_RESTART);
    }
    thread::Builder::new()
        .name("nvcap-signals".into())
        .spawn(move || mind(event, shows))
        .map_err(|e| no_thread(&e))?;
    Ok(())
}

/// Returns the number of signals since the handlers were installed. It lets a thread that does not trace recognise a new signal.
pub fn count() -> u32 {
    COUNT.load(Ordering::SeqCst)
}

/// Returns the signal that has come since the last call; 0 for none.
pub fn take() -> i32 {
    SIGNAL.swap(0, Ordering::SeqCst)
}

/// Returns the descriptor that becomes readable with the first signal; `None` if no handlers are installed, or if a signal has already
/// come.
pub fn wake() -> Option<RawFd> {
    let wake = WAKE.load(Ordering::SeqCst);
    (wake >= 0 && !CAME.load(Ordering::SeqCst)).then_some(wake)
}

/// Waits for this time, or until a signal comes, if the handlers are installed.
pub fn rest(wait: Duration) {
    let Some(wake) = wake() else {
        if !is_one() {
            thread::sleep(wait);
        }
        return;
    };
    let mut poll = libc::pollfd {
        fd: wake,
        events: libc::POLLIN,
        revents: 0,
    };
    // Rounded up, since the last millisecond would otherwise be waited for in a busy loop.
    let ms = i32::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: one pollfd, of a descriptor that stays open.
    unsafe { libc::poll(&raw mut poll, 1, ms) };
}

/// Tells whether a signal has come since the last [`take`].
pub fn is_one() -> bool {
    SIGNAL.load(Ordering::SeqCst) != 0
}

/// Tells this module that a file is read: a signal from now on ends the reading.
pub fn reads() {
    TRACED.store(false, Ordering::SeqCst);
}

/// Tells this module that tracing has ended. It forgets a signal that has come until now, because that signal has ended the tracing, or the
/// command and thereby the tracing.
pub fn traced() {
    take();
    TRACED.store(true, Ordering::SeqCst);
}

/// Waits for the first signal, then minds the output until the program's end.
fn mind(event: i32, shows: i32) {
    let mut count = [0u8; 8];
    // SAFETY: room for eight bytes.
    while unsafe { libc::read(event, count.as_mut_ptr().cast(), 8) } != 8 {
        thread::sleep(Duration::from_millis(50));
    }
    loop {
        let again = TRACED.load(Ordering::SeqCst) && take() != 0;
        if again || blocked_write::waited() >= PATIENCE {
            blocked_write::end();
        }
        if blocked_write::is_over() {
            for signal in ENDING {
                // SAFETY: the next signal ends the program at once.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            // SAFETY: interrupts a thread of this process, or none if it has ended. This is repeated, because a signal may come just before
            // the write.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), shows, INTERRUPTION) };
        }
        thread::sleep(Duration::from_millis(50));
    }
}
