//! Records that the kernel writes about all processes: a perf event on every processor writes them into a buffer that nvcap reads. This
//! needs no BPF program, and no process waits for nvcap.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::{self as sys, bindings as b};

const PAGE: usize = 4096;
/// Length of a record before its fields, bytes.
const HEADER: usize = 8;

/// Opens a buffer of this size, a power of two, for each processor. `asks` selects the kinds of records.
///
/// # Errors
/// When perf events of all processes are refused.
pub(super) fn of_all_processors(
    size: usize,
    asks: impl Fn(&mut b::perf_event_attr),
) -> io::Result<Vec<Buffer>> {
    let processors = aya::util::online_cpus().map_err(|(_, e)| e)?;
    let buffers = processors.into_iter();
    buffers.map(|p| Buffer::new(p, size, &asks)).collect()
}

pub(super) fn long(fields: &[u8], at: usize) -> Option<u64> {
    let bytes = fields.get(at..at + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

pub(super) fn word(fields: &[u8], at: usize) -> Option<u32> {
    let bytes = fields.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// The records of one processor.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Page that the kernel writes, and the data behind it.
    page: NonNull<b::perf_event_mmap_page>,
    _event: OwnedFd,
    /// Size of the data, bytes.
    size: usize,
    record: Vec<u8>,
}

// SAFETY: the memory is this buffer's alone, and the kernel's.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new(
        processor: u32,
        size: usize,
        asks: impl Fn(&mut b::perf_event_attr),
    ) -> io::Result<Self> {
        let mut attr = b::perf_event_attr {
            type_: b::PERF_TYPE_SOFTWARE,
            size: size_of::<b::perf_event_attr>() as u32,
            config: u64::from(b::PERF_COUNT_SW_DUMMY),
            ..Default::default()
        };
        asks(&mut attr);
        // No process needs to be woken: nvcap polls.
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
                PAGE + size,
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
            size,
            record: Vec::new(),
        })
    }

    /// Gives the kind and the fields of each new record to `each`.
    pub(super) fn read(&mut self, each: &mut dyn FnMut(u32, &[u8])) {
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

    /// Copies bytes out of the buffer's data, which is a ring: after its end it continues at the front.
    fn copy(&mut self, at: u64, len: usize) {
        // SAFETY: the data lie behind the page.
        let data = unsafe { self.page.as_ptr().cast::<u8>().add(PAGE) };
        self.record.clear();
        let from = at as usize % self.size;
        let before = len.min(self.size - from);
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
        unsafe { libc::munmap(self.page.as_ptr().cast(), PAGE + self.size) };
    }
}
