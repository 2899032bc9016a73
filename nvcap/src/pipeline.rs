//! From records to sinks: the one path that the live trace and every other source share.
//!
//! A record goes to the ledger and the driver model, then to the sinks as it is, then, if it is a submission, through
//! the decoder, whose events go through the filter to the sinks. The pipeline adds what the decoder cannot know:
//! thread names, GPU, token, engine, serial number and phase. It knows no source.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use crate::decode::classes::{self, Family};
use crate::decode::defaults::Chip;
use crate::decode::entry;
use crate::decode::event::{Body, Context, Engine, EntryKind, Event, Memory, Place};
use crate::decode::stream::{Item, Stream};
use crate::decode::{self, Decoder, Places, Wants};
use crate::driver::{self, Model};
use crate::ledger::{Ledger, Observed};
use crate::output::filter::Filter;
use crate::output::phases::Phases;
use crate::output::{Detail, Sink, Summary};
use crate::record::{Channel, ChannelId, GpuVa, Life, Lost, Process, Record, Submission};

/// What a pipeline does beside decoding.
#[derive(Debug, Default)]
pub struct Options {
    /// Which events the sinks get; all, where there is none.
    pub filter: Option<Filter>,
    /// Labelled time ranges.
    pub phases: Option<Phases>,
    /// The first thing that is missing or cannot be decoded ends it, with an error ([`Pipeline::record`]). Without
    /// it all that is whole is shown, and what is not is told.
    pub strict: bool,
}

/// What is known of a channel beside its stream.
#[derive(Clone, Debug, Default)]
struct Known {
    gpu: Option<u32>,
    token: Option<u32>,
    class: Option<u32>,
    engine: Engine,
    /// Submissions searched for what engine it is.
    searched: u8,
}

/// How many submissions of a channel of unknown engine are searched for what it is: libcuda binds the classes in a
/// channel's first one, and a later one uses them.
const SEARCHED: u8 = 16;

/// Takes records, decodes them and hands the events to the sinks.
pub struct Pipeline {
    options: Options,
    ledger: Ledger,
    model: Model,
    decoder: Decoder,
    sinks: Vec<Box<dyn Sink>>,
    /// No sink takes events: nothing is decoded.
    deaf: bool,
    names: HashMap<u32, Arc<str>>,
    channels: HashMap<ChannelId, Known>,
    serial: u64,
}

impl Pipeline {
    /// A pipeline into `sinks`, which all see the same events. With none it keeps the ledger.
    #[must_use]
    pub fn new(options: Options, sinks: Vec<Box<dyn Sink>>) -> Self {
        let shown = sinks.iter().filter_map(|s| s.detail()).max();
        let detail = match (&options.filter, shown) {
            (Some(filter), Some(shown)) => Some(shown.max(filter.detail())),
            (_, shown) => shown,
        };
        let all = sinks.iter().any(|s| s.sees_all() || s.shows_summary());
        let filter = options.filter.as_ref();
        let wanted = |kind| all || filter.is_none_or(|f| f.may_match(kind));
        Self {
            ledger: Ledger::new(),
            model: Model::new(driver::Options::default()),
            decoder: Decoder::new(decode::Options {
                wants: Wants {
                    entries: detail >= Some(Detail::Words),
                    methods: detail >= Some(Detail::Methods) && wanted("method"),
                    operations: detail.is_some() && wanted("operation"),
                },
                ..decode::Options::default()
            }),
            deaf: detail.is_none() && !options.strict,
            options,
            sinks,
            names: HashMap::new(),
            channels: HashMap::new(),
            serial: 0,
        }
    }

    /// The ledger so far.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The driver model as the records so far have built it.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Says which chip a GPU is, where the source knows it: for the classes of subchannels that nothing was seen bound to.
    pub fn chip(&mut self, gpu: Option<u32>, chip: &'static Chip) {
        self.decoder.chip(gpu, chip);
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// When a sink can take no more; of kind `BrokenPipe` when its reader went away, which is no error of the
    /// trace's: the caller stops and ends quietly. Of kind `InvalidData` where [`Options::strict`] is asked for and
    /// something is not whole.
    pub fn record(&mut self, record: Record) -> io::Result<()> {
        self.ledger.record(&record);
        self.model.record(&record);
        match &record {
            Record::Process(p) => self.life(p),
            Record::Channel(c) => self.channel(c),
            _ => {}
        }
        for sink in &mut self.sinks {
            sink.record(&record)?;
        }
        match &record {
            Record::Submission(s) => self.submission(s),
            Record::Loss(loss) if self.options.strict => {
                let what = match &loss.what {
                    Lost::Blind { why } => why.clone(),
                    what => format!("lost: {what:?}"),
                };
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
            _ => Ok(()),
        }
    }

    fn life(&mut self, p: &Process) {
        match &p.life {
            Life::Present { name } | Life::Exec { name } => {
                let id = if p.at.tid != 0 { p.at.tid } else { p.at.pid };
                self.names.insert(id, name.as_str().into());
                self.names
                    .entry(p.at.pid)
                    .or_insert_with(|| name.as_str().into());
                if matches!(p.life, Life::Exec { .. }) {
                    self.decoder.forget_process(p.at.pid);
                }
            }
            // A child bears its parent's name until it says otherwise.
            Life::Fork { child } | Life::Thread { child } => {
                if let Some(name) = self.name(p.at.tid, p.at.pid) {
                    self.names.insert(*child, name);
                }
            }
            Life::Exit { process } => {
                self.names.remove(&p.at.tid);
                if *process {
                    self.names.remove(&p.at.pid);
                    self.decoder.forget_process(p.at.pid);
                }
            }
        }
    }

    fn name(&self, tid: u32, pid: u32) -> Option<Arc<str>> {
        self.names
            .get(&tid)
            .or_else(|| self.names.get(&pid))
            .cloned()
    }

    fn channel(&mut self, c: &Channel) {
        self.decoder.channel(c);
        let known = self.channels.entry(c.id).or_default();
        known.gpu = c.gpu.or(known.gpu);
        known.token = c.token.or(known.token);
        known.class = c.class.or(known.class);
        if let Some(engine) = c.engine.map(decode::engine_of)
            && engine != Engine::Unknown
        {
            known.engine = engine;
        }
    }

    fn context(&mut self, s: &Submission) -> Context {
        let thread = s.thread.clone().or_else(|| self.name(s.at.tid, s.at.pid));
        let known = self.channels.entry(s.channel).or_default();
        known.token = known.token.or(s.token);
        let serial = self.serial;
        self.serial += 1;
        Context {
            at: s.at,
            thread,
            gpu: known.gpu,
            channel: s.channel,
            token: known.token,
            class: known.class,
            engine: known.engine,
            serial,
            how: s.how,
            late: s.late,
            phase: self
                .options
                .phases
                .as_ref()
                .and_then(|p| p.at(s.at.time_ns))
                .cloned(),
        }
    }

    /// Finds out what a channel of unknown engine feeds.
    fn search_engine(&mut self, s: &Submission) {
        let known = self.channels.entry(s.channel).or_default();
        if known.engine == Engine::Unknown && known.searched < SEARCHED {
            known.searched += 1;
            known.token = known.token.or(s.token);
            known.engine = engine_by_stream(s, known.token);
            self.ledger.learn_engine(s.channel, known.engine);
        }
    }

    fn submission(&mut self, s: &Submission) -> io::Result<()> {
        self.search_engine(s);
        if self.deaf {
            return Ok(());
        }
        let context = self.context(s);
        let mut outcome = Ok(());
        let (sinks, filter) = (&mut self.sinks, self.options.filter.as_ref());
        let places = ByModel {
            model: &self.model,
            channel: s.channel,
        };
        let strict = self.options.strict;
        self.decoder.submission(s, &context, &places, &mut |event| {
            if outcome.is_err() {
                return;
            }
            outcome = emit(sinks, event, filter.is_none_or(|f| f.matches(event)));
            if let (true, Ok(()), Body::Stop(stop)) = (strict, &outcome, &event.body) {
                let token = context.token.unwrap_or_default();
                let what = format!(
                    "submission {} (token {token:#x}, position {}): {stop}",
                    context.serial, s.position
                );
                outcome = Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        });
        outcome
    }

    /// Takes how observing went, which the ledger states.
    pub fn observed(&mut self, observed: Observed) {
        self.ledger.add_observed(observed);
    }

    /// Writes out what the sinks have buffered: for a live trace that has nothing to do for a while.
    ///
    /// # Errors
    /// As [`Pipeline::record`].
    pub fn flush(&mut self) -> io::Result<()> {
        self.sinks.iter_mut().try_for_each(|s| s.flush())
    }

    /// The end: every sink shows the ledger, which is returned.
    ///
    /// # Errors
    /// As [`Pipeline::record`]. The ledger is lost then; ask [`Pipeline::ledger`] before where it matters.
    pub fn finish(mut self) -> io::Result<Ledger> {
        // What is still buffered may not fit any more, and the ledger must know before it is shown.
        self.flush()?;
        let summary = Summary {
            counts: self.decoder.counts(),
            methods: self.decoder.method_counts(),
        };
        for sink in &mut self.sinks {
            sink.summary(&summary);
            let mut ledger = self.ledger.clone();
            ledger.add_unshown(sink.unshown());
            sink.finish(&ledger)?;
        }
        let unshown = self.sinks.iter().map(|s| s.unshown()).sum();
        self.ledger.add_unshown(unshown);
        Ok(self.ledger)
    }
}

/// `matches`: the filter lets the event through.
fn emit(sinks: &mut [Box<dyn Sink>], event: &Event<'_>, matches: bool) -> io::Result<()> {
    sinks
        .iter_mut()
        .filter(|s| matches || s.sees_all())
        .try_for_each(|s| s.event(event))
}

/// Where addresses lie, by the driver model: in the channel's own address space.
struct ByModel<'a> {
    model: &'a Model,
    channel: ChannelId,
}

impl Places for ByModel<'_> {
    fn place(&self, pid: u32, va: GpuVa) -> Option<Place> {
        self.model
            .place_for(self.channel, va)
            .or_else(|| self.model.place(pid, va))
    }

    fn memory(&self, pid: u32, va: GpuVa) -> Option<Memory> {
        let found = self
            .model
            .resolve_for(self.channel, va)
            .or_else(|| self.model.resolve(pid, va))?;
        let object = found.object?;
        Some(Memory {
            place: self.place(pid, va),
            client: object.client,
            handle: object.handle,
            class: found.class?,
            size: found.size,
            offset: found.offset,
            cpu: found.cpu.map(|cpu| cpu.0),
        })
    }
}

/// The engine of a channel nothing is known of, by what the submission does.
///
/// The classes it binds tell: a compute or 3D class needs the graphics engine; a channel that binds a copy class and
/// neither of those feeds a copy engine. Where it binds nothing (its beginning was not seen) the fixed subchannels
/// tell: 0 to 3 exist on a graphics runlist alone, and elsewhere libcuda uses 4 for copy engines; what writes
/// SET_APPLICATION_ID there is a video engine, which one is not known. Graphics is runlist 0.
fn engine_by_stream(s: &Submission, token: Option<u32>) -> Engine {
    const SET_OBJECT: u16 = 0;
    const FIRST_OF_ENGINE: u16 = 0x100;
    const SET_APPLICATION_ID: u16 = 0x200;
    let runlist = token.map(|t| (t >> 16) & 0x7f);
    let mut stream = Stream::default();
    let (mut bound, mut used, mut video) = (Engine::Unknown, Engine::Unknown, false);
    for segment in &s.segments {
        let EntryKind::Segment { len, .. } = entry::read(segment.entry, 0) else {
            continue;
        };
        for item in stream.runs(&segment.bytes, len, &segment.holes) {
            let Item::Run(run) = item else { continue };
            if run.is_empty() {
                continue;
            }
            match (run.address, run.subchannel) {
                (SET_OBJECT, _) => match classes::family(run.word(0).unwrap_or(0) & 0xffff) {
                    Family::Compute | Family::Graphics3d => return Engine::Graphics,
                    Family::Copy => bound = Engine::Copy(None),
                    _ => {}
                },
                (FIRST_OF_ENGINE.., 0..=3) if runlist.is_none_or(|r| r == 0) => {
                    used = Engine::Graphics;
                }
                (SET_APPLICATION_ID, 4) => video = true,
                (FIRST_OF_ENGINE.., 4)
                    if used == Engine::Unknown && runlist.is_some_and(|r| r != 0) =>
                {
                    used = Engine::Copy(None);
                }
                _ => {}
            }
        }
    }
    match bound {
        Engine::Unknown if !video => used,
        bound => bound,
    }
}
