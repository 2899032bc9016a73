//! Allocation of a channel: the facts in its parameters and in its place among the objects.

use super::{
    call::{Call, Structure},
    model::{MAX_CHANNELS, Model},
    object::{ChannelObject, Kind, ObjectRef, Space},
};
use crate::record::Origin;
use crate::wire::GpuVa;

/// Notifier record that holds the token, unless the client chooses another (NV_CHANNELGPFIFO_NOTIFICATION_TYPE_WORK_SUBMIT_TOKEN).
const TOKEN_INDEX: u32 = 1;

/// The most bytes that a newer release may have inserted into a structure before a field that is looked for.
const MOST_GROWN: usize = 32;

/// Parameters of a channel's allocation; all absent if they were not captured.
struct Parameters<'a> {
    structure: Option<Structure<'a>>,
    /// Bytes that the driver's structure has, beyond the layout, before hUserdMemory.
    grown: usize,
}

impl Parameters<'_> {
    fn get(&self, name: &str) -> Option<u64> {
        self.structure.as_ref()?.get(name)
    }

    /// Returns a handle or another number; `None` if it is 0.
    fn nonzero(&self, name: &str) -> Option<u32> {
        self.structure.as_ref()?.u32(name).filter(|h| *h != 0)
    }

    /// Returns the first element of an array with one element per subdevice. Elements have `size` bytes.
    fn first(&self, name: &str, size: usize) -> Option<u64> {
        let structure = self.structure.as_ref()?;
        let grown = self.grown.next_multiple_of(size);
        structure.number_at(structure.layout?.field(name)?.offset + grown, size)
    }

    /// Returns the memory with USERD, and the offset of USERD in it.
    fn userd(&self) -> Option<(u32, u64)> {
        self.first("hUserdMemory", 4)
            .and_then(|h| u32::try_from(h).ok())
            .filter(|h| *h != 0)
            .zip(self.first("userdOffset", 8))
    }

    /// Returns the engine, if the layout gives its place, which is behind hUserdMemory.
    fn engine(&self) -> Option<u32> {
        self.nonzero("engineType").filter(|_| self.grown == 0)
    }
}

impl Model {
    /// Adds a channel to the objects and to the channels.
    pub(crate) fn alloc_channel(
        &mut self,
        call: &Call<'_>,
        at: ObjectRef,
        parent: u32,
        class: u32,
    ) {
        let pid = call.ioctl.at.pid;
        if self.channels.len() >= MAX_CHANNELS {
            self.stats.refused += 1;
            return;
        }
        // An old channel with that handle must go before this one gets its number.
        if self.object(at).is_some() {
            self.free(at);
        }
        let id = self.reserve_channel_id();
        if !self.insert(pid, at, parent, class, Kind::Channel(id)) {
            return;
        }
        let params = self.channel_parameters(call, at.client);
        let tsg = self.group_engine(at.client, parent).map(|_| parent);
        let context_share = params.nonzero("hContextShare");
        let engine = params
            .engine()
            .or_else(|| self.group_engine(at.client, tsg?)?);
        let space = self.space_of_channel(at, params.nonzero("hVASpace"), context_share, tsg);
        self.add_channel(ChannelObject {
            at: call.ioctl.at,
            id,
            pid,
            object: Some(at),
            class: Some(class),
            tsg,
            context_share,
            space,
            engine,
            gpu: None,
            token: None,
            ring_gpu: params.get("gpFifoOffset").map(GpuVa),
            entries: params
                .get("gpFifoEntries")
                .and_then(|e| u32::try_from(e).ok()),
            userd_at: params.userd(),
            notifier: params.nonzero("hObjectError"),
            token_index: TOKEN_INDEX,
            ring: None,
            userd: None,
            origin: Origin::Allocated,
            announced: None,
            submissions: 0,
            gp_get: None,
            gp_put: None,
            named: false,
        });
    }

    fn channel_parameters<'a>(&self, call: &Call<'a>, client: u32) -> Parameters<'a> {
        let structure = call.nested;
        let grown = structure
            .as_ref()
            .and_then(|p| self.grown_before_userd(p, client));
        Parameters {
            structure,
            grown: grown.unwrap_or(0),
        }
    }

    /// Returns the engine of a channel group, if known; `None` if the object is no channel group.
    fn group_engine(&self, client: u32, handle: u32) -> Option<Option<u32>> {
        match self.object(ObjectRef { client, handle })?.kind {
            Kind::Tsg { engine, .. } => Some(engine),
            _ => None,
        }
    }

    /// Returns the bytes that a release newer than the tables has inserted before hUserdMemory. No size tells them, because RM takes a
    /// channel's parameters whatever size the call names. They are found by the handle itself, which must be one of this client's memory.
    /// `None` if the layout is certain, or if no such handle is near.
    fn grown_before_userd(&self, params: &Structure<'_>, client: u32) -> Option<usize> {
        let layout = params.layout.filter(|_| params.is_guess)?;
        let offset = layout.field("hUserdMemory")?.offset;
        let is_memory = |grown: &usize| {
            let handle = params.u32_at(offset + grown).unwrap_or(0);
            let at = ObjectRef { client, handle };
            let object = self.object(at).filter(|_| handle != 0);
            object.is_some_and(|o| matches!(o.kind, Kind::Memory(_)))
        };
        (0..=MOST_GROWN).step_by(4).find(is_memory)
    }

    /// Returns the address space of a channel: its own, its context share's, its group's, or its device's default one.
    pub(crate) fn space_of_channel(
        &self,
        at: ObjectRef,
        own: Option<u32>,
        context_share: Option<u32>,
        tsg: Option<u32>,
    ) -> Option<Space> {
        let of = |handle: u32| ObjectRef {
            client: at.client,
            handle,
        };
        let shared = || match self.object(of(context_share?))?.kind {
            Kind::ContextShare { space, .. } => space,
            _ => None,
        };
        let grouped = || match self.object(of(tsg?))?.kind {
            Kind::Tsg { space, .. } => space,
            _ => None,
        };
        own.or_else(shared)
            .or_else(grouped)
            .or_else(|| self.clients.get(&at.client)?.device_of(at.handle))
            .map(|handle| self.space(of(handle)))
    }
}
