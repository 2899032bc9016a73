//! The trigger of the performance monitors, fired by submissions of nvcap's own. Measurements that were prepared (`nvcap sample`) begin with one
//! trigger, and end with the next. The GPU takes the trigger from any context of the graphics engine.

use std::rc::Rc;

use crate::bench::Error;
use crate::bench::gpu::{Channel, Gpu, engine};
use crate::bench::push::{Segment, Waits};
use nvcap_decode::driver::Version;
use nvcap_process::rm::Os;

/// Index of the semaphore that shows that a submission is over.
const END: usize = 0;

/// A channel of nvcap's own that submits triggers alone.
pub struct Trigger {
    /// Channel that is dropped before the GPU's client.
    channel: Channel,
    class: u32,
    _gpu: Gpu,
}

impl Trigger {
    /// Makes a channel on the GPU with this minor number, and binds the compute class.
    ///
    /// # Errors
    /// Those of the driver; also when the GPU does not finish the first submission.
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

    /// Fires the trigger, and returns when the GPU has taken it.
    ///
    /// # Errors
    /// When the GPU does not finish the submission.
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
