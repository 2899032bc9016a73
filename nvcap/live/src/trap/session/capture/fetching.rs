//! Fetches from the rings, from outside, the entries that no doorbell captured; or skips them, if the user asked for that.

use super::{
    super::catch_up::{self, Fetch, Read},
    Capture,
    newest::Newest,
};
use nvcap_decode::record::{How, Lost, Origin, Submission};
use nvcap_process::procfs;
pub(super) use nvcap_process::procfs::mem::ReadMemory;

/// Tells whether a process of whose channels none can be read has given up its memory, or has ended. `was_there`: one of them could be read before, or was
/// found in memory. Channels that the user named may lie in memory that is not mapped yet: of a process that is there none of them can be read, either.
fn is_given_up(was_there: bool, is_attached_to: bool, is_gone: impl FnOnce() -> bool) -> bool {
    was_there || is_attached_to && is_gone()
}

impl Capture {
    /// Fetches entries that were submitted before the breakpoint or the channel was there, because no further doorbell may come. False if GP_PUT
    /// cannot be read.
    pub(in super::super) fn peek(&mut self, index: u32) -> bool {
        let channel = &self.table[index];
        let (space, at) = (channel.space, channel.get_put);
        self.open_memory(space);
        let put = self.spaces.memory(space).and_then(|m| m.get_put(at).ok());
        let done = self.table.shared().get(index).done;
        let Some(channel) = self.table.get_mut(index) else {
            return false;
        };
        channel.looked |= put.is_some();
        if let Some((_, put)) = put
            && put < channel.entries
            && put != channel.index(done)
        {
            self.catch_up(index);
        }
        put.is_some()
    }

    /// Fetches entries that were submitted before the doorbells of these channels' address space were watched. If none of the channels can be read
    /// any more, the process has given its memory up since, and its last submissions are not known. This is reported only of a process that is
    /// being attached to: doorbells that a traced process maps are watched long before it can ring them.
    pub(in super::super) fn peek_when_watched(&mut self, space: u32, indexes: &[u32]) {
        let live = |index: &u32| self.table[*index].live;
        let live = Vec::from_iter(indexes.iter().copied().filter(live));
        let was_there = live.iter().any(|index| {
            let channel = &self.table[*index];
            channel.looked || channel.announced.origin == Origin::Found
        });
        let mut is_there = false;
        for index in live {
            is_there |= self.peek(index);
        }
        let is_gone = || self.spaces.pids(space).all(|pid| procfs::pages(pid) == 0);
        if is_there {
            self.newly_watched.remove(&space);
        } else if is_given_up(was_there, self.attaching == Some(space), is_gone) {
            self.tell_given_up(space);
        }
    }

    /// Reports a process whose memory was gone when its doorbells were watched, if it is attached to.
    fn tell_given_up(&mut self, space: u32) {
        if self.newly_watched.remove(&space) && self.attaching == Some(space) {
            let pid = self.spaces.pids(space).next().unwrap_or(0);
            let why = "the program had given up its memory, or had ended, when its doorbells were watched: what it submitted shortly before is not known";
            let why = why.to_owned();
            self.out.lost(pid, None, Lost::Untraced { why });
        }
    }

    /// Looks at the channels whose tokens were not told soon after they were made. False if there are none.
    pub(in super::super) fn peek_rest(&mut self) -> bool {
        let rest = std::mem::take(&mut self.unpeeked);
        for index in &rest {
            if self.table[*index].live {
                self.peek(*index);
            }
        }
        !rest.is_empty()
    }

    /// Follows a channel of a process that was there before the trace from the ring's present position, if nothing was captured of it: a ring that
    /// went round while doorbells were being watched lacks nothing. True if following begins there.
    pub(in super::super) fn begin_here(&mut self, index: u32) -> bool {
        let space = self.table[index].space;
        self.open_memory(space);
        if self.table[index].announced.origin != Origin::Found || !self.table.shared().claim(index)
        {
            return false;
        }
        let begins = self.stand_here(index);
        let mut came = self.table.shared().served(index, 1);
        while came > 0 {
            // Doorbells that found it claimed.
            self.take_captured(index);
            self.flush(index);
            self.fetch(index);
            came = self.table.shared().served(index, came);
        }
        begins
    }

    /// Sets the position to GP_PUT, if nothing was captured yet. Only while the channel is claimed.
    fn stand_here(&mut self, index: u32) -> bool {
        let (state, channel) = (self.table.shared().get(index), &self.table[index]);
        if state.done != channel.start || channel.taken != channel.start {
            return false;
        }
        let memory = self.spaces.memory(channel.space);
        let put = memory.and_then(|m| m.get_put(channel.get_put).ok());
        let put = put.map(|(_, put)| put).filter(|p| *p < channel.entries);
        let (Some(put), Some(channel)) = (put, self.table.get_mut(index)) else {
            return false;
        };
        let here = u64::from(put);
        (channel.start, channel.unmoved, channel.taken) = (here, here, here);
        (channel.patrolled, channel.ahead, channel.looked) = ((here, here), None, true);
        let shared = self.table.shared();
        shared.starts_at(index, put);
        shared.progress(index, here, here, state.extended);
        true
    }

    /// Fetches the entries in a channel's ring that were not captured. The channel is claimed meanwhile, and everything that was captured before is
    /// taken out of the ring buffer first, so that the order stays the ring's.
    pub(in super::super) fn catch_up(&mut self, index: u32) -> Option<()> {
        if !self.watch {
            return None;
        }
        let space = self.table[index].space;
        self.open_memory(space);
        self.spaces.memory(space)?;
        if !self.table.shared().claim(index) {
            return None;
        }
        // The first request is this one's own, the others are doorbells that came meanwhile.
        let (mut came, mut doorbells) = (0, 0);
        loop {
            self.take_captured(index);
            self.flush(index);
            let read = match self.skips {
                None => self.fetch(index),
                Some(why) => self.skip(index, why),
            };
            if !read {
                self.table.shared().add_unread(index, came);
            }
            let requests = came.max(1);
            came = self.table.shared().served(index, requests);
            if came == 0 {
                break;
            }
            doorbells += came;
        }
        if self.skips.is_none() {
            self.table.lapped(index, doorbells, &mut self.out);
        }
        Some(())
    }

    /// Reads the ring on from the captured entries. False if GP_PUT could not be read. Only while the channel is claimed.
    fn fetch(&mut self, index: u32) -> bool {
        // Before GP_PUT is read: what is left to a later doorbell after this is looked at again.
        let waiting = self.table.shared().take_waiting(index);
        let state = self.table.shared().get(index);
        let channel = &self.table[index];
        let space = channel.space;
        let Some(memory) = self.spaces.memory(space) else {
            return false;
        };
        let map = || self.addresses(channel.model_id);
        let mut read = match catch_up::fetch(channel, &state, memory, map) {
            Fetch::Nothing => {
                self.table.shared().add_unread(index, waiting);
                return false;
            }
            Fetch::Unreadable { target } => {
                // Known to be there: what is not fetched later is counted as lost.
                let shared = self.table.shared();
                shared.progress(index, state.done, target, state.extended);
                return true;
            }
            Fetch::Read(read) => read,
        };
        if !read.segments.is_empty() && self.spaces.is_ending(space) {
            read.segments.clear();
            let position = state.done.min(channel.taken);
            read.lost = Some(Lost::Entries {
                position,
                count: read.target - position,
            });
        }
        if !read.segments.is_empty() && !self.table.confirms(index, &read.segments) {
            return true;
        }
        self.pass_on_read(index, read, waiting > 0);
        true
    }

    /// Passes on the entries that were read, and notes how far the read went. `waited`: doorbells were left to a later one.
    fn pass_on_read(&mut self, index: u32, read: Read, waited: bool) {
        let channel = &self.table[index];
        let (pid, space) = (channel.announced.at.pid, channel.space);
        if !read.segments.is_empty() {
            match Newest::of(&read, channel.ring) {
                Some(newest) => self.newest.insert(index, newest),
                None => self.newest.remove(&index),
            };
        }
        let (token, prev_put) = (channel.token, channel.index(read.from));
        let (target, extended) = (read.target, read.extended);
        let id = match (read.segments.is_empty(), &read.lost) {
            (true, None) => None,
            (true, Some(_)) => self.table.id_of_loss(index, &mut self.out),
            (false, _) => Some(self.table.announce(index, read.at.time_ns, &mut self.out)),
        };
        if let Some(what) = read.lost {
            self.out.lost(pid, id, what);
        }
        if let Some(id) = id.filter(|_| !read.segments.is_empty()) {
            let record = Submission {
                absent_ns: None,
                at: read.at,
                channel: id,
                token,
                position: read.from,
                gp_get: Some(read.get),
                prev_put,
                gp_put: read.put,
                ip: None,
                doorbell: None,
                how: match waited {
                    true => How::Batched,
                    false => How::Observed,
                },
                late: !waited,
                thread: None,
                segments: read.segments,
            };
            self.pass_on(space, record);
        }
        if let Some(channel) = self.table.get_mut(index) {
            channel.taken = target;
        }
        let shared = self.table.shared();
        shared.progress(index, target, target, extended);
    }

    /// Tells whether the newest entry of the last look is unchanged, which shows that the ring has not gone round since; none where this cannot be
    /// told.
    pub(in super::super) fn newest_stands(&self, index: u32) -> Option<bool> {
        let channel = self.table.get(index)?;
        let newest = self.newest.get(&index)?;
        let done = self.table.shared().get(index).done;
        if newest.ring != channel.ring || newest.behind != done || channel.taken != done {
            return None;
        }
        let memory = self.spaces.memory(channel.space)?;
        let map = self.addresses(channel.model_id);
        let (tail_at, room) = map.at(newest.tail_at)?;
        let is_there = room >= newest.tail.len() as u64;
        is_there
            .then(|| newest.stands(memory, channel.entries, tail_at))
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::is_given_up;

    /// A process of named channels that had ended before they were first looked at: nothing of it could ever be read, and it is told all the same.
    #[test]
    fn a_process_that_ended_before_the_first_look_is_given_up() {
        let never_asked = || -> bool { panic!("its memory need not be looked at") };
        assert!(is_given_up(false, true, || true));
        // It has mapped nothing yet.
        assert!(!is_given_up(false, true, || false));
        // It was traced from its begin.
        assert!(!is_given_up(false, false, never_asked));
        assert!(is_given_up(true, false, never_asked));
    }
}
