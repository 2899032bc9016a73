//! Processes that begin, execute another program and end. The ring buffer reports them. Where it was full, the BPF programs' table of
//! processes and the kernel show them.

use nvcap_process::error::Result;
use std::collections::BTreeMap;

use nvcap_common::{self as c, kind};

use super::{
    super::{assemble, watchpoints},
    Session,
    breakpoints::UNSET_NS,
    comm_of,
    missed::Missed,
    modules::unseen,
};
use nvcap_decode::record::{At, Ioctl, Life, Lost, Process, Record};
use nvcap_process::procfs;

/// Time before the last look that found a process's rings read to their ends, ns. If the process submitted within it, it may have submitted
/// after the look.
const SHORTLY_NS: u64 = 100_000_000;

impl Session {
    pub(super) fn life_event(&mut self, r: &c::Life) -> Result<()> {
        let at = assemble::at(&r.header);
        let name = assemble::name(&r.comm);
        let born = c::Birth {
            time_ns: at.time_ns,
            breakpoints: r.breakpoints,
        };
        match r.header.kind {
            kind::THREAD => {
                self.emit(Record::Process(Process {
                    at,
                    life: Life::Thread { child: r.child },
                }));
                self.thread_came(at, (r.child, born), r.space);
            }
            kind::FORK => {
                self.capture.spaces.join(r.child, r.space);
                self.child_came(at, (r.child, born), r.space);
                self.emit(Record::Process(Process {
                    at,
                    life: Life::Fork { child: r.child },
                }));
            }
            kind::EXEC => self.executed(at, name, r.space, r.child == 0)?,
            kind::STRAY => self.traps.came(at),
            _ => {
                if let Some((ioctl, dev)) = self.capture.ioctl_without_end(at.tid) {
                    self.ioctl(ioctl, dev);
                }
                let signal = r.child >> c::Life::SIGNAL;
                self.tell_trap_death(at, signal);
                self.ended(at, r.child & c::Life::ENDED != 0);
            }
        }
        Ok(())
    }

    /// Passes on an ioctl on the device with number `dev`.
    pub(super) fn ioctl(&mut self, ioctl: Ioctl, dev: u32) {
        let device = self.modules.device(dev);
        self.emit(Record::Ioctl(Box::new(Ioctl { device, ..ioctl })));
    }

    /// Takes note of an exec. `anew`: the address space was not prepared before it.
    fn executed(&mut self, at: At, name: String, space: u32, anew: bool) -> Result<()> {
        self.tell_unread(at, Some(space));
        self.leave_spaces(at.pid, Some(space));
        self.capture.spaces.close_memory(at.pid);
        self.capture.spaces.join(at.pid, space);
        self.breakpoints.exec_ends(at.pid);
        // What stays is of the new program, in which nothing has captured yet.
        self.breakpoints.wake(at.pid, !self.is_resting());
        let named = &self.named.file.doorbells;
        self.stores
            .forget_process(at.pid, |address| named.iter().any(|d| d.address == address));
        self.emit(Record::Process(Process {
            at,
            life: Life::Exec { name },
        }));
        if anew {
            self.make_room();
            self.install_named(space, at.pid, None)?;
        }
        Ok(())
    }

    /// Reports a process whose memory is gone, and whose last submissions through unwatched doorbells may not have been read. `stays`: the
    /// space of the program that it executes now.
    fn tell_unread(&mut self, at: At, stays: Option<u32>) {
        let capture = &self.capture;
        let since = self.stores.since(at.pid);
        // Quiet is a space in which nothing had come for a while when its rings were last found read to their ends.
        let is_busy = |space: u32| {
            let last = capture.rung.last(space).max(since);
            last.is_some_and(|last| last + SHORTLY_NS > self.stores.read(space))
        };
        let spaces = capture.table.spaces_with_channels();
        let of_process = spaces
            .into_iter()
            .filter(|space| Some(*space) != stays && capture.spaces.is_in(at.pid, *space));
        let busy = Vec::from_iter(of_process.filter(|space| is_busy(*space)));
        if busy.is_empty() {
            return;
        }
        for space in &capture.stopped {
            // The next patrol counts it.
            self.stores.captures(*space);
        }
        let is_settled = |space: &u32| self.stores.is_settled(*space, at.time_ns);
        let lacks = self.stores.lacks([at.pid].into_iter()) && !busy.iter().all(is_settled);
        let unwatched = match lacks {
            true => "not every doorbell was watched (no debug register was left)",
            false if self.breakpoints.unset_ns(at.pid) > UNSET_NS => {
                "the kernel gave its threads more breakpoints than there are debug registers, which took turns"
            }
            false => return,
        };
        let why = format!(
            "{unwatched}, and the program ended shortly after it had submitted: what it submitted after the last look at its rings is not known"
        );
        self.capture.out.lost(at.pid, None, Lost::Untraced { why });
    }

    /// Reports the same, at the end of the trace, of processes whose memory is gone, and whose end no record has reported yet.
    pub(super) fn tell_unread_of_gone(&mut self) {
        let processes = self.capture.spaces.processes().iter().copied();
        let gone = processes.filter(|pid| procfs::pages(*pid) == 0);
        for pid in gone.collect::<Vec<u32>>() {
            let at = At {
                time_ns: watchpoints::now(),
                pid,
                tid: pid,
            };
            self.tell_unread(at, None);
        }
    }

    /// Reports a process that SIGTRAP ended, if the machine lost a hit of its breakpoints or may have.
    fn tell_trap_death(&mut self, at: At, signal: u32) {
        let has_any = self.breakpoints.any(at.pid);
        if let Some(why) = self.traps.death(at.pid, signal, has_any) {
            let why = why.to_owned();
            self.capture.out.lost(at.pid, None, Lost::Untraced { why });
        }
    }

    fn ended(&mut self, at: At, process: bool) {
        self.emit(Record::Process(Process {
            at,
            life: Life::Exit { process },
        }));
        if process {
            self.traps.forget(at.pid);
            if self.modules.is_unwatched(at) {
                self.capture.out.untraced(at.pid, &unseen(at.pid));
            }
            self.capture.spaces.end_process(at.pid);
            self.tell_unread(at, None);
            self.breakpoints.close(at.pid);
            self.stores.forget_process(at.pid, |_| false);
            self.leave_spaces(at.pid, None);
        }
    }

    /// Takes note that a process leaves its address space. The channels of the space end if it was the last process there.
    fn leave_spaces(&mut self, pid: u32, stays: Option<u32>) {
        for space in self.capture.spaces.leave(pid, stays, watchpoints::now()) {
            self.capture.end_channels(space);
        }
        let gone = self.capture.spaces.gone();
        self.report_unrung(|space| gone.contains(&space));
    }

    /// Frees the places of channels whose address space is gone, after a while: until then captures of them may still be on their way.
    pub(super) fn free_spaces(&mut self, now: u64) {
        let old = self.capture.spaces.take_old(now);
        if old.is_empty() {
            return;
        }
        // Reports that need the channels go out before the channels are freed.
        self.report_unknown_channels(|space| old.contains(&space));
        for space in old {
            // Otherwise a child that no record reported has come to light.
            if self.capture.spaces.pids(space).next().is_none() {
                self.free_space(space);
                self.capture.forget_stacks(space);
            }
        }
    }

    /// Frees places at once if the named channels of a new program would find none. No record shows what a program captured after the
    /// record of its end.
    fn make_room(&mut self) {
        if self.capture.table.shared().room() < self.named.file.channels.len() {
            self.free_spaces(u64::MAX);
        }
    }

    fn free_space(&mut self, space: u32) {
        let capture = &mut self.capture;
        capture.leave_space(space);
        for site in self.sites.forget_space(space) {
            capture.bpf.forget_site(site);
        }
        self.stores.forget_space(space);
        self.taught.forget_space(space);
        let pids = Vec::from_iter(capture.spaces.pids(space));
        self.moves.forget_space(space, &pids);
        self.search.forget_space(space);
        self.named.forget_space(space);
        capture.spaces.forget(space);
        capture.table.free_space(space);
    }

    /// Acts on events that no record reported. The BPF programs keep their table of processes up to date even when the ring buffer has no
    /// room for a record.
    ///
    /// # Errors
    /// As for a record of the event.
    pub(super) fn look_for_missed(&mut self) -> Result<()> {
        let now = watchpoints::now();
        let ask = self.missed.asks_kernel(now);
        let Self {
            capture,
            patrol,
            missed,
            ..
        } = self;
        let mut untold = BTreeMap::new();
        for pid in capture.spaces.processes().iter().copied() {
            let of = match capture.bpf.proc(pid) {
                None => Missed::End,
                Some(_) if ask && procfs::has_ended(pid) => Missed::End,
                Some(proc) if !capture.spaces.is_in(pid, proc.space) => Missed::Space(proc.space),
                Some(_) => continue,
            };
            untold.insert(pid, of);
        }
        // A child that no record reported: there is none unless a record was dropped.
        if patrol.dropped_any() {
            for (pid, proc) in capture.bpf.procs() {
                if !capture.spaces.processes().contains(&pid) {
                    untold.insert(pid, Missed::Space(proc.space));
                }
            }
        }
        for (pid, what) in missed.found(untold, ask, now) {
            self.act_on_missed(pid, what)?;
        }
        Ok(())
    }

    fn act_on_missed(&mut self, pid: u32, what: Missed) -> Result<()> {
        let at = At {
            time_ns: watchpoints::now(),
            pid,
            tid: pid,
        };
        log::debug!("process {pid}: {what:?}, which no record reported");
        match what {
            Missed::End => {
                self.capture.bpf.forget_proc(pid);
                self.ended(at, true);
                Ok(())
            }
            Missed::Space(space) => {
                let name = comm_of(pid, pid).unwrap_or_default();
                let spaces = &mut self.capture.spaces;
                let anew = !spaces.has(space) && !self.capture.table.has_space(space);
                if spaces.processes().contains(&pid) {
                    return self.executed(at, name, space, anew);
                }
                spaces.join(pid, space);
                self.emit(Record::Process(Process {
                    at,
                    life: Life::Present { name },
                }));
                if anew {
                    self.make_room();
                    self.install_named(space, pid, None)?;
                }
                Ok(())
            }
        }
    }
}
