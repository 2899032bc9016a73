//! A live trace: reads the ring buffer, keeps breakpoints and channel table in step with the driver model, gives
//! records.
//!
//! The BPF programs capture without this program's help once a channel is in the table. What is left to it: to put
//! channels there, to teach the programs stores and tokens, and to fetch what no doorbell fetched (a ring buffer that
//! was full, a hit that the machine lost, the end of the trace). One thread does all of it, so that per channel the
//! order of records is the order of the ring.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::fd::AsRawFd,
    time::Duration,
};

use nvcap_common::{self as c, Config, Proc, SiteKey, TokenKey, TokenValue, flag, kind, proc_flag};

use super::{
    arm::{self, Armed},
    assemble::{self, Assembler, Gathered, Raw},
    discover::{self, Way},
    error::{Error, Result, remedy_for_refusal},
    given::Given,
    load::{LoadOptions, Loaded, majors},
    perf::Life,
    site,
    space::{ChannelState, SpaceState, doorbell_of},
};
use crate::{
    driver::{self, Change},
    record::{
        At, Channel, ChannelId, CpuVa, Device, How, Ioctl, Loss, Lost, Mapping, Origin, Process,
        Record, Submission, Unmapping,
    },
    source::memory::{find, maps, process::Memory, ring},
};

/// Ids of channels that the driver model did not give.
const OWN_IDS: u32 = 1 << 24;
/// How often the channels are looked at from outside, ns.
const PATROL_NS: u64 = 200_000_000;
/// Hits on one doorbell page of a GPU after which another that was never hit is given up.
const DEAD_AFTER: u64 = 256;

/// How to trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// The way to learn mappings and ioctls; `None` tries all.
    pub discover: Option<Way>,
    /// Children are traced too.
    pub follow: bool,
    /// Doorbells are watched. Without it no breakpoint is set and no ring is read: what is left are ioctls, mappings
    /// and processes.
    pub watch: bool,
    /// What the user names.
    pub given: Given,
    /// Ring buffer size, bytes (a power of two).
    pub buffer: u32,
    /// Do without bpf_loop.
    pub no_bpf_loop: bool,
    /// GP_GET is read at every doorbell, which costs a further read over PCIe, not at every 16th of a channel.
    pub gp_get: bool,
}

/// A live trace.
pub struct Session {
    loaded: Loaded,
    options: Options,
    way: Option<Way>,
    refused: Vec<(Way, Error)>,
    model: driver::Model,
    assembler: Assembler,
    spaces: HashMap<u32, SpaceState>,
    channels: Vec<ChannelState>,
    by_id: HashMap<ChannelId, u32>,
    armed: HashMap<u32, Vec<Armed>>,
    hits: HashMap<(u32, u64), u64>,
    orphans: HashMap<(u32, u32), u64>,
    memories: HashMap<u32, Memory>,
    processes: BTreeSet<u32>,
    own_ids: u32,
    next_patrol: u64,
    reported: c::Stats,
    reported_left_out: u64,
    uvm_major: u32,
    nvidia_major: u32,
    secret: u64,
    out: Vec<Record>,
    /// Submissions found by a look at all channels, by thread, until its end tells whose doorbell it was.
    held: HashMap<u32, Vec<Gathered>>,
    /// The token of a thread's newest trap at a store that was not known then, with the trap's time.
    tokens_at: HashMap<u32, (u64, u32)>,
    /// Breakpoints that an exec has ended. They stay open: closing them would end those that children inherited.
    ended: Vec<Armed>,
    /// Hits of breakpoints that were closed.
    closed_hits: u64,
}

/// What the trace did, at its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Counters of the BPF programs.
    pub stats: c::Stats,
    /// Breakpoint hits that the kernel counted.
    pub kernel_hits: u64,
}

impl Session {
    /// Loads everything and attaches the discovery way; traces nothing yet.
    ///
    /// # Errors
    /// When the kernel refuses, with the remedy.
    pub fn new(options: Options) -> Result<Self> {
        let mut loaded = Loaded::new(LoadOptions {
            buffer: options.buffer,
            no_bpf_loop: options.no_bpf_loop,
        })?;
        discover::attach_process(&mut loaded.bpf)?;
        // What the user names needs no discovery, but more channels may come; then a refusal is no failure.
        let (way, refused) = match discover::attach(&mut loaded, options.discover) {
            Ok((way, refused)) => (Some(way), refused),
            Err(_) if options.discover.is_none() && !options.given.is_empty() => (None, Vec::new()),
            Err(e) => return Err(e),
        };
        let version = driver_version();
        for (request, size) in driver::uvm_argument_sizes() {
            loaded.set_uvm_size(request, size);
        }
        let mut session = Self {
            loaded,
            options,
            way,
            refused,
            model: driver::Model::new(driver::Options {
                driver_version: version,
            }),
            assembler: Assembler::default(),
            spaces: HashMap::new(),
            channels: Vec::new(),
            by_id: HashMap::new(),
            armed: HashMap::new(),
            hits: HashMap::new(),
            orphans: HashMap::new(),
            memories: HashMap::new(),
            processes: BTreeSet::new(),
            own_ids: OWN_IDS,
            next_patrol: 0,
            reported: c::Stats::default(),
            reported_left_out: 0,
            uvm_major: 0,
            nvidia_major: 0,
            secret: secret(),
            out: Vec::new(),
            held: HashMap::new(),
            tokens_at: HashMap::new(),
            ended: Vec::new(),
            closed_hits: 0,
        };
        session.refresh_majors()?;
        Ok(session)
    }

    /// The discovery way in use, and why those before it were refused.
    pub fn way(&self) -> (Option<Way>, &[(Way, Error)]) {
        (self.way, &self.refused)
    }

    /// Which doorbell program runs.
    pub fn doorbell_program(&self) -> &'static str {
        self.loaded.doorbell_name
    }

    fn refresh_majors(&mut self) -> Result<()> {
        let (nvidia, uvm) = majors();
        // nvidia.ko's number is fixed; it may be loaded after us.
        let nvidia = if nvidia == 0 { 195 } else { nvidia };
        if (nvidia, uvm) != (self.nvidia_major, self.uvm_major) {
            let first = self.nvidia_major == 0;
            (self.nvidia_major, self.uvm_major) = (nvidia, uvm);
            self.loaded.set_config(Config {
                uvm_major: uvm,
                nvidia_major: nvidia,
                secret: self.secret,
                gp_get: u32::from(self.options.gp_get),
                pad: 0,
            })?;
            if !first
                && uvm != 0
                && let Some(way) = self.way
            {
                discover::attach_uvm(&mut self.loaded, way)?;
            }
        }
        Ok(())
    }

    fn flags(&self) -> u32 {
        proc_flag::IOCTLS
            | if self.options.follow {
                proc_flag::FOLLOW
            } else {
                0
            }
    }

    /// Traces a command that is about to be executed by `pid`, which waits to be let go.
    ///
    /// # Errors
    /// When its doorbells, where the user named them, cannot be watched.
    pub fn expect_exec(&mut self, pid: u32) -> Result<()> {
        let space = self.loaded.new_space()?;
        self.join_space(pid, space);
        self.loaded.set_proc(
            pid,
            Proc {
                space,
                flags: self.flags() | proc_flag::KEEP,
            },
        )?;
        self.install_given(space, pid, None)?;
        for i in 0..self.options.given.doorbells.len() {
            let d = self.options.given.doorbells[i];
            self.arm(
                pid,
                d.address,
                Some(d.gpu),
                Life {
                    children: self.options.follow,
                    until_exec: false,
                    from_exec: true,
                },
            )?;
        }
        Ok(())
    }

    /// Attaches to a running process.
    ///
    /// # Errors
    /// When it is gone, not ours, or has no free debug register.
    pub fn attach(&mut self, pid: u32) -> Result<()> {
        let cannot = |e: &io::Error| {
            let next = match e.raw_os_error() {
                Some(libc::ENOENT | libc::ESRCH) => {
                    "there is no such process; check the process id"
                }
                Some(libc::EACCES | libc::EPERM) => {
                    "it is not yours: run nvcap as root (sudo nvcap ...) or as its owner with cap_sys_ptrace"
                }
                _ => remedy_for_refusal(e),
            };
            Error::new(format!("attaching to process {pid}"), e, next)
        };
        let memory = Memory::open(pid).map_err(|e| cannot(&e))?;
        let name = comm_of(pid, pid).unwrap_or_default();
        let space = self.loaded.new_space()?;
        self.join_space(pid, space);
        let at = At {
            time_ns: arm::now(),
            pid,
            tid: pid,
        };
        self.emit(Record::Process(Process {
            at,
            life: crate::record::Life::Present { name },
        }));
        // From here on what it does is recorded, so nothing falls between this look and the breakpoints.
        self.loaded.set_proc(
            pid,
            Proc {
                space,
                flags: self.flags(),
            },
        )?;
        let areas = maps::areas(pid).map_err(|e| cannot(&e))?;
        for d in &self.options.given.doorbells {
            if !areas
                .iter()
                .any(|a| a.start <= d.address && d.address < a.end)
            {
                return Err(Error::new(
                    format!("watching {:#x} in process {pid}", d.address),
                    "it is not mapped",
                    format!(
                        "take the address of a doorbell word from /proc/{pid}/maps (page + 0x90)"
                    ),
                ));
            }
        }
        self.install_given(space, pid, Some(&memory))?;
        let mut pages = Vec::new();
        for area in &areas {
            if let Some(mapping) = area.record(at) {
                self.emit(Record::Mapping(mapping));
            }
            if let (true, Some(Device::Gpu(gpu))) = (area.is_doorbell_shape(), area.device()) {
                pages.push((CpuVa(area.start), gpu, area.read));
            }
        }
        // Write-only pages first (CUDA's); they are the ones rung where both kinds are there.
        pages.sort_by_key(|p| p.2);
        for found in find::rings(&memory, &areas) {
            self.install_found(space, pid, &found)?;
        }
        self.memories.insert(pid, memory);
        let life = self.life();
        // What the user names holds for every program that the process executes.
        let named = Life {
            until_exec: false,
            ..life
        };
        for i in 0..self.options.given.doorbells.len() {
            let d = self.options.given.doorbells[i];
            self.arm(pid, d.address, Some(d.gpu), named)?;
        }
        for (n, (page, gpu, _)) in pages.iter().enumerate() {
            match self.arm(pid, doorbell_of(*page), Some(*gpu), life) {
                Ok(()) => {}
                // Four registers serve two GPUs; the rest is found out at the next patrol.
                Err(e) if n == 0 => return Err(e),
                Err(e) => self.blind(pid, &e),
            }
        }
        Ok(())
    }

    fn life(&self) -> Life {
        Life {
            children: self.options.follow,
            until_exec: true,
            from_exec: false,
        }
    }

    fn join_space(&mut self, pid: u32, space: u32) {
        self.processes.insert(pid);
        self.spaces.entry(space).or_default().pids.insert(pid);
    }

    /// Passes a record on, after the model has drawn its conclusions.
    fn emit(&mut self, record: Record) {
        let changes = match record {
            Record::Submission(_) | Record::Loss(_) => Vec::new(),
            _ => self.model.record(&record),
        };
        self.out.push(record);
        for change in changes {
            if let Err(e) = self.apply(change) {
                self.blind(0, &e);
            }
        }
    }

    fn blind(&mut self, pid: u32, why: &Error) {
        let at = At {
            time_ns: arm::now(),
            pid,
            tid: 0,
        };
        self.out.push(Record::Loss(Loss {
            at,
            channel: None,
            what: Lost::Blind {
                why: why.to_string(),
            },
        }));
    }

    fn apply(&mut self, change: Change) -> Result<()> {
        match change {
            Change::DoorbellPage {
                pid,
                gpu_minor,
                cpu_va,
                ..
            } => {
                let address = doorbell_of(cpu_va);
                match self.arm(pid, address, gpu_minor, self.life()) {
                    // The process may be gone by now.
                    Err(_) if arm::threads(pid).is_err() => Ok(()),
                    other => other,
                }
            }
            Change::DoorbellGone { pid, cpu_va, .. } => {
                self.disarm(pid, doorbell_of(cpu_va));
                Ok(())
            }
            Change::Channel(channel) => self.install_told(*channel),
            Change::ChannelShared { .. } => Ok(()),
            Change::Token { channel, token } => {
                if let Some(&index) = self.by_id.get(&channel) {
                    self.learn_token(index, token, true)?;
                }
                Ok(())
            }
            Change::ChannelGone { channel, .. } => {
                self.retire(channel);
                Ok(())
            }
            Change::Translations { pid } => self.retranslate(pid),
            Change::DriverVersion(_) => Ok(()),
        }
    }

    // ---- breakpoints

    fn arm(&mut self, pid: u32, address: u64, gpu: Option<u32>, life: Life) -> Result<()> {
        if !self.options.watch {
            return Ok(());
        }
        let list = self.armed.entry(pid).or_default();
        if list.iter().any(|a| a.address == address) {
            // Two events would trap twice.
            return Ok(());
        }
        let loaded = &self.loaded;
        let armed = Armed::new(
            pid,
            address,
            life,
            loaded.doorbell(),
            |tid| loaded.birth(tid),
            |tid| list.iter_mut().map(|a| a.release(tid)).filter(|&released| released).count() > 0,
        )
        .map_err(|e| {
            let what = format!("watching the doorbell {address:#x} of process {pid}");
            match e.raw_os_error() {
                Some(libc::ENOSPC) => Error::new(
                    what,
                    "no debug register is left in one of its threads (there are 4)",
                    "end the debugger or tracer that holds them, or trace fewer GPUs (CUDA_VISIBLE_DEVICES)",
                ),
                Some(libc::ENOENT | libc::ESRCH) => Error::new(what, "the process is gone", "check the process id"),
                _ => Error::new(what, &e, remedy_for_refusal(&e)),
            }
        })?;
        self.armed.entry(pid).or_default().push(armed);
        let Some(space) = self.loaded.proc(pid).map(|p| p.space) else {
            return Ok(());
        };
        let state = self.spaces.entry(space).or_default();
        let gpu = gpu.unwrap_or(0);
        if !state.doorbells.contains(&(address, gpu)) {
            state.doorbells.push((address, gpu));
        }
        for index in state.channels.clone() {
            self.publish_token(index)?;
            if life.until_exec {
                self.peek(index);
            }
        }
        Ok(())
    }

    fn disarm(&mut self, pid: u32, address: u64) {
        if let Some(list) = self.armed.get_mut(&pid) {
            self.closed_hits += list
                .iter()
                .filter(|a| a.address == address)
                .map(Armed::hits)
                .sum::<u64>();
            list.retain(|a| a.address != address);
        }
    }

    /// Gives up the doorbell page of a GPU that is never rung, once the other has been.
    fn drop_dead_page(&mut self, pid: u32, space: u32, rung: u64) {
        let Some(state) = self.spaces.get(&space) else {
            return;
        };
        let Some((_, gpu)) = state.doorbells.iter().find(|d| d.0 == rung) else {
            return;
        };
        let dead: Vec<u64> = state
            .doorbells
            .iter()
            .filter(|d| d.1 == *gpu && d.0 != rung && !self.hits.contains_key(&(space, d.0)))
            .map(|d| d.0)
            .collect();
        if self.options.given.is_empty() {
            for address in dead {
                self.disarm(pid, address);
            }
        }
    }

    // ---- channels

    fn add_channel(&mut self, space: u32, channel: Channel, start: u64) -> Result<Option<u32>> {
        let (Some(ring), Some(entries), Some(userd)) =
            (channel.ring, channel.entries, channel.userd)
        else {
            return Ok(None);
        };
        if !entries.is_power_of_two() || self.by_id.contains_key(&channel.id) {
            return Ok(None);
        }
        let get_put = userd.0 + find::GP_GET;
        let translated = self.publish_ranges(channel.at.pid, space)?;
        let entry = c::Channel {
            done: start,
            seen: start,
            get_put,
            ring: ring.0,
            entries,
            live: if translated { 2 } else { 1 },
            space,
            ..c::Channel::default()
        };
        let index = self.loaded.shared.add(entry).ok_or_else(|| {
            Error::new(
                "following a further channel",
                "there have been too many in this trace",
                "start nvcap again",
            )
        })?;
        self.channels.push(ChannelState {
            id: channel.id,
            space,
            gpu: channel.gpu,
            token: channel.token,
            token_told: channel.token.is_some(),
            entries,
            ring: ring.0,
            get_put,
            announced: channel.clone(),
            patrolled: (start, start),
            ahead: None,
            looked: false,
            live: true,
        });
        self.by_id.insert(channel.id, index);
        self.spaces.entry(space).or_default().channels.push(index);
        self.out.push(Record::Channel(Box::new(channel)));
        self.publish_token(index)?;
        Ok(Some(index))
    }

    fn install_told(&mut self, channel: Channel) -> Result<()> {
        let Some(space) = self.loaded.proc(channel.at.pid).map(|p| p.space) else {
            return Ok(());
        };
        // Its ring begins at 0 and nothing of it has been missed, however late this is.
        if let Some(index) = self.add_channel(space, channel, 0)? {
            self.peek(index);
        }
        Ok(())
    }

    fn own_id(&mut self) -> ChannelId {
        self.own_ids += 1;
        ChannelId(self.own_ids - 1)
    }

    fn install_found(&mut self, space: u32, pid: u32, found: &find::Found) -> Result<()> {
        let known = self.spaces.get(&space).is_some_and(|s| {
            s.channels
                .iter()
                .any(|i| self.channels[*i as usize].ring == found.ring)
        });
        if known {
            return Ok(());
        }
        let id = self.own_id();
        let channel = Channel {
            at: At {
                time_ns: arm::now(),
                pid,
                tid: 0,
            },
            id,
            gpu: Some(found.gpu),
            token: None,
            class: None,
            engine: None,
            handle: None,
            ring_gpu: None,
            ring: Some(CpuVa(found.ring)),
            entries: Some(found.entries),
            userd: Some(CpuVa(found.userd)),
            origin: Origin::Found,
        };
        self.add_channel(space, channel, u64::from(found.put))?;
        Ok(())
    }

    /// `memory`: of a process that already runs; its channels begin where they are now.
    fn install_given(&mut self, space: u32, pid: u32, memory: Option<&Memory>) -> Result<()> {
        for given in self.options.given.channels.clone() {
            let id = self.own_id();
            let start = memory
                .and_then(|m| m.get_put(given.userd + find::GP_GET).ok())
                .map_or(0, |gp| gp.1);
            let channel = Channel {
                at: At {
                    time_ns: arm::now(),
                    pid,
                    tid: 0,
                },
                id,
                gpu: Some(given.gpu),
                token: given.token,
                class: given.class,
                engine: given.engine,
                handle: None,
                ring_gpu: None,
                ring: Some(CpuVa(given.ring)),
                entries: Some(given.entries),
                userd: Some(CpuVa(given.userd)),
                origin: Origin::Given,
            };
            self.add_channel(space, channel, u64::from(start & (given.entries - 1)))?;
        }
        let state = self.spaces.entry(space).or_default();
        for d in &self.options.given.doorbells {
            if !state.doorbells.contains(&(d.address, d.gpu)) {
                state.doorbells.push((d.address, d.gpu));
            }
        }
        for index in state.channels.clone() {
            self.publish_token(index)?;
        }
        Ok(())
    }

    fn retire(&mut self, id: ChannelId) {
        let Some(index) = self.by_id.get(&id).copied() else {
            return;
        };
        let channel = &self.channels[index as usize];
        if !channel.live {
            return;
        }
        // Last look, while its memory may still be there.
        let _ = self.catch_up(index);
        self.loaded.shared.retire(index);
        self.channels[index as usize].live = false;
        for key in self.token_keys(index) {
            self.loaded.forget_token(key);
        }
        self.count_unfetched(index);
    }

    /// What was seen in the ring but never fetched is lost now.
    fn count_unfetched(&mut self, index: u32) {
        let state = self.loaded.shared.get(index);
        let channel = &self.channels[index as usize];
        if channel.announced.origin == Origin::Allocated && !channel.looked && state.looks == 0 {
            let at = At {
                time_ns: arm::now(),
                pid: channel.announced.at.pid,
                tid: 0,
            };
            let why = "a channel was gone before it could be looked at: the process was too short, or the machine too busy";
            self.out.push(Record::Loss(Loss {
                at,
                channel: Some(channel.id),
                what: Lost::Blind {
                    why: why.to_owned(),
                },
            }));
        }
        if state.seen > state.done {
            let at = At {
                time_ns: arm::now(),
                pid: channel.announced.at.pid,
                tid: 0,
            };
            let what = Lost::Entries {
                position: state.done,
                count: state.seen - state.done,
            };
            self.out.push(Record::Loss(Loss {
                at,
                channel: Some(channel.id),
                what,
            }));
        }
    }

    fn token_keys(&self, index: u32) -> Vec<TokenKey> {
        let channel = &self.channels[index as usize];
        let (Some(token), Some(space)) = (channel.token, self.spaces.get(&channel.space)) else {
            return Vec::new();
        };
        let mine = space
            .doorbells
            .iter()
            .filter(|d| channel.gpu.is_none_or(|g| g == d.1));
        mine.map(|d| TokenKey {
            doorbell: d.0,
            space: channel.space,
            token,
        })
        .collect()
    }

    fn publish_token(&mut self, index: u32) -> Result<()> {
        let guessed = u32::from(!self.channels[index as usize].token_told);
        if !self.channels[index as usize].live {
            return Ok(());
        }
        for key in self.token_keys(index) {
            self.loaded.set_token(
                key,
                TokenValue {
                    channel: index,
                    guessed,
                },
            )?;
        }
        Ok(())
    }

    fn learn_token(&mut self, index: u32, token: u32, told: bool) -> Result<()> {
        let channel = &mut self.channels[index as usize];
        if channel.token == Some(token) && (channel.token_told || !told)
            || channel.token_told && !told
        {
            return Ok(());
        }
        let old = self.token_keys(index);
        for key in old {
            self.loaded.forget_token(key);
        }
        let channel = &mut self.channels[index as usize];
        channel.token = Some(token);
        channel.token_told = told;
        channel.announced.token = Some(token);
        channel.announced.at.time_ns = arm::now();
        let again = channel.announced.clone();
        self.out.push(Record::Channel(Box::new(again)));
        self.publish_token(index)
    }

    /// Sets the translation of GPU addresses that are not the process's own; true when there is one.
    fn publish_ranges(&mut self, pid: u32, space: u32) -> Result<bool> {
        let list = self.translations(pid);
        if list.is_empty() {
            return Ok(false);
        }
        let mut ranges = c::Ranges {
            count: 0,
            ranges: [c::Range::default(); c::RANGES],
        };
        for (slot, t) in ranges.ranges.iter_mut().zip(list.iter()) {
            *slot = c::Range {
                gpu: t.gpu.0,
                len: t.len,
                cpu: t.cpu.0,
            };
            ranges.count += 1;
        }
        self.loaded.set_ranges(space, ranges)?;
        Ok(true)
    }

    /// Where GPU addresses are not the process's own (CUDA's are).
    fn translations(&self, pid: u32) -> Vec<driver::Translation> {
        self.model.translations(pid)
    }

    /// Tells the BPF programs what has changed of them.
    fn retranslate(&mut self, pid: u32) -> Result<()> {
        let Some(space) = self.loaded.proc(pid).map(|p| p.space) else {
            return Ok(());
        };
        if self.publish_ranges(pid, space)?
            && let Some(state) = self.spaces.get(&space)
        {
            for index in state
                .channels
                .iter()
                .filter(|i| self.channels[**i as usize].live)
            {
                self.loaded.shared.translate(*index);
            }
        }
        Ok(())
    }

    // ---- records

    /// Waits up to `wait` for something to happen and appends the records it gave to `to`.
    ///
    /// # Errors
    /// When the machine's state can no longer be kept up (map updates refused).
    pub fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()> {
        let got = self.drain()?;
        if got == 0 {
            let mut poll = libc::pollfd {
                fd: self.loaded.records.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one pollfd.
            unsafe { libc::poll(&mut poll, 1, wait.as_millis() as i32) };
            self.drain()?;
        }
        let now = arm::now();
        if now >= self.next_patrol {
            self.next_patrol = now + PATROL_NS;
            self.refresh_majors()?;
            self.loaded.flush_log();
            // Longer than any walk takes: its end was not told, because the ring buffer was full.
            self.release_held(|g| now.saturating_sub(g.head.header.time_ns) > PATROL_NS);
            self.patrol();
        }
        to.append(&mut self.out);
        Ok(())
    }

    /// True while a traced process lives.
    pub fn is_alive(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Takes everything that is in the ring buffer.
    fn drain(&mut self) -> Result<usize> {
        let mut n = 0;
        let mut done = Vec::new();
        // Data are appended in place; only the rest needs this program's other parts.
        enum Todo {
            Site(c::Site),
            Scan(c::Scan),
            Gap(c::Gap),
            Ioctl(Option<(Ioctl, u32)>),
            Mmap(c::Mmap),
            Munmap(c::Munmap),
            Life(c::Life),
            Nothing,
        }
        loop {
            let todo = {
                let Some(item) = self.loaded.records.next() else {
                    break;
                };
                n += 1;
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
                    Some(Raw::Scan(r)) => Todo::Scan(r),
                    Some(Raw::Gap(r)) => Todo::Gap(r),
                    Some(Raw::IoctlEnter(r, b)) => Todo::Ioctl(self.assembler.enter(&r, b)),
                    Some(Raw::IoctlExit(r, b)) => Todo::Ioctl(self.assembler.exit(&r, b)),
                    Some(Raw::Nested(r, b)) => Todo::Ioctl(self.assembler.nested(&r, b)),
                    Some(Raw::Mmap(r)) => Todo::Mmap(r),
                    Some(Raw::Munmap(r)) => Todo::Munmap(r),
                    Some(Raw::Life(r)) => Todo::Life(r),
                    None => Todo::Nothing,
                }
            };
            for gathered in done.drain(..) {
                self.gathered(gathered);
            }
            match todo {
                Todo::Nothing | Todo::Ioctl(None) => {}
                Todo::Site(r) => self.site(&r)?,
                Todo::Scan(r) => self.scanned(&r)?,
                Todo::Gap(r) => self.gap(&r),
                Todo::Ioctl(Some((ioctl, dev))) => {
                    let device = self.device(dev);
                    self.emit(Record::Ioctl(Box::new(Ioctl { device, ..ioctl })));
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
            }
        }
        Ok(n)
    }

    fn device(&self, dev: u32) -> Device {
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
    fn gathered(&mut self, g: Gathered) {
        let index = g.head.channel;
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

    fn release_held(&mut self, which: impl Fn(&Gathered) -> bool) {
        let mut ready = Vec::new();
        for list in self.held.values_mut() {
            ready.extend(list.extract_if(.., |g| which(g)));
        }
        self.held.retain(|_, list| !list.is_empty());
        for g in ready {
            self.submission(g);
        }
    }

    /// Reads from outside what the BPF programs could not: they cannot fault in a page that the process has mapped but
    /// never touched (a forked child's shared memory). True when something was filled.
    fn fill_holes(&mut self, g: &mut Gathered) -> bool {
        if g.segments.iter().all(|s| s.holes.is_empty()) {
            return false;
        }
        let space = g.head.space;
        let extended = self.loaded.shared.get(g.head.channel).extended;
        self.open_memory(space);
        let ranges = self.translations(g.head.header.pid);
        let Some(memory) = self.memory_of(space) else {
            return false;
        };
        let mut filled = false;
        for segment in &mut g.segments {
            let gpu = extended | (segment.entry & 0xff_ffff_fffc);
            let address = in_process(&ranges, gpu);
            let bytes = &mut segment.bytes;
            segment.holes.retain(|hole| {
                let span = hole.offset as usize..(hole.offset + hole.len) as usize;
                let read = bytes
                    .get_mut(span)
                    .is_some_and(|to| memory.read(address + u64::from(hole.offset), to).is_ok());
                filled |= read;
                !read
            });
        }
        filled
    }

    fn submission(&mut self, mut g: Gathered) {
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

    fn site(&mut self, r: &c::Site) -> Result<()> {
        let key = SiteKey {
            ip: r.ip,
            space: r.space,
            pad: 0,
        };
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
        // Where it cannot be told, every doorbell of this site looks at all channels: slower, nothing lost.
        self.loaded
            .set_site(key, store.map_or(u32::MAX, |s| s.register))
    }

    fn scanned(&mut self, r: &c::Scan) -> Result<()> {
        let tid = r.header.tid;
        let learnt = self.learn_from_scan(r);
        self.release_held(|g| g.head.header.tid == tid);
        learnt
    }

    fn learn_from_scan(&mut self, r: &c::Scan) -> Result<()> {
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
        if r.advanced == 1 && (r.channel as usize) < self.channels.len() {
            let channel = &self.channels[r.channel as usize];
            let taken = self.channels.iter().any(|o| {
                o.space == r.space
                    && o.token == Some(r.token)
                    && o.token_told
                    && o.live
                    && o.gpu == channel.gpu
            });
            if !taken && channel.space == r.space {
                log::debug!("token {:#x} rings channel {:?}", r.token, channel.id);
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
        } else if r.advanced == 0 {
            *self.orphans.entry((r.space, r.token)).or_default() += 1;
        }
        Ok(())
    }

    fn gap(&mut self, r: &c::Gap) {
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

    fn life_event(&mut self, r: &c::Life) -> Result<()> {
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
                if let Some(list) = self.armed.get_mut(&at.pid) {
                    self.ended.extend(list.extract_if(.., |a| a.until_exec));
                }
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
                    self.process_gone(at.pid);
                }
            }
        }
        Ok(())
    }

    fn process_gone(&mut self, pid: u32) {
        self.processes.remove(&pid);
        self.memories.remove(&pid);
        for armed in self.armed.remove(&pid).unwrap_or_default() {
            self.closed_hits += armed.hits();
        }
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

    // ---- fetching from outside

    /// Looks at every channel for what no doorbell fetched.
    fn patrol(&mut self) {
        let watched = if self.options.watch {
            self.channels.len() as u32
        } else {
            0
        };
        for index in 0..watched {
            if !self.channels[index as usize].live {
                continue;
            }
            let state = self.loaded.shared.get(index);
            let channel = &self.channels[index as usize];
            let unmoved = channel.patrolled == (state.done, state.seen);
            let put = self
                .memory_of(channel.space)
                .and_then(|m| m.get_put(channel.get_put).ok())
                .map(|gp| gp.1);
            let channel = &mut self.channels[index as usize];
            let ahead = put.filter(|p| *p < channel.entries && *p != channel.index(state.done));
            let still = ahead.is_some() && channel.ahead.is_some() && unmoved;
            channel.patrolled = (state.done, state.seen);
            channel.ahead = ahead;
            if still {
                self.catch_up(index);
            }
        }
        let now = self.loaded.stats();
        self.lost_records(
            "driver (ioctls, mappings, processes)",
            now.dropped.saturating_sub(self.reported.dropped),
        );
        self.reported = now;
        let left_out = self.loaded.left_out();
        self.lost_records(
            "driver (calls during which a fentry program was preempted)",
            left_out.saturating_sub(self.reported_left_out),
        );
        self.reported_left_out = left_out;
    }

    fn lost_records(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            let at = At {
                time_ns: arm::now(),
                pid: 0,
                tid: 0,
            };
            self.out.push(Record::Loss(Loss {
                at,
                channel: None,
                what: Lost::Records { kind, count },
            }));
        }
    }

    fn memory_of(&self, space: u32) -> Option<&Memory> {
        let state = self.spaces.get(&space)?;
        state.pids.iter().find_map(|pid| self.memories.get(pid))
    }

    /// Fetches what was submitted before the breakpoint or the channel was there: no doorbell may come any more.
    fn peek(&mut self, index: u32) {
        let channel = &self.channels[index as usize];
        let (space, at) = (channel.space, channel.get_put);
        self.open_memory(space);
        let put = self.memory_of(space).and_then(|m| m.get_put(at).ok());
        let done = self.loaded.shared.get(index).done;
        let channel = &mut self.channels[index as usize];
        channel.looked |= put.is_some();
        if let Some((_, put)) = put
            && put < channel.entries
            && put != channel.index(done)
        {
            self.catch_up(index);
        }
    }

    fn open_memory(&mut self, space: u32) {
        let Some(state) = self.spaces.get(&space) else {
            return;
        };
        if state.pids.iter().any(|pid| self.memories.contains_key(pid)) {
            return;
        }
        for pid in &state.pids {
            if let Ok(memory) = Memory::open(*pid) {
                self.memories.insert(*pid, memory);
                return;
            }
        }
    }

    /// Fetches what is in a channel's ring and was not captured. The channel is claimed meanwhile, and everything
    /// captured before is taken out of the ring buffer first, so that the order stays the ring's.
    fn catch_up(&mut self, index: u32) -> Option<()> {
        if !self.options.watch {
            return None;
        }
        let space = self.channels[index as usize].space;
        self.open_memory(space);
        self.memory_of(space)?;
        if !self.loaded.shared.claim(index) {
            return None;
        }
        let mut served = 1;
        while served != 0 {
            // An error here shows again at the next drain.
            let _ = self.drain();
            let mut done = Vec::new();
            self.assembler.flush(index, &mut done);
            for gathered in done {
                self.gathered(gathered);
            }
            self.release_held(|g| g.head.channel == index);
            self.fetch(index);
            served = self.loaded.shared.served(index, served);
        }
        Some(())
    }

    fn fetch(&mut self, index: u32) -> Option<()> {
        let state = self.loaded.shared.get(index);
        let channel = &self.channels[index as usize];
        let memory = self.memory_of(channel.space)?;
        let (get, put) = memory.get_put(channel.get_put).ok()?;
        if put >= channel.entries {
            return None;
        }
        let size = u64::from(channel.entries);
        let target = state.seen + (u64::from(put).wrapping_sub(state.seen) & (size - 1));
        let at = At {
            time_ns: arm::now(),
            pid: channel.announced.at.pid,
            tid: 0,
        };
        let mut from = state.done;
        let mut lost = None;
        if target - from >= size {
            let count = target - from - (size - 1);
            lost = Some(Lost::Entries {
                position: from,
                count,
            });
            from += count;
        }
        let mut extended = state.extended;
        let ranges = self.translations(at.pid);
        let translate = |address: u64| in_process(&ranges, address);
        let on = ring::Ring {
            address: channel.ring,
            entries: channel.entries,
        };
        let segments = ring::read(memory, on, from, target, &mut extended, translate)?;
        let record = (!segments.is_empty()).then(|| Submission {
            at,
            channel: channel.id,
            token: channel.token,
            position: from,
            gp_get: Some(get),
            prev_put: channel.index(from),
            gp_put: put,
            ip: None,
            doorbell: None,
            how: How::Observed,
            late: true,
            thread: None,
            segments,
        });
        let id = channel.id;
        if let Some(what) = lost {
            self.out.push(Record::Loss(Loss {
                at,
                channel: Some(id),
                what,
            }));
        }
        self.out.extend(record.map(Record::Submission));
        self.loaded.shared.progress(index, target, target, extended);
        Some(())
    }

    /// Ends the trace: disarms, takes what is left, and looks at every ring for the last time.
    pub fn finish(&mut self, to: &mut Vec<Record>) -> Totals {
        let mut armed: Vec<Armed> = self.armed.drain().flat_map(|(_, list)| list).collect();
        armed.append(&mut self.ended);
        let hits = armed.iter().map(Armed::hits).sum::<u64>() + self.closed_hits;
        drop(armed);
        let _ = self.drain();
        let mut done = Vec::new();
        for index in self.assembler.unfinished() {
            self.assembler.flush(index, &mut done);
        }
        for gathered in done {
            self.gathered(gathered);
        }
        self.release_held(|_| true);
        for index in 0..self.channels.len() as u32 {
            if self.channels[index as usize].live {
                self.catch_up(index);
                self.count_unfetched(index);
            }
        }
        self.patrol();
        for ((space, token), count) in std::mem::take(&mut self.orphans) {
            // Where the channel became known later, it was walked from its beginning, if anybody looked at all.
            let known = (0..self.channels.len()).any(|index| {
                let ch = &self.channels[index];
                let state = self.loaded.shared.get(index as u32);
                ch.space == space && ch.token == Some(token) && (state.looks > 0 || state.done > 0)
            });
            if !known {
                let at = At {
                    time_ns: arm::now(),
                    pid: 0,
                    tid: 0,
                };
                let what = Lost::UnknownChannel {
                    token: Some(token),
                    count,
                };
                self.out.push(Record::Loss(Loss {
                    at,
                    channel: None,
                    what,
                }));
            }
        }
        to.append(&mut self.out);
        Totals {
            stats: self.loaded.stats(),
            kernel_hits: hits,
        }
    }
}

/// The process's address of a GPU address: the same, unless a translation says otherwise.
fn in_process(ranges: &[driver::Translation], gpu: u64) -> u64 {
    let range = ranges
        .iter()
        .find(|t| gpu >= t.gpu.0 && gpu - t.gpu.0 < t.len);
    range.map_or(gpu, |t| gpu - t.gpu.0 + t.cpu.0)
}

/// The release of the driver that is loaded.
fn driver_version() -> Option<driver::Version> {
    let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    text.trim().parse().ok()
}

/// The name of a thread.
fn comm_of(pid: u32, tid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// A number that hides kernel addresses: from the system's random source.
fn secret() -> u64 {
    let mut b = [0u8; 8];
    // SAFETY: the buffer is 8 bytes.
    let n = unsafe { libc::getrandom(b.as_mut_ptr().cast(), 8, 0) };
    if n == 8 {
        u64::from_ne_bytes(b)
    } else {
        arm::now().wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
