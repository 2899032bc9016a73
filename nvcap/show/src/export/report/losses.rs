//! Losses as marks on the timeline: where the ledger's account of a channel gets worse, and where a source told a loss.

use serde_json::{Value, json};

use crate::output::plural::{plural, plural_of};
use crate::output::units::Bytes;
use nvcap_decode::ledger::{ChannelLedger, Ledger};
use nvcap_decode::record::{ChannelId, Lost, Record};

/// The most marks.
const MOST: usize = 10_000;

/// Losses, as marks on the page's timeline.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The account so far: gaps between submissions have no record of their own.
    ledger: Ledger,
    marks: Vec<Mark>,
    /// Losses that there was no room for.
    more: u64,
}

#[derive(Debug)]
struct Mark {
    at: i64,
    channel: Option<ChannelId>,
    /// A ring position that is missing; entries that come later than their doorbell may bring it.
    missing: Option<u64>,
    what: String,
}

/// Counts of a channel's faults so far.
#[derive(Clone, Copy, Default)]
struct Wrong {
    gaps: u64,
    unreadable: u64,
    repeated: u64,
    contradictions: u64,
}

impl Wrong {
    fn of(channel: Option<&ChannelLedger>) -> Self {
        channel.map_or_else(Self::default, |c| Self {
            gaps: c.gaps,
            unreadable: c.unreadable,
            repeated: c.repeated,
            contradictions: c.contradictions,
        })
    }

    /// Describes the faults that have come since `before`, in words.
    fn since(self, before: Self) -> Vec<String> {
        let more = |now: u64, before: u64| now.checked_sub(before).filter(|n| *n > 0);
        let entries = |n| plural_of(n, "entry", "entries");
        let all = [
            more(self.gaps, before.gaps).map(|n| format!("{} missing", entries(n))),
            more(self.unreadable, before.unreadable)
                .map(|n| format!("{} could not be read", Bytes(n as f64))),
            more(self.repeated, before.repeated).map(|n| format!("{} captured twice", entries(n))),
            more(self.contradictions, before.contradictions)
                .map(|_| "GP_PUT contradicts the one before".to_owned()),
        ];
        all.into_iter().flatten().collect()
    }
}

impl Losses {
    /// Takes the next record, at this time of the page.
    pub(super) fn record(&mut self, record: &Record, time: i64) {
        let channel = match record {
            Record::Submission(s) => Some(s.channel),
            Record::Loss(l) => l.channel,
            _ => None,
        };
        let before = Wrong::of(channel.and_then(|id| self.ledger.channel(id)));
        self.ledger.record(record);
        let now = channel.and_then(|id| self.ledger.channel(id));
        let what = match record {
            Record::Loss(loss) => match &loss.what {
                Lost::Entries { .. } => Wrong::of(now).since(before),
                Lost::Records { kind, count } => {
                    vec![format!("{} dropped ({kind})", plural(*count, "record"))]
                }
                Lost::UnknownChannel { count, .. } => {
                    vec![format!(
                        "{} of an unknown channel",
                        plural(*count, "doorbell")
                    )]
                }
                Lost::Stacks { count } => vec![format!("{} lost", plural(*count, "stack"))],
                Lost::Notifiers { count } => vec![format!(
                    "{} not read at the process's end: a fault then is not told",
                    plural(*count, "error notifier")
                )],
                Lost::Untraced { why } => vec![format!("untraced: {why}")],
            },
            _ => Wrong::of(now).since(before),
        };
        if what.is_empty() {
            return;
        }
        let has_gap = now.is_some_and(|now| now.gaps > before.gaps);
        let missing = now.filter(|_| has_gap).and_then(|now| place(now, record));
        if self.marks.len() >= MOST {
            self.more += 1;
            return;
        }
        self.marks.push(Mark {
            at: time,
            channel,
            missing,
            what: what.join(", "),
        });
    }

    /// The marks, without those of entries that came after all.
    pub(super) fn json(&self) -> Value {
        let is_so = |mark: &&Mark| {
            let channel = mark.channel.and_then(|id| self.ledger.channel(id));
            mark.missing
                .zip(channel)
                .is_none_or(|(at, c)| is_missing(c, at) || is_forgotten(c, at))
        };
        let marks = self
            .marks
            .iter()
            .filter(is_so)
            .map(|m| json!({"at": m.at, "channel": m.channel.map(|c| c.0), "what": m.what}));
        json!({"marks": marks.collect::<Value>(), "more": self.more})
    }
}

fn is_missing(channel: &ChannelLedger, position: u64) -> bool {
    let ranges = channel.missing_ranges();
    let at = ranges.partition_point(|r| r.end <= position);
    ranges.get(at).is_some_and(|r| r.contains(&position))
}

/// Tells whether a position is before the oldest gap that the ledger remembers, where it has forgotten some.
fn is_forgotten(channel: &ChannelLedger, position: u64) -> bool {
    let ranges = channel.missing_ranges();
    let remembered: u64 = ranges.iter().map(|r| r.end - r.start).sum();
    remembered < channel.gaps && ranges.first().is_some_and(|r| position < r.start)
}

/// A ring position of the gap that this record showed.
fn place(channel: &ChannelLedger, record: &Record) -> Option<u64> {
    let around = match record {
        Record::Submission(s) => [
            s.position.checked_sub(1),
            s.position.checked_add(s.segments.len() as u64),
        ],
        Record::Loss(l) => match l.what {
            Lost::Entries { position, count } => [
                Some(position),
                position
                    .checked_add(count)
                    .and_then(|end| end.checked_sub(1)),
            ],
            _ => [None, None],
        },
        _ => [None, None],
    };
    around
        .into_iter()
        .flatten()
        .find(|position| is_missing(channel, *position))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::{At, How, Loss, Segment, Submission};
    use nvcap_decode::wire::Hole;

    fn submission(channel: u32, position: u64, holes: Vec<Hole>) -> Record {
        Record::Submission(Submission {
            absent_ns: None,
            at: At::of_process(position + 1, 7),
            channel: ChannelId(channel),
            token: None,
            position,
            gp_get: None,
            prev_put: position as u32,
            gp_put: position as u32 + 1,
            segments: vec![Segment {
                // Two words.
                entry: 0x0000_0800_0020_0000,
                bytes: vec![0; 8],
                holes,
            }],
            ip: None,
            doorbell: None,
            how: How::Trapped,
            late: false,
            thread: None,
        })
    }

    fn lost(channel: u32, position: u64, count: u64) -> Record {
        Record::Loss(Loss {
            at: At::of_process(1, 7),
            channel: Some(ChannelId(channel)),
            what: Lost::Entries { position, count },
        })
    }

    /// The marks of these records, as `channel: words`, by their places.
    fn marks(records: &[Record]) -> Vec<(i64, String)> {
        let mut losses = Losses::default();
        for (n, record) in records.iter().enumerate() {
            losses.record(record, n as i64);
        }
        let json = losses.json();
        let marks = json["marks"].as_array().unwrap();
        marks
            .iter()
            .map(|m| {
                let what = m["what"].as_str().unwrap();
                (
                    m["at"].as_i64().unwrap(),
                    format!("{}: {what}", m["channel"]),
                )
            })
            .collect()
    }

    #[test]
    fn a_gap_that_no_record_tells_has_a_mark() {
        let hole = Hole { offset: 4, len: 4 };
        let records = [
            submission(1, 0, vec![]),
            submission(2, 0, vec![]),
            submission(1, 4, vec![]),
            submission(2, 1, vec![hole]),
            submission(1, 5, vec![]),
        ];
        let expected = [
            (2, "1: 3 entries missing".to_owned()),
            (3, "2: 4 B could not be read".to_owned()),
        ];
        assert_eq!(marks(&records), expected);
    }

    #[test]
    fn a_loss_that_is_told_has_one_mark() {
        let records = [
            submission(1, 0, vec![]),
            lost(1, 1, 2),
            submission(1, 3, vec![]),
        ];
        assert_eq!(marks(&records), [(1, "1: 2 entries missing".to_owned())]);
    }

    #[test]
    fn entries_that_come_after_all_have_no_mark() {
        let records = [
            submission(1, 0, vec![]),
            submission(1, 2, vec![]),
            submission(1, 5, vec![]),
            submission(1, 1, vec![]),
        ];
        assert_eq!(marks(&records), [(2, "1: 2 entries missing".to_owned())]);
    }
}
