//! Inline data: the compute engine writes data of the pushbuffer, between two releases of the same engine.

use super::{END, Point, START, Series, Times, Way, copies::runs, repeat};
use crate::bench::{
    error::Error,
    gpu::{Channel, Memory, PUSHBUFFER_LEN},
    push::{Segment, Waits},
};

/// The most inline data that is measured: it must fit into one submission with its headers.
const MOST: u64 = PUSHBUFFER_LEN / 2;

/// Binds the compute class of a channel before its first method, and sets the places of its windows on shared and local
/// memory.
pub(crate) fn bind(channel: &mut Channel, class: u32) -> Result<(), Error> {
    let payload = channel.next_payload();
    let mut segment = Segment::new(channel, class, payload);
    segment.bind_compute()?;
    segment.host_release(END, Waits::ForWork)?;
    let push = segment.finish();
    channel.submit(&push)?;
    channel.wait(END, payload)?;
    Ok(())
}

/// Measures inline writes of these sizes, if they fit into one submission. The channel's compute class must be bound
/// before.
pub(crate) fn inline(
    channel: &mut Channel,
    class: u32,
    to: &Memory,
    sizes: &[u64],
) -> Result<Series, Error> {
    let mut time = |bytes: u64| -> Result<Times, Error> {
        let data = vec![0x5a; bytes as usize];
        let payload = channel.next_payload();
        let mut segment = Segment::new(channel, class, payload);
        segment.compute_release(START)?;
        if bytes != 0 {
            segment.inline(to.address(), &data)?;
        }
        segment.compute_release(END)?;
        let push = segment.finish();
        channel.submit(&push)?;
        channel.wait(END, payload)?;
        // The same bytes again and again: how fast the GPU reads what the processor has just written depends on where in
        // its caches that lies.
        repeat(runs(bytes), || {
            channel.set(END, 0);
            channel.submit_again();
            channel.wait(END, payload)?;
            channel.between(START, END)
        })
    };
    let nothing = time(0)?;
    let sizes = sizes.iter().filter(|bytes| **bytes <= MOST);
    let points: Result<Vec<Point>, Error> = sizes
        .map(|bytes| Ok(Point::new(*bytes, time(*bytes)?)))
        .collect();
    Ok(Series {
        engine: "compute".to_owned(),
        engine_type: channel.engine(),
        way: Way::Inline,
        nothing,
        points: points?,
    })
}
