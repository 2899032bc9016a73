//! Times that belong to no transfer: doorbell, semaphores, and the processor's own accesses to the GPU's memory.

use std::{
    sync::atomic::{Ordering, fence},
    time::{Duration, Instant},
};

use super::{END, GATE, Latency, START, repeat};
use crate::bench::{
    error::Error,
    gpu::{Channel, Memory},
    push::{Segment, Waits},
};

/// Number of runs of a pass.
pub(super) const RUNS: usize = 501;

/// Time for which the GPU waits for a semaphore before it is released, and the spread that is added to it. The waits of the runs
/// differ, evenly spread, because the GPU looks at the semaphore only now and then.
const WAITING: Duration = Duration::from_micros(30);
const SPREAD: Duration = Duration::from_micros(20);

/// Number of runs of a pass over accesses, which take longer.
const ACCESSES: usize = 101;

/// Number of words that are read or written in one run.
const WORDS: usize = 256;

/// Number of bytes that are written in one run.
const WRITTEN: usize = 0x1_0000;

/// Measures the latencies of a channel.
pub(crate) fn latencies(channel: &mut Channel, class: u32) -> Result<Vec<Latency>, Error> {
    Ok(vec![
        host_releases(channel, class)?,
        doorbell(channel, class)?,
        round_trip(channel, class)?,
    ])
}

fn host_releases(channel: &mut Channel, class: u32) -> Result<Latency, Error> {
    let times = repeat(RUNS, || {
        let payload = channel.next_payload();
        let mut segment = Segment::new(channel, class, payload);
        segment.host_release(START, Waits::Not)?;
        segment.host_release(END, Waits::Not)?;
        let push = segment.finish();
        channel.submit(&push)?;
        channel.wait(END, payload)?;
        channel.between(START, END)
    })?;
    Ok(Latency {
        name: "release_to_release",
        what: "two releases by the host, nothing between (GPU's clock)".to_owned(),
        times,
    })
}

fn doorbell(channel: &mut Channel, class: u32) -> Result<Latency, Error> {
    let times = repeat(RUNS, || {
        let payload = channel.next_payload();
        let mut segment = Segment::new(channel, class, payload);
        segment.host_release(END, Waits::Not)?;
        let push = segment.finish();
        let rung = channel.submit(&push)?.rung;
        let seen = channel.wait(END, payload)?;
        Ok(nanoseconds(seen - rung))
    })?;
    Ok(Latency {
        name: "doorbell_to_release",
        what: "doorbell rung until the release is seen in system memory (processor's clock)"
            .to_owned(),
        times,
    })
}

fn round_trip(channel: &mut Channel, class: u32) -> Result<Latency, Error> {
    let mut spread = 0.0;
    let times = repeat(RUNS, || {
        // Steps of the golden ratio: however many there are, they lie evenly.
        spread = (spread + 0.618_034) % 1.0;
        let waiting = WAITING + SPREAD.mul_f64(spread);
        let payload = channel.next_payload();
        let mut segment = Segment::new(channel, class, payload);
        segment.host_acquire(GATE)?;
        segment.host_release(END, Waits::Not)?;
        let push = segment.finish();
        let rung = channel.submit(&push)?.rung;
        while rung.elapsed() < waiting {
            std::hint::spin_loop();
        }
        let released = Instant::now();
        channel.set(GATE, payload);
        let seen = channel.wait(END, payload)?;
        Ok(nanoseconds(seen - released))
    })?;
    Ok(Latency {
        name: "semaphore_round_trip",
        what:
            "semaphore released by the processor until the GPU's answer is seen (processor's clock)"
                .to_owned(),
        times,
    })
}

/// Measures reads and writes of the GPU's memory through its BAR. `memory` is mapped into the process, and has at least [`WRITTEN`]
/// bytes.
///
/// Other work of the host changes these times for seconds (64 KiB by 8-byte stores took 8 us or 13), so they are best measured
/// repeatedly.
pub(crate) fn accesses(memory: &Memory) -> Result<Vec<Latency>, Error> {
    let Some(mapping) = memory.mapping() else {
        return Ok(Vec::new());
    };
    let read = repeat(ACCESSES, || {
        let start = Instant::now();
        for i in 0..WORDS {
            mapping.read(4 * i);
        }
        Ok(nanoseconds(start.elapsed()) / WORDS as f64)
    })?;
    let write = repeat(ACCESSES, || {
        let start = Instant::now();
        for i in 0..WORDS {
            mapping.write(4 * i, i as u32);
            fence(Ordering::SeqCst);
        }
        Ok(nanoseconds(start.elapsed()) / WORDS as f64)
    })?;
    let bytes = vec![0x5a; WRITTEN];
    let written = repeat(ACCESSES, || {
        let start = Instant::now();
        mapping.write_bytes(0, &bytes);
        fence(Ordering::SeqCst);
        // A read does not overtake the writes before it: when it is answered, they have arrived.
        mapping.read(0);
        Ok(nanoseconds(start.elapsed()))
    })?;
    let latency = |name, what: String, times| Latency { name, what, times };
    Ok(vec![
        latency(
            "pcie_read",
            "a read of 4 bytes of the GPU's memory by the processor".to_owned(),
            read,
        ),
        latency(
            "pcie_write",
            "a write of 4 bytes of the GPU's memory by the processor, with a fence".to_owned(),
            write,
        ),
        latency(
            "pcie_write_64k",
            format!(
                "{WRITTEN} bytes written to the GPU's memory by the processor, and one read behind them"
            ),
            written,
        ),
    ])
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}
