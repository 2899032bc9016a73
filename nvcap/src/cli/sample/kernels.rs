//! The kernel of a program counter.

use nvcap_decode::record::Kernel;

/// A code of 128 bytes is the shortest: a kernel whose length is not known is at least as long.
const LONGEST_UNKNOWN: u64 = 512 << 10;

/// The kernel in whose code an instruction lies.
pub(super) fn kernel_at(kernels: &[Kernel], pc: u64) -> Option<&Kernel> {
    let behind = kernels.partition_point(|kernel| kernel.program.0 <= pc);
    let kernel = kernels.get(behind.checked_sub(1)?)?;
    let len = kernel.bytes.unwrap_or(LONGEST_UNKNOWN);
    (!kernel.name.is_empty() && pc - kernel.program.0 < len).then_some(kernel)
}
