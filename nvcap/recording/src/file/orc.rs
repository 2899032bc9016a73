//! Captures of the independent oracle (`oracle.c`), read as [`Record`]s. The module knows no decoder and no driver model.
//!
//! A capture is a sequence of records, little-endian, with no header and no padding:
//!
//! ```text
//! u32 magic "ORC1", u32 tid, u64 time ns, u64 watched address, u32 token, u32 previous GP_PUT, u32 GP_PUT, u32 n, u64 rip
//! n times: u64 GPFIFO entry, u32 length in bytes, the bytes
//! ```
//!
//! A length with bit 31 set means that the bytes could not be read; none follow then. The process id, the ring sizes and the channels'
//! classes are not in the file: the oracle prints them to its standard error, which [`Channels`] parses.
//!
//! Damage does not stop the reader. A file that was cut gives every whole record, then the remaining part of the last record (its missing
//! bytes are a hole), then an error with the place of the cut. At bytes that are no record, the reader searches for the next magic, and
//! gives an error with the number of skipped bytes. After 1 GiB without a magic it gives up.

mod channels;

use nvcap_decode::wire::words;
use std::{io, io::Read, path::Path};

pub use channels::Channels;

use super::packed;
use crate::read_ahead::{CHUNK, Failed, ReadAhead};
use nvcap_decode::record::{At, ChannelId, CpuVa, How, MOST_BYTES, Record, Segment, Submission};
use nvcap_decode::wire::Hole;
use nvcap_decode::wire::entry;
use nvcap_decode::wire::hash::NumberMap;

const MAGIC: [u8; 4] = *b"ORC1";
const HEAD: usize = 48;
const ENTRY_HEAD: usize = 12;
/// Bit of a length for bytes that could not be read, and that therefore do not follow.
const UNREADABLE: u32 = 0x8000_0000;
/// The most entries of a record, against damaged numbers. The hardware's field is a log2 of 5 bits; drivers use 1024 to 32768 entries.
const MAX_ENTRIES: u32 = 1 << 20;
/// The most bytes of a record. A record that would need more counts as damage.
const MOST_RECORD: usize = MOST_BYTES;
/// The most bytes of a record that are filled with zeros because they could not be read. Further unreadable entries get no bytes; only
/// their length shows how much is missing.
const MOST_ZEROS: usize = 64 << 20;
/// The most bytes that are searched for the next record. In a damaged capture the next record comes sooner; an endless file (`/dev/zero`)
/// has none.
const MOST_SKIPPED: u64 = 1 << 30;

/// Error in a capture.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be opened or read.
    #[error("reading the capture failed at byte {offset}: {source}")]
    Io {
        /// Offset in the (decompressed) capture.
        offset: u64,
        /// Error of the system.
        source: io::Error,
    },
    /// The capture is empty.
    #[error(
        "the capture is empty: a program that submits nothing leaves one, too, but so does one that was not captured"
    )]
    Empty,
    /// The last record is cut off.
    #[error(
        "the capture ends within a record: {have} of at least {needs} bytes of the record at byte {offset} are there"
    )]
    Cut {
        /// Offset of the last record.
        offset: u64,
        /// Number of bytes of the record that are present.
        have: u64,
        /// Number of bytes that the record is known to need.
        needs: u64,
    },
    /// Bytes between records that are no record.
    #[error(
        "no record at byte {offset} ({why}): {skipped} B are passed over, and reading goes on behind them"
    )]
    Damaged {
        /// Offset of the place in the file, bytes.
        offset: u64,
        /// Number of bytes that were skipped.
        skipped: u64,
        /// Problem that was found at the place.
        why: Damage,
    },
    /// The search for the next record was given up.
    #[error(
        "no record at byte {offset} ({why}), nor in the {skipped} B from there on: it is no capture, and the rest is not read"
    )]
    GivenUp {
        /// Offset of the place in the file, bytes.
        offset: u64,
        /// Number of bytes that were searched.
        skipped: u64,
        /// Problem that was found at the place.
        why: Damage,
    },
}

/// Problem in a damaged capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// No magic number.
    #[error("no magic")]
    Magic,
    /// A number of entries that is larger than any ring's.
    #[error("{0} entries")]
    Entries(u32),
    /// A record with more bytes than possible.
    #[error("a record of more than {} MiB", MOST_RECORD >> 20)]
    Large,
    /// A length that differs from that of its GPFIFO entry.
    #[error("an entry of {announced} bytes with {recorded} recorded")]
    Length {
        /// Length that the entry announces, bytes.
        announced: u32,
        /// Length that the record has, bytes.
        recorded: u32,
    },
}

/// Reader of the records of an oracle capture.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use nvcap_recording::file::orc::Orc;
/// for record in Orc::open("capture.orc.xz".as_ref())? {
///     match record {
///         Ok(record) => println!("{record:?}"),
///         Err(damage) => eprintln!("{damage}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Orc<R> {
    /// File, at the next record.
    file: ReadAhead<R>,
    done: bool,
    most_skipped: u64,
    pid: u32,
    known: Channels,
    rings: Vec<Ring>,
    by_token: NumberMap<u32, Vec<usize>>,
    /// Submission that follows the announcement of its channel.
    next: Option<Submission>,
    /// Error that follows the last record, if that record was cut.
    end: Option<Error>,
}

/// Identity of a record: the fields that distinguish the records of a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    at: At,
    doorbell: Option<CpuVa>,
    ip: Option<u64>,
    puts: (u32, u32),
    entries: usize,
}

impl Identity {
    fn of(s: &Submission) -> Self {
        Self {
            at: s.at,
            doorbell: s.doorbell,
            ip: s.ip,
            puts: (s.prev_put, s.gp_put),
            entries: s.segments.len(),
        }
    }
}

/// State that is kept of a channel.
struct Ring {
    /// First and newest record of the channel, with their positions. A record that equals one of them is a repetition of it.
    known: [(Identity, u64); 2],
    last_put: u32,
    position: u64,
    entries: Option<u32>,
}

impl Orc<Box<dyn Read>> {
    /// Opens a capture, compressed or not ([`packed`]).
    ///
    /// # Errors
    /// When the file cannot be opened, or is compressed in a way that this build does not know.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let reader = packed::open(path).map_err(|source| Error::Io { offset: 0, source })?;
        Ok(Self::new(reader))
    }

    /// Reads a capture from any reader, compressed or not.
    ///
    /// # Errors
    /// When the reader fails, or the content is compressed in a way that this build does not know.
    pub fn plain_or_compressed(reader: Box<dyn Read>) -> Result<Self, Error> {
        let reader = packed::unpacked(reader).map_err(|source| Error::Io { offset: 0, source })?;
        Ok(Self::new(reader))
    }
}

enum Parsed {
    Whole(Submission, u32, usize),
    /// The record continues behind the bytes that were read. The number is the least number of bytes from its start that are needed. If no
    /// more bytes will come, the second member is the part that is present.
    Needs(usize, Option<(Submission, u32)>),
    Damaged(Damage),
}

/// Entries of a record, as far as they were read.
struct Entries {
    segments: Vec<Segment>,
    /// End of the complete entries, from the record's start.
    end: usize,
    /// Number of zeros in place of bytes that could not be read.
    zeros: usize,
    /// Number of bytes from the record's start that the entry at `end` needs, if the entry is incomplete.
    needs: Option<usize>,
}

impl Entries {
    /// Reads `n` entries of the record that begins with `b`. With `last`, a cut entry is given with the bytes that are present.
    fn read(b: &[u8], n: u32, last: bool) -> Result<Self, Damage> {
        let mut entries = Self {
            segments: Vec::new(),
            end: HEAD,
            zeros: 0,
            needs: None,
        };
        for _ in 0..n {
            entries.needs = entries.read_next(b, last)?;
            if entries.needs.is_some() {
                break;
            }
        }
        Ok(entries)
    }

    /// Reads one entry. Returns the number of bytes that it needs if it is incomplete.
    fn read_next(&mut self, b: &[u8], last: bool) -> Result<Option<usize>, Damage> {
        let Some(head) = b.get(self.end..self.end + ENTRY_HEAD) else {
            return Ok(Some(self.end + ENTRY_HEAD));
        };
        let (entry, recorded) = (u64_at(head, 0), u32_at(head, 8));
        let announced = entry::len(entry);
        if recorded & !UNREADABLE != announced {
            return Err(Damage::Length {
                announced,
                recorded,
            });
        }
        self.end += ENTRY_HEAD;
        if recorded & UNREADABLE != 0 {
            let segment = self.unreadable(entry, announced);
            self.segments.push(segment);
            return Ok(None);
        }
        let end = self.end + announced as usize;
        if end > MOST_RECORD {
            return Err(Damage::Large);
        }
        let Some(bytes) = b.get(self.end..end) else {
            if last {
                let there = b.get(self.end..).unwrap_or(&[]);
                self.segments.push(cut(entry, there, announced));
            }
            return Ok(Some(end));
        };
        self.segments.push(Segment {
            entry,
            bytes: bytes.to_vec(),
            holes: Vec::new(),
        });
        self.end = end;
        Ok(None)
    }

    /// Makes an entry whose bytes could not be read: it gets zeros, unless there are too many of them.
    fn unreadable(&mut self, entry: u64, announced: u32) -> Segment {
        let len = announced as usize;
        self.zeros += len;
        if len == 0 || self.zeros > MOST_ZEROS {
            return Segment {
                entry,
                ..Segment::default()
            };
        }
        Segment {
            entry,
            bytes: vec![0; len],
            holes: vec![Hole {
                offset: 0,
                len: announced,
            }],
        }
    }
}

/// Makes an entry of which the file has only the bytes `there`.
fn cut(entry: u64, there: &[u8], announced: u32) -> Segment {
    let hole = Hole {
        offset: there.len() as u32,
        len: announced - there.len() as u32,
    };
    let mut bytes = there.to_vec();
    bytes.resize(announced as usize, 0);
    Segment {
        entry,
        bytes,
        holes: vec![hole],
    }
}

impl<R: Read> Orc<R> {
    /// Reads a capture that is not compressed.
    pub fn new(reader: R) -> Self {
        Self {
            file: ReadAhead::new(reader),
            done: false,
            most_skipped: MOST_SKIPPED,
            pid: 0,
            known: Channels::default(),
            rings: Vec::new(),
            by_token: NumberMap::default(),
            next: None,
            end: None,
        }
    }

    /// Adds the channels that the oracle printed. The records of channels then have class, ring and USERD.
    #[must_use]
    pub fn with_channels(mut self, channels: Channels) -> Self {
        self.known = channels;
        self
    }

    /// Sets the id of the captured process, which the file does not contain; it is 0 otherwise.
    #[must_use]
    pub fn with_pid(mut self, pid: u32) -> Self {
        self.pid = pid;
        self
    }

    /// Parses the next record. `last` means that no more bytes will come, so a cut record is given with the bytes that are present.
    fn parse(&self, last: bool) -> Parsed {
        let b = self.file.rest();
        if b.len() < HEAD {
            return if b.len() >= 4 && !b.starts_with(&MAGIC) {
                Parsed::Damaged(Damage::Magic)
            } else {
                Parsed::Needs(HEAD, None)
            };
        }
        if !b.starts_with(&MAGIC) {
            return Parsed::Damaged(Damage::Magic);
        }
        let n = u32_at(b, 36);
        if n > MAX_ENTRIES {
            return Parsed::Damaged(Damage::Entries(n));
        }
        let entries = match Entries::read(b, n, last) {
            Ok(entries) => entries,
            Err(damage) => return Parsed::Damaged(damage),
        };
        if let Some(needs) = entries.needs
            && (!last || entries.segments.is_empty())
        {
            return Parsed::Needs(needs, None);
        }
        let token = u32_at(b, 24);
        let submission = Submission {
            absent_ns: None,
            at: At {
                time_ns: u64_at(b, 8),
                pid: self.pid,
                tid: u32_at(b, 4),
            },
            channel: ChannelId(0),
            token: Some(token),
            position: 0,
            gp_get: None,
            prev_put: u32_at(b, 28),
            gp_put: u32_at(b, 32),
            ip: Some(u64_at(b, 40)),
            doorbell: Some(CpuVa(u64_at(b, 16))),
            how: How::Recorded,
            late: false,
            thread: None,
            segments: entries.segments,
        };
        match entries.needs {
            Some(needs) => Parsed::Needs(needs, Some((submission, token))),
            None => Parsed::Whole(submission, token, entries.end),
        }
    }

    /// Assigns a submission its channel and position. A new channel is announced first.
    fn place(&mut self, mut s: Submission, token: u32) -> Record {
        let n = s.segments.len() as u64;
        let identity = Identity::of(&s);
        let listed = self.by_token.entry(token).or_default();
        let again = listed.iter().find_map(|i| {
            let known = self.rings.get(*i)?.known;
            let (_, position) = known.into_iter().find(|(known, _)| *known == identity)?;
            Some((*i, position))
        });
        if let Some((index, position)) = again {
            // The same record comes twice, as in a capture that was assembled from parts. The ledger counts it as a repetition.
            s.channel = ChannelId(index as u32);
            s.position = position;
            return Record::Submission(s);
        }
        // Channels of two GPUs may have equal tokens. The record's channel is the one whose last GP_PUT equals the record's previous
        // GP_PUT.
        let fits = |i: &&usize| {
            self.rings
                .get(**i)
                .is_some_and(|r| r.last_put == s.prev_put)
        };
        let found = listed.iter().find(fits).copied();
        let found = found.or_else(|| listed.first().copied().filter(|_| s.prev_put != 0));
        if let Some(index) = found {
            s.channel = ChannelId(index as u32);
            if let Some(ring) = self.rings.get_mut(index) {
                let entries = ring.entries.or_else(|| ring_entries(&s)).unwrap_or(1024);
                let missing = s.prev_put.wrapping_sub(ring.last_put) & entries.saturating_sub(1);
                s.position = ring.position.saturating_add(u64::from(missing));
                ring.entries = ring.entries.or_else(|| ring_entries(&s));
                ring.position = s.position.saturating_add(n);
                ring.last_put = s.gp_put;
                ring.known[1] = (identity, s.position);
            }
            return Record::Submission(s);
        }
        let index = self.rings.len();
        listed.push(index);
        s.channel = ChannelId(index as u32);
        s.position = u64::from(s.prev_put);
        let mut channel = self.known.of(token, s.at);
        channel.id = s.channel;
        let entries = channel.entries.or_else(|| ring_entries(&s));
        self.rings.push(Ring {
            known: [(identity, s.position); 2],
            last_put: s.gp_put,
            position: s.position.saturating_add(n),
            entries,
        });
        self.next = Some(s);
        Record::Channel(Box::new(channel))
    }

    /// Skips bytes that are no record, up to the next magic.
    fn resynchronise(&mut self, why: Damage) -> Error {
        let offset = self.file.position();
        let mut skipped = self.file.pass(1).len() as u64;
        loop {
            let rest = self.file.rest();
            if let Some(found) = rest.windows(4).position(|w| w == MAGIC) {
                self.file.pass(found);
                return Error::Damaged {
                    offset,
                    skipped: skipped + found as u64,
                    why,
                };
            }
            let searched = rest.len().saturating_sub(3);
            self.file.pass(searched);
            skipped += searched as u64;
            if skipped >= self.most_skipped {
                self.done = true;
                return Error::GivenUp {
                    offset,
                    skipped,
                    why,
                };
            }
            match self.file.fill(CHUNK) {
                Ok(true) => {}
                // At the end, the last bytes may have been too few for a magic number when they were searched.
                Ok(false) | Err(_) => {
                    let rest = self.file.rest();
                    let found = rest
                        .windows(4)
                        .position(|w| w == MAGIC)
                        .unwrap_or(rest.len());
                    self.file.pass(found);
                    return Error::Damaged {
                        offset,
                        skipped: skipped + found as u64,
                        why,
                    };
                }
            }
        }
    }
}

/// Returns the number of entries of the ring, if the submission crosses the ring's end: then previous GP_PUT plus the submission's entries
/// equals the new GP_PUT plus the ring's length.
fn ring_entries(s: &Submission) -> Option<u32> {
    let n = u32::try_from(s.segments.len()).ok()?;
    let entries = s.prev_put.checked_add(n)?.checked_sub(s.gp_put)?;
    (entries.is_power_of_two() && entries > 1).then_some(entries)
}

impl<R: Read> Iterator for Orc<R> {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(submission) = self.next.take() {
            return Some(Ok(Record::Submission(submission)));
        }
        if self.done {
            return self.end.take().map(Err);
        }
        let mut wanted = HEAD;
        loop {
            match self.file.fill(wanted) {
                // The records before the error are still parsed.
                Err(Failed { offset, source }) => return Some(Err(Error::Io { offset, source })),
                Ok(enough) => match self.parse(!enough) {
                    Parsed::Whole(submission, token, used) => {
                        self.file.pass(used);
                        return Some(Ok(self.place(submission, token)));
                    }
                    Parsed::Damaged(why) => return Some(Err(self.resynchronise(why))),
                    Parsed::Needs(needs, _) if enough => wanted = needs,
                    Parsed::Needs(needs, part) => {
                        self.done = true;
                        let have = self.file.rest().len() as u64;
                        let offset = self.file.position();
                        let cut = Error::Cut {
                            offset,
                            have,
                            needs: needs as u64,
                        };
                        let Some((submission, token)) = part else {
                            let nothing = (offset == 0).then_some(Error::Empty);
                            return if have > 0 { Some(cut) } else { nothing }.map(Err);
                        };
                        self.end = Some(cut);
                        return Some(Ok(self.place(submission, token)));
                    }
                },
            }
        }
    }
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    words::u32_at(b, at).unwrap_or(0)
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    words::u64_at(b, at).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test of an endless file that begins with a record, and of one that has none at all.
    #[test]
    fn a_file_without_end_that_has_no_record_is_given_up() {
        let mut record = MAGIC.to_vec();
        record.resize(HEAD, 0);
        for (head, records) in [(Vec::new(), 0), (record, 2)] {
            let offset_of_zeros = head.len() as u64;
            let mut orc = Orc::new(io::Cursor::new(head).chain(io::repeat(0)));
            orc.most_skipped = 3 << 20;
            let mut all: Vec<_> = orc.collect();
            let Some(Err(Error::GivenUp {
                offset, skipped, ..
            })) = all.pop()
            else {
                panic!("{all:?}");
            };
            assert_eq!(offset, offset_of_zeros);
            assert!(skipped >= 3 << 20);
            assert_eq!(all.iter().filter(|r| r.is_ok()).count(), records);
            assert_eq!(all.len(), records);
        }
    }
}
