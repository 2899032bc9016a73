//! Channels in the model: the time from which they can be read, their naming by other sources, and their end.

use super::{
    model::{Change, MAX_CHANNELS, Model},
    object::{ChannelObject, Kind, ObjectRef},
};
use crate::record::{self, ChannelId, Submission};

impl ChannelObject {
    pub(crate) fn to_record(&self) -> record::Channel {
        record::Channel {
            at: record::At {
                pid: self.pid,
                ..self.at
            },
            id: self.id,
            gpu: self.gpu,
            token: self.token,
            class: self.class,
            engine: self.engine,
            handle: self.object.map(|o| (o.client, o.handle)),
            ring_gpu: self.ring_gpu,
            ring: self.ring,
            entries: self.entries,
            userd: self.userd,
            origin: self.origin,
        }
    }

    pub(crate) fn from_record(said: &record::Channel, object: Option<ObjectRef>) -> Self {
        Self {
            at: said.at,
            id: said.id,
            pid: said.at.pid,
            object,
            class: said.class,
            tsg: None,
            context_share: None,
            space: None,
            engine: said.engine,
            gpu: said.gpu,
            token: said.token,
            ring_gpu: said.ring_gpu,
            entries: said.entries,
            userd_at: None,
            notifier: None,
            token_index: 1,
            ring: said.ring,
            userd: said.userd,
            origin: said.origin,
            announced: said.ring.zip(said.userd),
            submissions: 0,
            gp_get: None,
            gp_put: None,
            named: true,
        }
    }

    /// Adds the facts of another description of the same channel.
    pub(crate) fn learn(&mut self, other: &Self) {
        self.object = other.object.or(self.object);
        self.class = other.class.or(self.class);
        self.engine = other.engine.or(self.engine);
        self.gpu = other.gpu.or(self.gpu);
        self.token = other.token.or(self.token);
        self.ring_gpu = other.ring_gpu.or(self.ring_gpu);
        self.entries = other.entries.or(self.entries);
        self.ring = other.ring.or(self.ring);
        self.userd = other.userd.or(self.userd);
        self.announced = self.ring.zip(self.userd);
    }
}

impl Model {
    pub(crate) fn add_channel(&mut self, channel: ChannelObject) {
        let (id, pid) = (channel.id, channel.pid);
        self.channels.insert(id, channel);
        if let Some(process) = self.process(pid) {
            process.waiting.insert(id);
        }
        self.settle(pid);
    }

    /// Checks whether channels of a process that waited for a mapping can now be read.
    pub(crate) fn settle(&mut self, pid: u32) {
        let waiting: Vec<ChannelId> = match self.processes.get(&pid) {
            Some(p) if !p.waiting.is_empty() => p.waiting.iter().copied().collect(),
            _ => return,
        };
        for id in waiting {
            let Some((ring, userd)) = self.locate(id) else {
                continue;
            };
            let gpu = self.gpu_of_channel(id);
            let Some(channel) = self.channels.get_mut(&id) else {
                continue;
            };
            channel.gpu = channel.gpu.or(gpu);
            if ring.is_some() {
                channel.ring = ring;
            }
            if userd.is_some() {
                channel.userd = userd;
            }
            let (Some(ring), Some(userd)) = (channel.ring, channel.userd) else {
                continue;
            };
            let moved = channel.announced != Some((ring, userd));
            channel.announced = Some((ring, userd));
            let (said, token) = (channel.to_record(), channel.token);
            if let Some(process) = self.processes.get_mut(&pid) {
                process.waiting.remove(&id);
            }
            if moved {
                self.changes.push(Change::Channel(Box::new(said)));
                if let Some(token) = token {
                    self.changes.push(Change::Token { channel: id, token });
                }
            }
        }
    }

    /// Counts submissions, by channel and by doorbell page.
    pub(crate) fn submission(&mut self, said: &Submission) {
        if let Some(channel) = self.channels.get_mut(&said.channel) {
            channel.submissions += 1;
            channel.gp_get = said.gp_get.or(channel.gp_get);
            channel.gp_put = Some(said.gp_put);
        }
        if let Some(at) = said.doorbell
            && let Some(process) = self.processes.get_mut(&said.at.pid)
            && let Some((start, map)) = process.maps.range_mut(..=at.0).next_back()
            && at.0 - start < map.len
        {
            map.rung += 1;
        }
    }

    pub(crate) fn set_token(&mut self, id: ChannelId, token: u32) {
        if let Some(channel) = self.channels.get_mut(&id)
            && channel.token != Some(token)
        {
            channel.token = Some(token);
            self.changes.push(Change::Token { channel: id, token });
        }
    }

    pub(crate) fn drop_channel(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.remove(&id) {
            if let Some(process) = self.processes.get_mut(&channel.pid) {
                process.waiting.remove(&id);
            }
            self.changes.push(Change::ChannelGone {
                channel: id,
                pid: channel.pid,
            });
        }
    }

    /// Takes in a channel that a source names: found in memory, given by the user, or read from a capture. The model may know a captured
    /// channel already from the capture's ioctls, under a number of its own.
    pub(crate) fn channel_record(&mut self, said: &record::Channel) {
        self.next_channel = self.next_channel.max(said.id.0.saturating_add(1));
        let object = said
            .handle
            .map(|(client, handle)| ObjectRef { client, handle });
        let same = object.and_then(|at| match self.object(at).map(|o| &o.kind) {
            Some(Kind::Channel(id)) => Some(*id),
            _ => None,
        });
        // The source that names channels numbers them: another channel that already has the number gets a new one.
        let taken = self.channels.get(&said.id).is_some_and(|c| !c.named);
        if taken && same != Some(said.id) {
            let free = self.reserve_channel_id();
            self.rename_channel(said.id, free);
        }
        if let Some(own) = same.filter(|own| *own != said.id) {
            self.rename_channel(own, said.id);
        }
        if self.channels.len() >= MAX_CHANNELS && !self.channels.contains_key(&said.id) {
            self.stats.refused += 1;
            return;
        }
        let fresh = ChannelObject::from_record(said, object);
        let channel = self
            .channels
            .entry(said.id)
            .or_insert_with(|| fresh.clone());
        channel.learn(&fresh);
        channel.named = true;
        let pid = channel.pid;
        let _ = self.process(pid);
    }

    fn rename_channel(&mut self, from: ChannelId, to: ChannelId) {
        if self.channels.contains_key(&to) {
            return;
        }
        let Some(mut channel) = self.channels.remove(&from) else {
            return;
        };
        channel.id = to;
        if let Some(process) = self.processes.get_mut(&channel.pid)
            && process.waiting.remove(&from)
        {
            process.waiting.insert(to);
        }
        if let Some(at) = channel.object
            && let Some(object) = self
                .clients
                .get_mut(&at.client)
                .and_then(|c| c.objects.get_mut(&at.handle))
        {
            object.kind = Kind::Channel(to);
        }
        self.channels.insert(to, channel);
    }
}
