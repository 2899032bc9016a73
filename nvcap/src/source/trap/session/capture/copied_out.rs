//! Records that were copied out of the ring buffer before they are acted on, so that it has room for those of the next moments: it is
//! small, and acting on a record takes longer than to write it.

use std::collections::VecDeque;

/// The most bytes of records: beyond them the ring buffer is left to fill.
const MOST: usize = 256 << 20;

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

    /// Adds a record; whether there is room for more.
    pub(super) fn add(&mut self, record: &[u8]) -> bool {
        self.bytes += record.len();
        self.records.push_back(record.into());
        self.has_room()
    }

    /// Whether there is room.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_in_their_order_and_up_to_a_limit() {
        let mut out = CopiedOut::default();
        assert!(out.take().is_none() && out.has_room());
        assert!(out.add(b"first") && out.add(b"second"));
        assert_eq!(out.take().as_deref(), Some(&b"first"[..]));
        assert!(out.add(b"third"));
        assert_eq!(out.take().as_deref(), Some(&b"second"[..]));
        assert_eq!(out.take().as_deref(), Some(&b"third"[..]));
        assert!(out.take().is_none());
        assert_eq!(out.bytes, 0);
        assert!(!out.add(&vec![0; MOST]) && !out.has_room());
        assert_eq!(out.take().map(|r| r.len()), Some(MOST));
        assert!(out.has_room());
    }
}
