//! Registers and stacks of threads that run in user mode. A perf event of the processor clock interrupts a thread after a millisecond of
//! its time and copies both; the thread continues at once. A thread in the kernel is not sampled: `/proc` shows the registers of a thread
//! that waits there.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use perf_event_open_sys::{self as sys, bindings as b};

/// Number of bytes taken of each stack.
const STACK: u32 = 32 << 10;
/// Size of the buffer, bytes: a power of two of pages, large enough for a sample.
const BUFFER: usize = 128 << 10;
/// Time for which a thread runs before it is sampled, ns.
const PERIOD: u64 = 1_000_000;
/// Longest wait for all threads together.
const PATIENCE: Duration = Duration::from_millis(60);
/// The most threads that are sampled at once. Each has a buffer, and the buffers of a user who is not root may take about 500 KB.
const MOST: usize = 16;

/// Registers that are sampled, in the order of their bits in perf_regs.h: frame pointer, (link register,) stack pointer, instruction
/// pointer.
#[cfg(target_arch = "x86_64")]
const REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;
#[cfg(target_arch = "aarch64")]
const REGISTERS: u64 = 1 << 29 | 1 << 30 | 1 << 31 | 1 << 32;

/// Registers and stack of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer register.
    pub fp: u64,
    /// Link register, on processors that have one.
    pub lr: u64,
    /// The stack from `sp` upward.
    pub bytes: Vec<u8>,
    /// True if the stack may continue behind these bytes.
    pub cut: bool,
}

/// Returns the size of a page, bytes; one page precedes the buffer.
fn page_size() -> usize {
    usize::try_from(crate::procfs::page_size()).unwrap_or(4096)
}

/// A perf event of a thread, with its buffer.
struct Event {
    /// Descriptor of the event, which ends when it is closed.
    _fd: OwnedFd,
    buffer: *mut u8,
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the mapping was made once, by `open`.
        unsafe { libc::munmap(self.buffer.cast(), page_size() + BUFFER) };
    }
}

impl Event {
    #[allow(
        clippy::useless_conversion,
        reason = "the bindings of aarch64 have these constants as u64"
    )]
    fn open(tid: u32) -> io::Result<Self> {
        let mut attr = b::perf_event_attr {
            type_: b::PERF_TYPE_SOFTWARE,
            size: size_of::<b::perf_event_attr>() as u32,
            config: u64::from(b::PERF_COUNT_SW_CPU_CLOCK),
            sample_type: u64::from(b::PERF_SAMPLE_REGS_USER | b::PERF_SAMPLE_STACK_USER),
            sample_regs_user: REGISTERS,
            sample_stack_user: STACK,
            ..Default::default()
        };
        attr.__bindgen_anon_1.sample_period = PERIOD;
        attr.set_exclude_kernel(1);
        attr.set_exclude_hv(1);
        attr.set_exclude_callchain_kernel(1);
        // SAFETY: attr is a whole perf_event_attr.
        let fd = unsafe {
            let flags = b::PERF_FLAG_FD_CLOEXEC as u64;
            sys::perf_event_open(&mut attr, tid as i32, -1, -1, flags)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a new mapping of the event's buffer.
        let buffer = unsafe {
            libc::mmap(
                ptr::null_mut(),
                page_size() + BUFFER,
                libc::PROT_READ,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if buffer == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            _fd: fd,
            buffer: buffer.cast(),
        })
    }

    /// Returns the first sample, if there is one.
    fn sample(&self) -> Option<Sample> {
        let page = self.buffer.cast::<b::perf_event_mmap_page>();
        // SAFETY: the first page of the mapping is this structure; the kernel writes data_head, an aligned word.
        let head = unsafe { AtomicU64::from_ptr(&raw mut (*page).data_head) };
        let written = head.load(Ordering::Acquire).min(BUFFER as u64) as usize;
        // SAFETY: the kernel has written this many bytes. Since nvcap never marks any of them as read, the kernel overwrites none of them.
        let bytes = unsafe { std::slice::from_raw_parts(self.buffer.add(page_size()), written) };
        first_sample(bytes)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    nvcap_decode::wire::words::u64_at(bytes, at)
}

/// Returns the first sample among the records of a buffer.
fn first_sample(mut bytes: &[u8]) -> Option<Sample> {
    loop {
        let header = word(bytes, 0)?;
        let (kind, size) = (header as u32, (header >> 48) as usize);
        let record = bytes.get(8..size.max(8))?;
        if kind == b::PERF_RECORD_SAMPLE
            && let Some(sample) = sample(record)
        {
            return Some(sample);
        }
        bytes = bytes.get(size.max(8)..)?;
    }
}

/// Parses a record: its registers (their ABI, then the registers) and its stack (its size, the bytes, and how many of the bytes
/// are valid).
fn sample(record: &[u8]) -> Option<Sample> {
    // A sample in the kernel, or of a kernel thread, has no registers.
    if word(record, 0)? == 0 {
        return None;
    }
    let count = REGISTERS.count_ones() as usize;
    let register = |nth: usize| word(record, 8 + 8 * nth);
    let size = usize::try_from(word(record, 8 + 8 * count)?).ok()?;
    let bytes = record.get(16 + 8 * count..)?;
    let there = match size {
        0 => 0,
        _ => usize::try_from(word(bytes, size)?).ok()?.min(size),
    };
    Some(Sample {
        fp: register(0)?,
        lr: if count == 4 { register(1)? } else { 0 },
        sp: register(count - 2)?,
        ip: register(count - 1)?,
        bytes: bytes.get(..there)?.to_vec(),
        cut: there == size,
    })
}

/// Samples each of these threads that is then running in user mode.
pub(super) fn of_threads(tids: &[u32]) -> Vec<(u32, Sample)> {
    let mut all = Vec::new();
    let end = Instant::now() + PATIENCE;
    for some in tids.chunks(MOST) {
        let mut events: Vec<(u32, Event)> = some
            .iter()
            .filter_map(|tid| Some((*tid, Event::open(*tid).ok()?)))
            .collect();
        while !events.is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
            events.retain(|(tid, event)| match event.sample() {
                Some(sample) => {
                    all.push((*tid, sample));
                    false
                }
                None => true,
            });
        }
        log::debug!(
            "{} of {} threads did not run in user mode, or may not be sampled",
            some.len() - all.len().min(some.len()),
            some.len()
        );
    }
    all
}

/// Fails if this thread may not be sampled.
#[cfg(test)]
pub(super) fn allowed(tid: u32) -> io::Result<()> {
    Event::open(tid).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    #[ignore = "needs perf events: cargo xtask test runs it as root"]
    fn a_thread_that_spins() {
        let end = AtomicBool::new(false);
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: reads an id.
                let tid = unsafe { libc::gettid() } as u32;
                let local = 0_u64;
                send.send((tid, &raw const local as u64)).unwrap();
                while !end.load(Ordering::Relaxed) {
                    std::hint::black_box(&local);
                }
            });
            let _end = nvcap_waiting::SetAtEnd(&end);
            let (tid, local) = receive.recv().unwrap();
            match allowed(tid) {
                Err(e) => println!("NOT RUN samples of a thread that spins: no perf event: {e}"),
                Ok(()) => {
                    let mut samples = Vec::new();
                    // The thread must have had a processor for a moment, in user mode.
                    nvcap_waiting::until("a sample of a thread that spins", || {
                        samples = of_threads(&[tid]);
                        !samples.is_empty()
                    });
                    let (of, sample) = samples.pop().expect("one");
                    assert_eq!((of, samples.len()), (tid, 0));
                    assert!((sample.sp..sample.sp + sample.bytes.len() as u64).contains(&local));
                    let code = a_thread_that_spins as *const () as u64;
                    assert!(sample.ip.abs_diff(code) < 1 << 28, "in this program");
                }
            }
        });
    }

    #[test]
    fn records_that_are_cut() {
        let count = u64::from(REGISTERS.count_ones());
        let header = |size: u64| size << 48 | u64::from(b::PERF_RECORD_SAMPLE);
        let mut words = vec![8_u64 << 48 | 5, 0, 2];
        words.extend(100..100 + count);
        words.extend([16, 7, 8, 8]);
        let size = 8 * (words.len() as u64 - 1);
        words[1] = header(size);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let sample = first_sample(&bytes).unwrap();
        assert_eq!(
            (sample.fp, sample.ip, sample.sp),
            (100, 99 + count, 98 + count)
        );
        assert_eq!(
            (sample.bytes, sample.cut),
            (7_u64.to_le_bytes().to_vec(), false)
        );
        for len in 0..bytes.len() {
            assert_eq!(first_sample(&bytes[..len]), None);
        }
        assert_eq!(first_sample(&[0; 64]), None, "sizes of 0");
    }
}
