//! `nvcap dump`: takes, decodes and analyses one look at processes. A process costs milliseconds and is neither stopped nor
//! changed.

pub mod recorded;
mod stacks;
pub mod xids;

use nvcap_decode::hang::{EntryTarget, RingPlace, RingSize, TokenFrom};
use nvcap_decode::record::CpuVa;
use nvcap_process::procfs;
use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use nvcap_decode::decode::{
    Decoder, Places,
    defaults::Chip,
    event::{ChipBy, Engine},
};
use nvcap_decode::hang::{
    self, ChannelFacts, ChannelState, ProcessReport, Progress, Report, Root, Values,
};
use nvcap_decode::record::{At, ChannelId, Fault, FaultSource, Kernel, QmdCopy, Record, Xid};
use nvcap_decode::wire::GpuVa;
use nvcap_process::clock;
use nvcap_process::memory::{
    captured::{ChannelSnapshot, KnownRing, SnapshotOptions},
    chip,
    decoded::{ByMaps, UndecodedChannel, decoded, decoder, read_values},
    maps, scan,
    snapshot::{self, Snapshot},
};
use nvcap_process::procfs::{
    environ::{self, Environment},
    mem::Memory,
    tasks::{self, Task},
};

/// Time for which the channels of a process are read again while something of them is missing: that in which a PyTorch training on an H200 fills a
/// ring (60 entries a ms), for its pushbuffer memory starts over about as often.
const PATIENCE: Duration = Duration::from_millis(18);

/// Number of fetched entries that are read before the unfetched ones: running work is among them.
const BEFORE: u32 = 64;

/// Finds the kernels of a process's programs, each with the registers of its launch, by the process's id.
pub(crate) type FindKernels = fn(u32, &[(GpuVa, Option<u32>)]) -> Vec<Kernel>;

/// Options of a look at processes.
#[derive(Clone, Debug)]
pub struct DumpOptions {
    /// Number of entries of each channel that are read, beside the unfetched ones.
    pub last: u32,
    /// Thoroughness of the search for channels.
    pub effort: scan::Effort,
    /// The chip, if the user named it.
    pub chip: Option<&'static Chip>,
    /// Channels that the user names.
    pub known_rings: Vec<KnownRing>,
    /// True if the stacks of the threads are read.
    pub stacks: bool,
    /// Gives the contents that a process, by its id, wrote to GPU memory before its rings' oldest entries; called when a
    /// launch needs them.
    pub qmd_copies: fn(u32) -> Vec<QmdCopy>,
    /// Gives the kernels of a process's programs, each with the registers of its launch.
    pub kernels: FindKernels,
}

impl DumpOptions {
    fn of_process(&self, before: u32) -> SnapshotOptions<'_> {
        SnapshotOptions {
            last: self.last,
            before,
            effort: self.effort,
            known_rings: &self.known_rings,
            patience: PATIENCE,
        }
    }
}

/// Reason why a process is not in a look.
#[derive(Debug)]
pub enum Refused {
    /// There is no such process, or no right to inspect it.
    Error(io::Error),
    /// The process has none of the driver's files open or mapped.
    NoGpu,
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Error(error)
    }
}

/// One look at one process that uses a GPU. A process with channels named by the user counts as one, whatever its files are
/// called.
fn take(pid: u32, first: u32, options: SnapshotOptions<'_>) -> Result<(Memory, Snapshot), Refused> {
    let (memory, snapshot) = snapshot::take(pid, first, options)?;
    let named = !snapshot.channels.is_empty() || !options.known_rings.is_empty();
    if named || maps::uses_gpu(pid, &snapshot.areas) {
        return Ok((memory, snapshot));
    }
    // A process that has ended maps nothing: that does not mean that it used no GPU.
    if snapshot.areas.is_empty() && procfs::has_ended(pid) {
        return Err(io::Error::from(io::ErrorKind::NotFound).into());
    }
    Err(Refused::NoGpu)
}

/// One look at several processes.
pub struct Look {
    /// Report of the look.
    pub report: Report,
    /// Processes that could not be read: the id of each, and the reason.
    pub refused: Vec<(u32, Refused)>,
    /// Data that the look read.
    taken: Taken,
}

impl Look {
    /// Makes the fault of a process from the number of its error and the message that the driver wrote about it. Its suspects are the works of the
    /// channels that the driver has stopped; where none is known to be, those of all channels but copy engines'.
    pub fn fault(&self, pid: u32, code: u32, message: Option<Xid>) -> Fault {
        let of = |p: &&ProcessReport| p.pid == pid;
        let facts = { self.report.processes.iter().filter(of) }.flat_map(|p| &p.channels);
        let stopped: Vec<ChannelId> = { facts.filter(|f| f.error.is_some()) }
            .map(|f| f.channel)
            .collect();
        let mut fault = Fault {
            at: At::of_process(self.report.time_ns, pid),
            source: match (&message, stopped.is_empty()) {
                (None, _) => FaultSource::Notifier,
                (Some(_), true) => FaultSource::KernelLog,
                (Some(_), false) => FaultSource::Both,
            },
            code,
            channel: stopped.first().copied(),
            group: stopped.get(1..).unwrap_or_default().to_vec(),
            assumed: true,
            token: None,
            notification: None,
            message: message.map(Box::new),
            memory: None,
            suspects: Vec::new(),
            only_these: true,
        };
        let is_meant = |c: &&ChannelState| match stopped.is_empty() {
            true => !matches!(c.engine, Engine::Copy(_)),
            false => stopped.contains(&c.id),
        };
        let channels = { self.report.rings.channels.iter() }.filter(|c| c.pid == pid);
        let mut any = false;
        for channel in channels.filter(is_meant) {
            any = true;
            let Some(judged) = self.report.analysis.of(channel.id) else {
                fault.only_these = false;
                continue;
            };
            let open = hang::unended(channel, judged, &self.taken.semaphores);
            fault.only_these &= open.is_whole;
            let works = { open.works.iter() }
                .filter_map(|(step, op)| hang::suspect(channel.id, step.index, op));
            fault.suspects.extend(works);
        }
        fault.only_these &= any;
        fault
    }
}

/// An error of a GPU whose process no message names.
pub(crate) fn fault_of_gpu(xid: Xid) -> Fault {
    let look = Look {
        report: Report {
            time_ns: clock::now(),
            ..Report::default()
        },
        refused: Vec::new(),
        taken: Taken::default(),
    };
    look.fault(0, xid.code, Some(xid))
}

/// Data of a look.
#[derive(Default)]
struct Taken {
    processes: Vec<OfProcess>,
    kernels: Vec<Kernel>,
    semaphores: Values,
    /// Time at which the semaphores were read, ns.
    read_ns: u64,
}

/// Data that was read of one process.
struct OfProcess {
    memory: Memory,
    snapshot: Snapshot,
    /// Images that a launch needed, if one did.
    qmd_copies: Option<Vec<QmdCopy>>,
}

/// Looks at processes together, one after the other.
pub fn look(pids: &[u32], options: &DumpOptions) -> Look {
    let start = Instant::now();
    let mut seen = look_back(pids, options, BEFORE);
    // The release that a channel waits for may lie further back: read everything before reporting it as missing.
    let blocked = &seen.report.analysis.blocked;
    if blocked
        .iter()
        .any(|b| !matches!(b.root, Root::Work { .. } | Root::Unknown))
    {
        seen = look_back(pids, options, u32::MAX);
    }
    let look = &mut seen.report;
    if options.stacks {
        look.processes.iter_mut().for_each(stacks::add);
    }
    let xids = match xids::Xids::open() {
        Ok(mut log) => {
            let all = xids::of_log(&mut log);
            if let Some(process) = look.processes.last_mut() {
                process.notes.extend(log.unread());
            }
            all
        }
        Err(why) => {
            // Once is enough.
            if let Some(process) = look.processes.last_mut() {
                process.notes.push(why);
            }
            Vec::new()
        }
    };
    for process in &mut look.processes {
        let (xids, note) = xids::of_process(&xids, process.pid, &look.rings.channels);
        process.xids = xids;
        process.notes.extend(note);
    }
    look.took_ns = start.elapsed().as_nanos() as u64;
    seen
}

fn look_back(pids: &[u32], options: &DumpOptions, before: u32) -> Look {
    let mut look = Report {
        time_ns: clock::now(),
        ..Report::default()
    };
    let mut refused = Vec::new();
    let mut decoder = decoder(options.chip);
    if options.chip.is_none() {
        for (minor, chip) in chip::chips() {
            decoder.chip(Some(minor), chip, ChipBy::Pci);
        }
    }
    let mut taken = Taken::default();
    let mut next = 0;
    for pid in pids {
        match take(*pid, next, options.of_process(before)) {
            Ok((memory, snapshot)) => {
                next += snapshot.channels.len() as u32;
                let places = ByMaps::new(&snapshot.areas);
                let seen: Vec<UndecodedChannel<'_>> =
                    snapshot.channels.iter().map(Into::into).collect();
                let qmd_copies = || (options.qmd_copies)(*pid);
                let (channels, qmd_copies) =
                    decoded_with_qmd_copies(&mut decoder, *pid, &seen, &places, qmd_copies);
                look.rings.channels.extend(channels);
                look.processes.push(process(&snapshot));
                taken.processes.push(OfProcess {
                    memory,
                    snapshot,
                    qmd_copies,
                });
            }
            Err(e) => refused.push((*pid, e)),
        }
    }
    // Before the names, which take long: the values are to be of the moment at which the rings were read.
    let semaphores = hang::addresses(&look.rings);
    for of in &taken.processes {
        let places = scan::Places::new(&of.snapshot.areas);
        let pid = of.snapshot.pid;
        read_values(&of.memory, &places, pid, &semaphores, &mut taken.semaphores);
    }
    taken.read_ns = clock::now();
    for of in &mut taken.processes {
        let channels = &mut look.rings.channels;
        let notes = catch_up(of, channels, &taken.semaphores);
        let mut processes = look.processes.iter_mut();
        if let Some(process) = processes.find(|p| p.pid == of.snapshot.pid) {
            process.notes.extend(notes);
        }
    }
    taken.kernels = name_kernels(&mut look.rings.channels, options);
    look.analysis = hang::analyse(&look.rings, &taken.semaphores);
    Look {
        report: look,
        refused,
        taken,
    }
}

/// Reads GP_GET of a process's channels again, behind the semaphores, which were read later than the rings: what was fetched meanwhile is not pending.
/// Returns a note of the channels to which more was submitted meanwhile.
fn catch_up(of: &mut OfProcess, states: &mut [ChannelState], values: &Values) -> Option<String> {
    let mut came = Vec::new();
    for seen in &mut of.snapshot.channels {
        let state = states.iter_mut().find(|s| s.id == seen.channel.id);
        let now = scan::get_put(&of.memory, seen.found.userd);
        let (Some(state), Ok((get, put))) = (state, now) else {
            continue;
        };
        state.fetched_since(get, hang::done(state, values));
        seen.get = state.get;
        if put != seen.put {
            came.push(state.id.0.to_string());
        }
    }
    (!came.is_empty()).then(|| {
        format!(
            "more was submitted while this was read, and is not shown: channels {}",
            came.join(", ")
        )
    })
}

/// Looks at processes, and returns the look as records, for the pipeline that all sources feed. Also returns the processes that could not be read.
#[must_use]
pub fn records(pids: &[u32], options: &DumpOptions) -> (Vec<Record>, Vec<(u32, Refused)>) {
    let (mut records, mut refused, mut next) = (Vec::new(), Vec::new(), 0);
    for pid in pids {
        match take(*pid, next, options.of_process(0)) {
            Ok((_, snapshot)) => {
                next += snapshot.channels.len() as u32;
                let qmd_copies = (options.qmd_copies)(*pid);
                records.extend(qmd_copies.into_iter().map(|i| Record::QmdCopy(Box::new(i))));
                records.extend(snapshot.records());
            }
            Err(e) => refused.push((*pid, e)),
        }
    }
    (records, refused)
}

/// Gives launches their kernels, which are returned.
fn name_kernels(channels: &mut [ChannelState], options: &DumpOptions) -> Vec<Kernel> {
    let mut programs: BTreeMap<u32, BTreeMap<GpuVa, Option<u32>>> = BTreeMap::new();
    for channel in &*channels {
        for launch in channel.launches() {
            if let Some(program) = launch.program {
                let of = programs.entry(channel.pid).or_default();
                of.insert(program, launch.registers);
            }
        }
    }
    let mut found = Vec::new();
    let mut kernels = HashMap::new();
    for (pid, programs) in programs {
        let programs: Vec<_> = programs.into_iter().collect();
        for kernel in (options.kernels)(pid, &programs) {
            found.push(kernel.clone());
            kernels.insert((pid, kernel.program), Arc::new(kernel));
        }
    }
    set_kernels(channels, &kernels);
    found
}

/// Gives launches their kernels, by process and program.
fn set_kernels(channels: &mut [ChannelState], kernels: &HashMap<(u32, GpuVa), Arc<Kernel>>) {
    for channel in channels {
        let pid = channel.pid;
        for launch in channel.launches_mut() {
            if let Some(kernel) = launch.program.and_then(|p| kernels.get(&(pid, p))) {
                launch.set_kernel(kernel);
            }
        }
    }
}

/// Decodes as [`decoded`] does, then looks for graphs whose QMDs were written before the rings' oldest entries in memory images.
/// Returns those too, where they were looked for.
fn decoded_with_qmd_copies(
    decoder: &mut Decoder,
    pid: u32,
    channels: &[UndecodedChannel<'_>],
    places: &dyn Places,
    qmd_copies: impl FnOnce() -> Vec<QmdCopy>,
) -> (Vec<ChannelState>, Option<Vec<QmdCopy>>) {
    let states = decoded(decoder, pid, channels, places);
    if !states.iter().any(ChannelState::has_unresolved) {
        return (states, None);
    }
    let qmd_copies = qmd_copies();
    if qmd_copies.is_empty() {
        return (states, Some(qmd_copies));
    }
    decoder.forget_process(pid);
    for copy in &qmd_copies {
        decoder.qmd_copy(pid, copy.address, &copy.bytes);
    }
    (decoded(decoder, pid, channels, places), Some(qmd_copies))
}

fn thread(task: Task) -> hang::Thread {
    hang::Thread {
        tid: task.tid,
        name: task.name,
        state: task.state,
        ticks: task.ticks,
        wchan: task.wchan,
        native: None,
        python: None,
        syscall: task.syscall.map(|s| s.number),
        call: task.syscall.and_then(|s| tasks::call_name(s.number)),
        argument: task.syscall.map(|s| s.first),
    }
}

/// The variables that launchers of jobs tell a process its rank by: PyTorch's and others, Open MPI, MPICH and its kin, PMIx, Slurm.
const RANKS: [&str; 5] = [
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
];

/// The variables with the number of ranks of the job, of the same launchers.
const SIZES: [&str; 4] = [
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_NTASKS",
];

/// A process's rank, and the number of ranks of its job, as launchers tell it.
#[must_use]
pub fn rank_in(environment: &Environment) -> Option<(u32, Option<u32>)> {
    let first = |names: &[&str]| {
        let mut values = names.iter().map(|name| environment.value(name));
        values.find_map(|value| value?.trim().parse().ok())
    };
    Some((first(&RANKS)?, first(&SIZES)))
}

/// Returns a process's rank and the number of ranks; where there is none to be found, the reason in words.
fn rank(environment: &Environment) -> Result<(u32, Option<u32>), Option<String>> {
    rank_in(environment).ok_or_else(|| {
        let more = format!(
            "its environment is longer than {} MiB: its rank was not looked for in the rest",
            environ::MOST >> 20
        );
        environment.cut.then_some(more)
    })
}

fn process(snapshot: &Snapshot) -> ProcessReport {
    let threads = tasks::tasks(snapshot.pid).unwrap_or_default();
    let windows = snapshot.windows.iter().map(|w| {
        format!(
            "pushbuffers at {:#x} for the GPU were read at {:#x} of the process: the only place where the memory of the newest \
             entries is all methods",
            w.gpu, w.cpu
        )
    });
    let environment = Environment::of_process(snapshot.pid).unwrap_or_default();
    let (rank, ranks, unknown) = match rank(&environment) {
        Ok((rank, ranks)) => (Some(rank), ranks, None),
        Err(why) => (None, None, why),
    };
    let notes = snapshot.notes.iter().cloned().chain(windows);
    ProcessReport {
        pid: snapshot.pid,
        name: snapshot.name.clone(),
        rank,
        ranks,
        python: None,
        xids: Vec::new(),
        faults: Vec::new(),
        threads: threads.into_iter().map(thread).collect(),
        channels: snapshot.channels.iter().map(facts).collect(),
        unused: snapshot.unused,
        notes: notes.chain(unknown).collect(),
        has_ended: false,
        finding_ns: snapshot.finding.as_nanos() as u64,
        reading_ns: snapshot.reading.as_nanos() as u64,
    }
}

fn facts(seen: &ChannelSnapshot) -> ChannelFacts {
    let proof = seen.found.proof;
    let by_notifier = seen.notifier.map(|n| n.token) == seen.channel.token;
    ChannelFacts {
        channel: seen.channel.id,
        ring: CpuVa(seen.found.ring),
        userd: CpuVa(seen.found.userd),
        place: match proof.place {
            scan::Place::Habit => RingPlace::Habit,
            scan::Place::Alike => RingPlace::Alike,
            scan::Place::Sought => RingPlace::Sought,
            scan::Place::Given => RingPlace::Given,
        },
        size: match proof.size {
            scan::Size::Habit => RingSize::Habit,
            scan::Size::Wrapped => RingSize::Wrapped,
            scan::Size::Room => RingSize::Room,
        },
        target: match proof.target {
            scan::Target::Unused => EntryTarget::Unused,
            scan::Target::Parses => EntryTarget::Parses,
            scan::Target::Readable => EntryTarget::Readable,
            scan::Target::Elsewhere => EntryTarget::Elsewhere,
        },
        moved: proof.moved,
        token_from: seen.channel.token.map(|_| {
            if by_notifier {
                TokenFrom::Notifier
            } else {
                TokenFrom::Given
            }
        }),
        error: seen.notifier.and_then(|n| n.error),
        overwritten: seen.overwritten,
        recycled: seen.recycled,
        unreadable: seen.unreadable,
        elsewhere: seen.elsewhere,
        ring_gone: seen.ring_gone,
    }
}

/// Returns the progress between two looks, the second of which began `passed` after the first.
#[must_use]
pub fn compare(before: &Report, now: &Report, passed: Duration) -> Progress {
    hang::compare(
        (&before.rings, &before.analysis),
        (&now.rings, &now.analysis),
        passed.as_nanos() as u64,
        same_channel(before, now),
    )
}

/// Tells whether two channels of different looks are the same one.
fn same_channel(before: &Report, now: &Report) -> impl Fn(usize, usize) -> bool {
    let keys = |look: &Report| -> Vec<(u32, CpuVa)> {
        let of = |id: ChannelId| look.facts(id).map_or(CpuVa(0), |f| f.userd);
        let channels = look.rings.channels.iter();
        channels.map(|c| (c.pid, of(c.id))).collect()
    };
    let (before, now) = (keys(before), keys(now));
    move |b, n| matches!((before.get(b), now.get(n)), (Some(b), Some(n)) if b == n)
}
