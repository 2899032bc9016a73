//! Processes that map memory of a GPU, reported by the kernel as soon as they do. This includes processes that live only for some
//! milliseconds.
//!
//! The kernel writes a record of each new mapping of any process, with the mapped file's name, into buffers that nvcap reads. The records
//! come from a perf event on every processor, so neither a BPF program nor a function of the driver is needed. A process that maps memory
//! does not wait for nvcap.

use std::io;
use std::path::Path;

use perf_event_open_sys::bindings as b;

use super::kernel_records::{Buffer, long, of_all_processors, word};
use crate::memory::{devices, maps};
use nvcap_decode::record::Device;

/// Size of a processor's buffer, bytes: some thousand records.
const BUFFER: usize = 256 << 10;
/// Offsets of the fields of a record of a mapping: process (4 bytes), protection (4), name of the file (up to a byte 0).
const PID_AT: usize = 0;
const ADDRESS_AT: usize = 8;
const FILE_SYSTEM_AT: usize = 32;
const PROT_AT: usize = 56;
const FLAGS_AT: usize = 60;
const NAME_AT: usize = 64;

/// Mappings that the kernel reported since the last call.
#[derive(Debug, Default)]
pub struct Mapped {
    /// Processes that have mapped memory of a GPU with the right to write, each with the GPU's minor number.
    pub by: Vec<(u32, u32)>,
    /// True if records did not fit into a buffer, so that further processes may have mapped memory.
    pub lost: bool,
}

/// The kernel's reports of new mappings: one buffer for each processor.
#[derive(Debug)]
pub struct Told(Vec<Buffer>);

impl Told {
    /// Opens buffers for records of all mappings from now on.
    ///
    /// # Errors
    /// When perf events of all processes are refused.
    pub fn new() -> io::Result<Self> {
        let asks = |attr: &mut b::perf_event_attr| {
            attr.set_mmap(1);
            attr.set_mmap_data(1);
            attr.set_mmap2(1);
        };
        of_all_processors(BUFFER, asks).map(Self)
    }

    /// Takes in the mappings that were reported since the last call.
    pub fn take(&mut self) -> Mapped {
        let mut mapped = Mapped::default();
        for buffer in &mut self.0 {
            buffer.read(&mut |kind, fields| match kind {
                b::PERF_RECORD_MMAP2 => mapped.by.extend(of_gpu(fields)),
                b::PERF_RECORD_LOST => mapped.lost = true,
                _ => {}
            });
        }
        mapped.by.sort_unstable();
        mapped.by.dedup();
        mapped
    }
}

/// Does as [`of_gpu`] for a mapped file whose name is not one of the driver's, because a device file may be mounted under any name.
fn renamed(fields: &[u8], pid: u32) -> Option<(u32, u32)> {
    let number = (
        word(fields, FILE_SYSTEM_AT)?,
        word(fields, FILE_SYSTEM_AT + 4)?,
    );
    let is_shared = word(fields, FLAGS_AT)? & libc::MAP_SHARED as u32 != 0;
    if !is_shared || number == (0, 0) || devices::shared_memory() == Some(number) {
        return None;
    }
    let (start, len) = (long(fields, ADDRESS_AT)?, long(fields, ADDRESS_AT + 8)?);
    let mapped = format!(
        "/proc/{pid}/map_files/{start:x}-{:x}",
        start.wrapping_add(len)
    );
    match devices::of_file(Path::new(&mapped)) {
        Some(Device::Gpu(minor)) => Some((pid, minor)),
        _ => None,
    }
}

/// Returns the process and the GPU's minor number, if the process mapped memory of a GPU with the right to write.
fn of_gpu(fields: &[u8]) -> Option<(u32, u32)> {
    if word(fields, PROT_AT)? & libc::PROT_WRITE as u32 == 0 {
        return None;
    }
    // 0 means a process in a PID namespace that is not below nvcap's.
    let pid = word(fields, PID_AT).filter(|pid| *pid != 0)?;
    let name = fields.get(NAME_AT..)?.split(|byte| *byte == 0).next()?;
    let name = std::str::from_utf8(name).unwrap_or_default();
    let Some(device) = maps::device_of_path(name) else {
        return renamed(fields, pid);
    };
    if !matches!(device, Device::Gpu(_)) {
        return None;
    }
    let inside = format!("/proc/{pid}/root{name}");
    let device = devices::checked(device, &[Path::new(&inside), Path::new(name)], None);
    match device {
        Some(Device::Gpu(minor)) => Some((pid, minor)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::ptr;

    use super::*;

    const PAGE: usize = 4096;

    fn record(pid: u32, prot: i32, name: &str) -> Vec<u8> {
        let mut fields = vec![0; NAME_AT];
        fields[PID_AT..PID_AT + 4].copy_from_slice(&pid.to_ne_bytes());
        fields[PROT_AT..PROT_AT + 4].copy_from_slice(&prot.to_ne_bytes());
        fields.extend_from_slice(name.as_bytes());
        fields.resize(fields.len().next_multiple_of(8) + 8, 0);
        fields
    }

    #[test]
    fn mappings_of_gpus_that_may_be_written() {
        const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
        // No file has this path, so the name is believed.
        let told = |pid, prot, name| of_gpu(&record(pid, prot, name));
        assert_eq!(told(4194305, BOTH, "/dev/nvidia91"), Some((4194305, 91)));
        assert_eq!(told(4194305, libc::PROT_READ, "/dev/nvidia91"), None);
        assert_eq!(told(4194305, BOTH, "/dev/nvidiactl"), None);
        assert_eq!(told(4194305, BOTH, "/usr/lib/libnvidia-ml.so.1"), None);
        assert_eq!(told(0, BOTH, "/dev/nvidia91"), None);
        assert_eq!(
            of_gpu(&record(1, BOTH, "/dev/nvidia91")[..NAME_AT - 1]),
            None
        );
    }

    /// Test of a mapping of this process by the kernel's own record, which shows that the offsets of the fields are right.
    #[test]
    #[ignore = "needs perf events of all processes: cargo xtask test runs it as root"]
    fn the_kernel_tells_of_a_mapping() {
        let Ok(mut told) = Told::new() else {
            println!(
                "NOT RUN the_kernel_tells_of_a_mapping: perf events of all processes are refused"
            );
            return;
        };
        let name = format!("/dev/shm/nvcap-told-{}", std::process::id());
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&name);
        let file = file.unwrap();
        file.set_len(PAGE as u64).unwrap();
        // SAFETY: a new mapping that nothing uses.
        let page = unsafe {
            let prot = libc::PROT_WRITE;
            libc::mmap(
                ptr::null_mut(),
                PAGE,
                prot,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        std::fs::remove_file(&name).unwrap();
        let mut found = None;
        for buffer in &mut told.0 {
            buffer.read(&mut |kind, fields| {
                let path = fields.get(NAME_AT..).unwrap_or_default();
                if kind == b::PERF_RECORD_MMAP2 && path.starts_with(name.as_bytes()) {
                    found = word(fields, PID_AT).zip(word(fields, PROT_AT));
                }
            });
        }
        // SAFETY: the mapping from above.
        unsafe { libc::munmap(page, PAGE) };
        assert_eq!(found, Some((std::process::id(), libc::PROT_WRITE as u32)));
        assert!(told.take().by.is_empty(), "each is told once");
    }
}
