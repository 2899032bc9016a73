//! What observing says of its own cost.
#![cfg(feature = "trap")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use nvcap::internals::{ObserveOptions, Session, Source};

/// What the thread did before it observed is none of its cost: a short trace had "48.4 % of one core, 1442.3 % to look".
#[test]
fn looking_takes_no_more_than_all_of_it() {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(50) {
        black_box(began);
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
