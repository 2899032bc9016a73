//! Loading the BPF object: offsets, maps, and the doorbell program that this kernel accepts.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
};

use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, HashMap, Map, MapData, ProgramArray, RingBuf},
    programs::{Program, RawTracePoint},
};
use nvcap_common::{
    Birth, Config, Mode, Offsets, Proc, Ranges, SiteKey, SiteValue, Stats, TokenKey, TokenValue,
};

use super::{
    btf::Btf,
    discover::Discovery,
    fentry::Maps,
    map_ops::Tables,
    perf,
    program::{BpfPrograms, DOORBELL, TABLE, beside_doorbell, doorbell, failed, perf_program},
    pythons::Pythons,
    shared::{Asleep, Shared},
};
use nvcap_process::confine;
use nvcap_process::error::{Error, Result, remedy_for_refusal};

/// Gives a plain type of `nvcap_common` the marker that aya asks for.
macro_rules! pod {
    ($($name:ident($inner:ty)),*) => { $(
        #[repr(transparent)]
        #[derive(Clone, Copy)]
        struct $name($inner);
        // SAFETY: the inner types are repr(C), without padding, valid for any bits.
        unsafe impl Pod for $name {}
    )* };
}
pod!(
    PodConfig(Config),
    PodOffsets(Offsets),
    PodProc(Proc),
    PodMode(Mode)
);

/// The loaded programs and their maps.
pub(crate) struct Loaded {
    /// The object, whose programs the discovery ways attach.
    pub bpf: Ebpf,
    /// The discovery way in use.
    pub discovery: Option<Discovery>,
    /// Maps by name, for programs that aya cannot load.
    pub maps: Maps,
    /// The ring buffer.
    pub records: RingBuf<MapData>,
    /// Ring buffer of stacks.
    pub stacks: RingBuf<MapData>,
    /// Tables that lead the BPF programs to Python frames, if stacks are taken.
    pub pythons: Option<Pythons>,
    /// Doorbell program: `doorbell_loop` or `doorbell_tail`.
    pub doorbell: OwnedFd,
    /// Name of the doorbell program.
    pub doorbell_name: &'static str,
    config: Array<MapData, PodConfig>,
    tables: Tables,
    procs: HashMap<MapData, u32, PodProc>,
    next_space: Array<MapData, u64>,
    /// Flag that tells the BPF programs that this thread sleeps until it is woken.
    pub asleep: Asleep,
    uvm_sizes: Array<MapData, u32>,
    _more: ProgramArray<MapData>,
    log: Option<aya_log::EbpfLogger<&'static dyn log::Log>>,
}

/// Options of loading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadOptions {
    /// Size of the ring buffer: a power of two, in bytes.
    pub buffer: u32,
    /// True to do without bpf_loop even if the kernel has it.
    pub no_bpf_loop: bool,
    /// Bytes of the stack that are taken at each doorbell, a multiple of 4096; 0 for none.
    pub stack_bytes: u32,
    /// Number of doorbells for each stack that is taken.
    pub stack_every: u32,
    /// Choice of the doorbells at which rings are read.
    pub mode: Mode,
}

/// Returns the offsets of everything that the programs read, from the running kernel's BTF.
///
/// # Errors
/// When the kernel has no BTF or lacks a member.
pub(crate) fn offsets(btf: &Btf) -> Result<Offsets> {
    let o = |of: &str, member: &str| btf.offset(of, member);
    #[cfg(target_arch = "x86_64")]
    let (regs, syscalls) = {
        let r = |m: &str| btf.offset("pt_regs", m);
        (
            [r("di")?, r("si")?, r("dx")?, r("r8")?, r("orig_ax")?],
            [16, 9, 11],
        )
    };
    #[cfg(target_arch = "aarch64")]
    let (regs, syscalls) = (
        [0, 8, 16, 32, btf.offset("pt_regs", "syscallno")?],
        [29, 222, 215],
    );
    Ok(Offsets {
        task_pid: o("task_struct", "pid")?,
        task_tgid: o("task_struct", "tgid")?,
        task_files: o("task_struct", "files")?,
        task_signal: o("task_struct", "signal")?,
        task_exit_code: o("task_struct", "exit_code")?,
        signal_live: o("signal_struct", "live")?,
        files_fdt: o("files_struct", "fdt")?,
        fdt_fd: o("fdtable", "fd")?,
        fdt_max: o("fdtable", "max_fds")?,
        file_inode: o("file", "f_inode")?,
        inode_rdev: o("inode", "i_rdev")?,
        vma_start: o("vm_area_struct", "vm_start")?,
        vma_end: o("vm_area_struct", "vm_end")?,
        vma_flags: o("vm_area_struct", "vm_flags")?,
        vma_file: o("vm_area_struct", "vm_file")?,
        task_events: o("task_struct", "perf_event_ctxp")? + second_context(btf),
        context_events: o("perf_event_context", "event_list")?,
        event_entry: o("perf_event", "event_entry")?,
        event_type: o("perf_event", "attr")? + o("perf_event_attr", "type")?,
        event_parent: o("perf_event", "parent")?,
        event_id: o("perf_event", "id")?,
        event_prog: o("perf_event", "prog")?,
        regs,
        syscalls,
    })
}

/// Offset of the context that has breakpoints. Before Linux 6.2 a task has two contexts: of hardware events, and of software events, which
/// include breakpoints.
fn second_context(btf: &Btf) -> u32 {
    match btf.offset("perf_event_pmu_context", "ctx") {
        Ok(_) => 0,
        Err(_) => size_of::<u64>() as u32,
    }
}

impl Loaded {
    /// Loads maps and doorbell program. Also returns the channel table, for the one part of nvcap that writes it.
    ///
    /// # Errors
    /// When the kernel refuses (rights, lockdown, too old), or this program was built without its BPF object.
    pub(crate) fn new(options: LoadOptions) -> Result<(Self, Shared)> {
        let (loaded, shared, ()) = Self::beside(options, &[], |_, _| ())?;
        Ok((loaded, shared))
    }

    /// Loads everything as [`Self::new`] does, and does `work` while the kernel verifies the doorbell program. `work` has all other programs;
    /// those named in `early` are loaded before it.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn beside<T>(
        options: LoadOptions,
        early: &[&str],
        work: impl FnOnce(&mut BpfPrograms, &Maps) -> T,
    ) -> Result<(Self, Shared, T)> {
        if OBJECT.is_empty() {
            return Err(Error::new(
                "loading the BPF programs",
                "this nvcap was built without them",
                "build it with `cargo xtask build`",
            ));
        }
        perf::make_ready();
        let offsets = PodOffsets(offsets(&Btf::kernel()?)?);
        log::debug!("the kernel's types are read");
        let processors = processors()?;
        let mut bpf = object(options, &offsets, processors)?;
        log::debug!("the BPF maps are made");
        // Before the first map is taken out.
        let maps = maps(&bpf)?;
        let (table, done) = beside_doorbell(&mut bpf, options.no_bpf_loop, early, |programs| {
            (table_program(programs), work(programs, &maps))
        });
        let (doorbell, doorbell_name) = doorbell(&mut bpf, options.no_bpf_loop)?;
        log::debug!("{doorbell_name} is loaded");
        let more = tail_call(&mut bpf, doorbell_name)?;
        let shared = channel_table(&bpf)?;
        let asleep = asleep(&bpf)?;
        let pythons = match options.stack_bytes {
            0 => None,
            _ => Some(pythons(&bpf)?),
        };
        let tables = tables(&bpf, table?, processors)?;
        // The programs' log messages; they are read only where NVCAP_LOG asks for them.
        let log = if log::max_level() >= log::Level::Warn {
            aya_log::EbpfLogger::init(&mut bpf).ok()
        } else {
            None
        };
        let loaded = Self {
            discovery: None,
            maps,
            log,
            records: take(&mut bpf, "RECORDS")?,
            stacks: take(&mut bpf, "STACKS")?,
            pythons,
            doorbell,
            doorbell_name,
            config: take(&mut bpf, "CONFIG")?,
            tables,
            procs: take(&mut bpf, "PROCS")?,
            next_space: take(&mut bpf, "NEXT_SPACE")?,
            asleep,
            uvm_sizes: take(&mut bpf, "UVM_SIZES")?,
            _more: more,
            bpf,
        };
        Ok((loaded, shared, done))
    }

    /// Logs the messages of the programs.
    pub(crate) fn flush_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// Descriptor of the doorbell program.
    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Sets the major numbers and the secret.
    pub(crate) fn set_config(&mut self, config: Config) -> Result<()> {
        self.config
            .set(0, PodConfig(config), 0)
            .map_err(|e| failed("writing CONFIG", &e))
    }

    /// Makes a process traced.
    pub(crate) fn set_proc(&mut self, pid: u32, proc: Proc) -> Result<()> {
        self.tables
            .set_proc(pid, proc)
            .map_err(|e| failed("writing PROCS", &e))
    }

    /// Returns the state of a traced process.
    pub(crate) fn proc(&self, pid: u32) -> Option<Proc> {
        self.tables.proc(pid)
    }

    /// Returns every traced process.
    pub(crate) fn procs(&self) -> impl Iterator<Item = (u32, Proc)> + '_ {
        // A removal meanwhile ends the walk early: the next walk finds the rest.
        let all = self.procs.iter().filter_map(std::result::Result::ok);
        all.map(|(pid, p)| (pid, p.0))
    }

    /// Stops tracing a process.
    pub(crate) fn forget_proc(&mut self, pid: u32) {
        // An entry that is not there is as good as removed.
        let _ = self.tables.forget_proc(pid);
    }

    /// Takes a number for a new address space.
    pub(crate) fn new_space(&mut self) -> Result<u32> {
        let last = self
            .next_space
            .get(&0, 0)
            .map_err(|e| failed("reading NEXT_SPACE", &e))?;
        self.next_space
            .set(0, last + 1, 0)
            .map_err(|e| failed("writing NEXT_SPACE", &e))?;
        u32::try_from(last + 1)
            .ok()
            .filter(|s| *s < nvcap_common::MAX_SPACES)
            .ok_or_else(|| {
                Error::new(
                    "tracing a further process",
                    "there have been too many",
                    "start nvcap again",
                )
            })
    }

    /// Sets the channel that a token names.
    pub(crate) fn set_token(&mut self, key: TokenKey, value: TokenValue) -> Result<()> {
        self.tables
            .set_token(key, value)
            .map_err(|e| failed("writing TOKENS", &e))
    }

    /// Forgets a token.
    pub(crate) fn forget_token(&mut self, key: TokenKey) {
        // An entry that is not there is as good as removed.
        let _ = self.tables.forget_token(key);
    }

    /// Sets the facts that are known of a store to a doorbell.
    pub(crate) fn set_site(&mut self, key: SiteKey, value: SiteValue) -> Result<()> {
        self.tables
            .set_site(key, value)
            .map_err(|e| failed("writing SITES", &e))
    }

    /// Forgets a store.
    pub(crate) fn forget_site(&mut self, key: SiteKey) {
        // An entry that is not there is as good as removed.
        let _ = self.tables.forget_site(key);
    }

    /// Sets the address translation with this key.
    pub(crate) fn set_ranges(&mut self, key: u32, ranges: Ranges) -> Result<()> {
        self.tables
            .set_ranges(key, ranges)
            .map_err(|e| failed("writing XLATE", &e))
    }

    /// Returns a thread's birth.
    pub(crate) fn birth(&self, tid: u32) -> Option<Birth> {
        self.tables.birth(tid)
    }

    /// Sets the argument size of a UVM request.
    pub(crate) fn set_uvm_size(&mut self, request: u32, size: u32) {
        // A failure affects only how much of the argument is captured; 256 bytes are the default.
        let _ = self.uvm_sizes.set(request, size, 0);
    }

    /// Returns the number of driver calls that the kernel let pass unseen ([`left_out`](super::fentry::Fentry::left_out)), of any process.
    pub(crate) fn left_out(&self) -> u64 {
        let kprobes = self.bpf.programs().filter_map(|(_, program)| {
            let Program::KProbe(program) = program else {
                return None;
            };
            super::bpf::left_out(program.fd().ok()?.as_fd()).ok()
        });
        let fentry = match &self.discovery {
            Some(Discovery::Fentry(fentry)) => fentry.left_out(),
            _ => 0,
        };
        fentry + kprobes.sum::<u64>()
    }

    /// Returns the counters, summed over processors.
    pub(crate) fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for s in self.tables.stats() {
            sum.hits += s.hits;
            sum.foreign += s.foreign;
            sum.unknown_site += s.unknown_site;
            sum.unknown_token += s.unknown_token;
            sum.scans += s.scans;
            sum.deferred += s.deferred;
            sum.cut += s.cut;
            sum.dropped += s.dropped;
            sum.unreadable += s.unreadable;
            sum.contended += s.contended;
            sum.cached_put += s.cached_put;
            sum.cached_put_wrong += s.cached_put_wrong;
            sum.stacks_lost += s.stacks_lost;
            sum.stacks_passed += s.stacks_passed;
            sum.before += s.before;
            sum.again += s.again;
            sum.put_off += s.put_off;
            sum.counted += s.counted;
            sum.stray += s.stray;
        }
        sum
    }
}

/// Makes aya's loader without the kernel's types. Our programs have no relocations that need them, and aya reads them all when a loader is
/// made, for a third of the time that a trace needs to begin. A thread that can open no file goes on without them.
fn loader() -> EbpfLoader<'static> {
    let make = || {
        confine::no_files();
        EbpfLoader::new()
    };
    let made = thread::Builder::new()
        .name("nvcap-loader".into())
        .spawn(make);
    made.ok()
        .and_then(|thread| thread.join().ok())
        .unwrap_or_else(EbpfLoader::new)
}

/// Returns the bound of the random 32-bit number at which a doorbell's stack is taken: one doorbell in `every` on the average.
fn stack_until(every: u32) -> u32 {
    match every {
        0 | 1 => u32::MAX,
        _ => ((1u64 << 32) / u64::from(every) - 1) as u32,
    }
}

/// Size of the ring buffer of stacks: some thousand stacks, or the smallest possible size.
fn stack_buffer(stack_bytes: u32) -> u32 {
    match stack_bytes {
        0 => 65536,
        _ => 64 << 20,
    }
}

/// Loads the object and makes its maps, with no program yet.
fn object(options: LoadOptions, offsets: &PodOffsets, processors: usize) -> Result<Ebpf> {
    let if_stacks = |entries| if options.stack_bytes == 0 { 1 } else { entries };
    loader()
        .override_global("OFFSETS", offsets, true)
        .override_global("MODE", &PodMode(options.mode), true)
        .override_global("STACK_BYTES", &options.stack_bytes, true)
        .override_global("STACK_UNTIL", &stack_until(options.stack_every), true)
        .map_max_entries("RECORDS", options.buffer)
        .map_max_entries("STACKS", stack_buffer(options.stack_bytes))
        .map_max_entries("PYTHONS", if_stacks(nvcap_common::MAX_SPACES))
        .map_max_entries("PYTHON_THREADS", if_stacks(nvcap_common::PYTHON_THREADS))
        .map_max_entries("STATS", processors as u32)
        .load(OBJECT)
        .map_err(|e| failed("loading the BPF programs", &e))
}

/// Prepares the tail call of `doorbell_tail`; the other doorbell program needs none.
fn tail_call(bpf: &mut Ebpf, doorbell_name: &str) -> Result<ProgramArray<MapData>> {
    let mut more: ProgramArray<MapData> = take(bpf, "MORE")?;
    if doorbell_name == "doorbell_tail" {
        let program = perf_program(bpf, "doorbell_more").map_err(|e| *e)?;
        let program = program
            .fd()
            .map_err(|e| failed("loading doorbell_more", &e))?;
        more.set(0, program, 0)
            .map_err(|e| failed("setting up the tail call", &e))?;
    }
    Ok(more)
}

fn map<'a>(bpf: &'a Ebpf, name: &str) -> Result<&'a Map> {
    bpf.map(name).ok_or_else(|| {
        Error::new(
            format!("finding map {name}"),
            "it is not in the object",
            "rebuild nvcap",
        )
    })
}

/// Returns every map of the object.
fn maps(bpf: &Ebpf) -> Result<Maps> {
    let descriptor = |map: &Map| match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::ProgramArray(data)
        | Map::RingBuf(data) => Some(data.fd().as_fd().try_clone_to_owned()),
        // The programs that use it cannot be loaded by the fentry way, which then reports that.
        _ => None,
    };
    bpf.maps()
        .filter_map(|(name, map)| Some((name, descriptor(map)?)))
        .map(|(name, fd)| match fd {
            Ok(fd) => Ok((name.to_owned(), fd)),
            Err(e) => Err(Error::new(
                format!("opening map {name}"),
                &e,
                remedy_for_refusal(&e),
            )),
        })
        .collect()
}

fn take<M: TryFrom<Map>>(bpf: &mut Ebpf, name: &str) -> Result<M>
where
    M::Error: std::error::Error + 'static,
{
    let map = bpf.take_map(name).ok_or_else(|| {
        Error::new(
            format!("finding map {name}"),
            "it is not in the object",
            "rebuild nvcap",
        )
    })?;
    M::try_from(map).map_err(|e| failed(&format!("opening map {name}"), &e))
}

/// Returns the possible number of processors, because counters are kept by processor number.
fn processors() -> Result<usize> {
    aya::util::nr_cpus().map_err(|(what, e)| {
        Error::new(
            format!("counting the processors ({what})"),
            &e,
            "mount sysfs at /sys",
        )
    })
}

/// Maps the tables of channels and of address spaces.
fn channel_table(bpf: &Ebpf) -> Result<Shared> {
    let (Map::Array(channels), Map::Array(spaces)) = (map(bpf, "CHANNELS")?, map(bpf, "SPACES")?)
    else {
        return Err(Error::new(
            "loading the BPF programs",
            "CHANNELS is no array",
            "please report this",
        ));
    };
    Shared::new(channels.fd().as_fd(), spaces.fd().as_fd())
        .map_err(|e| Error::new("mapping the channel table", &e, remedy_for_refusal(&e)))
}

/// Maps the flag that tells the programs that the reader sleeps.
fn asleep(bpf: &Ebpf) -> Result<Asleep> {
    let what = "mapping the reader's state";
    let Map::Array(asleep) = map(bpf, "ASLEEP")? else {
        return Err(Error::new(what, "ASLEEP is no array", "please report this"));
    };
    Asleep::new(asleep.fd().as_fd()).map_err(|e| Error::new(what, &e, remedy_for_refusal(&e)))
}

/// Maps the tables of Pythons.
fn pythons(bpf: &Ebpf) -> Result<Pythons> {
    let what = "mapping the tables of Pythons";
    let (Map::Array(walks), Map::Array(threads)) =
        (map(bpf, "PYTHONS")?, map(bpf, "PYTHON_THREADS")?)
    else {
        return Err(Error::new(
            what,
            "PYTHONS or PYTHON_THREADS is no array",
            "please report this",
        ));
    };
    Pythons::new(walks.fd().as_fd(), threads.fd().as_fd())
        .map_err(|e| Error::new(what, &e, remedy_for_refusal(&e)))
}

/// Loads the program that reads and changes hash maps.
fn table_program(programs: &mut BpfPrograms) -> Result<OwnedFd> {
    let program: &mut RawTracePoint = programs.find(TABLE)?;
    if program.fd().is_err() {
        program
            .load()
            .map_err(|e| failed("loading the program of the tables", &e))?;
    }
    let what = "opening the program of the tables";
    let program = program.fd().map_err(|e| failed(what, &e))?.as_fd();
    let program = program.try_clone_to_owned();
    program.map_err(|e| Error::new(what, &e, remedy_for_refusal(&e)))
}

/// Maps the request through which that program is called.
fn tables(bpf: &Ebpf, program: OwnedFd, processors: usize) -> Result<Tables> {
    let what = "mapping the tables of the BPF programs";
    let failed = |e: std::io::Error| Error::new(what, &e, remedy_for_refusal(&e));
    let (Map::Array(request), Map::Array(stats)) = (map(bpf, "REQUEST")?, map(bpf, "STATS")?)
    else {
        return Err(Error::new(
            what,
            "REQUEST or STATS is no array",
            "please report this",
        ));
    };
    let (request, stats) = (request.fd().as_fd(), stats.fd().as_fd());
    Tables::new(program, request, stats, processors).map_err(failed)
}

/// Returns the forms of the doorbell program in this build.
pub fn doorbell_programs() -> impl Iterator<Item = &'static str> {
    // Program names are in the object's string table.
    let is_there = |name: &str| {
        let symbol = [name.as_bytes(), b"\0"].concat();
        OBJECT.windows(symbol.len()).any(|w| w == symbol)
    };
    DOORBELL.into_iter().filter(move |name| is_there(name))
}

pub(crate) use super::program::OBJECT;
pub(crate) use nvcap_process::memory::devices::majors;

#[cfg(test)]
mod tests {
    use super::stack_until;

    #[test]
    fn one_stack_in_so_many() {
        assert_eq!((stack_until(0), stack_until(1)), (u32::MAX, u32::MAX));
        for every in [2u32, 3, 10, 1000, u32::MAX] {
            // So many of the 2^32 numbers are drawn.
            let drawn = u64::from(stack_until(every)) + 1;
            assert_eq!(drawn, (1 << 32) / u64::from(every), "{every}");
        }
    }
}
