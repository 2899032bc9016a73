//! Looks that no record asks for: at all channels from time to time, at those that the user named more often, and at the driver's modules; and
//! reports at the end of an address space or of the trace.

use nvcap_process::error::Result;
use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{kprobes::Change, program::BpfPrograms, watchpoints},
    Session,
    breakpoints::UNSET_NS,
    capture::put_check::PutCheck,
    modules::{unseen, users_of_driver},
    named_channels::LookResult,
};
use nvcap_decode::record::{Lost, Origin};
use nvcap_process::memory::maps;

impl Session {
    /// Looks at every channel for entries that no doorbell fetched.
    pub(super) fn look_at_all(&mut self) {
        for space in self.capture.table.spaces_with_channels() {
            self.capture.open_memory(space);
        }
        let (now, mut moved) = (watchpoints::now(), BTreeSet::new());
        let mut whole = BTreeMap::new();
        if self.options.watch {
            for index in self.capture.table.indexes() {
                if self.capture.table[index].live {
                    let look = self.check_put(index);
                    let of_space = whole.entry(self.capture.table[index].space);
                    *of_space.or_insert(true) &= look.readable && !look.ahead;
                    let waits = self.capture.table.shared().get(index).waiting > 0;
                    if look.still && !waits && self.capture.skips.is_none() {
                        self.moved_unseen(index);
                        moved.insert(self.capture.table[index].space);
                    }
                    if look.still || look.unread {
                        self.capture.catch_up(index);
                    }
                }
            }
        }
        for (space, whole) in whole {
            self.stores.looked(space, now, whole);
        }
        let mut pids = self.breakpoints.take_new();
        pids.extend(moved.iter().flat_map(|s| self.capture.spaces.pids(*s)));
        for pid in pids {
            self.look_for_turns(pid);
        }
        let stats = self.capture.bpf.stats();
        let left_out = self.capture.bpf.left_out();
        for what in self.patrol.losses(&stats, left_out) {
            self.capture.out.lost(0, None, what);
        }
        if let Some(notice) = self.lag.notice(watchpoints::now(), &stats) {
            (self.options.notice)(&notice);
        }
    }

    /// Looks at the channels of processes in which not every doorbell is watched, and fetches what no trap captures.
    pub(super) fn look_at_unwatched(&mut self, now: u64) {
        let capture = &self.capture;
        let spaces = |pid| capture.bpf.proc(pid).map(|p| p.space).into_iter().collect();
        for space in self.stores.due(now, spaces) {
            self.capture.open_memory(space);
            let mut whole = true;
            let mut moved = BTreeSet::new();
            for index in self.capture.table.of_space(space) {
                let channel = &self.capture.table[index];
                let (live, room) = (channel.live, u64::from(channel.entries) / 4);
                if !live {
                    continue;
                }
                let look = self.check_put(index);
                whole &= look.readable && !look.ahead;
                // A trap may be on its way, of a thread that has the doorbell watched.
                if look.still || look.count > room {
                    let skips = self.capture.skips.is_some();
                    let waits = self.capture.table.shared().get(index).waiting > 0;
                    if look.still && !skips && !waits {
                        moved.insert(self.capture.table[index].gpu);
                    }
                    if !skips && self.has_lapped(index, look.count) {
                        self.may_have_lapped(
                            index,
                            "its doorbell is not watched, for no debug register was left",
                        );
                    }
                    self.capture.catch_up(index);
                }
            }
            self.stores.looked(space, now, whole);
            if !moved.is_empty() {
                self.missed_at_taught(space);
                self.move_registers(space, &moved, now);
            }
        }
    }

    /// Checks whether the kernel has given threads of a process more breakpoints than there are debug registers. The breakpoints then take
    /// turns, and the process may be refused new threads. In that case this trace gives up its own breakpoints, and looks at the rings often
    /// from then on.
    fn look_for_turns(&mut self, pid: u32) {
        if !self.breakpoints.any(pid) || self.breakpoints.unset_ns(pid) < UNSET_NS {
            return;
        }
        let now = watchpoints::now();
        for address in Vec::from_iter(self.breakpoints.doorbells(pid)) {
            self.stores.unwatched((pid, address), now);
        }
        for space in self.capture.table.spaces_with_channels() {
            if self.capture.spaces.is_in(pid, space) {
                self.stores.partial(space);
            }
        }
        self.breakpoints.close(pid);
        (self.options.notice)(&format!(
            "process {pid}: the kernel gave its threads more breakpoints than there are debug registers; this trace gives up its own, and looks at the rings every ms or two"
        ));
    }

    /// Takes note that a ring has moved without a trap.
    fn moved_unseen(&mut self, index: u32) {
        let space = self.capture.table[index].space;
        if self.stores.rests(space) {
            // Between two looks it may have gone round. It is not left to chance again.
            self.stores.partial(space);
            self.may_have_lapped(
                index,
                "another store rang than those that are stopped at, while watchpoints rested",
            );
        }
        self.stores.moved_unseen(space, watchpoints::now());
    }

    /// Tells whether a ring with this many new entries may have gone round since the look before. If the newest entry of that look and its
    /// memory are unchanged, it has not, however long ago the look was.
    fn has_lapped(&self, index: u32, new: u64) -> bool {
        match self.capture.newest_stands(index) {
            Some(stands) => !stands,
            None => {
                let entries = self.capture.table[index].entries;
                self.stores.may_have_lapped(new, entries.into())
            }
        }
    }

    fn may_have_lapped(&mut self, index: u32, why: &str) {
        let capture = &mut self.capture;
        let pid = capture.table[index].announced.at.pid;
        let id = capture.table.id_of_loss(index, &mut capture.out);
        let why = format!("{why}: its ring may have gone round between two looks");
        capture.out.lost(pid, id, Lost::Untraced { why });
    }

    /// Disables watchpoints where a store is stopped at that captures, and enables them where something moved unseen.
    pub(super) fn rest_or_wake(&mut self, now: u64) {
        for space in std::mem::take(&mut self.capture.stopped) {
            self.stores.captured(space);
        }
        for (space, wake) in self.stores.changes(now) {
            log::debug!(
                "space {space}: watchpoints {}",
                if wake { "wake" } else { "rest" }
            );
            for pid in self.capture.spaces.pids(space) {
                self.breakpoints.wake(pid, wake && !self.is_resting());
            }
        }
    }

    fn check_put(&mut self, index: u32) -> PutCheck {
        let look = self.capture.check_put(index);
        let channel = &self.capture.table[index];
        if look.readable && channel.announced.origin == Origin::Given {
            self.named_is_there(channel.space, index);
        }
        look
    }

    /// Takes note that the memory of a named channel is there: the channel exists.
    pub(super) fn named_is_there(&mut self, space: u32, index: u32) {
        let capture = &mut self.capture;
        if let Some(channel) = capture.table.get_mut(index) {
            channel.looked = true;
        }
        self.named.is_there(space);
        capture
            .table
            .announce(index, watchpoints::now(), &mut capture.out);
    }

    /// Looks at the named channels of programs whose doorbells were not seen. They are announced when their memory is there, and entries that
    /// come without a doorbell are fetched.
    pub(super) fn look_at_named(&mut self, now: u64) {
        if !self.options.watch {
            return;
        }
        for space in self.named.due(now) {
            if self.capture.spaces.pids(space).next().is_none() {
                continue;
            }
            // Where not every doorbell is watched, rings move unseen, and are looked at for that reason.
            let unwatched = self.stores.lacks(self.capture.spaces.pids(space));
            let idle = unwatched || self.capture.rung.has(space);
            let moved = !idle && self.look_at_named_of(space);
            let rung = self.capture.rung.has(space);
            self.named.looked(space, now, LookResult { moved, rung });
        }
    }

    /// Looks at the named channels of a space. True if a ring has moved.
    fn look_at_named_of(&mut self, space: u32) -> bool {
        self.capture.open_memory(space);
        let mut moved = false;
        for index in self.capture.table.of_space(space) {
            let channel = &self.capture.table[index];
            if !channel.live || channel.announced.origin != Origin::Given {
                continue;
            }
            let look = self.check_put(index);
            if look.ahead && !self.is_resting() {
                moved = true;
                let first = self.capture.spaces.pids(space).next();
                let areas = || first.and_then(|pid| maps::areas(pid).ok());
                self.named.moved_unrung(space, areas);
            }
            if look.still {
                self.capture.catch_up(index);
            }
        }
        moved
    }

    /// Reports, at the end of the trace or of these address spaces, rings that moved although no doorbell was seen.
    pub(super) fn report_unrung(&mut self, of: impl Fn(u32) -> bool) {
        let capture = &mut self.capture;
        let over = |space| of(space) && !capture.rung.has(space);
        for what in self.named.take_unrung(over) {
            capture.out.lost(0, None, what);
        }
    }

    /// Reports, at the end of the trace, that nothing the user named was ever there.
    pub(super) fn report_never_there(&mut self) {
        let capture = &mut self.capture;
        let silent = !capture.table.any_announced() && !capture.rung.any();
        let never = self.named.never_there();
        if let Some(what) = never.filter(|_| silent && self.options.watch) {
            capture.out.lost(0, None, what);
        }
    }

    /// Reports, at the end of the trace or of these address spaces, doorbells whose channel never became known.
    pub(super) fn report_unknown_channels(&mut self, of: impl Fn(u32) -> bool) {
        let capture = &mut self.capture;
        let (table, tokens) = (&mut capture.table, &mut capture.tokens);
        let mut unknown: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
        for (key, count) in tokens.take_orphans(of) {
            // Where the channel became known later, it was walked from its beginning, if anybody looked at all.
            if let Some(index) = table.looked_at_with(&key) {
                table.lapped(index, count, &mut capture.out);
            } else if !tokens.was_found(&key) {
                unknown
                    .entry(key.space)
                    .or_default()
                    .push((key.token, count));
            }
        }
        for (space, unknown) in unknown {
            // Of a program that was soon over: each token is one channel's. If as many rings moved and were followed as tokens
            // were rung whose channel nobody knows, they are theirs, whichever is whose.
            let doorbells = table.doorbells(space);
            let without_channel: BTreeSet<(Option<u32>, u32)> = tokens
                .unowned_of(space)
                .filter(|key| table.looked_at_with(key).is_none())
                .map(|key| (doorbells.and_then(|d| d.gpu(key.doorbell)), key.token))
                .collect();
            let nameless = table.indexes().filter(|index| {
                let ch = &table[*index];
                ch.space == space && ch.token.is_none() && table.has_moved(*index)
            });
            if nameless.count() >= without_channel.len().max(unknown.len()) {
                continue;
            }
            for (token, count) in unknown {
                let what = Lost::UnknownChannel {
                    token: Some(token),
                    count,
                };
                capture.out.lost(0, None, what);
            }
        }
    }

    /// Follows the driver's modules. `since`: a module other than before was not loaded earlier than this.
    ///
    /// # Errors
    /// When the machine's state can no longer be kept up to date (map updates are refused).
    pub(super) fn follow_modules(&mut self, since: u64) -> Result<()> {
        let capture = &mut self.capture;
        if let Some(config) = self.modules.refresh_majors() {
            capture.bpf.set_config(config)?;
        }
        let Some(discovery) = &mut capture.bpf.discovery else {
            return Ok(());
        };
        let changed = discovery.refresh(&mut BpfPrograms::of(&mut capture.bpf.bpf));
        let now = watchpoints::now();
        self.modules.looked(now);
        match changed {
            Ok(Change::None) => {}
            Ok(Change::Gone) => (self.options.notice)("the NVIDIA driver was unloaded"),
            Ok(Change::Attached) => {
                self.modules.was_unwatched(since, now);
                // The BPF programs know of children that this program has yet to hear of.
                for pid in users_of_driver() {
                    if capture.bpf.proc(pid).is_some() {
                        capture.out.untraced(pid, &unseen(pid));
                    }
                }
                (self.options.notice)(
                    "the NVIDIA driver was loaded again; its calls are followed again",
                );
            }
            Err(e) => capture.out.untraced(0, &e),
        }
        Ok(())
    }
}
