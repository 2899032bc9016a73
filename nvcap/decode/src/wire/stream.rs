//! The words of a pushbuffer: method headers and their data.
//!
//! A [`Stream`] is the state of a channel between words: a method whose data has not ended (it may continue in the next
//! GPFIFO entry) and the subdevice mask. [`Runs`] cuts a segment's bytes into [`Run`]s: one header with the data that
//! follows it, as a slice, so that a megabyte of inline data costs no more than one word of it. [`Run::writes`] gives the
//! single method writes.
//!
//! The reader is tolerant: everything that is whole is given, then an [`Item::Stop`] with the place and the reason at which reading
//! stopped.

use super::{
    Hole,
    header::{Header, Step},
    words::u32_at,
};

/// Reason why decoding stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum StopReason {
    /// A header with an operation that is not defined.
    IllegalHeader(u32),
    /// Bytes that could not be read, from here on. If they are data of a method, whose header gave its length, reading continues behind
    /// them.
    Missing {
        /// Number of bytes that are missing from here on.
        bytes: u32,
    },
    /// The entry ended inside a word.
    Cut {
        /// Number of bytes that the word still needs.
        needs: u32,
    },
    /// The entry announces more bytes than were captured.
    Short {
        /// Number of bytes that were announced beyond those captured.
        needs: u32,
    },
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::IllegalHeader(h) => write!(f, "{h:#010x} is no method header"),
            Self::Missing { bytes } => write!(f, "{bytes} B from here on could not be read"),
            Self::Cut { needs } => write!(f, "the entry ends inside a word, {needs} B short"),
            Self::Short { needs } => write!(f, "the entry announces {needs} B more"),
        }
    }
}

/// Data for which a method in progress still waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pending {
    step: Step,
    left: u32,
    subchannel: u8,
    address: u16,
}

impl Pending {
    /// Returns the state after `words` words of the data.
    fn advance(mut self, words: u32) -> Option<Self> {
        let (address, step) = after(self.step, self.address, words);
        (self.address, self.step) = (address, step);
        self.left = self.left.saturating_sub(words);
        (self.left > 0).then_some(self)
    }
}

/// Returns address and step after `words` words.
fn after(step: Step, address: u16, words: u32) -> (u16, Step) {
    let add = |n: u32| address.wrapping_add((n as u16).wrapping_mul(4)) & 0x3ffc;
    match step {
        Step::Increment => (add(words), step),
        Step::Once if words > 0 => (add(1), Step::Same),
        _ => (address, step),
    }
}

/// The state of a channel between words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    pending: Option<Pending>,
    /// The mask in force.
    mask: u16,
    /// The mask that USE_SUBDEVICE_MASK puts into force.
    stored: u16,
    /// The bit of the subdevice whose view this is.
    subdevice: u16,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            pending: None,
            mask: 0xfff,
            stored: 0xfff,
            subdevice: 1,
        }
    }
}

impl Stream {
    /// Returns the stream as subdevice `n` (0 to 11) of a linked group sees it.
    pub fn of_subdevice(n: u8) -> Self {
        Self {
            subdevice: 1 << n.min(11),
            ..Self::default()
        }
    }

    /// Returns the number of data words for which the method in progress still waits.
    pub fn pending(&self) -> u32 {
        self.pending.map_or(0, |p| p.left)
    }

    /// Forgets a method in progress (after a gap in the stream).
    pub fn reset(&mut self) {
        self.pending = None;
    }

    /// Tells whether methods are being skipped because of the subdevice mask.
    pub fn masked(&self) -> bool {
        self.mask & self.subdevice == 0
    }

    /// Cuts a segment into runs. `announced` is the length in the ring entry; `holes` are the parts of `bytes` that could
    /// not be read.
    pub fn runs<'a>(&'a mut self, bytes: &'a [u8], announced: u32, holes: &'a [Hole]) -> Runs<'a> {
        let bytes = bytes.get(..announced as usize).unwrap_or(bytes);
        Runs {
            stream: self,
            bytes,
            announced,
            holes,
            at: 0,
            gap: None,
            told: None,
            state: State::Words,
        }
    }
}

/// A run of data words to one method or to methods in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// Byte offset, in its segment, of the first data word (of the header, for immediate data).
    pub offset: u32,
    /// Subchannel.
    pub subchannel: u8,
    /// Byte address of the first method.
    pub address: u16,
    /// Rule by which the address advances.
    pub step: Step,
    /// Data: little-endian words (empty for immediate data).
    pub data: &'a [u8],
    /// Immediate data.
    pub immediate: u32,
    /// True if the subdevice mask skips the run.
    pub masked: bool,
}

/// One write of a [`Run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Byte offset, in its segment, of the data word (of the header, for immediate data).
    pub offset: u32,
    /// Byte address of the method.
    pub address: u16,
    /// Data word.
    pub data: u32,
}

impl<'a> Run<'a> {
    /// Returns the number of writes.
    pub fn len(&self) -> u32 {
        match self.step {
            Step::Immediate => 1,
            _ => (self.data.len() / 4) as u32,
        }
    }

    /// Tells whether there is no write, which is false for every run that [`Runs`] gives.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns data word `i`.
    pub fn word(&self, i: u32) -> Option<u32> {
        if self.step == Step::Immediate {
            return (i == 0).then_some(self.immediate);
        }
        u32_at(self.data, i as usize * 4)
    }

    /// Returns the method address of write `i`.
    pub fn address_of(&self, i: u32) -> u16 {
        after(self.step, self.address, i).0
    }

    /// Returns every write, in order.
    pub fn writes(self) -> impl Iterator<Item = Write> + use<'a> {
        (0..self.len()).map_while(move |i| {
            Some(Write {
                offset: self.offset + 4 * i,
                address: self.address_of(i),
                data: self.word(i)?,
            })
        })
    }
}

/// An item of [`Runs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// Method data.
    Run(Run<'a>),
    /// A SEC_OP 0 control or END_PB_SEGMENT, with its offset.
    Control(u32, Header),
    /// Missing data words of a method in progress: `words` of them, the first for the method at `address`. An [`Item::Stop`] before this
    /// gave the reason.
    Skipped {
        /// Subchannel.
        subchannel: u8,
        /// Method address of the first word.
        address: u16,
        /// Number of data words.
        words: u32,
    },
    /// Byte offset and reason of a stop. After [`StopReason::Missing`] within a method's data, the runs continue behind the hole, because
    /// the header gave the length of the data. After any other reason, this is the end of the segment.
    Stop(u32, StopReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Words,
    /// The stop for the gap `at..` was given; its words are skipped next.
    Skip(u32),
    Done,
}

/// Iterator over the runs of one segment. It must be read to its end: unfinished data goes into the channel's [`Stream`].
#[derive(Debug)]
pub struct Runs<'a> {
    stream: &'a mut Stream,
    bytes: &'a [u8],
    announced: u32,
    holes: &'a [Hole],
    at: u32,
    /// First hole at or after `at`, once looked up.
    gap: Option<(u32, u32)>,
    /// Start of the last hole for which a stop was given.
    told: Option<u32>,
    state: State,
}

impl<'a> Runs<'a> {
    /// Returns the first unreadable byte from `at` on, and the end of that hole, both extended outwards to whole words.
    fn next_gap(&mut self) -> (u32, u32) {
        if let Some(gap) = self.gap.filter(|g| g.1 > self.at) {
            return gap;
        }
        let mut gap = (self.announced.max(self.have()), u32::MAX);
        // Bytes that were not captured at all are one more hole at the end.
        if self.have() < self.announced {
            gap = (self.have() & !3, self.announced);
        }
        for hole in self.holes {
            let start = hole.offset & !3;
            let end = hole.offset.saturating_add(hole.len).saturating_add(3) & !3;
            if end > self.at && hole.len > 0 && start < gap.0 {
                gap = (start, end);
            }
        }
        self.gap = Some(gap);
        gap
    }

    fn have(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }

    fn why(&self, at: u32, end: u32) -> StopReason {
        if at >= self.have() & !3 && self.have() < self.announced {
            StopReason::Short {
                needs: self.announced - self.have(),
            }
        } else {
            StopReason::Missing {
                bytes: end.min(self.announced).saturating_sub(at),
            }
        }
    }

    fn stop(&mut self, reason: StopReason) -> Option<Item<'a>> {
        self.state = State::Done;
        Some(Item::Stop(self.at, reason))
    }

    fn end(&mut self) -> Option<Item<'a>> {
        self.state = State::Done;
        None
    }

    /// Returns the next item: data of the method in progress, or the first header that gives an item.
    fn words(&mut self) -> Option<Item<'a>> {
        loop {
            let gap = self.next_gap();
            if let Some(pending) = self.stream.pending {
                return self.data(pending, gap);
            }
            if self.at >= self.announced {
                return self.end();
            }
            if self.at >= gap.0 {
                return self.header_in_gap(gap);
            }
            let Some(word) = u32_at(self.bytes, self.at as usize) else {
                return self.tail();
            };
            if let Some(item) = self.header(word) {
                return Some(item);
            }
        }
    }

    /// Returns data of the method in progress, up to the gap; in the gap, a stop with the number of words that are skipped.
    #[inline]
    fn data(&mut self, p: Pending, (gap, gap_end): (u32, u32)) -> Option<Item<'a>> {
        if self.at >= self.announced {
            return self.end();
        }
        if self.at >= gap {
            let end = gap_end.min(self.announced);
            let words = ((end.saturating_sub(self.at)) / 4).min(p.left);
            if words == 0 {
                return self.tail();
            }
            self.state = State::Skip(words);
            self.told = Some(gap);
            return Some(Item::Stop(self.at, self.why(self.at, end)));
        }
        let room = (gap.min(self.have()).saturating_sub(self.at)) / 4;
        let words = p.left.min(room);
        if words == 0 {
            return self.tail();
        }
        let from = self.at as usize;
        let data = self.bytes.get(from..from + words as usize * 4)?;
        let run = Run {
            offset: self.at,
            subchannel: p.subchannel,
            address: p.address,
            step: p.step,
            data,
            immediate: 0,
            masked: self.stream.masked(),
        };
        self.at += words * 4;
        self.stream.pending = p.advance(words);
        Some(Item::Run(run))
    }

    /// Handles a gap that contains a header: the segment ends here. If data before the header is also in the gap, the stop was already
    /// given.
    fn header_in_gap(&mut self, (gap, gap_end): (u32, u32)) -> Option<Item<'a>> {
        if self.told == Some(gap) {
            return self.end();
        }
        let why = self.why(self.at, gap_end);
        self.stop(why)
    }

    /// Handles the header at this place. Returns `None` if it gives no item by itself: a method's data follows it, or it does nothing.
    #[inline]
    fn header(&mut self, word: u32) -> Option<Item<'a>> {
        let offset = self.at;
        let header = Header::read(word);
        self.at += 4;
        match header {
            Header::Nop => return None,
            Header::Method {
                step: Step::Immediate,
                subchannel,
                address,
                data,
                ..
            } => {
                return Some(Item::Run(Run {
                    offset,
                    subchannel,
                    address,
                    step: Step::Immediate,
                    data: &[],
                    immediate: data,
                    masked: self.stream.masked(),
                }));
            }
            Header::Method {
                step,
                count,
                subchannel,
                address,
                ..
            } => {
                self.stream.pending = Some(Pending {
                    step,
                    left: u32::from(count),
                    subchannel,
                    address,
                });
                return None;
            }
            Header::SetSubdeviceMask(mask) => self.stream.mask = mask,
            Header::StoreSubdeviceMask(mask) => self.stream.stored = mask,
            Header::UseSubdeviceMask => self.stream.mask = self.stream.stored,
            Header::EndSegment => self.state = State::Done,
            Header::Illegal => {
                self.at = offset;
                return self.stop(StopReason::IllegalHeader(word));
            }
        }
        Some(Item::Control(offset, header))
    }

    /// Handles the end of a segment that announced more, with fewer than four bytes left.
    fn tail(&mut self) -> Option<Item<'a>> {
        let left = self.have().saturating_sub(self.at);
        self.stop(StopReason::Cut {
            needs: 4u32.saturating_sub(left).max(1),
        })
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        match self.state {
            State::Done => None,
            State::Words => self.words(),
            State::Skip(words) => {
                self.state = State::Words;
                let p = self.stream.pending?;
                self.stream.pending = p.advance(words);
                self.at += words * 4;
                Some(Item::Skipped {
                    subchannel: p.subchannel,
                    address: p.address,
                    words,
                })
            }
        }
    }
}
