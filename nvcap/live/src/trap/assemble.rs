//! Makes records from ring-buffer bytes: joins the pieces that the BPF programs sent.
//!
//! A submission arrives as one or more `Submit` (at most 16 entries each), each followed by the `Data` of its entries in
//! order. Pieces of one channel come in ring order; pieces of other channels may lie between them. A walk that had to stop
//! (full ring buffer) begins again at the first incomplete entry: only the pieces of that entry are then thrown away.

use nvcap_common::{self as c, flag, kind};

use nvcap_decode::{
    record::{At, Bytes, CpuVa, Ioctl, MOST_BYTES, Nested, Segment},
    wire::{Hole, entry, hash::NumberMap},
};

/// A ring-buffer record, typed.
#[derive(Debug)]
pub enum Raw<'a> {
    /// New entries.
    Submit(c::Submit),
    /// Bytes of an entry.
    Data(c::Data, &'a [u8]),
    /// An unknown store.
    Site(c::Site),
    /// Memory around the registers at a trap.
    Windows(Box<c::Windows>),
    /// A scan of all channels has ended.
    Scan(c::Scan),
    /// Entries were lost.
    Gap(c::Gap),
    /// An ioctl begins.
    IoctlEnter(c::IoctlEnter, &'a [u8]),
    /// An ioctl returns.
    IoctlExit(c::IoctlExit, &'a [u8]),
    /// Parameters of an ioctl.
    Nested(c::Nested, &'a [u8]),
    /// A mapping.
    Mmap(c::Mmap),
    /// An unmapping.
    Munmap(c::Munmap),
    /// A process event.
    Life(c::Life),
    /// A module is being loaded.
    Module(c::Header),
}

/// Bound of ring positions: a record with a greater one is invalid. Counts of entries can be added to a smaller position
/// without overflow.
const MOST_POSITION: u64 = 1 << 62;

/// Reads a record; `None` if its kind is unknown, if it is too short, or if its positions are out of bounds.
pub fn parse(bytes: &[u8]) -> Option<Raw<'_>> {
    /// Splits off the fixed part of a record.
    fn split<T: Copy>(bytes: &[u8]) -> Option<(T, &[u8])> {
        let (fixed, rest) = bytes.split_at_checked(size_of::<T>())?;
        // SAFETY: `fixed` has the size of T; the types of nvcap_common are valid for any bits.
        Some((unsafe { fixed.as_ptr().cast::<T>().read_unaligned() }, rest))
    }
    macro_rules! with_payload {
        ($variant:ident) => {{
            let (fixed, rest) = split(bytes)?;
            let len = header(bytes)?.len as usize;
            Some(Raw::$variant(fixed, rest.get(..len)?))
        }};
    }
    fn header(bytes: &[u8]) -> Option<c::Header> {
        split(bytes).map(|(h, _)| h)
    }
    match header(bytes)?.kind {
        kind::SUBMIT => {
            let (r, _) = split::<c::Submit>(bytes)?;
            (r.position.max(r.target) <= MOST_POSITION).then_some(Raw::Submit(r))
        }
        kind::DATA => with_payload!(Data),
        kind::SITE => split(bytes).map(|(r, _)| Raw::Site(r)),
        kind::WINDOWS => split(bytes).map(|(r, _)| Raw::Windows(Box::new(r))),
        kind::SCAN => split(bytes).map(|(r, _)| Raw::Scan(r)),
        kind::GAP => {
            let (r, _) = split::<c::Gap>(bytes)?;
            (r.position.max(r.count) <= MOST_POSITION).then_some(Raw::Gap(r))
        }
        kind::IOCTL_ENTER => with_payload!(IoctlEnter),
        kind::IOCTL_EXIT => with_payload!(IoctlExit),
        kind::NESTED => with_payload!(Nested),
        kind::MMAP => split(bytes).map(|(r, _)| Raw::Mmap(r)),
        kind::MUNMAP => split(bytes).map(|(r, _)| Raw::Munmap(r)),
        kind::FORK | kind::THREAD | kind::EXEC | kind::EXIT | kind::STRAY => {
            split(bytes).map(|(r, _)| Raw::Life(r))
        }
        kind::MODULE => header(bytes).map(Raw::Module),
        _ => None,
    }
}

/// Returns time, process and thread of a header.
pub(crate) fn at(h: &c::Header) -> At {
    At {
        time_ns: h.time_ns,
        pid: h.pid,
        tid: h.tid,
    }
}

/// Reads a NUL-padded name.
pub(crate) fn name(comm: &[u8; 16]) -> String {
    let len = comm.iter().position(|b| *b == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(&comm[..len]).into_owned()
}

/// A submission as far as it has arrived.
#[derive(Debug)]
pub struct Gathered {
    /// First `Submit` of the submission.
    pub head: c::Submit,
    /// Complete segments, then those whose bytes are still missing.
    pub segments: Vec<Segment>,
    /// Number of complete segments.
    whole: usize,
    /// Number of bytes of the first incomplete segment that have arrived.
    got: u32,
    /// Number of bytes in all segments.
    kept: usize,
}

impl Gathered {
    fn new(head: c::Submit) -> Self {
        let mut new = Self {
            head,
            segments: Vec::new(),
            whole: 0,
            got: 0,
            kept: 0,
        };
        new.extend(&head);
        new
    }

    fn extend(&mut self, submit: &c::Submit) {
        let first = (submit.first as usize).min(c::BATCH);
        let count = (submit.count as usize).min(c::BATCH - first);
        self.segments.extend(
            submit.entries[first..first + count]
                .iter()
                .map(|e| Segment {
                    entry: *e,
                    ..Segment::default()
                }),
        );
        self.pass_control_entries();
    }

    /// Counts entries without bytes as complete.
    fn pass_control_entries(&mut self) {
        while self
            .segments
            .get(self.whole)
            .is_some_and(|s| entry::len(s.entry) == 0)
        {
            self.whole += 1;
        }
    }

    /// Returns the position behind the last entry that has arrived.
    fn end(&self) -> u64 {
        self.head.position + self.segments.len() as u64
    }

    fn is_whole(&self) -> bool {
        self.whole == self.segments.len() && self.end() >= self.head.target
    }

    fn data(&mut self, data: &c::Data, bytes: &[u8]) {
        let Some(segment) = self.segments.get_mut(self.whole) else {
            return;
        };
        if data.position != self.head.position + self.whole as u64 || data.offset != self.got {
            return;
        }
        let len = entry::len(segment.entry);
        let span = data.span.min(len - self.got);
        let fits = self.kept + span as usize <= MOST_BYTES;
        if !fits || segment.bytes.len() < self.got as usize {
            // There is no room for these bytes, nor for those behind them: counted as unreadable.
        } else if data.header.flags & flag::MISSING != 0 {
            segment.holes.push(Hole {
                offset: data.offset,
                len: span,
            });
            self.kept += span as usize;
            segment.bytes.resize((self.got + span) as usize, 0);
        } else {
            if segment.bytes.capacity() == 0 {
                segment.bytes.reserve_exact(len as usize);
            }
            let bytes = &bytes[..bytes.len().min(span as usize)];
            self.kept += bytes.len();
            segment.bytes.extend_from_slice(bytes);
        }
        self.got += span;
        if self.got >= len {
            self.got = 0;
            self.whole += 1;
            self.pass_control_entries();
        }
    }

    /// Drops the first `n` entries.
    pub fn skip(&mut self, n: u64) {
        let n = n.min(self.segments.len() as u64);
        for segment in self.segments.drain(..n as usize) {
            entry::pass(segment.entry, &mut self.head.extended);
        }
        self.head.position += n;
    }

    /// Keeps the complete entries; none if there are none.
    fn cut(mut self) -> Option<Self> {
        self.segments.truncate(self.whole);
        (!self.segments.is_empty()).then_some(self)
    }
}

/// Joins the pieces of submissions and ioctls.
#[derive(Debug, Default)]
pub struct Assembler {
    channels: NumberMap<u32, Gathered>,
    ioctls: NumberMap<u32, PendingIoctl>,
}

#[derive(Debug)]
struct PendingIoctl {
    ioctl: Ioctl,
    dev: u32,
    returned: bool,
}

impl Assembler {
    /// Takes new entries. Gives the submissions that end before them or with them.
    pub fn submit(&mut self, submit: &c::Submit, out: &mut Vec<Gathered>) {
        let index = submit.channel;
        match self.channels.get_mut(&index) {
            Some(g)
                if g.whole == g.segments.len()
                    && submit.position == g.end()
                    && submit.position < g.head.target
                    && submit.header.time_ns == g.head.header.time_ns =>
            {
                g.extend(submit);
                // A later look of the same walk may have found more.
                g.head.target = g.head.target.max(submit.target);
            }
            _ => {
                if let Some(old) = self.channels.remove(&index) {
                    out.extend(old.cut());
                }
                self.channels.insert(index, Gathered::new(*submit));
            }
        }
        self.take_if_whole(index, out);
    }

    /// Takes bytes of an entry.
    pub fn data(&mut self, data: &c::Data, bytes: &[u8], out: &mut Vec<Gathered>) {
        if let Some(g) = self.channels.get_mut(&data.channel) {
            g.data(data, bytes);
        }
        self.take_if_whole(data.channel, out);
    }

    fn take_if_whole(&mut self, index: u32, out: &mut Vec<Gathered>) {
        if self.channels.get(&index).is_some_and(Gathered::is_whole) {
            out.extend(self.channels.remove(&index));
        }
    }

    /// Gives the complete entries of a channel whose walk has ended.
    pub fn flush(&mut self, index: u32, out: &mut Vec<Gathered>) {
        out.extend(self.channels.remove(&index).and_then(Gathered::cut));
    }

    /// Returns the channels with a partly gathered submission.
    pub fn unfinished(&self) -> Vec<u32> {
        self.channels.keys().copied().collect()
    }

    /// Takes the beginning of an ioctl. Returns an earlier ioctl of the same thread whose return was not recorded.
    pub fn enter(&mut self, r: &c::IoctlEnter, bytes: &[u8]) -> Option<(Ioctl, u32)> {
        let before = self.ioctls.remove(&r.header.tid).map(|p| (p.ioctl, p.dev));
        let ioctl = Ioctl {
            at: at(&r.header),
            end_ns: None,
            device: nvcap_decode::record::Device::Other(r.dev >> 20, r.dev & 0xf_ffff),
            fd: (r.fd >= 0).then_some(r.fd),
            file: r.file,
            named_file: r.named_file,
            request: r.request,
            result: None,
            input: Bytes {
                data: bytes.to_vec(),
                full_len: r.full_len.into(),
            },
            output: Bytes::default(),
            nested: None,
        };
        self.ioctls.insert(
            r.header.tid,
            PendingIoctl {
                ioctl,
                dev: r.dev,
                returned: false,
            },
        );
        before
    }

    /// Takes the return of an ioctl.
    pub fn exit(&mut self, r: &c::IoctlExit, bytes: &[u8]) -> Option<(Ioctl, u32)> {
        let pending = self.ioctls.get_mut(&r.header.tid)?;
        pending.ioctl.end_ns = Some(r.header.time_ns);
        pending.ioctl.result = Some(r.result);
        pending.ioctl.output = Bytes {
            data: bytes.to_vec(),
            full_len: r.full_len.into(),
        };
        pending.returned = true;
        if pending.ioctl.nested.is_some() {
            // Its parameters follow.
            return None;
        }
        self.ioctls.remove(&r.header.tid).map(|p| (p.ioctl, p.dev))
    }

    /// Takes parameters of an ioctl, from before or after the call.
    pub fn nested(&mut self, r: &c::Nested, bytes: &[u8]) -> Option<(Ioctl, u32)> {
        let pending = self.ioctls.get_mut(&r.header.tid)?;
        let bytes = Bytes {
            data: bytes.to_vec(),
            full_len: r.full_len,
        };
        if r.header.flags & flag::AFTER == 0 {
            let address = CpuVa(r.address);
            pending.ioctl.nested = Some(Nested {
                address,
                input: bytes,
                output: Bytes::default(),
            });
            return None;
        }
        if let Some(nested) = &mut pending.ioctl.nested {
            nested.output = bytes;
        }
        if !pending.returned {
            return None;
        }
        self.ioctls.remove(&r.header.tid).map(|p| (p.ioctl, p.dev))
    }

    /// Takes note that a thread ended. Returns its ioctl, which will not return.
    pub fn gone(&mut self, tid: u32) -> Option<(Ioctl, u32)> {
        self.ioctls.remove(&tid).map(|p| (p.ioctl, p.dev))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(position: u64, target: u64, time_ns: u64, lens: &[u32]) -> c::Submit {
        let mut entries = [0; c::BATCH];
        for (e, len) in entries.iter_mut().zip(lens) {
            *e = ((u64::from(*len) / 4) << 42) | 0x1000;
        }
        c::Submit {
            header: c::Header {
                kind: kind::SUBMIT,
                time_ns,
                ..Default::default()
            },
            channel: 3,
            token: 0xa,
            position,
            get: 0,
            put: 0,
            count: lens.len() as u32,
            space: 1,
            ip: 0,
            doorbell: 0,
            target,
            extended: 0,
            comm: [0; 16],
            first: 0,
            pad: 0,
            entries,
        }
    }

    fn data(position: u64, offset: u32, span: u32, flags: u16) -> c::Data {
        c::Data {
            header: c::Header {
                kind: kind::DATA,
                flags,
                len: span,
                ..Default::default()
            },
            position,
            channel: 3,
            offset,
            span,
            pad: 0,
        }
    }

    #[test]
    fn pieces_are_joined() {
        let (mut a, mut out) = (Assembler::default(), Vec::new());
        a.submit(&submit(5, 8, 1, &[8, 0]), &mut out);
        a.data(&data(5, 0, 4, 0), &[1, 2, 3, 4], &mut out);
        a.data(&data(5, 4, 4, flag::MISSING), &[], &mut out);
        assert!(out.is_empty());
        a.submit(&submit(7, 8, 1, &[4]), &mut out);
        a.data(&data(7, 0, 4, 0), &[9, 9, 9, 9], &mut out);
        assert_eq!(out.len(), 1);
        let s = &out[0].segments;
        assert_eq!((out[0].head.position, s.len()), (5, 3));
        assert_eq!(s[0].bytes, [1, 2, 3, 4, 0, 0, 0, 0]);
        assert_eq!(s[0].holes, [Hole { offset: 4, len: 4 }]);
        assert_eq!(s[2].bytes, [9; 4]);
    }

    #[test]
    fn a_restarted_walk_repeats_only_partial_entries() {
        let (mut a, mut out) = (Assembler::default(), Vec::new());
        a.submit(&submit(0, 2, 1, &[4, 8]), &mut out);
        a.data(&data(0, 0, 4, 0), &[1; 4], &mut out);
        a.data(&data(1, 0, 4, 0), &[2; 4], &mut out);
        // The ring buffer was full; the next doorbell goes on from entry 1.
        a.submit(&submit(1, 3, 2, &[8, 4]), &mut out);
        assert_eq!((out[0].head.position, out[0].segments.len()), (0, 1));
        a.data(&data(1, 0, 8, 0), &[3; 8], &mut out);
        a.data(&data(2, 0, 4, 0), &[4; 4], &mut out);
        assert_eq!((out[1].head.position, out[1].segments.len()), (1, 2));
        assert_eq!(out[1].segments[0].bytes, [3; 8]);
        assert!(a.unfinished().is_empty());
    }

    #[test]
    fn skipped_entries_still_set_the_base() {
        let base = entry::control(entry::Opcode::SET_PB_SEGMENT_EXTENDED_BASE, 5 << 8, false);
        let mut s = submit(5, 8, 1, &[0, 4, 8]);
        s.entries[0] = base;
        let mut g = Gathered::new(s);
        g.skip(2);
        assert_eq!((g.head.position, g.segments.len()), (7, 1));
        assert_eq!(g.head.extended, 5 << 40);
        g.skip(9);
        assert_eq!((g.head.position, g.segments.len()), (8, 0));
    }

    #[test]
    fn a_record_with_an_impossible_position_is_refused() {
        let bytes = |s: &c::Submit| {
            // SAFETY: a Submit has no padding that is not named.
            unsafe { std::slice::from_raw_parts((&raw const *s).cast::<u8>(), size_of_val(s)) }
                .to_vec()
        };
        assert!(parse(&bytes(&submit(5, 8, 1, &[4]))).is_some());
        assert!(parse(&bytes(&submit(u64::MAX, 8, 1, &[4]))).is_none());
        assert!(parse(&bytes(&submit(5, u64::MAX, 1, &[4]))).is_none());
    }

    #[test]
    fn any_bytes_parse_or_not() {
        for len in 0..400 {
            for k in 0..20u8 {
                let mut bytes = vec![0xff; len];
                if len > 1 {
                    bytes[0] = k;
                    bytes[1] = 0;
                }
                let _ = parse(&bytes);
            }
        }
    }
}
