//! Text as a terminal has it: a head for the columns, and equal lines in a row counted.

use crate::common::events::{Written, context, copy, launch, with_each};
use nvcap_decode::decode::event::{Body, Event, Operation};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
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

/// At the end there are sums in the place of the channels' table.
#[test]
fn sums_come_before_the_verdict() {
    let ending = |options: TextOptions| {
        let written = Written::default();
        let mut sink = Text::new(written.output(), options);
        for serial in 0..3 {
            with_each(|e| {
                let mut context = e.context.clone();
                context.serial = serial;
                sink.event(&Event {
                    context: &context,
                    ..e
                })
                .unwrap();
            });
        }
        sink.flush().unwrap();
        let shown = written.text().len();
        sink.finish(&Ledger::new(), &Model::default()).unwrap();
        written.text().split_off(shown)
    };
    let options = |screen| TextOptions {
        screen,
        ..TextOptions::default()
    };
    let screen = ending(options(true));
    let lines: Vec<&str> = screen.lines().collect();
    assert_eq!(
        lines[..5],
        [
            "9 launches of 2 kernels",
            "        6  prog 0x7f0000001000",
            "        3  (QMD not seen)",
            "copies and fills: fill 9 of 3.0 MiB, h2d 6 of 3.0 MiB",
            "3 graph replays",
        ],
        "{screen}"
    );
    assert!(!screen.contains("submissions  "), "{screen}");
    for options in [
        options(false),
        TextOptions {
            verbose: true,
            ..options(true)
        },
        TextOptions {
            needed_only: true,
            ..options(true)
        },
    ] {
        let plain = ending(options);
        assert!(!plain.contains(" launches of "), "{plain}");
    }
}

/// Files and pipes have a line for each, and no head.
#[test]
fn elsewhere_each_has_its_line() {
    let lines = shown(false, &vec![(3, launch()); 40]);
    assert_eq!(lines.len(), 40);
    assert!(lines.iter().all(|l| l.contains(" launch ")));
}
