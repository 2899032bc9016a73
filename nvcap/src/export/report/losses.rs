//! What was lost, as marks on the timeline.

use serde_json::{Value, json};

use crate::output::plural::{plural, plural_of};
use crate::record::{Loss, Lost};

/// The most marks.
const MOST: usize = 10_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Losses {
    marks: Vec<(i64, Option<u32>, String)>,
    /// Losses that there was no room for.
    more: u64,
}

impl Losses {
    /// A loss, at this time of the page.
    pub(super) fn add(&mut self, loss: &Loss, time: i64) {
        if self.marks.len() >= MOST {
            self.more += 1;
            return;
        }
        let what = match &loss.what {
            Lost::Entries { count, .. } => {
                format!("{} missing", plural_of(*count, "entry", "entries"))
            }
            Lost::Records { kind, count } => {
                format!("{} dropped ({kind})", plural(*count, "record"))
            }
            Lost::UnknownChannel { count, .. } => {
                format!("{} of an unknown channel", plural(*count, "doorbell"))
            }
            Lost::Stacks { count } => format!("{} lost", plural(*count, "stack")),
            Lost::Untraced { why } => format!("untraced: {why}"),
        };
        self.marks.push((time, loss.channel.map(|c| c.0), what));
    }

    pub(super) fn json(&self) -> Value {
        let marks = self.marks.iter();
        let marks =
            marks.map(|(at, channel, what)| json!({"at": at, "channel": channel, "what": what}));
        json!({"marks": marks.collect::<Value>(), "more": self.more})
    }
}
