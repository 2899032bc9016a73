//! Text as a terminal has it: a head for the columns, and equal lines in a row counted.

use crate::common::events::{Written, context, copy, launch};
use nvcap_decode::decode::event::{Body, Event, Operation};
use nvcap_decode::record::ChannelId;
use nvcap_show::output::Sink;
use nvcap_show::output::text::{Text, TextOptions};

/// Shows operations, each of a submission of its own, on a channel.
fn shown(screen: bool, operations: &[(u32, Operation)]) -> Vec<String> {
    let written = Written::default();
    let options = TextOptions {
        screen,
        ..TextOptions::default()
    };
    let mut sink = Text::new(written.output(), options);
    for (serial, (channel, operation)) in (0..).zip(operations) {
        let mut context = context(serial);
        context.channel = ChannelId(*channel);
        let body = Body::Operation(operation);
        sink.event(&Event {
            context: &context,
            entry: 0,
            body,
        })
        .unwrap();
    }
    sink.flush().unwrap();
    written.text().lines().map(ToOwned::to_owned).collect()
}

#[test]
fn equal_lines_in_a_row_are_counted() {
    let mut operations = vec![(3, launch()); 40];
    operations.push((3, copy()));
    operations.push((3, launch()));
    operations.push((4, launch()));
    let lines = shown(true, &operations);
    let begins: Vec<_> = lines.iter().map(|l| l.get(..40).unwrap_or(l)).collect();
    assert_eq!(
        begins,
        [
            "    time, s  ch    eng  [phase] what",
            "   0.000000  ch3   gr   [warm up] launch",
            // The time of the last one.
            "   0.048148  ch3   gr   [warm up] x 40",
            "   0.049382  ch3   gr   [warm up] copy h",
            "   0.050617  ch3   gr   [warm up] launch",
            // Another channel's is another.
            "   0.051851  ch4   gr   [warm up] launch",
        ]
    );
    // A row that goes on to the end is told, too.
    let lines = shown(true, &operations[..7]);
    assert!(lines[2].ends_with(" x 7"), "{lines:#?}");
    assert_eq!(lines.len(), 3);
}

/// Files and pipes have a line for each, and no head.
#[test]
fn elsewhere_each_has_its_line() {
    let lines = shown(false, &vec![(3, launch()); 40]);
    assert_eq!(lines.len(), 40);
    assert!(lines.iter().all(|l| l.contains(" launch ")));
}
