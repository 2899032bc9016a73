//! Writer of records as blocks of a file.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use prost::Message as _;

use super::encode;
use super::info::{EndInfo, GpuClock, TraceInfo};
use super::kind::{AGAIN, Head, Kind, MOST_BODY, MOST_PART};
use super::known_calls::{MOST_BYTES as MOST_CALLS_BYTES, MOST_NAMED, Weight};
use super::messages as m;
use crate::pcapng::{self, Options, option};
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{Calls, Channel, ChannelId, Loss, Lost, Record, StackEnd, Stamps};

/// The most GPU clocks in a section's comment.
const MOST_CLOCKS: usize = 16;

/// Number of the interface for records without a channel.
const NO_CHANNEL: u32 = 0;

/// Writer of the blocks of a recording. Each call appends whole blocks to a buffer. The blocks of one call must reach the file as a whole
/// or not at all. [`Writer::begin_section`] continues after blocks that could not be written.
pub struct Writer {
    info: TraceInfo,
    trace: u32,
    number: u64,
    /// Number of the file's first record.
    first: u64,
    newest_ns: u64,
    interfaces: HashMap<ChannelId, u32>,
    /// Descriptions of channels, for later sections.
    descriptions: HashMap<ChannelId, String>,
    /// Calls and their numbers, by the address of the calls, which does not change while they are held here.
    calls: HashMap<usize, (Arc<Calls>, u32)>,
    weight: Weight,
    /// The most bytes of calls to which stacks refer. Above it, calls are written anew, as above [`MOST_NAMED`].
    pub(super) most_calls: usize,
    next_calls: u32,
    /// True if nothing was recorded since the last mark of idleness.
    idle: bool,
    /// Closest known reading of the GPU's clock, by process.
    gpu_clocks: BTreeMap<u32, GpuClock>,
    /// Bytes to append to the body of the next record.
    decoded: Vec<u8>,
    /// The most bytes of a body.
    pub most: usize,
    /// Number of records that were too long and were replaced by a loss.
    too_long: u64,
}

fn address(calls: &Arc<Calls>) -> usize {
    Arc::as_ptr(calls).addr()
}

impl Writer {
    /// Makes a writer for one trace. `trace` is a random number, which distinguishes this trace's packets from those of other traces that a
    /// tool may merge.
    #[must_use]
    pub fn new(info: TraceInfo, trace: u32) -> Self {
        Self {
            trace,
            number: 0,
            first: 0,
            newest_ns: info.monotonic_ns,
            info,
            interfaces: HashMap::new(),
            descriptions: HashMap::new(),
            calls: HashMap::new(),
            weight: Weight::default(),
            most_calls: MOST_CALLS_BYTES,
            next_calls: 0,
            idle: true,
            gpu_clocks: BTreeMap::new(),
            decoded: Vec::new(),
            most: MOST_BODY,
            too_long: 0,
        }
    }

    /// Records that submissions are observed, whatever was planned when the trace began.
    pub fn observes(&mut self) {
        "observe".clone_into(&mut self.info.how);
    }

    /// Begins a file, or a new part of it after blocks that could not be written. The section depends on no block before it.
    pub fn begin_section(&mut self, to: &mut Vec<u8>) {
        self.interfaces.clear();
        self.forget_calls();
        let hardware = Options::new().text(option::HARDWARE, &self.info.hardware());
        let system = match &self.info.driver {
            None => format!("Linux {}", self.info.kernel),
            Some(driver) => format!("Linux {}, NVIDIA driver {driver}", self.info.kernel),
        };
        let options = hardware
            .text(option::SYSTEM, &system)
            .text(option::PROGRAM, &self.info.program)
            .text(option::COMMENT, &self.clocks());
        pcapng::section(to, &options);
        let options = Options::new().text(option::NAME, "driver").text(
            option::DESCRIPTION,
            "what is of no channel: driver calls, mappings, processes, names, losses",
        );
        pcapng::interface(to, most_packet(), &options);
        let body = self.info.message(self.first).encode_to_vec();
        self.packet(
            to,
            Kind::Trace,
            AGAIN,
            NO_CHANNEL,
            self.info.monotonic_ns,
            &body,
        );
    }

    /// Returns a description, as text for people, of the clocks of GPUs that are known by now.
    fn clocks(&self) -> String {
        let TraceInfo {
            monotonic_ns,
            realtime_ns,
            ..
        } = self.info;
        let mut text =
            format!("clocks at one moment, ns: MONOTONIC {monotonic_ns}, REALTIME {realtime_ns}");
        for c in self.gpu_clocks.values().take(MOST_CLOCKS) {
            text += &format!(
                "; GPU of process {}: {} at MONOTONIC {} to {}",
                c.pid, c.gpu_ns, c.before_ns, c.seen_ns
            );
        }
        text
    }

    /// Records a reading of the GPU's clock, if it is the closest so far.
    fn note_clock(&mut self, stamps: &Stamps) {
        let pid = stamps.at.pid;
        for found in stamps.stamps.iter().filter_map(|s| GpuClock::of(pid, s)) {
            let best = self.gpu_clocks.entry(pid).or_insert(found);
            if found.width() < best.width() {
                *best = found;
            }
        }
    }

    /// Ends a file of a trace that continues in another file. [`Writer::counts`] must be called next.
    pub fn continued(&mut self, to: &mut Vec<u8>) {
        self.packet(to, Kind::Continued, AGAIN, NO_CHANNEL, self.newest_ns, &[]);
    }

    /// Begins the trace's next file. `left_out` is the number of records that the file would need, and that do not follow by
    /// [`Writer::again`].
    pub fn begin_file(&mut self, left_out: u64, to: &mut Vec<u8>) {
        self.info.file += 1;
        self.first = self.number;
        self.info.left_out = left_out;
        self.begin_section(to);
    }

    /// Sets the decoder's account of the next record, or of the end. `field` has the bytes of
    /// [`Decoded::field`](super::decoded::Decoded::field).
    pub fn decoded(&mut self, field: Vec<u8>) {
        self.decoded = field;
    }

    /// Appends a record.
    pub fn record(&mut self, record: &Record, to: &mut Vec<u8>) {
        let had_clock = !self.gpu_clocks.is_empty();
        self.append(record, 0, to);
        self.number += 1;
        self.idle = false;
        if !had_clock && !self.gpu_clocks.is_empty() {
            self.begin_section_with_clock(to);
        }
    }

    /// Appends again a record of an earlier file of the trace, without which this file cannot be understood.
    pub fn again(&mut self, record: &Record, to: &mut Vec<u8>) {
        self.append(record, AGAIN, to);
    }

    fn append(&mut self, record: &Record, flags: u8, to: &mut Vec<u8>) {
        let at = record.at();
        if at.time_ns != 0 {
            self.newest_ns = self.newest_ns.max(at.time_ns);
        }
        let time = at.time().unwrap_or(self.newest_ns);
        let interface = match record {
            Record::Channel(c) => self.interface(c.id, Some(c), to),
            Record::Submission(s) => self.interface(s.channel, None, to),
            Record::Loss(l) => match l.channel {
                Some(id) => self.interface(id, None, to),
                None => NO_CHANNEL,
            },
            Record::Fault(f) => match f.channel {
                Some(id) => self.interface(id, None, to),
                None => NO_CHANNEL,
            },
            _ => NO_CHANNEL,
        };
        if let Record::Stamps(s) = record {
            self.note_clock(s);
        }
        if let Record::Stack(s) = record {
            self.note_calls(&s.calls, time, to);
        }
        let mut body = encode::body(record, |s| {
            self.calls.get(&address(&s.calls)).map_or(0, |c| c.1)
        });
        if flags & AGAIN == 0 {
            body.append(&mut self.decoded);
        }
        let mut kind = Kind::of(record);
        if body.len() > self.most.min(kind.most_body()) {
            self.too_long += u64::from(flags & AGAIN == 0 && !matches!(record, Record::Stack(_)));
            let loss = Record::Loss(too_long(record));
            (kind, body) = (Kind::of(&loss), encode::body(&loss, |_| 0));
        }
        self.packet(to, kind, flags, interface, time, &body);
    }

    /// Returns the number of records that were too long for a recording and were replaced by a loss. Stacks are not counted, because no
    /// submission is missing because of them.
    #[must_use]
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Begins a section whose header has the GPU's clock, which has just become known. It has all channels of the previous section, so that
    /// the counts at the end cover them.
    fn begin_section_with_clock(&mut self, to: &mut Vec<u8>) {
        let mut channels: Vec<_> = self.interfaces.iter().map(|(id, n)| (*n, *id)).collect();
        channels.sort_unstable();
        self.begin_section(to);
        for (_, id) in channels {
            self.interface(id, None, to);
        }
    }

    /// Appends the mark that the live trace has shown everything before it. A reader of the recording shows the mark at the same place.
    pub fn idle(&mut self, to: &mut Vec<u8>) {
        if !self.idle {
            self.idle = true;
            self.packet(to, Kind::Idle, AGAIN, NO_CHANNEL, self.newest_ns, &[]);
        }
    }

    /// Appends the end of the trace, with the counts of each interface. `account` is the ledger as JSON.
    pub fn end(&mut self, end: EndInfo, ledger: &Ledger, account: &[u8], to: &mut Vec<u8>) {
        let time = self.newest_ns;
        let end = EndInfo {
            time_ns: time,
            gpu_clocks: self.gpu_clocks.values().copied().collect(),
            ..end
        };
        let mut body = end.message().encode_to_vec();
        body.append(&mut self.decoded);
        self.packet(to, Kind::End, 0, NO_CHANNEL, time, &body);
        self.number += 1;
        self.counts(ledger, account, to);
    }

    /// Appends the counts of each interface, and the ledger as JSON, behind the last packet of a file. They are for other programs.
    /// `ledger` counts from the trace's beginning, as pcapng requires for these blocks.
    pub fn counts(&self, ledger: &Ledger, account: &[u8], to: &mut Vec<u8>) {
        let begin = self.info.realtime_of(self.info.monotonic_ns);
        let end = self.info.realtime_of(self.newest_ns);
        let mut interfaces = Vec::from_iter(&self.interfaces);
        interfaces.sort_by_key(|(_, interface)| **interface);
        for (id, interface) in interfaces {
            let Some(channel) = ledger.channel(*id) else {
                continue;
            };
            let options = Options::new()
                .time(option::BEGIN, begin)
                .time(option::END, end)
                .number(option::RECEIVED, channel.entries)
                .number(option::DROPPED, channel.gaps);
            pcapng::statistics(to, *interface, end, &options);
        }
        pcapng::custom(to, super::ENTERPRISE, account);
    }

    /// Appends a line of the kernel's log.
    pub fn kernel_log(&mut self, time_ns: u64, message: &str, to: &mut Vec<u8>) {
        let realtime = (self.info.realtime_of(time_ns) / 1000).to_string();
        let monotonic = (time_ns / 1000).to_string();
        pcapng::journal_entry(
            to,
            &[
                ("__REALTIME_TIMESTAMP", &realtime),
                ("__MONOTONIC_TIMESTAMP", &monotonic),
                ("_TRANSPORT", "kernel"),
                ("MESSAGE", message),
            ],
        );
    }

    fn forget_calls(&mut self) {
        self.calls.clear();
        self.weight = Weight::default();
    }

    /// Writes the calls of a stack before the first stack that refers to them.
    fn note_calls(&mut self, calls: &Arc<Calls>, time: u64, to: &mut Vec<u8>) {
        if self.calls.contains_key(&address(calls)) {
            return;
        }
        self.weight.add(calls);
        if self.calls.len() >= MOST_NAMED || self.weight.bytes > self.most_calls {
            self.forget_calls();
            self.weight.add(calls);
        }
        let number = self.next_calls;
        self.next_calls = self.next_calls.wrapping_add(1);
        let held = (calls.clone(), number);
        self.calls.insert(address(calls), held);
        let mut message = m::Calls::of(number, calls);
        let most = self.most.min(Kind::Calls.most_body());
        while message.encoded_len() > most && !message.frames.is_empty() {
            // The outermost frames are left out, as for a deep stack.
            message.frames.truncate(message.frames.len() / 2);
            message.end = StackEnd::Deep.name().to_owned();
        }
        let body = message.encode_to_vec();
        self.packet(to, Kind::Calls, AGAIN, NO_CHANNEL, time, &body);
    }

    /// Returns the interface of a channel, which is described at the channel's first packet.
    fn interface(&mut self, id: ChannelId, known: Option<&Channel>, to: &mut Vec<u8>) -> u32 {
        if let Some(interface) = self.interfaces.get(&id) {
            return *interface;
        }
        let interface = self.interfaces.len() as u32 + 1;
        self.interfaces.insert(id, interface);
        let name = format!("channel {}", id.0);
        let mut options = Options::new().text(option::NAME, &name);
        if let Some(channel) = known {
            self.descriptions.insert(id, description(channel));
        }
        if let Some(description) = self.descriptions.get(&id) {
            options = options.text(option::DESCRIPTION, description);
        }
        pcapng::interface(to, most_packet(), &options);
        interface
    }

    fn packet(
        &self,
        to: &mut Vec<u8>,
        kind: Kind,
        flags: u8,
        interface: u32,
        time: u64,
        body: &[u8],
    ) {
        let time = self.info.realtime_of(time);
        let parts = body.len().div_ceil(MOST_PART).max(1);
        for part in 0..parts {
            let from = part * MOST_PART;
            let bytes = &body[from..body.len().min(from + MOST_PART)];
            let head = Head {
                kind: kind as u8,
                flags,
                trace: self.trace,
                number: self.number,
                part: (part as u32, parts as u32),
            };
            pcapng::packet(to, interface, time, &[&head.bytes(bytes), bytes]);
        }
    }
}

/// Makes the loss that replaces a record that is longer than a reader accepts.
fn too_long(record: &Record) -> Loss {
    let (channel, what) = match record {
        Record::Submission(s) => (
            Some(s.channel),
            Lost::Entries {
                position: s.position,
                count: s.segments.len() as u64,
            },
        ),
        Record::Stack(_) => (None, Lost::Stacks { count: 1 }),
        _ => {
            let kind = Kind::of(record);
            let (kind, most) = (kind.name(), kind.most_body() >> 20);
            let why = format!(
                "a record ({kind}) is longer than {most} MiB, which is the most that a recording can have"
            );
            (None, Lost::Untraced { why })
        }
    };
    Loss {
        at: record.at(),
        channel,
        what,
    }
}

/// Returns the most bytes of a packet.
const fn most_packet() -> u32 {
    (super::kind::HEAD + MOST_PART) as u32
}

fn description(c: &Channel) -> String {
    let mut text = format!("process {}", c.at.pid);
    if let Some(gpu) = c.gpu {
        text += &format!(", GPU {gpu}");
    }
    if let Some(token) = c.token {
        text += &format!(", token {token:#07x}");
    }
    if let Some(class) = c.class {
        text += &format!(", class {class:#06x}");
    }
    text
}
