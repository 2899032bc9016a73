//! The chip of each GPU: given by the driver or the user, else inferred from its streams.

use std::collections::HashMap;

use super::{
    defaults::Chip,
    event::{ChipBy, ChipSettled, Engine},
    shadow::Space,
};
use crate::record::Submission;
use crate::wire::stream::Stream;

/// How many submissions of a GPU are searched for evidence of its chip after an assumption was made.
const SEARCHED: u8 = 64;

/// A chip that was inferred from a stream.
#[derive(Clone, Copy)]
struct Learnt {
    chip: &'static Chip,
    by: ChipBy,
    searched: u8,
}

/// What is known of the chips of all GPUs.
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
    /// `expected`: the chip of all GPUs, if the user named it.
    pub(super) fn new(expected: Option<&'static Chip>) -> Self {
        let news = expected.and_then(|chip| settled(chip, ChipBy::Given));
        Self {
            expected,
            news: news.into_iter().collect(),
            ..Self::default()
        }
    }

    /// The driver reported the chip of a GPU, or of the only GPU.
    pub(super) fn set(&mut self, gpu: Option<u32>, chip: &'static Chip, by: ChipBy) {
        let before = self.said.insert(gpu, (chip, by));
        // A chip for all GPUs without a number is no news beside that of a GPU.
        let alone = gpu.is_some() || self.said.len() == 1;
        if alone && before.is_none_or(|(c, b)| (c, b) != (chip, by)) {
            self.news.extend(settled(chip, by));
        }
    }

    /// The driver may report another chip.
    pub(super) fn forget(&mut self, gpu: Option<u32>) {
        self.said.remove(&gpu);
    }

    /// A process is gone, and with it the evidence in its streams.
    pub(super) fn forget_space(&mut self, space: Space) {
        self.learnt.retain(|k, _| k.0 != space);
    }

    /// The chip that the submission is decoded for. If no chip was given, the stream is examined.
    pub(super) fn of(
        &mut self,
        space: Space,
        s: &Submission,
        stream: &Stream,
        gpu: Option<u32>,
        engine: Engine,
        host: Option<u32>,
    ) -> Option<&'static Chip> {
        if let Some(chip) = self.expected {
            return Some(chip);
        }
        if let Some((chip, _)) = self.said.get(&gpu) {
            return Some(chip);
        }
        let known = self.learnt.get(&(space, gpu)).copied();
        let settled = |l: &Learnt| l.by > ChipBy::Methods || l.searched >= SEARCHED;
        if let Some(learnt) = known.filter(settled) {
            return Some(learnt.chip);
        }
        let channel = host.and_then(Chip::with_host);
        if let Some((chip, by)) = super::evidence::chip(s, stream.clone(), engine, channel) {
            self.settle(space, gpu, chip, by);
        }
        let learnt = self.learnt.get_mut(&(space, gpu));
        if let Some(learnt) = learnt {
            learnt.searched = learnt.searched.saturating_add(1);
            return Some(learnt.chip);
        }
        channel
    }

    /// Accepts a chip if its evidence is better than before.
    fn settle(&mut self, space: Space, gpu: Option<u32>, chip: &'static Chip, by: ChipBy) {
        let better = self
            .learnt
            .get(&(space, gpu))
            .is_none_or(|l| by > l.by && by > ChipBy::Methods);
        if better {
            let searched = 0;
            self.learnt
                .insert((space, gpu), Learnt { chip, by, searched });
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

    /// The chips settled since the last call.
    pub(super) fn news(&mut self) -> Vec<ChipSettled> {
        std::mem::take(&mut self.news)
    }
}

fn settled(chip: &'static Chip, by: ChipBy) -> Option<ChipSettled> {
    let chip = chip.names.first()?;
    Some(ChipSettled { chip, by })
}
