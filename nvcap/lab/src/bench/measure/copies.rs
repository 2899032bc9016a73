//! Copies by a copy engine, between two releases of the same engine in one submission.

use std::time::{Duration, Instant};

use super::{END, Point, START, Series, Times, Way, repeat};
use crate::bench::{
    error::Error,
    gpu::{Channel, Memory, engine},
    push::{Segment, Waits},
};

/// Memory between which copies are made.
pub(crate) struct Buffers {
    /// Memory of the system.
    pub(crate) host: Memory,
    /// Memory of the GPU.
    pub(crate) device: Memory,
    /// Memory of the GPU, another part.
    pub(crate) other: Memory,
}

impl Buffers {
    fn of(&self, way: Way) -> (&Memory, &Memory) {
        match way {
            Way::H2D | Way::Inline => (&self.host, &self.device),
            Way::D2H => (&self.device, &self.host),
            Way::D2D => (&self.device, &self.other),
        }
    }
}

/// Returns the number of times that a size is measured in a pass: long copies vary less, and are
/// measured less often.
pub(super) fn runs(bytes: u64) -> usize {
    match bytes {
        0..=0x10_0000 => 21,
        0x10_0001..=0x400_0000 => 5,
        _ => 2,
    }
}

/// Binds the copy class of a channel, before its first copy.
pub(crate) fn bind(channel: &mut Channel, class: u32) -> Result<(), Error> {
    let payload = channel.next_payload();
    let mut segment = Segment::new(channel, class, payload);
    segment.bind_copy();
    segment.copy_release(END, Waits::ForWork)?;
    let push = segment.finish();
    channel.submit(&push)?;
    channel.wait(END, payload)?;
    Ok(())
}

/// Copies for this time without a pause, because an idle GPU has low clocks.
pub(crate) fn warm_up(
    channel: &mut Channel,
    class: u32,
    buffers: &Buffers,
    time: Duration,
) -> Result<(), Error> {
    let bytes = buffers.device.len().min(0x100_0000);
    let start = Instant::now();
    while start.elapsed() < time {
        one(channel, class, buffers, Way::D2D, bytes)?;
    }
    Ok(())
}

/// Makes one copy (none with 0 bytes), and returns its time in ns.
fn one(
    channel: &mut Channel,
    class: u32,
    buffers: &Buffers,
    way: Way,
    bytes: u64,
) -> Result<f64, Error> {
    let (src, dst) = buffers.of(way);
    let payload = channel.next_payload();
    let mut segment = Segment::new(channel, class, payload);
    segment.copy_release(START, Waits::Not)?;
    if bytes != 0 {
        segment.copy(src.address(), dst.address(), bytes as u32)?;
    }
    segment.copy_release(END, Waits::ForWork)?;
    let push = segment.finish();
    channel.submit(&push)?;
    channel.wait(END, payload)?;
    channel.between(START, END)
}

/// Measures copies of these sizes in the three ways. The channel's copy class must be bound before.
pub(crate) fn copies(
    channel: &mut Channel,
    class: u32,
    buffers: &Buffers,
    sizes: &[u64],
) -> Result<Vec<Series>, Error> {
    let name = format!("CE{}", engine::copy_number(channel.engine()).unwrap_or(0));
    let mut all = Vec::new();
    for way in [Way::H2D, Way::D2H, Way::D2D] {
        let mut time = |bytes: u64| -> Result<Times, Error> {
            repeat(runs(bytes), || one(channel, class, buffers, way, bytes))
        };
        let nothing = time(0)?;
        let points: Result<Vec<Point>, Error> = sizes
            .iter()
            .map(|bytes| Ok(Point::new(*bytes, time(*bytes)?)))
            .collect();
        all.push(Series {
            engine: name.clone(),
            engine_type: channel.engine(),
            way,
            nothing,
            points: points?,
        });
    }
    Ok(all)
}
