//! The oracle's capture format: cut at every byte, damaged at many, and the records that remain.

use std::{io, path::PathBuf};

use nvcap_decode::{
    record::{How, Record, Submission},
    wire::Hole,
};
use nvcap_recording::file::orc::{Damage, Error, Orc};

fn fixture() -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/h200-cut.orc");
    std::fs::read(path).expect("in the repository")
}

fn read(bytes: &[u8]) -> (Vec<Submission>, Vec<Error>) {
    let mut submissions = Vec::new();
    let mut errors = Vec::new();
    for record in Orc::new(bytes) {
        match record {
            Ok(Record::Submission(s)) => submissions.push(s),
            Ok(Record::Channel(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => errors.push(error),
        }
    }
    (submissions, errors)
}

#[test]
fn whole() {
    let (submissions, errors) = read(&fixture());
    assert!(errors.is_empty());
    assert_eq!(submissions.len(), 42);
    let first = &submissions[0];
    assert_eq!(
        (first.token, first.prev_put, first.gp_put, first.how),
        (Some(0x30016), 0, 1, How::Recorded)
    );
    assert_eq!(first.segments[0].bytes.len(), 32);
}

#[test]
fn cut_anywhere() {
    let bytes = fixture();
    let (all, _) = read(&bytes);
    let mut ends = vec![0];
    for s in &all {
        let len: usize = 48 + s.segments.iter().map(|s| 12 + s.bytes.len()).sum::<usize>();
        ends.push(ends.last().expect("one") + len);
    }
    assert_eq!(*ends.last().expect("one"), bytes.len());
    for cut in (0..bytes.len()).step_by(7).chain(ends.iter().copied()) {
        let (submissions, errors) = read(&bytes[..cut]);
        let whole = ends.iter().filter(|e| **e <= cut).count() - 1;
        assert_eq!(submissions[..whole], all[..whole]);
        if cut == ends[whole] {
            assert_eq!(submissions.len(), whole, "cut at {cut}");
            match &errors[..] {
                [] => assert!(cut > 0),
                [Error::Empty] => assert_eq!(cut, 0),
                _ => panic!("{errors:?}"),
            }
            continue;
        }
        // What is there of the next: whole entries, and the beginning of one.
        let part = &submissions[whole..];
        let there = cut - ends[whole];
        assert_eq!(part.len(), usize::from(there >= 48 + 12), "cut at {cut}");
        for (got, of) in part
            .iter()
            .flat_map(|s| &s.segments)
            .zip(&all[whole].segments)
        {
            let hole = got
                .holes
                .first()
                .map_or(of.bytes.len(), |h| h.offset as usize);
            assert_eq!((got.entry, got.bytes.len()), (of.entry, of.bytes.len()));
            assert_eq!(got.bytes[..hole], of.bytes[..hole]);
            assert!(got.bytes[hole..].iter().all(|b| *b == 0));
            let missing: u32 = got.holes.iter().map(|h| h.len).sum();
            assert_eq!(hole + missing as usize, of.bytes.len());
        }
        let [
            Error::Cut {
                offset,
                have,
                needs,
            },
        ] = errors[..]
        else {
            panic!("{errors:?}")
        };
        assert_eq!(
            (offset, have),
            (ends[whole] as u64, (cut - ends[whole]) as u64)
        );
        assert!(needs > have && offset + needs <= ends[whole + 1] as u64);
    }
}

/// Equal but for the channels' numbers, which are given in the order of their first records.
fn assert_same(found: &[Submission], expected: &[Submission]) {
    let bare = |s: &Submission| (s.at, s.token, s.prev_put, s.gp_put, s.segments.clone());
    assert_eq!(
        found.iter().map(bare).collect::<Vec<_>>(),
        expected.iter().map(bare).collect::<Vec<_>>()
    );
}

#[test]
fn damage_is_skipped() {
    let bytes = fixture();
    let (all, _) = read(&bytes);
    let mut damaged = b"something else".to_vec();
    damaged.extend_from_slice(&bytes);
    let (submissions, errors) = read(&damaged);
    assert_eq!(submissions, all);
    assert!(
        matches!(
            errors[..],
            [Error::Damaged {
                offset: 0,
                skipped: 14,
                why: Damage::Magic
            }]
        ),
        "{errors:?}"
    );

    // A length that is not its entry's: that record is lost, the others are not.
    let mut damaged = bytes.clone();
    damaged[48 + 8] ^= 4;
    let (submissions, errors) = read(&damaged);
    assert_same(&submissions, &all[1..]);
    let [
        Error::Damaged {
            offset: 0,
            why:
                Damage::Length {
                    announced: 32,
                    recorded: 36,
                },
            ..
        },
    ] = errors[..]
    else {
        panic!("{errors:?}")
    };

    let mut damaged = bytes;
    damaged[36..40].copy_from_slice(&u32::MAX.to_le_bytes());
    let (submissions, errors) = read(&damaged);
    assert_same(&submissions, &all[1..]);
    assert!(
        matches!(
            errors[..],
            [Error::Damaged {
                why: Damage::Entries(u32::MAX),
                ..
            }]
        ),
        "{errors:?}"
    );
}

#[test]
fn unreadable_bytes_are_a_hole() {
    let mut bytes = fixture()[..48].to_vec();
    bytes.extend_from_slice(&(((32u64 / 4) << 42) | 0x2_0000_0000).to_le_bytes());
    bytes.extend_from_slice(&(0x8000_0000u32 | 32).to_le_bytes());
    let (submissions, errors) = read(&bytes);
    assert!(errors.is_empty());
    let segment = &submissions[0].segments[0];
    assert_eq!(segment.bytes, vec![0; 32]);
    assert_eq!(segment.holes, [Hole { offset: 0, len: 32 }]);
}

#[test]
fn positions_go_on_over_gaps_and_round_the_ring() {
    let record = |prev: u32, put: u32, n: u32| {
        let mut r = fixture()[..48].to_vec();
        r[28..32].copy_from_slice(&prev.to_le_bytes());
        r[32..36].copy_from_slice(&put.to_le_bytes());
        r[36..40].copy_from_slice(&n.to_le_bytes());
        for _ in 0..n {
            r.extend_from_slice(&[0; 12]);
        }
        r
    };
    let bytes = [
        record(0, 1, 1),
        record(1, 1023, 1022),
        record(1023, 2, 3),
        record(5, 6, 1),
        record(2, 3, 1),
    ]
    .concat();
    let (submissions, _) = read(&bytes);
    let positions: Vec<_> = submissions
        .iter()
        .map(|s| (s.channel.0, s.position))
        .collect();
    // Three entries are missing before the fourth; the fifth goes back, which is 1020 entries on.
    assert_eq!(positions, [(0, 0), (0, 1), (0, 1023), (0, 1029), (0, 2050)]);
}

#[test]
fn equal_tokens_on_two_gpus() {
    let bytes = fixture();
    let first = &bytes[..48 + 12 + 32];
    let mut other = first.to_vec();
    // At another doorbell.
    other[18] ^= 1;
    // The same token begins at 0 again: another channel.
    let (submissions, _) = read(&[first, &other].concat());
    assert_eq!(
        submissions.iter().map(|s| s.channel.0).collect::<Vec<_>>(),
        [0, 1]
    );
}

/// Returns counts of the ledger: entries captured twice, entries missing, contradictions, channels.
fn counts(bytes: &[u8]) -> [u64; 4] {
    let mut ledger = nvcap_decode::ledger::Ledger::new();
    for record in Orc::new(bytes) {
        ledger.record(&record.unwrap());
    }
    let mut counts = [0; 4];
    for (_, c) in ledger.channels() {
        for (sum, n) in counts
            .iter_mut()
            .zip([c.repeated, c.gaps, c.contradictions, 1])
        {
            *sum += n;
        }
    }
    counts
}

/// A record that is given twice is no second channel and no lap of the ring: it is the same again.
#[test]
fn a_record_given_twice() {
    let bytes = fixture();
    let (all, _) = read(&bytes);
    let mut records = Vec::new();
    let mut from = 0;
    for s in &all {
        let len: usize = 48 + s.segments.iter().map(|s| 12 + s.bytes.len()).sum::<usize>();
        records.push(&bytes[from..from + len]);
        from += len;
    }
    let once = counts(&bytes);
    assert_eq!(once[0], 0);
    for twice in 0..records.len() {
        let mut given = records.clone();
        given.insert(twice + 1, records[twice]);
        let (submissions, errors) = read(&given.concat());
        assert!(errors.is_empty());
        let place = |s: &Submission| (s.channel, s.position);
        assert_eq!(place(&submissions[twice]), place(&submissions[twice + 1]));
        let counts = counts(&given.concat());
        // What the capture lacks anyway is not more and not less.
        assert_eq!(counts[1..], once[1..], "{twice}");
        assert_eq!(counts[0], all[twice].segments.len() as u64);
    }
    // The first of all, once more at the end.
    let (submissions, _) = read(&[&bytes, records[0]].concat());
    let (first, last) = (&submissions[0], &submissions[records.len()]);
    assert_eq!(
        (first.channel, first.position),
        (last.channel, last.position)
    );
}

#[test]
fn a_failing_reader_says_where() {
    struct Fails(io::Cursor<Vec<u8>>);
    impl io::Read for Fails {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            match self.0.read(out)? {
                0 => Err(io::Error::other("the disk is gone")),
                n => Ok(n),
            }
        }
    }
    let bytes = fixture();
    let len = bytes.len() as u64;
    let records: Vec<_> = Orc::new(Fails(io::Cursor::new(bytes))).collect();
    let errors: Vec<_> = records.iter().filter_map(|r| r.as_ref().err()).collect();
    assert!(
        matches!(errors[..], [Error::Io { offset, .. }] if *offset == len),
        "{errors:?}"
    );
    assert_eq!(records.len(), 42 + 8 + 1);
}

#[cfg(feature = "xz")]
#[test]
fn a_cut_compressed_capture() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/h200-cut.orc.xz");
    let whole = std::fs::read(path).expect("in the repository");
    let (all, _) = read(&fixture());
    for cut in [0, 3, 12, 100, whole.len() / 2, whole.len() - 1] {
        let reader = Box::new(io::Cursor::new(whole[..cut].to_vec()));
        let records: Vec<_> = Orc::plain_or_compressed(reader).expect("reads").collect();
        let submissions: Vec<_> = records
            .iter()
            .filter_map(|r| match r {
                Ok(Record::Submission(s)) => Some(s.clone()),
                _ => None,
            })
            .collect();
        // Of the last what is there: the rest is a hole.
        let is_part = |s: &Submission| s.segments.iter().any(|s| !s.holes.is_empty());
        let whole_ones = submissions.iter().take_while(|s| !is_part(s)).count();
        assert!(
            submissions[..whole_ones] == all[..whole_ones],
            "cut at {cut}"
        );
        assert!(submissions.len() <= whole_ones + 1, "cut at {cut}");
        assert!(
            cut < whole.len() / 2 || whole_ones > 10,
            "{whole_ones} of the cut at {cut}"
        );
        if cut > 0 {
            assert!(
                records.iter().any(Result::is_err),
                "cut at {cut} of {}",
                whole.len()
            );
        }
    }
}

/// A record of `n` entries of 8 MiB less 4 bytes each, which could not be read.
fn announced(n: u32) -> Vec<u8> {
    let mut out = b"ORC1".to_vec();
    out.extend_from_slice(&[0; 20]);
    for word in [5, 0, n, n, 0, 0] {
        out.extend_from_slice(&u32::to_le_bytes(word));
    }
    for _ in 0..n {
        out.extend_from_slice(&(0x1f_ffffu64 << 42).to_le_bytes());
        out.extend_from_slice(&(0x7f_fffc_u32 | 1 << 31).to_le_bytes());
    }
    out
}

#[test]
fn what_is_only_announced_takes_no_memory() {
    // 160 GB.
    let (submissions, errors) = read(&announced(20_000));
    assert!(errors.is_empty(), "{errors:?}");
    let segments = &submissions[0].segments;
    assert_eq!(segments.len(), 20_000);
    let zeros: usize = segments.iter().map(|s| s.bytes.len()).sum();
    assert!(zeros <= 64 << 20, "{zeros} B");
    let mut ledger = nvcap_decode::ledger::Ledger::new();
    ledger.record(&Record::Submission(submissions[0].clone()));
    assert_eq!(ledger.totals().unreadable, 20_000 * 0x7f_fffc);
}

#[test]
fn a_record_without_end_is_no_record() {
    let mut head = announced(1000);
    // The first entry's bytes follow, and so on without end.
    head.truncate(48);
    let entry = [
        (0x1f_ffffu64 << 42).to_le_bytes().as_slice(),
        &0x7f_fffc_u32.to_le_bytes(),
    ]
    .concat();
    let one = io::Read::chain(
        io::Cursor::new(entry),
        io::Read::take(io::repeat(0), 0x7f_fffc),
    );
    let mut all: Box<dyn io::Read> = Box::new(one);
    for _ in 1..18 {
        let entry = [
            (0x1f_ffffu64 << 42).to_le_bytes().as_slice(),
            &0x7f_fffc_u32.to_le_bytes(),
        ]
        .concat();
        let one = io::Read::chain(
            io::Cursor::new(entry),
            io::Read::take(io::repeat(0), 0x7f_fffc),
        );
        all = Box::new(io::Read::chain(all, one));
    }
    let mut orc = Orc::new(io::Read::chain(io::Cursor::new(head), all));
    match orc.next() {
        Some(Err(Error::Damaged {
            why: Damage::Large, ..
        })) => {}
        other => panic!("{:?}", other.map(|r| r.map(|_| ()))),
    }
}
