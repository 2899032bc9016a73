//! From records to sinks: the one path that the live trace and every other source share.
//!
//! A record goes to the ledger, then to the sinks as it is, then, if it is a submission, through the decoder, whose
//! events go through the filter to the sinks. The pipeline adds what the decoder cannot know: thread names, GPU,
//! token, engine, serial number and phase. It knows no source.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use crate::decode::event::{Body, Context, Engine, Event, SubmissionHead};
use crate::ledger::Ledger;
use crate::output::filter::Filter;
use crate::output::names::engine_from_rm;
use crate::output::phases::Phases;
use crate::output::{Detail, Sink};
use crate::record::{Channel, ChannelId, Life, Process, Record, Submission};

/// What a pipeline does beside decoding.
#[derive(Debug, Default)]
pub struct Options {
    /// Which events the sinks get; all, where there is none.
    pub filter: Option<Filter>,
    /// Labelled time ranges.
    pub phases: Option<Phases>,
}

/// What is known of a channel beside its stream.
#[derive(Clone, Debug, Default)]
struct Known {
    gpu: Option<u32>,
    token: Option<u32>,
    class: Option<u32>,
    engine: Engine,
}

/// Takes records, decodes them and hands the events to the sinks.
pub struct Pipeline {
    options: Options,
    ledger: Ledger,
    sinks: Vec<Box<dyn Sink>>,
    /// The finest detail any sink wants; `None` where none wants events.
    detail: Option<Detail>,
    names: HashMap<u32, Arc<str>>,
    channels: HashMap<ChannelId, Known>,
    serial: u64,
}

impl Pipeline {
    /// A pipeline with no sink yet: it keeps the ledger.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            ledger: Ledger::new(),
            sinks: Vec::new(),
            detail: None,
            names: HashMap::new(),
            channels: HashMap::new(),
            serial: 0,
        }
    }

    /// Adds a sink; all see the same events.
    pub fn add_sink(&mut self, sink: Box<dyn Sink>) {
        let mut wanted = sink.detail();
        if let (Some(wanted), Some(filter)) = (&mut wanted, &self.options.filter) {
            *wanted = (*wanted).max(filter.detail());
        }
        self.detail = self.detail.max(wanted);
        self.sinks.push(sink);
    }

    /// The ledger so far.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// When a sink can take no more; of kind `BrokenPipe` when its reader went away, which is no error of the
    /// trace's: the caller stops and ends quietly.
    pub fn record(&mut self, record: Record) -> io::Result<()> {
        self.ledger.record(&record);
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
        let known = self.channels.entry(c.id).or_default();
        known.gpu = c.gpu.or(known.gpu);
        known.token = c.token.or(known.token);
        known.class = c.class.or(known.class);
        if let Some(engine) = c.engine.map(engine_from_rm)
            && engine != Engine::Unknown
        {
            known.engine = engine;
        }
    }

    fn context(&mut self, s: &Submission) -> Context {
        let thread = self.name(s.at.tid, s.at.pid);
        let known = self.channels.entry(s.channel).or_default();
        if known.token.is_none() {
            known.token = s.token;
        }
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

    fn submission(&mut self, s: &Submission) -> io::Result<()> {
        let context = self.context(s);
        if self.detail.is_none() {
            return Ok(());
        }
        let event = Event {
            context: &context,
            body: Body::Submission(head(s)),
        };
        emit(&mut self.sinks, self.options.filter.as_ref(), &event)
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
        for sink in &mut self.sinks {
            let mut ledger = self.ledger.clone();
            ledger.add_unshown(sink.unshown());
            sink.finish(&ledger)?;
        }
        let unshown = self.sinks.iter().map(|s| s.unshown()).sum();
        self.ledger.add_unshown(unshown);
        Ok(self.ledger)
    }
}

fn emit(sinks: &mut [Box<dyn Sink>], filter: Option<&Filter>, event: &Event<'_>) -> io::Result<()> {
    if filter.is_some_and(|f| !f.matches(event)) {
        return Ok(());
    }
    sinks.iter_mut().try_for_each(|s| s.event(event))
}

fn head(s: &Submission) -> SubmissionHead {
    let mut bytes = 0;
    let mut missing = 0;
    for segment in &s.segments {
        let announced = ((segment.entry >> 42) & 0x1f_ffff) * 4;
        let holes: u64 = segment.holes.iter().map(|h| u64::from(h.len)).sum();
        let have = (segment.bytes.len() as u64).saturating_sub(holes);
        bytes += announced.max(segment.bytes.len() as u64);
        missing += announced.saturating_sub(have);
    }
    SubmissionHead {
        position: s.position,
        gp_get: s.gp_get,
        prev_put: s.prev_put,
        gp_put: s.gp_put,
        entries: u32::try_from(s.segments.len()).unwrap_or(u32::MAX),
        bytes,
        missing,
        ip: s.ip,
    }
}
