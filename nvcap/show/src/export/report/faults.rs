//! Faults of the GPU as marks on the timeline, and in words.

use serde_json::{Value, json};

use crate::output::fault::in_short;
use nvcap_decode::record::Fault;

/// The most faults that the page shows; the verdict counts all.
const MOST: usize = 1_000;

/// Faults of the GPU, as marks on the page's timeline and in words.
#[derive(Debug, Default)]
pub(super) struct Faults {
    shown: Vec<Value>,
    /// Faults that there was no room for.
    more: u64,
}

impl Faults {
    /// Takes the next fault, at this time of the page.
    pub(super) fn add(&mut self, fault: &Fault, time: i64) {
        if self.shown.len() >= MOST {
            self.more += 1;
            return;
        }
        // Arguments and the kernel log's words are users' data, of which the page has none.
        let (channel, what) = (fault.channel.map(|c| c.0), in_short(fault));
        self.shown
            .push(json!({"at": time, "channel": channel, "what": what}));
    }

    pub(super) fn json(&mut self) -> Value {
        json!({"marks": std::mem::take(&mut self.shown), "more": self.more})
    }
}
