//! A made-up process: mappings with bytes, laid out as CUDA or a graphics client does. Every read is counted; a read of a doorbell page
//! panics.

use std::cell::Cell;
use std::io;

use super::maps::Area;
use crate::procfs::mem::ReadMemory;
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::entry;

/// Place of a channel in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub ring: u64,
    pub entries: u32,
    pub userd: u64,
    /// Offset from the process's address of a pushbuffer to its GPU address.
    pub gpu_va: u64,
}

impl Ring {
    /// Returns the ring in one of libcuda's slots.
    pub(super) fn slot(n: u64) -> Self {
        let ring = RINGS + 0x3000 * n;
        Self {
            ring,
            entries: 1024,
            userd: ring + 0x2000,
            gpu_va: 0,
        }
    }
}

const RINGS: u64 = 0x2_0060_0000;
const PUSHBUFFERS: u64 = 0x2_0080_0000;

pub(super) struct FakeMemory {
    areas: Vec<Area>,
    bytes: Vec<Vec<u8>>,
    reads: Cell<u64>,
    gpu: Cell<(u64, u64)>,
    fails_after: u64,
    gone: Cell<Option<(u64, u64, u64)>>,
    filled: u64,
    pushbuffer: u64,
}

impl FakeMemory {
    fn with(areas: &[(u64, u64, &str, &str)]) -> Self {
        let areas: Vec<Area> = areas
            .iter()
            .map(|&(start, len, flags, path)| Area::made_up(start, len, flags, path))
            .collect();
        Self {
            bytes: areas
                .iter()
                .map(|a| vec![0; (a.end - a.start) as usize])
                .collect(),
            pushbuffer: areas
                .iter()
                .filter(|a| a.path == "/dev/nvidiactl")
                .map(|a| a.start)
                .next_back()
                .unwrap_or(0),
            areas,
            reads: Cell::new(0),
            gpu: Cell::new((0, 0)),
            fails_after: u64::MAX,
            gone: Cell::new(None),
            filled: 0,
        }
    }

    /// Makes the memory of a CUDA 13.0 process on an H200, with shortened pushbuffers.
    pub(super) fn cuda() -> Self {
        Self::with(&[
            (0x7fbc_28cc_4000, 0x10000, "w", "/dev/nvidia0"),
            (0x7fbc_28cd_4000, 0x10000, "w", "/dev/nvidia0"),
            (0x7fba_165d_e000, 0x1000, "rw", "/dev/nvidiactl"),
            (RINGS, 0x20_0000, "rw", "/dev/nvidia0"),
            (PUSHBUFFERS, 0x80_0000, "rw", "/dev/nvidiactl"),
        ])
    }

    /// Makes the memory of a Vulkan program: a readable doorbell page, USERDs in a row, rings in system memory.
    pub(super) fn graphics() -> Self {
        Self::with(&[
            (0x7f00_0000_0000, 0x10000, "rw", "/dev/nvidia0"),
            (0x7f00_1000_0000, 0x20_0000, "rw", "/dev/nvidia0"),
            (0x7f00_2000_0000, 0x20_0000, "rw", "/dev/nvidiactl"),
            (0x7f00_3000_0000, 0x20_0000, "rw", "/dev/nvidiactl"),
        ])
    }

    pub(super) fn graphics_rings(&self, count: u64) -> Vec<Ring> {
        (0..count)
            .map(|i| Ring {
                ring: 0x7f00_2000_0000 + i * 0x4_0000,
                entries: 32768,
                userd: 0x7f00_1000_0000 + i * 0x200,
                gpu_va: 0x402_0000_u64.wrapping_sub(0x7f00_3000_0000),
            })
            .collect()
    }

    pub(super) fn areas(&self) -> &[Area] {
        &self.areas
    }

    pub(super) fn rings_at(&self) -> u64 {
        RINGS
    }

    /// Makes the `n`-th read from now on and all later ones fail, as when the process ends.
    pub(super) fn fail_after(&mut self, n: u64) {
        self.fails_after = n;
        self.reads.set(0);
    }

    /// Unmaps `len` bytes from `start` on, after `n` more reads.
    pub(super) fn unmap_after(&self, n: u64, start: u64, len: u64) {
        self.gone.set(Some((self.reads.get() + n, start, len)));
    }

    /// Returns the time that the reads of GPU memory would take on an H200, µs.
    pub(super) fn gpu_cost_us(&self) -> f64 {
        let (reads, bytes) = self.gpu.get();
        reads as f64 * 5.4 + bytes as f64 * 0.026
    }

    pub(super) fn put_bytes(&mut self, at: u64, bytes: &[u8]) {
        let i = self
            .areas
            .iter()
            .position(|a| a.start <= at && at < a.end)
            .unwrap();
        let offset = (at - self.areas[i].start) as usize;
        self.bytes[i][offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn put_word(&mut self, at: u64, word: u64) {
        self.put_bytes(at, &word.to_le_bytes());
    }

    /// Submits one entry with these pushbuffer words, and advances GP_PUT; GP_GET stays `lag` behind.
    pub(super) fn submit(&mut self, ring: Ring, position: u64, words: &[u32], lag: u64) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        if self.filled + bytes.len() as u64 > 0x20_0000 {
            self.filled = 0;
        }
        let at = self.pushbuffer + self.filled;
        self.filled += bytes.len() as u64;
        self.put_bytes(at, &bytes);
        let mask = u64::from(ring.entries) - 1;
        let gpu = GpuVa(at.wrapping_add(ring.gpu_va));
        let raw = entry::segment(gpu, bytes.len() as u32, false, true, false);
        self.put_word(ring.ring + 8 * (position & mask), raw);
        let put = (position + 1) & mask;
        let get = (position + 1).saturating_sub(lag) & mask;
        self.put_word(ring.userd + 0x88, put << 32 | get);
    }

    /// Submits `count` entries that release a semaphore with 1, 2, ...
    pub(super) fn submit_many(&mut self, ring: Ring, count: u64) {
        for position in 0..count {
            let words = [0x2004_36c0, 2, 0x460_fff0, position as u32 + 1, 0];
            self.submit(ring, position, &words, 0);
        }
    }
}

impl ReadMemory for FakeMemory {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let n = self.reads.get();
        self.reads.set(n + 1);
        let len = to.len() as u64;
        let gone = self
            .gone
            .get()
            .is_some_and(|(when, start, its)| n >= when && at < start + its && start < at + len);
        if n >= self.fails_after || gone {
            return Err(io::Error::from_raw_os_error(5));
        }
        let area = self
            .areas
            .iter()
            .position(|a| a.start <= at && at + len <= a.end)
            .ok_or_else(|| io::Error::from_raw_os_error(5))?;
        let a = &self.areas[area];
        assert!(
            !a.is_doorbell_shape(),
            "a doorbell page was read at {at:#x}"
        );
        if a.path.starts_with("/dev/nvidia0") {
            let (reads, bytes) = self.gpu.get();
            self.gpu.set((reads + 1, bytes + len));
        }
        let offset = (at - a.start) as usize;
        to.copy_from_slice(&self.bytes[area][offset..offset + to.len()]);
        Ok(())
    }
}
