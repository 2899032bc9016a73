//! `nvcap bench`: measures the GPU without CUDA. Opens the driver itself, forms its own pushbuffers and measures with the GPU's own time stamps.
//!
//! [`nvcap_process::rm`] calls the driver; `gpu` has memory and channels; `push` forms submissions; [`measure`](mod@measure) has the measurements;
//! [`report`] makes tables of the results, [`plot`] drawings.
//!
//! The driver frees all objects of a client when the client's file is closed. So nothing is left behind, however the program ends.

mod error;
pub(crate) mod gpu;
pub mod measure;
pub mod plot;
pub(crate) mod push;
pub mod report;

use std::{rc::Rc, time::Duration};

use gpu::{Channel, Gpu, Kept, Memory, Place, Submission, engine};
use measure::{Buffers, Latency, Series};

use nvcap_decode::driver::Version;
use nvcap_process::rm::{Os, gpu_file};

pub use error::Error;

/// Bytes of the GPU's memory that the processor accesses.
const ACCESSED: u64 = 0x1_0000;

/// Options of a measurement.
#[derive(Clone, Debug)]
pub struct Options {
    /// The GPU's minor number.
    pub minor: u32,
    /// The driver's release, where it is known.
    pub driver: Option<Version>,
    /// Sizes of transfers in bytes, growing.
    pub sizes: Vec<u64>,
    /// Number of passes. Each measures everything with memory and channels of its own; the fastest pass but one counts.
    pub passes: usize,
    /// Time for which each copy engine copies before the first measurement. Before each further pass it copies for a tenth of this time.
    pub warm_up: Duration,
    /// True if submissions are kept.
    pub keep: bool,
}

/// Returns the sizes that are measured by default: the powers of two from 4 B to 1 GiB.
pub fn usual_sizes() -> Vec<u64> {
    (2..=30).map(|power| 1 << power).collect()
}

/// Results of a measurement.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Measured {
    /// Minor number of the GPU that was measured.
    pub gpu: u32,
    /// The driver's release.
    pub driver: Option<String>,
    /// The classes that were used: channels, compute, copies.
    pub classes: [String; 3],
    /// Times that belong to no transfer.
    pub latencies: Vec<Latency>,
    /// Transfers.
    pub transfers: Vec<Series>,
    /// Notes on what could not be measured, and why.
    pub notes: Vec<String>,
    /// Submissions, if they were kept.
    #[serde(skip)]
    pub submissions: Vec<Submission>,
}

/// Measures everything. `say` is told each step.
pub fn measure(os: Rc<dyn Os>, options: &Options, say: &dyn Fn(&str)) -> Result<Measured, Error> {
    let _processor = OneProcessor::stay();
    let kept = options.keep.then(Kept::default);
    let mut measured = Measured::default();
    let mut warm_up = options.warm_up;
    let mut opened = None;
    for pass in 1..=options.passes.max(1) {
        say(&format!("pass {pass} of {}", options.passes));
        let mut set = Set::open(&os, options, kept.as_ref())?;
        if pass == 1 {
            measured = set.described(options);
            // Else the driver would shut the GPU down after each pass.
            opened = os.open(&gpu_file(options.minor)).ok();
        }
        set.measure(&options.sizes, warm_up, &mut measured)?;
        warm_up = options.warm_up / 10;
    }
    drop(opened);
    if let Some(kept) = kept {
        measured.submissions = kept.take();
    }
    Ok(measured)
}

/// Memory and channels of one pass. Each pass has its own, because the speed at which the GPU accesses the system's memory depends on the pages that
/// it was given.
struct Set {
    /// Channel of compute.
    graphics: Channel,
    /// Channels of the copy engines.
    copiers: Vec<Channel>,
    buffers: Buffers,
    accessed: Memory,
    notes: Vec<String>,
    /// The GPU. It is dropped last, and frees all of the above.
    gpu: Gpu,
}

impl Set {
    fn open(os: &Rc<dyn Os>, options: &Options, kept: Option<&Kept>) -> Result<Self, Error> {
        let mut gpu = Gpu::open(Rc::clone(os), options.driver, options.minor)?;
        gpu.keep_in(kept.cloned());
        let classes = gpu.classes();
        let most = options.sizes.iter().copied().max().unwrap_or(4);
        let buffers = Buffers {
            host: gpu.memory("copies", Place::System, most, false)?,
            device: gpu.memory("copies", Place::Video, most, false)?,
            other: gpu.memory("copies", Place::Video, most, false)?,
        };
        let accessed = gpu.memory("accesses", Place::Video, ACCESSED, true)?;
        let mut graphics = gpu.channel(engine::GRAPHICS, classes.compute)?;
        measure::bind_compute(&mut graphics, classes.compute)?;
        let mut notes = Vec::new();
        let copiers = copiers(&gpu, &mut notes)?;
        Ok(Self {
            graphics,
            copiers,
            buffers,
            accessed,
            notes,
            gpu,
        })
    }

    /// Describes the GPU and the driver, before the first measurement.
    fn described(&mut self, options: &Options) -> Measured {
        let classes = self.gpu.classes();
        Measured {
            gpu: options.minor,
            driver: options.driver.map(|version| version.to_string()),
            classes: [classes.channel, classes.compute, classes.copy].map(|c| format!("{c:x}")),
            notes: std::mem::take(&mut self.notes),
            ..Measured::default()
        }
    }

    /// Measures everything once.
    fn measure(mut self, sizes: &[u64], warm_up: Duration, to: &mut Measured) -> Result<(), Error> {
        let classes = self.gpu.classes();
        let buffers = &self.buffers;
        for channel in &mut self.copiers {
            measure::warm_up(channel, classes.copy, buffers, warm_up)?;
        }
        to.take_in(measure::inline(
            &mut self.graphics,
            classes.compute,
            &buffers.device,
            sizes,
        )?);
        to.take_in_latencies(measure::latencies(&mut self.graphics, classes.compute)?);
        to.take_in_latencies(measure::accesses(&self.accessed)?);
        for channel in &mut self.copiers {
            for series in measure::copies(channel, classes.copy, buffers, sizes)? {
                to.take_in(series);
            }
            to.take_in_latencies(measure::accesses(&self.accessed)?);
        }
        // Last: a kernel that the GPU does not take ends the channel, and is no reason to give up what was measured.
        match measure::kernel(&mut self.graphics, classes.compute, &self.accessed) {
            Ok(kernel) => to.take_in_latencies(kernel),
            Err(error) => to.note(format!("empty kernel: {error}")),
        }
        Ok(())
    }
}

/// Binds this thread to the last processor that it may run on, because processors differ in their distance from the GPU. When the value is dropped,
/// the thread may run where it might before. Where the kernel refuses the binding, times vary more.
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

/// A copy engine, and the physical engines that serve it. Several copy engines may share a physical engine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CopyEngine {
    /// `COPY2`.
    pub engine: String,
    /// Numbers of the physical engines.
    pub physical: Vec<u32>,
}

/// Asks the driver for a GPU's copy engines.
pub fn copy_engines(
    os: Rc<dyn Os>,
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

/// Makes a channel for each copy engine, and binds its class. Engines for which the driver gives no channel are noted.
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
    /// Adds the transfers of a pass.
    fn take_in(&mut self, series: Series) {
        for point in &series.points {
            let (engine, way) = (&series.engine, series.way.name());
            log::debug!("{engine} {way} {} B: {:.1} ns", point.bytes, point.times.ns);
        }
        let mut known = self.transfers.iter_mut();
        match known.find(|s| (s.engine_type, s.way) == (series.engine_type, series.way)) {
            Some(known) => known.join(&series),
            None => self.transfers.push(series),
        }
    }

    /// Adds the latencies of a pass.
    fn take_in_latencies(&mut self, latencies: Vec<Latency>) {
        for latency in latencies {
            log::debug!("{}: {:.1} ns", latency.name, latency.times.ns);
            match self.latencies.iter_mut().find(|l| l.name == latency.name) {
                Some(known) => known.join(&latency),
                None => self.latencies.push(latency),
            }
        }
    }

    /// Notes once that something could not be measured.
    fn note(&mut self, what: String) {
        if !self.notes.contains(&what) {
            self.notes.push(what);
        }
    }
}
