//! From records to sinks: the one path that the live trace and every other source share.
//!
//! A record goes to the ledger and the driver model, then to the sinks as it is, then, if it is a submission, through
//! the decoder, whose events go through the filter to the sinks. The pipeline adds what the decoder cannot know:
//! thread names, GPU, token, engine, serial number and phase. It knows no source. Records of a live source come nearly in
//! the order of their times; [`Pipeline::in_time_order`] puts them into it.
//!
//! What is shown depends on the [`Sink`]s: those of [`crate::output`], or your own.
//!
//! ```
//! use std::io;
//!
//! use nvcap_decode::decode::{encode::Pushbuffer, event::{Body, Event}};
//! use nvcap_decode::driver::Model;
//! use nvcap_decode::ledger::Ledger;
//! use nvcap_show::output::{Detail, Sink};
//! use nvcap_show::pipeline::{Pipeline, PipelineOptions};
//! use nvcap_decode::record::{At, ChannelId, How, Record, Submission};
//! use nvcap_decode::wire::GpuVa;
//!
//! /// Counts method writes.
//! struct Count(u64);
//!
//! impl Sink for Count {
//!     fn detail(&self) -> Option<Detail> {
//!         Some(Detail::Methods)
//!     }
//!     fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
//!         self.0 += u64::from(matches!(event.body, Body::Method(_)));
//!         Ok(())
//!     }
//!     fn record(&mut self, _: &Record, _: &Model) -> io::Result<()> {
//!         Ok(())
//!     }
//!     fn flush(&mut self) -> io::Result<()> {
//!         Ok(())
//!     }
//!     fn finish(&mut self, _: &Ledger, _: &Model) -> io::Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! let mut words = Pushbuffer::new();
//! words.bind(4, 0xc8b5);
//! words.named(4, 0xc8b5, "LAUNCH_DMA", &[0x182])?;
//! let submission = Submission {
//!     segments: vec![words.segment(GpuVa(0x2_0080_0000))],
//!     gp_put: 1,
//!     // The rest of what a source knows of a submission.
//! #    at: At { time_ns: 1, pid: 4711, tid: 4711 },
//! #    channel: ChannelId(0),
//! #    token: None,
//! #    position: 0,
//! #    gp_get: None,
//! #    prev_put: 0,
//! #    ip: None,
//! #    doorbell: None,
//! #    how: How::Recorded,
//! #    late: false,
//! #    absent_ns: None,
//! #    thread: None,
//! };
//!
//! let mut count = Count(0);
//! let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut count)]);
//! pipeline.record(Record::Submission(submission))?;
//! let ledger = pipeline.finish()?;
//! assert_eq!(ledger.totals().submissions, 1);
//! assert_eq!(count.0, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(test)]
mod far_ahead;
mod finished;
#[cfg(test)]
mod kept;
mod lives;
mod loads;
mod order;
pub(crate) mod places;
mod stacks;
#[cfg(test)]
mod starved;
mod times;
mod waiting;

#[cfg(test)]
mod tests;

use std::io;

use crate::output::filter::Filter;
use crate::output::names::token_name;
use crate::output::phases::Phases;
use crate::output::{Detail, Sink, StampReads, Summary};
use nvcap_decode::decode::defaults::Chip;
use nvcap_decode::decode::event::{Body, ChipBy, Context, Engine, Event, Load, Operation};
use nvcap_decode::decode::{self, Decoder, Wants};
use nvcap_decode::driver::{Model, ModelOptions, Version};
use nvcap_decode::gpu_time::GpuTimes;
use nvcap_decode::ledger::{Ledger, Observed, Trapped};
use nvcap_decode::record::{Channel, ChannelId, Gpu, Kernel, Life, Lost, Record, Submission};
use nvcap_decode::wire::hash::NumberMap;
use nvcap_recording::blocked_write;

pub use finished::Finished;
pub use finished::Matched;
use lives::Lives;
use loads::{Loads, Parts, Taken};
use order::Order;
pub use order::{GPU_TIME_WINDOW_NS, WINDOW_NS};
use places::{ByModel, engine_by_stream};
use stacks::Stacks;

/// Options of a pipeline.
#[derive(Debug, Default)]
pub struct PipelineOptions {
    /// Selects the events for the sinks; without it they get all.
    pub filter: Option<Filter>,
    /// Labelled time ranges.
    pub phases: Option<Phases>,
    /// The chip of every GPU (`--chip`); by default it is detected.
    pub chip: Option<&'static Chip>,
    /// The driver's release, if known beforehand.
    pub driver_version: Option<Version>,
    /// True if the first loss or undecodable entry ends the trace with an error ([`Pipeline::record`]). Otherwise everything whole is shown, and the
    /// rest is reported.
    pub strict: bool,
    /// True if kernels are timed from their first instruction (`--exec-time`), not from the stamp of their launch as CUPTI and nsys do.
    pub exec_time: bool,
}

/// Facts on a channel from outside its stream.
#[derive(Clone, Debug, Default)]
struct Known {
    gpu: Option<u32>,
    token: Option<u32>,
    class: Option<u32>,
    engine: Engine,
    /// Submissions searched for its engine.
    searched: u8,
}

/// Submissions of a channel that are searched for its engine: libcuda binds the classes in the first, and a later one uses them.
const SEARCHED: u8 = 16;

/// Takes records, decodes them and hands the events to the sinks.
///
/// It has the trace's one driver model, feeds each record to it once and lends it to the sinks. A live source may keep
/// another: the trap's session must know a channel before it can deliver a record of it, on its own thread.
pub struct Pipeline<'a> {
    options: PipelineOptions,
    ledger: Ledger,
    model: Model,
    decoder: Decoder,
    sinks: Vec<Box<dyn Sink + 'a>>,
    /// True if no sink takes events: nothing is decoded.
    deaf: bool,
    /// True if some sink shows which memory operations touch.
    shows_memory: bool,
    lives: Lives,
    channels: NumberMap<ChannelId, Known>,
    /// The chips of the GPUs in the records.
    chips: Vec<&'static Chip>,
    serial: u64,
    stacks: Stacks,
    matched: Matched,
    /// Records that wait to be put in order.
    order: Option<Order>,
    /// Finder of the submissions of contexts that are made and modules that are loaded, where operations are shown.
    loads: Option<Loads>,
    /// Times of the GPU's work, where they are asked for.
    times: Option<GpuTimes>,
}

impl<'a> Pipeline<'a> {
    /// Makes a pipeline into `sinks`, which all see the same events. Without sinks it only keeps the ledger.
    #[must_use]
    pub fn new(options: PipelineOptions, sinks: Vec<Box<dyn Sink + 'a>>) -> Self {
        let shown = sinks.iter().filter_map(|s| s.detail()).max();
        let detail = match (&options.filter, shown) {
            (Some(filter), Some(shown)) => Some(shown.max(filter.detail())),
            (_, shown) => shown,
        };
        let all = sinks.iter().any(|s| s.sees_all() || s.shows_summary());
        let filter = options.filter.as_ref();
        let wanted = |kind| all || filter.is_none_or(|f| f.may_match(kind));
        let deaf = detail.is_none() && !options.strict;
        let operations = detail.is_some() && wanted("operation");
        Self {
            ledger: Ledger::new(),
            model: Model::new(ModelOptions {
                driver_version: options.driver_version,
            }),
            decoder: Decoder::new(decode::DecodeOptions {
                wants: Wants {
                    entries: detail >= Some(Detail::Words),
                    methods: detail >= Some(Detail::Methods) && wanted("method"),
                    operations,
                },
                chip: options.chip,
                ..decode::DecodeOptions::default()
            }),
            deaf,
            shows_memory: sinks.iter().any(|s| s.shows_memory()),
            order: None,
            loads: (!deaf && operations).then(Loads::default),
            times: None,
            options,
            sinks,
            lives: Lives::default(),
            channels: NumberMap::default(),
            chips: Vec::new(),
            matched: Matched::default(),
            serial: 0,
            stacks: Stacks::default(),
        }
    }

    /// Expects time stamps of the GPU among the records ([`Record::Stamps`]). Each submission is shown with the times that they tell, and waits for
    /// them, up to [`GPU_TIME_WINDOW_NS`], or up to a minute where nobody reads before the end. Must come before [`Pipeline::in_time_order`].
    #[must_use]
    pub fn with_gpu_time(self) -> Self {
        Self {
            times: Some(GpuTimes::default()),
            ..self
        }
    }

    /// Puts the records of a live source into the order of their times before they are decoded and shown. A record waits for others that are up to
    /// [`WINDOW_NS`] older. Otherwise records are taken in the order of their arrival.
    #[must_use]
    pub fn in_time_order(self) -> Self {
        Self {
            order: self.wanted_order(false),
            ..self
        }
    }

    fn wanted_order(&self, is_file: bool) -> Option<Order> {
        let is_later = is_file || self.sinks.iter().all(|s| s.is_for_later());
        let (window, patience) = match self.times {
            Some(_) if is_later => (times::window_ns(), times::PATIENCE_NS),
            Some(_) => (times::window_ns(), 0),
            None => (WINDOW_NS, 0),
        };
        let is_wanted = !self.deaf || self.sinks.iter().any(|s| s.keeps_order());
        is_wanted.then(|| Order::within(window, patience))
    }

    /// Adds a sink, before the first record.
    #[must_use]
    pub fn also(mut self, sink: Box<dyn Sink + 'a>) -> Self {
        self.sinks.push(sink);
        Self {
            times: self.times,
            ..Self::new(self.options, self.sinks)
        }
    }

    /// Treats the records as those of a recording, as the live trace treated them: with the driver's release, the GPU's time stamps, and records that
    /// come nearly in the order of their times. `is_file`: all of it is there already, and nobody waits for what is written now. Must come before the
    /// first record.
    pub fn as_recorded(
        &mut self,
        driver: Option<Version>,
        gpu_time: bool,
        live: bool,
        is_file: bool,
    ) {
        if self.options.driver_version.is_none() {
            self.options.driver_version = driver;
            self.model = Model::new(ModelOptions {
                driver_version: driver,
            });
        }
        if gpu_time {
            self.times = Some(GpuTimes::default());
        }
        // Records that are in order wait for the GPU's times, too.
        if live || gpu_time {
            self.order = self.wanted_order(is_file);
        }
    }

    /// The ledger so far.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Counts of the filter so far.
    #[must_use]
    pub fn matched(&self) -> Matched {
        self.matched
    }

    /// The driver model as the records so far have built it.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Decodes and shows a record whose turn it is.
    fn take(&mut self, taken: Taken) -> io::Result<()> {
        let Taken {
            mut record,
            parts,
            load,
        } = taken;
        if matches!(record, Record::Submission(_)) && !self.deaf && blocked_write::is_over() {
            self.ledger.add_unshown(1);
            return Ok(());
        }
        if let Some(filter) = &mut self.options.filter {
            filter.record(&record);
        }
        for sink in &mut self.sinks {
            sink.before(&record, &self.model)?;
        }
        let _ = self.model.record(&record);
        if let Record::Fault(f) = &mut record {
            self.decoder.name_suspects(f);
            let page = f.message.as_ref().and_then(|m| m.access()).map(|a| a.page);
            f.memory = page.and_then(|page| self.model.memory_near(f.at.pid, page));
        }
        match &record {
            Record::Process(p) => self.lives.note(p),
            Record::Channel(c) => self.channel(c),
            Record::Gpu(g) => self.gpu(g),
            Record::Stack(s) => self.stacks.put(s),
            Record::QmdCopy(i) => self.decoder.qmd_copy(i.at.pid, i.address, &i.bytes),
            Record::Kernel(k) => self.decoder.kernel(Kernel::clone(k)),
            Record::Ioctl(_)
            | Record::Mapping(_)
            | Record::Unmapping(_)
            | Record::Submission(_)
            | Record::Stamps(_)
            | Record::Snapshot(_)
            | Record::Skipped(_)
            | Record::Fault(_)
            | Record::Samples(_)
            | Record::Switches(_)
            | Record::Loss(_) => {}
        }
        // Waiting replays of a process come before its end.
        if let Record::Process(p) = &record
            && p.life.ends_work()
        {
            self.emit_replays(Some(Some(p.at.pid)))?;
            self.ledger.name_suspects(|f| self.decoder.name_suspects(f));
            self.decoder.forget_process_before(p.at.pid, p.at.time_ns);
            // What runs after an exec has been noted already: only an end is behind everything.
            if let (Some(times), Life::Exit { .. }) = (&mut self.times, &p.life) {
                times.forget(p.at.pid, p.at.time_ns);
            }
        }
        for sink in &mut self.sinks {
            sink.record(&record, &self.model)?;
        }
        match &record {
            Record::Submission(s) => self.submission(s, parts, load),
            Record::Loss(loss) if self.options.strict => {
                let what = match &loss.what {
                    Lost::Untraced { why } => why.clone(),
                    what => format!("lost: {what:?}"),
                };
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
            _ => Ok(()),
        }
    }

    /// Takes a GPU of the machine. Its chip also holds for GPUs without a number while all chips are alike.
    fn gpu(&mut self, g: &Gpu) {
        let Some(chip) = Chip::with_pci_device(g.pci_device) else {
            return;
        };
        self.decoder.chip(Some(g.minor), chip, ChipBy::Pci);
        match self.chips.first() {
            Some(first) if *first != chip => self.decoder.forget_chip(None),
            _ => self.decoder.chip(None, chip, ChipBy::Pci),
        }
        self.chips.push(chip);
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

    fn context(&mut self, s: &Submission, parts: Parts) -> Context {
        let thread = s
            .thread
            .clone()
            .or_else(|| self.lives.name(s.at.tid, s.at.pid));
        let known = self.channels.entry(s.channel).or_default();
        known.token = known.token.or(s.token);
        let serial = self.serial;
        self.serial += 1;
        let exec_time = self.options.exec_time;
        let gpu_time = self.times.as_mut().map(|t| times::of(t, s, exec_time));
        Context {
            absent_ns: None,
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
                .zip(s.at.time())
                .and_then(|(p, time)| p.at(time))
                .cloned(),
            stack: self.stacks.of(s),
            gpu_time,
            parts,
            identity: self.lives.identity(s.at.pid),
        }
    }

    /// Determines what a channel of unknown engine feeds.
    fn search_engine(&mut self, s: &Submission) {
        let known = self.channels.entry(s.channel).or_default();
        if known.engine == Engine::Unknown && known.searched < SEARCHED {
            known.searched += 1;
            known.token = known.token.or(s.token);
            known.engine = engine_by_stream(s, known.token);
            self.ledger.learn_engine(s.channel, known.engine);
        }
    }

    fn submission(&mut self, s: &Submission, parts: Parts, load: Option<Load>) -> io::Result<()> {
        self.search_engine(s);
        if self.deaf {
            return Ok(());
        }
        let context = self.context(s, parts);
        let mut outcome = Ok(());
        let (sinks, mut filter) = (&mut self.sinks, self.options.filter.as_mut());
        let matched = &mut self.matched;
        let places = ByModel {
            model: &self.model,
            channel: s.channel,
            shows_memory: self.shows_memory,
        };
        let strict = self.options.strict;
        self.decoder.submission(s, &context, &places, &mut |event| {
            if outcome.is_err() {
                return;
            }
            let matches = matched.count(filter.as_mut().is_none_or(|f| f.takes(event)));
            outcome = emit(sinks, event, matches);
            if let (true, Ok(()), Body::Stop(stop)) = (strict, &outcome, &event.body) {
                let token = token_name(context.token);
                let what = format!(
                    "submission {} (token {token}, position {}): {stop}",
                    context.serial, s.position
                );
                outcome = Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        });
        if let (Some(load), Ok(())) = (load, &outcome) {
            let entry = s.segments.len().saturating_sub(1) as u32;
            let event = Event {
                context: &context,
                entry,
                body: Body::Operation(&Operation::Load(load)),
            };
            let matches = matched.count(filter.as_mut().is_none_or(|f| f.takes(&event)));
            outcome = emit(sinks, &event, matches);
        }
        outcome
    }

    /// Takes the account of observing, which the ledger states.
    pub fn observed(&mut self, observed: Observed) {
        self.ledger.add_observed(observed);
    }

    /// Takes the account of the trap, which the ledger states.
    pub fn trapped(&mut self, trapped: Trapped) {
        self.ledger.add_trapped(trapped);
    }

    /// Takes note that the stack of one in `every` doorbells was taken, which the ledger states.
    pub fn stacks_sampled(&mut self, every: u32, skipped: u64) {
        self.ledger.add_stack_sample(every, skipped);
    }

    /// Takes note of `count` parts that stacks lack, which the ledger states.
    pub fn left_out_of_stacks(&mut self, what: &str, count: u64) {
        self.ledger.add_left_out_of_stacks(what, count);
    }

    /// Emits graph replays that waited for further submissions: those of a process at its end (`Some(Some(pid))`), all at the end of the trace
    /// (`Some(None)`), or those that have waited long enough (`None`).
    fn emit_replays(&mut self, end: Option<Option<u32>>) -> io::Result<()> {
        let (sinks, mut filter) = (&mut self.sinks, self.options.filter.as_mut());
        let matched = &mut self.matched;
        let mut outcome = Ok(());
        let mut tell = |event: &Event<'_>| {
            if outcome.is_ok() {
                let matches = matched.count(filter.as_mut().is_none_or(|f| f.takes(event)));
                outcome = emit(sinks, event, matches);
            }
        };
        match end {
            Some(pid) => self.decoder.end(pid, &mut tell),
            None => self.decoder.flush(&mut tell),
        }
        outcome
    }

    /// The end: every sink shows the ledger, which is returned.
    ///
    /// # Errors
    /// As [`Pipeline::record`]. The ledger is lost then; ask [`Pipeline::ledger`] before where it matters.
    pub fn finish(self) -> io::Result<Ledger> {
        self.finish_counted().map(|finished| finished.ledger)
    }

    /// Ends as [`Pipeline::finish`] does, with what the filter let through to the very end: what waited until then counts too.
    ///
    /// # Errors
    /// As there.
    pub fn finish_counted(mut self) -> io::Result<Finished> {
        self.take_waiting(true)?;
        self.emit_replays(Some(None))?;
        // Writing the buffers may fail (a full disk), and the ledger must know before it is shown.
        self.flush()?;
        self.ledger.name_suspects(|f| self.decoder.name_suspects(f));
        if !self.deaf && self.decoder.wants().operations {
            self.ledger.understand(self.decoder.counts());
        }
        let summary = Summary {
            counts: self.decoder.counts(),
            methods: self.decoder.method_counts(),
            stamps: self
                .times
                .as_ref()
                .map_or_else(StampReads::default, times::reads),
        };
        // What a recording could not take at its very end is in the verdict that the others show: there is one verdict.
        self.sinks.sort_by_key(|s| !s.ends_first());
        let mut recorded = self.ledger.clone();
        let mut is_shown = true;
        for sink in &mut self.sinks {
            sink.summary(&summary);
            let before = sink.unshown();
            let mut ledger = recorded.clone();
            ledger.add_unshown(before);
            sink.finish(&ledger, &self.model)?;
            let unshown = sink.unshown();
            if sink.ends_first() {
                recorded.add_unshown(unshown);
            } else {
                is_shown &= unshown == before;
            }
            self.ledger.add_unshown(unshown);
        }
        Ok(Finished {
            ledger: self.ledger,
            matched: self.matched,
            unmatched: self.options.filter.as_ref().and_then(Filter::unmatched),
            is_shown,
        })
    }
}

/// Gives an event to the sinks. `matches`: the filter passes it.
fn emit(sinks: &mut [Box<dyn Sink + '_>], event: &Event<'_>, matches: bool) -> io::Result<()> {
    sinks.iter_mut().try_for_each(|s| {
        if matches || s.sees_all() {
            return s.event(event);
        }
        s.passed_over(event);
        Ok(())
    })
}
