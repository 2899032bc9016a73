//! The decoder: submissions in, events out, with the state of every channel kept between them.

use std::collections::hash_map::Entry;

use super::{
    chips::{Chips, Examined},
    class_dispatch::Plans,
    defaults::Chip,
    driver_writes::DriverWrites,
    event::{Body, ChipBy, Context, Engine, Event, Operation, SubmissionHead},
    graph::Graphs,
    kernels::Kernels,
    qmd,
    shadow::{Shadow, Space},
    state::{ChannelBindings, Sub, engine_of},
    submission::SubmissionDecoder,
    wants::{Counts, Places, Wants},
};
use crate::record::{self, ChannelId, Fault, Kernel, Submission};
use crate::wire::{
    GpuVa, entry,
    hash::{NumberMap, NumberSet},
    stream::Stream,
};

/// Options of a decoder.
#[derive(Clone, Debug)]
pub struct DecodeOptions {
    /// The events to emit; all by default.
    pub wants: Wants,
    /// The most memory that the shadow of GPU memory may take, bytes. The least recently used pages are dropped first.
    pub shadow_bytes: usize,
    /// Host class that is assumed for a channel of which nothing is known.
    pub host_class: u32,
    /// Chip of every GPU, which overrides all other evidence.
    pub chip: Option<&'static Chip>,
    /// Number of the GPU within a linked group; subdevice masks are applied for this GPU.
    pub subdevice: u8,
}

/// Default of [`DecodeOptions::shadow_bytes`]: 64 MiB, sixty times the memory that the largest measured graph upload (1024 nodes) takes.
pub const SHADOW_BYTES: usize = 64 << 20;

impl Default for DecodeOptions {
    fn default() -> Self {
        Self {
            wants: Wants::default(),
            shadow_bytes: SHADOW_BYTES,
            host_class: 0xc86f,
            chip: None,
            subdevice: 0,
        }
    }
}

/// The decoder. One decoder serves a whole trace: it keeps channels and processes apart.
pub struct Decoder {
    options: DecodeOptions,
    channels: NumberMap<ChannelId, ChannelBindings>,
    pub(super) shadow: Shadow,
    plans: Plans,
    chips: Chips,
    graphs: Graphs,
    /// QMDs known from the process's memory that have not been overwritten since.
    qmd_copies: NumberSet<(Space, u64)>,
    /// QMDs and the words that they release.
    driver_writes: DriverWrites,
    kernels: Kernels,
    /// Processes of which anything is known, with their channels. Of other processes there is nothing to forget.
    spaces: NumberMap<Space, NumberSet<ChannelId>>,
    counts: Counts,
}

impl Decoder {
    /// Makes a decoder without any state.
    pub fn new(options: DecodeOptions) -> Self {
        Self {
            shadow: Shadow::new(options.shadow_bytes),
            chips: Chips::new(options.chip),
            options,
            channels: NumberMap::default(),
            plans: Plans::default(),
            graphs: Graphs::default(),
            qmd_copies: NumberSet::default(),
            driver_writes: DriverWrites::default(),
            kernels: Kernels::default(),
            spaces: NumberMap::default(),
            counts: Counts::default(),
        }
    }

    /// Announces a channel, or adds facts about it. A submission on a channel that was never announced is decoded too, with the facts in
    /// the submission itself.
    pub fn channel(&mut self, c: &record::Channel) {
        let channel = self.channel_mut(c.id, c.at.pid);
        if channel.space != c.at.pid {
            channel.space = c.at.pid;
            self.spaces.entry(c.at.pid).or_default().insert(c.id);
        }
        let channel = self.channel_mut(c.id, c.at.pid);
        channel.gpu = c.gpu.or(channel.gpu);
        channel.token = c.token.or(channel.token);
        channel.class = c.class.or(channel.class);
        if let Some(engine) = c.engine {
            channel.engine = engine_of(engine);
        }
    }

    /// Sets the engine that a channel feeds, if the channel's record does not have it.
    pub fn engine(&mut self, id: ChannelId, engine: Engine) {
        self.channel_mut(id, 0).engine = engine;
    }

    /// Sets the class of a subchannel whose SET_OBJECT came before the first decoded submission.
    pub fn bind(&mut self, id: ChannelId, subchannel: u8, class: u32) {
        let (space, gpu) = {
            let channel = self.channel_mut(id, 0);
            (channel.space, channel.gpu)
        };
        self.chips.learn(space, gpu, class);
        let (plan, counter) = self.plans.of(class);
        let subs = self.channels.get_mut(&id).map(|c| &mut c.subs);
        if let Some(sub) = subs.and_then(|s| s.get_mut(usize::from(subchannel))) {
            sub.bind(class, plan, counter);
        }
    }

    /// Sets the chip of a GPU (`None`: of every GPU without a number). It determines the classes of subchannels whose SET_OBJECT was not
    /// seen.
    pub fn chip(&mut self, gpu: Option<u32>, chip: &'static Chip, by: ChipBy) {
        self.chips.set(gpu, chip, by);
    }

    /// Withdraws the chip that [`Decoder::chip`] set.
    pub fn forget_chip(&mut self, gpu: Option<u32>) {
        self.chips.forget(gpu);
    }

    /// Returns the events to emit.
    pub fn wants(&self) -> Wants {
        self.options.wants
    }

    /// Adds a QMD at `address` in the GPU memory of process `pid`, known from outside the stream. Writes to that address in
    /// the stream take precedence.
    pub fn qmd_copy(&mut self, pid: u32, address: GpuVa, bytes: &[u8]) {
        self.spaces.entry(pid).or_default();
        if self.shadow.known(pid, address, 1) == 0 {
            self.shadow.write(pid, address, bytes);
            if matches!(bytes.len(), 256 | qmd::MAX_BYTES) {
                self.qmd_copies.insert((pid, address.0));
                self.driver_writes.qmd(pid, 0, address.0, bytes);
            }
        }
    }

    /// Adds the name of a program. Launches of the program have it from the record's time on, until other code is written there.
    pub fn kernel(&mut self, kernel: Kernel) {
        self.spaces.entry(kernel.at.pid).or_default();
        self.kernels.add(kernel);
    }

    /// Sets the names of the kernels that a fault suspects, as far as they are known.
    pub fn name_suspects(&self, fault: &mut Fault) {
        let Fault { at, suspects, .. } = fault;
        for suspect in suspects.iter_mut().filter(|s| s.kernel.is_none()) {
            let program = suspect.program;
            let kernel = program.and_then(|p| self.kernels.at(at.pid, p, at.time_ns));
            suspect.kernel = kernel.cloned();
        }
    }

    /// Emits graph replays that might have had further submissions, for a live trace that is idle for a while. Replays that certainly have
    /// further submissions stay pending.
    pub fn flush(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        self.emit_replays(None, false, sink);
    }

    /// Emits everything that is still pending, at the end of a process or of the trace.
    pub fn end(&mut self, pid: Option<u32>, sink: &mut dyn FnMut(&Event<'_>)) {
        self.emit_replays(pid, true, sink);
    }

    fn emit_replays(&mut self, pid: Option<u32>, is_end: bool, sink: &mut dyn FnMut(&Event<'_>)) {
        for (context, graph) in self.graphs.end(pid, is_end) {
            self.counts.graphs += 1;
            let operation = Operation::Graph(Box::new(graph));
            sink(&Event {
                entry: context.last_entry(),
                context: &context,
                body: Body::Operation(&operation),
            });
        }
    }

    /// Records that entries of this channel are missing: a method in progress cannot continue.
    ///
    /// Not needed if ring positions show the gap: a submission that does not begin at the end of the last one has the same effect.
    pub fn gap(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.stream.reset();
        }
    }

    /// Forgets the state of a channel. Its later submissions are decoded like first ones.
    pub fn forget_channel(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.remove(&id)
            && let Some(channels) = self.spaces.get_mut(&channel.space)
        {
            channels.remove(&id);
        }
    }

    /// Forgets the channels and the memory of a process that has ended or executed another program, and replays of graphs that were not
    /// emitted ([`Decoder::end`] emits them).
    pub fn forget_process(&mut self, pid: u32) {
        self.forget_process_before(pid, u64::MAX);
    }

    /// Forgets a process like [`Decoder::forget_process`], but keeps kernels whose records are of the given time or later.
    pub fn forget_process_before(&mut self, pid: u32, time_ns: u64) {
        let Some(channels) = self.spaces.get_mut(&pid) else {
            return;
        };
        for id in channels.drain() {
            if let Entry::Occupied(channel) = self.channels.entry(id)
                && channel.get().space == pid
            {
                channel.remove();
            }
        }
        self.chips.forget_space(pid);
        self.graphs.forget(pid);
        self.qmd_copies.retain(|i| i.0 != pid);
        self.driver_writes.forget(pid);
        self.shadow.forget(pid);
        if !self.kernels.forget(pid, time_ns) {
            self.spaces.remove(&pid);
        }
    }

    /// Returns the context of a submission, from the known facts about its channel. A caller with more facts (thread names, phases) adds
    /// them.
    pub fn context(&self, s: &Submission, serial: u64) -> Context {
        let channel = self.channels.get(&s.channel);
        Context {
            at: s.at,
            thread: s.thread.clone(),
            gpu: channel.and_then(|c| c.gpu),
            channel: s.channel,
            token: s.token.or(channel.and_then(|c| c.token)),
            class: channel.and_then(|c| c.class),
            engine: channel.map_or(Engine::Unknown, |c| c.engine),
            serial,
            how: s.how,
            late: s.late,
            absent_ns: s.absent_ns,
            phase: None,
            stack: None,
            gpu_time: None,
            parts: None,
            identity: None,
        }
    }

    /// Returns the counts of everything decoded so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the number of writes to each method: class, byte address and writes, sorted by class and address.
    pub fn method_counts(&self) -> Vec<(u32, u16, u64)> {
        let mut all: Vec<_> = self
            .plans
            .list
            .iter()
            .flat_map(|c| {
                let written = c.writes.iter().enumerate().filter(|(_, n)| **n > 0);
                written.map(|(slot, &n)| (c.plan.class, (slot * 4) as u16, n))
            })
            .collect();
        all.sort_unstable();
        all
    }

    /// Returns the number of shadow pages held, and of pages dropped because of the shadow's size limit.
    pub fn shadow_pages(&self) -> (usize, u64) {
        (self.shadow.pages(), self.shadow.evicted())
    }

    /// Returns the shadow of GPU memory: the writes to it that were seen in the stream.
    pub fn shadow(&mut self) -> &mut Shadow {
        &mut self.shadow
    }

    fn channel_mut(&mut self, id: ChannelId, space: Space) -> &mut ChannelBindings {
        let (plan, counter) = self.plans.of(0);
        let subdevice = self.options.subdevice;
        self.channels.entry(id).or_insert_with(|| {
            self.spaces.entry(space).or_default().insert(id);
            ChannelBindings {
                space,
                gpu: None,
                token: None,
                class: None,
                engine: Engine::Unknown,
                stream: Stream::of_subdevice(subdevice),
                base: 0,
                host: Sub::new(plan.clone(), counter),
                subs: std::array::from_fn(|_| Sub::new(plan.clone(), counter)),
                next_position: None,
                chip_searches: 0,
            }
        })
    }

    /// Decodes a submission; `sink` gets its events in order.
    ///
    /// `places` tells copies their direction (pass `&()` if nothing is known).
    pub fn submission(
        &mut self,
        s: &Submission,
        context: &Context,
        places: &dyn Places,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        self.channel_mut(s.channel, s.at.pid);
        let Self {
            channels,
            options,
            shadow,
            plans,
            chips,
            graphs,
            qmd_copies,
            driver_writes,
            kernels,
            counts,
            spaces: _,
        } = self;
        let Some(channel) = channels.get_mut(&s.channel) else {
            return;
        };
        channel.goes_on_with(s);
        let class = context.class.or(channel.class);
        let engine = if context.engine == Engine::Unknown {
            channel.engine
        } else {
            context.engine
        };

        let head = head_of(s);
        counts.submissions += 1;
        counts.bytes += head.bytes;
        sink(&Event {
            context,
            entry: 0,
            body: Body::Submission(head),
        });

        let mut unit = SubmissionDecoder {
            wants: options.wants,
            context,
            sink,
            counts,
            plans,
            chips,
            graphs,
            qmd_copies,
            driver_writes,
            kernels,
            shadow,
            places,
            space: channel.space,
            gpu: context.gpu.or(channel.gpu),
            engine,
            token: context.token.or(channel.token),
            class,
            chip: None,
            host_class: options.host_class,
            host: &mut channel.host,
            subs: &mut channel.subs,
            entry: 0,
            segment: &[],
            only_inline: true,
            in_batch: false,
            writes_until: None,
            named: Vec::new(),
            written: NumberSet::default(),
        };
        let (space, gpu) = (unit.space, unit.gpu);
        let examined = Examined {
            space,
            gpu,
            stream: &channel.stream,
            engine,
            host: class,
            searched: &mut channel.chip_searches,
        };
        unit.chip = unit.chips.of(s, examined);
        unit.chip_news();
        unit.settle_host();
        unit.entries(s, &mut channel.stream, &mut channel.base);
    }
}

/// Returns the head of a submission: its positions, and sums over its entries.
fn head_of(s: &Submission) -> SubmissionHead {
    let mut bytes = 0;
    let mut missing = 0;
    for segment in &s.segments {
        let len = entry::len(segment.entry);
        if len == 0 {
            continue;
        }
        let short = u64::from(len).saturating_sub(segment.bytes.len() as u64);
        bytes += u64::from(len);
        missing += short + segment.holes.iter().map(|h| u64::from(h.len)).sum::<u64>();
    }
    SubmissionHead {
        position: s.position,
        gp_get: s.gp_get,
        prev_put: s.prev_put,
        gp_put: s.gp_put,
        entries: s.segments.len() as u32,
        bytes,
        missing,
        ip: s.ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{At, Channel, Origin};

    fn channel(pid: u32, id: u32) -> Channel {
        Channel {
            token: Some(id),
            ..Channel::bare(At::of_process(1, pid), ChannelId(id), Origin::Allocated)
        }
    }

    /// Test that the end of a process costs time by the state of that process, not of all.
    #[test]
    fn the_end_of_a_process_forgets_its_channels_alone() {
        let mut decoder = Decoder::new(DecodeOptions::default());
        let left = |d: &Decoder| {
            let mut left: Vec<u32> = d.channels.keys().map(|id| id.0).collect();
            left.sort_unstable();
            left
        };
        for (pid, id) in [(1, 10), (1, 11), (2, 20), (1, 12)] {
            decoder.channel(&channel(pid, id));
        }
        // One channel is announced again, for another process; one is forgotten before.
        decoder.channel(&channel(2, 11));
        decoder.forget_channel(ChannelId(12));
        assert_eq!(decoder.spaces.get(&1).map(|c| c.len()), Some(2));
        decoder.forget_process(1);
        assert_eq!(left(&decoder), [11, 20]);
        assert!(!decoder.spaces.contains_key(&1));
        decoder.forget_process(2);
        assert!(left(&decoder).is_empty() && decoder.spaces.is_empty());
    }
}
