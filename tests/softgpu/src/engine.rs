//! GPU for the pushbuffers of `nvcap bench`: the few methods that bench submits, executed in memory. Kernels are
//! not run: those submitted are empty.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use nvcap_decode::wire::header::{Header, Step};
use nvcap_process::rm::Mapping;

use crate::clock::monotonic;

/// The GPU's memory: files, each mapped into this process for the GPU, beside the client's mapping.
#[derive(Debug, Default)]
pub struct Memory(BTreeMap<u64, Range>);

#[derive(Debug)]
struct Range {
    len: u64,
    start: usize,
    file: File,
}

impl Memory {
    /// New memory at an address of the GPU's.
    pub fn add(&mut self, address: u64, len: u64) -> io::Result<()> {
        let file = file(len)?;
        let start = map(None, len as usize, Some(&file))? as usize;
        self.0.insert(address, Range { len, start, file });
        Ok(())
    }

    /// Memory of another's at an address.
    pub(crate) fn add_file(&mut self, address: u64, len: u64, file: File) -> io::Result<()> {
        let start = map(None, len as usize, Some(&file))? as usize;
        self.0.insert(address, Range { len, start, file });
        Ok(())
    }

    /// The file of the memory at an address, and its length.
    pub(crate) fn file_at(&self, address: u64) -> io::Result<(File, u64)> {
        let range = self.0.get(&address).ok_or(io::ErrorKind::NotFound)?;
        Ok((range.file.try_clone()?, range.len))
    }

    /// Maps the memory at an address once more, as a client does; `at` an address of the process's.
    pub fn mapping(&self, address: u64, at: Option<u64>, len: usize) -> io::Result<Mapping> {
        let range = self.0.get(&address).ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: just mapped, and the client alone unmaps it.
        map(at, len, Some(&range.file)).map(|start| unsafe { Mapping::from_raw(start, len) })
    }

    /// Returns the address at which this process sees `len` bytes of the GPU's memory.
    fn place(&self, address: u64, len: u64) -> Option<*mut u8> {
        let (first, range) = self.0.range(..=address).next_back()?;
        let offset = address - first;
        let inside = offset <= range.len && range.len - offset >= len;
        inside.then_some((range.start + offset as usize) as *mut u8)
    }

    /// A word.
    pub fn read(&self, address: u64) -> Option<u32> {
        let place = self.place(address, 4)?;
        // SAFETY: the word lies in a mapping that stays as long as the memory.
        Some(unsafe { place.cast::<u32>().read_volatile() })
    }

    /// Stores a word.
    pub fn write(&self, address: u64, value: u32) {
        if let Some(place) = self.place(address, 4) {
            // SAFETY: as in `read`.
            unsafe { place.cast::<u32>().write_volatile(value) };
        }
    }

    /// Bytes; none where there is no such memory.
    pub fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let Some(place) = self.place(address, len as u64) else {
            return Vec::new();
        };
        // SAFETY: they lie in a mapping, and the client does not change what it has submitted.
        unsafe { std::slice::from_raw_parts(place, len) }.to_vec()
    }

    fn copy(&self, from: u64, to: u64, len: u64) {
        let places = self.place(from, len).zip(self.place(to, len));
        if let Some((from, to)) = places {
            // SAFETY: both lie in mappings; they may overlap.
            unsafe { std::ptr::copy(from, to, len as usize) };
        }
    }

    fn store(&self, to: u64, data: &[u8]) {
        if let Some(place) = self.place(to, data.len() as u64) {
            // SAFETY: it lies in a mapping.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), place, data.len()) };
        }
    }
}

/// Methods, by their addresses (clc86f.h, clc8b5.h, clcbc0.h).
mod method {
    pub const SEM_ADDR_LO: u16 = 0x5c;
    pub const SEM_EXECUTE: u16 = 0x6c;
    pub const COPY_SEMAPHORE_A: u16 = 0x240;
    pub const COPY_LAUNCH_DMA: u16 = 0x300;
    pub const COPY_OFFSET_IN: u16 = 0x400;
    pub const COPY_LENGTH: u16 = 0x418;
    pub const INLINE_LENGTH: u16 = 0x180;
    pub const INLINE_OFFSET_OUT: u16 = 0x188;
    pub const INLINE_LAUNCH_DMA: u16 = 0x1b0;
    pub const LOAD_INLINE_DATA: u16 = 0x1b4;
    pub const REPORT_SEMAPHORE_A: u16 = 0x1b00;
    pub const REPORT_SEMAPHORE_D: u16 = 0x1b0c;
}

/// The subchannel on which copy engines are bound.
const COPY: u8 = 4;

/// The state of a channel: what its methods were last set to.
#[derive(Debug, Default)]
pub struct Engine {
    registers: BTreeMap<(u8, u16), u32>,
    inline: Vec<u8>,
    /// Semaphores to be released at the end of the submission: address, payload.
    releases: Vec<(u64, u32)>,
}

impl Engine {
    /// Executes a submission but for its releases; `false` if it waits for a semaphore and is to be tried again. What
    /// `nvcap bench` submits waits before it does anything else.
    pub fn run(&mut self, bytes: &[u8], memory: &Memory) -> bool {
        self.releases.clear();
        let (words, _) = bytes.as_chunks::<4>();
        let mut words = words.iter().map(|w| u32::from_le_bytes(*w));
        while let Some(word) = words.next() {
            let Header::Method {
                step,
                count,
                subchannel,
                mut address,
                data,
            } = Header::read(word)
            else {
                continue;
            };
            if step == Step::Immediate && !self.method(subchannel, address, data, memory) {
                return false;
            }
            for i in 0..count {
                let Some(data) = words.next() else {
                    return true;
                };
                if !self.method(subchannel, address, data, memory) {
                    return false;
                }
                match step {
                    Step::Increment => address += 4,
                    Step::Once if i == 0 => address += 4,
                    _ => {}
                }
            }
        }
        true
    }

    /// Releases the semaphores of the submission, in order.
    pub fn release(&mut self, memory: &Memory) {
        for (address, payload) in self.releases.drain(..) {
            let time = monotonic();
            memory.write(address + 8, time as u32);
            memory.write(address + 12, (time >> 32) as u32);
            // Who sees the payload must see the time.
            fence(Ordering::Release);
            memory.write(address, payload);
        }
    }

    fn get(&self, subchannel: u8, address: u16) -> u32 {
        self.registers
            .get(&(subchannel, address))
            .copied()
            .unwrap_or(0)
    }

    /// An address whose upper half is set by the method `at`, its lower by the next.
    fn address(&self, subchannel: u8, at: u16) -> u64 {
        u64::from(self.get(subchannel, at)) << 32 | u64::from(self.get(subchannel, at + 4))
    }

    fn method(&mut self, subchannel: u8, address: u16, data: u32, memory: &Memory) -> bool {
        // The host's methods are below 0x100, on whatever subchannel.
        let subchannel = if address < 0x100 { 0 } else { subchannel };
        self.registers.insert((subchannel, address), data);
        match (subchannel, address) {
            (0, method::SEM_EXECUTE) => {
                let lower = self.get(0, method::SEM_ADDR_LO);
                let upper = self.get(0, method::SEM_ADDR_LO + 4);
                let semaphore = u64::from(upper) << 32 | u64::from(lower);
                let payload = self.get(0, method::SEM_ADDR_LO + 8);
                if data & 7 == 1 {
                    self.releases.push((semaphore, payload));
                } else if memory.read(semaphore) != Some(payload) {
                    return false;
                }
            }
            (COPY, method::COPY_LAUNCH_DMA) => {
                if data & 3 != 0 {
                    let from = self.address(COPY, method::COPY_OFFSET_IN);
                    let to = self.address(COPY, method::COPY_OFFSET_IN + 8);
                    memory.copy(from, to, self.get(COPY, method::COPY_LENGTH).into());
                }
                if data >> 3 & 3 == 2 {
                    let semaphore = self.address(COPY, method::COPY_SEMAPHORE_A);
                    let payload = self.get(COPY, method::COPY_SEMAPHORE_A + 8);
                    self.releases.push((semaphore, payload));
                }
            }
            (_, method::INLINE_LAUNCH_DMA) => self.inline.clear(),
            (_, method::LOAD_INLINE_DATA) => {
                self.inline.extend(data.to_le_bytes());
                let len = self.get(subchannel, method::INLINE_LENGTH) as usize;
                if self.inline.len() >= len {
                    let to = self.address(subchannel, method::INLINE_OFFSET_OUT);
                    memory.store(to, &self.inline[..len]);
                    self.inline.clear();
                }
            }
            (_, method::REPORT_SEMAPHORE_D) => {
                let semaphore = self.address(subchannel, method::REPORT_SEMAPHORE_A);
                let payload = self.get(subchannel, method::REPORT_SEMAPHORE_A + 8);
                self.releases.push((semaphore, payload));
            }
            _ => {}
        }
        true
    }
}

/// Maps a file or, without one, nothing; at an address or anywhere.
fn map(address: Option<u64>, len: usize, file: Option<&File>) -> io::Result<*mut u8> {
    let fixed = address.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
    // SAFETY: no address is taken that is in use.
    let start = unsafe {
        libc::mmap(
            address.map_or(ptr::null_mut(), |a| a as *mut libc::c_void),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | fixed,
            file.map_or(-1, File::as_raw_fd),
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(start.cast())
}

/// A file in memory.
pub(crate) fn file(len: u64) -> io::Result<File> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"softgpu".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, without another owner.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len)?;
    Ok(file)
}
