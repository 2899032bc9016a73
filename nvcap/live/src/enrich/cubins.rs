//! Images of CUDA code in a running process. libcuda keeps the images of loaded modules in private memory.

use std::io;

use super::names::scan;
use nvcap_decode::cubin::Cubin;
use nvcap_process::procfs::mem::Ordinary;

/// Returns the images of a process, in the order of their addresses, and the memory in which they were found.
///
/// # Errors
/// Those of opening `/proc/PID/mem` and `/proc/PID/maps`. Memory that cannot be read is skipped.
pub fn of(pid: u32) -> io::Result<(Ordinary, Vec<Cubin>)> {
    let memory = Ordinary::open(pid)?;
    let found = scan::search(&memory, &scan::runs(pid)?, &[]);
    let images = found.images.into_iter();
    let images = images.filter_map(|at| Cubin::read(&memory, at)).collect();
    Ok((memory, images))
}
