//! Decoder for the stream of samples.
//!
//! No public header describes the stream. The form that Hopper's hardware writes was found on an H200, by comparing the streams of programs
//! whose kernels are known. A record is 8 little-endian words. Word 1 is its header. Byte 0 of the header is the number of the other 28
//! bytes that count. Byte 1 is the number of the texture processing cluster (TPC). Byte 2 is 0. Byte 3 is 0x08, with bit 1 set for the
//! TPC's second SM and bit 4 at the beginning of a group. The other bytes are the SM's: a group of 9 records has 252 of them, which are 28
//! samples of 9 bytes. Records that are not full come when an SM is told to flush; the last of these has no byte that counts. Bytes that do
//! not count are 0, except the first byte of that last record.
//!
//! | bits of a sample | |
//! | --- | --- |
//! | 0 to 44 | the program counter, divided by 16 |
//! | 45 to 52 | 0 |
//! | 53 to 57 | why the warp does not go on: the hardware's number |
//! | 58 to 63 | the warp's place in the SM |
//! | 64 to 69 | 1 each |
//! | 70 | 0 where the warp's scheduler issued an instruction in that cycle |
//! | 71 | 0 |

/// Length of a record, bytes.
pub const RECORD_LEN: usize = 32;

/// Length of a sample, bytes.
pub const SAMPLE_LEN: usize = 9;

/// Bits of byte 3 of a header.
mod flag {
    pub(super) const SECOND_SM: u8 = 1 << 1;
    pub(super) const ALWAYS: u8 = 1 << 3;
    pub(super) const BEGIN: u8 = 1 << 4;
}

/// Bytes of an SM's samples in a record.
const PAYLOAD: usize = RECORD_LEN - 4;

/// Number of SMs that a header can name.
const SMS: usize = 512;

/// A sample: the next instruction of a warp, and its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    /// Number of the SM: twice the number of its TPC, plus one for the TPC's second SM. The numbers have gaps.
    pub sm: u16,
    /// GPU address of the instruction.
    pub pc: u64,
    /// Place of the warp in the SM.
    pub warp: u8,
    /// Stall reason by the hardware's number, below 32.
    pub reason: u8,
    /// True if the warp's scheduler issued an instruction of some warp in that cycle.
    pub issued: bool,
}

/// Returns the name of a stall reason in CUPTI's terms (`smsp__pcsamp_warps_issue_stalled_NAME`); `None` if the number was not seen in
/// comparison with CUPTI.
///
/// The names are known for Hopper, from CUPTI's and nvcap's samples of the same kernels, instruction by instruction (docs/sampling.md). 17
/// and 18 rest on few samples.
#[must_use]
pub fn reason(number: u8) -> Option<&'static str> {
    Some(match number {
        1 => "drain",
        2 => "imc_miss",
        7 => "branch_resolving",
        8 => "wait",
        10 => "long_scoreboard",
        11 => "short_scoreboard",
        12 => "no_instructions",
        17 => "mio_throttle",
        18 => "dispatch_stall",
        19 => "selected",
        20 => "not_selected",
        _ => return None,
    })
}

impl Sample {
    /// Reads a sample of an SM; `None` if its fixed bits are wrong.
    #[must_use]
    pub fn read(sm: u16, bytes: &[u8; SAMPLE_LEN]) -> Option<Self> {
        let mut all = [0; 16];
        all[..SAMPLE_LEN].copy_from_slice(bytes);
        let word = u128::from_le_bytes(all);
        let bits = |from: u32, count: u32| (word >> from) as u64 & ((1 << count) - 1);
        if bits(45, 8) != 0 || bits(64, 6) != 0x3f || bits(71, 1) != 0 {
            return None;
        }
        Some(Self {
            sm,
            pc: bits(0, 45) << 4,
            warp: bits(58, 6) as u8,
            reason: bits(53, 5) as u8,
            issued: bits(70, 1) == 0,
        })
    }

    /// Returns the bytes of the sample, as the hardware writes them.
    #[must_use]
    pub fn bytes(&self) -> [u8; SAMPLE_LEN] {
        let pc = u128::from(self.pc >> 4) & ((1 << 45) - 1);
        let word = pc
            | u128::from(self.reason & 31) << 53
            | u128::from(self.warp & 63) << 58
            | 0x3f << 64
            | u128::from(!self.issued) << 70;
        let mut bytes = [0; SAMPLE_LEN];
        bytes.copy_from_slice(&word.to_le_bytes()[..SAMPLE_LEN]);
        bytes
    }
}

/// Place of an SM's bytes in its group.
#[derive(Clone, Copy, Debug, Default)]
struct Unit {
    /// True if the beginning of a group was seen.
    known: bool,
    /// Bytes of a sample whose end has not come yet.
    part: [u8; SAMPLE_LEN],
    len: u8,
}

/// Sums of a stream so far. Every byte is in exactly one of them; see [`Totals::bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records whose header has the described form.
    pub records: u64,
    /// Samples that were read.
    pub samples: u64,
    /// Samples whose fixed bits are wrong, which are not understood.
    pub strange_samples: u64,
    /// Bytes of records whose header has another form, which are not understood.
    pub strange_bytes: u64,
    /// Bytes of an SM before its first group's beginning, and of samples whose end is missing.
    pub cut_bytes: u64,
    /// Bytes that do not count: the rest of records that are not full.
    pub padding: u64,
    /// Groups that began before the previous one was complete: records in between were lost, or the SM was told to flush.
    pub short_groups: u64,
    /// Bytes of samples whose end has not come yet.
    pub pending: u64,
}

impl Totals {
    /// Returns the number of bytes of the stream: the sum of all of these.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let samples = self.samples.saturating_add(self.strange_samples);
        self.records
            .saturating_mul((RECORD_LEN - PAYLOAD) as u64)
            .saturating_add(samples.saturating_mul(SAMPLE_LEN as u64))
            .saturating_add(self.strange_bytes)
            .saturating_add(self.cut_bytes)
            .saturating_add(self.padding)
            .saturating_add(self.pending)
    }

    /// Adds the sums of another stream.
    pub fn join(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.records, other.records),
            (&mut self.samples, other.samples),
            (&mut self.strange_samples, other.strange_samples),
            (&mut self.strange_bytes, other.strange_bytes),
            (&mut self.cut_bytes, other.cut_bytes),
            (&mut self.padding, other.padding),
            (&mut self.short_groups, other.short_groups),
            (&mut self.pending, other.pending),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// Returns the number of bytes that are not understood.
    #[must_use]
    pub fn strange(&self) -> u64 {
        let samples = self.strange_samples.saturating_mul(SAMPLE_LEN as u64);
        self.strange_bytes.saturating_add(samples)
    }
}

/// Decoder of a stream. Its memory does not grow with the stream.
#[derive(Clone, Debug)]
pub struct Stream {
    units: Vec<Unit>,
    totals: Totals,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            units: vec![Unit::default(); SMS],
            totals: Totals::default(),
        }
    }
}

impl Stream {
    /// Takes in whole records of the stream. An incomplete record at the end counts as not understood.
    pub fn take(&mut self, bytes: &[u8], mut each: impl FnMut(Sample)) {
        let (records, rest) = bytes.as_chunks::<RECORD_LEN>();
        for record in records {
            self.record(record, &mut each);
        }
        self.totals.strange_bytes += rest.len() as u64;
    }

    fn record(&mut self, record: &[u8; RECORD_LEN], each: &mut impl FnMut(Sample)) {
        let [a, b, c, d, len, tpc, zero, flags, rest @ ..] = *record;
        let mut payload = [0; PAYLOAD];
        payload[..4].copy_from_slice(&[a, b, c, d]);
        payload[4..].copy_from_slice(&rest);
        let known = flag::SECOND_SM | flag::ALWAYS | flag::BEGIN;
        let is_known = zero == 0 && flags & !known == 0 && flags & flag::ALWAYS != 0;
        let parts = payload.split_at_checked(usize::from(len));
        // In an SM's last record, in which no byte counts, the first byte is left over.
        let left_over = usize::from(len == 0);
        let is_zero = |rest: &[u8]| rest.iter().skip(left_over).all(|byte| *byte == 0);
        let parts = parts.filter(|(_, rest)| is_known && is_zero(rest));
        let Some((payload, padding)) = parts else {
            self.totals.strange_bytes += RECORD_LEN as u64;
            return;
        };
        self.totals.records += 1;
        self.totals.padding += padding.len() as u64;
        let sm = u16::from(tpc) << 1 | u16::from(flags & flag::SECOND_SM != 0);
        let Some(unit) = self.units.get_mut(usize::from(sm)) else {
            return;
        };
        let totals = &mut self.totals;
        if flags & flag::BEGIN != 0 {
            if unit.len > 0 {
                totals.pending -= u64::from(unit.len);
                totals.cut_bytes += u64::from(unit.len);
                totals.short_groups += 1;
            }
            (unit.known, unit.len) = (true, 0);
        }
        if !unit.known {
            totals.cut_bytes += payload.len() as u64;
            return;
        }
        let mut read = |bytes: &[u8; SAMPLE_LEN], totals: &mut Totals| match Sample::read(sm, bytes)
        {
            Some(sample) => {
                totals.samples += 1;
                each(sample);
            }
            None => totals.strange_samples += 1,
        };
        // First the end of the sample that has begun, then whole samples, then the beginning of the next.
        let begun = usize::from(unit.len);
        let lacking = if begun == 0 { 0 } else { SAMPLE_LEN - begun };
        let Some((end, rest)) = payload.split_at_checked(lacking) else {
            unit.part[begun..begun + payload.len()].copy_from_slice(payload);
            unit.len += payload.len() as u8;
            totals.pending += payload.len() as u64;
            return;
        };
        if begun > 0 {
            unit.part[begun..].copy_from_slice(end);
            totals.pending -= begun as u64;
            read(&unit.part, totals);
        }
        let (whole, begin) = rest.as_chunks::<SAMPLE_LEN>();
        for bytes in whole {
            read(bytes, totals);
        }
        unit.part[..begin.len()].copy_from_slice(begin);
        unit.len = begin.len() as u8;
        totals.pending += begin.len() as u64;
    }

    /// Returns the sums so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }
}

/// Returns the records of samples of one SM as the hardware writes them, for tests.
#[must_use]
pub fn records(sm: u16, samples: &[Sample]) -> Vec<u8> {
    let mut all = Vec::new();
    for group in samples.chunks(28) {
        let bytes: Vec<u8> = group.iter().flat_map(Sample::bytes).collect();
        for (i, part) in bytes.chunks(PAYLOAD).enumerate() {
            let mut payload = [0; PAYLOAD];
            payload[..part.len()].copy_from_slice(part);
            let begin = if i == 0 { flag::BEGIN } else { 0 };
            let second = if sm & 1 == 1 { flag::SECOND_SM } else { 0 };
            all.extend_from_slice(&payload[..4]);
            let len = part.len() as u8;
            all.extend_from_slice(&[len, (sm >> 1) as u8, 0, flag::ALWAYS | begin | second]);
            all.extend_from_slice(&payload[4..]);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(sm: u16, i: u64) -> Sample {
        Sample {
            sm,
            pc: 0x7fb1_6f7a_0000 + 16 * i,
            warp: (i % 64) as u8,
            reason: (i % 22) as u8,
            issued: i.is_multiple_of(3),
        }
    }

    fn read(bytes: &[u8]) -> (Vec<Sample>, Totals) {
        let (mut stream, mut all) = (Stream::default(), Vec::new());
        stream.take(bytes, |sample| all.push(sample));
        let totals = stream.totals();
        assert_eq!(totals.bytes(), bytes.len() as u64, "{totals:?}");
        let mut twice = totals;
        twice.join(&totals);
        assert_eq!(twice.bytes(), 2 * totals.bytes());
        assert_eq!(twice.short_groups, 2 * totals.short_groups);
        (all, totals)
    }

    #[test]
    fn samples_of_an_h200_are_read_byte_by_byte() {
        // A sample of SM 405 in a recording of an H200: two kernels in a graph.
        let sample = Sample::read(405, &[0xf2, 0xa0, 0xf7, 0x16, 0xfb, 0x07, 0x80, 0xe9, 0x7f]);
        let expected = Sample {
            sm: 405,
            pc: 0x7fb1_6f7a_0f20,
            warp: 58,
            reason: 12,
            issued: false,
        };
        assert_eq!(sample, Some(expected));
        assert_eq!(
            expected.bytes(),
            [0xf2, 0xa0, 0xf7, 0x16, 0xfb, 0x07, 0x80, 0xe9, 0x7f]
        );
    }

    /// Last record of SM 160 of an H200, which was told to flush: 19 bytes count.
    const LAST: [u8; 32] = [
        0x3f, 0x25, 0xb7, 0xf7, 0x13, 0x50, 0x00, 0x08, 0xf0, 0xf2, 0x07, 0x60, 0x2d, 0x3f, 0x8f,
        0xbe, 0xf7, 0xf0, 0xf2, 0x07, 0x00, 0x01, 0x7f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00,
    ];

    #[test]
    fn the_last_record_of_an_sm_is_read_as_far_as_it_counts() {
        // A first record with one byte; its sample ends with the first byte of this record.
        let mut first = [0; 32];
        first[4..8].copy_from_slice(&[8, 0x50, 0, 0x18]);
        first[..4].copy_from_slice(&[0x12, 0xb7, 0xf7, 0xf0]);
        first[8..12].copy_from_slice(&[0xf2, 0x07, 0x60, 0x29]);
        let (all, totals) = read(&[first, LAST].concat());
        let pcs: Vec<u64> = all.iter().map(|s| s.pc).collect();
        assert_eq!(pcs, [0x7f2f_0f7b_7120, 0x7f2f_0f7b_7250, 0x7f2f_0f7b_e8f0]);
        assert_eq!(
            (totals.padding, totals.strange(), totals.pending),
            (29, 0, 0)
        );
        let mut strange = LAST;
        strange[31] = 1;
        assert_eq!(read(&strange).1.strange_bytes, 32);
        let mut end = [0; 32];
        (end[0], end[5], end[7]) = (0x7f, 0x50, 8);
        let totals = read(&end).1;
        assert_eq!(
            (totals.records, totals.padding, totals.strange()),
            (1, 28, 0)
        );
    }

    #[test]
    fn mixed_sms_are_told_apart() {
        let of = |sm: u16| -> Vec<Sample> { (0..56).map(|i| sample(sm, i)).collect() };
        let (one, other) = (of(14), of(15));
        let (a, b) = (records(14, &one), records(15, &other));
        let pairs = a.chunks(RECORD_LEN).zip(b.chunks(RECORD_LEN));
        let mixed: Vec<u8> = pairs.flat_map(|(a, b)| [a, b].concat()).collect();
        let (all, totals) = read(&mixed);
        let of = |sm| -> Vec<Sample> { all.iter().filter(|s| s.sm == sm).copied().collect() };
        assert_eq!((of(14), of(15)), (one, other));
        assert_eq!(
            (totals.records, totals.strange(), totals.cut_bytes),
            (36, 0, 0)
        );
    }

    #[test]
    fn what_is_missing_is_counted_and_the_next_group_is_read() {
        let all: Vec<Sample> = (0..84).map(|i| sample(7, i)).collect();
        let mut bytes = records(7, &all);
        // The first record, and one in the middle, are lost.
        bytes.drain(13 * RECORD_LEN..14 * RECORD_LEN);
        bytes.drain(..RECORD_LEN);
        let (read, totals) = read(&bytes);
        assert_eq!(totals.cut_bytes, 8 * 28 + 8);
        assert_eq!(totals.short_groups, 1);
        assert_eq!(read[read.len() - 28..], all[56..]);
        // After a lost record, the group's samples are out of step, and some have wrong fixed bits.
        assert!(read.len() < 28 + 28);
        assert!(totals.strange_samples > 0);
    }

    #[test]
    fn a_record_that_is_not_full_says_so() {
        let (all, totals) = read(&records(3, &[sample(3, 1), sample(3, 2)]));
        assert_eq!(all, [sample(3, 1), sample(3, 2)]);
        assert_eq!((totals.padding, totals.pending), (10, 0));
    }

    #[test]
    fn other_bytes_are_not_understood() {
        let mut bytes = records(3, &[sample(3, 1); 28]);
        bytes[4] = 29;
        bytes.extend([1; 5]);
        let (all, totals) = read(&bytes);
        // Without the group's first record, nothing of the group can be read.
        assert_eq!((all.len(), totals.strange_bytes), (0, 37));
        assert_eq!(totals.cut_bytes, 8 * 28);
    }

    #[test]
    fn any_bytes_are_counted() {
        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(0x19660d).wrapping_add(0x3c6ef35f);
            (state >> 24) as u8
        };
        for _ in 0..200 {
            let mut bytes: Vec<u8> = (0..320).map(|_| byte()).collect();
            for record in bytes.chunks_mut(RECORD_LEN) {
                if byte() < 200 {
                    (record[4], record[6]) = (PAYLOAD as u8, 0);
                    record[7] = record[7] & 0x12 | 8;
                    record[5] &= 1;
                }
            }
            read(&bytes);
        }
    }
}
