//! Data from which the BPF programs walk Python frames: offsets by address space, thread states by thread. They are written through mapped
//! memory; `table.rs` of the BPF programs gives the reason.

use std::{
    collections::HashMap,
    io,
    os::fd::BorrowedFd,
    sync::atomic::{AtomicU32, Ordering},
};

use nvcap_common::{
    MAX_SPACES, PYTHON_PROBES, PYTHON_THREADS, PythonThread, PythonWalk, python_place,
};

use super::shared::Mapped;

/// PYTHONS and PYTHON_THREADS.
#[derive(Debug)]
pub(crate) struct Pythons {
    walks: Mapped,
    threads: Mapped,
    /// Places that are taken, by thread.
    places: HashMap<u32, u32>,
}

impl Pythons {
    /// Maps both tables.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub(super) fn new(walks: BorrowedFd<'_>, threads: BorrowedFd<'_>) -> io::Result<Self> {
        let size = |n: u32, one: usize| n as usize * one;
        Ok(Self {
            walks: Mapped::new(walks, size(MAX_SPACES, size_of::<PythonWalk>()))?,
            threads: Mapped::new(threads, size(PYTHON_THREADS, size_of::<PythonThread>()))?,
            places: HashMap::new(),
        })
    }

    /// Sets the data for walking the frames of an address space.
    pub(super) fn set_walk(&self, space: u32, walk: PythonWalk) {
        if space < MAX_SPACES {
            let p = self.walks.at::<PythonWalk>(space as usize);
            // SAFETY: in range and aligned; the BPF programs only read it.
            unsafe { p.write_volatile(walk) };
        }
    }

    fn tid(&self, place: u32) -> &AtomicU32 {
        let p = self.threads.at::<PythonThread>(place as usize);
        // SAFETY: in range and aligned; only this program writes it.
        unsafe { AtomicU32::from_ptr(&raw mut (*p).tid) }
    }

    /// Sets the thread states of an address space, and forgets earlier ones.
    pub(super) fn set_threads(&mut self, space: u32, threads: &[PythonThread]) {
        let mut places = std::mem::take(&mut self.places);
        places.retain(|tid, place| {
            let p = self.threads.at::<PythonThread>(*place as usize);
            // SAFETY: in range and aligned; only this program writes it.
            let old = unsafe { p.read_volatile() };
            let stays = old.space != space || threads.iter().any(|t| t.tid == *tid);
            if !stays {
                self.tid(*place).store(0, Ordering::SeqCst);
            }
            stays
        });
        self.places = places;
        for thread in threads {
            self.set_thread(*thread);
        }
    }

    fn set_thread(&mut self, thread: PythonThread) {
        let first = python_place(thread.tid);
        let mut candidates = (0..PYTHON_PROBES).map(|n| (first + n) & (PYTHON_THREADS - 1));
        let place = self.places.get(&thread.tid).copied();
        let free = |place: &u32| self.tid(*place).load(Ordering::SeqCst) == 0;
        // Without a free place the thread's stacks come without Python frames.
        let Some(place) = place.or_else(|| candidates.find(free)) else {
            return;
        };
        let p = self.threads.at::<PythonThread>(place as usize);
        self.tid(place).store(0, Ordering::SeqCst);
        // SAFETY: in range and aligned; the BPF programs pass over a place without a thread.
        unsafe { p.write_volatile(PythonThread { tid: 0, ..thread }) };
        self.tid(place).store(thread.tid, Ordering::SeqCst);
        self.places.insert(thread.tid, place);
    }
}
