//! Truth that a tracer's times are compared with: what the software GPU did and when. One JSON object a line.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::clock::GpuClock;
use crate::layout::{Channel, Unit};
use crate::memory::Memory;
use crate::stream::semaphore;

/// One submission that was run. Times are the GPU's unless a name says that they are the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Channel of the submission.
    pub channel: Channel,
    /// Its number in the channel, from 0: also its ring position, and its payload less 1.
    pub number: u64,
    /// CLOCK_MONOTONIC before GP_PUT said that it is there.
    pub put_host: u64,
    /// CLOCK_MONOTONIC before its doorbell's store.
    pub rings_host: u64,
    /// CLOCK_MONOTONIC after its doorbell's store.
    pub rung_host: u64,
    /// True if the submission waited behind the one before it: the channel was never without work between the two.
    pub queued: bool,
    /// The thread that is the GPU came late to it: the GPU was idle although this was there.
    pub delayed: bool,
    /// The time stamp in its tracking semaphore.
    pub stamp: u64,
    /// CLOCK_MONOTONIC after that was written.
    pub stamp_written_host: u64,
    /// The kernel's or copy's start.
    pub start: u64,
    /// Its end.
    pub end: u64,
    /// CLOCK_MONOTONIC after the word that says so was written.
    pub end_written_host: u64,
    /// That word and its value; none for a copy.
    pub released: Option<(u64, u32)>,
    /// The number of the collective that it is.
    pub collective: Option<u64>,
}

/// Writes all of them, and before them a line with the GPU's clock.
pub fn write(file: &Path, memory: &Memory, clock: &GpuClock, all: &[Ran]) -> Result<()> {
    let say = || format!("cannot write {}", file.display());
    let out = std::fs::File::create(file).with_context(say)?;
    let mut out = BufWriter::new(out);
    writeln!(
        out,
        r#"{{"type":"clock","host_ns":{},"gpu_less_host_ns":{},"drift_ppm":{}}}"#,
        clock.base, clock.offset, clock.drift
    )
    .with_context(say)?;
    for ran in all {
        line(&mut out, memory.token(ran.channel), clock, ran).with_context(say)?;
    }
    out.flush().with_context(say)
}

fn line(out: &mut impl Write, token: u32, clock: &GpuClock, ran: &Ran) -> std::io::Result<()> {
    let kind = match ran.channel.unit() {
        Unit::Compute => "kernel",
        Unit::Copy => "copy",
    };
    write!(
        out,
        r#"{{"type":"{kind}","gpu":{},"token":{token},"ring":{},"position":{},"semaphore":{},"payload":{},"queued":{},"delayed":{}"#,
        ran.channel.gpu,
        ran.channel.ring(),
        ran.number,
        semaphore(ran.channel),
        (ran.number + 1) as u32,
        ran.queued,
        ran.delayed,
    )?;
    if let Some((address, payload)) = ran.released {
        write!(out, r#","end_word":{address},"end_word_payload":{payload}"#)?;
    }
    if let Some(number) = ran.collective {
        write!(out, r#","collective":{number}"#)?;
    }
    writeln!(
        out,
        r#","put_ns":{},"rings_ns":{},"rung_ns":{},"stamp_gpu_ns":{},"stamp_written_ns":{},"start_gpu_ns":{},"start_ns":{},"end_gpu_ns":{},"end_ns":{},"end_written_ns":{}}}"#,
        ran.put_host,
        ran.rings_host,
        ran.rung_host,
        ran.stamp,
        ran.stamp_written_host,
        ran.start,
        clock.host(ran.start),
        ran.end,
        clock.host(ran.end),
        ran.end_written_host,
    )
}
