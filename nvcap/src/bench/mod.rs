//! `nvcap bench`: what the GPU does without CUDA. Opens the driver itself, forms its own pushbuffers and measures with the
//! GPU's own time stamps.
//!
//! [`rm`] calls the driver; a [`gpu`] has memory and channels; [`push`] forms submissions; [`measure`](mod@measure) has what is measured; [`report`]
//! makes tables of it, [`plot`] drawings.
//!
//! Whatever ends the program, the driver frees all that it had: it frees what a client has when the client's file is closed.

pub(crate) mod gpu;
pub(crate) mod measure;
pub(crate) mod plot;
pub(crate) mod push;
pub(crate) mod report;
pub(crate) mod rm;

use std::time::Duration;

use gpu::{Channel, Gpu, Place, Submission, engine};
use measure::{Buffers, Latency, Series};
use rm::{Error, Os};

use crate::driver::Version;

/// Bytes of the GPU's memory that the processor accesses.
const ACCESSED: u64 = 0x1_0000;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The GPU's minor number.
    pub minor: u32,
    /// The driver's release, where it is known.
    pub driver: Option<Version>,
    /// Sizes of transfers in bytes, growing.
    pub sizes: Vec<u64>,
    /// How often everything is measured; the fastest pass counts.
    pub passes: usize,
    /// How long each copy engine copies before anything is measured.
    pub warm_up: Duration,
    /// Whether what is submitted is kept.
    pub keep: bool,
}

/// The sizes that are measured unless others are asked for: the powers of two from 4 B to 1 GiB.
pub(crate) fn usual_sizes() -> Vec<u64> {
    (2..=30).map(|power| 1 << power).collect()
}

/// What was measured.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Measured {
    /// The GPU's minor number.
    pub gpu: u32,
    /// The driver's release.
    pub driver: Option<String>,
    /// The classes that it was driven by: channels, compute, copies.
    pub classes: [String; 3],
    /// Times that are no transfers.
    pub latencies: Vec<Latency>,
    /// Transfers.
    pub transfers: Vec<Series>,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
    /// What was submitted, if it was to be kept.
    #[serde(skip)]
    pub submissions: Vec<Submission>,
}

/// Measures; `say` is told what is being done.
pub fn measure(os: Box<dyn Os>, options: &Options, say: &dyn Fn(&str)) -> Result<Measured, Error> {
    let _processor = OneProcessor::stay();
    let mut gpu = Gpu::open(os, options.driver, options.minor)?;
    let kept = options.keep.then(|| gpu.keep());
    let classes = gpu.classes();
    let most = options.sizes.iter().copied().max().unwrap_or(4);
    let buffers = Buffers {
        host: gpu.memory("copies", Place::System, most, false)?,
        device: gpu.memory("copies", Place::Video, most, false)?,
        other: gpu.memory("copies", Place::Video, most, false)?,
    };
    let accessed = gpu.memory("accesses", Place::Video, ACCESSED, true)?;
    let mut measured = Measured {
        gpu: options.minor,
        driver: options.driver.map(|version| version.to_string()),
        classes: [classes.channel, classes.compute, classes.copy].map(|c| format!("{c:x}")),
        latencies: Vec::new(),
        transfers: Vec::new(),
        notes: Vec::new(),
        submissions: Vec::new(),
    };
    let mut graphics = gpu.channel(engine::GRAPHICS, classes.compute)?;
    measure::bind_compute(&mut graphics, classes.compute)?;
    let mut copiers = copiers(&gpu, &mut measured.notes)?;
    say("warming up");
    for channel in &mut copiers {
        measure::warm_up(channel, classes.copy, &buffers, options.warm_up)?;
    }
    for pass in 1..=options.passes {
        say(&format!("pass {pass} of {}", options.passes));
        let sizes = &options.sizes;
        let mut transfers = vec![measure::inline(
            &mut graphics,
            classes.compute,
            &buffers.device,
            sizes,
        )?];
        for channel in &mut copiers {
            transfers.extend(measure::copies(channel, classes.copy, &buffers, sizes)?);
        }
        let latencies = measure::latencies(&mut graphics, classes.compute, &accessed)?;
        measured.join(transfers, latencies);
    }
    // Last: a kernel that the GPU does not take ends the channel, and is no reason to give up what was measured.
    say("empty kernel");
    for _ in 0..options.passes {
        match measure::kernel(&mut graphics, classes.compute, &accessed) {
            Ok(kernel) => measured.join_kernel(kernel),
            Err(error) => {
                measured.notes.push(format!("empty kernel: {error}"));
                break;
            }
        }
    }
    if let Some(kept) = kept {
        measured.submissions = kept.take();
    }
    Ok(measured)
}

/// This thread on the last processor that it may run on: how far a processor is from the GPU differs. Dropped, it may run where
/// it might before. Where that is refused, times vary more.
struct OneProcessor {
    before: libc::cpu_set_t,
}

impl OneProcessor {
    fn stay() -> Option<Self> {
        // SAFETY: a set of processors is plain bits, of which zero is a value.
        let (mut before, mut one): (libc::cpu_set_t, libc::cpu_set_t) =
            unsafe { std::mem::zeroed() };
        let size = size_of::<libc::cpu_set_t>();
        // SAFETY: the set is writable for the size that is told.
        if unsafe { libc::sched_getaffinity(0, size, &mut before) } != 0 {
            return None;
        }
        // SAFETY: the processor's number is below the set's size.
        let allowed = |i: &usize| unsafe { libc::CPU_ISSET(*i, &before) };
        let last = (0..libc::CPU_SETSIZE as usize).rfind(allowed)?;
        // SAFETY: as above.
        unsafe { libc::CPU_SET(last, &mut one) };
        // SAFETY: the set is readable for the size that is told.
        let bound = unsafe { libc::sched_setaffinity(0, size, &one) } == 0;
        bound.then_some(Self { before })
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        // SAFETY: the set is readable for the size that is told.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.before) };
    }
}

/// A copy engine, and which physical ones serve it. Several copy engines may have one in common.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CopyEngine {
    /// `COPY2`.
    pub engine: String,
    /// Their numbers.
    pub physical: Vec<u32>,
}

/// What the driver says of a GPU's copy engines.
pub fn copy_engines(
    os: Box<dyn Os>,
    driver: Option<Version>,
    minor: u32,
) -> Result<Vec<CopyEngine>, Error> {
    let gpu = Gpu::open(os, driver, minor)?;
    let engines = gpu.copy_engines();
    engines
        .map(|(engine, number)| {
            let mask = gpu.physical_engines(engine)?;
            Ok(CopyEngine {
                engine: format!("COPY{number}"),
                physical: (0..u32::BITS).filter(|i| mask >> i & 1 != 0).collect(),
            })
        })
        .collect()
}

/// A channel of each copy engine, its class bound. Those that the driver gives none of are noted.
fn copiers(gpu: &Gpu, notes: &mut Vec<String>) -> Result<Vec<Channel>, Error> {
    let class = gpu.classes().copy;
    let mut channels = Vec::new();
    for (engine, number) in gpu.copy_engines() {
        let opened = gpu.channel(engine, class).and_then(|mut channel| {
            measure::bind_copy(&mut channel, class)?;
            Ok(channel)
        });
        match opened {
            Ok(channel) => channels.push(channel),
            Err(error @ Error::Hang { .. }) => return Err(error),
            Err(error) => notes.push(format!("copy engine {number}: {error}")),
        }
    }
    Ok(channels)
}

impl Measured {
    /// Takes in the kernels of a pass.
    fn join_kernel(&mut self, kernel: Vec<Latency>) {
        for latency in kernel {
            match self.latencies.iter_mut().find(|l| l.name == latency.name) {
                Some(known) => known.join(&latency),
                None => self.latencies.push(latency),
            }
        }
    }

    /// Takes in a pass.
    fn join(&mut self, transfers: Vec<Series>, latencies: Vec<Latency>) {
        if self.transfers.is_empty() {
            (self.transfers, self.latencies) = (transfers, latencies);
            return;
        }
        for (series, other) in self.transfers.iter_mut().zip(&transfers) {
            series.join(other);
        }
        for (latency, other) in self.latencies.iter_mut().zip(&latencies) {
            latency.join(other);
        }
    }
}
