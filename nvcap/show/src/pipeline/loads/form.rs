//! The form of one ring entry, which tells whether it can be part of what libcuda writes when it makes a context or loads a module.
//!
//! Seen of driver 580.159.04 on an H100 (docs/decoding.md, "Module loads"): each inline write is an entry of its own with a
//! semaphore release behind it, and so is each invalidation of caches.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use nvcap_decode::record::Segment;
use nvcap_decode::wire::entry;
use nvcap_decode::wire::stream::{Item, Stream};
use nvcap_decode::wire::words::u64_at;

/// The subchannels on which libcuda has compute and copies.
const COMPUTE: u8 = 1;
const COPY: u8 = 4;
/// Fields of INVALIDATE_SHADER_CACHES_NO_WFI: INSTRUCTION and CONSTANT.
const INSTRUCTION: u32 = 1;
const CONSTANT: u32 = 0x1000;
/// The most bytes of a write that are read as addresses.
const MOST_TABLE: usize = 64 << 10;

/// Size of the memory in which a module's constants lie beside its variables.
const CHUNK: u64 = 2 << 20;

/// Returns the address of the memory, by [`CHUNK`], that an address lies in.
pub(super) const fn chunk(address: u64) -> u64 {
    address & !(CHUNK - 1)
}

/// An inline write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub dst: u64,
    pub bytes: u64,
    /// Words that can be addresses, if all of the write has such.
    pub table: Vec<u64>,
    pub is_code: bool,
    /// Functions in its data.
    pub functions: Functions,
    /// True if a macro repeats a word.
    pub is_fill: bool,
}

/// Effects of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Form {
    pub writes: Vec<Write>,
    /// A copy engine's transfer: destination and bytes, and whether it has a source.
    pub copy: Option<(u64, u64, bool)>,
    /// Semaphores that it waits for, and those that it releases.
    pub waits: Vec<(u64, u32)>,
    pub releases: Vec<(u64, u32)>,
    /// True if the entry invalidates caches of instructions, of constants.
    pub instruction: bool,
    pub constant: bool,
    /// True if the entry does something else: launches, binds, whatever.
    pub other: bool,
}

impl Form {
    /// Tells whether the entry closes a load: it invalidates caches behind code or constants that were written. An entry that writes something
    /// itself, as the upload of a graph does, closes a load only by the driver's table.
    pub(super) fn closes(&self) -> bool {
        !self.other
            && (self.instruction || self.constant)
            && (self.writes.is_empty() || self.is_table())
    }

    /// Tells whether the entry writes the table of a context: a header of 24 B, and 32 B behind its begin what it points to.
    pub(super) fn is_table(&self) -> bool {
        match &*self.writes {
            [header, entries] => header.bytes == 24 && entries.dst == header.dst.wrapping_add(32),
            _ => false,
        }
    }

    /// Tells whether the entry has nothing but semaphores.
    pub(super) fn is_idle(&self) -> bool {
        !self.other && self.writes.is_empty() && self.copy.is_none() && !self.closes()
    }

    /// Returns the memory, by [`CHUNK`], to which it writes code.
    pub(super) fn code(&self) -> impl Iterator<Item = u64> {
        let code = self.writes.iter().filter(|w| w.is_code);
        code.map(|w| chunk(w.dst))
    }

    pub(super) fn of(segment: &Segment) -> Self {
        let mut form = Self::default();
        let len = entry::len(segment.entry);
        if len == 0 || !segment.holes.is_empty() {
            form.other = true;
            return form;
        }
        let mut stream = Stream::default();
        let mut regs = Regs::default();
        for item in stream.runs(&segment.bytes, len, &segment.holes) {
            let Item::Run(run) = item else {
                form.other = true;
                return form;
            };
            if run.subchannel == COMPUTE && run.address == LOAD_INLINE_DATA {
                form.data(run.data);
                continue;
            }
            for write in run.writes() {
                let known = match (run.subchannel, write.address) {
                    (_, ..0x100) => form.host(&mut regs, write.address, write.data),
                    (COMPUTE, _) => form.compute(&mut regs, write.address, write.data),
                    (COPY, _) => form.copies(&mut regs, write.address, write.data),
                    _ => false,
                };
                if !known {
                    form.other = true;
                    return form;
                }
            }
        }
        form.other |= form.writes.len() > 1 && !form.is_table();
        form
    }

    fn host(&mut self, regs: &mut Regs, address: u16, data: u32) -> bool {
        match address {
            0x5c => regs.sem.0 = data,
            0x60 => regs.sem.1 = data,
            0x64 => regs.sem.2 = data,
            0x68 => {}
            // SEM_EXECUTE: an acquire of either order.
            0x6c => match data & 7 {
                0 | 2 | 3 => self.waits.push(regs.sem()),
                1 => self.releases.push(regs.sem()),
                _ => return false,
            },
            _ => return false,
        }
        true
    }

    fn compute(&mut self, regs: &mut Regs, address: u16, data: u32) -> bool {
        match address {
            0x180 => regs.line = data,
            0x184 => regs.lines = data,
            0x188 => regs.out.1 = data,
            0x18c => regs.out.0 = data,
            LAUNCH_DMA => {
                self.writes.push(Write {
                    dst: regs.out(),
                    bytes: u64::from(regs.line) * u64::from(regs.lines),
                    table: Vec::new(),
                    is_code: false,
                    functions: Functions::default(),
                    is_fill: false,
                });
            }
            // The memset macro.
            0x3800 => {}
            0x3804 => match self.writes.last_mut() {
                Some(write) => write.is_fill = true,
                None => return false,
            },
            0x1698 => {
                self.instruction |= data & INSTRUCTION != 0;
                self.constant |= data & CONSTANT != 0;
            }
            // INVALIDATE_SHADER_CACHES and INVALIDATE_TEXTURE_DATA_CACHE.
            0x021c | 0x1338 => {}
            0x1b00 => regs.sem.1 = data,
            0x1b04 => regs.sem.0 = data,
            0x1b08 => regs.sem.2 = data,
            0x1b0c => self.releases.push(regs.sem()),
            _ => return false,
        }
        true
    }

    fn copies(&mut self, regs: &mut Regs, address: u16, data: u32) -> bool {
        match address {
            0x240 => regs.sem.1 = data,
            0x244 => regs.sem.0 = data,
            0x248 => regs.sem.2 = data,
            0x408 => regs.out.1 = data,
            0x40c => regs.out.0 = data,
            0x418 => regs.line = data,
            0x41c => regs.lines = data,
            0x700 => regs.remap.0 = data,
            0x704 => regs.remap.1 = data,
            0x708 => regs.remap.2 = data,
            // LAUNCH_DMA: bits 1:0 the transfer, 4:3 the semaphore, 9 several lines, 10 the remapping.
            0x300 => {
                if data & 3 != 0 {
                    let fills = data >> 10 & 1 != 0;
                    let element = match fills {
                        true => ((regs.remap.2 >> 16 & 3) + 1) * ((regs.remap.2 >> 24 & 3) + 1),
                        false => 1,
                    };
                    if self.copy.is_some() {
                        return false;
                    }
                    let lines = if data >> 9 & 1 != 0 { regs.lines } else { 1 };
                    let bytes = u64::from(regs.line) * u64::from(lines) * u64::from(element);
                    self.copy = Some((regs.out(), bytes, !fills));
                }
                if data >> 3 & 3 != 0 {
                    self.releases.push(regs.sem());
                }
            }
            0x400 | 0x404 | 0x410 | 0x414 => {}
            _ => return false,
        }
        true
    }

    /// Takes data of the write that was begun last.
    fn data(&mut self, data: &[u8]) {
        let Some(write) = self.writes.last_mut() else {
            self.other = true;
            return;
        };
        // A NOP of Volta and later in whole lines of instructions, as the decoder tells code.
        write.is_code |= data.len() >= 128
            && write.bytes.is_multiple_of(128)
            && data.chunks_exact(16).any(|i| i.starts_with(&NOP));
        if write.is_code {
            write.functions.add(data);
        }
        if !write.is_code
            && write.bytes == data.len() as u64
            && write.bytes.is_multiple_of(8)
            && data.len() <= MOST_TABLE
        {
            let words = (0..data.len()).step_by(8).filter_map(|at| u64_at(data, at));
            write.table = words.filter(|w| (0x1_0000..1 << 57).contains(w)).collect();
        }
    }
}

/// Functions in code that comes in pieces. A compiler ends each with a branch to itself, and fills up with NOPs to the next, which begins a
/// whole line of instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Functions {
    /// Bytes so far.
    bytes: u64,
    ended: u64,
    /// True if nothing but NOPs has come since a branch to itself.
    is_end: bool,
    /// True if a piece did not end with an instruction.
    is_torn: bool,
    /// Hash of the pieces.
    hash: u64,
}

impl Functions {
    fn add(&mut self, data: &[u8]) {
        self.is_torn |= !data.len().is_multiple_of(INSTRUCTION_BYTES);
        for instruction in data.chunks_exact(INSTRUCTION_BYTES) {
            // Behind a function's NOPs the driver writes zeros.
            if !instruction.starts_with(&NOP) && instruction.iter().any(|byte| *byte != 0) {
                self.ended += u64::from(self.is_end && self.bytes.is_multiple_of(LINE));
                self.is_end = is_branch_to_itself(instruction);
            }
            self.bytes += INSTRUCTION_BYTES as u64;
        }
        let mut hash = DefaultHasher::new();
        (self.hash, data).hash(&mut hash);
        self.hash = hash.finish();
    }

    /// Their number in code of so many bytes; `None` where not all of it came, or its end is none of a function.
    pub(super) fn of(&self, bytes: u64) -> Option<u64> {
        (self.is_end && !self.is_torn && self.bytes == bytes).then_some(self.ended + 1)
    }

    /// Hash of code of so many bytes; `None` where not all of it came.
    pub(super) fn hash(&self, bytes: u64) -> Option<u64> {
        (!self.is_torn && self.bytes == bytes).then_some(self.hash)
    }
}

/// BRA with a displacement to its own first byte, in bytes (Volta to Ada) or words of 4 (Hopper and later).
fn is_branch_to_itself(instruction: &[u8]) -> bool {
    let displacement = instruction.get(4..8);
    instruction.starts_with(&BRA)
        && [-16_i32, -4]
            .iter()
            .any(|d| displacement == Some(&d.to_le_bytes()))
}

/// Tells whether an entry launches kernels: SEND_PCAS_A and what follows it, or an inline QMD.
pub(super) fn launches(segment: &Segment) -> bool {
    let mut stream = Stream::default();
    let len = entry::len(segment.entry);
    stream.runs(&segment.bytes, len, &segment.holes).any(|item| {
        matches!(item, Item::Run(run) if run.subchannel == COMPUTE && LAUNCHES.contains(&run.address))
    })
}

/// Methods that begin a launch.
const LAUNCHES: [u16; 3] = [0x2b4, 0x2bc, 0x2c0];
const LAUNCH_DMA: u16 = 0x1b0;
const LOAD_INLINE_DATA: u16 = 0x1b4;
/// Bytes of an instruction, and of a line of them, with which functions begin.
const INSTRUCTION_BYTES: usize = 16;
const LINE: u64 = 128;
/// BRA without a condition.
const BRA: [u8; 2] = [0x47, 0x79];
const NOP: [u8; 12] = [0x18, 0x79, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[derive(Default)]
struct Regs {
    line: u32,
    lines: u32,
    /// Lower and upper half of the destination.
    out: (u32, u32),
    /// Lower and upper half of a semaphore's address, and its payload.
    sem: (u32, u32, u32),
    remap: (u32, u32, u32),
}

impl Regs {
    fn out(&self) -> u64 {
        u64::from(self.out.1 & 0x1ff_ffff) << 32 | u64::from(self.out.0)
    }

    fn sem(&self) -> (u64, u32) {
        let address = u64::from(self.sem.1 & 0x1ff_ffff) << 32 | u64::from(self.sem.0);
        (address, self.sem.2)
    }
}
