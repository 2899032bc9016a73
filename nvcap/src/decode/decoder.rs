//! The decoder: submissions in, events out, with the state of every channel kept between them.

use std::collections::HashMap;
use std::sync::Arc;

use super::{
    defaults::Chip,
    entry,
    event::{
        Body, Context, Engine, EntryHead, EntryKind, Event, Memory, Place, Stop, SubmissionHead,
    },
    plan::Plan,
    shadow::{Shadow, Space},
    state::{Channel, Sub, engine_of},
    stream::{Item, Stream},
    unit::Unit,
};
use crate::record::{self, ChannelId, GpuVa, Submission};

/// What the caller may choose.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is to be told; everything by default.
    pub wants: Wants,
    /// Most memory the shadow of GPU memory takes, in bytes; the pages that were used longest ago go out first.
    pub shadow_bytes: usize,
    /// Host class of a channel that nothing is known of.
    pub host_class: u32,
    /// Chip of a GPU that nothing is known of.
    pub chip: Option<&'static Chip>,
    /// Number of the GPU in a linked group whose view of the subdevice masks is taken.
    pub subdevice: u8,
}

/// Default of [`Options::shadow_bytes`]: 64 MiB, sixty times what the largest graph upload measured (1024 nodes) takes.
pub const SHADOW_BYTES: usize = 64 << 20;

impl Default for Options {
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

/// What is to be told. What is not wanted is not made, and costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// [`Body::Entry`].
    pub entries: bool,
    /// [`Body::Method`].
    pub methods: bool,
    /// [`Body::Operation`].
    pub operations: bool,
}

impl Default for Wants {
    fn default() -> Self {
        Self {
            entries: true,
            methods: true,
            operations: true,
        }
    }
}

/// What the caller knows of where addresses lie.
pub trait Places {
    /// Where the memory at `va` of process `pid` lies; `None` where that is not known.
    fn place(&self, pid: u32, va: GpuVa) -> Option<Place>;

    /// What memory that is; `None` where that is not known.
    fn memory(&self, _pid: u32, _va: GpuVa) -> Option<Memory> {
        None
    }
}

/// Nothing is known.
impl Places for () {
    fn place(&self, _: u32, _: GpuVa) -> Option<Place> {
        None
    }
}

/// What went through a decoder: always counted, whatever is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Submissions.
    pub submissions: u64,
    /// GPFIFO entries, control entries included.
    pub entries: u64,
    /// Control entries.
    pub controls: u64,
    /// Pushbuffer bytes, the missing ones included.
    pub bytes: u64,
    /// Method writes, masked ones included.
    pub methods: u64,
    /// Runs: method headers with their data.
    pub runs: u64,
    /// Method writes skipped by the subdevice mask.
    pub masked: u64,
    /// Method writes to a subchannel whose class the tables do not have, or that has none: these are not counted by
    /// method.
    pub classless: u64,
    /// Stops.
    pub stops: u64,
}

/// The plan of a class and how often each of its methods was written.
pub(super) struct Counted {
    pub plan: Arc<Plan>,
    pub writes: Box<[u64]>,
}

/// Plans of the classes met.
#[derive(Default)]
pub(super) struct Plans {
    pub list: Vec<Counted>,
    by_class: HashMap<u32, usize>,
}

impl Plans {
    pub(super) fn of(&mut self, class: u32) -> (Arc<Plan>, usize) {
        let index = *self.by_class.entry(class).or_insert_with(|| {
            let plan = Plan::of(class);
            // A stream can bind any of 65,536 numbers: only what the tables know gets counters.
            let slots = if plan.is_known() { 0x1000 } else { 0 };
            let writes = vec![0; slots].into_boxed_slice();
            self.list.push(Counted { plan, writes });
            self.list.len() - 1
        });
        match self.list.get(index) {
            Some(counted) => (counted.plan.clone(), index),
            None => (Plan::of(0), 0),
        }
    }
}

/// What is known of the chips.
#[derive(Default)]
pub(super) struct Chips {
    told: HashMap<Option<u32>, &'static Chip>,
    learnt: HashMap<(Space, Option<u32>), &'static Chip>,
    fallback: Option<&'static Chip>,
}

impl Chips {
    fn of(&self, space: Space, gpu: Option<u32>, host: Option<u32>) -> Option<&'static Chip> {
        let told = self
            .told
            .get(&gpu)
            .or_else(|| self.learnt.get(&(space, gpu)))
            .copied();
        told.or(self.fallback)
            .or_else(|| host.and_then(Chip::with_host))
    }

    pub(super) fn learn(&mut self, space: Space, gpu: Option<u32>, class: u32) {
        if let Some(chip) = Chip::with_class(class) {
            self.learnt.entry((space, gpu)).or_insert(chip);
        }
    }
}

/// The decoder. One for a whole trace: channels and processes are kept apart in it.
pub struct Decoder {
    options: Options,
    channels: HashMap<ChannelId, Channel>,
    pub(super) shadow: Shadow,
    plans: Plans,
    chips: Chips,
    counts: Counts,
}

impl Decoder {
    /// A decoder that has seen nothing.
    pub fn new(options: Options) -> Self {
        Self {
            shadow: Shadow::new(options.shadow_bytes),
            chips: Chips {
                fallback: options.chip,
                ..Chips::default()
            },
            options,
            channels: HashMap::new(),
            plans: Plans::default(),
            counts: Counts::default(),
        }
    }

    /// Makes a channel known, or adds to what is known of it. A submission on a channel that was never made known is
    /// decoded too, with what it says itself.
    pub fn channel(&mut self, c: &record::Channel) {
        let channel = self.channel_mut(c.id, c.at.pid);
        channel.space = c.at.pid;
        channel.gpu = c.gpu.or(channel.gpu);
        channel.token = c.token.or(channel.token);
        channel.class = c.class.or(channel.class);
        if let Some(engine) = c.engine {
            channel.engine = engine_of(engine);
        }
    }

    /// Says which engine a channel feeds, where its record does not.
    pub fn engine(&mut self, id: ChannelId, engine: Engine) {
        self.channel_mut(id, 0).engine = engine;
    }

    /// Says which chip a GPU is (`None`: every GPU without a number), for the classes of subchannels whose SET_OBJECT
    /// was not seen.
    pub fn chip(&mut self, gpu: Option<u32>, chip: &'static Chip) {
        self.chips.told.insert(gpu, chip);
    }

    /// Entries of this channel are missing: a method in progress cannot go on.
    ///
    /// Not needed where ring positions tell: a submission that does not begin where the last ended does the same.
    pub fn gap(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.stream.reset();
        }
    }

    /// A process is gone or executes another program: its channels and memory are forgotten.
    pub fn forget_process(&mut self, pid: u32) {
        self.channels.retain(|_, c| c.space != pid);
        self.chips.learnt.retain(|k, _| k.0 != pid);
        self.shadow.forget(pid);
    }

    /// The context of a submission, from what is known of its channel. A caller that knows more (thread names,
    /// phases) adds it.
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
            phase: None,
        }
    }

    /// What went through so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How often each method was written: class, byte address, writes; by class and address.
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

    /// Pages held and pages lost to the bound of the shadow.
    pub fn shadow_pages(&self) -> (usize, u64) {
        (self.shadow.pages(), self.shadow.evicted())
    }

    /// The shadow of GPU memory: what was seen being written.
    pub fn shadow(&mut self) -> &mut Shadow {
        &mut self.shadow
    }

    fn channel_mut(&mut self, id: ChannelId, space: Space) -> &mut Channel {
        let (plan, counter) = self.plans.of(0);
        let subdevice = self.options.subdevice;
        self.channels.entry(id).or_insert_with(|| Channel {
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
        })
    }

    /// Decodes a submission; `sink` gets its events in order.
    ///
    /// Copies are given a direction by `places` (pass `&()` where nothing is known).
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
            counts,
            ..
        } = self;
        let Some(channel) = channels.get_mut(&s.channel) else {
            return;
        };
        channel.token = channel.token.or(s.token);
        if channel.next_position.is_some_and(|p| p != s.position) {
            channel.stream.reset();
        }
        channel.next_position = s.position.checked_add(s.segments.len() as u64);
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
            body: Body::Submission(head),
        });

        let mut unit = Unit {
            wants: options.wants,
            context,
            sink,
            counts,
            plans,
            chips,
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
        };
        unit.chip = unit.chips.of(unit.space, unit.gpu, class);
        unit.settle_host();
        for (index, segment) in s.segments.iter().enumerate() {
            unit.counts.entries += 1;
            unit.entry = index as u32;
            let kind = entry::read(segment.entry, channel.base);
            if unit.wants.entries {
                let head = EntryHead {
                    index: index as u32,
                    raw: segment.entry,
                    kind,
                    bytes: &segment.bytes,
                };
                unit.emit(Body::Entry(head));
            }
            match kind {
                EntryKind::Control {
                    opcode, operand, ..
                } => {
                    unit.counts.controls += 1;
                    if entry::Opcode(opcode) == entry::Opcode::SET_PB_SEGMENT_EXTENDED_BASE {
                        channel.base = entry::extended_base(operand);
                    }
                }
                // Not fetched while its subdevice is masked out.
                EntryKind::Segment {
                    conditional: true, ..
                } if channel.stream.masked() => {}
                EntryKind::Segment { len, .. } => {
                    unit.segment = &segment.bytes;
                    for item in channel.stream.runs(&segment.bytes, len, &segment.holes) {
                        match item {
                            Item::Run(run) => unit.run(&run),
                            Item::Control(..) => {}
                            Item::Skipped {
                                subchannel,
                                address,
                                words,
                            } => unit.skip(subchannel, address, words),
                            Item::Stop(offset, why) => {
                                unit.counts.stops += 1;
                                unit.emit(Body::Stop(Stop {
                                    entry: index as u32,
                                    offset,
                                    why,
                                }));
                            }
                        }
                    }
                }
            }
        }
    }
}

fn head_of(s: &Submission) -> SubmissionHead {
    let mut bytes = 0;
    let mut missing = 0;
    for segment in &s.segments {
        let EntryKind::Segment { len, .. } = entry::read(segment.entry, 0) else {
            continue;
        };
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
