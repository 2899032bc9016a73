//! The channel table that the BPF programs walk: adds, announces and retires channels, and gives them tokens.
//!
//! Invariants: a channel's index is its place in the shared table, and stays its own until its address space is freed. A
//! channel gets its number in the trace once, when it becomes known; numbers follow the order in which channels become known.
//! A token is in TOKENS only for a live channel.

mod tokens;

use std::{
    collections::{BTreeMap, HashMap},
    ops::Index,
};

use nvcap_common::{self as c, TokenKey};

use super::{
    super::{
        shared::Shared,
        space::{ChannelState, Doorbells, may_be_same},
        watchpoints,
    },
    bpf_maps::BpfMaps,
    outbox::Outbox,
};
use nvcap_decode::record::{Channel, ChannelId, Lost, Origin, Record, Segment};
use nvcap_process::error::{Error, Result};
pub(super) use nvcap_process::{
    memory::scan,
    procfs::mem::{Memory, ReadMemory},
};

/// Number in a channel's description until the channel is announced.
pub(super) const UNNUMBERED: ChannelId = ChannelId(0);

/// A channel to be added.
#[derive(Debug)]
pub(super) struct NewChannel {
    pub(super) space: u32,
    pub(super) channel: Channel,
    /// Ring position from which the channel is followed.
    pub(super) start: u64,
    /// Number of the channel in the driver model.
    pub(super) model_id: Option<ChannelId>,
}

/// A token that became known, and its channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct LearntToken {
    pub(super) token: u32,
    /// True if the driver told the token; false if it was concluded.
    pub(super) told: bool,
    /// Time at which it became known, ns.
    pub(super) time_ns: u64,
}

/// The channels of an address space, and its doorbells.
#[derive(Debug, Default)]
struct SpaceChannels {
    indexes: Vec<u32>,
    doorbells: Doorbells,
}

/// The channels that are followed, or were.
#[derive(Debug)]
pub(super) struct ChannelTable {
    shared: Shared,
    channels: Vec<ChannelState>,
    /// Channels by their number in the driver model.
    by_model_id: HashMap<ChannelId, u32>,
    spaces: BTreeMap<u32, SpaceChannels>,
    /// Number for the next channel that becomes known.
    next_id: u32,
}

impl Index<u32> for ChannelTable {
    type Output = ChannelState;

    /// Returns the channel with an index that this table gave.
    fn index(&self, index: u32) -> &ChannelState {
        &self.channels[index as usize]
    }
}

impl ChannelTable {
    pub(super) fn new(shared: Shared) -> Self {
        Self {
            shared,
            channels: Vec::new(),
            by_model_id: HashMap::new(),
            spaces: BTreeMap::new(),
            next_id: 0,
        }
    }

    /// Returns a channel by an index from another source.
    pub(super) fn get(&self, index: u32) -> Option<&ChannelState> {
        self.channels.get(index as usize)
    }

    /// Returns a channel, to note how far it was looked at and passed on.
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut ChannelState> {
        self.channels.get_mut(index as usize)
    }

    /// Returns the indexes that channels have or had.
    pub(super) fn indexes(&self) -> std::ops::Range<u32> {
        0..self.channels.len() as u32
    }

    /// Returns the state that is shared with the BPF programs: a channel's position, and the claim on it.
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns the channel with this number in the records.
    pub(super) fn announced(&self, id: ChannelId) -> Option<&ChannelState> {
        self.channels.iter().find(|c| c.id == Some(id))
    }

    /// Returns the index of the channel with this number in the driver model.
    pub(super) fn of_model(&self, id: ChannelId) -> Option<u32> {
        self.by_model_id.get(&id).copied()
    }

    /// True if any channel is known.
    pub(super) fn any_announced(&self) -> bool {
        self.next_id > 0
    }

    /// True if a channel or a doorbell of the space is known.
    pub(super) fn has_space(&self, space: u32) -> bool {
        self.spaces.contains_key(&space)
    }

    /// Returns the channels of a space.
    pub(super) fn of_space(&self, space: u32) -> Vec<u32> {
        let state = self.spaces.get(&space);
        state.map_or_else(Vec::new, |s| s.indexes.clone())
    }

    /// Returns the spaces that have channels.
    pub(super) fn spaces_with_channels(&self) -> Vec<u32> {
        let all = self.spaces.iter();
        let with = all.filter(|(_, s)| !s.indexes.is_empty());
        with.map(|(space, _)| *space).collect()
    }

    /// Returns the spaces that have doorbells.
    pub(super) fn spaces_with_doorbells(&self) -> Vec<u32> {
        let all = self.spaces.iter();
        let with = all.filter(|(_, s)| !s.doorbells.is_empty());
        with.map(|(space, _)| *space).collect()
    }

    /// Returns the doorbells of a space.
    pub(super) fn doorbells(&self, space: u32) -> Option<&Doorbells> {
        self.spaces.get(&space).map(|s| &s.doorbells)
    }

    /// Adds a doorbell to a space. Publish the tokens of the space's channels afterwards.
    pub(super) fn add_doorbell(&mut self, space: u32, address: u64, gpu: Option<u32>) {
        let state = self.spaces.entry(space).or_default();
        state.doorbells.add(address, gpu);
    }

    fn in_space(&self, space: u32) -> impl Iterator<Item = (u32, &ChannelState)> {
        let indexes = self.spaces.get(&space).into_iter().flat_map(|s| &s.indexes);
        indexes.map(|i| (*i, &self[*i]))
    }

    /// True if a channel of the space has this ring, or had it.
    pub(super) fn is_followed(&self, space: u32, ring: u64) -> bool {
        self.in_space(space).any(|(_, ch)| ch.ring == ring)
    }

    /// Returns the live channel with that ring which the driver has not reported yet: the user named it, or it was found in
    /// memory before it was in use.
    pub(super) fn untold_at(&self, space: u32, ring: u64) -> Option<u32> {
        let mut all = self.in_space(space);
        let found = all.find(|(_, ch)| ch.live && ch.model_id.is_none() && ch.ring == ring);
        found.map(|(index, _)| index)
    }

    /// True if a live channel of the space has the token.
    pub(super) fn has_token(&self, space: u32, token: u32) -> bool {
        let mut all = self.channels.iter();
        all.any(|ch| ch.space == space && ch.live && ch.token == Some(token))
    }

    /// True if the token that was rung is a live channel's.
    pub(super) fn is_known(&self, key: &TokenKey) -> bool {
        self.with_token(key).any(|(_, ch)| ch.live)
    }

    /// True if the GP_PUT of a channel of the space can be read, or the space has no channel.
    pub(super) fn is_laid_out(&self, space: u32, memory: &Memory) -> bool {
        let mut all = self.in_space(space).filter(|(_, ch)| ch.live).peekable();
        all.peek().is_none() || all.any(|(_, ch)| memory.get_put(ch.get_put).is_ok())
    }

    /// True if no look was made at the live channel with the token, so that the contents of its ring are not known.
    pub(super) fn is_unseen(&self, key: &TokenKey) -> bool {
        let mut all = self.with_token(key);
        all.any(|(index, ch)| ch.live && !self.was_looked_at(index))
    }

    /// Returns a channel with the token that was looked at at least once, so that the contents of its ring are known.
    pub(super) fn looked_at_with(&self, key: &TokenKey) -> Option<u32> {
        let mut all = self.with_token(key);
        all.find(|(index, _)| self.was_looked_at(*index))
            .map(|(index, _)| index)
    }

    /// Returns the channels, live or not, for which a doorbell with this token may be.
    fn with_token(&self, key: &TokenKey) -> impl Iterator<Item = (u32, &ChannelState)> {
        let gpu = self.doorbells(key.space);
        let gpu = gpu.and_then(|d| d.gpu(key.doorbell));
        let token = Some(key.token);
        self.in_space(key.space)
            .filter(move |(_, ch)| ch.token == token && may_be_same(ch.gpu, gpu))
    }

    fn was_looked_at(&self, index: u32) -> bool {
        let state = self.shared.get(index);
        let channel = &self[index];
        channel.looked || state.looks > 0 || state.done != channel.start
    }

    /// True if a live channel of the same GPU as channel `index` certainly has the token.
    pub(super) fn is_taken(&self, space: u32, token: u32, index: u32) -> bool {
        let gpu = self[index].gpu;
        let mut all = self.channels.iter();
        all.any(|o| {
            o.space == space && o.token == Some(token) && o.token_certain && o.live && o.gpu == gpu
        })
    }

    /// Tells whether the channel can be followed: the place of its ring must be known, and its number in the driver model must
    /// be new.
    pub(super) fn takes(&self, channel: &Channel, model_id: Option<ChannelId>) -> bool {
        let places = (channel.ring, channel.entries, channel.userd);
        let (Some(_), Some(entries), Some(_)) = places else {
            return false;
        };
        entries.is_power_of_two() && model_id.is_none_or(|id| !self.by_model_id.contains_key(&id))
    }

    /// Adds a channel and publishes its token. `xlate`: the key of its address translation. None where the channel cannot be
    /// followed.
    ///
    /// # Errors
    /// When there is no room for a further channel, or a map cannot be written.
    pub(super) fn add(
        &mut self,
        new: NewChannel,
        xlate: u32,
        maps: &mut impl BpfMaps,
    ) -> Result<Option<u32>> {
        let NewChannel {
            space,
            channel,
            start,
            model_id,
        } = new;
        let places = (channel.ring, channel.entries, channel.userd);
        let (Some(ring), Some(entries), Some(userd)) = places else {
            return Ok(None);
        };
        let get_put = userd.0 + scan::GP_GET;
        let entry = c::SharedChannel {
            done: start,
            seen: start,
            get_put,
            ring: ring.0,
            entries,
            live: 1,
            space,
            xlate,
            start: start as u32 & (entries.wrapping_sub(1)),
            ..c::SharedChannel::default()
        };
        let index = self.shared.add(entry).ok_or_else(|| {
            Error::new(
                "following a further channel",
                "there are too many at once",
                "trace fewer processes or GPUs",
            )
        })?;
        let new = ChannelState {
            id: None,
            model_id,
            space,
            gpu: channel.gpu,
            token: channel.token,
            token_certain: channel.token.is_some(),
            token_doubted: false,
            guess: None,
            entries,
            ring: ring.0,
            get_put,
            announced: channel,
            start,
            unmoved: start,
            taken: start,
            patrolled: (start, start),
            counted: 0,
            unrung: 0,
            skipped: (0, 0),
            ahead: None,
            beyond: 0,
            looked: false,
            live: true,
        };
        // The place of one that is gone, or a new one.
        match self.channels.get_mut(index as usize) {
            Some(place) => *place = new,
            None => self.channels.push(new),
        }
        self.by_model_id.extend(model_id.map(|id| (id, index)));
        self.spaces.entry(space).or_default().indexes.push(index);
        self.publish_token(index, maps)?;
        Ok(Some(index))
    }

    /// Takes note that a ring counts as a channel's by number alone, and has been looked at once.
    pub(super) fn taken_by_number(&mut self, index: u32) {
        self.channels[index as usize].unmoved = self.shared.get(index).done;
    }

    /// True if the channel's ring has moved while it was followed. Remains of a ring never do.
    pub(super) fn has_moved(&self, index: u32) -> bool {
        self.shared.get(index).done != self[index].unmoved
    }

    /// Takes note that the driver has reported a channel that is followed already.
    pub(super) fn adopt(&mut self, index: u32, model_id: ChannelId) {
        self.by_model_id.insert(model_id, index);
        self.channels[index as usize].model_id = Some(model_id);
    }

    /// Returns the channel's number in the trace. A channel that was not known gets the next number, and becomes known by the
    /// event at `time_ns`.
    pub(super) fn announce(&mut self, index: u32, time_ns: u64, out: &mut Outbox) -> ChannelId {
        let channel = &mut self.channels[index as usize];
        if let Some(id) = channel.id {
            return id;
        }
        let id = ChannelId(self.next_id);
        self.next_id += 1;
        channel.id = Some(id);
        channel.announced.id = id;
        channel.announced.at.time_ns = time_ns;
        let said = channel.announced.clone();
        out.push(Record::Channel(Box::new(said)));
        id
    }

    /// Announces a channel of which something is missing, as [`Self::announce`] does; none for what only looked like a
    /// channel.
    pub(super) fn id_of_loss(&mut self, index: u32, out: &mut Outbox) -> Option<ChannelId> {
        let channel = &self[index];
        let doubtful = channel.id.is_none() && channel.announced.origin == Origin::Found;
        (!doubtful).then(|| self.announce(index, watchpoints::now(), out))
    }

    /// Tells whether a channel that was found in memory is one. If it was never used while it was followed, it may be the
    /// remains of one. It is no channel if the memory that its entries point to can be read and holds no methods. (Graphics
    /// clients' memory cannot be read.)
    pub(super) fn confirms(&self, index: u32, segments: &[Segment]) -> bool {
        let Some(channel) = self.get(index) else {
            return false;
        };
        if channel.id.is_some() || channel.announced.origin != Origin::Found {
            return true;
        }
        let mut with_bytes = segments.iter().filter(|s| !s.bytes.is_empty()).peekable();
        with_bytes.peek().is_some()
            && with_bytes.any(|s| !s.holes.is_empty() || scan::is_methods(&s.bytes, s.bytes.len()))
    }

    /// Removes what looked like a channel and is none.
    pub(super) fn dismiss(&mut self, index: u32, maps: &mut impl BpfMaps) {
        log::debug!("what was found at index {index} is no channel");
        self.shared.retire(index);
        self.forget_tokens(index, maps);
        self.channels[index as usize].live = false;
        let channel = &mut self.channels[index as usize];
        (channel.token, channel.guess) = (None, None);
    }

    /// Stops capturing a channel. Its token stays in TOKENS until it is forgotten.
    pub(super) fn retire(&mut self, index: u32) {
        self.shared.retire(index);
        self.channels[index as usize].live = false;
    }

    /// Lets other channels take the places of an address space's channels. The captures of these have been taken out of the
    /// ring buffer.
    pub(super) fn free_space(&mut self, space: u32) {
        let state = self.spaces.remove(&space).unwrap_or_default();
        self.by_model_id.retain(|_, i| !state.indexes.contains(i));
        self.shared.free(space, &state.indexes);
    }

    /// Reports a possible lap. GP_PUT only tells a position within the ring. If as many doorbells came between two looks as
    /// the ring has entries, the ring may have gone round, and what was read may not be what was submitted.
    pub(super) fn lapped(&mut self, index: u32, doorbells: u64, out: &mut Outbox) {
        let channel = &self[index];
        if doorbells < u64::from(channel.entries) {
            return;
        }
        let pid = channel.announced.at.pid;
        let why = format!(
            "{doorbells} doorbells came before a ring of {} entries could be looked at: it may have gone round",
            channel.entries
        );
        let id = self.id_of_loss(index, out);
        out.lost(pid, id, Lost::Untraced { why });
    }

    /// Counts entries as lost that were seen in the ring but never fetched.
    pub(super) fn count_unfetched(&mut self, index: u32, out: &mut Outbox) {
        let state = self.shared.get(index);
        let channel = &self[index];
        let pid = channel.announced.at.pid;
        // What the last patrol saw counts, too, even where no doorbell came any more.
        let seen = state.seen.max(channel.ahead.unwrap_or(0));
        if channel.announced.origin == Origin::Allocated && !channel.looked && state.looks == 0 {
            let why = "a channel was gone before it could be looked at: the process was too short, or the machine too busy";
            let why = why.to_owned();
            let id = self.id_of_loss(index, out);
            out.lost(pid, id, Lost::Untraced { why });
        }
        self.tell_unreadable(index, out);
        if seen > state.done
            && let Some(id) = self.id_of_loss(index, out)
        {
            let what = Lost::Entries {
                position: state.done,
                count: seen - state.done,
            };
            out.lost(pid, Some(id), what);
        }
    }

    /// Reports what may be missing of a channel beside missing positions.
    pub(super) fn tell_unreadable(&mut self, index: u32, out: &mut Outbox) {
        let state = self.shared.get(index);
        let pid = self[index].announced.at.pid;
        for why in unreadable(&self[index], &state) {
            if let Some(id) = self.id_of_loss(index, out) {
                out.lost(pid, Some(id), Lost::Untraced { why });
            }
        }
    }
}

/// Returns the reasons why something of a channel may be missing beside missing positions.
fn unreadable(channel: &ChannelState, state: &c::SharedChannel) -> Vec<String> {
    let mut all = Vec::new();
    let unread = state.unread + state.waiting;
    if unread > 0 {
        all.push(format!(
            "GP_PUT could not be read at the last doorbells, whose submissions are not known: {}",
            unread
        ));
    }
    let beyond = channel.beyond + u64::from(state.beyond);
    if beyond > 0 {
        all.push(format!(
            "GP_PUT was beyond a ring of {} entries at {beyond} looks: the ring is another, or has another size",
            channel.entries
        ));
    }
    all
}

#[cfg(test)]
mod tests;
