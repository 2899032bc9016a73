//! The trigger of the performance monitors, in submissions of nvcap's own: what has been prepared (`nvcap sample`) begins with one, and ends with the
//! next. The GPU takes it from any context of the graphics engine.

use std::rc::Rc;

use crate::bench::Error;
use crate::bench::gpu::{Channel, Gpu, engine};
use crate::bench::push::{Segment, Waits};
use nvcap_decode::driver::Version;
use nvcap_process::rm::Os;

/// The semaphore that tells that a submission is over.
const END: usize = 0;

/// A channel of nvcap's own, for triggers alone.
pub struct Trigger {
    /// Dropped before the GPU's client.
    channel: Channel,
    class: u32,
    _gpu: Gpu,
}

impl Trigger {
    /// A channel on the GPU with this minor number, with the class of compute bound.
    ///
    /// # Errors
    /// Those of the driver, and where the GPU does not finish the first submission.
    pub fn new(os: Rc<dyn Os>, version: Option<Version>, minor: u32) -> Result<Self, Error> {
        let gpu = Gpu::open(os, version, minor)?;
        let class = gpu.classes().compute;
        let channel = gpu.channel(engine::GRAPHICS, class)?;
        let mut trigger = Self {
            channel,
            class,
            _gpu: gpu,
        };
        trigger.submit(|segment| segment.bind_compute())?;
        Ok(trigger)
    }

    /// Fires, and returns when the GPU has taken it.
    ///
    /// # Errors
    /// Where the GPU does not finish the submission.
    pub fn fire(&mut self) -> Result<(), Error> {
        self.submit(|segment| {
            segment.trigger_monitors();
            Ok(())
        })
    }

    fn submit(
        &mut self,
        what: impl FnOnce(&mut Segment<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let payload = self.channel.next_payload();
        let mut segment = Segment::new(&self.channel, self.class, payload);
        what(&mut segment)?;
        segment.host_release(END, Waits::ForWork)?;
        let push = segment.finish();
        self.channel.submit(&push)?;
        self.channel.wait(END, payload)?;
        Ok(())
    }
}
