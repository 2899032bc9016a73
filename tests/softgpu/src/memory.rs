//! The mappings, and all access to them: rings, USERD, pushbuffers, doorbells, and the counters that the processes of a run
//! share. The crate's unsafe code is here.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Context, Result};
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::entry;

use crate::clock;
use crate::device::{Device, SEMAPHORES_LEN};
use crate::doorbells::Doorbells;
use crate::in_step::InStep;
use crate::layout::{
    CHANNELS, CONTROL, CONTROL_LEN, Channel, DOORBELL_PAGE, ENTRIES, EVENTS, EVENTS_LEN, GP_GET,
    GPUS, PAGE, PUSHBUFFERS_LEN, REMAINS, RINGS_LEN, SLOT, doorbell_page, notifier, pushbuffers,
    releases, rings,
};
use crate::mapping::{Files, map_at};
use crate::plan::{Cursor, Submission, checksum};
use crate::store::{Site, ring};
use crate::stream::semaphore;

/// Everything that is mapped. A process has at most one: the addresses are fixed.
#[derive(Debug)]
pub struct Memory {
    ranges: Vec<(u64, u64)>,
    device: Option<Device>,
    /// Tracking semaphores and notifiers are mapped too, and are written as a GPU and its driver would write them.
    whole: bool,
    /// Behaviour of the program's own copies of GP_PUT.
    pub cached_put: CachedPut,
    /// A thread of this program runs the submissions as a GPU does ([`crate::timed`]), and is told of doorbells here.
    pub doorbells: Option<Doorbells>,
    /// Those who trace this program are waited for.
    pub in_step: Option<InStep>,
}

/// Behaviour of a program's own copy of GP_PUT, for tests of tracers that read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachedPut {
    /// Equal to GP_PUT when a doorbell is rung.
    #[default]
    Right,
    /// Not updated any more after this many submissions of a channel.
    Stuck(u64),
    /// One ahead after this many submissions of a channel.
    Ahead(u64),
}

/// A channel's lock and counters, in memory that forks share.
#[repr(C, align(64))]
struct Shared {
    lock: AtomicU32,
    number: AtomicU64,
    position: AtomicU64,
    offset: AtomicU64,
    sum: AtomicU64,
    bytes: AtomicU64,
    /// Position from which on it is traced, and bytes by which its pushbuffer moved on since all of it was known to be read.
    traced_from: AtomicU64,
    unread_bytes: AtomicU64,
}

/// Offset of the ids of the processes that share the memory, for those that are in step.
const PIDS: u64 = 0x10000;
/// Number of such ids at most.
const MOST_PIDS: usize = 64;

/// The progress of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Done {
    /// Its place in the plan.
    pub cursor: Cursor,
    /// Checksum of entries and bytes as read back from memory after each doorbell.
    pub sum: u64,
    /// Pushbuffer bytes.
    pub bytes: u64,
}

impl Memory {
    /// Maps all of `gpus` GPUs, zeroed and shared with forks.
    pub fn map(gpus: usize) -> Result<Memory> {
        let mut memory = Memory {
            ranges: Vec::new(),
            device: None,
            whole: false,
            cached_put: CachedPut::Right,
            doorbells: None,
            in_step: None,
        };
        let mut wanted = vec![(CONTROL, CONTROL_LEN)];
        for gpu in 0..gpus {
            wanted.push((rings(gpu), RINGS_LEN));
            wanted.push((pushbuffers(gpu), PUSHBUFFERS_LEN));
            wanted.push((doorbell_page(gpu, 0), DOORBELL_PAGE));
            wanted.push((doorbell_page(gpu, 1), DOORBELL_PAGE));
        }
        for (start, len) in wanted {
            map_at(start, len).with_context(|| {
                format!("cannot map {len:#x} bytes at {start:#x}: something of this process is there, or memory is limited")
            })?;
            memory.ranges.push((start, len));
        }
        Ok(memory)
    }

    /// Maps the words that a GPU writes, where [`Memory::map`] left them out.
    pub fn map_semaphores(&mut self, gpus: usize) -> Result<()> {
        for gpu in 0..gpus {
            for (start, len) in [(tracking(gpu), SEMAPHORES_LEN), (releases(gpu), PAGE)] {
                map_at(start, len)
                    .with_context(|| format!("cannot map {len:#x} bytes at {start:#x}"))?;
                self.ranges.push((start, len));
            }
        }
        self.whole = true;
        Ok(())
    }

    /// The same, but from the driver (the stand-in of tests/vm), whose GPU also fetches the entries.
    pub fn map_device(gpus: usize) -> Result<Memory> {
        let mut memory = Memory {
            ranges: Vec::new(),
            device: None,
            whole: false,
            cached_put: CachedPut::Right,
            doorbells: None,
            in_step: None,
        };
        map_at(CONTROL, CONTROL_LEN).context("cannot map the counters")?;
        memory.ranges.push((CONTROL, CONTROL_LEN));
        memory.device = Some(Device::open(gpus, &mut memory.ranges)?);
        Ok(memory)
    }

    /// The same in files with the names of the driver's device files, so that the process looks like a CUDA process from
    /// outside: rings and doorbells of each GPU in one file, everything else in another. Semaphores and error notifiers are
    /// there too. The files are removed as soon as they are mapped.
    pub fn map_files(gpus: usize) -> Result<Memory> {
        let mut memory = Memory {
            ranges: Vec::new(),
            device: None,
            whole: true,
            cached_put: CachedPut::Right,
            doorbells: None,
            in_step: None,
        };
        map_at(CONTROL, CONTROL_LEN).context("cannot map the counters")?;
        memory.ranges.push((CONTROL, CONTROL_LEN));
        let folder = Files::new()?;
        let write = libc::PROT_WRITE;
        let both = libc::PROT_READ | write;
        let mut system = vec![(EVENTS, EVENTS_LEN, both)];
        for gpu in 0..gpus {
            let own = [
                (rings(gpu), RINGS_LEN, both),
                (doorbell_page(gpu, 0), DOORBELL_PAGE, write),
                (doorbell_page(gpu, 1), DOORBELL_PAGE, write),
            ];
            folder.map(&format!("nvidia{gpu}"), &own, &mut memory.ranges)?;
            system.push((pushbuffers(gpu), PUSHBUFFERS_LEN, both));
            system.push((tracking(gpu), SEMAPHORES_LEN, both));
            system.push((releases(gpu), PAGE, both));
            for index in 0..CHANNELS {
                system.push((notifier(Channel { gpu, index }), PAGE, both));
            }
        }
        folder.map("nvidiactl", &system, &mut memory.ranges)?;
        for channel in
            (0..gpus).flat_map(|gpu| (0..CHANNELS).map(move |index| Channel { gpu, index }))
        {
            memory.notify(channel);
        }
        Ok(memory)
    }

    /// Writes a channel's error notifier as the driver does: notification 1 holds the token, marked as in progress.
    fn notify(&self, channel: Channel) {
        let at = notifier(channel) + 16;
        // SAFETY: the notifier's page is mapped while `self` lives, and nothing else refers to it.
        unsafe {
            (*((at + 8) as *const AtomicU32)).store(channel.token(), Ordering::Relaxed);
            (*((at + 12) as *const AtomicU32)).store(0xffff_0000, Ordering::Relaxed);
        }
    }

    /// Stops a channel as the driver does: notification 0 of its error notifier holds the number of the Xid, and the status of an error.
    pub fn fault(&self, channel: Channel, code: u32) {
        let at = notifier(channel);
        // SAFETY: the notifier's page is mapped while `self` lives, and nothing else refers to it.
        unsafe {
            (*((at + 8) as *const AtomicU32)).store(code, Ordering::Relaxed);
            (*((at + 12) as *const AtomicU32)).store(0xffff_0000, Ordering::Release);
        }
    }

    /// Advances GP_GET to `to`, as a GPU does when it has fetched the entries before it.
    pub fn fetch(&self, channel: Channel, to: u64) {
        let get = (to % u64::from(ENTRIES)) as u32;
        self.userd(channel, 0).store(get, Ordering::Release);
    }

    /// The word or 16 bytes of a semaphore are mapped.
    fn is_semaphore(&self, address: u64, len: u64) -> bool {
        let inside = |r: &(u64, u64)| r.0 <= address && address + len <= r.0 + r.1;
        self.whole && address.is_multiple_of(len) && self.ranges.iter().any(inside)
    }

    /// Writes a semaphore with a time stamp, as a GPU does at a release of four words. `time` is asked right before, and
    /// returned.
    pub fn stamp(&self, address: u64, payload: u32, time: impl FnOnce() -> u64) -> u64 {
        let mapped = self.is_semaphore(address, 16);
        let time = time();
        if mapped {
            // SAFETY: 16 aligned bytes inside a mapping that lives while `self` does; only atomics and this store touch them.
            unsafe { store16(address, u64::from(payload), time) };
        }
        time
    }

    /// Writes a semaphore, as a GPU does at a release.
    pub fn release(&self, address: u64, payload: u32) {
        if self.is_semaphore(address, 4) {
            // SAFETY: inside a mapping that lives while `self` does; only atomics touch it.
            unsafe { (*(address as *const AtomicU32)).store(payload, Ordering::Release) };
        }
    }

    /// The work-submit token: the driver's if there is one.
    pub fn token(&self, channel: Channel) -> u32 {
        match &self.device {
            Some(device) => device.token(channel),
            None => channel.token(),
        }
    }

    /// As [`Device::unusual_tokens`].
    pub fn unusual_tokens(&self) -> Option<String> {
        self.device.as_ref()?.unusual_tokens()
    }

    /// Something that runs by itself fetches the entries: a device, or a thread that is one.
    fn fetches_itself(&self) -> bool {
        self.device.is_some() || self.doorbells.is_some()
    }

    /// Waits until the device has fetched all of a channel's entries and released its tracking semaphore with `number` and
    /// a time; an error after two minutes. Without a device it returns at once.
    pub fn settle(&self, channel: Channel, number: u64) -> Result<()> {
        if !self.fetches_itself() || number == 0 {
            return Ok(());
        }
        let at = semaphore(channel);
        // SAFETY: the tracking semaphores are mapped by the device while `self` lives; the device writes them.
        let (payload, time) =
            unsafe { (&*(at as *const AtomicU32), &*((at + 8) as *const AtomicU64)) };
        for _ in 0..120_000 {
            if self.gp_get(channel) == self.gp_put(channel)
                && payload.load(Ordering::Acquire) == number as u32
                && time.load(Ordering::Relaxed) != 0
            {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        anyhow::bail!(
            "channel {:#x}: after 120 s GP_GET is {} of {} and the semaphore {} of {number}",
            self.token(channel),
            self.gp_get(channel),
            self.gp_put(channel),
            payload.load(Ordering::Acquire),
        )
    }

    fn shared(&self, channel: Channel) -> &Shared {
        const _: () = assert!(size_of::<Shared>() * CHANNELS * GPUS <= CONTROL_LEN as usize);
        // SAFETY: the control mapping holds one for each channel, zeroed (a valid value), while `self` lives.
        unsafe { &*(CONTROL as *const Shared).add(channel.number()) }
    }

    fn all_pids(&self) -> &[AtomicU32; MOST_PIDS] {
        const _: () = assert!(size_of::<Shared>() * CHANNELS * GPUS <= PIDS as usize);
        // SAFETY: inside the control mapping, behind the counters and before the copies of GP_PUT; zeroed, which is a valid value.
        unsafe { &*((CONTROL + PIDS) as *const [AtomicU32; MOST_PIDS]) }
    }

    /// Enters this process among those that share the memory.
    pub fn shared_by_this(&self) -> Result<()> {
        let own = std::process::id();
        for pid in self.all_pids() {
            let entered = pid.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
            if entered.is_ok() || entered == Err(own) {
                return Ok(());
            }
        }
        anyhow::bail!("more than {MOST_PIDS} processes share the memory")
    }

    /// The processes that share the memory.
    pub fn pids(&self) -> Vec<u32> {
        let all = self.all_pids().iter().map(|p| p.load(Ordering::Acquire));
        all.take_while(|pid| *pid != 0).collect()
    }

    /// The position behind a channel's last entry, from its beginning.
    pub fn position(&self, channel: Channel) -> u64 {
        self.shared(channel).position.load(Ordering::Acquire)
    }

    /// From here on the channels are traced: of those that nothing comes in any more nobody will tell.
    pub fn trace_from_here(&self, channels: &[Channel]) {
        for channel in channels {
            let from = &self.shared(*channel).traced_from;
            from.store(self.position(*channel), Ordering::Relaxed);
        }
    }

    /// The position that a channel had then.
    pub fn traced_from(&self, channel: Channel) -> u64 {
        self.shared(channel).traced_from.load(Ordering::Relaxed)
    }

    /// Returns the most by which a channel's pushbuffer has moved on since all was read, bytes.
    pub fn unread_bytes(&self, channel: Channel) -> u64 {
        self.shared(channel).unread_bytes.load(Ordering::Relaxed)
    }

    /// All of a channel has been read.
    pub fn all_read(&self, channel: Channel) {
        let bytes = &self.shared(channel).unread_bytes;
        bytes.store(0, Ordering::Relaxed);
    }

    /// A channel's pushbuffer moves on.
    pub fn moved_by(&self, channel: Channel, by: u64) {
        let bytes = &self.shared(channel).unread_bytes;
        bytes.fetch_add(by, Ordering::Relaxed);
    }

    /// The program's own copy of GP_PUT: far from all other memory that counts submissions.
    fn cached_put(&self, channel: Channel) -> &AtomicU32 {
        const APART: u64 = 1024;
        const FIRST: u64 = CONTROL_LEN - APART * (CHANNELS * GPUS) as u64;
        const _: () = assert!(FIRST >= (size_of::<Shared>() * CHANNELS * GPUS) as u64 + APART);
        let at = CONTROL + FIRST + APART * channel.number() as u64 + APART / 2;
        // SAFETY: inside the control mapping, behind the counters that `shared` returns, while `self` lives; only atomics
        // touch it.
        unsafe { &*(at as *const AtomicU32) }
    }

    /// Locks the channel: no other thread or process submits to it meanwhile.
    pub fn lock(&self, channel: Channel) -> Locked<'_> {
        let shared = self.shared(channel);
        while shared
            .lock
            .compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::thread::yield_now();
        }
        Locked {
            memory: self,
            shared,
            channel,
        }
    }

    /// Rings the doorbell for `channel`.
    pub fn ring(&self, channel: Channel, page: usize, site: Site) {
        let own = self.cached_put(channel).as_ptr() as u64;
        let before = self.doorbells.as_ref().map(|_| clock::monotonic());
        // SAFETY: the page is mapped while `self` lives.
        unsafe {
            ring(
                doorbell_page(channel.gpu, page),
                self.token(channel),
                site,
                own,
            )
        }
        if let (Some(doorbells), Some(before)) = (&self.doorbells, before) {
            doorbells.rung(channel, before, clock::monotonic());
        }
    }

    fn userd(&self, channel: Channel, word: u64) -> &AtomicU32 {
        // SAFETY: USERD lies in the rings' mapping, aligned, while `self` lives; only atomics touch it.
        unsafe { &*((channel.userd() + GP_GET + 4 * word) as *const AtomicU32) }
    }

    /// GP_PUT in USERD.
    pub fn gp_put(&self, channel: Channel) -> u32 {
        self.userd(channel, 1).load(Ordering::Acquire)
    }

    /// GP_GET in USERD.
    pub fn gp_get(&self, channel: Channel) -> u32 {
        self.userd(channel, 0).load(Ordering::Acquire)
    }

    fn entry(&self, channel: Channel, position: u64) -> &AtomicU64 {
        let index = position % u64::from(ENTRIES);
        // SAFETY: the index is inside the ring, which is mapped while `self` lives; only atomics touch it.
        unsafe { &*((channel.ring() + 8 * index) as *const AtomicU64) }
    }

    /// Leaves `slots` copies of a channel's ring and USERD in another mapping of a GPU's file, like memory that was freed
    /// and is used again. Nothing was ever submitted to them.
    pub fn leave_remains(&mut self, channel: Channel, slots: u64) -> Result<()> {
        let folder = Files::new()?;
        let wanted = [(REMAINS, slots * SLOT, libc::PROT_READ | libc::PROT_WRITE)];
        folder.map("nvidia0", &wanted, &mut self.ranges)?;
        let _locked = self.lock(channel);
        for slot in 0..slots {
            let (from, to) = (channel.ring(), REMAINS + slot * SLOT);
            // SAFETY: both ranges are mapped while `self` lives and do not overlap; the lock keeps other writers out.
            unsafe {
                std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, SLOT as usize);
            }
        }
        Ok(())
    }

    /// Unmaps all but the first slot of [`Memory::leave_remains`].
    pub fn shrink_remains(&mut self) {
        for (start, len) in self.ranges.iter_mut().filter(|r| r.0 == REMAINS) {
            let (rest, from) = (*len - SLOT, *start + SLOT);
            // SAFETY: nothing refers to what is mapped there.
            unsafe { libc::munmap(from as *mut libc::c_void, rest as usize) };
            *len = SLOT;
        }
    }

    /// Rings with a token that no channel has.
    pub fn ring_nobody(&self, gpu: usize) {
        let nobody = Channel { gpu, index: 0 };
        let own = self.cached_put(nobody).as_ptr() as u64;
        // SAFETY: the page is mapped while `self` lives.
        unsafe { ring(doorbell_page(gpu, 1), 0xfff, Site::Plain, own) }
    }

    /// Fills a channel's ring at once with as many entries as it holds, each of which claims `bytes` bytes of pushbuffer,
    /// all the same memory. No doorbell is rung.
    pub fn claim(&self, channel: Channel, bytes: u32) {
        let locked = self.lock(channel);
        let at = GpuVa(channel.pushbuffer());
        let first = locked.done().cursor.position;
        let behind = first + u64::from(ENTRIES) - 1;
        for position in first..behind {
            let raw = entry::segment(at, bytes, false, true, false);
            self.entry(channel, position).store(raw, Ordering::Relaxed);
        }
        let put = (behind % u64::from(ENTRIES)) as u32;
        self.userd(channel, 1).store(put, Ordering::Release);
    }

    /// Removes the mappings in a forked child, whose copy of `self` must not be used any more.
    pub fn forget_in_child(&self) {
        for &(start, len) in &self.ranges {
            // SAFETY: as in `drop`; the child calls this before it maps anew and uses no reference made before.
            unsafe { libc::munmap(start as *mut libc::c_void, len as usize) };
        }
    }

    /// Removes all mappings. Their contents are lost unless another process shares them.
    pub fn unmap(self) {
        drop(self);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for &(start, len) in &self.ranges {
            // SAFETY: these ranges were mapped by `map`, and no reference into them outlives `self`.
            unsafe { libc::munmap(start as *mut libc::c_void, len as usize) };
        }
    }
}

/// A channel locked by this thread.
#[derive(Debug)]
pub struct Locked<'a> {
    memory: &'a Memory,
    shared: &'a Shared,
    channel: Channel,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Locked<'_> {
    /// The progress of the channel.
    pub fn done(&self) -> Done {
        let s = self.shared;
        Done {
            cursor: Cursor {
                number: s.number.load(Ordering::Relaxed),
                position: s.position.load(Ordering::Relaxed),
                offset: s.offset.load(Ordering::Relaxed),
            },
            sum: s.sum.load(Ordering::Relaxed),
            bytes: s.bytes.load(Ordering::Relaxed),
        }
    }

    /// Writes the pushbuffer, then the ring entries, then GP_PUT: the order that the hardware requires. The doorbell is not
    /// rung yet.
    pub fn write(&self, submission: &Submission, after: Cursor) {
        self.make_room(submission);
        for (k, entry) in submission.entries.iter().enumerate() {
            if let Some((address, _)) = entry::segment_of(entry.raw, 0) {
                self.copy_in(address.0, &entry.bytes);
            }
            self.memory
                .entry(self.channel, submission.position + k as u64)
                .store(entry.raw, Ordering::Relaxed);
        }
        self.shared.number.store(after.number, Ordering::Relaxed);
        self.shared
            .position
            .store(after.position, Ordering::Relaxed);
        self.shared.offset.store(after.offset, Ordering::Relaxed);
        let put = (after.position % u64::from(ENTRIES)) as u32;
        if let Some(doorbells) = &self.memory.doorbells {
            doorbells.put(self.channel, clock::monotonic());
        }
        self.memory
            .userd(self.channel, 1)
            .store(put, Ordering::Release);
        let own = match self.memory.cached_put {
            CachedPut::Stuck(n) if after.number > n => return,
            CachedPut::Ahead(n) if after.number > n => (put + 1) % ENTRIES,
            _ => put,
        };
        self.memory
            .cached_put(self.channel)
            .store(own, Ordering::Release);
    }

    /// A device fetches in its own time, and unfetched memory must not be overwritten. Waiting for all entries whenever
    /// half of a ring or a pushbuffer was used is more than enough.
    fn make_room(&self, submission: &Submission) {
        if let Some(doorbells) = &self.memory.doorbells {
            let waiting = |memory: &Memory| {
                let put = memory.gp_put(self.channel);
                put.wrapping_sub(memory.gp_get(self.channel)) % ENTRIES
            };
            while waiting(self.memory) >= doorbells.most {
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
            return;
        }
        if self.memory.device.is_none() {
            return;
        }
        let entries = submission.entries.len() as u32;
        let bytes: u64 = submission
            .entries
            .iter()
            .map(|e| e.bytes.len() as u64)
            .sum();
        let (get, put) = (
            self.memory.gp_get(self.channel),
            self.memory.gp_put(self.channel),
        );
        let waiting = put.wrapping_sub(get) % ENTRIES;
        let half = crate::layout::PUSHBUFFER / 2;
        let offset = self.shared.offset.load(Ordering::Relaxed);
        if waiting + entries < ENTRIES / 2 && offset / half == (offset + bytes) / half {
            return;
        }
        while self.memory.gp_get(self.channel) != self.memory.gp_put(self.channel) {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }

    fn copy_in(&self, address: u64, bytes: &[u8]) {
        let start = self.channel.pushbuffer();
        assert!(
            address >= start && address + bytes.len() as u64 <= start + crate::layout::PUSHBUFFER
        );
        // SAFETY: inside this channel's pushbuffer memory, which is mapped and which only the lock's holder touches.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
    }

    /// The GPU's part: reads the entries from `from` to `to` and their bytes back from memory into the checksum, and
    /// advances GP_GET to `lag` entries behind.
    pub fn consume(&self, from: u64, to: u64, lag: u64) {
        let mut sum = self.shared.sum.load(Ordering::Relaxed);
        let mut count = 0;
        for position in from..to {
            let raw = self
                .memory
                .entry(self.channel, position)
                .load(Ordering::Acquire);
            let bytes: &[u8] = if let Some((GpuVa(address), len)) = entry::segment_of(raw, 0) {
                let len = u64::from(len);
                count += len;
                let start = self.channel.pushbuffer();
                assert!(
                    address >= start && address + len <= start + crate::layout::PUSHBUFFER,
                    "ring entry {raw:#x}"
                );
                // SAFETY: inside this channel's pushbuffer memory, which only the lock's holder (this thread) writes.
                unsafe { std::slice::from_raw_parts(address as *const u8, len as usize) }
            } else {
                &[]
            };
            sum = checksum(sum, raw, bytes);
        }
        self.shared.sum.store(sum, Ordering::Relaxed);
        self.shared.bytes.fetch_add(count, Ordering::Relaxed);
        self.advance(to, lag);
    }

    /// Advances GP_GET to `lag` entries behind `to`.
    pub fn advance(&self, to: u64, lag: u64) {
        if self.memory.fetches_itself() {
            return;
        }
        if lag == 0 {
            let done = self.shared.number.load(Ordering::Relaxed);
            self.memory.release(semaphore(self.channel), done as u32);
        }
        let get = (to.saturating_sub(lag) % u64::from(ENTRIES)) as u32;
        self.memory
            .userd(self.channel, 0)
            .store(get, Ordering::Release);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.shared.lock.store(0, Ordering::Release);
    }
}

/// First address of the page with a GPU's tracking semaphores.
fn tracking(gpu: usize) -> u64 {
    semaphore(Channel { gpu, index: 0 }) & !(SEMAPHORES_LEN - 1)
}

/// Writes 16 bytes by one store where the processor has one; else the second half, which has the time, first.
///
/// # Safety
/// `address` must be mapped writable for 16 bytes and a multiple of 16.
unsafe fn store16(address: u64, low: u64, high: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller guarantees the address; an aligned store of 16 bytes is one on every processor with AVX.
    unsafe {
        core::arch::asm!(
            "movq {a}, {low}",
            "movq {b}, {high}",
            "punpcklqdq {a}, {b}",
            "movdqa [{address}], {a}",
            low = in(reg) low,
            high = in(reg) high,
            address = in(reg) address,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller guarantees the address.
    unsafe {
        (*((address + 8) as *const AtomicU64)).store(high, Ordering::Relaxed);
        (*(address as *const AtomicU64)).store(low, Ordering::Release);
    }
}
