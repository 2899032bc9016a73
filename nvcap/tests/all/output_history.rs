//! What was in the ring of a running process before, in text: one line.

use crate::common::events::{Written, context, launch};
use nvcap_decode::decode::event::{Body, Event, SubmissionHead};
use nvcap_decode::driver::Model;
use nvcap_decode::record::{
    At, Channel, ChannelId, CpuVa, How, Origin, Record, Segment, Submission,
};
use nvcap_show::output::text::{Text, TextOptions};
use nvcap_show::output::{Detail, Sink};

const AT: At = At {
    time_ns: 1_000_000_000,
    pid: 4711,
    tid: 4711,
};

fn channel(origin: Origin) -> Record {
    Record::Channel(Box::new(Channel {
        ring: Some(CpuVa(0x1000)),
        entries: Some(1024),
        ..Channel::bare(AT, ChannelId(3), origin)
    }))
}

/// Shows submissions of these numbers of entries, of a launch each, on a channel that was learnt in some way.
fn shown(options: TextOptions, origin: Origin, how: How, submissions: &[u32]) -> Vec<String> {
    let written = Written::default();
    let mut sink = Text::new(written.output(), options);
    let model = Model::default();
    sink.record(&channel(origin), &model).unwrap();
    // The channel becomes known once more, with its token.
    sink.record(&channel(origin), &model).unwrap();
    let operation = launch();
    for (serial, entries) in (0..).zip(submissions) {
        let segments = (0..*entries).map(|_| Segment::default()).collect();
        let submission = Submission {
            absent_ns: None,
            at: AT,
            channel: ChannelId(3),
            token: None,
            position: 0,
            gp_get: None,
            prev_put: 0,
            gp_put: *entries,
            ip: None,
            doorbell: None,
            how,
            late: false,
            thread: None,
            segments,
        };
        let record = Record::Submission(submission);
        sink.record(&record, &model).unwrap();
        let context = context(serial);
        let head = Body::Submission(SubmissionHead {
            position: 0,
            gp_get: None,
            prev_put: 0,
            gp_put: *entries,
            entries: *entries,
            bytes: 0,
            missing: 0,
            ip: None,
        });
        let bodies = (0..*entries).map(|entry| (entry, Body::Operation(&operation)));
        for (entry, body) in [(0, head)].into_iter().chain(bodies) {
            sink.event(&Event {
                context: &context,
                entry,
                body,
            })
            .unwrap();
        }
    }
    sink.flush().unwrap();
    let text = written.text();
    // With `-v` the channel has lines, too.
    let line = |l: &str| Some(l.split_once("[warm up] ")?.1.to_owned());
    text.lines().filter_map(line).collect()
}

#[test]
fn earlier_entries_are_one_line() {
    let short = TextOptions::default;
    let lines = shown(short(), Origin::Found, How::Trapped, &[123, 1, 20]);
    assert_eq!(
        lines[0],
        "122 earlier entries in the ring: --history shows them"
    );
    assert_eq!(lines.len(), 1 + 1 + 1 + 20, "{lines:#?}");
    assert!(lines[1..].iter().all(|l| l.starts_with("launch ")));
    // All are asked for.
    let whole = [
        TextOptions {
            history: true,
            ..short()
        },
        TextOptions {
            filtered: true,
            ..short()
        },
        TextOptions {
            detail: Detail::Operations,
            verbose: true,
            ..short()
        },
    ];
    for options in whole {
        let lines = shown(options, Origin::Notified, How::Trapped, &[123, 1]);
        let launches = lines.iter().filter(|l| l.starts_with("launch ")).count();
        assert_eq!(launches, 124, "{lines:#?}");
    }
}

/// A few entries may be one doorbell's; what was observed was submitted since, and a new channel has no history.
#[test]
fn what_is_not_earlier_is_shown() {
    for (origin, how, entries) in [
        (Origin::Found, How::Trapped, 8),
        (Origin::Found, How::Observed, 50),
        (Origin::Allocated, How::Trapped, 50),
        (Origin::Given, How::Trapped, 50),
        (Origin::Recorded, How::Recorded, 50),
    ] {
        let lines = shown(TextOptions::default(), origin, how, &[entries]);
        assert_eq!(lines.len(), entries as usize, "{origin:?} {how:?}");
        assert!(lines.iter().all(|l| l.starts_with("launch ")));
    }
}
