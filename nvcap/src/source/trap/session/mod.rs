//! A live trace: reads the ring buffer, keeps breakpoints and channel table in step with the driver model, gives
//! records.
//!
//! The BPF programs capture without this program's help once a channel is in the table. What is left to it: to put
//! channels there, to teach the programs stores and tokens, and to fetch what no doorbell fetched (a ring buffer that
//! was full, a hit that the machine lost, the end of the trace). One thread does all of it, so that per channel the
//! order of records is the order of the ring.

mod channels;
mod modules;
mod outside;
mod records;
mod watch;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    os::fd::AsRawFd,
    time::Duration,
};

use nvcap_common::{self as c, Proc, proc_flag};

use super::{
    arm::{self, Armed},
    assemble::{Assembler, Gathered},
    discover::{self, Way},
    error::{Error, Result, remedy_for_refusal},
    given::Given,
    load::{LoadOptions, Loaded},
    own_put::OwnPut,
    perf::Life,
    space::{ChannelState, Search, SpaceState, doorbell_of},
};
use crate::{
    driver::{self, Change},
    record::{At, ChannelId, CpuVa, Device, Loss, Lost, Process, Record},
    source::memory::{find, maps, process::Memory},
};

/// Ids of channels that the driver model did not give.
const OWN_IDS: u32 = 1 << 24;
/// How often the channels are looked at from outside, ns.
const PATROL_NS: u64 = 200_000_000;

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
    /// Tells the user of something that is no record.
    pub notice: fn(&str),
    /// GP_GET is read at every doorbell, which costs a further read over PCIe, not at every 16th of a channel.
    pub gp_get: bool,
    /// GP_PUT is always read from USERD, never taken from the process's own copy of it.
    pub no_own_put: bool,
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
    /// Doorbells that nothing new was found for, by space, doorbell and token.
    orphans: HashMap<(u32, u64, u32), u64>,
    memories: HashMap<u32, Memory>,
    processes: BTreeSet<u32>,
    own_ids: u32,
    next_patrol: u64,
    reported: c::Stats,
    reported_left_out: u64,
    /// When the modules were last looked at, and from when to when another driver was loaded that nobody watched.
    looked_at_modules: u64,
    unwatched: Option<(u64, u64)>,
    uvm_major: u32,
    nvidia_major: u32,
    secret: u64,
    out: Vec<Record>,
    /// What was taken out of the ring buffer and is still to be acted on.
    pending: VecDeque<records::Todo>,
    /// Channels that were never looked at from outside.
    unpeeked: Vec<u32>,
    /// Submissions found by a look at all channels, by thread, until its end tells whose doorbell it was.
    held: HashMap<u32, Vec<Gathered>>,
    /// The token of a thread's newest trap at a store that was not known then, with the trap's time.
    tokens_at: HashMap<u32, (u64, u32)>,
    /// The channel that was last found moved at a token's doorbell, by space and doorbell, and how often in a row.
    guesses: HashMap<(u32, u64, u32), (u32, u32)>,
    /// The register that holds the token at a store, by space and address.
    sites: HashMap<(u32, u64), u32>,
    /// What was seen around the registers at a store, by space and address, until that has told enough.
    own_puts: HashMap<(u32, u64), OwnPut>,
    /// Traps at a store, by space and address, that could not be decoded.
    undecoded: HashMap<(u32, u64), u32>,
    /// Keys in XLATE, by address space in the process and for the GPU.
    xlates: HashMap<(u32, Option<driver::Space>), u32>,
    /// Breakpoints that an exec or their process's end has ended. They stay open: closing them would end those that
    /// children inherited.
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
        discover::attach_module_load(&mut loaded.bpf);
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
            looked_at_modules: 0,
            unwatched: None,
            uvm_major: 0,
            nvidia_major: 0,
            secret: secret(),
            out: Vec::new(),
            pending: VecDeque::new(),
            unpeeked: Vec::new(),
            held: HashMap::new(),
            tokens_at: HashMap::new(),
            guesses: HashMap::new(),
            sites: HashMap::new(),
            own_puts: HashMap::new(),
            undecoded: HashMap::new(),
            xlates: HashMap::new(),
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
            self.install_found(space, pid, &found, found.put)?;
        }
        self.spaces.entry(space).or_default().search = Some(Search {
            next: 0,
            pause: channels::SEARCH_PAUSE_NS.0,
        });
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
        let why = why.to_string();
        self.lost(pid, None, Lost::Blind { why });
    }

    /// Tells that something is missing, as of now.
    fn lost(&mut self, pid: u32, channel: Option<ChannelId>, what: Lost) {
        let at = seen_now(pid);
        self.out.push(Record::Loss(Loss { at, channel, what }));
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
                    let before = self.unpeeked.len();
                    self.unpeeked.retain(|i| *i != index);
                    if self.unpeeked.len() < before {
                        self.peek(index);
                    }
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
            self.modules(self.looked_at_modules)?;
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
        self.unknown_channels();
        to.append(&mut self.out);
        let stats = self.loaded.stats();
        log::debug!(
            "GP_PUT was taken from the process's own copy of GP_PUT at {} looks of {} doorbells",
            stats.own_put,
            stats.hits
        );
        Totals {
            stats,
            kernel_hits: hits,
        }
    }
}

/// Now, of a process and none of its threads: what this program sees by itself.
fn seen_now(pid: u32) -> At {
    At {
        time_ns: arm::now(),
        pid,
        tid: 0,
    }
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
