//! The plan of a run: the complete expected content of every channel, from the options alone.
//!
//! A channel's sequence does not depend on which thread submits when, so a test can form it again and compare it with
//! what a tracer saw: `plan.stream(i)` gives, submission by submission, each ring entry and the bytes it points to.

use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::entry;

use crate::layout::{Channel, PUSHBUFFER};
use crate::stream::{Op, Piece, Shape, Work, work};

/// The plan of one program image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The shape of the submissions.
    pub shape: Shape,
    /// The channels used.
    pub channels: Vec<Channel>,
    /// Submissions of all channels together.
    pub submissions: u64,
}

/// A ring entry and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The 8 bytes in the ring.
    pub raw: u64,
    /// The pushbuffer bytes; empty for a control entry.
    pub bytes: Vec<u8>,
}

/// One submission as it is in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Number in its channel, from 0.
    pub number: u64,
    /// Ring position of the first entry, counted without wrapping.
    pub position: u64,
    /// The entries.
    pub entries: Vec<Entry>,
    /// Its operations.
    pub ops: Vec<Op>,
}

/// The progress of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Submissions made.
    pub number: u64,
    /// Entries written.
    pub position: u64,
    /// Pushbuffer bytes used since the last wrap.
    pub offset: u64,
}

impl Cursor {
    /// As [`Cursor::place`], for work that is submitted again and again.
    pub fn place_again(&mut self, channel: Channel, work: &Work) -> Submission {
        self.place(channel, work.clone())
    }

    /// Assigns the next submission of `channel` its places in pushbuffer memory, and advances the cursor.
    pub fn place(&mut self, channel: Channel, work: Work) -> Submission {
        let position = self.position;
        let entries: Vec<Entry> = work
            .pieces
            .into_iter()
            .map(|piece| match piece {
                Piece::Control { opcode, operand } => Entry {
                    raw: entry::control(opcode, operand, false),
                    bytes: Vec::new(),
                },
                Piece::Segment(bytes) => {
                    let len = bytes.len() as u64;
                    if self.offset + len > PUSHBUFFER {
                        self.offset = 0;
                    }
                    // libcuda marks its segments as subroutines.
                    let at = GpuVa(channel.pushbuffer() + self.offset);
                    let raw = entry::segment(at, bytes.len() as u32, false, true, false);
                    self.offset += len;
                    Entry { raw, bytes }
                }
            })
            .collect();
        let number = self.number;
        self.number += 1;
        self.position += entries.len() as u64;
        Submission {
            number,
            position,
            entries,
            ops: work.ops,
        }
    }
}

/// Adds an entry and its bytes to a channel's checksum.
pub fn checksum(mut sum: u64, raw: u64, bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x100_0000_01b3;
    sum = (sum ^ raw).wrapping_mul(PRIME).rotate_left(23);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = (sum ^ u64::from_le_bytes(word))
            .wrapping_mul(PRIME)
            .rotate_left(23);
    }
    sum
}

impl Plan {
    /// Returns the number of submissions that channel number `i` of [`Plan::channels`] makes.
    pub fn quota(&self, i: usize) -> u64 {
        let n = self.channels.len() as u64;
        self.submissions / n + u64::from((i as u64) < self.submissions % n)
    }

    /// All submissions of channel number `i` of [`Plan::channels`].
    pub fn stream(&self, i: usize) -> impl Iterator<Item = Submission> + '_ {
        let channel = self.channels[i];
        let mut cursor = Cursor::default();
        (0..self.quota(i))
            .map(move |number| cursor.place(channel, work(&self.shape, channel, number)))
    }

    /// Checksum of all channels, which a run prints at its end.
    pub fn checksum(&self) -> u64 {
        let sums = (0..self.channels.len()).map(|i| {
            self.stream(i)
                .flat_map(|s| s.entries)
                .fold(0, |sum, e| checksum(sum, e.raw, &e.bytes))
        });
        total(sums)
    }
}

/// The checksum of a run from those of its channels.
pub fn total(channels: impl Iterator<Item = u64>) -> u64 {
    channels.fold(0, |sum, c| checksum(sum, c, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::wire::words::u32s;

    fn plan(burst: u32, big_one_in: u64, submissions: u64) -> Plan {
        Plan {
            shape: Shape {
                seed: 7,
                image: 0,
                burst,
                big_one_in,
                launches_only: false,
                kernels: false,
                module_every: 0,
                rounds: None,
                timed: None,
                code: false,
            },
            channels: Channel::first(6, 2),
            submissions,
        }
    }

    /// Reads words as a GPU would: `true` if every method's data is there and no header is illegal.
    fn parses(words: impl Iterator<Item = u32>) -> bool {
        let mut data = 0;
        for word in words {
            if data > 0 {
                data -= 1;
                continue;
            }
            match word >> 29 {
                _ if word == 0 => {}
                1 | 3 | 5 => data = word >> 16 & 0x1fff,
                4 => {}
                _ => return false,
            }
        }
        data == 0
    }

    #[test]
    fn every_channel_parses_and_its_positions_are_contiguous() {
        let plan = plan(7, 9, 300);
        for i in 0..plan.channels.len() {
            let mut position = 0;
            let mut words = Vec::new();
            for (number, s) in plan.stream(i).enumerate() {
                assert_eq!(s.number, number as u64);
                assert_eq!(s.position, position);
                position += s.entries.len() as u64;
                for e in &s.entries {
                    let len = u64::from(entry::len(e.raw));
                    assert_eq!(len, e.bytes.len() as u64);
                    if let Some((GpuVa(address), _)) = entry::segment_of(e.raw, 0) {
                        let c = plan.channels[i];
                        assert!(
                            address >= c.pushbuffer()
                                && address + len <= c.pushbuffer() + PUSHBUFFER
                        );
                    }
                    words.extend(u32s(&e.bytes));
                }
                let payload = plan.channels[i].token(); // any op list has the release last
                assert!(
                    matches!(s.ops.last(), Some(Op::Release { payload: p, .. }) if *p == number as u32 + 1),
                    "{payload}"
                );
            }
            assert!(parses(words.into_iter()), "channel {i}");
        }
    }

    #[test]
    fn a_plan_depends_on_seed_and_image_alone() {
        let a = plan(3, 0, 100);
        let mut b = a.clone();
        assert_eq!(a.checksum(), b.checksum());
        b.shape.seed += 1;
        assert_ne!(a.checksum(), b.checksum());
        b = a.clone();
        b.shape.image = 1;
        assert_ne!(a.checksum(), b.checksum());
    }

    #[test]
    fn a_launch_loop_differs_in_its_payload_alone() {
        for index in [0, 8] {
            let shape = Shape {
                seed: 1,
                image: 0,
                burst: 1,
                big_one_in: 0,
                launches_only: true,
                kernels: false,
                module_every: 0,
                rounds: None,
                timed: None,
                code: false,
            };
            let channel = Channel { gpu: 0, index };
            let mut again = work(&shape, channel, 0);
            crate::stream::set_payload(&mut again, channel, 41);
            assert_eq!(again.pieces, work(&shape, channel, 41).pieces);
        }
    }

    #[test]
    fn rounds_are_kernels_and_a_collective() {
        use crate::kernels;
        use crate::stream::{Ends, Part, Rounds};
        let rounds = Rounds {
            rank: 2,
            kernels: 3,
            extra: 2,
            of_step: 4,
        };
        let parts: Vec<Part> = (0..6).map(|n| rounds.of(n).1).collect();
        let extra = [Part::Extra(false), Part::Extra(true)];
        let expected = [
            &[0, 1, 2].map(Part::Kernel)[..],
            &extra,
            &[Part::Collective],
        ]
        .concat();
        assert_eq!(parts, expected);
        assert_eq!(rounds.of(6), (1, Part::Kernel(0)));
        let mut p = plan(1, 0, 48);
        (p.shape.rounds, p.shape.timed, p.shape.kernels) = (Some(rounds), Some(Ends::Untold), true);
        p.channels = Channel::first(1, 1);
        for s in p.stream(0) {
            let launch = s.ops.iter().find_map(|op| match op {
                Op::Launch { fields, args, .. } => Some((fields.program.0, args)),
                _ => None,
            });
            let (program, args) = launch.expect("one launch each");
            let name = kernels::name(rounds.function(s.number));
            assert_eq!(program, kernels::program(rounds.function(s.number)));
            let (round, part) = rounds.of(s.number);
            let kind = ["ncclDevKernel_AllReduce", "ncclDevKernel_ReduceScatter"];
            let kind = kind[usize::from(round % 4 == 3)];
            assert_eq!(name.contains(kind), part == Part::Collective, "{name}");
            let first = args.first_chunk().map(|a| u64::from_le_bytes(*a));
            assert_eq!(
                first == Some(rounds.communicator()),
                part == Part::Collective
            );
        }
        assert_eq!(
            kernels::name(kernels::collective(false)),
            "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"
        );
    }

    #[test]
    fn quotas_add_up() {
        for n in [0, 1, 5, 6, 7, 1000] {
            let p = plan(1, 0, n);
            assert_eq!((0..6).map(|i| p.quota(i)).sum::<u64>(), n);
        }
    }

    #[test]
    fn big_submissions_are_of_one_mib_and_fit() {
        let p = plan(1, 1, 6);
        let s = p.stream(0).next().expect("one submission");
        assert!(s.entries[0].bytes.len() > 1 << 20);
        let bursts = plan(500, 1, 6);
        for s in bursts.stream(0) {
            assert!(s.entries.iter().map(|e| e.bytes.len() as u64).sum::<u64>() < PUSHBUFFER);
            assert!(s.entries.len() <= 500);
        }
    }
}
