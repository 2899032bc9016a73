//! The words of libcuda's operations, formed with nvcap's encoder. Knows no channels and no randomness.

use nvcap_decode::decode::encode::{Pushbuffer, Qmd};
use nvcap_decode::decode::view::View;
use nvcap_decode::wire::GpuVa;

use crate::layout::Unit;

/// Subchannel of the compute class.
pub const COMPUTE: u8 = 1;
/// Subchannel of the copy class.
pub const COPY: u8 = 4;
/// Compute class of Hopper.
pub const COMPUTE_CLASS: u32 = 0xcbc0;
/// Copy class of Hopper.
pub const COPY_CLASS: u32 = 0xc8b5;
/// Host class of Hopper.
pub const HOST_CLASS: u32 = 0xc86f;
/// Offset of the arguments in a constant bank: behind the launch geometry.
pub const ARGUMENTS: u64 = 0x210;

fn put(pb: &mut Pushbuffer, subchannel: u8, class: u32, name: &str, data: &[u32]) {
    pb.named(subchannel, class, name, data)
        .expect("the tables of this build have the method");
}

/// Methods of the compute class, by the name of the first.
pub fn compute(pb: &mut Pushbuffer, name: &str, data: &[u32]) {
    put(pb, COMPUTE, COMPUTE_CLASS, name, data);
}

/// Methods of the copy class.
pub fn copy(pb: &mut Pushbuffer, name: &str, data: &[u32]) {
    put(pb, COPY, COPY_CLASS, name, data);
}

/// The two words of an address, upper first.
pub fn halves(address: u64) -> [u32; 2] {
    [(address >> 32) as u32, address as u32]
}

/// Data written inline.
pub fn inline(pb: &mut Pushbuffer, dst: u64, data: &[u8]) {
    pb.inline(COMPUTE, COMPUTE_CLASS, GpuVa(dst), data)
        .expect("the compute class takes inline data");
}

/// A kernel's constant bank, arguments and QMD, written inline. `bank` is the launch geometry; this sets its block and
/// grid.
pub fn kernel(pb: &mut Pushbuffer, qmd_at: u64, fields: &View, bank: &mut [u8], args: &[u8]) {
    for (word, value) in bank
        .as_chunks_mut::<4>()
        .0
        .iter_mut()
        .zip(fields.block.iter().chain(&fields.grid))
    {
        *word = value.to_le_bytes();
    }
    let constants = fields.constant_banks.first().map_or(0, |b| b.address.0);
    inline(pb, constants, bank);
    inline(pb, constants + ARGUMENTS, args);
    let mut qmd = Qmd::of(fields).expect("a layout of this version");
    // Fields that libcuda also sets.
    for (name, value) in [
        ("CONSTANT_BUFFER_INVALIDATE", 1),
        ("SASS_VERSION", 0x90),
        ("API_VISIBLE_CALL_LIMIT", 1),
    ] {
        qmd.set(name, 0, value).expect("a field of this version");
    }
    inline(pb, qmd_at, qmd.bytes());
}

/// Launches the QMD at an address.
pub fn send(pb: &mut Pushbuffer, qmd_at: u64) {
    pb.pcas(COMPUTE, COMPUTE_CLASS, GpuVa(qmd_at))
        .expect("the compute class launches so");
}

/// A release by the class of a channel.
pub fn release(pb: &mut Pushbuffer, unit: Unit, address: u64, payload: u32) {
    let [upper, lower] = halves(address);
    match unit {
        Unit::Compute => compute(pb, "SET_REPORT_SEMAPHORE_A", &[upper, lower, payload, 0]),
        Unit::Copy => {
            copy(pb, "SET_SEMAPHORE_A", &[upper, lower, payload]);
            copy(pb, "LAUNCH_DMA", &[0x14]);
        }
    }
}

/// A wait of the host: ACQ_STRICT_GEQ, ACQUIRE_SWITCH_TSG.
pub fn acquire(pb: &mut Pushbuffer, address: u64, payload: u32) {
    let [upper, lower] = halves(address);
    let data = [lower, upper, payload, 0, 0x1002];
    put(pb, 0, HOST_CLASS, "SEM_ADDR_LO", &data);
}
