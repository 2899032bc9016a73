//! The chip of each GPU: given by the driver or the user, else inferred from its streams.

use std::collections::HashMap;

use super::{
    defaults::Chip,
    event::{ChipBy, ChipSettled, Engine},
    shadow::Space,
};
use crate::record::Submission;
use crate::wire::stream::Stream;

/// Number of submissions that are searched, in each channel, for better evidence of the GPU's chip after one was assumed. The limit is per
/// channel because streams of copy channels hardly differ between chips, and hundreds of their submissions may come first.
const SEARCHED: u8 = 64;

/// A chip that was inferred from a stream.
#[derive(Clone, Copy)]
struct Learnt {
    chip: &'static Chip,
    by: ChipBy,
}

/// The channel whose submission is examined.
pub(super) struct Examined<'a> {
    pub space: Space,
    pub gpu: Option<u32>,
    /// State of the channel before the submission.
    pub stream: &'a Stream,
    pub engine: Engine,
    /// Class of the channel, if known.
    pub host: Option<u32>,
    /// Number of the channel's submissions that were examined while a chip was assumed.
    pub searched: &'a mut u8,
}

/// Chips of all GPUs, as far as they are known.
#[derive(Default)]
pub(super) struct Chips {
    /// Reported by the driver.
    said: HashMap<Option<u32>, (&'static Chip, ChipBy)>,
    learnt: HashMap<(Space, Option<u32>), Learnt>,
    expected: Option<&'static Chip>,
    /// Chips that were settled since the last call of `news`.
    news: Vec<ChipSettled>,
}

impl Chips {
    /// Begins without evidence. `expected` is the chip of all GPUs, if the user named it.
    pub(super) fn new(expected: Option<&'static Chip>) -> Self {
        let news = expected.and_then(|chip| settled(chip, ChipBy::Given));
        Self {
            expected,
            news: news.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Sets the chip that the driver reported for a GPU, or for the only GPU.
    pub(super) fn set(&mut self, gpu: Option<u32>, chip: &'static Chip, by: ChipBy) {
        let before = self.said.insert(gpu, (chip, by));
        // A chip of all GPUs without a number is no news once the chip of one GPU is known.
        let alone = gpu.is_some() || self.said.len() == 1;
        if alone && before.is_none_or(|(c, b)| (c, b) != (chip, by)) {
            self.news.extend(settled(chip, by));
        }
    }

    /// Forgets the chip of a GPU, since the driver may report another.
    pub(super) fn forget(&mut self, gpu: Option<u32>) {
        self.said.remove(&gpu);
    }

    /// Forgets the evidence in the streams of a process that is gone.
    pub(super) fn forget_space(&mut self, space: Space) {
        self.learnt.retain(|k, _| k.0 != space);
    }

    /// Returns the chip for which the submission of a channel is decoded. If no chip was given, the stream is examined.
    pub(super) fn of(&mut self, s: &Submission, of: Examined<'_>) -> Option<&'static Chip> {
        let Examined {
            space,
            gpu,
            stream,
            engine,
            host,
            searched,
        } = of;
        if let Some(chip) = self.expected {
            return Some(chip);
        }
        if let Some((chip, _)) = self.said.get(&gpu) {
            return Some(chip);
        }
        let known = self.learnt.get(&(space, gpu)).copied();
        let is_settled = |l: &Learnt| l.by > ChipBy::Methods || *searched >= SEARCHED;
        if let Some(learnt) = known.filter(is_settled) {
            return Some(learnt.chip);
        }
        let channel = host.and_then(Chip::with_host);
        if let Some((chip, by)) = super::evidence::chip(s, stream.clone(), engine, channel) {
            self.settle(space, gpu, chip, by);
        }
        if let Some(learnt) = self.learnt.get(&(space, gpu)) {
            *searched = searched.saturating_add(1);
            return Some(learnt.chip);
        }
        channel
    }

    /// Accepts a chip if its evidence is better than before, or if it is assumed from methods that the previously assumed chip lacks.
    fn settle(&mut self, space: Space, gpu: Option<u32>, chip: &'static Chip, by: ChipBy) {
        let is_better = |l: &Learnt| match by {
            ChipBy::Channel => false,
            // The assumed chip is the oldest one that has most of the methods. A newer candidate has more of them than the one before.
            ChipBy::Methods => l.by <= by && chip.is_newer_than(l.chip),
            _ => by > l.by,
        };
        if self.learnt.get(&(space, gpu)).is_none_or(is_better) {
            self.learnt.insert((space, gpu), Learnt { chip, by });
            self.news.extend(settled(chip, by));
        }
    }

    pub(super) fn learn(&mut self, space: Space, gpu: Option<u32>, class: u32) {
        if let Some(chip) = Chip::with_class(class)
            && self.expected.is_none()
            && !self.said.contains_key(&gpu)
        {
            self.settle(space, gpu, chip, ChipBy::Bound);
        }
    }

    /// Returns the chips that were settled since the last call.
    pub(super) fn news(&mut self) -> Vec<ChipSettled> {
        std::mem::take(&mut self.news)
    }
}

fn settled(chip: &'static Chip, by: ChipBy) -> Option<ChipSettled> {
    let chip = chip.names.first()?;
    Some(ChipSettled { chip, by })
}
