//! Data carried in the pushbuffer: LAUNCH_DMA and LOAD_INLINE_DATA, and LOAD_CONSTANT_BUFFER.

use crate::decode::{
    class_dispatch::{Bits, Reg},
    classes::Family,
    event::{self, Direction, InlineContent, InlineData},
    qmd,
    shadow::{Shadow, Space},
    state::{Inline, Sub},
    view::plausible,
};
use crate::wire::GpuVa;
use crate::wire::words::u32_at;

/// Number of bytes at the start of inline data that an operation keeps.
const HEAD: usize = 64;
/// The most words that a macro may write. (libcuda uses a kernel from 8 KiB on.)
const MAX_FILL: u32 = 1 << 16;
/// A NOP of Volta and later, without its scheduling bits.
const NOP: [u8; 12] = [0x18, 0x79, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The longest write whose content is examined, if it came in several runs.
const MAX_LOOK: usize = 1 << 20;

/// Begins an inline transfer by LAUNCH_DMA.
pub(in crate::decode) fn begin(sub: &Sub, data: u32) -> Inline {
    let line_bytes = sub.get(Reg::LineLength);
    let lines = sub.get(Reg::LineCount);
    Inline {
        dst: sub.address(Reg::OutUpper, Reg::Out).0,
        line_bytes,
        lines,
        pitch: sub.get(Reg::PitchOut),
        linear: sub.plan.bits(Bits::DmaDstPitch, data) != 0,
        // Every line begins with a new word.
        words: u64::from(line_bytes.div_ceil(4)) * u64::from(lines),
        taken: 0,
        missing: 0,
        head: Vec::new(),
        fill: None,
        fetched: None,
        by_macro: false,
        launch: data,
    }
}

/// Tells whether CALL_MME_DATA at `address` belongs to the macro that fetches data. libcuda loads that macro as number 1.
pub(in crate::decode) const fn fetches(address: u16) -> bool {
    // CALL_MME_MACRO(0) is at 0x3800, and each pair of methods takes 8 bytes.
    address >> 3 & 0xff == 1
}

impl Inline {
    /// Takes a whole number of data words, up to the announced end.
    pub(in crate::decode) fn take(&mut self, data: &[u8], shadow: &mut Shadow, space: Space) {
        let left = self.words.saturating_sub(self.taken).saturating_mul(4);
        let data = data
            .get(..usize::try_from(left).unwrap_or(usize::MAX))
            .unwrap_or(data);
        if self.linear && self.lines == 1 {
            let at = self.taken * 4;
            let len = u64::from(self.line_bytes)
                .saturating_sub(at)
                .min(data.len() as u64) as usize;
            let bytes = data.get(..len).unwrap_or(data);
            shadow.write_part(space, self.dst.wrapping_add(at), bytes, self.taken == 0);
            self.look(bytes);
        } else {
            self.take_lines(data, shadow, space);
        }
        self.taken += data.len() as u64 / 4;
    }

    fn look(&mut self, bytes: &[u8]) {
        let room = HEAD.saturating_sub(self.head.len()).min(bytes.len());
        if room > 0 {
            self.head
                .extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    fn take_lines(&mut self, data: &[u8], shadow: &mut Shadow, space: Space) {
        let line_words = u64::from(self.line_bytes.div_ceil(4)).max(1);
        let mut word = self.taken;
        let mut rest = data;
        while !rest.is_empty() {
            let (line, in_line) = (word / line_words, word % line_words);
            let words = (line_words - in_line).min(rest.len() as u64 / 4);
            if words == 0 {
                return;
            }
            let (now, later) = rest.split_at((words as usize * 4).min(rest.len()));
            let at = in_line * 4;
            let len = u64::from(self.line_bytes)
                .saturating_sub(at)
                .min(now.len() as u64) as usize;
            let bytes = now.get(..len).unwrap_or(now);
            // The bytes of a block-linear destination are not consecutive at its address.
            if self.linear {
                let line_at = self
                    .dst
                    .wrapping_add(line.wrapping_mul(u64::from(self.pitch)));
                shadow.write_part(space, line_at.wrapping_add(at), bytes, at == 0);
            }
            self.look(bytes);
            word += words;
            rest = later;
        }
    }

    /// Handles the driver's memset macro: CALL_MME_MACRO gave the number of words, and CALL_MME_DATA gives the word that the macro sends to
    /// LOAD_INLINE_DATA `count` times. Returns whether this transfer waits for it.
    pub(in crate::decode) fn fill(
        &mut self,
        count: u32,
        pattern: u32,
        shadow: &mut Shadow,
        space: Space,
    ) -> bool {
        if self.taken != 0 || self.words != u64::from(count) || count == 0 || count > MAX_FILL {
            return false;
        }
        let words = vec![pattern.to_le_bytes(); count as usize];
        self.take(words.as_flattened(), shadow, space);
        self.fill = Some(pattern);
        true
    }

    /// Handles the driver's macro that fetches data: CALL_MME_MACRO gave the upper half of an address, and CALL_MME_DATA the lower half and
    /// now the number of words. The macro reads that many words there and sends them to LOAD_INLINE_DATA. Returns whether this transfer
    /// waits for it.
    pub(in crate::decode) fn fetch(
        &mut self,
        upper: u32,
        lower: u32,
        count: u32,
        shadow: &mut Shadow,
        space: Space,
    ) -> bool {
        if self.taken != 0 || self.words != u64::from(count) || count == 0 {
            return false;
        }
        let source = u64::from(upper & 0x1ff_ffff) << 32 | u64::from(lower);
        self.fetched = Some(source);
        self.taken = self.words;
        let len = self.line_bytes as usize;
        if self.linear
            && self.lines == 1
            && len <= MAX_LOOK
            && shadow.known(space, GpuVa(source), len) == len
        {
            let mut bytes = vec![0; len];
            if shadow.read(space, GpuVa(source), &mut bytes) {
                shadow.write(space, GpuVa(self.dst), &bytes);
                return true;
            }
        }
        let rows = u64::from(self.lines.saturating_sub(1)).saturating_mul(u64::from(self.pitch));
        let extent = rows.saturating_add(u64::from(self.line_bytes));
        shadow.forget_range(space, self.dst, extent);
        true
    }

    /// Skips `words` data words that could not be read.
    pub(in crate::decode) fn skip(&mut self, words: u32) {
        self.missing += u64::from(words);
        self.taken += u64::from(words);
    }

    /// Tells whether all announced data has come.
    pub(in crate::decode) fn complete(&self) -> bool {
        self.taken >= self.words
    }

    /// Returns the way in which the data reaches the engine.
    const fn data(&self) -> InlineData {
        match (self.fill, self.fetched) {
            (Some(_), _) => InlineData::Fill,
            (None, Some(_)) => InlineData::Fetched,
            (None, None) if self.by_macro && self.taken == 0 => InlineData::Macro,
            (None, None) => InlineData::Stream,
        }
    }

    /// Returns the number of bytes written, including missing ones.
    fn bytes(&self) -> u64 {
        if self.complete() || self.data() == InlineData::Macro {
            u64::from(self.line_bytes) * u64::from(self.lines)
        } else {
            self.taken * 4
        }
    }

    /// Returns the operation. `whole` is the data, if it came in one run.
    pub(in crate::decode) fn finish(
        self,
        sub: &mut Sub,
        whole: Option<&[u8]>,
        alone: bool,
        shadow: &mut Shadow,
        space: Space,
    ) -> event::Inline {
        let (bytes, data) = (self.bytes(), self.data());
        let mut content = None;
        if data == InlineData::Macro {
            let rows = u64::from(self.lines.saturating_sub(1)) * u64::from(self.pitch);
            shadow.forget_range(space, self.dst, rows + u64::from(self.line_bytes));
        } else if data == InlineData::Fetched {
            // libcuda fetches only the bytes of small copies by this macro.
            content = Some(InlineContent::Data);
        } else if self.linear && self.lines == 1 && self.missing == 0 && self.complete() {
            let len = self.line_bytes as usize;
            content = match whole {
                Some(data) => classify(sub, self.dst, data.get(..len).unwrap_or(data), alone),
                None => {
                    shadow.set_extent(space, self.dst, self.line_bytes);
                    let mut data = vec![0; len.min(MAX_LOOK)];
                    let read = shadow.read(space, GpuVa(self.dst), &mut data);
                    if read && len <= MAX_LOOK {
                        classify(sub, self.dst, &data, alone)
                    } else {
                        None
                    }
                }
            };
        }
        event::Inline {
            dst: GpuVa(self.dst),
            bytes,
            line_bytes: self.line_bytes,
            lines: self.lines,
            content,
            data,
            fill: self.fill,
            src: self.fetched.map(GpuVa),
            direction: Direction::HostToDevice,
            head: self.head,
            src_memory: None,
            dst_memory: None,
        }
    }
}

/// Returns the content of inline data, by its form; docs/decoding.md gives the rules and their evidence.
fn classify(sub: &mut Sub, dst: u64, data: &[u8], alone: bool) -> Option<InlineContent> {
    let compute = if sub.plan.family == Family::Compute {
        sub.plan.class
    } else {
        0
    };
    let bank_end = std::mem::take(&mut sub.bank_end);
    if is_qmd(compute, dst, data) {
        return Some(InlineContent::Qmd);
    }
    let arguments = super::launch::arguments_at(compute);
    if data.len() as u64 == arguments && is_geometry(data) {
        sub.bank_end = dst.wrapping_add(arguments);
        return Some(InlineContent::ConstantBank);
    }
    if bank_end != 0 && bank_end == dst {
        return Some(InlineContent::ConstantBank);
    }
    if is_code(data) {
        return Some(InlineContent::Code);
    }
    alone.then_some(InlineContent::Data)
}

/// SET_TEX_HEADER_POOL_A of compute and graphics classes: the upper part of the pool's address. B is the lower part, C the highest index.
const HEADER_POOL: u16 = 0x1574;
/// Length of a texture header, bytes.
const HEADER: u64 = 32;
/// Address and length of the place that libcuda reserves for the pool. Channels set the pool before a trace of a running process begins.
const LIBCUDA_POOL: (u64, u64) = (1 << 40, 64 << 20);

/// Tells whether a write consists of whole texture headers in the pool that the channel uses, or in libcuda's.
pub(in crate::decode) fn is_in_header_pool(sub: &Sub, dst: u64, bytes: u64) -> bool {
    let [upper, lower, last] = [0, 4, 8].map(|i| u64::from(sub.at(HEADER_POOL + i)));
    let set = ((upper & 0x1ff_ffff) << 32 | lower, (last + 1) * HEADER);
    let (start, len) = if set.0 == 0 { LIBCUDA_POOL } else { set };
    let offset = dst.wrapping_sub(start);
    let is_whole = |n: u64| n.is_multiple_of(HEADER);
    matches!(sub.plan.family, Family::Compute | Family::Graphics3d)
        && bytes > 0
        && is_whole(bytes)
        && is_whole(offset)
        && offset.checked_add(bytes).is_some_and(|end| end <= len)
}

/// Tells whether data may be a QMD: 256-byte aligned, of a QMD's size, with version bits that its class can have and dimensions that a grid
/// can have.
fn is_qmd(class: u32, dst: u64, data: &[u8]) -> bool {
    if !dst.is_multiple_of(256) || (data.len() != 256 && data.len() != qmd::MAX_BYTES) {
        return false;
    }
    plausible(class, data)
}

/// Tells whether data begins with a block and a grid: six numbers that a launch can have.
fn is_geometry(data: &[u8]) -> bool {
    let word = |i: usize| u64::from(u32_at(data, i * 4).unwrap_or(0));
    let threads = word(0).saturating_mul(word(1)).saturating_mul(word(2));
    (1..=1024).contains(&threads) && (3..6).all(|i| word(i) > 0)
}

/// Tells whether data may be code of Volta or later: instructions of 16 bytes in whole lines of 128 bytes, with a NOP among them (every
/// kernel is padded with NOPs).
fn is_code(data: &[u8]) -> bool {
    data.len() >= 128 && data.len().is_multiple_of(128) && data.chunks_exact(16).any(is_nop)
}

/// Tells whether an instruction is a NOP, whatever its scheduling bits.
fn is_nop(instruction: &[u8]) -> bool {
    instruction.starts_with(&NOP)
}

/// Handles a run of LOAD_CONSTANT_BUFFER: data words written to the selected constant buffer at its running offset.
pub(in crate::decode) fn constants(
    sub: &mut Sub,
    data: &[u8],
    shadow: &mut Shadow,
    space: Space,
) -> event::Inline {
    let offset = sub.get(Reg::ConstantOffset);
    let dst = sub
        .address(Reg::ConstantUpper, Reg::ConstantLower)
        .0
        .wrapping_add(u64::from(offset));
    shadow.write(space, GpuVa(dst), data);
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    sub.set(sub.plan.reg(Reg::ConstantOffset), offset.wrapping_add(len));
    event::Inline {
        dst: GpuVa(dst),
        bytes: data.len() as u64,
        line_bytes: len,
        lines: 1,
        content: Some(InlineContent::ConstantBank),
        data: InlineData::Stream,
        fill: None,
        src: None,
        direction: Direction::HostToDevice,
        head: data.get(..HEAD).unwrap_or(data).to_vec(),
        src_memory: None,
        dst_memory: None,
    }
}
