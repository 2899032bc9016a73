//! Begin of the trace of a process: of a command before it is executed, of a running process; its doorbells, and the channels
//! that the user named in it.

use std::{io, thread};

use nvcap_common::{Proc, proc_flag};

use super::{
    super::{
        perf::Life,
        space::doorbell_of,
        watchpoints::{self, Stops},
    },
    Session,
    breakpoints::{Set, Target, Watch, WatchError},
    channel_table::{NewChannel, UNNUMBERED},
    comm_of,
    outbox::seen_now,
};
use nvcap_decode::record::{self, At, CpuVa, Device, Process, Record};
use nvcap_process::error::{Error, Result, remedy_for_refusal};
pub(super) use nvcap_process::{
    memory::{
        maps::{self, Area},
        scan,
        snapshot::{self, RingToken},
    },
    procfs::{
        mem::{Memory, ReadMemory},
        unfit,
    },
};

/// Page of doorbells that a running process has mapped.
struct DoorbellPage {
    start: CpuVa,
    /// Minor number of its GPU.
    gpu: u32,
    readable: bool,
}

impl Session {
    fn flags(&self) -> u32 {
        match self.options.follow {
            true => proc_flag::IOCTLS | proc_flag::FOLLOW,
            false => proc_flag::IOCTLS,
        }
    }

    pub(super) fn life(&self) -> Life {
        Life {
            children: self.options.follow,
            until_exec: true,
            from_exec: false,
        }
    }

    /// Traces a command that is about to be executed by `pid`, which waits for nvcap to release it.
    ///
    /// # Errors
    /// When its doorbells, where the user named them, cannot be watched.
    pub(crate) fn expect_exec(&mut self, pid: u32) -> Result<()> {
        let space = self.capture.bpf.new_space()?;
        self.capture.spaces.join(pid, space);
        let flags = self.flags() | proc_flag::KEEP;
        self.capture.bpf.set_proc(pid, Proc { space, flags })?;
        self.install_named(space, pid, None)?;
        self.arm_named(
            pid,
            Life {
                children: self.options.follow,
                until_exec: false,
                from_exec: true,
            },
        )
    }

    /// Watches the doorbells that the user named.
    fn arm_named(&mut self, pid: u32, life: Life) -> Result<()> {
        for i in 0..self.named.file.doorbells.len() {
            let d = self.named.file.doorbells[i];
            let target = Target {
                pid,
                address: d.address,
                gpu: d.gpu,
            };
            self.arm(target, life)?;
        }
        Ok(())
    }

    /// Attaches to a running process.
    ///
    /// # Errors
    /// When it is gone, belongs to another user, or has no free debug register.
    pub(crate) fn attach(&mut self, pid: u32) -> Result<()> {
        self.attach_from(pid, true)
    }

    /// Attaches to one of many processes, if it is not traced yet. `was_there`: what is in its rings is not shown; else they are
    /// shown from their first entry on.
    ///
    /// # Errors
    /// As [`Session::attach`].
    pub(crate) fn take_on(&mut self, pid: u32, was_there: bool) -> Result<()> {
        if self.capture.spaces.processes().contains(&pid) {
            return Ok(());
        }
        self.attach_from(pid, was_there)
    }

    fn attach_from(&mut self, pid: u32, was_there: bool) -> Result<()> {
        let memory = Memory::open(pid).map_err(|e| cannot_attach(pid, &e))?;
        let (space, at) = self.begin_present(pid)?;
        let areas = areas_of(pid)?;
        self.check_named_doorbells(pid, &areas)?;
        let named = self.install_named(space, pid, Some((&memory, was_there)))?;
        let pages = self.report_mappings(&areas, at);
        let (rings, tokens) = rings_and_tokens(&memory, &areas);
        log::trace!("rings and tokens of process {pid} are searched for");
        self.search.begin(space, &areas, &rings);
        let used = self.follow_rings(space, at, &rings, was_there)?;
        // Its doorbells may have been rung before the rings were followed.
        self.search.done(space, watchpoints::now());
        log::debug!("the rings of process {pid} are found");
        self.capture.guess_tokens(space, tokens)?;
        self.capture.spaces.keep_memory(pid, memory);
        self.arm_present(pid, &pages)?;
        if !was_there {
            for index in named.into_iter().chain(used) {
                self.capture.peek(index);
            }
        }
        log::debug!("process {pid} is watched");
        Ok(())
    }

    /// Begins to record the calls of a running process, in an address space of its own: nothing is lost between later looks at the
    /// process and its breakpoints.
    fn begin_present(&mut self, pid: u32) -> Result<(u32, At)> {
        let name = comm_of(pid, pid).unwrap_or_default();
        let space = self.capture.bpf.new_space()?;
        self.capture.spaces.join(pid, space);
        let at = At {
            time_ns: watchpoints::now(),
            pid,
            tid: pid,
        };
        self.emit(Record::Process(Process {
            at,
            life: record::Life::Present { name },
        }));
        let flags = self.flags();
        self.capture.bpf.set_proc(pid, Proc { space, flags })?;
        Ok((space, at))
    }

    /// Reports the mappings that a running process has, and returns those of them that are doorbell pages: first the one to watch first.
    fn report_mappings(&mut self, areas: &[Area], at: At) -> Vec<DoorbellPage> {
        let mut pages = Vec::new();
        for area in areas {
            if let Some(mapping) = area.record(at) {
                self.emit(Record::Mapping(mapping));
            }
            if let (true, Some(Device::Gpu(gpu))) = (area.is_doorbell_shape(), area.device()) {
                pages.push(DoorbellPage {
                    start: CpuVa(area.start),
                    gpu,
                    readable: area.read,
                });
            }
        }
        // Write-only pages first (CUDA's): where there are both kinds, these are the ones that are rung.
        pages.sort_by_key(|p| p.readable);
        pages
    }

    /// Follows the rings that were found in a running process, those of one that `was_there` from their present position on. Returns the
    /// channels of rings in use: they are announced.
    fn follow_rings(
        &mut self,
        space: u32,
        at: At,
        rings: &[scan::FoundRing],
        was_there: bool,
    ) -> Result<Vec<u32>> {
        let capture = &mut self.capture;
        let mut used = Vec::new();
        for found in rings {
            let start = if was_there { found.put } else { 0 };
            let index = capture.install_found(space, at.pid, found, start)?;
            if let Some(index) = index.filter(|_| found.used) {
                capture.table.announce(index, at.time_ns, &mut capture.out);
                used.push(index);
            }
        }
        Ok(used)
    }

    /// Watches the doorbells that the user named, and those of a running process's doorbell pages.
    fn arm_present(&mut self, pid: u32, pages: &[DoorbellPage]) -> Result<()> {
        let life = self.life();
        // Names given by the user hold for every program that the process executes.
        self.arm_named(
            pid,
            Life {
                until_exec: false,
                ..life
            },
        )?;
        log::debug!(
            "{} doorbell pages of process {pid} are to be watched",
            pages.len()
        );
        for (n, page) in pages.iter().enumerate() {
            let target = Target {
                pid,
                address: doorbell_of(page.start),
                gpu: Some(page.gpu),
            };
            match self.arm(target, life) {
                Ok(()) => {}
                // Four registers serve two GPUs; the next patrol finds out about the rest.
                Err(e) if n == 0 => return Err(e),
                Err(e) => self.capture.out.untraced(pid, &e),
            }
        }
        Ok(())
    }

    fn check_named_doorbells(&self, pid: u32, areas: &[Area]) -> Result<()> {
        for d in &self.named.file.doorbells {
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
        Ok(())
    }

    /// Watches a doorbell, and connects it with the channels that it may ring. Where no debug register is left for it in a process that
    /// has another doorbell watched, its rings are looked at instead, until the store that rings is known and stopped at.
    pub(super) fn arm(&mut self, target: Target, life: Life) -> Result<()> {
        if !self.options.watch {
            return Ok(());
        }
        let Target { pid, address, gpu } = target;
        if self.stores.is_unwatched((pid, address)) {
            return Ok(());
        }
        let watch = Watch {
            pid,
            stops: Stops::AfterWrite,
            address,
            life,
        };
        match self.set(watch) {
            Ok(Set::Before) => return Ok(()),
            Ok(Set::Whole) => {}
            Ok(Set::Partial) => self.leave_unwatched(pid, address),
            Err(WatchError::NoRegister) if self.breakpoints.has(pid) => {
                self.leave_unwatched(pid, address);
            }
            Err(e) => return Err(e.of(pid, address)),
        }
        let capture = &mut self.capture;
        let Some(space) = capture.bpf.proc(pid).map(|p| p.space) else {
            return Ok(());
        };
        capture.table.add_doorbell(space, address, gpu);
        for index in capture.table.of_space(space) {
            capture.table.publish_token(index, &mut capture.bpf)?;
            if life.until_exec {
                capture.peek(index);
            }
        }
        if self.stores.rests(space) {
            self.breakpoints.wake(pid, false);
        }
        self.stop_at_stores(space);
        Ok(())
    }

    fn set(&mut self, watch: Watch) -> std::result::Result<Set, WatchError> {
        let bpf = &self.capture.bpf;
        let birth = |tid| bpf.birth(tid);
        let set = self.breakpoints.set(watch, bpf.doorbell(), birth);
        if self.is_resting() {
            self.breakpoints.wake_all(false);
        }
        set
    }

    /// Not every thread of the process has the doorbell watched.
    fn leave_unwatched(&mut self, pid: u32, address: u64) {
        let is_first = !self.stores.lacks([pid].into_iter());
        if !self.stores.unwatched((pid, address), watchpoints::now()) || !is_first {
            return;
        }
        (self.options.notice)(&format!(
            "process {pid} has more doorbells than debug registers are left: their rings are looked at every ms or two, until the store that rings is stopped at"
        ));
        // One register is for that store.
        self.free_register(pid, false);
    }

    /// Stops watching one of several doorbells of a process, or with `only` even the only one; that is returned.
    fn free_register(&mut self, pid: u32, only: bool) -> Option<u64> {
        let spare = self.breakpoints.spare(pid, only)?;
        let heirs = self.breakpoints.disarm(pid, spare);
        for pid in heirs.into_iter().chain([pid]) {
            self.stores.unwatched((pid, spare), watchpoints::now());
        }
        Some(spare)
    }

    /// Stops at the stores that ring in an address space before they do: where the user asks for it, or debug registers are lacking.
    pub(super) fn stop_at_stores(&mut self, space: u32) {
        let pids = Vec::from_iter(self.capture.spaces.pids(space));
        let lacks = self.stores.lacks(pids.iter().copied());
        if !self.options.precommit && !lacks {
            return;
        }
        for store in self.stores.begin(space, self.sites.to_stop_at(space)) {
            for &pid in &pids {
                let set = self.stop_at_store(pid, store, lacks);
                log::debug!("stopping at {store:#x} of process {pid}: {set:?}");
                match set {
                    Ok(Set::Partial) => self.stores.partial(space),
                    Ok(_) | Err(WatchError::ProcessGone) => {}
                    Err(e) => {
                        self.stores.refused(space, store);
                        if self.options.precommit {
                            let e = e.of(pid, store);
                            (self.options.notice)(&format!("not before the doorbell: {e}"));
                        }
                    }
                }
            }
        }
    }

    /// Stops at a store of a process, if need be with the debug register of one of its doorbells; with `only` even of the only one.
    fn stop_at_store(
        &mut self,
        pid: u32,
        store: u64,
        only: bool,
    ) -> std::result::Result<Set, WatchError> {
        let watch = Watch {
            pid,
            stops: Stops::Before,
            address: store,
            life: self.life(),
        };
        let set = self.set(watch);
        if !matches!(set, Err(WatchError::NoRegister) | Ok(Set::Partial)) {
            return set;
        }
        // The store rings them all; a watchpoint serves one doorbell.
        let Some(freed) = self.free_register(pid, only) else {
            return set;
        };
        self.breakpoints.disarm(pid, store);
        let set = self.set(watch);
        if set.is_err() {
            let watchpoint = Watch {
                stops: Stops::AfterWrite,
                address: freed,
                ..watch
            };
            // One doorbell is better than none.
            let again = self.set(watchpoint);
            log::debug!("watching {freed:#x} of process {pid} again: {again:?}");
        }
        set
    }

    /// Adds the channels that the user named, and returns those that are there. `memory`: that of a process that already runs, whose channels
    /// are followed from their present position, if it was there before the trace (`true`), else from their first entry.
    pub(super) fn install_named(
        &mut self,
        space: u32,
        pid: u32,
        memory: Option<(&Memory, bool)>,
    ) -> Result<Vec<u32>> {
        let mut there = Vec::new();
        self.named.expect(space, watchpoints::now());
        for named in self.named.file.channels.clone() {
            let put = memory
                .and_then(|(m, _)| m.get_put(named.userd + scan::GP_GET).ok())
                .map(|gp| gp.1);
            let new = NewChannel {
                space,
                channel: named.channel(seen_now(pid), UNNUMBERED),
                start: put
                    .filter(|_| memory.is_some_and(|(_, was_there)| was_there))
                    .map_or(0, |put| u64::from(put & (named.entries - 1))),
                model_id: None,
            };
            if let (Some(index), true) = (self.capture.add_channel(new)?, put.is_some()) {
                self.named_is_there(space, index);
                there.push(index);
            }
        }
        let table = &mut self.capture.table;
        for d in &self.named.file.doorbells {
            table.add_doorbell(space, d.address, d.gpu);
        }
        for index in table.of_space(space) {
            table.publish_token(index, &mut self.capture.bpf)?;
        }
        Ok(there)
    }
}

/// Returns the mappings of a process, which has some while it lives.
fn areas_of(pid: u32) -> Result<Vec<Area>> {
    let areas = maps::areas(pid).map_err(|e| cannot_attach(pid, &e))?;
    if areas.is_empty() {
        // It has ended, and nobody would tell of its end any more.
        return Err(cannot_attach(
            pid,
            &io::Error::from_raw_os_error(libc::ESRCH),
        ));
    }
    log::trace!("the mappings of process {pid} are read");
    Ok(areas)
}

/// Finds rings and tokens, at the same time: both read memory of devices, for some ms.
fn rings_and_tokens(memory: &Memory, areas: &[Area]) -> (Vec<scan::FoundRing>, Vec<RingToken>) {
    thread::scope(|scope| {
        let tokens = || snapshot::tokens(memory, areas);
        let beside = thread::Builder::new().name("nvcap-tokens".into());
        let beside = beside.spawn_scoped(scope, tokens);
        let rings = scan::rings(memory, areas);
        let tokens = match beside {
            Ok(thread) => thread.join().unwrap_or_default(),
            Err(_) => tokens(),
        };
        (rings, tokens)
    })
}

fn cannot_attach(pid: u32, e: &io::Error) -> Error {
    let is_refused = matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM));
    if is_refused || unfit::unfit(pid).is_some() {
        return Error::unfit("attaching to", pid, unfit::because_of(pid, e));
    }
    let next = remedy_for_refusal(e);
    Error::new(format!("attaching to process {pid}"), e, next)
}
