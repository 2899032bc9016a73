//! Begin of the trace of a process: of a command before it is executed, or of a running process. Finds its doorbells, and the channels that
//! the user named in it.

use std::{io, thread};

use nvcap_common::{Proc, proc_flag};

use super::{
    super::{perf::Life, watchpoints},
    Session,
    arming::{DoorbellPage, RingGpus},
    breakpoints::{Target, WatchError},
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
        self,
        mem::{Memory, ReadMemory},
        unfit,
    },
};

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

    /// Traces a command that `pid` is about to execute; the process waits until nvcap releases it.
    ///
    /// # Errors
    /// When doorbells that the user named cannot be watched in it.
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
    pub(super) fn arm_named(&mut self, pid: u32, life: Life) -> Result<()> {
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
    /// When the process is gone, belongs to another user, or has no free debug register.
    pub(crate) fn attach(&mut self, pid: u32) -> Result<()> {
        self.attach_from(pid, true)
    }

    /// Attaches to one of many processes, if it is not traced yet. `was_there`: the present contents of its rings are not shown; otherwise
    /// rings are shown from their first entry on.
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
        let attached = self.attach_now(pid, was_there);
        self.capture.attaching = None;
        attached
    }

    fn attach_now(&mut self, pid: u32, was_there: bool) -> Result<()> {
        let memory = Memory::open(pid).map_err(|e| cannot_attach(pid, &e))?;
        let (space, at) = self.begin_present(pid)?;
        self.capture.attaching = Some(space);
        let areas = areas_of(pid)?;
        self.check_named_doorbells(pid, &areas)?;
        let named = self.install_named(space, pid, Some((&memory, was_there)))?;
        let mut pages = self.report_mappings(&areas, at);
        let (rings, tokens) = rings_and_tokens(&memory, &areas);
        log::trace!("rings and tokens of process {pid} are searched for");
        self.search.begin(space, &areas, &rings);
        let (used, gpus) = self.follow_rings((space, at), &memory, &rings, was_there)?;
        // Its doorbells may have been rung before the rings were followed.
        self.search.done(space, watchpoints::now());
        log::debug!("the rings of process {pid} are found");
        self.capture.guess_tokens(space, tokens)?;
        self.capture.spaces.keep_memory(pid, memory);
        self.arm_present((space, pid), &mut pages, (&gpus, was_there))?;
        if !was_there {
            let indexes = Vec::from_iter(named.into_iter().chain(used));
            self.capture.peek_when_watched(space, &indexes);
        }
        log::debug!("process {pid} is watched");
        Ok(())
    }

    /// Begins to record the calls of a running process, in an address space of its own, so that nothing is lost between later looks at the
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

    /// Reports the mappings of a running process, and returns its doorbell pages.
    fn report_mappings(&mut self, areas: &[Area], at: At) -> Vec<DoorbellPage> {
        let mut pages = Vec::new();
        for area in areas {
            if let Some(mapping) = area.record_with_memory(at) {
                self.emit(Record::Mapping(mapping));
            }
        }
        // A page whose rights were changed in part is several areas.
        for parts in areas.chunk_by(Area::is_followed_by) {
            let Some(Device::Gpu(gpu)) = parts[0].device() else {
                continue;
            };
            let whole = Area::joined(parts);
            if whole.is_doorbell_shape() {
                pages.push(DoorbellPage {
                    start: CpuVa(whole.start),
                    gpu,
                    readable: whole.read,
                });
            }
        }
        pages
    }

    /// Follows the rings that were found in a running process; those of a process that `was_there`, from their present position on. Returns
    /// the channels of rings in use, which are announced, and the GPUs of rings that are in use or move.
    fn follow_rings(
        &mut self,
        (space, at): (u32, At),
        memory: &Memory,
        rings: &[scan::FoundRing],
        was_there: bool,
    ) -> Result<(Vec<u32>, RingGpus)> {
        let capture = &mut self.capture;
        let (mut used, mut gpus) = (Vec::new(), RingGpus::default());
        for found in rings {
            let get_put = memory.get_put(found.userd + scan::GP_GET);
            let put = get_put.ok().map(|(_, put)| put);
            let put = put.filter(|put| *put < found.entries).unwrap_or(found.put);
            if put != found.put {
                gpus.moving.insert(found.gpu);
            }
            let start = if was_there { put } else { 0 };
            log::debug!(
                "the ring at {:#x} of process {} is followed from entry {start} on",
                found.ring,
                at.pid
            );
            let index = capture.install_found(space, at.pid, found, start)?;
            if let Some(index) = index.filter(|_| found.used) {
                capture.table.announce(index, at.time_ns, &mut capture.out);
                used.push(index);
                gpus.used.insert(found.gpu);
            }
        }
        Ok((used, gpus))
    }

    fn check_named_doorbells(&self, pid: u32, areas: &[Area]) -> Result<()> {
        for d in &self.named.file.doorbells {
            if !areas
                .iter()
                .any(|a| a.start <= d.address && d.address < a.end)
            {
                // A process that has ended has no mappings.
                if procfs::pages(pid) == 0 {
                    return Err(WatchError::ProcessGone.of(pid, d.address));
                }
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

    /// Adds the channels that the user named, and returns those whose memory is there. `memory`: the memory of a process that already runs.
    /// Its channels are followed from their present position if the process was there before the trace (`true`), else from their first entry.
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

/// Returns the mappings of a process. An empty list is an error, because a living process has some.
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

/// Finds rings and tokens at the same time, because both searches read device memory for some ms.
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
