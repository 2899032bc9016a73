//! Records that were copied out of the ring buffer before they are acted on, so that it has room for those of the next moments: it is
//! small, and acting on a record takes longer than to write it.

use std::collections::VecDeque;

/// The most bytes of records: beyond them the ring buffer is left to fill.
pub(in super::super) const MOST: usize = 256 << 20;
/// The same while channels are being learnt: what tells of them waits behind what was copied out before it.
pub(in super::super) const MOST_LEARNING: usize = 48 << 20;

/// See the module. Oldest first.
#[derive(Debug, Default)]
pub(super) struct CopiedOut {
    records: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl CopiedOut {
    /// The oldest one.
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

    /// Returns the number of bytes that they have.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
