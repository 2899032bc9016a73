//! Fetching from outside, through the process's memory file, what no doorbell fetched: what was submitted before the
//! breakpoint was there, what a full ring buffer or a lost hit left, pages that the BPF programs could not fault in.

use nvcap_common as c;

use super::{
    super::{arm, assemble::Gathered},
    Session, seen_now,
};
use crate::{
    decode::entry,
    record::{How, Lost, Record, Submission},
    source::memory::{process::Memory, ring},
};

impl Session {
    /// Reads from outside what the BPF programs could not: they cannot fault in a page that the process has mapped but
    /// never touched (a forked child's shared memory). True when something was filled.
    pub(super) fn fill_holes(&mut self, g: &mut Gathered) -> bool {
        if g.segments.iter().all(|s| s.holes.is_empty()) {
            return false;
        }
        let space = g.head.space;
        let mut extended = g.head.extended;
        self.open_memory(space);
        let Some(channel) = self.channels.get(g.head.channel as usize) else {
            return false;
        };
        let map = self.model.address_map(channel.id);
        let Some(memory) = self.memory_of(space) else {
            return false;
        };
        let mut filled = false;
        if self.is_ending(space) {
            return false;
        }
        for segment in &mut g.segments {
            let Some((gpu, _)) = entry::pass(segment.entry, &mut extended) else {
                continue;
            };
            let bytes = &mut segment.bytes;
            segment.holes.retain(|hole| {
                let span = hole.offset as usize..(hole.offset + hole.len) as usize;
                let at = map.at(gpu.0 + u64::from(hole.offset));
                let read = match (at, bytes.get_mut(span)) {
                    (Some((cpu, room)), Some(to)) => {
                        room >= u64::from(hole.len) && memory.read(cpu, to).is_ok()
                    }
                    _ => false,
                };
                filled |= read;
                !read
            });
        }
        filled
    }

    /// Looks at every channel for what no doorbell fetched.
    pub(super) fn patrol(&mut self) {
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
            let space = channel.space;
            let ahead = put
                .filter(|p| *p < channel.entries && *p != channel.index(state.done))
                .filter(|_| !self.is_ending(space));
            let channel = &mut self.channels[index as usize];
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
        let wrong = now.own_put_wrong - self.reported.own_put_wrong;
        if wrong > 0 {
            let why = format!(
                "the process's own copy of GP_PUT was found ahead of GP_PUT on {wrong} channels: up to {} submissions of each before that may not be as they were submitted; set NVCAP_NO_OWN_PUT=1 to do without that copy",
                c::GET_EVERY
            );
            self.lost(0, None, Lost::Blind { why });
        }
        self.reported = now;
        let left_out = self.loaded.left_out();
        self.lost_records(
            "driver (calls during which a fentry program was preempted)",
            left_out.saturating_sub(self.reported_left_out),
        );
        self.reported_left_out = left_out;
    }

    pub(super) fn lost_records(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            self.lost(0, None, Lost::Records { kind, count });
        }
    }

    pub(super) fn memory_of(&self, space: u32) -> Option<&Memory> {
        let state = self.spaces.get(&space)?;
        state.pids.iter().find_map(|pid| self.memories.get(pid))
    }

    /// Fetches what was submitted before the breakpoint or the channel was there: no doorbell may come any more.
    pub(super) fn peek(&mut self, index: u32) {
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

    /// The process whose memory is read for this space is ending. The driver then gives up what it had mapped while the
    /// memory itself can still be read: what is read is not what was submitted.
    fn is_ending(&self, space: u32) -> bool {
        let reader = self.spaces.get(&space).and_then(|s| {
            let mut pids = s.pids.iter();
            pids.find(|pid| self.memories.contains_key(pid))
        });
        reader.is_none_or(|pid| is_ending(*pid))
    }

    pub(super) fn open_memory(&mut self, space: u32) {
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
    pub(super) fn catch_up(&mut self, index: u32) -> Option<()> {
        if !self.options.watch {
            return None;
        }
        let space = self.channels[index as usize].space;
        self.open_memory(space);
        self.memory_of(space)?;
        if !self.loaded.shared.claim(index) {
            return None;
        }
        let (mut served, mut passed) = (1, 0);
        while served != 0 {
            passed += served - 1;
            self.take_captured(index);
            let mut done = Vec::new();
            self.assembler.flush(index, &mut done);
            for gathered in done {
                self.gathered(gathered);
            }
            self.release_held(|g| g.head.channel == index);
            self.fetch(index);
            served = self.loaded.shared.served(index, served);
        }
        self.lapped(index, passed);
        Some(())
    }

    /// GP_PUT tells a position within the ring alone. Where as many doorbells came between two looks as the ring has
    /// entries, it may have gone round, and what was read may not be what was submitted.
    pub(super) fn lapped(&mut self, index: u32, doorbells: u64) {
        let channel = &self.channels[index as usize];
        if doorbells < u64::from(channel.entries) {
            return;
        }
        let (id, pid) = (channel.id, channel.announced.at.pid);
        let why = format!(
            "{doorbells} doorbells came before a ring of {} entries could be looked at: it may have gone round",
            channel.entries
        );
        self.lost(pid, Some(id), Lost::Blind { why });
    }

    pub(super) fn fetch(&mut self, index: u32) -> Option<()> {
        let state = self.loaded.shared.get(index);
        let channel = &self.channels[index as usize];
        let memory = self.memory_of(channel.space)?;
        let (get, put) = memory.get_put(channel.get_put).ok()?;
        if put >= channel.entries {
            return None;
        }
        let size = u64::from(channel.entries);
        let target = channel.position(put, state.seen);
        let at = seen_now(channel.announced.at.pid);
        // What was captured and has not come to light is fetched again.
        let mut from = state.done.min(channel.taken);
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
        let map = self.model.address_map(channel.id);
        // No file has that offset: what is nowhere becomes a hole.
        let translate = |address: u64| map.at(address).map_or(1 << 63, |(cpu, _)| cpu);
        let on = ring::Ring {
            address: channel.ring,
            entries: channel.entries,
        };
        let Some(mut segments) = ring::read(memory, on, from, target, &mut extended, translate)
        else {
            // Known to be there: what is not fetched later is counted as lost.
            let shared = &self.loaded.shared;
            shared.progress(index, state.done, target, state.extended);
            return None;
        };
        if !segments.is_empty() && self.is_ending(channel.space) {
            segments.clear();
            lost = Some(Lost::Entries {
                position: state.done.min(channel.taken),
                count: target - state.done.min(channel.taken),
            });
        }
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
            self.lost(at.pid, Some(id), what);
        }
        self.out.extend(record.map(Record::Submission));
        self.channels[index as usize].taken = target;
        self.loaded.shared.progress(index, target, target, extended);
        Some(())
    }
}

/// All threads of the process are on their way out (PF_EXITING), or it is gone.
fn is_ending(pid: u32) -> bool {
    let exiting = |stat: &str| {
        // After the name in parentheses: state is field 3, the flags are field 9.
        let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let flags = after.split_whitespace().nth(6).and_then(|f| f.parse().ok());
        flags.is_none_or(|f: u64| f & 4 != 0)
    };
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    // The first thread may have ended before the others.
    exiting(&read(format!("/proc/{pid}/stat")))
        && !arm::threads(pid).is_ok_and(|all| {
            let mut stats = all
                .iter()
                .map(|tid| read(format!("/proc/{pid}/task/{tid}/stat")));
            stats.any(|stat| !exiting(&stat))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_is_not_ending() {
        assert!(!is_ending(std::process::id()));
    }

    #[test]
    fn who_has_ended_is() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        while !is_ending(pid) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
    }
}
