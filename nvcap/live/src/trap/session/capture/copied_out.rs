//! Records that were copied out of the ring buffer before they are acted on, to make room for the records of the next moments: the buffer
//! is small, and acting on a record takes longer than writing it.

use std::collections::VecDeque;

/// The most bytes of records. Beyond them the ring buffer is left to fill.
const MOST: usize = 256 << 20;
/// The most bytes while channels are being learnt, because records about channels wait behind those that were copied out before.
const MOST_LEARNING: usize = 48 << 20;

/// Time without a doorbell of an unknown channel after which all channels that ring count as known, ns. Each such doorbell writes a record,
/// and where many of these wait, the channel becomes known late.
const LEARNT_NS: u64 = 50_000_000;

/// Learning of the channels that ring. While it goes on, less is copied out.
#[derive(Debug, Default)]
pub(in super::super) struct Learning {
    /// Time at which a doorbell of an unknown channel was last acted on, ns.
    scanned: u64,
}

impl Learning {
    /// Takes note of a doorbell of an unknown channel.
    pub(in super::super) fn scans(&mut self, now: u64) {
        self.scanned = now;
    }

    /// Returns the most bytes that may be copied out now.
    pub(in super::super) fn most_copied(&self, now: u64) -> usize {
        match now.saturating_sub(self.scanned) >= LEARNT_NS {
            true => MOST,
            false => MOST_LEARNING,
        }
    }
}

/// Records that were copied out of the ring buffer and wait to be acted on. The oldest record is first.
#[derive(Debug, Default)]
pub(super) struct CopiedOut {
    records: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl CopiedOut {
    /// Takes the oldest record.
    pub(super) fn take(&mut self) -> Option<Box<[u8]>> {
        let record = self.records.pop_front()?;
        self.bytes -= record.len();
        if self.records.is_empty() {
            // What a burst took is given back.
            self.records = VecDeque::new();
        }
        Some(record)
    }

    /// Adds a record.
    pub(super) fn add(&mut self, record: &[u8]) {
        self.bytes += record.len();
        self.records.push_back(record.into());
    }

    /// Returns the number of bytes of the records.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_are_copied_out_while_channels_are_learnt() {
        let mut learning = Learning::default();
        learning.scans(LEARNT_NS);
        assert_eq!(learning.most_copied(2 * LEARNT_NS - 1), MOST_LEARNING);
        assert_eq!(learning.most_copied(2 * LEARNT_NS), MOST);
    }

    #[test]
    fn records_come_in_their_order() {
        let mut out = CopiedOut::default();
        assert!(out.take().is_none() && out.bytes() == 0);
        out.add(b"first");
        out.add(b"second");
        assert_eq!(
            (out.take().as_deref(), out.bytes()),
            (Some(&b"first"[..]), 6)
        );
        out.add(b"third");
        assert_eq!(out.take().as_deref(), Some(&b"second"[..]));
        assert_eq!(out.take().as_deref(), Some(&b"third"[..]));
        assert!(out.take().is_none() && out.bytes() == 0);
    }
}
