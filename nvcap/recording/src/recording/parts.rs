//! Number of parts of a message, counted before it is decoded: an empty part takes two bytes in a file and many times that in memory.

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::decode::NotUnderstood;
use super::kind::Kind;

/// The most parts of a message: more than the largest ring has entries.
const MOST: usize = 1 << 21;

/// Field that holds parts, with those fields of a part that hold parts themselves.
struct Field(u32, &'static [Field]);

/// Segments of a submission, and their holes.
const SUBMISSION: &[Field] = &[Field(13, &[Field(3, &[])])];
/// Channels of a snapshot, and their first submissions.
const SNAPSHOT: &[Field] = &[
    Field(10, &[Field(17, SUBMISSION)]),
    Field(11, &[Field(8, &[]), Field(9, &[])]),
];

/// Frames of calls.
const CALLS: &[Field] = &[Field(2, &[])];
/// The most fields of calls: several times what a stack that is taken has.
const MOST_OF_CALLS: usize = 1 << 14;

/// Checks the number of a message's parts; of kinds that have no bound by their length ([`Kind::most_body`]).
pub(super) fn check(kind: Kind, body: &[u8]) -> Result<(), NotUnderstood> {
    let (fields, mut left) = match kind {
        Kind::Submission => (SUBMISSION, MOST),
        Kind::Snapshot => (SNAPSHOT, MOST),
        Kind::Calls => (CALLS, MOST_OF_CALLS),
        _ => return Ok(()),
    };
    match count(body, fields, &mut left) {
        Some(()) => Ok(()),
        None => Err(NotUnderstood::Large("number of parts")),
    }
}

/// Counts all fields, and those of parts; `None` where there are too many. What is no message ends the count: it is not decoded either.
fn count(mut body: &[u8], fields: &[Field], left: &mut usize) -> Option<()> {
    while body.has_remaining() {
        *left = left.checked_sub(1)?;
        let Ok((number, wire)) = decode_key(&mut body) else {
            break;
        };
        let parts = fields.iter().find(|f| f.0 == number);
        match (wire, parts) {
            (WireType::LengthDelimited, Some(Field(_, within))) => {
                let Ok(length) = decode_varint(&mut body) else {
                    break;
                };
                let Some((part, rest)) = usize::try_from(length)
                    .ok()
                    .and_then(|n| body.split_at_checked(n))
                else {
                    break;
                };
                body = rest;
                count(part, within, left)?;
            }
            _ => {
                if skip_field(wire, number, &mut body, DecodeContext::default()).is_err() {
                    break;
                }
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length-delimited field.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut all = vec![number << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut all);
        all.extend_from_slice(content);
        all
    }

    #[test]
    fn parts_are_counted_on_each_level() {
        let segment = |holes: usize| field(13, &field(3, b"").repeat(holes));
        let is_taken = |kind, body: &[u8]| check(kind, body).is_ok();
        assert!(is_taken(Kind::Submission, &segment(MOST - 1)));
        assert!(!is_taken(Kind::Submission, &segment(MOST)));
        assert!(!is_taken(Kind::Submission, &segment(0).repeat(MOST + 1)));
        assert!(is_taken(Kind::Submission, &segment(1).repeat(MOST / 2)));
        assert!(!is_taken(
            Kind::Submission,
            &segment(1).repeat(MOST / 2 + 1)
        ));
        // Bytes are no parts, whatever they look like.
        assert!(is_taken(
            Kind::Submission,
            &field(13, &field(2, &segment(MOST)))
        ));
        let first = [vec![0x8a, 0x01], field(13, b"")[1..].to_vec()].concat();
        assert!(is_taken(Kind::Snapshot, &field(10, &first)));
        for cut in 0..9 {
            let body = &segment(3)[..cut.min(8)];
            assert!(is_taken(Kind::Submission, body));
        }
        assert!(is_taken(Kind::QmdCopy, &segment(MOST)));
        assert!(is_taken(Kind::Calls, &field(2, b"").repeat(MOST_OF_CALLS)));
        assert!(!is_taken(
            Kind::Calls,
            &field(2, b"").repeat(MOST_OF_CALLS + 1)
        ));
    }
}
