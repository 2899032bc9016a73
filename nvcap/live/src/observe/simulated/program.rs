//! Simulated program with one channel, and its GPU: memory that changes between any two reads.

use std::{cell::RefCell, io};

use crate::observe::pace::FASTEST_NS;
use nvcap_decode::record::{At, Channel, ChannelId, CpuVa, Origin};
use nvcap_process::memory::scan::GP_GET;
use nvcap_process::procfs::mem::ReadMemory;

const RING: u64 = 0x2_0060_0000;
const USERD: u64 = 0x2_0060_2000;
const PUSHBUFFER: u64 = 0x2_0080_0000;
const SEMAPHORE: u64 = 0x2_0460_fff0;

/// Behaviour of the program between two reads.
#[derive(Clone, Copy)]
pub(super) struct Program {
    /// The most entries.
    pub most: u64,
    /// Average number of reads to one at which the program acts.
    pub one_in: u64,
    /// Bytes of pushbuffer memory, which is used cyclically.
    pub memory: u64,
    /// True if entries look alike from round to round, because their memory goes round with the ring.
    pub alike: bool,
    /// The most words of an entry.
    pub words: u64,
    /// True if each entry ends with a release of the channel's semaphore.
    pub releases: bool,
    /// Simulated GPU that runs the entries. Without one, the program never waits for entries.
    pub gpu: Option<Gpu>,
}

/// Simulated GPU. The program waits for it only when the ring is full, and only then, as libcuda, checks how far it
/// is. If the GPU is done with all entries, pushbuffer memory is used from its beginning again.
#[derive(Clone, Copy)]
pub(super) struct Gpu {
    /// Time that the GPU needs for an entry, ns.
    pub entry_ns: u64,
    /// Time that the program needs to submit an entry, ns.
    pub submit_ns: u64,
    /// True if its semaphore can be read from outside.
    pub readable: bool,
    /// Amount by which the number read from the semaphore is too high.
    pub ahead: u32,
}

/// Memory and state of the simulated program.
pub(super) struct Inner {
    /// Slots of eight bytes.
    ring: Vec<u8>,
    pub put: u64,
    memory: Vec<u8>,
    offset: u64,
    pub truth: Vec<(u64, Vec<u8>)>,
    /// Time at which each was committed, ns.
    pub committed: Vec<u64>,
    random: u64,
    reads: u64,
    /// Number of reads of the ring and of USERD.
    pub ring_reads: u32,
    pub fails_after: u64,
    program: Program,
    /// True if an entry's words and slot are written, and it is not committed.
    written: bool,
    /// Time of the simulation, ns.
    pub time: u64,
    /// Number of entries that the GPU is done with, the time up to which that is computed, and the number of them that
    /// the program knows of.
    pub done: u64,
    done_at: u64,
    known_done: u64,
    pub ran_until: u64,
}

/// Simulated program, which goes on whenever its memory is read.
pub(super) struct Simulated(pub RefCell<Inner>);

impl Inner {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    fn slots(&self) -> u64 {
        self.ring.len() as u64 / 8
    }

    fn words(&mut self) -> Vec<u8> {
        let payload = self.truth.len() as u32 + 1;
        let inline = self.random(self.program.words) as u32;
        let mut bytes = Vec::with_capacity(4 * (inline as usize + 6));
        bytes.extend_from_slice(&(0x6000_006d | (inline << 16)).to_le_bytes());
        // A byte of its own, between two words that are. Written so, because millions are made.
        let fill = (payload.wrapping_mul(0x9e37_79b9) >> 24) as u8;
        bytes.resize(4 * (inline as usize + 1), fill);
        if inline > 0 {
            let last = 4 * inline as usize;
            bytes[4..8].copy_from_slice(&payload.to_le_bytes());
            bytes[last..].copy_from_slice(&payload.to_le_bytes());
        }
        if self.program.releases {
            for word in [0x2004_26c0, 2, 0x0460_fff0, payload, 0] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        bytes
    }

    /// Does half a submission: first its bytes and its entry, then GP_PUT.
    pub(super) fn half(&mut self) {
        if std::mem::take(&mut self.written) {
            self.put += 1;
            self.committed.push(match self.program.gpu {
                Some(_) => self.ran_until,
                None => self.time,
            });
            if self.program.gpu.is_none() {
                self.time += FASTEST_NS;
            }
            return;
        }
        let bytes = self.words();
        let len = bytes.len() as u64;
        let slots = self.slots();
        let position = self.truth.len() as u64;
        if self.program.alike {
            self.offset = position % slots * (self.program.memory / slots);
        } else if self.offset + len > self.program.memory {
            self.offset = 0;
        }
        let at = self.offset as usize;
        self.memory[at..at + bytes.len()].copy_from_slice(&bytes);
        let entry = (PUSHBUFFER + self.offset) | (len / 4) << 42;
        self.offset += len;
        let slot = (position % slots) as usize * 8;
        self.ring[slot..slot + 8].copy_from_slice(&entry.to_le_bytes());
        self.truth.push((entry, bytes));
        self.written = true;
    }

    /// Lets the GPU run until `now`.
    fn run_gpu(&mut self, gpu: Gpu, now: u64) {
        if self.done == self.put {
            self.done_at = now;
        }
        let ran = (now - self.done_at) / gpu.entry_ns;
        self.done_at += ran * gpu.entry_ns;
        self.done = (self.done + ran).min(self.put);
    }

    /// Tells whether the program may use another slot.
    fn has_room(&mut self) -> bool {
        let most = self.slots() - 1;
        if self.put - self.known_done >= most {
            self.known_done = self.done;
            if self.done == self.put {
                self.offset = 0;
            }
        }
        self.put - self.known_done < most
    }

    /// Lets program and GPU run until now, with pauses.
    fn run_both(&mut self, gpu: Gpu) {
        while self.ran_until <= self.time {
            self.run_gpu(gpu, self.ran_until);
            if self.written || self.has_room() {
                self.half();
            }
            // Not in the middle of a submission: docs/limitations.md.
            let pauses = !self.written && self.random(500) == 0;
            let pause = self.random(3_000_000 * u64::from(pauses));
            self.ran_until += gpu.submit_ns / 2 + pause;
        }
    }

    /// Lets the program go on between two reads.
    pub(super) fn run(&mut self) {
        if let Some(gpu) = self.program.gpu {
            return self.run_both(gpu);
        }
        if self.random(self.program.one_in) != 0 {
            return;
        }
        for _ in 0..2 * self.random(self.program.most) + self.random(2) {
            self.half();
        }
    }
}

impl ReadMemory for Simulated {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let mut s = self.0.borrow_mut();
        s.reads += 1;
        if s.reads > s.fails_after {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let video = (RING..PUSHBUFFER).contains(&at);
        s.time += if video && s.program.gpu.is_some() {
            5_000
        } else {
            1_000
        };
        s.run();
        let slots = s.slots();
        let userd = (((s.put % slots) << 32) | (s.put % slots)).to_le_bytes();
        let gpu = s.program.gpu.filter(|g| g.readable);
        let semaphore = gpu.map_or([0; 4], |g| (s.done as u32 + g.ahead).to_le_bytes());
        if at == SEMAPHORE && gpu.is_none() {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        s.ring_reads += u32::from(video);
        for (base, bytes) in [
            (SEMAPHORE, &semaphore[..]),
            (RING, &s.ring[..]),
            (USERD + GP_GET, &userd[..]),
            (PUSHBUFFER, &s.memory[..]),
        ] {
            if at >= base && at + to.len() as u64 <= base + bytes.len() as u64 {
                let from = (at - base) as usize;
                to.copy_from_slice(&bytes[from..from + to.len()]);
                return Ok(());
            }
        }
        Err(io::Error::from_raw_os_error(libc::EIO))
    }
}

/// Creates a program that has submitted nothing yet.
pub(super) fn simulated(seed: u64, entries: u32, program: Program) -> Simulated {
    Simulated(RefCell::new(Inner {
        ring: vec![0; 8 * entries as usize],
        put: 0,
        memory: vec![0; program.memory as usize],
        offset: 0,
        truth: Vec::new(),
        committed: Vec::new(),
        random: seed * 2 + 1,
        reads: 0,
        ring_reads: 0,
        fails_after: u64::MAX,
        program,
        written: false,
        time: 1_000,
        done: 0,
        done_at: 0,
        known_done: 0,
        ran_until: 0,
    }))
}

/// Channel of the simulated program, as it is announced.
pub(super) fn channel(entries: u32) -> Channel {
    Channel {
        ring: Some(CpuVa(RING)),
        entries: Some(entries),
        userd: Some(CpuVa(USERD)),
        ..Channel::bare(At::default(), ChannelId(3), Origin::Given)
    }
}
