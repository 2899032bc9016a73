//! The channel table that the BPF programs walk: channels added, given tokens and translations, and retired.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nvcap_common::{self as c, TokenKey, TokenValue};

use super::{
    super::{
        arm,
        error::{Error, Result},
        space::ChannelState,
    },
    Session, seen_now,
};
use crate::{
    record::{Channel, ChannelId, CpuVa, Lost, Origin, Record},
    source::memory::{find, maps, process::Memory},
};

/// Least and greatest time between two searches of a process's memory, which cost it nothing but nvcap some ms.
pub(super) const SEARCH_PAUSE_NS: (u64, u64) = (2_000_000, 500_000_000);

impl Session {
    pub(super) fn add_channel(
        &mut self,
        space: u32,
        channel: Channel,
        start: u64,
    ) -> Result<Option<u32>> {
        let (Some(ring), Some(entries), Some(userd)) =
            (channel.ring, channel.entries, channel.userd)
        else {
            return Ok(None);
        };
        if !entries.is_power_of_two() || self.by_id.contains_key(&channel.id) {
            return Ok(None);
        }
        let get_put = userd.0 + find::GP_GET;
        let xlate = self.publish_ranges(channel.id, space)?;
        let entry = c::Channel {
            done: start,
            seen: start,
            get_put,
            ring: ring.0,
            entries,
            live: 1,
            space,
            xlate,
            ..c::Channel::default()
        };
        let index = self.loaded.shared.add(entry).ok_or_else(|| {
            Error::new(
                "following a further channel",
                "there have been too many in this trace",
                "start nvcap again",
            )
        })?;
        self.channels.push(ChannelState {
            id: channel.id,
            space,
            gpu: channel.gpu,
            token: channel.token,
            token_told: channel.token.is_some(),
            entries,
            ring: ring.0,
            get_put,
            announced: channel.clone(),
            start,
            taken: start,
            patrolled: (start, start),
            ahead: None,
            looked: false,
            live: true,
        });
        self.by_id.insert(channel.id, index);
        self.spaces.entry(space).or_default().channels.push(index);
        self.out.push(Record::Channel(Box::new(channel)));
        self.publish_token(index)?;
        Ok(Some(index))
    }

    pub(super) fn install_told(&mut self, channel: Channel) -> Result<()> {
        let Some(space) = self.loaded.proc(channel.at.pid).map(|p| p.space) else {
            return Ok(());
        };
        // A ring that was found in memory before it was in use: it is followed already.
        let found = self.spaces.get(&space).and_then(|s| {
            let mut all = s.channels.iter().copied();
            all.find(|i| {
                let c = &self.channels[*i as usize];
                c.live && c.announced.origin == Origin::Found && Some(CpuVa(c.ring)) == channel.ring
            })
        });
        if let Some(index) = found {
            self.by_id.insert(channel.id, index);
            return match channel.token {
                Some(token) => self.learn_token(index, token, true),
                None => Ok(()),
            };
        }
        // Its ring begins at 0 and nothing of it has been missed, however late this is.
        if let Some(index) = self.add_channel(space, channel, 0)? {
            // The driver tells its token before anything can be submitted to it: what is there has a token then.
            self.unpeeked.push(index);
        }
        Ok(())
    }

    /// Looks at the channels whose tokens were not told soon after they were made.
    pub(super) fn peek_rest(&mut self) {
        for index in std::mem::take(&mut self.unpeeked) {
            if self.channels[index as usize].live {
                self.peek(index);
            }
        }
    }

    pub(super) fn own_id(&mut self) -> ChannelId {
        self.own_ids += 1;
        ChannelId(self.own_ids - 1)
    }

    /// `start`: the ring position that it is followed from.
    pub(super) fn install_found(
        &mut self,
        space: u32,
        pid: u32,
        found: &find::Found,
        start: u32,
    ) -> Result<Option<u32>> {
        let known = self.spaces.get(&space).is_some_and(|s| {
            s.channels
                .iter()
                .any(|i| self.channels[*i as usize].ring == found.ring)
        });
        if known {
            return Ok(None);
        }
        let id = self.own_id();
        let channel = found.channel(seen_now(pid), id);
        self.add_channel(space, channel, u64::from(start))
    }

    /// A doorbell was rung for a channel that nobody knows. In a process that was attached to, channels may have been
    /// used for the first time since: its memory is searched again. What was not a ring in use then begins at 0.
    pub(super) fn search_again(&mut self, space: u32) -> Result<()> {
        let now = arm::now();
        let Some(state) = self.spaces.get_mut(&space) else {
            return Ok(());
        };
        let Some(search) = state.search.as_mut().filter(|s| now >= s.next) else {
            return Ok(());
        };
        search.pause = (2 * search.pause).min(SEARCH_PAUSE_NS.1);
        search.next = now + search.pause;
        let Some(pid) = state.pids.first().copied() else {
            return Ok(());
        };
        self.open_memory(space);
        let Some(memory) = self.memory_of(space) else {
            return Ok(());
        };
        let Ok(areas) = maps::areas(pid) else {
            return Ok(());
        };
        let found = find::rings(memory, &areas);
        log::debug!("searched process {pid} again: {} rings", found.len());
        for found in found {
            if let Some(index) = self.install_found(space, pid, &found, 0)? {
                self.peek(index);
            }
        }
        if let Some(state) = self.spaces.get_mut(&space) {
            state.searched = arm::now();
        }
        Ok(())
    }

    /// `memory`: of a process that already runs; its channels begin where they are now.
    pub(super) fn install_given(
        &mut self,
        space: u32,
        pid: u32,
        memory: Option<&Memory>,
    ) -> Result<()> {
        for given in self.options.given.channels.clone() {
            let id = self.own_id();
            let start = memory
                .and_then(|m| m.get_put(given.userd + find::GP_GET).ok())
                .map_or(0, |gp| gp.1);
            let channel = given.channel(seen_now(pid), id);
            self.add_channel(space, channel, u64::from(start & (given.entries - 1)))?;
        }
        let state = self.spaces.entry(space).or_default();
        for d in &self.options.given.doorbells {
            if !state.doorbells.contains(&(d.address, d.gpu)) {
                state.doorbells.push((d.address, d.gpu));
            }
        }
        for index in state.channels.clone() {
            self.publish_token(index)?;
        }
        Ok(())
    }

    pub(super) fn retire(&mut self, id: ChannelId) {
        let Some(index) = self.by_id.get(&id).copied() else {
            return;
        };
        let channel = &self.channels[index as usize];
        if !channel.live {
            return;
        }
        // Last look, while its memory may still be there.
        let _ = self.catch_up(index);
        self.loaded.shared.retire(index);
        self.channels[index as usize].live = false;
        for key in self.token_keys(index) {
            self.loaded.forget_token(key);
        }
        self.count_unfetched(index);
    }

    /// What was seen in the ring but never fetched is lost now.
    pub(super) fn count_unfetched(&mut self, index: u32) {
        let state = self.loaded.shared.get(index);
        let channel = &self.channels[index as usize];
        let (id, pid) = (channel.id, channel.announced.at.pid);
        // What the last patrol saw counts, too, even where no doorbell came any more.
        let patrolled = channel
            .ahead
            .map(|put| channel.position(put, channel.patrolled.1));
        let seen = state.seen.max(patrolled.unwrap_or(0));
        if channel.announced.origin == Origin::Allocated && !channel.looked && state.looks == 0 {
            let why = "a channel was gone before it could be looked at: the process was too short, or the machine too busy";
            let why = why.to_owned();
            self.lost(pid, Some(id), Lost::Blind { why });
        }
        if seen > state.done {
            let what = Lost::Entries {
                position: state.done,
                count: seen - state.done,
            };
            self.lost(pid, Some(id), what);
        }
    }

    /// Tells of doorbells whose channel never became known, at the end of the trace.
    pub(super) fn unknown_channels(&mut self) {
        let mut unknown: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
        for ((space, doorbell, token), count) in std::mem::take(&mut self.orphans) {
            let gpu = self.spaces.get(&space).and_then(|s| {
                let mut all = s.doorbells.iter();
                all.find(|d| d.0 == doorbell).map(|d| d.1)
            });
            // Where the channel became known later, it was walked from its beginning, if anybody looked at all.
            let known = (0..self.channels.len() as u32).find(|index| {
                let ch = &self.channels[*index as usize];
                let state = self.loaded.shared.get(*index);
                ch.space == space
                    && ch.token == Some(token)
                    && (ch.gpu.is_none() || gpu.is_none() || ch.gpu == gpu)
                    && (state.looks > 0 || state.done > 0)
            });
            if let Some(index) = known {
                self.lapped(index, count);
            } else if !self.guesses.contains_key(&(space, doorbell, token)) {
                unknown.entry(space).or_default().push((token, count));
            }
        }
        for (space, tokens) in unknown {
            // Of a program that was soon over: each token is one channel's, and if as many rings were found and
            // followed from their beginning as there are tokens, they are theirs, whichever is whose.
            let guessed: BTreeSet<u32> = self.guesses.values().map(|g| g.0).collect();
            let nameless = self.channels.iter().zip(0..).filter(|(ch, index)| {
                ch.space == space
                    && ch.token.is_none()
                    && !guessed.contains(index)
                    && self.loaded.shared.get(*index).done != ch.start
            });
            if nameless.count() >= tokens.len() {
                continue;
            }
            for (token, count) in tokens {
                let what = Lost::UnknownChannel {
                    token: Some(token),
                    count,
                };
                self.lost(0, None, what);
            }
        }
    }

    pub(super) fn token_keys(&self, index: u32) -> Vec<TokenKey> {
        let channel = &self.channels[index as usize];
        let (Some(token), Some(space)) = (channel.token, self.spaces.get(&channel.space)) else {
            return Vec::new();
        };
        let mine = space
            .doorbells
            .iter()
            .filter(|d| channel.gpu.is_none_or(|g| g == d.1));
        mine.map(|d| TokenKey {
            doorbell: d.0,
            space: channel.space,
            token,
        })
        .collect()
    }

    pub(super) fn publish_token(&mut self, index: u32) -> Result<()> {
        let guessed = u32::from(!self.channels[index as usize].token_told);
        if !self.channels[index as usize].live {
            return Ok(());
        }
        for key in self.token_keys(index) {
            self.loaded.set_token(
                key,
                TokenValue {
                    channel: index,
                    guessed,
                },
            )?;
        }
        Ok(())
    }

    pub(super) fn learn_token(&mut self, index: u32, token: u32, told: bool) -> Result<()> {
        let channel = &mut self.channels[index as usize];
        if channel.token == Some(token) && (channel.token_told || !told)
            || channel.token_told && !told
        {
            return Ok(());
        }
        let old = self.token_keys(index);
        for key in old {
            self.loaded.forget_token(key);
        }
        let channel = &mut self.channels[index as usize];
        channel.token = Some(token);
        channel.token_told = told;
        channel.announced.token = Some(token);
        channel.announced.at.time_ns = arm::now();
        let again = channel.announced.clone();
        self.out.push(Record::Channel(Box::new(again)));
        self.publish_token(index)
    }

    /// Tells the BPF programs what a channel's GPU addresses are in the process; returns the key of it, 0 where they are
    /// the same.
    fn publish_ranges(&mut self, id: ChannelId, space: u32) -> Result<u32> {
        let mut map = self.model.address_map(id);
        let key = (space, self.model.space_of(id));
        let known = self.xlates.get(&key).copied();
        if map.ranges.is_empty() && known.is_none() {
            return Ok(0);
        }
        if map.ranges.len() > c::RANGES {
            // What does not fit is fetched from outside, later.
            map.ranges.retain(|t| t.gpu.0 != t.cpu.0);
            map.ranges.truncate(c::RANGES);
        }
        let mut ranges = c::Ranges {
            count: map.ranges.len() as u32,
            complete: map.complete.into(),
            ranges: [c::Range::default(); c::RANGES],
        };
        for (slot, t) in ranges.ranges.iter_mut().zip(&map.ranges) {
            *slot = c::Range {
                gpu: t.gpu.0,
                len: t.len,
                cpu: t.cpu.0,
            };
        }
        let number = known.unwrap_or(self.xlates.len() as u32 + 1);
        self.loaded.set_ranges(number, ranges)?;
        self.xlates.insert(key, number);
        Ok(number)
    }

    /// Tells the BPF programs what has changed of a process's addresses.
    pub(super) fn retranslate(&mut self, pid: u32) -> Result<()> {
        let Some(space) = self.loaded.proc(pid).map(|p| p.space) else {
            return Ok(());
        };
        let Some(state) = self.spaces.get(&space) else {
            return Ok(());
        };
        let mut done = HashMap::new();
        for index in state.channels.clone() {
            let channel = &self.channels[index as usize];
            if !channel.live {
                continue;
            }
            let id = channel.id;
            let of = self.model.space_of(id);
            let number = match done.get(&of) {
                Some(number) => *number,
                None => self.publish_ranges(id, space)?,
            };
            done.insert(of, number);
            if number != 0 {
                self.loaded.shared.translate(index, number);
            }
        }
        Ok(())
    }
}
