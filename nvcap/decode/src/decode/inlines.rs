//! Inline writes of a submission: data in the pushbuffer, and data that the driver's macros make from their arguments.

use super::{
    class_dispatch::Reg,
    classes::Family,
    event::{InlineContent, Operation},
    ops::{copy, inline, launch, semaphore},
    qmd,
    submission::SubmissionDecoder,
};
use crate::wire::{GpuVa, header::Header, words::u32_at};
use std::ops::RangeInclusive;

/// The methods of an inline write: LINE_LENGTH_IN to LOAD_INLINE_DATA, in all compute and graphics classes.
const INLINE_WRITE: RangeInclusive<u16> = 0x180..=0x1b4;

impl SubmissionDecoder<'_> {
    pub(super) fn inline_launch(&mut self, subchannel: u8, data: u32) {
        // A transfer whose data never came in full is emitted with the data that came.
        self.finish_inline(subchannel, None, false);
        let Some(sub) = self.subs.get_mut(usize::from(subchannel)) else {
            return;
        };
        let begun = inline::begin(sub, data);
        let empty = begun.complete();
        sub.inline = Some(begun);
        if empty {
            self.finish_inline(subchannel, None, false);
        }
    }

    pub(super) fn inline_data(&mut self, subchannel: u8, offset: u32, data: &[u8]) {
        let Some(sub) = self.subs.get_mut(usize::from(subchannel)) else {
            return;
        };
        let Some(inline) = &mut sub.inline else {
            return;
        };
        let whole = inline.taken == 0;
        inline.take(data, self.shadow, self.space);
        if inline.complete() {
            let next = (offset as usize).saturating_add(data.len());
            let alone = self.only_inline && self.semaphore_or_end(subchannel, next);
            self.in_batch = !alone && self.only_inline && self.only_writes_follow(subchannel, next);
            self.finish_inline(subchannel, whole.then_some(data), alone);
            self.in_batch = false;
        }
    }

    /// Tells whether only inline writes follow until a semaphore release or the end, as in a batch of copies.
    fn only_writes_follow(&mut self, subchannel: u8, from: usize) -> bool {
        if let Some((end, follow)) = self.writes_until
            && from <= end
        {
            return follow;
        }
        let mut at = from;
        let follow = loop {
            if self.semaphore_or_end(subchannel, at) {
                break true;
            }
            match u32_at(self.segment, at).map(Header::read) {
                Some(Header::Nop) => at += 4,
                Some(Header::Method {
                    address,
                    count,
                    subchannel: of,
                    ..
                }) if of == subchannel && INLINE_WRITE.contains(&address) => {
                    at += 4 + 4 * usize::from(count);
                }
                _ => break false,
            }
        };
        // The answer is the same for each write of the batch.
        self.writes_until = Some((at, follow));
        follow
    }

    /// Handles the data of a macro. The driver's memset, its fetched copy and its QMDs are understood (docs/decoding.md).
    pub(super) fn macro_data(&mut self, subchannel: u8, address: u16, offset: u32, data: u32) {
        let Some(sub) = self.subs.get_mut(usize::from(subchannel)) else {
            return;
        };
        // CALL_MME_MACRO(i) lies before CALL_MME_DATA(i).
        let call = sub.at(address.wrapping_sub(4));
        if let Some(inline) = &mut sub.inline {
            let whole = match *sub.macro_words {
                [] if !inline::fetches(address) => inline.fill(call, data, self.shadow, self.space),
                [low] => inline.fetch(call, low, data, self.shadow, self.space),
                _ => false,
            };
            inline.by_macro = true;
            if sub.macro_words.len() < 2 {
                sub.macro_words.push(data);
            }
            if whole {
                let alone =
                    self.only_inline && self.semaphore_or_end(subchannel, offset as usize + 4);
                self.finish_inline(subchannel, None, alone);
            }
            return;
        }
        if let Some(launch) = launch::by_macro(sub, data, self.shadow, self.space) {
            self.only_inline = false;
            self.launch(launch);
        }
    }

    /// Tells whether a semaphore release, or nothing more, follows at byte `at` of the segment.
    fn semaphore_or_end(&self, subchannel: u8, at: usize) -> bool {
        let Some(word) = u32_at(self.segment, at) else {
            return true;
        };
        let release = self
            .subs
            .get(usize::from(subchannel))
            .map_or(u16::MAX, |s| s.plan.reg(Reg::ReportUpper));
        match Header::read(word) {
            Header::Method { address, .. } => address == release,
            _ => false,
        }
    }

    pub(super) fn finish_inline(&mut self, subchannel: u8, whole: Option<&[u8]>, alone: bool) {
        let Some(sub) = self.subs.get_mut(usize::from(subchannel)) else {
            return;
        };
        let Some(inline) = sub.inline.take() else {
            return;
        };
        let launch = inline.launch;
        let mut operation = inline.finish(sub, whole, alone, self.shadow, self.space);
        operation.dst_memory = self.places.memory(self.space, operation.dst);
        if let Some(src) = operation.src {
            let place = |va| self.places.place(self.space, va);
            operation.src_memory = self.places.memory(self.space, src);
            if let Some(way) = copy::direction(place(src), place(operation.dst)) {
                operation.direction = way;
            }
        }
        let dst = operation.dst.0;
        if operation.content == Some(InlineContent::Qmd) {
            self.written.insert(dst);
            self.qmd_copies.remove(&(self.space, dst));
            let mut qmd = [0; qmd::MAX_BYTES];
            let len = (operation.bytes as usize).min(qmd.len());
            if let Some(qmd) = qmd.get_mut(..len)
                && self.shadow.read(self.space, GpuVa(dst), qmd)
            {
                let class = sub.plan.class;
                self.driver_writes.qmd(self.space, class, dst, qmd);
            }
        } else if matches!(operation.content, None | Some(InlineContent::Data))
            && operation.fill.is_none()
            && inline::is_in_header_pool(sub, dst, operation.bytes)
        {
            operation.content = Some(InlineContent::TextureHeader);
        } else if operation.content.is_none() {
            let known = self.driver_writes.content(self.space, dst, operation.bytes);
            operation.content = known.or(self.in_batch.then_some(InlineContent::Data));
        }
        let released = match sub.plan.family {
            Family::MemoryToMemory => None,
            _ => semaphore::inline(sub, launch),
        };
        self.operation(&Operation::Inline(operation));
        if let Some(semaphore) = released {
            self.operation(&Operation::Semaphore(semaphore));
        }
    }

    pub(super) fn constants(&mut self, subchannel: u8, data: &[u8]) {
        let Some(sub) = self.subs.get_mut(usize::from(subchannel)) else {
            return;
        };
        let mut operation = inline::constants(sub, data, self.shadow, self.space);
        operation.dst_memory = self.places.memory(self.space, operation.dst);
        self.only_inline = false;
        self.operation(&Operation::Inline(operation));
    }
}
