//! Samples of program counters for the tests of recordings.

use super::super::sample_messages;
use nvcap_decode::record::{At, Record, Samples};
use nvcap_decode::samples::Counter;
use prost::Message as _;

fn full() -> Samples {
    let counter = |samples, reasons: &[(usize, u32)]| {
        let mut counter = Counter {
            samples,
            not_issued: samples / 2,
            ..Counter::default()
        };
        for (reason, samples) in reasons {
            counter.reasons[*reason] = *samples;
        }
        counter
    };
    Samples {
        at: At {
            time_ns: 500_000_016,
            pid: 4711,
            tid: 0,
        },
        from_ns: 16,
        gpu: Some(7),
        client: 0xc1d0_0001,
        group: 0x5c00_0002,
        period: Some(19),
        sms: [u64::MAX, 1, 0, 0, 0, 0, 0, 1 << 63],
        counters: vec![
            (0, counter(1, &[])),
            (0x7f00_0000_1000, counter(900, &[(8, 600), (31, u32::MAX)])),
            (0x7f00_0000_1010, counter(100, &[(0, 100)])),
            (u64::MAX - 15, counter(u64::MAX, &[(10, 3)])),
        ],
        others: 5,
        overflows: 1,
        bytes: 10_000,
        cut_bytes: 9,
        strange_bytes: 37,
        ended: true,
    }
}

/// Returns samples with all members, and with none.
pub(super) fn all() -> Vec<Record> {
    let bare = Samples {
        at: full().at,
        ..Samples::default()
    };
    [full(), bare].map(|s| Record::Samples(Box::new(s))).into()
}

/// Test that a usual window takes less than ten bytes for each program counter.
#[test]
fn a_window_of_samples_is_short() {
    let mut samples = full();
    samples.counters = (0..10_000)
        .map(|i| {
            let mut counter = Counter {
                samples: i % 100,
                not_issued: i % 90,
                ..Counter::default()
            };
            counter.reasons[3] = 40;
            counter.reasons[8] = 50;
            (0x7f00_0000_0000 + 16 * i, counter)
        })
        .collect();
    let body = sample_messages::Samples::from(&samples).encode_to_vec();
    assert!(body.len() < 90_000, "{}", body.len());
    let read = sample_messages::record(&body);
    assert_eq!(read, Ok(Record::Samples(Box::new(samples))));
}

/// Test that lists of unequal lengths are refused, whichever list it is.
#[test]
fn lists_of_other_lengths_are_not_understood() {
    let sound = sample_messages::Samples::from(&full());
    assert!(sample_messages::record(&sound.encode_to_vec()).is_ok());
    let spoilt: [fn(&mut sample_messages::Samples); 8] = [
        |m| m.pc.truncate(3),
        |m| m.samples.truncate(3),
        |m| m.not_issued.push(1),
        |m| m.reasons.truncate(3),
        |m| m.reason.truncate(3),
        |m| m.reason[0] = 32,
        |m| m.sms = vec![0; 9],
        |m| m.period = Some(256),
    ];
    for (i, spoil) in spoilt.iter().enumerate() {
        let mut message = sound.clone();
        spoil(&mut message);
        let read = sample_messages::record(&message.encode_to_vec());
        assert!(read.is_err(), "{i}: {read:?}");
    }
}
