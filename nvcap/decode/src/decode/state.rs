//! The state of a channel between submissions: its stream, the classes of its subchannels and the last value of every
//! method.

use crate::wire::GpuVa;
use std::sync::Arc;

use super::{
    class_dispatch::{ClassDispatch, Reg},
    event::Engine,
    shadow::Space,
};
use crate::record::Submission;
use crate::wire::stream::Stream;

/// Values of the methods of one subchannel, and operations that are being put together from them.
pub(super) struct Sub {
    /// Class bound by SET_OBJECT; 0 if no SET_OBJECT was seen.
    pub bound: u32,
    /// Dispatch in force: of the bound class, else of the default class.
    pub plan: Arc<ClassDispatch>,
    /// Index of the dispatch's counters.
    pub counter: usize,
    regs: Box<[u32]>,
    /// An inline transfer in progress.
    pub inline: Option<Inline>,
    /// Words of an inline QMD that have come, one bit for each.
    pub qmd_words: u128,
    /// Words passed to the macro that was called last.
    pub macro_words: Vec<u32>,
    /// End of the launch geometry that was written last, where the arguments begin; 0 for none.
    pub bank_end: u64,
}

impl Sub {
    pub(super) fn new(plan: Arc<ClassDispatch>, counter: usize) -> Self {
        Self {
            bound: 0,
            plan,
            counter,
            regs: Box::default(),
            inline: None,
            qmd_words: 0,
            macro_words: Vec::new(),
            bank_end: 0,
        }
    }

    /// Puts another class into force. Stored values are dropped, because they belonged to the old class.
    pub(super) fn switch(&mut self, plan: Arc<ClassDispatch>, counter: usize) {
        let bound = self.bound;
        *self = Self {
            bound,
            ..Self::new(plan, counter)
        };
    }

    /// Binds a class, as SET_OBJECT does.
    pub(super) fn bind(&mut self, class: u32, plan: Arc<ClassDispatch>, counter: usize) {
        self.bound = class;
        if self.plan.class != class {
            self.switch(plan, counter);
        }
    }

    /// Stores a method's data word.
    pub(super) fn set(&mut self, address: u16, data: u32) {
        if self.regs.is_empty() {
            // The 16 KiB are allocated only for a subchannel that is used.
            self.regs = vec![0; 0x1000].into_boxed_slice();
        }
        if let Some(slot) = self.regs.get_mut(usize::from(address >> 2)) {
            *slot = data;
        }
    }

    /// Returns the last value of a method; 0 if none was seen.
    pub(super) fn at(&self, address: u16) -> u32 {
        self.regs
            .get(usize::from(address >> 2))
            .copied()
            .unwrap_or(0)
    }

    /// Returns the last value of an operand; 0 if none was seen or the class does not have it.
    pub(super) fn get(&self, reg: Reg) -> u32 {
        self.at(self.plan.reg(reg))
    }

    /// Returns an address made of two operands (57 bits).
    pub(super) fn address(&self, upper: Reg, lower: Reg) -> GpuVa {
        GpuVa(u64::from(self.get(upper) & 0x1ff_ffff) << 32 | u64::from(self.get(lower)))
    }
}

/// An inline transfer in progress.
#[derive(Clone, Debug)]
pub(super) struct Inline {
    pub dst: u64,
    pub line_bytes: u32,
    pub lines: u32,
    pub pitch: u32,
    /// True if the destination is linear memory.
    pub linear: bool,
    /// Number of data words that were announced.
    pub words: u64,
    /// Number of data words that have come, including missing ones.
    pub taken: u64,
    /// Part of `taken`: words that could not be read.
    pub missing: u64,
    /// First bytes of the data.
    pub head: Vec<u8>,
    /// Word that a macro repeats.
    pub fill: Option<u32>,
    /// Address from which a macro fetches the data.
    pub fetched: Option<u64>,
    /// True if a macro was called for the data.
    pub by_macro: bool,
    /// Data word of LAUNCH_DMA.
    pub launch: u32,
}

/// State of a channel between submissions: its stream, the classes of its subchannels and the last value of every method.
pub(super) struct ChannelBindings {
    pub space: Space,
    pub gpu: Option<u32>,
    pub token: Option<u32>,
    /// Class of the channel; `None` until known.
    pub class: Option<u32>,
    pub engine: Engine,
    pub stream: Stream,
    /// Bits 56:40 of pushbuffer addresses.
    pub base: u64,
    /// State of the methods below 0x100.
    pub host: Sub,
    pub subs: [Sub; 8],
    /// Ring position at which the next submission begins, if no entries are missing.
    pub next_position: Option<u64>,
    /// Number of submissions that were searched for evidence of the chip while it was only assumed.
    pub chip_searches: u8,
}

impl ChannelBindings {
    /// Records a submission's token and place in the ring. If entries are missing before it, the method in progress ends.
    pub(super) fn goes_on_with(&mut self, s: &Submission) {
        self.token = self.token.or(s.token);
        if self.next_position.is_some_and(|p| p != s.position) {
            self.stream.reset();
        }
        self.next_position = s.position.checked_add(s.segments.len() as u64);
    }
}

/// Returns the engine of an NV2080_ENGINE_TYPE.
pub fn engine_of(engine_type: u32) -> Engine {
    match engine_type {
        0x01..=0x08 => Engine::Graphics,
        0x09..=0x12 => Engine::Copy(Some(engine_type - 0x09)),
        0x13..=0x1a => Engine::Nvdec(engine_type - 0x13),
        0x1b..=0x1d => Engine::Nvenc(engine_type - 0x1b),
        0x26 => Engine::Sec2,
        0x2b..=0x32 => Engine::Nvjpg(engine_type - 0x2b),
        0x33 => Engine::Ofa(0),
        0x34..=0x3d => Engine::Copy(Some(engine_type - 0x34 + 10)),
        0x3e => Engine::Ofa(1),
        0x3f => Engine::Nvenc(3),
        0 => Engine::Unknown,
        other => Engine::Other(other),
    }
}
