//! Count of the parts of a message before it is decoded. An empty part takes two bytes in a file, and many times that in memory.

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::decode::NotUnderstood;
use super::kind::Kind;

/// The most parts of a message with bytes of memory. The largest ring has fewer entries.
const MOST: usize = 1 << 21;
/// The most parts of any other message: many times the number that a writer makes.
const MOST_OF_LIST: usize = 1 << 19;
/// The most fields of calls: several times the fields of a stack that is taken.
const MOST_OF_CALLS: usize = 1 << 14;

/// A field that holds parts, with its weight: one for each 64 bytes of memory, approximately.
struct Field(u32, usize, Holds);

/// Kind of parts that a field holds.
enum Holds {
    /// Messages, with those of their fields that themselves hold parts.
    Fields(&'static [Field]),
    /// Numbers, each of a byte or more. Eight count as one part.
    Numbers,
}
use Holds::{Fields, Numbers};

/// Segments of a submission, and their holes.
const SUBMISSION: &[Field] = &[Field(13, 1, Fields(&[Field(3, 1, Fields(&[]))]))];
/// Channels of a snapshot and their first submissions, threads and their frames, messages of the kernel.
const SNAPSHOT: &[Field] = &[
    Field(10, 8, Fields(&[Field(17, 4, Fields(SUBMISSION))])),
    Field(11, 4, Fields(&[Field(8, 1, FRAMES), Field(9, 1, FRAMES)])),
    Field(12, 4, Fields(&[Field(8, 1, Numbers)])),
];
const FRAMES: Holds = Fields(&[Field(1, 2, Fields(&[]))]);
/// Frames of calls.
const CALLS: &[Field] = &[Field(2, 1, Fields(&[]))];
/// Processes' GPUs.
const PROCESS: &[Field] = &[Field(7, 1, Fields(&[Field(8, 2, Fields(&[]))]))];
/// Parameters of a kernel.
const KERNEL: &[Field] = &[Field(5, 1, Fields(&[Field(1, 1, Fields(&[]))]))];
/// Timestamps.
const STAMPS: &[Field] = &[Field(4, 1, Fields(&[]))];
/// Suspects of a fault, and the channels of its group; its message's channels.
const FAULT: &[Field] = &[
    Field(8, 1, Fields(&[Field(8, 1, Numbers)])),
    Field(9, 4, Fields(&[Field(5, 1, Numbers), Field(6, 1, Numbers)])),
    Field(11, 1, Numbers),
];
/// Lists of samples.
const SAMPLES: &[Field] = &[
    Field(7, 1, Numbers),
    Field(8, 1, Numbers),
    Field(9, 1, Numbers),
    Field(10, 1, Numbers),
    Field(11, 1, Numbers),
    Field(12, 1, Numbers),
    Field(13, 1, Numbers),
];
/// GPUs of a machine.
const TRACE: &[Field] = &[Field(15, 2, Fields(&[]))];
/// Margins of channels and threads that observed; readings of clocks.
const END: &[Field] = &[
    Field(
        2,
        1,
        Fields(&[Field(8, 1, Fields(&[])), Field(21, 1, Fields(&[]))]),
    ),
    Field(5, 1, Fields(&[])),
    Field(7, 1, Fields(&[])),
];

/// Lists of context switches, the news between them, and processes with their GPUs.
const SWITCHES: &[Field] = &[
    Field(7, 1, Numbers),
    Field(8, 1, Numbers),
    Field(9, 1, Numbers),
    Field(10, 1, Numbers),
    Field(12, 1, Numbers),
    Field(13, 1, Fields(&[])),
    Field(
        14,
        8,
        Fields(&[Field(2, 1, Fields(&[Field(8, 2, Fields(&[]))]))]),
    ),
];

/// Checks the number of a message's parts.
pub(super) fn check(kind: Kind, body: &[u8]) -> Result<(), NotUnderstood> {
    let (fields, mut left) = match kind {
        Kind::Submission => (SUBMISSION, MOST),
        Kind::Snapshot => (SNAPSHOT, MOST),
        Kind::Calls => (CALLS, MOST_OF_CALLS),
        Kind::Process => (PROCESS, MOST_OF_LIST),
        Kind::Kernel => (KERNEL, MOST_OF_LIST),
        Kind::Stamps => (STAMPS, MOST_OF_LIST),
        Kind::Fault => (FAULT, MOST_OF_LIST),
        Kind::Samples => (SAMPLES, MOST_OF_LIST),
        Kind::Switches => (SWITCHES, MOST_OF_LIST),
        Kind::Trace => (TRACE, MOST_OF_LIST),
        Kind::End => (END, MOST_OF_LIST),
        _ => return Ok(()),
    };
    // No field of two bytes counts for more than this.
    if body.len() <= left / 4 {
        return Ok(());
    }
    match count(body, fields, &mut left) {
        Some(()) => Ok(()),
        None => Err(NotUnderstood::Large("number of parts")),
    }
}

/// Counts all fields, and the fields of parts; `None` if there are too many. Bytes that are no message end the count, because they are not
/// decoded either.
fn count(mut body: &[u8], fields: &[Field], left: &mut usize) -> Option<()> {
    while body.has_remaining() {
        let Ok((number, wire)) = decode_key(&mut body) else {
            break;
        };
        let parts = fields.iter().find(|f| f.0 == number);
        *left = left.checked_sub(parts.map_or(1, |f| f.1))?;
        match (wire, parts) {
            (WireType::LengthDelimited, Some(Field(_, _, holds))) => {
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
                match holds {
                    Fields(within) => count(part, within, left)?,
                    Numbers => {
                        let ends = part.iter().filter(|byte| **byte < 0x80).count();
                        *left = left.checked_sub(ends / 8)?;
                    }
                }
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

    /// Makes a length-delimited field.
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
        // Plain bytes are not parts, whatever they look like.
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

    /// Test of lists of parts that each take many times more memory than bytes in the file.
    #[test]
    fn lists_are_counted() {
        let is_taken = |kind, body: &[u8]| check(kind, body).is_ok();
        let most = |n: usize| MOST_OF_LIST / n + 1;
        for (kind, number, costs) in [
            (Kind::Stamps, 4, 1),
            (Kind::Fault, 9, 4),
            (Kind::Switches, 13, 1),
            (Kind::Switches, 14, 8),
            (Kind::Trace, 12, 1),
            (Kind::Trace, 15, 2),
            (Kind::End, 5, 1),
            (Kind::End, 7, 1),
        ] {
            assert!(is_taken(kind, &field(number, b"").repeat(MOST_OF_LIST / 8)));
            assert!(!is_taken(kind, &field(number, b"").repeat(most(costs))));
        }
        let within = |number, of| field(number, &field(of, b"").repeat(most(1)));
        assert!(!is_taken(Kind::Kernel, &within(5, 1)));
        assert!(!is_taken(Kind::Process, &within(7, 8)));
        assert!(!is_taken(Kind::End, &within(2, 8)));
        let identity = field(2, &field(8, b"").repeat(most(2)));
        assert!(!is_taken(Kind::Switches, &field(14, &identity)));
        // Numbers of one byte, and of two.
        for number in 7..=13 {
            assert!(!is_taken(
                Kind::Samples,
                &field(number, &vec![1; 8 * most(1)])
            ));
            let two = [0x81, 1].repeat(4 * MOST_OF_LIST);
            assert!(is_taken(Kind::Samples, &field(number, &two)));
        }
        for number in [7, 8, 9, 10, 12] {
            assert!(!is_taken(
                Kind::Switches,
                &field(number, &vec![1; 8 * most(1)])
            ));
        }
        assert!(!is_taken(Kind::Fault, &field(11, &vec![1; 8 * most(1)])));
        assert!(!is_taken(
            Kind::Snapshot,
            &field(12, b"").repeat(MOST / 4 + 1)
        ));
    }
}
