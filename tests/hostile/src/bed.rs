//! Rings, pushbuffers and a doorbell at the software GPU's addresses, and regular submissions to them, counted.
//!
//! Everything is shared with forks. A submission is one entry with bytes that no other entry of its channel has, so the sum
//! of the checksums of all entries does not depend on which process submitted when.

use std::fmt::Write as _;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use nvcap_decode::decode::encode::Pushbuffer;
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::entry;
use softgpu::form;
use softgpu::layout::{
    CONTROL, CONTROL_LEN, Channel, DOORBELL, DOORBELL_PAGE, ENTRIES, GP_GET, HOST_CLASS, PAGE,
    PUSHBUFFER, PUSHBUFFERS_LEN, RINGS_LEN, SLOT, USERD, Unit, doorbell_page, pushbuffers, rings,
};
use softgpu::plan::checksum;
use softgpu::store::{Site, ring};
use softgpu::stream::semaphore;

use crate::process::map_at;

/// Number of channels in use.
pub const CHANNELS: usize = 4;
/// The most bytes of a counted submission, except for large ones.
const PIECE: u64 = 256;
/// The place of rings that do not fit a slot, and their distance.
const LARGE: u64 = 0x2_8000_0000;
const LARGE_SLOT: u64 = 1 << 20;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Everything that is mapped.
#[derive(Clone, Copy, Debug)]
pub struct Bed {
    /// Entries of each ring.
    pub entries: u32,
    /// True if everything is mapped from files with the names of the driver's.
    pub files: bool,
}

#[repr(C, align(64))]
struct Counters {
    lock: AtomicU32,
    number: AtomicU64,
    position: AtomicU64,
    sum: AtomicU64,
}

/// Prints a line on standard output, unbuffered.
pub fn say(line: &str) {
    say_to(1, line);
}

/// Writes a line to a descriptor, unbuffered.
pub fn say_to(fd: i32, line: &str) {
    let line = format!("{line}\n");
    // SAFETY: the kernel reads as many bytes as the string has.
    unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) };
}

/// A pause between submissions: long enough for a tracer that looks at intervals.
pub fn pause() {
    std::thread::sleep(Duration::from_micros(100));
}

fn of_word(address: u64) -> &'static AtomicU32 {
    // SAFETY: every caller gives the address of a word of the bed, which lives as long as the process; a mode that unmaps
    // or protects it does not use it meanwhile. Only atomics touch it.
    unsafe { &*(address as *const AtomicU32) }
}

impl Bed {
    /// Maps everything.
    pub fn map(entries: u32, files: bool) -> Result<Bed> {
        map_at(CONTROL, CONTROL_LEN, BOTH, None)?;
        let own: &[_] = &[
            (rings(0), RINGS_LEN, BOTH),
            (doorbell_page(0, 0), DOORBELL_PAGE, libc::PROT_WRITE),
            (doorbell_page(0, 1), DOORBELL_PAGE, libc::PROT_WRITE),
        ];
        let system: &[_] = &[(pushbuffers(0), PUSHBUFFERS_LEN, BOTH)];
        if files {
            map_file("nvidia0", own)?;
            map_file("nvidiactl", system)?;
        } else {
            for &(start, len, prot) in own.iter().chain(system) {
                map_at(start, len, prot, None)?;
            }
        }
        if entries > ENTRIES {
            map_at(LARGE, LARGE_SLOT * CHANNELS as u64, BOTH, None)?;
        }
        Ok(Bed { entries, files })
    }

    /// Maps a new bed in place of one that was unmapped, and restarts the counts.
    pub fn map_again(&self) -> Result<Bed> {
        // SAFETY: the caller has unmapped the bed, and no other thread of this process uses the counters.
        unsafe { libc::munmap(CONTROL as *mut libc::c_void, CONTROL_LEN as usize) };
        Bed::map(self.entries, self.files)
    }

    /// The channels file of a bed with rings of this many entries.
    pub fn describe(entries: u32) -> String {
        let bed = Bed {
            entries,
            files: false,
        };
        let mut text = String::new();
        for page in 0..2 {
            let addr = doorbell_page(0, page) + DOORBELL;
            let _ = writeln!(text, "doorbell addr={addr:#x} gpu=0");
        }
        for i in 0..CHANNELS {
            let c = channel(i);
            let _ = writeln!(
                text,
                "channel gpu=0 token={:#x} class={HOST_CLASS:#x} engine={:#x} ring={:#x} entries={entries} userd={:#x}",
                c.token(),
                c.engine(),
                bed.ring(i),
                bed.userd(i)
            );
        }
        text
    }

    /// First address of a channel's ring.
    pub fn ring(&self, i: usize) -> u64 {
        if self.entries > ENTRIES {
            LARGE + LARGE_SLOT * i as u64
        } else {
            channel(i).ring()
        }
    }

    /// Size of a ring with its USERD, in bytes.
    pub fn slot(&self) -> u64 {
        if self.entries > ENTRIES {
            LARGE_SLOT
        } else {
            SLOT
        }
    }

    /// First address of a channel's USERD.
    pub fn userd(&self, i: usize) -> u64 {
        self.ring(i) + self.slot() - (SLOT - USERD)
    }

    /// First address of a channel's pushbuffer memory.
    pub fn pushbuffer(&self, i: usize) -> u64 {
        channel(i).pushbuffer()
    }

    fn counters(&self, i: usize) -> &'static Counters {
        // SAFETY: the control mapping is zeroed (a valid value), larger than the counters of all channels, and never undone.
        unsafe { &*(CONTROL as *const Counters).add(i) }
    }

    /// GP_PUT in USERD.
    pub fn gp_put(&self, i: usize) -> &'static AtomicU32 {
        of_word(self.userd(i) + GP_GET + 4)
    }

    /// GP_GET in USERD.
    pub fn gp_get(&self, i: usize) -> &'static AtomicU32 {
        of_word(self.userd(i) + GP_GET)
    }

    /// Writes one ring entry's eight bytes.
    pub fn write_entry(&self, i: usize, index: u64, raw: u64) {
        let at = self.ring(i) + 8 * (index % u64::from(self.entries));
        // SAFETY: inside the ring, which the mode has mapped, aligned; only atomics touch it.
        unsafe { (*(at as *const AtomicU64)).store(raw, Ordering::Release) }
    }

    /// Rings with a channel's token.
    pub fn doorbell(&self, i: usize) {
        self.doorbell_of(channel(i).token());
    }

    /// Rings with any token.
    pub fn doorbell_of(&self, token: u32) {
        let own = CONTROL + CONTROL_LEN / 2;
        // SAFETY: the page is mapped writable and never undone while anybody submits.
        unsafe { ring(doorbell_page(0, 1), token, Site::Plain, own) }
    }

    /// One regular submission: its channel's next release.
    pub fn submit(&self, i: usize) {
        self.submit_by(i, || self.doorbell(i));
    }

    /// One regular submission, whose doorbell is rung by code that stores ECX where RAX points, and returns.
    pub fn submit_from(&self, i: usize, code: u64) {
        self.submit_by(i, || {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller has mapped that code; it stores a word to the doorbell, which is mapped writable.
            unsafe {
                std::arch::asm!("call {code}", code = in(reg) code, in("rax") doorbell_page(0, 1) + DOORBELL,
                    in("rcx") u64::from(channel(i).token()), clobber_abi("C"));
            }
            #[cfg(not(target_arch = "x86_64"))]
            {
                let _ = code;
                self.doorbell(i);
            }
        });
    }

    fn submit_by(&self, i: usize, rings: impl FnOnce()) {
        let counters = self.lock(i);
        let bytes = honest(i, counters.number.load(Ordering::Relaxed));
        self.put(i, &bytes, rings);
        self.unlock(i);
    }

    /// Regular submissions to all channels in turn, with pauses.
    pub fn submit_many(&self, count: usize) {
        for n in 0..count {
            self.submit(n % CHANNELS);
            pause();
        }
    }

    /// A submission of these bytes, counted like any other.
    pub fn submit_bytes(&self, i: usize, bytes: &[u8]) {
        self.lock(i);
        self.put(i, bytes, || self.doorbell(i));
        self.unlock(i);
    }

    fn lock(&self, i: usize) -> &'static Counters {
        let counters = self.counters(i);
        while counters.lock.swap(1, Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
        counters
    }

    fn unlock(&self, i: usize) {
        self.counters(i).lock.store(0, Ordering::Release);
    }

    /// Pushbuffer, ring, GP_PUT, doorbell, GP_GET. The channel's lock is held.
    fn put(&self, i: usize, bytes: &[u8], rings: impl FnOnce()) {
        let counters = self.counters(i);
        let number = counters.number.load(Ordering::Relaxed);
        let position = counters.position.load(Ordering::Relaxed);
        let step = (bytes.len() as u64).next_multiple_of(PIECE);
        let address =
            self.pushbuffer(i) + (number * step) % (PUSHBUFFER - step + PIECE) / PIECE * PIECE;
        // SAFETY: inside the channel's pushbuffer memory, which is mapped; the lock keeps other writers out.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        let raw = entry::segment(GpuVa(address), bytes.len() as u32, false, true, false);
        self.write_entry(i, position, raw);
        let put = ((position + 1) % u64::from(self.entries)) as u32;
        counters.number.store(number + 1, Ordering::Relaxed);
        counters.position.store(position + 1, Ordering::Relaxed);
        let sum = checksum(0, raw, bytes);
        counters.sum.fetch_add(sum, Ordering::Relaxed);
        self.gp_put(i).store(put, Ordering::Release);
        rings();
        self.gp_get(i).store(put, Ordering::Release);
    }

    /// The counts of everything submitted.
    pub fn truth(&self) -> String {
        let mut lines = Vec::new();
        for i in 0..CHANNELS {
            let counters = self.counters(i);
            lines.push(format!(
                "truth token={} entries={} sum={:#x}",
                channel(i).token(),
                counters.number.load(Ordering::Relaxed),
                counters.sum.load(Ordering::Relaxed)
            ));
        }
        lines.join("\n")
    }

    /// Prints the counts.
    pub fn tell(&self) {
        say(&self.truth());
    }

    /// Unmaps rings, pushbuffers and doorbells.
    pub fn unmap(&self) {
        let own = [
            (rings(0), RINGS_LEN),
            (pushbuffers(0), PUSHBUFFERS_LEN),
            (doorbell_page(0, 0), 2 * DOORBELL_PAGE),
        ];
        for (start, len) in own {
            // SAFETY: the caller submits no more, and nobody else does.
            unsafe { libc::munmap(start as *mut libc::c_void, len as usize) };
        }
    }
}

/// The channel with this number.
pub fn channel(i: usize) -> Channel {
    Channel::first(CHANNELS, 1)[i]
}

/// The words of a regular submission with this number: a release of its channel's semaphore.
fn honest(i: usize, number: u64) -> Vec<u8> {
    let channel = channel(i);
    let mut pb = Pushbuffer::new();
    if number == 0 {
        match channel.unit() {
            Unit::Compute => pb.bind(form::COMPUTE, form::COMPUTE_CLASS),
            Unit::Copy => pb.bind(form::COPY, form::COPY_CLASS),
        };
    }
    let payload = (number + 1) as u32;
    form::release(&mut pb, channel.unit(), semaphore(channel), payload);
    pb.bytes()
}

/// Maps ranges from a file of this name, which is removed.
pub(crate) fn map_file(name: &str, wanted: &[(u64, u64, i32)]) -> Result<()> {
    let folder = std::path::PathBuf::from(format!("/dev/shm/hostile.{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(name);
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .with_context(|| path.display().to_string())?;
    file.set_len(wanted.iter().map(|w| w.1 + PAGE).sum())?;
    let mut offset = 0;
    for &(start, len, prot) in wanted {
        map_at(start, len, prot, Some((file.as_raw_fd(), offset)))?;
        offset += len + PAGE;
    }
    std::mem::forget(file);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
