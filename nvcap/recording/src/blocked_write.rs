//! Waiting for output. A write may last for ever until the user asks for the end. From then on, a write that nobody takes is given up.
//!
//! A write to a pipe or a terminal lasts as long as its reader chooses. The thread that watches for the user's signals asks this module how
//! long the current write has lasted, and ends the waiting. `nvcap_show::output::writer` then counts its unwritten bytes, and
//! `nvcap_show::pipeline` shows nothing more. The module knows no signal and no file.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time at which the current write began, ms of this module's clock; 0 if there is none.
static SINCE: AtomicU64 = AtomicU64::new(0);
static OVER: AtomicBool = AtomicBool::new(false);

fn now_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let passed = START.get_or_init(Instant::now).elapsed().as_millis();
    // 0 means that there is no write.
    u64::try_from(passed).unwrap_or(u64::MAX).saturating_add(1)
}

/// Does one write.
pub fn write<T>(write: impl FnOnce() -> T) -> T {
    SINCE.store(now_ms(), Ordering::SeqCst);
    let result = write();
    SINCE.store(0, Ordering::SeqCst);
    result
}

/// Returns the time for which the current write has lasted; zero if there is none.
pub fn waited() -> Duration {
    match SINCE.load(Ordering::SeqCst) {
        0 => Duration::ZERO,
        since => Duration::from_millis(now_ms().saturating_sub(since)),
    }
}

/// Ends the waiting for output. The current write ends only when something interrupts it.
pub fn end() {
    OVER.store(true, Ordering::SeqCst);
}

/// Tells whether output is no longer waited for.
pub fn is_over() -> bool {
    OVER.load(Ordering::SeqCst)
}
