//! Processes that end, or execute another program. Takes a last look at their submissions, while they stand still if they are
//! stopped for it; and reports what may be missing where there was no such look.

use super::{
    channel::ReadRing,
    discover::Watched,
    options::StopAtExit,
    process::{self, now},
    session::Session,
};
use std::{collections::BTreeSet, io};

use nvcap_decode::record::{Channel, Life, Origin};
pub(super) use nvcap_process::procfs::mem::ReadMemory;
use nvcap_process::{
    channels_file::NamedChannel,
    error::{Error, Result},
    exit_stop::{self, ExitStops, Stop, Stopped},
    memory::scan,
};

/// Time between two checks for stopped processes in the middle of a search, ns: signals pass through there.
const ASK_NS: u64 = 200_000;

impl Session {
    // ---- processes that are stopped

    /// Makes the command that nvcap starts stop at its end.
    pub(super) fn stop_command_at_exit(&mut self, pid: u32) {
        if self.options.stop_at_exit == StopAtExit::Never {
            return;
        }
        let mut stops = ExitStops::new(self.options.follow);
        match stops.seize_child(pid) {
            Ok(()) => self.stops = Some(stops),
            Err(e) => log::warn!(
                "the command is not stopped at its end for a last look ({e}): what it submits just before may be missed, which is said then"
            ),
        }
    }

    /// Makes a running process stop at its end, if the user wants it.
    ///
    /// # Errors
    /// When the process may not be stopped.
    pub(super) fn stop_attached_at_exit(&mut self, pid: u32) -> Result<()> {
        if self.options.stop_at_exit != StopAtExit::Always {
            return Ok(());
        }
        let follow = self.options.follow;
        let stops = self.stops.get_or_insert_with(|| ExitStops::new(follow));
        stops.seize(pid).map_err(|e| {
            Error::new(
                format!("stopping process {pid} at its end"),
                e,
                "a debugger or strace has it, or it is not yours: end that, run nvcap as root, or leave out --stop-at-exit",
            )
        })
    }

    /// Makes a child that was found by looking stop at its end. (The thread that made it was not stopped, so that no event told of
    /// the child.)
    pub(super) fn seize_child_of(&mut self, parent: u32, child: u32) {
        if let Some(stops) = &mut self.stops
            && stops.has(parent)
            && let Err(e) = stops.seize(child)
        {
            log::debug!("process {child} is not stopped at its end: {e}");
        }
    }

    /// Lets stopped processes that need no look go on. Called from time to time during other work.
    pub(super) fn poll_stops(&mut self, now: u64) {
        if let Some(stops) = &mut self.stops
            && now >= self.asked_stops + ASK_NS
        {
            stops.poll();
            self.asked_stops = now;
            self.resume_overdue(now);
        }
    }

    /// Lets processes end that were held at their end for long enough.
    pub(super) fn resume_overdue(&mut self, now: u64) {
        if let Some(stops) = &mut self.stops {
            for stopped in self.held.overdue(now) {
                stops.resume(stopped);
            }
        }
    }

    /// Deals with all processes that have stopped. True if a process is held at its end from now on.
    pub(super) fn take_stops(&mut self) -> bool {
        let mut holds = false;
        self.resume_overdue(now());
        loop {
            let Some(stops) = &mut self.stops else {
                return holds;
            };
            stops.poll();
            let Some(stopped) = stops.next() else {
                return holds;
            };
            let goes_on = self.stopped(stopped);
            if stopped.stop == Stop::Ending
                && !goes_on
                && self.is_worth_holding(stopped.pid)
                && self.held.hold(stopped, now())
            {
                holds = true;
                continue;
            }
            if let Some(stops) = &mut self.stops {
                stops.resume(stopped);
                if goes_on {
                    stops.seize_rest(stopped.pid);
                }
            }
        }
    }

    /// Tells whether the memory of a process that stands at its end is worth a look: the process has or had a channel.
    fn is_worth_holding(&self, pid: u32) -> bool {
        let had = |w: &Watched| w.has_had_channels();
        self.options.hold_ends
            && (self.watched.get(&pid).is_some_and(had)
                || self.followed.iter().any(|f| f.holders.contains(&pid)))
    }

    /// Does the work for a process that stands still. True if only its first thread ends, and others go on.
    fn stopped(&mut self, stopped: Stopped) -> bool {
        let pid = stopped.pid;
        match stopped.stop {
            Stop::Born { by } => {
                self.born(by, pid);
                false
            }
            Stop::Executed => {
                if let Some(w) = self.watched.get_mut(&pid) {
                    w.look_at_all();
                    self.scheduler.look_after(pid);
                }
                // Before it runs: until then what was opened of it may be its parent's memory.
                self.notice_exec(pid, process::state(pid).forked);
                false
            }
            Stop::Ending => {
                let still = exit_stop::stands_still(pid, stopped.tid);
                self.last_look(pid, still);
                !still
            }
        }
    }

    /// Looks for a process's channels once more, and reads the rest of their rings. `still`: all its threads stand still, so that
    /// nothing comes afterwards.
    fn last_look(&mut self, pid: u32, still: bool) {
        let Some(w) = self.watched.get_mut(&pid) else {
            return;
        };
        let (begun, mapped_at) = (now(), w.mapped_at());
        w.look_at_all();
        self.look_after_living(pid, process::state(pid).forked);
        for i in 0..self.followed.len() {
            if self.followed[i].holders.contains(&pid) {
                self.look_at_all_of(i);
            }
        }
        let active = self.active_at(pid);
        if let Some(w) = self.watched.get_mut(&pid) {
            if still {
                w.was_seen_to_its_end(begun, mapped_at);
            }
            // What it had unmapped before.
            if let Some(why) = w.unmapped(active) {
                self.untraced(pid, why);
            }
        }
    }

    // ---- processes that are gone

    /// Takes note that a process has other memory now, or none. Its channels go on in the processes that share them, or end.
    pub(super) fn leave(&mut self, pid: u32) {
        self.find_kin();
        for i in 0..self.followed.len() {
            if self.followed[i].live && self.followed[i].holders.contains(&pid) {
                self.take_back(i);
                self.look(i, ReadRing::Always);
                let f = &mut self.followed[i];
                f.holders.retain(|h| *h != pid);
                if f.live && f.holders.is_empty() {
                    self.end_channel(i, now());
                    let f = &self.followed[i];
                    if let Some(w) = self.watched.get_mut(&pid) {
                        w.drop_channel(f.dropped(now()));
                    }
                }
            }
        }
    }

    /// Reports what may have been missed of a process whose memory is gone, because it has ended or executed another program.
    pub(super) fn ended(&mut self, pid: u32) {
        let watched = self.watched.get_mut(&pid);
        if let Some(ns) = watched.and_then(|w| w.ended_unseen()) {
            let ms = ns as f64 / 1e6;
            self.untraced(
                pid,
                format!(
                    "it ended with its channels mapped, and its last {ms:.1} ms were not seen (--stop-at-exit=always sees them)"
                ),
            );
        }
    }

    pub(super) fn report_unresolved(&mut self, pid: u32, count: usize) {
        if count > 0 {
            self.untraced(pid, format!("places of its memory that moved as a channel's GP_PUT does, and to which no ring was found: {count}"));
        }
    }

    /// Looks once more, when observing ends, for channels that were made and children that were born since the last look.
    pub(super) fn look_after_all(&mut self) {
        let mut looked = BTreeSet::new();
        // Children may have children; whoever forks without an end is not followed without one.
        for _ in 0..3 {
            let all = self.watched.keys().copied();
            let new = Vec::from_iter(all.filter(|pid| !looked.contains(pid)));
            for pid in new {
                looked.insert(pid);
                if let Some(w) = self.watched.get_mut(&pid) {
                    w.look_now();
                }
                self.look_after(pid);
            }
        }
    }

    /// Reports, when observing ends, what may have been missed of processes that ended, executed another program or unmapped
    /// channels before the last looks at them.
    pub(super) fn report_lost_meanwhile(&mut self) {
        let lost = self.watched.iter().filter(|(_, w)| w.has_lost());
        for pid in lost.map(|(pid, _)| *pid).collect::<Vec<u32>>() {
            if !process::state(pid).lives {
                self.process_gone(pid);
                continue;
            }
            let active = self.active_at(pid);
            let watched = self.watched.get_mut(&pid);
            if let Some(why) = watched.and_then(|w| w.unmapped(active)) {
                self.untraced(pid, why);
            }
            // Its memory is gone a moment before it is seen to have ended.
            self.ended(pid);
        }
    }

    pub(super) fn process_gone(&mut self, pid: u32) {
        self.births.ended();
        self.find_kin();
        self.forget_sleeper(pid);
        self.leave(pid);
        self.ended(pid);
        let Some(watched) = self.watched.remove(&pid) else {
            return;
        };
        self.held.forget(pid);
        self.scheduler.leave(pid);
        self.report_unresolved(pid, watched.unresolved());
        if let Some(why) = watched.unseen(now()) {
            self.untraced(pid, why);
        }
        self.life(pid, Life::Exit { process: true });
    }

    // ---- channels that the user named

    /// Checks whether the channels that the user named can be channels of a running process.
    ///
    /// # Errors
    /// When they cannot.
    pub(super) fn check_named(&self, pid: u32) -> Result<()> {
        let watched = self.watched.get(&pid);
        let process = watched.and_then(|w| w.program.process.as_ref());
        let Some(memory) = process.map(|p| &p.memory) else {
            return Ok(());
        };
        for c in &self.options.named.channels {
            check_channel(memory, c).map_err(|why| {
                Error::new(
                    format!("following the channel with the ring at {:#x} in process {pid}", c.ring),
                    why,
                    "correct the channels file (docs/channels-file.md), or leave --channels out: channels are found by themselves",
                )
            })?;
        }
        Ok(())
    }

    /// Reports that a channel that the user named is followed, or why it is not.
    pub(super) fn report_named(&mut self, channel: &Channel, refused: Option<&io::Error>) {
        if channel.origin == Origin::Given
            && let Some(ring) = channel.ring
        {
            let why = refused.map(ToString::to_string);
            self.named.insert(ring.0, why);
        }
    }

    /// Reports the channels that the user named and that were not followed to the end, with the reasons.
    pub(super) fn report_named_unseen(&mut self) {
        let mut nowhere = Vec::new();
        for channel in std::mem::take(&mut self.options.named.channels) {
            match self.named.get(&channel.ring) {
                Some(None) => {}
                Some(Some(why)) => {
                    let ring = channel.ring;
                    let why = format!(
                        "the channel with the ring at {ring:#x}, which was named, was not followed: {why}"
                    );
                    self.untraced(0, why);
                }
                None => nowhere.push(channel),
            }
        }
        if let Some(why) = named_nowhere(&nowhere) {
            self.untraced(0, why);
        }
    }
}

/// Returns one line which says that these named channels are in no process.
fn named_nowhere(channels: &[NamedChannel]) -> Option<String> {
    let first = channels.first()?;
    let which = match channels.len() {
        1 => format!(
            "the channel with the ring at {:#x}, which was named, was not followed: no process that was observed had both its ring",
            first.ring
        ),
        n => format!(
            "{n} channels that were named, the first with the ring at {:#x}, were not followed: no process that was observed had \
             both a ring of theirs",
            first.ring
        ),
    };
    Some(format!(
        "{which} and its USERD ({:#x}) mapped for reading",
        first.userd
    ))
}

/// Checks whether such a channel is possible in this memory. The error is the reason why it is not.
fn check_channel(memory: &impl ReadMemory, c: &NamedChannel) -> std::result::Result<(), String> {
    let unreadable = |at: u64, e: io::Error| format!("{at:#x} cannot be read: {e}");
    for at in [c.ring, c.ring + 8 * (u64::from(c.entries) - 1)] {
        memory.word(at).map_err(|e| unreadable(at, e))?;
    }
    let (_, put) =
        scan::get_put(memory, c.userd).map_err(|e| unreadable(c.userd + scan::GP_GET, e))?;
    if put >= c.entries {
        return Err(format!(
            "GP_PUT is {put}, which a ring of {} entries cannot have",
            c.entries
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_that_are_nowhere_are_told_in_one_line() {
        assert_eq!(named_nowhere(&[]), None);
        let channel = |ring| NamedChannel {
            ring,
            userd: ring + 0x2000,
            ..NamedChannel::default()
        };
        let one = named_nowhere(&[channel(0x1000)]).unwrap();
        assert!(
            one.starts_with("the channel with the ring at 0x1000"),
            "{one}"
        );
        assert!(one.contains("its USERD (0x3000)"), "{one}");
        let three = named_nowhere(&[channel(0x1000), channel(0x5000), channel(0x9000)]).unwrap();
        assert!(three.starts_with("3 channels that were named"), "{three}");
        assert!(three.contains("were not followed"), "{three}");
    }
}
