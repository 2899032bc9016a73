//! An empty kernel: one thread that ends at once.

use super::{END, Latency, START, latencies::RUNS, repeat};
use crate::bench::{
    error::Error,
    gpu::{Channel, Memory},
    push::{Segment, Waits},
};
use nvcap_decode::decode::{encode::Qmd, qmd};
use nvcap_decode::wire::GpuVa;

/// `EXIT`, in the encoding of Volta and all later GPUs (nvcc's cubins have it, see tests/captures/h200-graphs.cubin.xz).
const EXIT: [u64; 2] = [0x794d, 0x000f_ea00_0380_0000];
/// Offset of the QMD, which lies behind the program.
const QMD: u64 = 0x1000;
/// Number of instructions that are written: the words that the GPU fetches ahead must be instructions, too.
const INSTRUCTIONS: usize = 64;

/// The oldest QMD layout that is formed here.
const OLDEST: (u8, u8) = (4, 0);

/// Measures empty kernels, by the GPU's clock and by the processor's. Their program and QMD lie in `memory`, which is the
/// GPU's. Both are written there as inline data, as CUDA's driver does it.
///
/// # Errors
/// [`Error::NoKernel`] where the GPU's QMDs have another layout.
pub(crate) fn kernel(
    channel: &mut Channel,
    class: u32,
    memory: &Memory,
) -> Result<Vec<Latency>, Error> {
    let qmd = form(class, memory.address())?;
    let program: Vec<u8> = EXIT.iter().flat_map(|half| half.to_le_bytes()).collect();
    let at = GpuVa(memory.address().0 + QMD);
    let payload = channel.next_payload();
    let mut segment = Segment::new(channel, class, payload);
    segment.inline(memory.address(), &program.repeat(INSTRUCTIONS))?;
    segment.inline(at, &qmd)?;
    segment.host_release(END, Waits::ForWork)?;
    let push = segment.finish();
    channel.submit(&push)?;
    channel.wait(END, payload)?;
    let mut seen = Vec::new();
    let times = repeat(RUNS, || {
        let payload = channel.next_payload();
        let mut segment = Segment::new(channel, class, payload);
        segment.host_release(START, Waits::Not)?;
        segment.kernel(at)?;
        segment.host_release(END, Waits::ForWork)?;
        let push = segment.finish();
        let rung = channel.submit(&push)?.rung;
        let end = channel.wait(END, payload)?;
        seen.push((end - rung).as_nanos() as f64);
        channel.between(START, END)
    })?;
    let by_processor = super::Times::of(seen.split_off(super::WARM_UP)).ok_or(Error::Nothing)?;
    Ok(vec![
        Latency {
            name: "kernel",
            what: "an empty kernel between two releases by the host, the second behind it (GPU's clock)".to_owned(),
            times,
        },
        Latency {
            name: "doorbell_to_kernel_end",
            what: "doorbell rung until the release behind an empty kernel is seen (processor's clock)".to_owned(),
            times: by_processor,
        },
    ])
}

/// Forms the QMD of one thread of the program at `program`, with the values that CUDA's driver sets for an empty kernel.
fn form(class: u32, program: GpuVa) -> Result<Vec<u8>, Error> {
    let version = qmd::versions_of(class).first().copied();
    let version = version
        .filter(|v| *v >= OLDEST)
        .ok_or(Error::NoKernel(class))?;
    let mut qmd = Qmd::new(version).ok_or(Error::NoKernel(class))?;
    let fields = [
        ("QMD_GROUP_ID", 0x3f),
        ("QMD_TYPE", 2), // GRID_CTA
        ("SASS_VERSION", sass_version(class)?),
        ("API_VISIBLE_CALL_LIMIT", 1), // NO_CHECK
        ("SAMPLER_INDEX", 1),          // VIA_HEADER_INDEX
        ("INVALIDATE_INSTRUCTION_CACHE", 1),
        ("MIN_SM_CONFIG_SHARED_MEM_SIZE", 9),
        ("MAX_SM_CONFIG_SHARED_MEM_SIZE", 0x3a),
        ("TARGET_SM_CONFIG_SHARED_MEM_SIZE", 9),
        ("GRID_WIDTH", 1),
        ("GRID_HEIGHT", 1),
        ("GRID_DEPTH", 1),
        ("CTA_THREAD_DIMENSION0", 1),
        ("CTA_THREAD_DIMENSION1", 1),
        ("CTA_THREAD_DIMENSION2", 1),
        ("REGISTER_COUNT", 16),
    ];
    for (name, value) in fields {
        qmd.set(name, 0, value)?;
    }
    // 1 KiB is the system's own; newer layouts count in units of 128 bytes.
    qmd.set("SHARED_MEMORY_SIZE", 0, 0x400)
        .or_else(|_| qmd.set("SHARED_MEMORY_SIZE_SHIFTED7", 0, 0x400 >> 7))?;
    let (lower, upper) = ("PROGRAM_ADDRESS_LOWER", "PROGRAM_ADDRESS_UPPER");
    let shifted = (
        "PROGRAM_ADDRESS_LOWER_SHIFTED4",
        "PROGRAM_ADDRESS_UPPER_SHIFTED4",
    );
    let (names, address) = match qmd.set(lower, 0, program.0) {
        Ok(()) => ((lower, upper), program.0),
        Err(_) => (shifted, program.0 >> 4),
    };
    qmd.set(names.0, 0, address)?;
    qmd.set(names.1, 0, address >> 32)?;
    Ok(qmd.bytes().to_vec())
}

/// The version of the machine code that a class runs.
fn sass_version(class: u32) -> Result<u64, Error> {
    match class {
        0xcbc0 => Ok(0x90),
        0xcdc0 => Ok(0xa0),
        0xcec0 => Ok(0xc0),
        _ => Err(Error::NoKernel(class)),
    }
}
