//! A recording as its lines, by channel: a sink, which keeps them until both recordings are read.

use std::collections::{BTreeMap, HashMap};
use std::io;

use crate::output::stats::class_of;
use crate::output::{Detail, Sink, Summary};
use nvcap_decode::decode::event::{Body, Engine, Event, LaunchKind, Operation};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{ChannelId, How, Record};

use super::line::{self, Address};

/// The most lines of a recording that are compared; later ones are only counted.
const MOST_LINES: usize = 1 << 22;

/// The texts of both recordings, each once.
#[derive(Debug, Default)]
pub struct Words {
    ids: HashMap<Box<str>, u32>,
    texts: Vec<Box<str>>,
}

impl Words {
    pub(super) fn id(&mut self, text: &str) -> u32 {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = self.texts.len() as u32;
        self.texts.push(text.into());
        self.ids.insert(text.into(), id);
        id
    }

    pub(super) fn text(&self, id: u32) -> &str {
        self.texts.get(id as usize).map_or("", |text| text)
    }
}

/// A line of one channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Its text, of [`Words`].
    pub text: u32,
    /// The kernel's name, of [`Words`]; none where it is not known or there is none.
    pub kernel: Option<u32>,
    /// Its place among all lines of the recording.
    pub place: u32,
    /// Index of its first address in [`RecordingLines::addresses`], and the number of its addresses.
    pub first: u32,
    pub addresses: u8,
    /// True if the line is a submission's.
    pub doorbell: bool,
}

/// The lines of a channel, with what is known of it.
#[derive(Debug)]
pub(super) struct ChannelLines {
    pub id: ChannelId,
    pub engine: Engine,
    pub lines: Vec<Line>,
}

/// Number, and bytes.
pub(super) type Counted = (u64, u64);

/// Counts of submissions, operations by their two words, launches by kernel and program, and method writes.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub submissions: Counted,
    pub operations: BTreeMap<(&'static str, &'static str), Counted>,
    pub kernels: BTreeMap<u32, u64>,
    /// Number of launches of each program without a name.
    pub programs: BTreeMap<Address, u64>,
    /// Number of launches of programs that are not known.
    pub unknown: u64,
    pub methods: BTreeMap<(u32, u16), u64>,
    /// True if the decoder's counts are there: with a filter they are not.
    pub has_methods: bool,
}

/// A recording as its lines.
#[derive(Debug, Default)]
pub struct RecordingLines {
    /// Channels in the order of their first use.
    pub(super) channels: Vec<ChannelLines>,
    pub(super) addresses: Vec<Address>,
    pub(super) counts: Counts,
    /// Number of lines that were not kept.
    pub(super) not_kept: u64,
    /// True if submissions are what looks found, and not the program's doorbells.
    pub(super) observed: bool,
}

impl Counts {
    /// Number of launches by kernel, whatever is known of it.
    pub(super) fn launches(&self) -> u64 {
        let named: u64 = self.kernels.values().sum();
        let others: u64 = self.programs.values().sum();
        named + others + self.unknown
    }
}

impl RecordingLines {
    pub(super) fn of(&self, line: &Line) -> &[Address] {
        let first = line.first as usize;
        let end = first + usize::from(line.addresses);
        self.addresses.get(first..end).unwrap_or(&[])
    }
}

/// Collects the lines of one recording.
pub struct Collect<'w> {
    words: &'w mut Words,
    recording: RecordingLines,
    /// Index of each channel in the recording.
    at: HashMap<ChannelId, usize>,
    lines: u32,
    filtered: bool,
}

impl<'w> Collect<'w> {
    /// Begins to collect. `filtered`: not all events come.
    pub fn new(words: &'w mut Words, filtered: bool) -> Self {
        Self {
            words,
            recording: RecordingLines::default(),
            at: HashMap::new(),
            lines: 0,
            filtered,
        }
    }

    /// Returns the lines of the recording.
    pub fn recording(self) -> RecordingLines {
        self.recording
    }

    fn put(&mut self, event: &Event<'_>, text: &str, addresses: &[Address], kernel: Option<u32>) {
        if self.lines as usize >= MOST_LINES {
            self.recording.not_kept += 1;
            return;
        }
        let c = event.context;
        let recording = &mut self.recording;
        let at = *self.at.entry(c.channel).or_insert_with(|| {
            recording.channels.push(ChannelLines {
                id: c.channel,
                engine: c.engine,
                lines: Vec::new(),
            });
            recording.channels.len() - 1
        });
        let line = Line {
            text: self.words.id(text),
            kernel,
            place: self.lines,
            first: recording.addresses.len() as u32,
            addresses: addresses.len() as u8,
            doorbell: matches!(event.body, Body::Submission(_)),
        };
        self.lines += 1;
        recording.addresses.extend_from_slice(addresses);
        if let Some(channel) = recording.channels.get_mut(at) {
            channel.lines.push(line);
            if channel.engine == Engine::Unknown {
                channel.engine = c.engine;
            }
        }
    }

    fn operation(&mut self, event: &Event<'_>, op: &Operation) {
        let (name, of, bytes) = class_of(op);
        let sum = self.recording.counts.operations.entry((name, of));
        let sum = sum.or_default();
        *sum = (sum.0 + 1, sum.1.saturating_add(bytes));
        let (text, addresses) = line::operation(event.context.at.pid, op);
        let mut kernel = None;
        if let Operation::Launch(l) = op {
            kernel = l.kernel.as_ref().map(|k| self.words.id(&k.name));
            let counts = &mut self.recording.counts;
            match (kernel, addresses.last()) {
                _ if l.kind == LaunchKind::Companion => {}
                (Some(kernel), _) => *counts.kernels.entry(kernel).or_default() += 1,
                (None, Some(program)) if program.kind == line::Kind::Program => {
                    *counts.programs.entry(*program).or_default() += 1;
                }
                (None, _) => counts.unknown += 1,
            }
        }
        self.put(event, &text, &addresses, kernel);
    }
}

impl Sink for Collect<'_> {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn shows_summary(&self) -> bool {
        !self.filtered
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        match &event.body {
            Body::Submission(s) => {
                self.recording.observed |= event.context.how == How::Observed;
                let sum = &mut self.recording.counts.submissions;
                *sum = (sum.0 + 1, sum.1.saturating_add(s.bytes));
                self.put(event, &line::doorbell(s), &[], None);
            }
            Body::Operation(op) => self.operation(event, op),
            Body::Stop(stop) => {
                // Where in the entry it is says the reason alone; the entry's number and place are of this recording.
                self.put(event, &format!("stopped: {}", stop.why), &[], None);
            }
            Body::Method(_) | Body::Entry(_) | Body::Chip(_) => {}
        }
        Ok(())
    }

    fn record(&mut self, _record: &Record, _model: &Model) -> io::Result<()> {
        Ok(())
    }

    fn is_for_later(&self) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn summary(&mut self, summary: &Summary) {
        if self.filtered {
            return;
        }
        let counts = &mut self.recording.counts;
        counts.has_methods = true;
        for (class, method, writes) in &summary.methods {
            counts.methods.insert((*class, *method), *writes);
        }
    }

    fn finish(&mut self, _ledger: &Ledger, _model: &Model) -> io::Result<()> {
        Ok(())
    }
}
