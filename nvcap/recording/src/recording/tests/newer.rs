//! Tests of recordings of a newer nvcap: unknown packets are counted, and all others are read.

use super::super::kind::{AGAIN, Head, Kind};
use super::super::messages as m;
use super::*;

/// A kind that is not in use.
const UNKNOWN: u8 = 200;

fn packet(to: &mut Vec<u8>, kind: u8, flags: u8, number: u64, body: &[u8]) {
    let head = Head {
        kind,
        flags,
        trace: 7,
        number,
        part: (0, 1),
    };
    crate::pcapng::packet(to, 0, 0, &[&head.bytes(body), body]);
}

/// Makes a recording with a usual beginning and packets of an unknown kind.
fn with_unknown(packets: &[(u8, u8, u64, &[u8])]) -> Vec<u8> {
    let mut to = Vec::new();
    Writer::new(info(), 7).begin_section(&mut to);
    for (kind, flags, number, body) in packets {
        packet(&mut to, *kind, *flags, *number, body);
    }
    to
}

/// Fields that no message has: a number, a text, a message, and numbers of fixed length.
const FIELDS: &[u8] = &[
    0xa0, 0x1f, 0x96, 0x01, // 500, a number
    0xaa, 0x1f, 2, b'h', b'i', // 501, bytes
    0xb1, 0x1f, 1, 2, 3, 4, 5, 6, 7, 8, // 502, 64 bits
    0xbd, 0x1f, 1, 2, 3, 4, // 503, 32 bits
];

#[test]
fn unknown_kinds_are_counted() {
    let unmapping = m::Unmapping {
        at: Some(m::At::default()),
        start: 1,
        len: 2,
    };
    let known = prost::Message::encode_to_vec(&unmapping);
    let end = Kind::End as u8;
    let known = (Kind::Unmapping as u8, 0, 1, &known[..]);
    let bytes = with_unknown(&[
        (UNKNOWN, 0, 0, b"anything"),
        known,
        (UNKNOWN, 0, 2, b""),
        (UNKNOWN, 0, 3, &[0xff; 100]),
        (UNKNOWN + 1, 0, 4, b""),
        (end, 0, 5, b""),
    ]);
    let (records, errors) = read(&bytes);
    assert_eq!(records.len(), 1);
    let said = [
        "record 0 is of kind 200, which this nvcap does not know; a newer one may",
        "record 4 is of kind 201, which this nvcap does not know; a newer one may",
        "2 more records are of kind 200, which this nvcap does not know",
    ];
    assert_eq!(errors, said);
}

/// Test of a packet of an uncounted kind, which has the number of the next record. That record must not be taken for a repetition.
#[test]
fn packets_of_an_unknown_kind_hide_no_record() {
    let unmapping = m::Unmapping {
        at: Some(m::At::default()),
        start: 1,
        len: 2,
    };
    let body = prost::Message::encode_to_vec(&unmapping);
    let bytes = with_unknown(&[
        (UNKNOWN, AGAIN, 0, b"of no record"),
        (Kind::Unmapping as u8, 0, 0, &body),
        (Kind::End as u8, 0, 1, b""),
    ]);
    let (records, errors) = read(&bytes);
    assert_eq!((records.len(), errors.len()), (1, 1), "{errors:?}");
}

/// Test that a message with fields that this nvcap does not know means the same as without them.
#[test]
fn unknown_fields_are_skipped() {
    let all = all_records();
    let mut plain = Vec::new();
    let mut writer = Writer::new(info(), 7);
    writer.begin_section(&mut plain);
    all.iter().for_each(|r| writer.record(r, &mut plain));
    writer.end(end(), &Ledger::new(), b"{}", &mut plain);
    // Each packet again, with the fields behind the last part of its body.
    let mut newer = Vec::new();
    let mut blocks = crate::pcapng::Blocks::new(&plain[..]);
    crate::pcapng::section(&mut newer, &crate::pcapng::Options::new());
    while let Some(block) = blocks.next_block() {
        let crate::pcapng::Block::Packet(packet) = block.unwrap() else {
            continue;
        };
        let (head, part) = Head::parse(packet.data).unwrap();
        let mut body = part.to_vec();
        if head.part.0 + 1 == head.part.1 {
            body.extend_from_slice(FIELDS);
        }
        crate::pcapng::packet(&mut newer, 0, 0, &[&head.bytes(&body), &body]);
    }
    let items = |bytes: &[u8]| Reader::new(bytes).map(Result::unwrap).collect::<Vec<_>>();
    let (plain, newer) = (items(&plain), items(&newer));
    // The beginnings of two sections (a stamp shows the GPU's clock), and the end.
    assert_eq!(plain.len(), all.len() + 3);
    assert!(plain == newer);
}

/// Test that an unknown event of a process, or an unknown loss, is not taken for a known one.
#[test]
fn messages_without_a_known_choice_are_not_understood() {
    for kind in [Kind::Process, Kind::Loss] {
        let bytes = with_unknown(&[(kind as u8, 0, 0, FIELDS), (Kind::End as u8, 0, 1, b"")]);
        let (records, errors) = read(&bytes);
        assert!(records.is_empty(), "{records:?}");
        let [said] = &errors[..] else {
            panic!("{errors:?}");
        };
        assert!(said.contains("is not understood"), "{said}");
    }
}
