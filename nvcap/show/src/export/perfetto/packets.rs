//! Packets of the file: numbers for texts that come again and again, the clocks, and a new beginning behind a loss.

use std::collections::HashMap;
use std::io;

use prost::Message as _;

use super::proto::{
    BOOTTIME, COUNTER, Clock, ClockSnapshot, DebugAnnotation, INSTANT, InternedData, InternedName,
    MONOTONIC, NEEDS_STATE, REALTIME, SLICE_BEGIN, SLICE_END, STATE_CLEARED, TracePacket,
    TracePacketDefaults, TrackDescriptor, TrackEvent,
};
use crate::output::writer::Output;

/// The most texts that are kept. When there are more, all are forgotten, and the file says so.
const MOST_TEXTS: usize = 1 << 16;
/// Longest text that is kept.
const LONGEST_KEPT: usize = 1024;
/// The one sequence of packets.
const SEQUENCE: u32 = 1;
/// `Trace.packet`: field 1, with a length before it.
const PACKET: u8 = 1 << 3 | 2;

/// Readings of clocks at one moment, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`.
    pub monotonic: u64,
    /// `CLOCK_BOOTTIME`, where known.
    pub boottime: Option<u64>,
    /// `CLOCK_REALTIME`, where known.
    pub realtime: Option<u64>,
}

/// A value of an event that a viewer shows beside it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A text that comes again.
    Word(&'static str),
    /// Text that comes again and is made at run time.
    Text(String),
    /// A text that is not likely to come again.
    Once(String),
    Number(u64),
    Address(u64),
    Truth(bool),
    List(Vec<String>),
}

/// Values by name.
pub(super) type Notes = Vec<(&'static str, Value)>;

/// Content of an event on a track.
#[derive(Clone, Debug, Default)]
pub(super) struct Said<'a> {
    pub name: &'a str,
    pub category: &'static str,
    pub notes: Notes,
    /// Number of the arrow that begins here.
    pub from: Option<u64>,
    /// Numbers of the arrows that end here.
    pub to: Vec<u64>,
}

/// Texts with numbers.
#[derive(Debug, Default)]
struct Texts {
    numbers: HashMap<String, u64>,
    /// Texts that the file does not have yet.
    fresh: Vec<InternedName>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.numbers.len() as u64 + 1;
        self.numbers.insert(text.to_owned(), number);
        self.fresh.push(InternedName {
            iid: Some(number),
            name: Some(text.to_owned()),
        });
        number
    }
}

#[derive(Debug, Default)]
struct AllTexts {
    categories: Texts,
    names: Texts,
    note_names: Texts,
    note_values: Texts,
}

impl AllTexts {
    fn len(&self) -> usize {
        let all = [
            &self.categories,
            &self.names,
            &self.note_names,
            &self.note_values,
        ];
        all.map(|t| t.numbers.len()).iter().sum()
    }

    fn fresh(&mut self) -> Option<InternedData> {
        let data = InternedData {
            event_categories: std::mem::take(&mut self.categories.fresh),
            event_names: std::mem::take(&mut self.names.fresh),
            debug_annotation_names: std::mem::take(&mut self.note_names.fresh),
            debug_annotation_string_values: std::mem::take(&mut self.note_values.fresh),
        };
        (data != InternedData::default()).then_some(data)
    }
}

/// The file.
pub(super) struct Packets {
    out: Output,
    clocks: Option<Clocks>,
    texts: AllTexts,
    /// Generation of what packets rely on; it grows when what the file had before holds no longer.
    generation: u32,
    /// The generation whose begin is written.
    begun: Option<u32>,
    /// Objects that were lost when this was looked at last.
    lost: u64,
    /// The time of what is written now, ns.
    now: u64,
}

impl Packets {
    pub(super) fn new(out: Output, clocks: Option<Clocks>) -> Self {
        Self {
            out,
            clocks,
            texts: AllTexts::default(),
            generation: 0,
            begun: None,
            lost: 0,
            now: 0,
        }
    }

    /// Returns the current generation. Packets of an earlier generation may be lost, or hold no longer.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Sets the time of the packets that follow, ns.
    pub(super) fn at(&mut self, time: u64) {
        self.now = time;
    }

    /// The time of what is written now, ns.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Ends a group of packets, which is written whole or not at all.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let result = self.out.end_object();
        self.look_for_loss();
        result
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        let result = self.out.flush();
        self.look_for_loss();
        result
    }

    pub(super) fn unshown(&self) -> u64 {
        self.out.unshown()
    }

    fn look_for_loss(&mut self) {
        let lost = self.out.unshown();
        if lost != self.lost || self.texts.len() > MOST_TEXTS {
            self.lost = lost;
            self.texts = AllTexts::default();
            self.generation += 1;
        }
    }

    fn put(&mut self, mut packet: TracePacket) {
        if self.begun != Some(self.generation) {
            self.begin();
        }
        packet.interned_data = self.texts.fresh();
        packet.sequence_flags = Some(NEEDS_STATE);
        self.append(packet);
    }

    /// Writes the packet that others need, at the begin and behind a loss.
    fn begin(&mut self) {
        let first = self.begun.is_none();
        self.begun = Some(self.generation);
        let clocks = self.clocks.unwrap_or(Clocks {
            monotonic: self.now,
            ..Clocks::default()
        });
        let clock = |id, time: Option<u64>| {
            time.map(|time| Clock {
                clock_id: Some(id),
                timestamp: Some(time),
            })
        };
        let shown = [
            clock(MONOTONIC, Some(clocks.monotonic)),
            clock(BOOTTIME, clocks.boottime),
            clock(REALTIME, clocks.realtime),
        ];
        self.append(TracePacket {
            clock_snapshot: Some(ClockSnapshot {
                clocks: shown.into_iter().flatten().collect(),
                primary_trace_clock: Some(MONOTONIC),
            }),
            ..TracePacket::default()
        });
        self.append(TracePacket {
            sequence_flags: Some(STATE_CLEARED),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(MONOTONIC),
            }),
            first_packet_on_sequence: first.then_some(true),
            previous_packet_dropped: (!first).then_some(true),
            ..TracePacket::default()
        });
    }

    fn append(&mut self, mut packet: TracePacket) {
        packet.trusted_packet_sequence_id = Some(SEQUENCE);
        let out = self.out.object();
        out.push(PACKET);
        // A Vec has room for any message.
        let _ = packet.encode_length_delimited(out);
    }

    /// Describes a track.
    pub(super) fn track(&mut self, track: TrackDescriptor) {
        self.put(TracePacket {
            track_descriptor: Some(track),
            ..TracePacket::default()
        });
    }

    fn event(&mut self, time: u64, event: TrackEvent) {
        self.put(TracePacket {
            timestamp: Some(time),
            track_event: Some(event),
            ..TracePacket::default()
        });
    }

    fn said(&mut self, track: u64, said: &Said<'_>) -> TrackEvent {
        TrackEvent {
            track_uuid: Some(track),
            category_iids: vec![self.texts.categories.number(said.category)],
            name_iid: Some(self.texts.names.number(said.name)),
            debug_annotations: self.notes(&said.notes),
            flow_ids: Vec::from_iter(said.from),
            terminating_flow_ids: said.to.clone(),
            ..TrackEvent::default()
        }
    }

    /// Writes an event without a duration.
    pub(super) fn instant(&mut self, track: u64, time: u64, said: &Said<'_>) {
        self.instant_with(track, time, said, None);
    }

    /// Writes an event without a duration, with the calls that led to it.
    pub(super) fn instant_with(
        &mut self,
        track: u64,
        time: u64,
        said: &Said<'_>,
        callstack: Option<super::proto::Callstack>,
    ) {
        let event = TrackEvent {
            r#type: Some(INSTANT),
            callstack,
            ..self.said(track, said)
        };
        self.event(time, event);
    }

    /// Writes an event with a duration.
    pub(super) fn slice(&mut self, track: u64, (begin, end): (u64, u64), said: &Said<'_>) {
        let event = TrackEvent {
            r#type: Some(SLICE_BEGIN),
            ..self.said(track, said)
        };
        self.event(begin, event);
        let event = TrackEvent {
            r#type: Some(SLICE_END),
            track_uuid: Some(track),
            ..TrackEvent::default()
        };
        self.event(end, event);
    }

    /// Writes the value that a counter has from a time on.
    pub(super) fn counter(&mut self, track: u64, time: u64, value: i64) {
        let event = TrackEvent {
            r#type: Some(COUNTER),
            track_uuid: Some(track),
            counter_value: Some(value),
            ..TrackEvent::default()
        };
        self.event(time, event);
    }

    fn notes(&mut self, notes: &Notes) -> Vec<DebugAnnotation> {
        let all = notes.iter().map(|(name, value)| {
            let note = self.value(value);
            DebugAnnotation {
                name_iid: Some(self.texts.note_names.number(name)),
                ..note
            }
        });
        all.collect()
    }

    fn value(&mut self, value: &Value) -> DebugAnnotation {
        let mut note = DebugAnnotation::default();
        let mut kept = |text: &str| match text.len() <= LONGEST_KEPT {
            true => note.string_value_iid = Some(self.texts.note_values.number(text)),
            false => note.string_value = Some(text.to_owned()),
        };
        match value {
            Value::Word(text) => kept(text),
            Value::Text(text) => kept(text),
            Value::Once(text) => note.string_value = Some(text.clone()),
            Value::Number(n) => note.uint_value = Some(*n),
            Value::Address(n) => note.pointer_value = Some(*n),
            Value::Truth(truth) => note.bool_value = Some(*truth),
            Value::List(all) => {
                let all = all.iter().map(|text| DebugAnnotation {
                    string_value: Some(text.clone()),
                    ..DebugAnnotation::default()
                });
                note.array_values = all.collect();
            }
        }
        note
    }
}
