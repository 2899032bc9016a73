//! Times that are no transfers: doorbell, semaphores, and the processor's own accesses to the GPU's memory.

use std::{
    sync::atomic::{Ordering, fence},
    time::{Duration, Instant},
};

use super::{END, GATE, Latency, START, repeat};
use crate::bench::{
    gpu::{Channel, Memory},
    push::{Segment, Waits},
    rm::Error,
};

/// Runs of a pass.
pub(super) const RUNS: usize = 501;

/// How long the GPU is let wait for a semaphore before it is released, so that it waits indeed.
const WAITING: Duration = Duration::from_micros(30);

/// Words that are read or written for one time.
const WORDS: usize = 256;

/// Bytes that are written for one time.
const WRITTEN: usize = 0x1_0000;

/// All of them. `memory` is the GPU's, mapped into the process, of at least [`WRITTEN`] bytes.
pub(crate) fn latencies(
    channel: &mut Channel,
    class: u32,
    memory: &Memory,
) -> Result<Vec<Latency>, Error> {
    let mut all = vec![
        host_releases(channel, class)?,
        doorbell(channel, class)?,
        round_trip(channel, class)?,
    ];
    all.extend(accesses(memory)?);
    Ok(all)
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
    let times = repeat(RUNS, || {
        let payload = channel.next_payload();
        let mut segment = Segment::new(channel, class, payload);
        segment.host_acquire(GATE)?;
        segment.host_release(END, Waits::Not)?;
        let push = segment.finish();
        let rung = channel.submit(&push)?.rung;
        while rung.elapsed() < WAITING {
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

/// Reads and writes of the GPU's memory through its BAR.
fn accesses(memory: &Memory) -> Result<Vec<Latency>, Error> {
    let Some(mapping) = memory.mapping() else {
        return Ok(Vec::new());
    };
    let read = repeat(21, || {
        let start = Instant::now();
        for i in 0..WORDS {
            mapping.read(4 * i);
        }
        Ok(nanoseconds(start.elapsed()) / WORDS as f64)
    })?;
    let write = repeat(21, || {
        let start = Instant::now();
        for i in 0..WORDS {
            mapping.write(4 * i, i as u32);
            fence(Ordering::SeqCst);
        }
        Ok(nanoseconds(start.elapsed()) / WORDS as f64)
    })?;
    let written = repeat(21, || {
        let start = Instant::now();
        for offset in (0..WRITTEN).step_by(8) {
            mapping.write_long(offset, offset as u64);
        }
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
