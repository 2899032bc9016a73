//! Decoder for one submission of one channel: it turns runs of words into methods and operations.

use crate::decode::event::CopyMode;
use crate::wire::{method::FIRST_OF_ENGINE, words::u32s};

use super::{
    chips::Chips,
    class_dispatch::{Action, Bits, Plans, Reg},
    defaults::Chip,
    driver_writes::DriverWrites,
    event::{Bind, Body, Context, Copy, Engine, Event, Evidence, MethodWrite, Operation, Place},
    graph::{Graphs, Named},
    kernels::Kernels,
    ops::{copy, copy::Side, launch, other, semaphore},
    shadow::{Shadow, Space},
    state::Sub,
    wants::{Counts, Places, Wants},
};
use crate::wire::GpuVa;
use crate::wire::{hash::NumberSet, header::Step, stream::Run};

/// The longest copy that is carried out in the shadow, bytes.
const MAX_FOLLOWED: u64 = 1 << 20;

/// Decoder of one submission of a channel: turns runs of words into methods and operations.
pub(super) struct SubmissionDecoder<'a> {
    pub wants: Wants,
    pub context: &'a Context,
    pub sink: &'a mut dyn FnMut(&Event<'_>),
    pub counts: &'a mut Counts,
    pub plans: &'a mut Plans,
    pub chips: &'a mut Chips,
    pub graphs: &'a mut Graphs,
    pub qmd_copies: &'a mut NumberSet<(Space, u64)>,
    pub driver_writes: &'a mut DriverWrites,
    pub kernels: &'a mut Kernels,
    pub shadow: &'a mut Shadow,
    pub places: &'a dyn Places,
    pub space: Space,
    pub gpu: Option<u32>,
    pub engine: Engine,
    pub token: Option<u32>,
    pub class: Option<u32>,
    pub chip: Option<&'static Chip>,
    pub host_class: u32,
    pub host: &'a mut Sub,
    pub subs: &'a mut [Sub; 8],
    /// Index of the entry.
    pub entry: u32,
    /// Bytes of the entry.
    pub segment: &'a [u8],
    /// True if only inline data and semaphores were seen in this entry so far.
    pub only_inline: bool,
    /// True if the inline write that is being finished is one of a batch.
    pub in_batch: bool,
    /// Byte of this entry up to which it is known whether only inline writes follow, and the answer.
    pub writes_until: Option<(usize, bool)>,
    /// QMDs that this entry names and that are not launches by themselves.
    pub named: Vec<Named>,
    /// QMDs that this entry wrote.
    pub written: NumberSet<u64>,
}

impl SubmissionDecoder<'_> {
    pub(super) fn emit(&mut self, body: Body<'_>) {
        (self.sink)(&Event {
            context: self.context,
            entry: self.entry,
            body,
        });
    }

    pub(super) fn operation(&mut self, operation: &Operation) {
        let written = match operation {
            Operation::Inline(i) => Some((i.dst, i.bytes)),
            Operation::Copy(c) if !c.physical.1 => c.dst.map(|dst| (dst, c.bytes)),
            _ => None,
        };
        if let Some((at, bytes)) = written {
            self.kernels
                .written(self.context.at.pid, at, bytes, self.context.at.time_ns);
        }
        if self.wants.operations {
            self.emit(Body::Operation(operation));
        }
    }

    /// Emits chips that were settled.
    pub(super) fn chip_news(&mut self) {
        for news in self.chips.news() {
            self.emit(Body::Chip(news));
        }
    }

    /// Puts the right dispatch into force for host methods.
    pub(super) fn settle_host(&mut self) {
        let class = self
            .class
            .or(self.chip.map(|c| c.host))
            .unwrap_or(self.host_class);
        if self.host.plan.class != class {
            let (plan, counter) = self.plans.of(class);
            self.host.switch(plan, counter);
        }
    }

    /// Puts the right dispatch into force for a subchannel without SET_OBJECT.
    fn settle(&mut self, subchannel: u8) {
        let Some(sub) = self.subs.get_mut(usize::from(subchannel)) else {
            return;
        };
        if sub.bound != 0 {
            return;
        }
        let class = self
            .chip
            .map_or(0, |c| c.subchannel(self.engine, subchannel));
        if sub.plan.class != class {
            let (plan, counter) = self.plans.of(class);
            sub.switch(plan, counter);
        }
    }

    /// Decodes one header with its data.
    pub(super) fn run(&mut self, run: &Run<'_>) {
        let n = run.len();
        self.counts.runs += 1;
        self.counts.methods += u64::from(n);
        if run.masked {
            self.counts.masked += u64::from(n);
        }
        self.settle(run.subchannel);
        match run.step {
            Step::Immediate => {
                let word = run.immediate.to_le_bytes();
                self.same(run, run.address, run.offset, &word);
            }
            Step::Same => self.same(run, run.address, run.offset, run.data),
            Step::Once => {
                let (first, rest) = run.data.split_at(run.data.len().min(4));
                self.same(run, run.address, run.offset, first);
                if !rest.is_empty() {
                    self.same(run, run.address_of(1), run.offset + 4, rest);
                }
            }
            Step::Increment => self.increment(run),
        }
    }

    /// Counts `n` writes to one method. Returns the class that interprets it.
    fn count(&mut self, subchannel: u8, address: u16, n: u64) -> u32 {
        let sub = if address < FIRST_OF_ENGINE {
            Some(&*self.host)
        } else {
            self.subs.get(usize::from(subchannel))
        };
        let Some(sub) = sub else { return 0 };
        let class = sub.plan.class;
        if !sub.plan.is_known() {
            self.counts.classless += n;
        }
        let slot = self
            .plans
            .list
            .get_mut(sub.counter)
            .and_then(|c| c.writes.get_mut(usize::from(address >> 2)));
        if let Some(slot) = slot {
            *slot += n;
        }
        class
    }

    fn method(&mut self, run: &Run<'_>, class: u32, address: u16, offset: u32, data: u32) {
        let write = MethodWrite {
            entry: self.entry,
            offset,
            subchannel: run.subchannel,
            class,
            method: address,
            data,
            masked: run.masked,
        };
        self.emit(Body::Method(write));
    }

    /// Decodes a run in which every word goes to one method.
    fn same(&mut self, run: &Run<'_>, address: u16, offset: u32, data: &[u8]) {
        let words = data.len() as u64 / 4;
        let class = self.count(run.subchannel, address, words);
        if self.wants.methods {
            for (i, word) in u32s(data).enumerate() {
                self.method(run, class, address, offset + 4 * i as u32, word);
            }
        }
        if run.masked {
            return;
        }
        if address < FIRST_OF_ENGINE {
            for word in u32s(data) {
                self.host_method(run.subchannel, address, word);
            }
            return;
        }
        if !self.wants.operations {
            return;
        }
        let Some(sub) = self.subs.get_mut(usize::from(run.subchannel)) else {
            return;
        };
        match sub.plan.action(address) {
            Action::None => {
                if let Some(last) = u32s(data).next_back() {
                    sub.set(address, last);
                }
            }
            Action::InlineData => self.inline_data(run.subchannel, offset, data),
            Action::ConstantData => self.constants(run.subchannel, data),
            action => {
                for word in u32s(data) {
                    self.act(action, run.subchannel, address, offset, word);
                }
            }
        }
    }

    /// Decodes a run in which each word goes to the next method.
    fn increment(&mut self, run: &Run<'_>) {
        let mut i = 0;
        while let Some(data) = run.word(i) {
            let address = run.address_of(i);
            let offset = run.offset + 4 * i;
            let class = self.count(run.subchannel, address, 1);
            if self.wants.methods {
                self.method(run, class, address, offset, data);
            }
            i += 1;
            if run.masked {
                continue;
            }
            if address < FIRST_OF_ENGINE {
                self.host_method(run.subchannel, address, data);
                continue;
            }
            if !self.wants.operations {
                continue;
            }
            let Some(sub) = self.subs.get_mut(usize::from(run.subchannel)) else {
                continue;
            };
            match sub.plan.action(address) {
                Action::None => sub.set(address, data),
                Action::InlineData => self.inline_data(run.subchannel, offset, &data.to_le_bytes()),
                Action::ConstantData => {
                    // LOAD_CONSTANT_BUFFER is an array; a run over it counts as one write.
                    let first = (i - 1) as usize * 4;
                    let mut end = i;
                    while let Some(next) = run.word(end) {
                        let address = run.address_of(end);
                        if self.action(run.subchannel, address) != Action::ConstantData {
                            break;
                        }
                        let class = self.count(run.subchannel, address, 1);
                        if self.wants.methods {
                            self.method(run, class, address, run.offset + 4 * end, next);
                        }
                        end += 1;
                    }
                    i = end;
                    self.constants(
                        run.subchannel,
                        run.data.get(first..end as usize * 4).unwrap_or(&[]),
                    );
                }
                action => self.act(action, run.subchannel, address, offset, data),
            }
        }
    }

    fn action(&self, subchannel: u8, address: u16) -> Action {
        self.subs
            .get(usize::from(subchannel))
            .map_or(Action::None, |s| s.plan.action(address))
    }

    /// Skips data words, of a method in progress, that could not be read.
    pub(super) fn skip(&mut self, subchannel: u8, address: u16, words: u32) {
        if self.action(subchannel, address) != Action::InlineData || !self.wants.operations {
            return;
        }
        let Some(sub) = self.subs.get_mut(usize::from(subchannel)) else {
            return;
        };
        if let Some(inline) = &mut sub.inline {
            inline.skip(words);
            if inline.complete() {
                self.finish_inline(subchannel, None, false);
            }
        }
    }

    /// Handles a method of the channel itself.
    fn host_method(&mut self, subchannel: u8, address: u16, data: u32) {
        self.host.set(address, data);
        let action = self.host.plan.action(address);
        if action == Action::Bind {
            return self.bind(subchannel, data);
        }
        if !self.wants.operations || action == Action::None {
            return;
        }
        let operation = match action {
            Action::HostSemaphore => Operation::Semaphore(semaphore::host(self.host, data)),
            Action::OldHostSemaphore => Operation::Semaphore(semaphore::old_host(self.host, data)),
            Action::MemOp => match other::mem_op(self.host, address, data) {
                Some(operation) => operation,
                None => return,
            },
            Action::Barrier => other::barrier(self.host, address, data),
            _ => other::host_op(self.host, address, data),
        };
        // A copy can wait for another stream, and a profiler puts timestamps around it.
        self.only_inline &= matches!(operation, Operation::Semaphore(_));
        self.operation(&operation);
    }

    fn bind(&mut self, subchannel: u8, data: u32) {
        let class = data & 0xffff;
        self.chips.learn(self.space, self.gpu, class);
        self.chip_news();
        let (plan, counter) = self.plans.of(class);
        if let Some(sub) = self.subs.get_mut(usize::from(subchannel)) {
            sub.bind(class, plan, counter);
        }
        self.operation(&Operation::Bind(Bind { subchannel, class }));
    }

    /// Carries out the action of a method that triggers an operation.
    fn act(&mut self, action: Action, subchannel: u8, address: u16, offset: u32, data: u32) {
        let Some(sub) = self.subs.get_mut(usize::from(subchannel)) else {
            return;
        };
        sub.set(address, data);
        let operation = match action {
            Action::InlineLaunch => return self.inline_launch(subchannel, data),
            Action::InlineData => return self.inline_data(subchannel, offset, &data.to_le_bytes()),
            Action::ConstantData => return self.constants(subchannel, &data.to_le_bytes()),
            Action::MacroCall => return sub.macro_words.clear(),
            Action::MacroData => return self.macro_data(subchannel, address, offset, data),
            Action::CopyLaunch if sub.plan.bits(Bits::DmaSrcInline, data) != 0 => {
                return self.inline_launch(subchannel, data);
            }
            Action::CopyLaunch => return self.copy(subchannel, data),
            Action::InlineQmd => return self.inline_qmd(subchannel, address),
            Action::Pcas => {
                let action = sub.plan.pcas_action(address, data);
                return self.pcas(action, subchannel, address, data);
            }
            Action::FermiLaunch => {
                let launch = launch::fermi(sub, self.shadow, self.space);
                self.only_inline = false;
                return self.launch(launch);
            }
            Action::ReportSemaphore | Action::ReportExecute => {
                // An unknown macro made the data.
                if sub.inline.as_ref().is_some_and(|i| i.by_macro) {
                    self.finish_inline(subchannel, None, false);
                }
                let Some(sub) = self.subs.get(usize::from(subchannel)) else {
                    return;
                };
                Operation::Semaphore(match action {
                    Action::ReportSemaphore => semaphore::report(sub, data),
                    _ => semaphore::report_execute(sub, data),
                })
            }
            Action::FalconSemaphore => Operation::Semaphore(semaphore::falcon(sub, data)),
            Action::Barrier => other::barrier(sub, address, data),
            Action::Draw => other::draw(sub, address, data),
            Action::Video => other::video(sub, address, data),
            // Host methods do not reach this place.
            Action::None
            | Action::Bind
            | Action::HostSemaphore
            | Action::OldHostSemaphore
            | Action::MemOp
            | Action::HostOp => return,
        };
        self.only_inline &= matches!(operation, Operation::Semaphore(_));
        self.operation(&operation);
    }

    fn inline_qmd(&mut self, subchannel: u8, address: u16) {
        let Some(sub) = self.subs.get_mut(usize::from(subchannel)) else {
            return;
        };
        let index = address.wrapping_sub(sub.plan.qmd_data) / 4;
        sub.qmd_words |= 1u128.checked_shl(u32::from(index)).unwrap_or(0);
        let long = sub
            .plan
            .bits(Bits::QmdInlineSize, sub.get(Reg::QmdAddressA))
            != 0;
        let words = if long { 96 } else { 64 };
        if index + 1 != words {
            return;
        }
        sub.qmd_words = 0;
        let launch = launch::inline(sub, self.shadow, self.space, words);
        self.only_inline = false;
        self.launch(launch);
    }

    fn copy(&mut self, subchannel: u8, data: u32) {
        let Some(sub) = self.subs.get(usize::from(subchannel)) else {
            return;
        };
        let mut operation = copy::launch(sub, data, self.engine);
        if let Operation::Copy(copy) = &mut operation {
            let (src_mode, dst_mode) = (sub.get(Reg::SrcPhysical), sub.get(Reg::DstPhysical));
            let side = |physical: bool, mode: u32, va: Option<GpuVa>| match (physical, va) {
                (true, _) => Side::At(physical_place(mode)),
                (false, None) => Side::Unknown,
                (false, Some(va)) => match self.places.place(self.space, va) {
                    Some(place) => Side::At(place),
                    None if self.places.is_reserved(self.space, va) => Side::Reserved,
                    None if self.places.is_unmapped(self.space, va) => Side::Unmapped,
                    None => Side::Unknown,
                },
            };
            let src = side(copy.physical.0, src_mode, copy.src);
            let dst = side(copy.physical.1, dst_mode, copy.dst);
            copy::conclude(copy, src, dst, self.token);
            let memory = |physical: bool, va: Option<GpuVa>| match physical {
                true => None,
                false => self.places.memory(self.space, va?),
            };
            copy.src_memory = memory(copy.physical.0, copy.src);
            copy.dst_memory = memory(copy.physical.1, copy.dst);
            if copy.physical == (true, true) && copy.direction.is_some() {
                copy.direction_from = Some(Evidence::Stated);
            }
            follow(copy, self.shadow, self.space);
        }
        self.only_inline = false;
        self.operation(&operation);
    }
}

/// Returns the place for the field TARGET of SET_SRC_PHYS_MODE and SET_DST_PHYS_MODE.
fn physical_place(mode: u32) -> Place {
    match mode & 3 {
        0 => Place::Device,
        1 | 2 => Place::Host,
        _ => Place::Peer,
    }
}

/// Carries out a copy in the shadow: known bytes move, unknown ones make their destination unknown.
fn follow(copy: &Copy, shadow: &mut Shadow, space: Space) {
    let Some(GpuVa(dst)) = copy.dst.filter(|_| !copy.physical.1 && copy.bytes > 0) else {
        return;
    };
    if let (CopyMode::Linear, Some(GpuVa(src)), false, 1..=MAX_FOLLOWED) =
        (copy.mode, copy.src, copy.physical.0, copy.bytes)
    {
        let len = copy.bytes as usize;
        if shadow.known(space, GpuVa(src), len) == len {
            let mut bytes = vec![0; len];
            if shadow.read(space, GpuVa(src), &mut bytes) {
                shadow.write(space, GpuVa(dst), &bytes);
                return;
            }
        }
    }
    let pitch = copy.pitch.map_or(0, |p| u64::from(p.1.unsigned_abs()));
    match copy.mode {
        CopyMode::Pitch | CopyMode::BlockLinearToPitch
            if pitch > u64::from(copy.line_bytes) && copy.lines <= 4096 =>
        {
            for line in 0..u64::from(copy.lines) {
                shadow.forget_range(
                    space,
                    dst.wrapping_add(line * pitch),
                    u64::from(copy.line_bytes),
                );
            }
        }
        _ => shadow.forget_range(space, dst, copy.bytes),
    }
}
