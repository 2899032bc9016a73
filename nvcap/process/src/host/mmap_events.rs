//! Processes that map memory of a GPU, reported by the kernel as soon as they do. Processes that live only for some milliseconds are
//! reported, too.
//!
//! The kernel writes a record of each new mapping of any process, with the mapped file's name, into buffers that nvcap reads. The records
//! come from a perf event on every processor, which needs no BPF program and no function of the driver's. A process that maps memory does
//! not wait for nvcap.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::{self as sys, bindings as b};

use crate::memory::{devices, maps};
use nvcap_decode::record::Device;

/// Bytes of a processor's buffer: some thousand records.
const BUFFER: usize = 256 << 10;
const PAGE: usize = 4096;
/// Bytes of a record before its fields.
const HEADER: usize = 8;
/// The fields of a record of a mapping: process (4 bytes), protection (4), name of the file (up to a byte 0).
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
    /// True if records did not fit into a buffer: other processes may have mapped memory, too.
    pub lost: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Told(Vec<Buffer>);

impl Told {
    /// Opens buffers for records of all mappings from now on.
    ///
    /// # Errors
    /// When perf events of all processes are refused.
    pub fn new() -> io::Result<Self> {
        let processors = aya::util::online_cpus().map_err(|(_, e)| e)?;
        let buffers: io::Result<Vec<Buffer>> = processors.into_iter().map(Buffer::new).collect();
        buffers.map(Self)
    }

    /// Takes the mappings that were told of since the last call.
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

fn long(fields: &[u8], at: usize) -> Option<u64> {
    let bytes = fields.get(at..at + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

fn word(fields: &[u8], at: usize) -> Option<u32> {
    let bytes = fields.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Does as [`of_gpu`] for a mapped file whose name is not one of the driver's: a device file may be mounted under any name.
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

/// The process and the GPU's minor number, if the process mapped memory of a GPU with the right to write.
fn of_gpu(fields: &[u8]) -> Option<(u32, u32)> {
    if word(fields, PROT_AT)? & libc::PROT_WRITE as u32 == 0 {
        return None;
    }
    // None: in a PID namespace that is not below nvcap's.
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

/// The records of one processor.
#[derive(Debug)]
struct Buffer {
    /// The page that the kernel writes, and the data behind it.
    page: NonNull<b::perf_event_mmap_page>,
    _event: OwnedFd,
    record: Vec<u8>,
}

// SAFETY: the memory is this buffer's alone, and the kernel's.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new(processor: u32) -> io::Result<Self> {
        let mut attr = b::perf_event_attr {
            type_: b::PERF_TYPE_SOFTWARE,
            size: size_of::<b::perf_event_attr>() as u32,
            config: u64::from(b::PERF_COUNT_SW_DUMMY),
            ..Default::default()
        };
        attr.set_mmap(1);
        attr.set_mmap_data(1);
        attr.set_mmap2(1);
        // Nobody is to be woken: nvcap looks by itself.
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
        let flags = u64::from(b::PERF_FLAG_FD_CLOEXEC);
        // SAFETY: attr is a whole perf_event_attr.
        let fd = unsafe { sys::perf_event_open(&mut attr, -1, processor as i32, -1, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else has.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a new mapping of the event's buffer.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                PAGE + BUFFER,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(page.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            page,
            _event: event,
            record: Vec::new(),
        })
    }

    /// Gives the kind and the fields of each new record to `each`.
    fn read(&mut self, each: &mut dyn FnMut(u32, &[u8])) {
        let page = self.page.as_ptr();
        // SAFETY: the page is mapped, and the kernel changes these words as atomics.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*page).data_head),
                AtomicU64::from_ptr(&raw mut (*page).data_tail),
            )
        };
        let (end, mut at) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
        while end - at >= HEADER as u64 {
            self.copy(at, HEADER);
            let kind = word(&self.record, 0).unwrap_or_default();
            // The length is in the last two bytes of the header.
            let len = word(&self.record, 4).unwrap_or_default() >> 16;
            if (len as usize) < HEADER {
                at = end;
                break;
            }
            self.copy(at + HEADER as u64, len as usize - HEADER);
            each(kind, &self.record);
            at += u64::from(len);
        }
        tail.store(at, Ordering::Release);
    }

    /// Copies bytes out of the buffer's data, which is a ring: behind its end it begins again at the front.
    fn copy(&mut self, at: u64, len: usize) {
        // SAFETY: the data lie behind the page.
        let data = unsafe { self.page.as_ptr().cast::<u8>().add(PAGE) };
        self.record.clear();
        let from = at as usize % BUFFER;
        let before = len.min(BUFFER - from);
        for (from, len) in [(from, before), (0, len - before)] {
            // SAFETY: these bytes lie in the buffer; the kernel does not write them until the tail has passed them.
            let part = unsafe { std::slice::from_raw_parts(data.add(from), len) };
            self.record.extend_from_slice(part);
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; nothing refers to it any more.
        unsafe { libc::munmap(self.page.as_ptr().cast(), PAGE + BUFFER) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // No file leads there, so that the name is believed.
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

    /// A mapping of this process, by the kernel's own record: the offsets of its fields are right.
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
