//! Cost of observing, as observing states it.

use std::hint::black_box;
use std::time::Duration;

use nvcap_live::{
    observe::session::{ObserveOptions, Session},
    run::Source,
};

/// Processor time of this thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the structure; the clock is there always.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(read, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Work of the thread before it observed is none of the cost: a short trace had "48.4 % of one core, 1442.3 % to look".
#[test]
fn looking_takes_no_more_than_all_of_it() {
    // Processor time, however long that takes.
    while processor_time() < Duration::from_millis(50) {
        black_box(());
    }
    let session = Session::new(ObserveOptions::default());
    let observed = session.finish(&mut Vec::new());
    assert!(
        observed.reader_ns <= observed.cpu_ns,
        "{} ns to look of {} ns",
        observed.reader_ns,
        observed.cpu_ns
    );
}
