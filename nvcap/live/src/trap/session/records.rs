//! Routes each record of the ring buffer to the parts that it concerns; and acts on the driver model's conclusions from
//! it.

use nvcap_common::{self as c, TokenKey, flag, trust};
use nvcap_process::error::Result;

use super::{
    super::{assemble, space::doorbell_of, watchpoints},
    Session,
    breakpoints::Target,
    capture::Todo,
    channel_table::LearntToken,
    ring_search::{self, Rings, RungTokens as _},
    rung::DoorbellWord,
    store_sites,
};
use nvcap_decode::{
    driver::Change,
    record::{CpuVa, Mapping, Record, Unmapping},
};
use nvcap_process::memory::{maps, scan, snapshot};

/// Result of taking records out of the ring buffer.
pub(super) struct Drained {
    /// Number of records.
    pub(super) taken: usize,
    /// True if nothing was left.
    pub(super) all: bool,
}

impl Session {
    /// Takes everything that is in the ring buffer, and acts on it.
    pub(super) fn drain(&mut self) -> Result<()> {
        self.drain_until(u64::MAX).map(|_| ())
    }

    /// Takes what is in the ring buffer and acts on it, until a time (ns).
    pub(super) fn drain_until(&mut self, until: u64) -> Result<Drained> {
        let mut taken = 0;
        loop {
            // What a look at a channel set aside came before what is still in the ring buffer.
            let todo = match self.capture.take_pending() {
                Some(todo) => todo,
                None => match self.capture.take() {
                    Some(todo) => {
                        taken += 1;
                        todo
                    }
                    None if self.capture.peek_rest() => Todo::Nothing,
                    None => return Ok(Drained { taken, all: true }),
                },
            };
            if matches!(todo, Todo::Scan(_)) {
                self.learning.scans(watchpoints::now());
            }
            self.act(todo)?;
            self.drop_dead_pages();
            let now = watchpoints::now();
            if now >= until {
                self.capture.copy_out(self.learning.most_copied(now));
                return Ok(Drained { taken, all: false });
            }
        }
    }

    fn act(&mut self, todo: Todo) -> Result<()> {
        match todo {
            Todo::Nothing => {}
            Todo::Site(r) => {
                self.capture.rung.saw(r.space);
                self.site(&r)?;
            }
            Todo::Windows(r) => {
                if let Some(value) = self.sites.windows(&r) {
                    let key = store_sites::key(r.space, r.ip);
                    self.set_site(key, value)?;
                    self.learn_copy(key, &value);
                }
            }
            Todo::Scan(r) => {
                self.capture.rung.saw(r.space);
                self.scanned(&r)?;
            }
            Todo::Gap(r) => self.capture.gap(&r),
            Todo::Ioctl(ioctl, dev) => self.ioctl(*ioctl, dev),
            Todo::Mmap(r) => {
                let mapping = Mapping {
                    at: assemble::at(&r.header),
                    device: self.modules.device(r.dev),
                    fd: (r.fd >= 0).then_some(r.fd),
                    file: r.file,
                    start: CpuVa(r.start),
                    len: r.size,
                    read: r.prot & 1 != 0,
                    write: r.prot & 2 != 0,
                    found: false,
                };
                self.emit(Record::Mapping(mapping));
            }
            Todo::Munmap(r) => {
                let at = assemble::at(&r.header);
                self.emit(Record::Unmapping(Unmapping {
                    at,
                    start: CpuVa(r.start),
                    len: r.size,
                }));
            }
            Todo::Life(r) => self.life_event(&r)?,
            Todo::Module(h) => self.follow_modules(h.time_ns)?,
        }
        Ok(())
    }

    /// Passes a record on, after the model has drawn its conclusions.
    pub(super) fn emit(&mut self, record: Record) {
        let changes = match record {
            Record::Submission(_)
            | Record::Gpu(_)
            | Record::QmdCopy(_)
            | Record::Kernel(_)
            | Record::Stamps(_)
            | Record::Snapshot(_)
            | Record::Stack(_)
            | Record::Skipped(_)
            | Record::Fault(_)
            | Record::Samples(_)
            | Record::Switches(_)
            | Record::Loss(_) => Vec::new(),
            _ => self.capture.model.record(&record),
        };
        let time_ns = record.at().time_ns;
        self.capture.out.push(record);
        for change in changes {
            if let Err(e) = self.apply(change, time_ns) {
                self.capture.out.untraced(0, &e);
            }
        }
    }

    /// Acts on a change of the driver model. `time_ns`: time of the record that caused it.
    fn apply(&mut self, change: Change, time_ns: u64) -> Result<()> {
        match change {
            Change::DoorbellPage {
                pid,
                gpu_minor,
                cpu_va,
                ..
            } => {
                let target = Target {
                    pid,
                    address: doorbell_of(cpu_va),
                    gpu: gpu_minor,
                };
                match self.arm(target, self.life()) {
                    // The process may be gone by now.
                    Err(_) if nvcap_process::procfs::threads(pid).is_err() => Ok(()),
                    other => other,
                }
            }
            Change::DoorbellGone { pid, cpu_va, .. } => {
                self.breakpoints.disarm(pid, doorbell_of(cpu_va));
                self.stores.forget_doorbell((pid, doorbell_of(cpu_va)));
                Ok(())
            }
            Change::Channel(channel) => self.capture.install_allocated(*channel),
            Change::ChannelShared { .. } => Ok(()),
            Change::Token { channel, token } => self.capture.token_told(channel, token, time_ns),
            Change::ChannelGone { channel, .. } => {
                self.capture.retire(channel);
                Ok(())
            }
            Change::Translations { pid } => self.capture.retranslate(pid),
            Change::DriverVersion(_) => Ok(()),
        }
    }

    /// Takes note of a doorbell that was rung by a store which the BPF programs do not know.
    fn site(&mut self, r: &c::Site) -> Result<()> {
        let table = &self.capture.table;
        let trapped = self
            .sites
            .trapped(r, |token| table.has_token(r.space, token));
        if let Some(token) = trapped.token {
            self.capture.tokens.trapped(&r.header, token);
        }
        match trapped.tell {
            Some(value) => {
                self.set_site(store_sites::key(r.space, r.ip), value)?;
                if value.len == 0 {
                    self.stores.partial(r.space);
                }
                self.stop_at_stores(r.space);
                self.learn_store(r, &value)
            }
            None => Ok(()),
        }
    }

    pub(super) fn set_site(&mut self, behind: c::SiteKey, value: c::SiteValue) -> Result<()> {
        for key in store_sites::keys(behind, value) {
            self.capture.bpf.set_site(key, value)?;
        }
        Ok(())
    }

    /// Takes note that a scan of all channels has ended.
    fn scanned(&mut self, r: &c::Scan) -> Result<()> {
        let puts = self.capture.tokens.puts(r);
        if r.header.flags & flag::PART != 0 {
            return Ok(());
        }
        let learnt = self.learn_from_scan(r, &puts);
        let rung = self.capture.tokens.rung(r);
        self.capture.scan_has_ended(&r.header, rung);
        learnt
    }

    fn learn_from_scan(&mut self, r: &c::Scan, puts: &[c::Put]) -> Result<()> {
        let capture = &mut self.capture;
        let Some(token) = capture.tokens.rung(r) else {
            return Ok(());
        };
        let key = TokenKey {
            doorbell: r.doorbell,
            space: r.space,
            token,
        };
        if capture.table.is_unseen(&key) {
            // Whatever was found moved, it was not this channel, which the BPF programs did not know then.
            capture.tokens.early(key);
            return Ok(());
        }
        if r.trust == trust::CONCLUDED {
            log::debug!("token {token:#x} is in doubt: its channel does not move at its doorbells");
            capture.table.doubt(&key, &mut capture.bpf)?;
            capture.evidence.restart(key);
        }
        // A look from before all of the process's rings were in the table says nothing of those that were not.
        let known = capture.spaces.has(r.space) || capture.table.has_space(r.space);
        let complete = known && self.search.saw_all(r.space, r.header.time_ns);
        if !capture.table.is_known(&key) {
            capture.tokens.rung_unowned(key);
        }
        // Scans from before the BPF programs knew the token say nothing new.
        let settled = r.trust != trust::MAYBE && capture.table.is_settled(&key);
        if complete && !settled {
            let candidates = capture.table.candidates(&key);
            let index = capture.evidence.see(key, puts, &candidates);
            if let Some(index) = index.filter(|i| !capture.table.is_taken(r.space, token, *i)) {
                log::debug!("token {token:#x} rings channel {index}, by its doorbells");
                capture.table.withdraw_from_others(token, index);
                let learnt = LearntToken {
                    token,
                    told: false,
                    time_ns: r.header.time_ns,
                };
                capture.learn_token(index, learnt)?;
            }
        }
        if r.header.flags & flag::CONTENDED != 0 {
            // The channel that was rung may be the one that was skipped.
            return Ok(());
        }
        let channel = capture.table.get(r.channel);
        let is_here = channel.is_some_and(|channel| channel.space == r.space);
        if r.advanced == 1 && complete && is_here {
            capture.tokens.found(key);
        } else if r.advanced == 0 && !capture.table.is_known(&key) {
            capture.tokens.orphan(key);
            if !complete {
                self.search.put_off(r.space);
            } else if capture.evidence.may_be_unknown(&key) {
                // A search takes its time, in which nothing is learnt.
                self.search_again(r.space)?;
            }
        }
        Ok(())
    }

    /// Searches the memory of an attached process again, because a doorbell was rung for an unknown channel: channels
    /// may have been used for the first time since. A ring that was not in use before begins at 0.
    fn search_again(&mut self, space: u32) -> Result<()> {
        if !self.search.is_due(space, watchpoints::now()) {
            return Ok(());
        }
        let capture = &mut self.capture;
        let Some(pid) = capture.spaces.pids(space).next() else {
            return Ok(());
        };
        capture.open_memory(space);
        let Some(memory) = capture.spaces.memory(space) else {
            return Ok(());
        };
        let Ok(areas) = maps::areas(pid) else {
            return Ok(());
        };
        let mut new = scan::rings(memory, &areas);
        log::debug!("searched process {pid} again: {} rings", new.len());
        // Of a process that ends, memory is given up and used again: what looks like a ring is one that was.
        if capture.spaces.is_ending(space) {
            return Ok(());
        }
        // Where memory was given up meanwhile, only a part of what looks like rings was found.
        let whole = maps::areas(pid).is_ok_and(|now| ring_search::is_all_there(&areas, &now));
        new.retain(|f| f.used && !capture.table.is_followed(space, f.ring));
        let tokens = match new.is_empty() {
            true => Vec::new(),
            false => snapshot::tokens(memory, &areas),
        };
        let rings = Rings { space, new, whole };
        let taken = self.search.take(rings, capture, watchpoints::now);
        for found in &taken.certain {
            if let Some(index) = capture.install_found(space, pid, found, 0)? {
                capture.peek(index);
            }
        }
        for found in &taken.by_number {
            if let Some(index) = capture.install_found(space, pid, found, 0)? {
                capture.peek(index);
                capture.table.taken_by_number(index);
            }
        }
        self.search.done(space, watchpoints::now());
        self.capture.guess_tokens(space, tokens)?;
        Ok(())
    }

    /// Searches again where a search was postponed, unless all tokens have their channels by now.
    pub(super) fn search_put_off(&mut self) -> Result<()> {
        for space in self.search.all_put_off() {
            match self.capture.count(space) {
                0 => self.search.settled(space),
                _ => self.search_again(space)?,
            }
        }
        Ok(())
    }

    /// Gives up the doorbell pages of a GPU that are never rung, once another has been rung often.
    fn drop_dead_pages(&mut self) {
        for (pid, rung) in self.capture.rung.take_busy() {
            let Some(doorbells) = self.capture.table.doorbells(rung.space) else {
                continue;
            };
            let mut dead = doorbells.beside(rung.address);
            dead.retain(|address| {
                let address = *address;
                !self.capture.rung.was_rung(DoorbellWord { address, ..rung })
            });
            if self.named.file.is_empty() {
                for address in dead {
                    self.breakpoints.disarm(pid, address);
                    self.stores.forget_doorbell((pid, address));
                }
            }
        }
    }
}
