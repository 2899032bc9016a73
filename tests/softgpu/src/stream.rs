//! What one submission says: from (seed, image, channel, number) alone, so that any thread or process may form it.
//!
//! Each submission is one or more operations as libcuda forms them on CUDA 13.0, with a semaphore release at the end
//! whose payload is the submission's number plus one. Knows no addresses of rings or pushbuffers: [`crate::plan`]
//! places the pieces.

use crate::encode::{CONTROL_EXTENDED_BASE, CONTROL_NOP, Pushbuffer, Qmd};
use crate::layout::{Channel, Unit};
use crate::rng::Rng;

/// Subchannel of the compute class.
const COMPUTE: u32 = 1;
/// Subchannel of the copy class.
const COPY: u32 = 4;
/// Compute class of Hopper.
pub const COMPUTE_CLASS: u32 = 0xcbc0;
/// Copy class of Hopper.
pub const COPY_CLASS: u32 = 0xc8b5;

/// What shapes the submissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Everything follows from it.
    pub seed: u64,
    /// Which program image of the run: 0 for the first, others after an exec or in a child of its own.
    pub image: u32,
    /// Entries of a submission at most.
    pub burst: u32,
    /// One submission in this many is an upload of about 1 MiB (0: none).
    pub big_one_in: u64,
    /// Every submission is a kernel launch of one shape: what a launch loop does.
    pub launches_only: bool,
}

/// What a submission does, for a test of decoded output: what the words were formed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A kernel launch with its arguments.
    Launch {
        /// GPU address of the QMD.
        qmd: u64,
        /// What the QMD says.
        fields: Qmd,
        /// The kernel's arguments.
        args: Vec<u8>,
    },
    /// A copy-engine transfer of `lines` lines of `bytes`.
    Copy {
        /// Source.
        src: u64,
        /// Destination.
        dst: u64,
        /// Bytes of a line.
        bytes: u32,
        /// Lines.
        lines: u32,
    },
    /// A copy-engine fill of `words` 32-bit words.
    Fill {
        /// Destination.
        dst: u64,
        /// Pattern.
        pattern: u32,
        /// How many words.
        words: u32,
    },
    /// Data of the user's (or code) written inline.
    Inline {
        /// Destination.
        dst: u64,
        /// How many bytes.
        bytes: u32,
    },
    /// A semaphore release.
    Release {
        /// Where.
        address: u64,
        /// Payload.
        payload: u32,
    },
    /// A wait of the host for a semaphore.
    Acquire {
        /// Where.
        address: u64,
        /// Payload.
        payload: u32,
    },
}

/// One piece of a submission, not placed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Pushbuffer words.
    Segment(Vec<u8>),
    /// A control entry.
    Control {
        /// Opcode.
        opcode: u8,
        /// Operand.
        operand: u32,
    },
}

/// One submission, not placed yet.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Work {
    /// Its entries in order.
    pub pieces: Vec<Piece>,
    /// What it does in order.
    pub ops: Vec<Op>,
}

impl Work {
    /// Pushbuffer bytes so far.
    pub fn bytes(&self) -> u64 {
        self.pieces
            .iter()
            .map(|piece| match piece {
                Piece::Segment(bytes) => bytes.len() as u64,
                Piece::Control { .. } => 0,
            })
            .sum()
    }
}

/// Where each channel's tracking semaphore lies.
pub fn semaphore(channel: Channel) -> u64 {
    0x2_0460_fff0 + ((channel.gpu as u64) << 32) - 16 * channel.index as u64
}

/// The submission of `channel` with this number, counted from 0.
pub fn work(shape: &Shape, channel: Channel, number: u64) -> Work {
    let mut maker = Maker {
        rng: Rng::new(&[
            shape.seed,
            u64::from(shape.image),
            channel.number() as u64,
            number,
        ]),
        channel,
        number,
        set_up: number != 0,
        work: Work::default(),
    };
    if shape.launches_only {
        // One shape for the whole loop: only the payload differs.
        maker.rng = Rng::new(&[
            shape.seed,
            u64::from(shape.image),
            channel.number() as u64,
            u64::MAX,
        ]);
        let mut pb = Pushbuffer::new();
        if channel.unit() == Unit::Compute {
            maker.launch(&mut pb);
        } else {
            maker.copy(&mut pb);
        }
        maker.finish(pb, false);
        return maker.work;
    }
    let entries = if shape.burst > 1 {
        1 + maker.rng.below(u64::from(shape.burst))
    } else {
        1
    };
    let mut left = entries;
    while left > 0 {
        left = left.saturating_sub(maker.piece(shape, left));
        // A channel's pushbuffer memory must hold the whole submission.
        if left > 1 && maker.work.bytes() > MAX_BYTES {
            left = 1;
        }
    }
    maker.work
}

/// Makes `work`, a submission of a launch loop, the one with this number: only the payload differs.
pub fn set_payload(work: &mut Work, channel: Channel, number: u64) {
    // The payload is the third word from the end of a compute release's four, or before the copy class's launch.
    let from_end = match channel.unit() {
        Unit::Compute => 8,
        Unit::Copy => 12,
    };
    if let Some(Piece::Segment(bytes)) = work.pieces.last_mut() {
        let at = bytes.len() - from_end;
        bytes[at..at + 4].copy_from_slice(&((number + 1) as u32).to_le_bytes());
    }
}

/// A submission that has more bytes than this is brought to its end.
const MAX_BYTES: u64 = 2 << 20;

struct Maker {
    rng: Rng,
    channel: Channel,
    number: u64,
    set_up: bool,
    work: Work,
}

impl Maker {
    /// Adds one entry or, where `left` allows it and chance has it, more; returns how many.
    fn piece(&mut self, shape: &Shape, left: u64) -> u64 {
        // The last entry carries the release, so it is never a control entry.
        if left > 1 && self.rng.one_in(6) {
            let opcode = if self.rng.one_in(3) {
                CONTROL_EXTENDED_BASE
            } else {
                CONTROL_NOP
            };
            // The extended base stays 0: addresses of the run are below 2^40.
            let operand = if opcode == CONTROL_NOP {
                self.rng.next() as u32
            } else {
                0
            };
            self.work.pieces.push(Piece::Control { opcode, operand });
            return 1;
        }
        let mut pb = Pushbuffer::new();
        if !self.set_up {
            self.set_up = true;
            self.setup(&mut pb);
        }
        if shape.big_one_in != 0 && left == 1 && self.rng.one_in(shape.big_one_in) {
            self.upload(&mut pb);
        } else {
            self.operation(&mut pb);
        }
        // Methods may continue over an entry's end: split some in the middle.
        let split = left > 1 && self.rng.one_in(3);
        let pieces = if split { 2 } else { 1 };
        if left <= pieces {
            self.finish(pb, split);
        } else {
            self.push(pb, split);
        }
        pieces
    }

    fn push(&mut self, pb: Pushbuffer, split: bool) {
        let mut bytes = pb.into_bytes();
        if split && bytes.len() >= 8 {
            let at = 4 * (1 + self.rng.below(bytes.len() as u64 / 4 - 1)) as usize;
            let tail = bytes.split_off(at);
            self.work.pieces.push(Piece::Segment(bytes));
            bytes = tail;
        }
        self.work.pieces.push(Piece::Segment(bytes));
    }

    /// Ends the submission with its release.
    fn finish(&mut self, mut pb: Pushbuffer, split: bool) {
        let address = semaphore(self.channel);
        let payload = (self.number + 1) as u32;
        match self.channel.unit() {
            Unit::Compute => {
                pb.inc(
                    COMPUTE,
                    0x1b00,
                    &[(address >> 32) as u32, address as u32, payload, 0],
                );
            }
            Unit::Copy => {
                pb.inc(
                    COPY,
                    0x0240,
                    &[(address >> 32) as u32, address as u32, payload],
                );
                pb.inc(COPY, 0x0300, &[0x14]);
            }
        }
        self.work.ops.push(Op::Release { address, payload });
        self.push(pb, split);
    }

    /// What a channel's first submission begins with.
    fn setup(&mut self, pb: &mut Pushbuffer) {
        match self.channel.unit() {
            Unit::Compute => {
                pb.inc(COMPUTE, 0x0000, &[COMPUTE_CLASS]);
                pb.inc(COMPUTE, 0x0100, &[0]);
                pb.inc(COMPUTE, 0x0310, &[0x900]); // SET_SPA_VERSION
                pb.inc(COMPUTE, 0x0288, &[0x1_0040]); // SET_QMD_VERSION
                for reference in (0..64).rev() {
                    pb.inc(COMPUTE, 0x0248, &[0x21_0000 | reference]); // SET_CWD_REF_COUNTER
                }
            }
            Unit::Copy => pb.inc(COPY, 0x0000, &[COPY_CLASS]),
        }
    }

    fn operation(&mut self, pb: &mut Pushbuffer) {
        if self.channel.unit() == Unit::Copy {
            return match self.rng.below(8) {
                0 => self.fill(pb),
                1 => self.copy_lines(pb),
                _ => self.copy(pb),
            };
        }
        match self.rng.below(16) {
            0..6 => self.launch(pb),
            6 => self.graph(pb),
            7..11 => {
                let size = self
                    .rng
                    .pick(&[4u32, 8, 12, 64, 100, 256, 1024, 4096, 8192, 24576]);
                self.inline_data(pb, size);
            }
            11 => self.code(pb),
            12 => self.event(pb),
            13 => self.wait(pb),
            14 => self.invalidate(pb),
            _ => {
                // Padding and immediate data, as other clients of the driver have them.
                for _ in 0..self.rng.below(6) {
                    pb.nop();
                }
                pb.immediate(COMPUTE, 0x1698, 0x1000);
                let size = self.rng.pick(&[4u32, 16]);
                self.inline_data(pb, size);
            }
        }
    }

    fn device_address(&mut self, align: u64) -> u64 {
        (0x7f4f_0000_0000 + self.rng.below(1 << 30)) & !(align - 1)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.rng.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    fn qmd(&mut self, constants: u64, constants_size: u32) -> Qmd {
        let threads = self.rng.pick(&[
            [1, 1, 1],
            [32, 1, 1],
            [128, 1, 1],
            [256, 1, 1],
            [1024, 1, 1],
            [32, 4, 2],
        ]);
        let grid = if self.rng.one_in(4) {
            [
                1 + self.rng.below(9) as u32,
                1 + self.rng.below(9) as u32,
                1 + self.rng.below(9) as u32,
            ]
        } else {
            [1 + self.rng.below(70_000) as u32, 1, 1]
        };
        Qmd {
            grid,
            block: threads,
            registers: 16 + self.rng.below(240) as u32,
            shared: 1024 * (1 + self.rng.below(48) as u32),
            barriers: 1 + self.rng.below(4) as u32,
            program: 0x7f4f_4f7a_0000 + 0x100 * self.rng.below(4096),
            constants,
            constants_size,
        }
    }

    /// Constant bank, arguments and QMD written inline at fresh addresses; returns the QMD's address.
    fn write_kernel(&mut self, pb: &mut Pushbuffer, qmd_address: u64, constants: u64) {
        let words = 2 * (1 + self.rng.below(8) as usize);
        let args = self.bytes(4 * words);
        let fields = self.qmd(
            constants,
            (0x210 + args.len() as u32).next_multiple_of(0x100),
        );
        let mut bank = self.bytes(0x210);
        for (i, value) in fields.block.iter().chain(&fields.grid).enumerate() {
            bank[4 * i..4 * i + 4].copy_from_slice(&value.to_le_bytes());
        }
        pb.inline_write(COMPUTE, constants, &bank);
        pb.inline_write(COMPUTE, constants + 0x210, &args);
        let qmd: Vec<u8> = fields
            .to_words()
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        pb.inline_write(COMPUTE, qmd_address, &qmd);
        self.work.ops.push(Op::Launch {
            qmd: qmd_address,
            fields,
            args,
        });
    }

    fn send(&mut self, pb: &mut Pushbuffer, qmd_address: u64) {
        pb.inc(COMPUTE, 0x02b4, &[(qmd_address >> 8) as u32]); // SEND_PCAS_A
        pb.inc(COMPUTE, 0x02c0, &[0xa]); // SEND_SIGNALING_PCAS2_B = INVALIDATE_PREFETCH_COPY_SCHEDULE
    }

    fn launch(&mut self, pb: &mut Pushbuffer) {
        let qmd = 0x2_04e1_0000 + 0x800 * self.rng.below(512);
        let constants = 0x7f4f_4e20_0000 + 0x1000 * self.rng.below(256);
        self.write_kernel(pb, qmd, constants);
        self.send(pb, qmd);
    }

    /// A small graph: its kernels written first, then all launched by the addresses of their QMDs.
    fn graph(&mut self, pb: &mut Pushbuffer) {
        let (qmds, constants) = (0x2_04c0_0000, 0x7f4f_4800_0000);
        let nodes = 2 + self.rng.below(6);
        for node in 0..nodes {
            self.write_kernel(pb, qmds + 0x400 * node, constants + 0x1000 * node);
        }
        for node in 0..nodes {
            self.send(pb, qmds + 0x400 * node);
        }
    }

    /// What an upload of a graph of several hundred kernels is: constant banks and QMDs, about 1 MiB, then a launch of
    /// the first by its address.
    fn upload(&mut self, pb: &mut Pushbuffer) {
        let (qmds, constants) = (0x2_0500_0000, 0x7f4f_5000_0000);
        let from = self.work.ops.len();
        let mut node = 0;
        while pb.len() < 1 << 20 {
            self.write_kernel(pb, qmds + 0x400 * node, constants + 0x1000 * node);
            node += 1;
        }
        // Only the first is launched here.
        self.work.ops.truncate(from + 1);
        self.send(pb, qmds);
    }

    fn inline_data(&mut self, pb: &mut Pushbuffer, size: u32) {
        let dst = self.device_address(256);
        let data = self.bytes(size as usize);
        pb.inline_write(COMPUTE, dst, &data);
        self.work.ops.push(Op::Inline { dst, bytes: size });
    }

    fn code(&mut self, pb: &mut Pushbuffer) {
        let dst = 0x7f4f_4f7a_0000 + 0x100 * self.rng.below(4096);
        let len = 128 * (1 + self.rng.below(20) as usize);
        let code = self.bytes(len);
        pb.inline_write(COMPUTE, dst, &code);
        pb.inc(COMPUTE, 0x1698, &[1]); // INVALIDATE_SHADER_CACHES_NO_WFI: instructions
        self.work.ops.push(Op::Inline {
            dst,
            bytes: len as u32,
        });
    }

    fn event(&mut self, pb: &mut Pushbuffer) {
        let address = 0x2_0480_ff00 + 16 * self.rng.below(15);
        let payload = self.rng.below(1 << 20) as u32;
        pb.inc(
            COMPUTE,
            0x1b00,
            &[(address >> 32) as u32, address as u32, payload, 0],
        );
        self.work.ops.push(Op::Release { address, payload });
    }

    fn wait(&mut self, pb: &mut Pushbuffer) {
        let address = 0x2_0480_ff00 + 16 * self.rng.below(15);
        let payload = self.rng.below(1 << 20) as u32;
        // SEM_ADDR_LO.. SEM_EXECUTE: ACQ_STRICT_GEQ, ACQUIRE_SWITCH_TSG.
        pb.inc(
            0,
            0x005c,
            &[address as u32, (address >> 32) as u32, payload, 0, 0x1002],
        );
        self.work.ops.push(Op::Acquire { address, payload });
    }

    fn invalidate(&mut self, pb: &mut Pushbuffer) {
        let what = self.rng.pick(&[1, 0x1000, 0x1001]);
        pb.inc(COMPUTE, 0x1698, &[what]);
    }

    fn copy(&mut self, pb: &mut Pushbuffer) {
        let (src, dst) = (self.device_address(4), self.device_address(4));
        let bytes = 1 + self.rng.below(16 << 20) as u32;
        pb.inc(
            COPY,
            0x0400,
            &[
                (src >> 32) as u32,
                src as u32,
                (dst >> 32) as u32,
                dst as u32,
            ],
        );
        pb.inc(COPY, 0x0418, &[bytes]);
        pb.inc(COPY, 0x0300, &[0x182]);
        self.work.ops.push(Op::Copy {
            src,
            dst,
            bytes,
            lines: 1,
        });
    }

    fn copy_lines(&mut self, pb: &mut Pushbuffer) {
        let (src, dst) = (self.device_address(4), self.device_address(4));
        let bytes = 1 + self.rng.below(4096) as u32;
        let lines = 2 + self.rng.below(100) as u32;
        let pitches = [
            4096 + 256 * self.rng.below(16) as u32,
            4096 + 256 * self.rng.below(16) as u32,
        ];
        pb.inc(
            COPY,
            0x0400,
            &[
                (src >> 32) as u32,
                src as u32,
                (dst >> 32) as u32,
                dst as u32,
            ],
        );
        pb.inc(COPY, 0x0410, &[pitches[0], pitches[1], bytes, lines]);
        pb.inc(COPY, 0x0300, &[0x382]); // MULTI_LINE_ENABLE
        self.work.ops.push(Op::Copy {
            src,
            dst,
            bytes,
            lines,
        });
    }

    fn fill(&mut self, pb: &mut Pushbuffer) {
        let dst = self.device_address(4);
        let words = 1 + self.rng.below(1 << 20) as u32;
        let pattern = self.rng.next() as u32;
        pb.inc(COPY, 0x0700, &[pattern]); // SET_REMAP_CONST_A
        pb.inc(COPY, 0x0708, &[0x0003_0004]); // SET_REMAP_COMPONENTS: DST_X = CONST_A, COMPONENT_SIZE = FOUR
        pb.inc(COPY, 0x0408, &[(dst >> 32) as u32, dst as u32]);
        pb.inc(COPY, 0x0418, &[words]);
        pb.inc(COPY, 0x0300, &[0x582]); // REMAP_ENABLE
        self.work.ops.push(Op::Fill {
            dst,
            pattern,
            words,
        });
    }
}
