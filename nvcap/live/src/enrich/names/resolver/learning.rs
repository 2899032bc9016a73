//! Learns the layout of records: decides when it is looked for, which of two layouts is kept, and which programs a better layout names
//! again. A name depends on the evidence, not on the order in which memory was searched.

use super::{Ask, Layout, Resolver, SETTLED};
use nvcap_decode::record::Kernel;

/// The most programs that are kept to be named again.
const MOST_BY_TEXT: usize = 1 << 12;

impl Resolver {
    /// Learns the layout again where launches contradict it: the registers in the records differ from those of the launches.
    pub(super) fn learn_again(&mut self, wanted: &mut Vec<&Ask>, found: &mut Vec<Kernel>) {
        let Some(layout) = self.layout.clone().filter(|l| l.registers.is_some()) else {
            return;
        };
        let any = Layout {
            registers: None,
            ..layout
        };
        let is_there = |resolver: &mut Self, ask: &Ask| {
            let places = resolver.places.get(&ask.program.0).cloned();
            let mut places = places.unwrap_or_default().into_iter();
            places.any(|at| resolver.name_at(&any, at, ask.registers).is_some())
        };
        if self.programs.len() > self.contradicted_at && wanted.iter().any(|a| is_there(self, a)) {
            self.contradicted_at = self.programs.len();
            self.next_try = 0;
            if self.learn() {
                self.conclude(wanted, found, true);
            }
        }
    }

    /// Learns the layout, unless it holds for more programs already. True if the layout has changed.
    pub(super) fn learn(&mut self) -> bool {
        // What failed for as many programs fails again for a few more: a process without records must not be read for ever.
        // What text told, images that have come since may tell better.
        let has_more = self.is_without_images() && self.images.len() > self.images_learnt;
        if self.programs.len() < self.next_try && !has_more {
            return false;
        }
        self.images_learnt = self.images.len();
        let learnt = Layout::learn(&*self.space, &mut self.images, &self.programs, &self.places);
        let Some(learnt) = learnt else {
            self.next_try = self.programs.len() * 2;
            return false;
        };
        // Once many agree, a few programs more change nothing.
        self.next_try = match learnt.agree {
            0..SETTLED => 0,
            _ => self.programs.len() * 2,
        };
        // Images are better evidence than text for however many. Of two that hold for as many, the newer one was learnt from all of them.
        let better = self
            .layout
            .as_ref()
            .is_none_or(|l| match (l.in_images, learnt.in_images) {
                (false, true) => true,
                (true, false) => false,
                _ => learnt.agree >= l.agree && learnt != *l,
            });
        if better {
            if self.layout.as_ref().is_some_and(|l| l.name != learnt.name) {
                self.records.clear();
            }
            self.layout = Some(learnt);
        }
        better
    }

    /// True where the layout was not learnt from images: all names are then from text.
    pub(super) fn is_without_images(&self) -> bool {
        self.layout.as_ref().is_none_or(|l| !l.in_images)
    }

    /// Takes note of a program that was named by a record.
    pub(super) fn note_told(&mut self, ask: &Ask, layout: &Layout) {
        if layout.in_images {
            self.by_text.remove(&ask.program.0);
        } else if self.by_text.len() < MOST_BY_TEXT {
            self.by_text.insert(ask.program.0, ask.clone());
        }
    }

    /// Names programs again that were named by text alone, as soon as images name them.
    pub(super) fn tell_again(&mut self, found: &mut Vec<Kernel>) {
        let Some(layout) = self.layout.clone().filter(|l| l.in_images) else {
            return;
        };
        if self.by_text.is_empty() || self.images.len() == self.images_told {
            return;
        }
        self.images_told = self.images.len();
        for (program, ask) in std::mem::take(&mut self.by_text) {
            match self.by_record(&layout, &ask) {
                Some((kernel, _)) if kernel.certain => {
                    found.retain(|k| k.program != ask.program);
                    found.push(kernel);
                }
                _ => drop(self.by_text.insert(program, ask)),
            }
        }
    }
}
