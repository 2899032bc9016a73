//! The content of one submission: from (seed, image, channel, number) alone, so that any thread or process may form it.
//!
//! Each submission is one or more operations as libcuda forms them on CUDA 13.0, ending with a semaphore release whose
//! payload is the submission's number plus one. Knows no addresses of rings or pushbuffers: [`crate::plan`] places the
//! pieces.

use nvcap_decode::decode::encode::Pushbuffer;
use nvcap_decode::decode::event::{ConstantBank, QmdRelease};
use nvcap_decode::decode::view::View;
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::entry::Opcode;
use nvcap_decode::wire::header::Step;

use crate::form::{
    ARGUMENTS, COMPUTE, COMPUTE_CLASS, COPY, COPY_CLASS, acquire, compute, copy, halves, inline,
    kernel, release, send,
};
use crate::kernels;
use crate::layout::{Channel, EVENTS, Unit, releases};
use crate::rng::Rng;

/// The parameters of the submissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Everything follows from it.
    pub seed: u64,
    /// Number of the program image in the run: 0 for the first, others after an exec or in a child of its own.
    pub image: u32,
    /// Entries of a submission at most.
    pub burst: u32,
    /// One submission in this many is an upload of about 1 MiB (0: none).
    pub big_one_in: u64,
    /// Every submission is a kernel launch of one shape: for a launch loop.
    pub launches_only: bool,
    /// Launches are of the functions of [`crate::kernels`].
    pub kernels: bool,
    /// Number of submissions of a channel after which it launches those of one module more (0: of the first alone).
    pub module_every: u64,
    /// Their code is written by the first submission of each channel.
    pub code: bool,
    /// Every submission is one launch with such an end, or one copy: for [`crate::timed`].
    pub timed: Option<Ends>,
    /// Launches are rounds of kernels and a collective.
    pub rounds: Option<Rounds>,
}

/// Rounds of a rank of a job: each is some kernels, and a collective behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// The rank.
    pub rank: u32,
    /// Kernels of a round, in every rank.
    pub kernels: u64,
    /// Kernels more, in this one.
    pub extra: u64,
    /// Rounds of a step; its last collective is of another kind.
    pub of_step: u64,
}

/// Place of a launch in its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A kernel: its number in the round.
    Kernel(u64),
    /// A kernel that other ranks do not have; of the last one it is told that it is.
    Extra(bool),
    /// The collective that ends the round.
    Collective,
}

impl Rounds {
    /// Function of a kernel that other ranks do not have.
    pub const EXTRA: u64 = kernels::COUNT - 1;

    /// Launches of a round.
    #[must_use]
    pub fn len(self) -> u64 {
        self.kernels + self.extra + 1
    }

    /// Returns false: a round has its collective.
    #[must_use]
    pub fn is_empty(self) -> bool {
        false
    }

    /// The round of a launch, and its place there.
    #[must_use]
    pub fn of(self, number: u64) -> (u64, Part) {
        let (round, at) = (number / self.len(), number % self.len());
        let part = match at {
            at if at < self.kernels => Part::Kernel(at),
            at if at < self.kernels + self.extra => {
                Part::Extra(at + 1 == self.kernels + self.extra)
            }
            _ => Part::Collective,
        };
        (round, part)
    }

    /// The first round of a step.
    #[must_use]
    pub fn begins_step(self, round: u64) -> bool {
        round.is_multiple_of(self.of_step)
    }

    /// A launch before which names are waited for: those of a round, and, of a step, those of all functions.
    #[must_use]
    pub fn awaits_names(self, number: u64) -> bool {
        number == self.len() || number == self.of_step * self.len()
    }

    /// The function that a launch runs.
    #[must_use]
    pub fn function(self, number: u64) -> u64 {
        match self.of(number) {
            (_, Part::Kernel(at)) => at % Self::EXTRA,
            (_, Part::Extra(_)) => Self::EXTRA,
            (round, Part::Collective) => kernels::collective(self.begins_step(round + 1)),
        }
    }

    /// Address of the communicator's structure, another one in each rank.
    #[must_use]
    pub fn communicator(self) -> u64 {
        0x7f20_0000_0000 + 0x10_0000 * u64::from(self.rank)
    }
}

/// Action of a launch at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Releases a word ([`released`]).
    Released,
    /// Nothing.
    Untold,
}

/// An operation of a submission, for tests of decoded output: the original of the encoded words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A kernel launch with its arguments.
    Launch {
        /// GPU address of the QMD.
        qmd: u64,
        /// The fields of the QMD.
        fields: Box<View>,
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
        /// Number of words.
        words: u32,
    },
    /// Data of the user's (or code) written inline.
    Inline {
        /// Destination.
        dst: u64,
        /// Number of bytes.
        bytes: u32,
    },
    /// A semaphore release.
    Release {
        /// Address of the semaphore.
        address: u64,
        /// Payload.
        payload: u32,
    },
    /// A wait of the host for a semaphore.
    Acquire {
        /// Address of the semaphore.
        address: u64,
        /// Payload.
        payload: u32,
    },
}

/// One piece of a submission, without an address yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Pushbuffer words.
    Segment(Vec<u8>),
    /// A control entry.
    Control {
        /// Opcode.
        opcode: Opcode,
        /// Operand.
        operand: u32,
    },
}

/// One submission, without addresses yet.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Work {
    /// Its entries in order.
    pub pieces: Vec<Piece>,
    /// Its operations in order.
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

/// Address of a channel's tracking semaphore.
pub fn semaphore(channel: Channel) -> u64 {
    0x2_0460_fff0 + ((channel.gpu as u64) << 32) - 16 * channel.index as u64
}

/// Words of a channel that its launches release in turn.
pub const RELEASES: u64 = 8;

/// The word that the launch with this number releases at its end, and its payload. As in CUDA, a channel's launches use its
/// words in turn from the highest address down, a payload grows by 4 from use to use of a word, and the submission writes the
/// payload less 1 to it before the launch.
pub fn released(channel: Channel, number: u64) -> (u64, u32) {
    let words = releases(channel.gpu) + 8 * RELEASES * channel.index as u64;
    let address = words + 4 + 8 * (RELEASES - 1 - number % RELEASES);
    (address, 6 + 4 * (number / RELEASES) as u32)
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
        kernels: shape.kernels,
        modules: kernels::modules(shape.module_every, number),
        rounds: shape.rounds,
        code: shape.code,
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
    if let Some(ends) = shape.timed {
        let mut pb = Pushbuffer::new();
        if number == 0 {
            maker.setup(&mut pb);
        }
        if channel.unit() == Unit::Compute {
            maker.timed_launch(&mut pb, ends);
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

/// Changes `work`, a submission of a launch loop, into the one with this number: only the payload differs.
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

/// A submission is ended once it exceeds this many bytes.
const MAX_BYTES: u64 = 2 << 20;

struct Maker {
    rng: Rng,
    channel: Channel,
    number: u64,
    set_up: bool,
    kernels: bool,
    /// Modules of which it launches functions.
    modules: u64,
    rounds: Option<Rounds>,
    code: bool,
    work: Work,
}

impl Maker {
    /// Adds one entry or, if `left` allows it, at random more; returns how many.
    fn piece(&mut self, shape: &Shape, left: u64) -> u64 {
        // The last entry carries the release, so it is never a control entry.
        if left > 1 && self.rng.one_in(6) {
            let opcode = if self.rng.one_in(3) {
                Opcode::SET_PB_SEGMENT_EXTENDED_BASE
            } else {
                Opcode::NOP
            };
            // The extended base stays 0: addresses of the run are below 2^40.
            let operand = if opcode == Opcode::NOP {
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
        // Methods may continue across an entry's end: split some in the middle.
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
        let mut bytes = pb.bytes();
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
        release(&mut pb, self.channel.unit(), address, payload);
        self.work.ops.push(Op::Release { address, payload });
        self.push(pb, split);
    }

    /// The beginning of a channel's first submission.
    fn setup(&mut self, pb: &mut Pushbuffer) {
        match self.channel.unit() {
            Unit::Compute => {
                pb.bind(COMPUTE, COMPUTE_CLASS);
                compute(pb, "NO_OPERATION", &[0]);
                compute(pb, "SET_SPA_VERSION", &[0x900]);
                compute(pb, "SET_QMD_VERSION", &[0x1_0040]);
                for reference in (0..64).rev() {
                    compute(pb, "SET_CWD_REF_COUNTER", &[0x21_0000 | reference]);
                }
                for number in (0..kernels::COUNT).filter(|_| self.code) {
                    // As libcuda writes it: with zeros behind it.
                    let bytes = [kernels::code(number).as_slice(), &[0; 128]].concat();
                    let dst = kernels::program(number);
                    inline(pb, dst, &bytes);
                    let bytes = bytes.len() as u32;
                    self.work.ops.push(Op::Inline { dst, bytes });
                }
            }
            Unit::Copy => {
                pb.bind(COPY, COPY_CLASS);
            }
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
                // Padding and immediate data, as used by other clients of the driver.
                for _ in 0..self.rng.below(6) {
                    pb.raw(0);
                }
                pb.method(Step::Immediate, COMPUTE, 0x1698, &[0x1000]);
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

    fn launch_of(&mut self, constants: u64, constants_size: u32) -> View {
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
        let (registers, program) = if self.kernels {
            let number = match self.rounds {
                Some(rounds) => rounds.function(self.number),
                None => kernels::pick(&mut self.rng, self.modules),
            };
            (kernels::registers(number), kernels::program(number))
        } else {
            let registers = 16 + self.rng.below(240) as u32;
            (registers, 0x7f4f_4f7a_0000 + 0x100 * self.rng.below(4096))
        };
        View {
            version: (4, 0),
            grid,
            block: threads,
            registers,
            shared_bytes: 1024 * (1 + self.rng.below(48) as u32),
            barriers: 1 + self.rng.below(4) as u32,
            program: GpuVa(program),
            constant_banks: vec![ConstantBank {
                index: 0,
                address: GpuVa(constants),
                size: constants_size,
            }],
            ..View::default()
        }
    }

    /// Constant bank, arguments and QMD written inline at fresh addresses; returns the QMD's address.
    fn write_kernel(&mut self, pb: &mut Pushbuffer, qmd_address: u64, constants: u64) {
        self.write_kernel_releasing(pb, qmd_address, constants, Vec::new());
    }

    fn write_kernel_releasing(
        &mut self,
        pb: &mut Pushbuffer,
        qmd_address: u64,
        constants: u64,
        releases: Vec<QmdRelease>,
    ) {
        let words = 2 * (1 + self.rng.below(8) as usize);
        let mut args = self.bytes(4 * words);
        if let Some(rounds) = self.rounds
            && let (_, Part::Collective) = rounds.of(self.number)
        {
            args[..8].copy_from_slice(&rounds.communicator().to_le_bytes());
        }
        let size = (ARGUMENTS as u32 + args.len() as u32).next_multiple_of(0x100);
        let fields = View {
            releases,
            ..self.launch_of(constants, size)
        };
        let mut bank = self.bytes(ARGUMENTS as usize);
        kernel(pb, qmd_address, &fields, &mut bank, &args);
        self.work.ops.push(Op::Launch {
            qmd: qmd_address,
            fields: Box::new(fields),
            args,
        });
    }

    fn launch(&mut self, pb: &mut Pushbuffer) {
        let qmd = 0x2_04e1_0000 + 0x800 * self.rng.below(512);
        let constants = 0x7f4f_4e20_0000 + 0x1000 * self.rng.below(256);
        self.write_kernel(pb, qmd, constants);
        send(pb, qmd);
    }

    /// A launch with its end, prepared as in CUDA.
    fn timed_launch(&mut self, pb: &mut Pushbuffer, ends: Ends) {
        let slot = self.number % 512;
        let qmd = 0x2_04e1_0000 + 0x800 * slot;
        let constants = 0x7f4f_4e20_0000 + 0x1000 * (slot % 256);
        let (address, payload) = released(self.channel, self.number);
        let release = QmdRelease {
            address: GpuVa(address),
            payload: u64::from(payload),
        };
        let releases = match ends {
            Ends::Released => vec![release],
            Ends::Untold => Vec::new(),
        };
        self.write_kernel_releasing(pb, qmd, constants, releases);
        if ends == Ends::Released {
            inline(pb, address, &(payload - 1).to_le_bytes());
        }
        send(pb, qmd);
    }

    /// A small graph: its kernels are written first, then all are launched by the addresses of their QMDs.
    fn graph(&mut self, pb: &mut Pushbuffer) {
        let (qmds, constants) = (0x2_04c0_0000, 0x7f4f_4800_0000);
        let nodes = 2 + self.rng.below(6);
        for node in 0..nodes {
            self.write_kernel(pb, qmds + 0x400 * node, constants + 0x1000 * node);
        }
        for node in 0..nodes {
            send(pb, qmds + 0x400 * node);
        }
    }

    /// Like the upload of a graph of several hundred kernels: constant banks and QMDs, about 1 MiB, then a launch of the
    /// first by its address.
    fn upload(&mut self, pb: &mut Pushbuffer) {
        let (qmds, constants) = (0x2_0500_0000, 0x7f4f_5000_0000);
        let from = self.work.ops.len();
        let mut node = 0;
        while pb.words().len() < 1 << 18 {
            self.write_kernel(pb, qmds + 0x400 * node, constants + 0x1000 * node);
            node += 1;
        }
        // Only the first is launched here.
        self.work.ops.truncate(from + 1);
        send(pb, qmds);
    }

    fn inline_data(&mut self, pb: &mut Pushbuffer, size: u32) {
        let dst = self.device_address(256);
        let data = self.bytes(size as usize);
        inline(pb, dst, &data);
        self.work.ops.push(Op::Inline { dst, bytes: size });
    }

    fn code(&mut self, pb: &mut Pushbuffer) {
        let dst = 0x7f4f_4f7a_0000 + 0x100 * self.rng.below(4096);
        let len = 128 * (1 + self.rng.below(20) as usize);
        let code = self.bytes(len);
        inline(pb, dst, &code);
        compute(pb, "INVALIDATE_SHADER_CACHES_NO_WFI", &[1]); // instructions
        self.work.ops.push(Op::Inline {
            dst,
            bytes: len as u32,
        });
    }

    fn event(&mut self, pb: &mut Pushbuffer) {
        let address = EVENTS + 0xf00 + 16 * self.rng.below(15);
        let payload = self.rng.below(1 << 20) as u32;
        release(pb, Unit::Compute, address, payload);
        self.work.ops.push(Op::Release { address, payload });
    }

    fn wait(&mut self, pb: &mut Pushbuffer) {
        let address = EVENTS + 0xf00 + 16 * self.rng.below(15);
        let payload = self.rng.below(1 << 20) as u32;
        acquire(pb, address, payload);
        self.work.ops.push(Op::Acquire { address, payload });
    }

    fn invalidate(&mut self, pb: &mut Pushbuffer) {
        let what = self.rng.pick(&[1, 0x1000, 0x1001]);
        compute(pb, "INVALIDATE_SHADER_CACHES_NO_WFI", &[what]);
    }

    fn copy(&mut self, pb: &mut Pushbuffer) {
        let (src, dst) = (self.device_address(4), self.device_address(4));
        let bytes = 1 + self.rng.below(16 << 20) as u32;
        copy(pb, "OFFSET_IN_UPPER", &[halves(src), halves(dst)].concat());
        copy(pb, "LINE_LENGTH_IN", &[bytes]);
        copy(pb, "LAUNCH_DMA", &[0x182]);
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
        copy(pb, "OFFSET_IN_UPPER", &[halves(src), halves(dst)].concat());
        copy(pb, "PITCH_IN", &[pitches[0], pitches[1], bytes, lines]);
        copy(pb, "LAUNCH_DMA", &[0x382]); // MULTI_LINE_ENABLE
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
        copy(pb, "SET_REMAP_CONST_A", &[pattern]);
        copy(pb, "SET_REMAP_COMPONENTS", &[0x0003_0004]); // DST_X = CONST_A, COMPONENT_SIZE = FOUR
        copy(pb, "OFFSET_OUT_UPPER", &halves(dst));
        copy(pb, "LINE_LENGTH_IN", &[words]);
        copy(pb, "LAUNCH_DMA", &[0x582]); // REMAP_ENABLE
        self.work.ops.push(Op::Fill {
            dst,
            pattern,
            words,
        });
    }
}
