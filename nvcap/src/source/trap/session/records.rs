//! What comes out of the ring buffer, record by record, and what is learnt from it: stores, tokens, processes.

use std::{collections::BTreeSet, time::Duration};

use nvcap_common::{self as c, SiteKey, SiteValue, flag, kind};

use super::{
    super::{
        assemble::{self, Gathered, Raw},
        error::Result,
        own_put::{Place, Verdict},
        site,
    },
    Session,
};
use crate::record::{
    CpuVa, Device, How, Ioctl, Loss, Lost, Mapping, Process, Record, Submission, Unmapping,
};

/// Hits on one doorbell page of a GPU after which another that was never hit is given up.
const DEAD_AFTER: u64 = 256;
/// Traps at a store that are decoded before it is given up.
const SITE_TRIES: u32 = 16;

/// A record of the ring buffer that is no capture: it must be acted on, in order.
pub(super) enum Todo {
    Site(c::Site),
    Windows(Box<c::Windows>),
    Scan(c::Scan),
    Gap(c::Gap),
    Ioctl(Box<Ioctl>, u32),
    Mmap(c::Mmap),
    Munmap(c::Munmap),
    Life(c::Life),
    Module(c::Header),
    Nothing,
}

impl Todo {
    fn ioctl(whole: Option<(Ioctl, u32)>) -> Self {
        whole.map_or(Todo::Nothing, |(ioctl, dev)| {
            Todo::Ioctl(Box::new(ioctl), dev)
        })
    }
}

impl Session {
    /// Takes everything that is in the ring buffer, and acts on it.
    pub(super) fn drain(&mut self) -> Result<usize> {
        let mut n = 0;
        loop {
            // What a look at a channel set aside came before what is still in the ring buffer.
            let todo = match self.pending.pop_front() {
                Some(todo) => todo,
                None => match self.take() {
                    None if self.unpeeked.is_empty() => return Ok(n),
                    None => {
                        self.peek_rest();
                        continue;
                    }
                    Some(todo) => {
                        n += 1;
                        todo
                    }
                },
            };
            self.act(todo)?;
        }
    }

    /// Takes captures out of the ring buffer until all of a channel's are out, and sets aside what is not a capture:
    /// the channel is claimed meanwhile, which must not last.
    pub(super) fn take_captured(&mut self, index: u32) {
        let done = self.loaded.shared.get(index).done;
        let mut patience = 20;
        while self.channels[index as usize].taken < done {
            match self.take() {
                Some(Todo::Nothing) => {}
                Some(todo) => self.pending.push_back(todo),
                // Another processor is in the middle of writing something that lies before it.
                None if patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(Duration::from_micros(20));
                }
                None => return,
            }
        }
    }

    /// The next record of the ring buffer, with captures already passed on; `None` when there is none.
    fn take(&mut self) -> Option<Todo> {
        let mut done = Vec::new();
        let todo = {
            let item = self.loaded.records.next()?;
            // Data are appended in place; only the rest needs this program's other parts.
            match assemble::parse(&item) {
                Some(Raw::Submit(r)) => {
                    self.assembler.submit(&r, &mut done);
                    Todo::Nothing
                }
                Some(Raw::Data(r, bytes)) => {
                    self.assembler.data(&r, bytes, &mut done);
                    Todo::Nothing
                }
                Some(Raw::Site(r)) => Todo::Site(r),
                Some(Raw::Windows(r)) => Todo::Windows(r),
                Some(Raw::Scan(r)) => Todo::Scan(r),
                Some(Raw::Gap(r)) => Todo::Gap(r),
                Some(Raw::IoctlEnter(r, b)) => Todo::ioctl(self.assembler.enter(&r, b)),
                Some(Raw::IoctlExit(r, b)) => Todo::ioctl(self.assembler.exit(&r, b)),
                Some(Raw::Nested(r, b)) => Todo::ioctl(self.assembler.nested(&r, b)),
                Some(Raw::Mmap(r)) => Todo::Mmap(r),
                Some(Raw::Munmap(r)) => Todo::Munmap(r),
                Some(Raw::Life(r)) => Todo::Life(r),
                Some(Raw::Module(h)) => Todo::Module(h),
                None => Todo::Nothing,
            }
        };
        for gathered in done {
            self.gathered(gathered);
        }
        if let Todo::Gap(r) = &todo
            && let Some(channel) = self.channels.get_mut(r.channel as usize)
        {
            channel.taken = channel.taken.max(r.position + r.count);
        }
        Some(todo)
    }

    fn act(&mut self, todo: Todo) -> Result<()> {
        match todo {
            Todo::Nothing => {}
            Todo::Site(r) => self.site(&r)?,
            Todo::Windows(r) => self.windows(&r)?,
            Todo::Scan(r) => self.scanned(&r)?,
            Todo::Gap(r) => self.gap(&r),
            Todo::Ioctl(ioctl, dev) => {
                let device = self.device(dev);
                self.emit(Record::Ioctl(Box::new(Ioctl { device, ..*ioctl })));
            }
            Todo::Mmap(r) => {
                let mapping = Mapping {
                    at: assemble::at(&r.header),
                    device: self.device(r.dev),
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
            Todo::Module(h) => self.modules(h.time_ns)?,
        }
        Ok(())
    }

    pub(super) fn device(&self, dev: u32) -> Device {
        let (major, minor) = (dev >> 20, dev & 0xf_ffff);
        match (major, minor) {
            (m, _) if m == self.uvm_major => Device::Uvm,
            (m, 255) if m == self.nvidia_major => Device::Control,
            (m, n) if m == self.nvidia_major && n < 247 => Device::Gpu(n),
            _ => Device::Other(major, minor),
        }
    }

    /// Passes a submission on, or holds it back until it is known whose doorbell found it. Per channel the order stays
    /// the ring's: whatever is held back of a channel goes before what comes later.
    pub(super) fn gathered(&mut self, mut g: Gathered) {
        let index = g.head.channel;
        if let Some(channel) = self.channels.get_mut(index as usize) {
            // What was fetched from outside, because this did not come to light in time, is not told again.
            let again = channel.taken.saturating_sub(g.head.position);
            if again > 0 {
                log::debug!("{:?}: position {} again", channel.id, g.head.position);
                g.skip(again);
            }
            if g.segments.is_empty() {
                return;
            }
            channel.taken = g.head.position + g.segments.len() as u64;
        }
        let held = self
            .held
            .values()
            .flatten()
            .any(|h| h.head.channel == index);
        let scanned = g.head.header.flags & flag::SCANNED != 0;
        if held {
            self.release_held(|h| h.head.channel == index);
        }
        let known = self
            .channels
            .get(index as usize)
            .is_none_or(|c| c.token.is_some());
        if scanned && !known {
            self.held.entry(g.head.header.tid).or_default().push(g);
        } else {
            self.submission(g);
        }
    }

    pub(super) fn release_held(&mut self, which: impl Fn(&Gathered) -> bool) {
        let mut ready = Vec::new();
        for list in self.held.values_mut() {
            ready.extend(list.extract_if(.., |g| which(g)));
        }
        self.held.retain(|_, list| !list.is_empty());
        for g in ready {
            self.submission(g);
        }
    }

    pub(super) fn submission(&mut self, mut g: Gathered) {
        let filled = self.fill_holes(&mut g);
        let Some(channel) = self.channels.get(g.head.channel as usize) else {
            return;
        };
        let head = &g.head;
        let entries = g.segments.len() as u64;
        let (id, space) = (channel.id, head.space);
        let token = (head.token != c::NO_TOKEN).then_some(head.token);
        // A scan finds entries of other channels than the one that was rung.
        let scanned = head.header.flags & flag::SCANNED != 0;
        let token = if scanned {
            channel.token.or(token.filter(|_| channel.token.is_none()))
        } else {
            token
        };
        let record = Submission {
            at: assemble::at(&head.header),
            channel: id,
            token: if scanned { channel.token } else { token },
            position: head.position,
            gp_get: (head.get != c::NO_GET).then_some(head.get),
            prev_put: channel.index(head.position),
            gp_put: channel.index(head.position + entries),
            ip: Some(head.ip),
            doorbell: Some(CpuVa(head.doorbell)),
            how: How::Trapped,
            late: filled || head.header.flags & flag::LATE != 0,
            thread: Some(assemble::name(&head.comm).into()),
            segments: g.segments,
        };
        let (pid, doorbell) = (head.header.pid, head.doorbell);
        self.out.push(Record::Submission(record));
        let hits = self.hits.entry((space, doorbell)).or_default();
        *hits += 1;
        if *hits == DEAD_AFTER {
            self.drop_dead_page(pid, space, doorbell);
        }
    }

    pub(super) fn site(&mut self, r: &c::Site) -> Result<()> {
        if let Some(register) = self.sites.get(&(r.space, r.ip)) {
            // A trap from before the BPF programs were told.
            let token = r.regs[*register as usize % c::REGS] as u32;
            self.tokens_at
                .insert(r.header.tid, (r.header.time_ns, token));
            return Ok(());
        }
        if r.code_error != 0 {
            return Ok(());
        }
        let tokens: BTreeSet<u32> = self
            .channels
            .iter()
            .filter(|ch| ch.space == r.space && ch.live)
            .filter_map(|ch| ch.token)
            .collect();
        let store = site::decode(r.ip, &r.code, &r.regs, r.doorbell, |t| tokens.contains(&t));
        log::debug!(
            "store at {:#x} in space {}: {store:?}, code {:x?}",
            r.ip,
            r.space,
            &r.code[..c::CODE]
        );
        if let Some(store) = store {
            let token = r.regs[store.register as usize % c::REGS] as u32;
            self.tokens_at
                .insert(r.header.tid, (r.header.time_ns, token));
        }
        // Where it cannot be told, every doorbell of this site looks at all channels: slower, nothing lost. One trap that
        // was reported with another's address must not decide that.
        let register = match store {
            Some(store) => {
                self.sites.insert((r.space, r.ip), store.register);
                store.register
            }
            None => {
                let tries = self.undecoded.entry((r.space, r.ip)).or_default();
                *tries += 1;
                if *tries < SITE_TRIES {
                    return Ok(());
                }
                u32::MAX
            }
        };
        let learn = register != u32::MAX && !self.options.no_own_put;
        self.tell_site(r.space, r.ip, register, None, learn)
    }

    /// Tells the BPF programs what is known of a store.
    fn tell_site(
        &mut self,
        space: u32,
        ip: u64,
        register: u32,
        copy: Option<Place>,
        learn: bool,
    ) -> Result<()> {
        let key = SiteKey { ip, space, pad: 0 };
        let value = SiteValue {
            register,
            own: copy.map_or(c::NO_OWN, |c| c.register),
            word: copy.map_or(0, |c| c.word),
            learn: learn.into(),
        };
        self.loaded.set_site(key, value)
    }

    /// Learns from what is around the registers at a store where the process keeps its own copy of GP_PUT.
    fn windows(&mut self, r: &c::Windows) -> Result<()> {
        let Some(register) = self.sites.get(&(r.space, r.ip)).copied() else {
            return Ok(());
        };
        let copy = match self.own_puts.entry((r.space, r.ip)).or_default().see(r) {
            Verdict::More | Verdict::Told => return Ok(()),
            Verdict::Nowhere => None,
            Verdict::At(copy) => Some(copy),
        };
        log::debug!(
            "store at {:#x} in space {}: own copy of GP_PUT: {copy:?}",
            r.ip,
            r.space
        );
        self.tell_site(r.space, r.ip, register, copy, false)
    }

    pub(super) fn scanned(&mut self, r: &c::Scan) -> Result<()> {
        let tid = r.header.tid;
        let learnt = self.learn_from_scan(r);
        self.release_held(|g| g.head.header.tid == tid);
        learnt
    }

    pub(super) fn learn_from_scan(&mut self, r: &c::Scan) -> Result<()> {
        if r.header.flags & flag::CONTENDED != 0 {
            // The channel that was rung may be the one that was passed over.
            return Ok(());
        }
        let told = self
            .tokens_at
            .get(&r.header.tid)
            .filter(|t| t.0 == r.header.time_ns);
        let token = if r.token == c::NO_TOKEN {
            told.map(|t| t.1)
        } else {
            Some(r.token)
        };
        let Some(token) = token else {
            return Ok(());
        };
        let r = &c::Scan { token, ..*r };
        // A look from before all of the process's rings were in the table says nothing of those that were not.
        let complete = self
            .spaces
            .get(&r.space)
            .is_some_and(|s| r.header.time_ns > s.searched);
        if r.advanced == 1 && complete && (r.channel as usize) < self.channels.len() {
            let channel = &self.channels[r.channel as usize];
            let taken = self.channels.iter().any(|o| {
                o.space == r.space
                    && o.token == Some(r.token)
                    && o.token_told
                    && o.live
                    && o.gpu == channel.gpu
            });
            if !taken && channel.space == r.space && self.confirmed(r) {
                log::debug!("token {:#x} rings channel {}", r.token, r.channel);
                for i in 0..self.channels.len() {
                    let o = &self.channels[i];
                    let same_gpu = o.gpu == self.channels[r.channel as usize].gpu;
                    if i != r.channel as usize
                        && o.space == r.space
                        && o.token == Some(r.token)
                        && !o.token_told
                        && same_gpu
                    {
                        self.channels[i].token = None;
                    }
                }
                self.learn_token(r.channel, r.token, false)?;
            }
        } else if r.advanced == 0 && !self.is_known(r) {
            *self
                .orphans
                .entry((r.space, r.doorbell, r.token))
                .or_default() += 1;
            self.search_again(r.space)?;
        }
        Ok(())
    }

    /// The token that was rung is a channel's.
    fn is_known(&self, r: &c::Scan) -> bool {
        let Some(space) = self.spaces.get(&r.space) else {
            return false;
        };
        let gpu = space.doorbells.iter().find(|d| d.0 == r.doorbell);
        space.channels.iter().any(|i| {
            let ch = &self.channels[*i as usize];
            let same_gpu = ch.gpu.is_none() || gpu.is_none_or(|d| Some(d.1) == ch.gpu);
            ch.live && ch.token == Some(r.token) && same_gpu
        })
    }

    /// What a look at all channels found moved is what was rung: not so when another thread has moved one and not rung
    /// yet, and what was rung was fetched before. Two looks that agree are believed.
    fn confirmed(&mut self, r: &c::Scan) -> bool {
        let guess = self
            .guesses
            .entry((r.space, r.doorbell, r.token))
            .or_default();
        *guess = if guess.0 == r.channel {
            (r.channel, guess.1 + 1)
        } else {
            (r.channel, 1)
        };
        guess.1 > 1
    }

    pub(super) fn gap(&mut self, r: &c::Gap) {
        let Some(channel) = self.channels.get(r.channel as usize) else {
            return;
        };
        let what = Lost::Entries {
            position: r.position,
            count: r.count,
        };
        self.out.push(Record::Loss(Loss {
            at: assemble::at(&r.header),
            channel: Some(channel.id),
            what,
        }));
    }

    pub(super) fn life_event(&mut self, r: &c::Life) -> Result<()> {
        let at = assemble::at(&r.header);
        let name = assemble::name(&r.comm);
        use crate::record::Life as L;
        match r.header.kind {
            kind::THREAD => self.emit(Record::Process(Process {
                at,
                life: L::Thread { child: r.child },
            })),
            kind::FORK => {
                self.join_space(r.child, r.space);
                self.inherit(at, r.child);
                self.emit(Record::Process(Process {
                    at,
                    life: L::Fork { child: r.child },
                }));
            }
            kind::EXEC => {
                for state in self.spaces.values_mut() {
                    state.pids.remove(&at.pid);
                }
                self.memories.remove(&at.pid);
                self.join_space(at.pid, r.space);
                self.exec_ends(at.pid);
                self.emit(Record::Process(Process {
                    at,
                    life: L::Exec { name },
                }));
                if r.child == 0 {
                    self.install_given(r.space, at.pid, None)?;
                }
            }
            _ => {
                if let Some((ioctl, dev)) = self.assembler.gone(at.tid) {
                    let device = self.device(dev);
                    self.emit(Record::Ioctl(Box::new(Ioctl { device, ..ioctl })));
                }
                let process = r.child == 1;
                self.emit(Record::Process(Process {
                    at,
                    life: L::Exit { process },
                }));
                if process {
                    self.unseen_end(at);
                    self.process_gone(at.pid);
                }
            }
        }
        Ok(())
    }

    pub(super) fn process_gone(&mut self, pid: u32) {
        self.processes.remove(&pid);
        self.memories.remove(&pid);
        self.close(pid);
        let mut ended = Vec::new();
        for state in self.spaces.values_mut() {
            if state.pids.remove(&pid) && state.pids.is_empty() {
                ended.append(&mut state.channels);
            }
        }
        for index in ended {
            if self.channels[index as usize].live {
                self.loaded.shared.retire(index);
                self.channels[index as usize].live = false;
                self.count_unfetched(index);
            }
        }
    }
}
