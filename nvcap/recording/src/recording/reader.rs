//! Reader of records from the bytes of a file: all whole records, then reports of the missing ones.

use std::collections::BTreeMap;
use std::io::Read;

use prost::Message as _;

use super::decode::{self, NotUnderstood};
use super::info::{EndInfo, TraceInfo};
use super::kind::{AGAIN, Head, Kind, MOST_BODY};
use super::known_calls::KnownCalls;
use super::messages as m;
use super::parts;
use super::{fault_messages, sample_messages, snapshot, switch_messages};
use crate::pcapng::{Block, Blocks, Damage};
use nvcap_decode::record::Record;

/// The most ranges of missing numbers that are kept.
const MOST_RANGES: usize = 1 << 16;

/// Item of a recording.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    clippy::large_enum_variant,
    reason = "one item of a recording is its end: the others are moved as they are"
)]
pub enum Item {
    /// Description of the trace. It comes first, and again at the beginning of each new part of the file.
    Trace(TraceInfo),
    /// A record.
    Record(Record),
    /// Mark that the live trace had shown everything before it.
    Idle,
    /// Mark that the trace continues in another file.
    Continued,
    /// End of the trace.
    End(EndInfo),
}

/// Error in a recording. Reading continues behind it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bytes that are not a block, or a failed read.
    #[error(transparent)]
    Damage(#[from] Damage),
    /// A packet that was changed, or that is no packet of a recording.
    #[error("the packet at byte {offset} is damaged")]
    Packet {
        /// Offset in the (decompressed) file.
        offset: u64,
    },
    /// A packet that this nvcap does not understand.
    #[error("record {number} ({kind}) is not understood: {why}")]
    NotUnderstood {
        /// Number of the record.
        number: u64,
        /// Kind of the record.
        kind: String,
        /// Reason why it is not understood.
        why: NotUnderstood,
    },
    /// A packet of a kind that this nvcap does not know. It is reported for the first packet of each kind.
    #[error("record {number} is of kind {kind}, which this nvcap does not know; a newer one may")]
    Kind {
        /// Number of the record.
        number: u64,
        /// Kind of the record.
        kind: u8,
    },
    /// Further packets of a kind that this nvcap does not know. They are reported at the end.
    #[error("{count} more records are of kind {kind}, which this nvcap does not know")]
    MoreOfKind {
        /// Kind of the packets.
        kind: u8,
        /// Number of these packets, without the first.
        count: u64,
    },
    /// Missing records, which are reported at the end.
    #[error("{count} of the records up to number {last} are missing, the first is number {first}")]
    Missing {
        /// Number of missing records.
        count: u64,
        /// Number of the first missing record.
        first: u64,
        /// Highest number of a record.
        last: u64,
    },
    /// Files of a trace that were joined in the wrong order, which is reported at the end.
    #[error(
        "{count} records of earlier files came behind later ones and are not shown; join the files in the order of their numbers"
    )]
    Earlier {
        /// Number of records.
        count: u64,
    },
    /// A recording without an end.
    #[error(
        "the recording has no end: nvcap was ended before, or the file was cut; what came behind record {last} is missing"
    )]
    NoEnd {
        /// Highest number of a record.
        last: u64,
    },
    /// A file without a packet of a recording.
    #[error("the file has no records")]
    Empty,
    /// A file with packets of other traces.
    #[error(
        "{packets} packets are of other traces that were merged into this file; they are not shown"
    )]
    OtherTraces {
        /// Number of packets.
        packets: u64,
    },
}

impl Error {
    /// Tells whether the system could not read the file, which is no damage of the file.
    #[must_use]
    pub fn is_of_system(&self) -> bool {
        matches!(self, Self::Damage(Damage::Io { .. }))
    }
}

/// A body of which some parts have come.
pub(super) struct Assembly {
    head: Head,
    body: Vec<u8>,
}

/// Reader of a recording.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use nvcap_recording::recording::{Item, Reader};
/// let file = std::fs::File::open("nvcap.pcapng")?;
/// for item in Reader::new(file) {
///     match item {
///         Ok(Item::Record(record)) => println!("{record:?}"),
///         Ok(_) => {}
///         Err(damage) => eprintln!("{damage}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Reader<R> {
    blocks: Blocks<R>,
    trace: Option<u32>,
    others: u64,
    assembly: Option<Assembly>,
    pub(super) calls: KnownCalls,
    numbers: Numbers,
    /// Numbers of records of unknown kinds, by kind.
    unknown: BTreeMap<u8, u64>,
    ended: bool,
    done: bool,
    /// First item, if it was read before it was asked for.
    first: Option<Result<Item, Error>>,
    /// Errors that are reported at the end.
    last: Vec<Error>,
}

impl<R: Read> Reader<R> {
    /// Reads a recording that is not compressed.
    pub fn new(reader: R) -> Self {
        Self {
            blocks: Blocks::new(reader),
            trace: None,
            others: 0,
            assembly: None,
            calls: KnownCalls::default(),
            numbers: Numbers::default(),
            unknown: BTreeMap::new(),
            ended: false,
            done: false,
            first: None,
            last: Vec::new(),
        }
    }

    /// Returns the description of the trace, if the recording begins with it.
    pub fn trace(&mut self) -> Option<&TraceInfo> {
        if self.first.is_none() {
            self.first = self.next();
        }
        match &self.first {
            Some(Ok(Item::Trace(info))) => Some(info),
            _ => None,
        }
    }

    /// Returns the random number that all files of the trace have; `None` before one of its packets was read.
    #[must_use]
    pub fn trace_number(&self) -> Option<u32> {
        self.trace
    }

    /// Returns the number of bytes of the file that were read.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.blocks.position()
    }

    fn step(&mut self) -> Option<Result<Item, Error>> {
        loop {
            let (head, body) = match self.blocks.next_block()? {
                Ok(Block::Packet(packet)) => {
                    let Some((head, part)) = Head::parse(packet.data) else {
                        let offset = packet.offset;
                        return Some(Err(Error::Packet { offset }));
                    };
                    if *self.trace.get_or_insert(head.trace) != head.trace {
                        self.others += 1;
                        continue;
                    }
                    match whole(&mut self.assembly, head, part) {
                        Some(body) => (head, body),
                        None => continue,
                    }
                }
                Ok(_) => continue,
                Err(damage) => return Some(Err(damage.into())),
            };
            if let Some(item) = self.item(head, &body) {
                return Some(item);
            }
        }
    }

    fn item(&mut self, head: Head, body: &[u8]) -> Option<Result<Item, Error>> {
        let number = head.number;
        let Some(kind) = Kind::with_number(head.kind) else {
            // With this flag, the number is that of the next record, which is still to come.
            if head.flags & AGAIN == 0 {
                self.numbers.note(number);
            }
            let kind = head.kind;
            let count = self.unknown.entry(kind).or_insert(0);
            *count += 1;
            return (*count == 1).then_some(Err(Error::Kind { number, kind }));
        };
        let not_understood = |why| Error::NotUnderstood {
            number,
            kind: kind.name().to_owned(),
            why,
        };
        match kind {
            Kind::Trace => {
                let trace = parts::check(kind, body)
                    .and_then(|()| Ok(m::Trace::decode(body)?))
                    .map_err(not_understood);
                if let Ok(trace) = &trace {
                    // The packet's own number is a later one if the file's beginning could not be written.
                    let first = if trace.first == 0 {
                        number
                    } else {
                        trace.first
                    };
                    self.numbers.begin(first.min(number), trace.file);
                    self.ended = false;
                }
                return Some(trace.map(|t| Item::Trace(TraceInfo::of(t))));
            }
            Kind::Calls => {
                return match parts::check(kind, body).and_then(|()| decode::calls(body)) {
                    Ok((number, calls)) => {
                        self.calls.add(number, calls);
                        None
                    }
                    Err(why) => Some(Err(not_understood(why))),
                };
            }
            Kind::Idle => return Some(Ok(Item::Idle)),
            Kind::Continued => {
                self.ended = true;
                return Some(Ok(Item::Continued));
            }
            Kind::End => {
                self.numbers.note(number);
                self.ended = true;
                let end = parts::check(kind, body)
                    .and_then(|()| Ok(m::End::decode(body)?))
                    .map_err(not_understood);
                return Some(end.map(|e| Item::End(EndInfo::of(e))));
            }
            _ => {}
        }
        let again = head.flags & AGAIN != 0;
        if again && !self.numbers.wants_again() || !again && !self.numbers.note(number) {
            return None;
        }
        if let Err(why) = parts::check(kind, body) {
            return Some(Err(not_understood(why)));
        }
        let record = match kind {
            Kind::Snapshot => snapshot::record(body).map(Some),
            Kind::Fault => fault_messages::record(body).map(Some),
            Kind::Samples => sample_messages::record(body).map(Some),
            Kind::Switches => switch_messages::record(body).map(Some),
            _ => decode::record(kind, body, |n| self.calls.get(n)),
        };
        match record {
            Ok(record) => record.map(|r| Ok(Item::Record(r))),
            Err(why) => Some(Err(not_understood(why))),
        }
    }

    /// Collects the errors that are reported at the end, the last first.
    fn conclude(&mut self) {
        if self.trace.is_none() {
            self.last.push(Error::Empty);
            return;
        }
        for (kind, count) in &self.unknown {
            if let Some(count @ 1..) = count.checked_sub(1) {
                self.last.push(Error::MoreOfKind { kind: *kind, count });
            }
        }
        if self.others > 0 {
            self.last.push(Error::OtherTraces {
                packets: self.others,
            });
        }
        let last = self.numbers.next.saturating_sub(1);
        if !self.ended {
            self.last.push(Error::NoEnd { last });
        }
        if let Some((count, first)) = self.numbers.missing() {
            self.last.push(Error::Missing { count, first, last });
        }
        if let count @ 1.. = self.numbers.earlier {
            self.last.push(Error::Earlier { count });
        }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Item, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if !self.done {
            if let Some(item) = self.step() {
                return Some(item);
            }
            self.done = true;
            self.conclude();
        }
        self.last.pop().map(Err)
    }
}

/// Adds a part to a body. Returns the body when its last part has come.
pub(super) fn whole(assembly: &mut Option<Assembly>, head: Head, part: &[u8]) -> Option<Vec<u8>> {
    let (index, count) = head.part;
    if index == 0 {
        *assembly = None;
        if count <= 1 {
            return Some(part.to_vec());
        }
        let body = part.to_vec();
        *assembly = Some(Assembly { head, body });
        return None;
    }
    let begun = assembly.as_mut()?;
    let expected = Head {
        part: (begun.head.part.0 + 1, count),
        ..begun.head
    };
    let most = Kind::with_number(head.kind).map_or(MOST_BODY, Kind::most_body);
    if head != expected || begun.body.len() + part.len() > most {
        *assembly = None;
        return None;
    }
    begun.head = head;
    begun.body.extend_from_slice(part);
    match index + 1 == count {
        true => assembly.take().map(|a| a.body),
        false => None,
    }
}

/// Numbers of the records that have come so far.
#[derive(Default)]
struct Numbers {
    next: u64,
    begun: bool,
    /// True for a later file of a trace: records of earlier files do not count as missing.
    later: bool,
    /// First number of the first file that was read.
    from: u64,
    /// Number of records of earlier files that nevertheless came.
    earlier: u64,
    /// Ranges of numbers below `next` that have not come: first number, and the number after the last.
    missing: Vec<(u64, u64)>,
    /// Number of records in missing ranges that are not kept.
    unkept: u64,
}

impl Numbers {
    /// Records the beginning of a file, or of a part of a file.
    fn begin(&mut self, number: u64, file: u32) {
        if !self.begun && file > 0 {
            self.next = number;
            self.from = number;
            self.later = true;
        }
        self.begun = true;
    }

    /// Tells whether repeated records of earlier files are wanted, because those files were not
    /// read.
    fn wants_again(&self) -> bool {
        self.later
    }

    /// Records a record's number. Returns false if it came before.
    fn note(&mut self, number: u64) -> bool {
        self.begun = true;
        if number >= self.next {
            if number > self.next {
                match self.missing.len() < MOST_RANGES {
                    true => self.missing.push((self.next, number)),
                    false => self.unkept += number - self.next,
                }
            }
            self.next = number.saturating_add(1);
            return true;
        }
        let Some(at) =
            { self.missing.iter() }.position(|(first, end)| (*first..*end).contains(&number))
        else {
            self.earlier += u64::from(number < self.from);
            return false;
        };
        let (first, end) = self.missing[at];
        let rest = [(first, number), (number + 1, end)];
        let rest = rest.into_iter().filter(|(first, end)| first < end);
        self.missing.splice(at..=at, rest);
        true
    }

    fn missing(&self) -> Option<(u64, u64)> {
        let first = self.missing.first()?.0;
        let kept: u64 = self.missing.iter().map(|(first, end)| end - first).sum();
        Some((kept + self.unkept, first))
    }
}
