//! A live trace: reads the ring buffer, keeps breakpoints and channel table consistent with the driver model, and gives records.
//!
//! Once a channel is in the table, the BPF programs capture without this program's help. This program puts channels into the
//! table, teaches the programs stores and tokens, and fetches entries that no doorbell fetched (a full ring buffer, a hit that the
//! machine lost, the end of the trace). One thread does all of this, so that the order of a channel's records is the order of its
//! ring.

mod arming;
mod attach;
mod bpf_maps;
mod breakpoints;
mod capture;
mod catch_up;
mod channel_table;
mod follow_mode;
mod lag;
mod life;
mod looks;
mod missed;
mod mode;
mod modules;
mod moves;
mod moving;
mod named_channels;
mod outbox;
mod patrol;
mod records;
mod ring_search;
mod rung;
mod spaces;
mod stacks;
mod store_sites;
mod stores;
mod stray_traps;
mod taught_stores;
mod teaching;
mod token_evidence;
mod token_learner;
mod translations;
mod unattributed;

use std::{
    os::fd::{AsFd as _, AsRawFd},
    path::PathBuf,
    thread,
    time::Duration,
};

use nvcap_common as c;

pub use self::mode::Mode;
use self::{
    breakpoints::Breakpoints,
    capture::{Capture, copied_out::Learning},
    missed::MissedLives,
    modules::Modules,
    moves::Moves,
    named_channels::NamedChannels,
    patrol::Patrol,
    ring_search::RingSearch,
    store_sites::StoreSites,
    stores::StoppedStores,
    stray_traps::StrayTraps,
    taught_stores::TaughtStores,
};
use super::{
    discover::{self, Discovery, Way},
    known_stores::Cache,
    load::{LoadOptions, Loaded},
    stepping, watchpoints,
};
use nvcap_decode::{
    driver,
    record::{ChannelId, CpuVa, Record},
    wire::GpuVa,
};
use nvcap_process::{
    channels_file::ChannelsFile,
    error::{Error, Result},
};
use nvcap_process::{procfs, rm, stacks::queue::StackQueue};

/// Options of the trap.
#[derive(Clone, Debug)]
pub struct TrapOptions {
    /// The way of learning mappings and ioctls; `None` tries all ways.
    pub discover: Option<Way>,
    /// True if child processes are traced too.
    pub follow: bool,
    /// True if doorbells are watched. If not, no breakpoint is set and no ring is read: only ioctls, mappings and processes are
    /// recorded.
    pub watch: bool,
    /// Channels and doorbells named by the user.
    pub named: ChannelsFile,
    /// Ring buffer size, bytes (a power of two).
    pub buffer: u32,
    /// True to do without bpf_loop.
    pub no_bpf_loop: bool,
    /// Shows the user a message that is no record.
    pub notice: fn(&str),
    /// True if GP_GET is read at every doorbell of a channel instead of every 16th. Each read is one more over PCIe.
    pub gp_get: bool,
    /// Queue for the stacks at doorbells. Without it no stacks are taken.
    pub stacks: Option<StackQueue>,
    /// True if GP_PUT is always read from USERD, never taken from the process's own copy.
    pub no_cached_put: bool,
    /// True if threads are stopped at every known store before it rings a doorbell. Otherwise they are only where debug registers
    /// are lacking.
    pub precommit: bool,
    /// Choice of the doorbells that are captured.
    pub mode: Mode,
    /// File that passes known stores from trace to trace; `None` for none.
    pub store_cache: Option<PathBuf>,
}

/// Length of a wait that the next record ends. Waking a reader costs the traced program a microsecond or two, which does not
/// matter to a program that was quiet for as long.
const SLEEP: Duration = Duration::from_millis(10);

/// Time for which records are taken out of the ring buffer before they are passed on, ns.
const DRAIN_NS: u64 = 2_000_000;

/// The longest wait while rings of unwatched doorbells are looked at.
const LOOK: Duration = Duration::from_millis(1);

/// A live trace. The first lines of each part say what it holds, and its invariant.
pub(crate) struct Session {
    /// Path of submissions, with the channels and address spaces that it needs.
    capture: Capture,
    breakpoints: Breakpoints,
    sites: StoreSites,
    stores: StoppedStores,
    taught: TaughtStores,
    moves: Moves,
    duty: mode::Duty,
    search: RingSearch,
    named: NamedChannels,
    missed: MissedLives,
    modules: Modules,
    patrol: Patrol,
    lag: lag::Lag,
    traps: StrayTraps,
    learning: Learning,
    options: TrapOptions,
    refused: Vec<(Way, Error)>,
}

/// Totals of the trace, at its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Counters of the BPF programs.
    pub stats: c::Stats,
    /// Breakpoint hits that the kernel counted.
    pub kernel_hits: u64,
    /// Estimate for the whole time, with `--duty`.
    pub duty: Option<nvcap_decode::ledger::Duty>,
    /// True if, for each process that a SIGTRAP ended, the origin of that SIGTRAP was reported.
    pub trap_deaths_are_told: bool,
}

impl Session {
    /// Loads everything and attaches the discovery way. Traces nothing yet.
    ///
    /// # Errors
    /// When the kernel refuses, with the remedy.
    pub(crate) fn new(mut options: TrapOptions) -> Result<Self> {
        let loading = LoadOptions {
            buffer: options.buffer,
            no_bpf_loop: options.no_bpf_loop,
            stack_bytes: options.stacks.as_ref().map_or(0, |q| q.stack_bytes),
            stack_every: options.stacks.as_ref().map_or(1, |q| q.every),
            mode: options.mode.of_programs(),
        };
        let asked = options.discover;
        let (mut bpf, shared, (processes, signals, discovery)) =
            Loaded::beside(loading, &discover::programs(asked), |programs, maps| {
                thread::scope(|scope| {
                    let ahead = discover::ahead(scope, maps, asked);
                    let processes = discover::attach_process(programs);
                    discover::attach_module_load(programs);
                    let signals = discover::attach_signals(programs);
                    let discovery = discover::attach(programs, maps, asked, ahead);
                    log::debug!("processes and the driver's calls are followed");
                    (processes, signals, discovery)
                })
            })?;
        stepping::check(bpf.doorbell.as_fd())?;
        processes?;
        let traps = StrayTraps::new(signals);
        // Names given by the user need no discovery, but more channels may come; then a refusal is no failure.
        let refused = match discovery {
            Ok((discovery, refused)) => {
                bpf.discovery = Some(discovery);
                refused
            }
            Err(_) if asked.is_none() && !options.named.is_empty() => Vec::new(),
            Err(e) => return Err(e),
        };
        let driver_version = rm::running_version();
        for (request, size) in driver::uvm_argument_sizes() {
            bpf.set_uvm_size(request, size);
        }
        let mut modules = Modules::new(options.gp_get);
        if let Some(config) = modules.refresh_majors() {
            bpf.set_config(config)?;
        }
        let model = driver::Model::new(driver::ModelOptions { driver_version });
        let mut capture = Capture::new(bpf, shared, model, options.watch, options.stacks.clone());
        capture.skips = options.mode.skips();
        log::trace!("processes can be attached to");
        Ok(Self {
            capture,
            breakpoints: Breakpoints::default(),
            sites: StoreSites::new(!options.no_cached_put),
            stores: StoppedStores::default(),
            moves: Moves::default(),
            taught: TaughtStores::new(options.store_cache.take().map(Cache::new)),
            duty: mode::Duty::new(watchpoints::now() ^ u64::from(std::process::id()) << 32),
            search: RingSearch::default(),
            named: NamedChannels::new(std::mem::take(&mut options.named)),
            missed: MissedLives::default(),
            modules,
            patrol: Patrol::default(),
            lag: lag::Lag::default(),
            traps,
            learning: Learning::default(),
            options,
            refused,
        })
    }

    /// Returns the discovery way in use, and the reasons why those before it were refused.
    pub(crate) fn way(&self) -> (Option<Way>, &[(Way, Error)]) {
        let discovery = self.capture.bpf.discovery.as_ref();
        (discovery.map(Discovery::way), &self.refused)
    }

    /// Returns the name of the doorbell program that runs.
    pub(crate) fn doorbell_program(&self) -> &'static str {
        self.capture.bpf.doorbell_name
    }

    /// Waits up to `wait` for something to happen and appends the records to `to`.
    ///
    /// # Errors
    /// When the maps can no longer be updated.
    pub(crate) fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()> {
        let got = self.drain_until(watchpoints::now() + DRAIN_NS)?;
        if !got.all {
            // Whoever shows the records is not to wait for the rest, nor for what is done once all is known.
            self.capture.out.append_to(to);
            return Ok(());
        }
        let wait = match self.stores.is_looking() {
            true => wait.min(LOOK),
            false => wait.min(self.options.mode.longest_wait()),
        };
        if got.taken == 0 {
            let mut poll = libc::pollfd {
                fd: self.capture.bpf.records.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // Said before poll looks for data: what comes after its look wakes it.
            let sleeps = wait >= SLEEP;
            if sleeps {
                self.capture.bpf.asleep.set(true);
            }
            sleep(&mut poll, wait);
            if sleeps {
                self.capture.bpf.asleep.set(false);
            }
            self.drain()?;
        }
        let now = watchpoints::now();
        self.look_at_named(now);
        self.look_at_unwatched(now);
        self.follow_mode(now);
        self.capture.release_old(now);
        if self.patrol.is_due(now) {
            self.follow_modules(self.modules.looked_at())?;
            self.capture.bpf.flush_log();
            self.look_at_all();
            self.rest_or_wake(now);
            self.look_for_missed()?;
            self.search_put_off()?;
            self.free_spaces(now);
            self.taught.known.save();
        }
        self.capture.out.append_to(to);
        Ok(())
    }

    /// Returns the process's address of the memory at a GPU address of a channel.
    pub(crate) fn locate(&self, channel: ChannelId, at: GpuVa) -> Option<CpuVa> {
        self.capture.locate(channel, at)
    }

    /// True while a traced process lives.
    pub(crate) fn is_alive(&self) -> bool {
        !self.capture.spaces.processes().is_empty()
    }

    /// Ends the trace: removes breakpoints, takes the remaining records, and looks at every ring for the last time.
    pub(crate) fn finish(&mut self, to: &mut Vec<Record>) -> Totals {
        self.end_window();
        self.taught.known.save();
        let hits = self.breakpoints.finish();
        let _ = self.drain();
        let capture = &mut self.capture;
        capture.flush_all();
        for index in capture.table.indexes() {
            if capture.table[index].live {
                capture.catch_up(index);
                capture.count_unfetched(index);
            }
        }
        self.look_at_all();
        // Who ended meanwhile was not read to the end.
        let _ = self.drain();
        self.tell_unread_of_gone();
        self.capture.tell_all_skipped();
        let (entries, doubtful) = self.capture.entries_of_all();
        self.report_unrung(|_| true);
        self.report_never_there();
        self.report_unknown_channels(|_| true);
        self.capture.out.append_to(to);
        let stats = self.capture.bpf.stats();
        self.capture.stacks.tell_lost(&stats);
        log::debug!(
            "GP_PUT was taken from the process's own copy of GP_PUT at {} looks of {} doorbells; {} scans",
            stats.cached_put,
            stats.hits,
            stats.scans
        );
        Totals {
            stats,
            kernel_hits: hits,
            duty: self.duty.estimate(watchpoints::now(), entries, doubtful),
            trap_deaths_are_told: self.traps.are_all_told(stats.stray),
        }
    }
}

/// Waits for the descriptor to become readable, but no longer than `wait`.
fn sleep(poll: &mut libc::pollfd, wait: Duration) {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(wait.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    };
    // SAFETY: one pollfd and one timespec; without a mask of signals.
    unsafe { libc::ppoll(poll, 1, &raw const time, std::ptr::null()) };
}

/// The name of a thread.
fn comm_of(pid: u32, tid: u32) -> Option<String> {
    procfs::name(pid, Some(tid))
}
