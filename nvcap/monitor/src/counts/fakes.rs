//! Made-up processes and machines, for tests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use super::source::{Lends, Opened, System};
use super::view::{Owner, Refused};
use nvcap_decode::decode::encode::{Pushbuffer, Qmd};
use nvcap_decode::decode::event::QmdRelease;
use nvcap_decode::decode::view::View;
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::entry;
use nvcap_decode::wire::words::bytes_of;
use nvcap_process::memory::maps::Area;
use nvcap_process::procfs::mem::ReadMemory;

pub(super) const RINGS: u64 = 0x2_0060_0000;
pub(super) const PUSHBUFFERS: u64 = 0x2_0080_0000;
const SEMAPHORES: u64 = 0x2_0460_f000;
/// Error notifiers, a page for each channel.
const NOTIFIERS: u64 = 0x2_0470_0000;
const PAGE: u64 = 4096;
pub(super) const ENTRIES: u64 = 1024;
pub(super) const SECOND: u64 = 1_000_000_000;

/// The memory of a process with channels as libcuda lays them out. Clones are the same memory, as after a fork.
#[derive(Clone)]
pub(crate) struct Fake {
    pages: Rc<RefCell<BTreeMap<u64, [u8; PAGE as usize]>>>,
    pub(super) gone: Rc<Cell<bool>>,
    /// True once the work that borrows the memory was given up in the middle of it.
    pub(super) gives_up: Rc<Cell<bool>>,
    /// Reads so far.
    pub(super) reads: Rc<Cell<u64>>,
}

impl Fake {
    pub(crate) fn new() -> Self {
        Self {
            pages: Rc::default(),
            gone: Rc::default(),
            gives_up: Rc::default(),
            reads: Rc::default(),
        }
    }

    /// Ends the process.
    pub(crate) fn gone(&self) {
        self.gone.set(true);
    }

    /// Returns the same memory in another process.
    pub(super) fn forked(&self) -> Self {
        Self {
            gone: Rc::default(),
            gives_up: Rc::default(),
            ..self.clone()
        }
    }

    pub(super) fn areas() -> Vec<Area> {
        let area = |start, len, path| Area::made_up(start, len, "rw", path);
        vec![
            area(RINGS, 0x20_0000, "/dev/nvidia0"),
            area(PUSHBUFFERS, 0x100_0000, "/dev/nvidiactl"),
            area(SEMAPHORES, PAGE, "/dev/nvidiactl"),
            area(NOTIFIERS, PAGE, "/dev/nvidiactl"),
            area(NOTIFIERS + PAGE, PAGE, "/dev/nvidiactl"),
        ]
    }

    /// Writes the error notifier of a channel: its token, and the error where there is one.
    pub(super) fn notify(&self, slot: u64, token: u32, error: Option<u32>) {
        let at = NOTIFIERS + PAGE * slot;
        self.put(at + 24, &token.to_le_bytes());
        self.put(at + 28, &0x8000_0000_u32.to_le_bytes());
        self.put(at + 8, &error.unwrap_or(0).to_le_bytes());
        let status = if error.is_some() { 0xffff_0000_u32 } else { 0 };
        self.put(at + 12, &status.to_le_bytes());
    }

    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        let mut pages = self.pages.borrow_mut();
        for (at, byte) in (at..).zip(bytes) {
            let page = pages.entry(at / PAGE).or_insert([0; PAGE as usize]);
            page[(at % PAGE) as usize] = *byte;
        }
    }

    pub(super) fn semaphore(slot: u64) -> u64 {
        SEMAPHORES + 0xff0 - 16 * slot
    }

    /// Writes the `number`-th submission of a channel (from 1 on) as one entry at this position of the ring.
    pub(super) fn submit_at(&self, slot: u64, position: u64, number: u32) {
        self.submit_words(slot, position, number, 0);
    }

    /// Writes a submission behind `more` words (3 at most) that mean nothing.
    pub(super) fn submit_words(&self, slot: u64, position: u64, number: u32, more: usize) {
        let semaphore = Self::semaphore(slot);
        let release = [
            0x2004_26c0,
            (semaphore >> 32) as u32,
            semaphore as u32,
            number,
            0,
        ];
        let words = [vec![0; more], release.to_vec()].concat();
        let at = PUSHBUFFERS + slot * 0x10_000 + position % ENTRIES * 32;
        self.put(at, &bytes_of(&words));
        let len = 4 * words.len() as u32;
        let raw = entry::segment(GpuVa(at), len, false, true, false);
        let ring = RINGS + 0x3000 * slot;
        self.put(ring + 8 * (position % ENTRIES), &raw.to_le_bytes());
        let put = ((position + 1) % ENTRIES) as u32;
        self.put(ring + 0x208c, &put.to_le_bytes());
    }

    /// Writes a submission with a kernel of this program, which at its end releases the submission's number to `word`; without a program, a graph's
    /// replay, whose submission writes the number before to `word`. The kernel has not ended: `word` is not released yet.
    pub(super) fn submit_work(&self, slot: u64, number: u32, program: Option<u64>, word: u64) {
        const CLASS: u32 = 0xcbc0;
        let qmd = GpuVa(0x2_04c0_0000);
        let mut p = Pushbuffer::new();
        p.bind(1, CLASS);
        match program {
            Some(program) => {
                let view = View {
                    version: (4, 0),
                    grid: [4, 1, 1],
                    block: [64, 1, 1],
                    registers: 24,
                    program: GpuVa(program),
                    releases: vec![QmdRelease {
                        address: GpuVa(word),
                        payload: number.into(),
                    }],
                    ..View::default()
                };
                let bytes = Qmd::of(&view).unwrap();
                p.inline(1, CLASS, qmd, bytes.bytes()).unwrap();
                p.inline(1, CLASS, GpuVa(word), &(number - 1).to_le_bytes())
                    .unwrap();
                p.pcas(1, CLASS, qmd).unwrap();
            }
            None => {
                p.inline(1, CLASS, GpuVa(word), &(number - 1).to_le_bytes())
                    .unwrap();
                let nodes = qmd.0 + 0x10_0000;
                p.named(1, CLASS, "SEND_PCAS_A", &[(nodes >> 8) as u32])
                    .unwrap();
                p.named(1, CLASS, "SEND_SIGNALING_PCAS2_B", &[10]).unwrap();
            }
        }
        let semaphore = Self::semaphore(slot);
        let release = [
            0x2004_26c0,
            (semaphore >> 32) as u32,
            semaphore as u32,
            number,
            0,
        ];
        let bytes = [p.bytes(), bytes_of(&release)].concat();
        let position = u64::from(number) - 1;
        let at = PUSHBUFFERS + 0x80_0000 + position % ENTRIES * 0x1000;
        self.put(at, &bytes);
        let raw = entry::segment(GpuVa(at), bytes.len() as u32, false, true, false);
        let ring = RINGS + 0x3000 * slot;
        self.put(ring + 8 * (position % ENTRIES), &raw.to_le_bytes());
        let put = ((position + 1) % ENTRIES) as u32;
        self.put(ring + 0x208c, &put.to_le_bytes());
    }

    /// Returns the address of a word that kernels release.
    pub(super) fn word_of(n: u64) -> u64 {
        SEMAPHORES + 8 * n
    }

    /// Ends the kernel with this number.
    pub(super) fn ended(&self, word: u64, number: u32) {
        self.put(word, &number.to_le_bytes());
    }

    fn slot_of(slot: u64, position: u64) -> u64 {
        RINGS + 0x3000 * slot + 8 * (position % ENTRIES)
    }

    pub(super) fn ring_entry(&self, slot: u64, position: u64) -> u64 {
        self.word(Self::slot_of(slot, position)).unwrap_or(0)
    }

    pub(super) fn set_ring_entry(&self, slot: u64, position: u64, raw: u64) {
        self.put(Self::slot_of(slot, position), &raw.to_le_bytes());
    }

    /// Writes a channel's submissions from one number to another.
    pub(crate) fn submit(&self, slot: u64, from: u64, to: u64) {
        for number in from..=to {
            self.submit_at(slot, number - 1, number as u32);
        }
    }

    /// Completes a channel's submissions up to this number.
    pub(crate) fn done(&self, slot: u64, number: u64) {
        self.put(Self::semaphore(slot), &(number as u32).to_le_bytes());
        let get = (number % ENTRIES) as u32;
        let ring = RINGS + 0x3000 * slot;
        self.put(ring + 0x2088, &get.to_le_bytes());
    }

    pub(crate) fn work(&self, slot: u64, from: u64, to: u64) {
        self.submit(slot, from, to);
        self.done(slot, to);
    }

    /// Destroys the channel, and makes another one in its place.
    pub(super) fn remake(&self, slot: u64) {
        self.put(RINGS + 0x3000 * slot, &[0; 0x3000]);
        self.put(Self::semaphore(slot), &[0; 16]);
    }
}

impl ReadMemory for Fake {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.reads.set(self.reads.get() + 1);
        let mapped = |a: &Area| a.start <= at && at + to.len() as u64 <= a.end;
        if self.gone.get() || !Self::areas().iter().any(mapped) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let pages = self.pages.borrow();
        for (at, byte) in (at..).zip(to) {
            let page = pages.get(&(at / PAGE));
            *byte = page.map_or(0, |page| page[(at % PAGE) as usize]);
        }
        Ok(())
    }
}

impl Lends for Fake {
    type Lent = Self;

    fn lend<T, W>(&self, work: W) -> io::Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Self) -> T + Send + 'static,
    {
        let done = work(self);
        match self.gives_up.get() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(done),
        }
    }
}

pub(crate) struct FakeProcess {
    pub memory: Fake,
    pub image: u32,
    pub is_new: bool,
    /// Name of the process; empty for `p` and its number.
    pub name: String,
    pub refused: bool,
    /// True once a read of its memory was given up.
    pub given_up: bool,
    /// True if it has ended since it was found.
    pub ended: bool,
    /// Its begin, ns since the epoch, where that matters.
    pub began_unix_ns: Option<u64>,
    pub owner: Owner,
    pub container_id: String,
    pub pages: u64,
}

impl FakeProcess {
    pub(crate) fn new(image: u32) -> Self {
        Self {
            memory: Fake::new(),
            image,
            is_new: true,
            name: String::new(),
            refused: false,
            given_up: false,
            ended: false,
            began_unix_ns: None,
            owner: Owner::default(),
            container_id: String::new(),
            pages: 100,
        }
    }
}

/// A machine with made-up processes.
#[derive(Default)]
pub(crate) struct Fakes {
    pub processes: BTreeMap<u32, FakeProcess>,
    pub hidden: BTreeMap<u32, Refused>,
    pub instances: BTreeMap<u32, u32>,
    pub now: u64,
}

impl System for Fakes {
    type Memory = Fake;

    fn find(&mut self, known: &dyn Fn(u32) -> bool) -> Vec<u32> {
        let pids = self.processes.keys().copied();
        pids.filter(|pid| !known(*pid)).collect()
    }

    fn open(&mut self, pid: u32) -> io::Result<Opened<Fake>> {
        let process = self.processes.get(&pid).ok_or(io::ErrorKind::NotFound)?;
        if process.ended {
            return Err(io::ErrorKind::NotFound.into());
        }
        if process.refused {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if process.given_up {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Opened {
            memory: process.memory.clone(),
            name: match process.name.as_str() {
                "" => format!("p{pid}"),
                name => name.to_owned(),
            },
            owner: process.owner.clone(),
            container_id: process.container_id.clone(),
            is_new: process.is_new,
            image: process.image.to_le_bytes().to_vec(),
            // As read from two clocks: a process that executes another program seems to have begun a little later.
            began_unix_ns: { process.began_unix_ns }.unwrap_or(u64::from(pid) + self.now / SECOND),
        })
    }

    fn refused(&mut self, pid: u32, why: String) -> Refused {
        Refused {
            name: format!("p{pid}"),
            user: "ann".to_owned(),
            why,
            uses_gpu: true,
        }
    }

    fn hidden(&self) -> &BTreeMap<u32, Refused> {
        &self.hidden
    }

    fn instances(&mut self, _: u32) -> BTreeMap<u32, u32> {
        self.instances.clone()
    }

    fn areas(&mut self, _: u32) -> io::Result<Vec<Area>> {
        Ok(Fake::areas())
    }

    fn pages(&mut self, pid: u32) -> u64 {
        self.processes.get(&pid).map_or(0, |p| p.pages)
    }

    fn has_ended(&mut self, pid: u32) -> bool {
        self.processes.get(&pid).is_none_or(|p| p.ended)
    }

    fn clocks(&mut self) -> (u64, u64) {
        (self.now, 0)
    }

    fn lent_clocks(&self) -> impl FnMut() -> (u64, u64) + Send + 'static {
        let now = self.now;
        move || (now, 0)
    }

    fn unix_ns(&mut self) -> u64 {
        1_700_000_000 * SECOND + self.now
    }
}
