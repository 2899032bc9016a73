//! Ever more of what a tracer remembers of a process: programs, semaphores and their changes, threads, errors in notifiers.

use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use nvcap_decode::decode::encode::{Pushbuffer, Qmd};
use nvcap_decode::decode::view::View;
use nvcap_decode::wire::GpuVa;
use softgpu::form;
use softgpu::layout::{PAGE, Unit, notifier};

use crate::bed::{Bed, CHANNELS, channel, map_file, pause};
use crate::process::map_at;

const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Programs that are launched: more than nvcap keeps names of (65,536 of a process).
pub const PROGRAMS: u64 = 70_400;
/// Launches of a submission.
const AT_ONCE: u64 = 640;
/// Place of the first program, and the distance between two.
const PROGRAM: u64 = 0x7f00_0000_0000;
const PROGRAM_STEP: u64 = 0x100;
/// Place of the QMDs.
const QMDS: u64 = 0x2_0600_0000;

/// Launches of ever new programs.
pub fn programs(bed: &Bed) -> Result<()> {
    for first in (0..PROGRAMS).step_by(AT_ONCE as usize) {
        let mut pb = Pushbuffer::new();
        if first == 0 {
            pb.bind(form::COMPUTE, form::COMPUTE_CLASS);
        }
        for number in first..first + AT_ONCE {
            let at = QMDS + number % AT_ONCE * 0x200;
            let view = View {
                version: (4, 0),
                grid: [1 + number as u32, 1, 1],
                block: [32, 1, 1],
                shared_bytes: 1024,
                program: GpuVa(PROGRAM + number * PROGRAM_STEP),
                requires_pcas: true,
                ..View::default()
            };
            let qmd = Qmd::of(&view).context("a QMD of this version")?;
            form::inline(&mut pb, at, qmd.bytes());
            form::send(&mut pb, at);
        }
        bed.submit_bytes(0, &pb.bytes());
        pause();
    }
    Ok(())
}

/// Words that submissions release: more than nvcap looks at (16,384 of a process).
pub const WORDS: u64 = 20_000;
/// Releases of a submission.
const RELEASES: u64 = 200;
/// Number of times that the process itself writes each of them.
const ROUNDS: u32 = 400;
/// Place of the words, and the distance between two.
const WORD: u64 = 0x2_0a00_0000;
const WORD_STEP: u64 = 16;

/// Writes to the semaphores that its submissions release: eight million.
pub fn semaphores(bed: &Bed) -> Result<()> {
    map_at(WORD, (WORDS * WORD_STEP).next_multiple_of(PAGE), BOTH, None)?;
    for first in (0..WORDS).step_by(RELEASES as usize) {
        let mut pb = Pushbuffer::new();
        if first == 0 {
            pb.bind(form::COMPUTE, form::COMPUTE_CLASS);
        }
        for number in first..first + RELEASES {
            form::release(
                &mut pb,
                Unit::Compute,
                WORD + number * WORD_STEP,
                1 + number as u32,
            );
        }
        bed.submit_bytes(0, &pb.bytes());
        pause();
    }
    for round in 0..ROUNDS {
        for number in 0..WORDS {
            let word = (WORD + number * WORD_STEP) as *const AtomicU32;
            // SAFETY: the words are mapped above, aligned, and never undone; only atomics touch them.
            unsafe { &*word }.store(round.wrapping_mul(0x9e37_79b9), Ordering::Release);
        }
        bed.submit(1);
    }
    Ok(())
}

/// Threads that come one after the other: more than nvcap keeps names of when they have ended (256).
pub const THREADS: usize = 1_500;

/// Threads that come, have names of their own, submit once and end.
pub fn threads(bed: &Bed) -> Result<()> {
    for number in 0..THREADS {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let name = CString::new(format!("flood {number}"))?;
                // SAFETY: the kernel reads a string that ends.
                unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
                bed.submit(number % CHANNELS);
                anyhow::Ok(())
            });
            thread.join().unwrap_or(Ok(()))
        })?;
    }
    Ok(())
}

/// Errors that are written: more than nvcap tells of a process (1,024).
const ERRORS: u32 = 3_000;

/// Errors that the process writes into its own notifiers, where the driver has them.
pub fn notifiers(bed: &Bed) -> Result<()> {
    let pages: Vec<_> = (0..CHANNELS)
        .map(|i| (notifier(channel(i)), PAGE, BOTH))
        .collect();
    map_file("nvidiactl", &pages)?;
    let word = |i: usize, at: u64| {
        let word = (notifier(channel(i)) + at) as *const AtomicU32;
        // SAFETY: the page is mapped above and never undone, the word aligned; only atomics touch it.
        unsafe { &*word }
    };
    for i in 0..CHANNELS {
        word(i, 24).store(channel(i).token(), Ordering::Relaxed);
        word(i, 28).store(0xffff_0000, Ordering::Release);
    }
    bed.submit_many(4 * CHANNELS);
    for n in 0..ERRORS {
        let i = n as usize % CHANNELS;
        word(i, 8).store(13 + n % 100, Ordering::Relaxed);
        word(i, 12).store(0xffff_0000, Ordering::Release);
        if n.is_multiple_of(10) {
            bed.submit(i);
            pause();
        }
        word(i, 12).store(0, Ordering::Release);
    }
    Ok(())
}
