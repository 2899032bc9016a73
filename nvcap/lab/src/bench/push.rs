//! One submission: the method writes for a channel, by the names of the class's header.

use super::{error::Error, gpu::Channel};
use nvcap_decode::decode::encode::Pushbuffer;

use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::header::Step;

/// The subchannels on which CUDA binds its engines. A channel of a copy engine takes any subchannel.
const COMPUTE: u8 = 1;
const COPY: u8 = 4;

/// Windows on shared and local memory. They do not overlap, and lie far above the addresses that the driver gives out.
const SHARED_WINDOW: GpuVa = GpuVa(0x7f00_0000_0000);
const LOCAL_WINDOW: GpuVa = GpuVa(0x7e00_0000_0000);

/// Values of SEM_EXECUTE (clc56f.h).
mod execute {
    pub(super) const ACQUIRE: u32 = 0;
    pub(super) const RELEASE: u32 = 1;
    pub(super) const RELEASE_WFI: u32 = 1 << 20;
    pub(super) const RELEASE_TIMESTAMP: u32 = 1 << 25;
}

/// Values of a copy class's LAUNCH_DMA (clc8b5.h).
mod launch_dma {
    pub(super) const FLUSH: u32 = 1 << 2;
    pub(super) const RELEASE_WITH_TIMESTAMP: u32 = 2 << 3;
}

/// Tells whether a release waits for the channel's earlier work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// The release waits until the earlier work is done and its writes are visible.
    ForWork,
    /// The release does not wait.
    Not,
}

/// A submission under construction. Its semaphores get one payload, which no semaphore of the channel had before.
pub(crate) struct Segment<'a> {
    channel: &'a Channel,
    engine_class: u32,
    payload: u32,
    push: Pushbuffer,
}

impl<'a> Segment<'a> {
    /// Makes an empty submission to a channel whose engine object has this class.
    pub(crate) fn new(channel: &'a Channel, engine_class: u32, payload: u32) -> Self {
        Self {
            channel,
            engine_class,
            payload,
            push: Pushbuffer::new(),
        }
    }

    /// Returns the finished pushbuffer.
    pub(crate) fn finish(self) -> Pushbuffer {
        self.push
    }

    /// Binds the compute class, before its first method, and sets the places of its windows on shared and local memory.
    pub(crate) fn bind_compute(&mut self) -> Result<(), Error> {
        let class = self.engine_class;
        self.push.bind(COMPUTE, class);
        for (name, window) in [
            ("SET_SHADER_SHARED_MEMORY_WINDOW_A", SHARED_WINDOW),
            ("SET_SHADER_LOCAL_MEMORY_WINDOW_A", LOCAL_WINDOW),
        ] {
            self.push.named(COMPUTE, class, name, &halves(window))?;
        }
        Ok(())
    }

    /// Binds the copy class, before its first method.
    pub(crate) fn bind_copy(&mut self) {
        self.push.bind(COPY, self.engine_class);
    }

    /// Makes the host, which reads the pushbuffer, release semaphore `i` with the time.
    pub(crate) fn host_release(&mut self, i: usize, waits: Waits) -> Result<(), Error> {
        let wfi = match waits {
            Waits::ForWork => execute::RELEASE_WFI,
            Waits::Not => 0,
        };
        self.execute(i, execute::RELEASE | execute::RELEASE_TIMESTAMP | wfi)
    }

    /// Makes the host wait until semaphore `i` has the payload.
    pub(crate) fn host_acquire(&mut self, i: usize) -> Result<(), Error> {
        self.execute(i, execute::ACQUIRE)
    }

    fn execute(&mut self, i: usize, operation: u32) -> Result<(), Error> {
        let [upper, lower] = halves(self.channel.semaphore(i));
        let words = [lower, upper, self.payload, 0, operation];
        self.push
            .named(0, self.channel.class(), "SEM_ADDR_LO", &words)?;
        Ok(())
    }

    /// Makes the copy engine release semaphore `i` with the time.
    pub(crate) fn copy_release(&mut self, i: usize, waits: Waits) -> Result<(), Error> {
        let [upper, lower] = halves(self.channel.semaphore(i));
        let class = self.engine_class;
        let words = [upper, lower, self.payload];
        self.push.named(COPY, class, "SET_SEMAPHORE_A", &words)?;
        let flush = match waits {
            Waits::ForWork => launch_dma::FLUSH,
            Waits::Not => 0,
        };
        let launch = [launch_dma::RELEASE_WITH_TIMESTAMP | flush];
        self.push.named(COPY, class, "LAUNCH_DMA", &launch)?;
        Ok(())
    }

    /// Makes the copy engine copy.
    pub(crate) fn copy(&mut self, src: GpuVa, dst: GpuVa, bytes: u32) -> Result<(), Error> {
        self.push.copy(COPY, self.engine_class, src, dst, bytes)?;
        Ok(())
    }

    /// Makes the compute engine release semaphore `i` with the time, behind its earlier work.
    pub(crate) fn compute_release(&mut self, i: usize) -> Result<(), Error> {
        let semaphore = self.channel.semaphore(i);
        self.push
            .release(COMPUTE, self.engine_class, semaphore, self.payload)?;
        Ok(())
    }

    /// Makes the compute engine write data that lie in the pushbuffer.
    pub(crate) fn inline(&mut self, dst: GpuVa, data: &[u8]) -> Result<(), Error> {
        self.push.inline(COMPUTE, self.engine_class, dst, data)?;
        Ok(())
    }

    /// Triggers the performance monitors (PM_TRIGGER, a method of all classes of the graphics engine).
    pub(crate) fn trigger_monitors(&mut self) {
        /// PM_TRIGGER.
        const PM_TRIGGER: u16 = 0x140;
        self.push.method(Step::Increment, COMPUTE, PM_TRIGGER, &[0]);
    }

    /// Makes the compute engine run the kernel whose QMD lies at `qmd`.
    pub(crate) fn kernel(&mut self, qmd: GpuVa) -> Result<(), Error> {
        self.push.pcas(COMPUTE, self.engine_class, qmd)?;
        Ok(())
    }
}

fn halves(address: GpuVa) -> [u32; 2] {
    [(address.0 >> 32) as u32, address.0 as u32]
}
