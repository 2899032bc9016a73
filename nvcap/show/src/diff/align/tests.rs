use std::collections::BTreeMap;

use super::*;
use crate::diff::collect::Words;
use crate::diff::line::Address;
use nvcap_decode::decode::event::Engine;

/// One line: channel, text, addresses.
type Spec<'s> = (u32, &'s str, &'s [u64]);

fn recording(words: &mut Words, lines: &[Spec<'_>]) -> RecordingLines {
    let mut recording = RecordingLines::default();
    let mut at: BTreeMap<u32, usize> = BTreeMap::new();
    for (place, (channel, text, addresses)) in lines.iter().enumerate() {
        let at = *at.entry(*channel).or_insert_with(|| {
            recording.channels.push(ChannelLines {
                id: ChannelId(*channel),
                engine: if *channel < 8 {
                    Engine::Graphics
                } else {
                    Engine::Copy(Some(*channel))
                },
                lines: Vec::new(),
            });
            recording.channels.len() - 1
        });
        recording.channels[at].lines.push(Line {
            text: words.id(text),
            kernel: None,
            place: place as u32,
            first: recording.addresses.len() as u32,
            addresses: addresses.len() as u8,
            doorbell: text.starts_with("doorbell"),
        });
        recording
            .addresses
            .extend(addresses.iter().map(|at| Address {
                kind: Kind::Data,
                pid: 7,
                at: *at,
            }));
    }
    recording
}

const OPTIONS: Options = Options {
    any_data: false,
    context: 1,
};

fn compared(a: &[Spec<'_>], b: &[Spec<'_>], options: Options) -> Comparison {
    let mut words = Words::default();
    let (a, b) = (recording(&mut words, a), recording(&mut words, b));
    compare(&a, &b, options)
}

#[test]
fn an_inserted_line_is_one_hunk_with_its_context() {
    let a = [
        (0, "1", [].as_slice()),
        (0, "2", &[]),
        (0, "3", &[]),
        (0, "4", &[]),
    ];
    let b = [
        (5, "1", [].as_slice()),
        (5, "2", &[]),
        (5, "new", &[]),
        (5, "3", &[]),
        (5, "4", &[]),
    ];
    let found = compared(&a, &b, OPTIONS);
    assert_eq!(found.changed, (0, 1));
    let [pair] = found.pairs.as_slice() else {
        panic!("{found:?}")
    };
    let edits = vec![Edit::Both(1, 1), Edit::OnlyB(2), Edit::Both(2, 3)];
    assert_eq!(
        pair.hunks,
        [Hunk {
            a: (1, 2),
            b: (1, 3),
            edits
        }]
    );
    assert!(!compared(&a, &a, OPTIONS).differs());
}

#[test]
fn changes_that_lie_apart_are_hunks_of_their_own() {
    let a: Vec<Spec<'_>> = ["1", "2", "3", "4", "5", "6", "7"]
        .map(|t| (0, t, &[][..]))
        .to_vec();
    let mut b = a.clone();
    b[1].1 = "x";
    b.remove(5);
    let found = compared(&a, &b, OPTIONS);
    assert_eq!(found.changed, (2, 1));
    let places: Vec<_> = found.pairs[0].hunks.iter().map(|h| (h.a, h.b)).collect();
    assert_eq!(places, [((0, 3), (0, 3)), ((4, 3), (4, 2))]);
    let none = Options {
        context: 0,
        ..OPTIONS
    };
    let found = compared(&a, &b, none);
    let places: Vec<_> = found.pairs[0].hunks.iter().map(|h| (h.a, h.b)).collect();
    assert_eq!(places, [((1, 1), (1, 1)), ((5, 1), (5, 0))]);
}

#[test]
fn other_addresses_are_no_difference_and_another_buffer_is_one() {
    let a = [
        (0, "set", [1].as_slice()),
        (0, "copy", &[1]),
        (0, "copy", &[2]),
        (0, "copy", &[2]),
    ];
    let moved = [
        (0, "set", [9].as_slice()),
        (0, "copy", &[9]),
        (0, "copy", &[8]),
        (0, "copy", &[8]),
    ];
    assert!(!compared(&a, &moved, OPTIONS).differs());
    // The third operation has the first buffer instead of a second one, and so has the fourth: that is said once.
    let other = [
        (0, "set", [9].as_slice()),
        (0, "copy", &[9]),
        (0, "copy", &[9]),
        (0, "copy", &[9]),
    ];
    let found = compared(&a, &other, OPTIONS);
    assert_eq!(found.changed, (1, 1));
    assert!(found.pairs[0].hunks[0].edits.contains(&Edit::OnlyA(2)));
    let any = Options {
        any_data: true,
        ..OPTIONS
    };
    assert!(!compared(&a, &other, any).differs());
}

#[test]
fn an_inserted_buffer_does_not_rename_those_behind_it() {
    let a = [
        (0, "copy", [1].as_slice()),
        (0, "copy", &[2]),
        (0, "set", &[3]),
    ];
    let b = [
        (0, "copy", [1].as_slice()),
        (0, "new", &[7]),
        (0, "copy", &[2]),
        (0, "set", &[3]),
    ];
    assert_eq!(compared(&a, &b, OPTIONS).changed, (0, 1));
}

#[test]
fn channels_are_paired_by_engine_and_first_use() {
    // The numbers and the order among engines differ.
    let a = [(3, "g", [].as_slice()), (9, "c", &[]), (4, "h", &[])];
    let b = [(12, "c", [].as_slice()), (1, "g", &[]), (0, "h", &[])];
    assert!(!compared(&a, &b, OPTIONS).differs());
    let found = compared(&a[..2], &b, OPTIONS);
    assert_eq!(found.changed, (0, 1));
    let alone: Vec<_> = found.pairs.iter().filter(|p| p.a.is_none()).collect();
    assert_eq!((alone.len(), alone[0].b), (1, Some(2)));
}

#[test]
fn doorbells_of_an_observed_recording_are_not_compared() {
    let mut words = Words::default();
    let a = recording(&mut words, &[(0, "doorbell 1", &[]), (0, "op", &[])]);
    let mut b = recording(&mut words, &[(0, "op", &[])]);
    assert!(compare(&a, &b, OPTIONS).differs());
    b.observed = true;
    assert!(!compare(&a, &b, OPTIONS).differs());
}

/// Neither one text again and again, nor a loop of which a line in a hundred changed, nor lines that have nothing to do with each
/// other make it slow.
/// Comparing that takes a time that grows as the square of the lines would take hours.
#[test]
fn long_recordings_are_compared() {
    nvcap_waiting::ends("long recordings are compared", compare_long);
}

fn compare_long() {
    let mut seed = 1_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let texts = [
        "doorbell",
        "constants",
        "qmd",
        "launch",
        "release",
        "copy",
        "wait",
    ];
    let a: Vec<Spec<'_>> = texts
        .iter()
        .cycle()
        .take(20_000)
        .map(|t| (0, *t, &[][..]))
        .collect();
    let mut b = a.clone();
    for line in &mut b {
        if random(100) == 0 {
            line.1 = "changed";
        }
    }
    let changed = b.iter().filter(|line| line.1 == "changed").count() as u64;
    // Heuristics find a short script, not the shortest.
    let found = compared(&a, &b, OPTIONS).changed;
    assert!(
        (changed..changed * 5 / 4).contains(&found.0) && found.0 == found.1,
        "{found:?} of {changed}"
    );
    let same: Vec<Spec<'_>> = (0..100_000).map(|_| (0, "launch", &[][..])).collect();
    assert_eq!(compared(&same, &same[1..], OPTIONS).changed, (1, 0));
    let mut others = || -> Vec<Spec<'_>> {
        let lines = (0..10_000).map(|_| (0, texts[random(4) as usize], &[][..]));
        lines.collect()
    };
    assert!(compared(&others(), &others(), OPTIONS).differs());
}
