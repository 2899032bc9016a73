//! Records that wait, and the decisions on their entries.

use std::collections::VecDeque;
use std::sync::Arc;

use super::form::{self, Form};
use nvcap_decode::decode::event::{Load, PartOf};
use nvcap_decode::record::Record;

/// A record whose turn it is.
#[derive(Debug)]
pub(in crate::pipeline) struct Taken {
    pub record: Record,
    /// Parts that the entries of the submission are.
    pub parts: Parts,
    /// Load that ended with the record.
    pub load: Option<Load>,
}

/// Parts that the entries of a submission are; `None` where no entry is one.
pub(in crate::pipeline) type Parts = Option<Arc<[Option<PartOf>]>>;

/// A record that waits, and what is known of its entries.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) record: Record,
    pub(super) parts: Vec<Option<PartOf>>,
    /// Number of entries that no decision was made on.
    pub(super) undecided: u32,
    pub(super) load: Option<Load>,
}

impl Waiting {
    pub(super) fn new(record: Record, entries: usize) -> Self {
        Self {
            record,
            parts: vec![None; entries],
            undecided: 0,
            load: None,
        }
    }
}

/// An entry that can be a part of a load.
#[derive(Debug)]
pub(super) struct Item {
    /// Number of its record, and its index in the submission.
    pub(super) record: u64,
    pub(super) entry: u32,
    pub(super) time: u64,
    pub(super) form: Form,
}

/// Decisions on entries that wait.
pub(super) struct Decide<'a> {
    waiting: &'a mut VecDeque<Waiting>,
    first: u64,
}

impl<'a> Decide<'a> {
    pub(super) fn new(waiting: &'a mut VecDeque<Waiting>, first: u64) -> Self {
        Self { waiting, first }
    }

    fn of(&mut self, record: u64) -> Option<&mut Waiting> {
        let at = record.checked_sub(self.first)?;
        self.waiting.get_mut(at as usize)
    }

    pub(super) fn time(&mut self, record: u64) -> Option<u64> {
        self.of(record)?.record.at().time()
    }

    /// Makes a record wait for the decision on one more of its entries.
    pub(super) fn hold(&mut self, record: u64) {
        if let Some(w) = self.of(record) {
            w.undecided += 1;
        }
    }

    pub(super) fn launches(&mut self, record: u64, entry: u32) -> bool {
        match self.of(record).map(|w| &w.record) {
            Some(Record::Submission(s)) => {
                s.segments.get(entry as usize).is_some_and(form::launches)
            }
            _ => false,
        }
    }

    /// Decides which part an entry is; `None` for the program's.
    pub(super) fn settle(&mut self, record: u64, entry: u32, part: Option<PartOf>) {
        if let Some(w) = self.of(record) {
            w.undecided = w.undecided.saturating_sub(1);
            if let Some(slot) = w.parts.get_mut(entry as usize) {
                *slot = part;
            }
        }
    }

    /// Notes that the load ended with this record.
    pub(super) fn ended(&mut self, record: u64, load: Load) {
        if let Some(w) = self.of(record) {
            w.load = Some(load);
        }
    }
}
