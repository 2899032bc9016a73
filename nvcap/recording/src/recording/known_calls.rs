//! Calls to which stacks refer by a number, and a limit on their memory.
//!
//! A writer gives its calls anew before they take more bytes than a reader holds. A reader drops the calls that were given first, so it
//! still holds all calls to which the writer refers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use nvcap_decode::record::{Calls, Frame};

/// The most calls to which a writer refers.
pub(super) const MOST_NAMED: usize = 1 << 16;
/// The most calls that a reader holds.
const MOST_HELD: usize = 1 << 17;
/// The most bytes of the calls to which a writer refers, and of the calls that a reader holds.
pub(super) const MOST_BYTES: usize = 512 << 20;
/// Bytes of calls, and of a text, in addition to their contents: counts, and entries of maps.
const BESIDE: usize = 96;

/// Memory taken by calls, bytes. Equal texts count once.
#[derive(Default)]
pub(super) struct Weight {
    /// Texts of frames, each with the number of places that use it.
    texts: HashMap<Arc<str>, usize>,
    pub(super) bytes: usize,
}

fn texts(calls: &Calls) -> impl Iterator<Item = &Arc<str>> {
    let of_frames = calls.frames.iter().flat_map(of_frame).flatten();
    of_frames.chain(calls.api.as_ref())
}

fn of_frame(f: &Frame) -> [Option<&Arc<str>>; 3] {
    [Some(&f.module), f.symbol.as_ref(), f.file.as_ref()]
}

/// Returns the bytes of calls without their texts.
fn own(calls: &Calls) -> usize {
    BESIDE + calls.frames.len() * size_of::<Frame>()
}

impl Weight {
    pub(super) fn add(&mut self, calls: &Calls) {
        self.bytes += own(calls);
        for text in texts(calls) {
            match self.texts.get_mut(text) {
                Some(places) => *places += 1,
                None => {
                    self.bytes += text.len() + BESIDE;
                    self.texts.insert(text.clone(), 1);
                }
            }
        }
    }

    fn remove(&mut self, calls: &Calls) {
        self.bytes -= own(calls);
        for text in texts(calls) {
            let Some(places) = self.texts.get_mut(text) else {
                continue;
            };
            *places -= 1;
            if *places == 0 {
                self.texts.remove(text);
                self.bytes -= text.len() + BESIDE;
            }
        }
    }

    /// Replaces texts by equal texts that are already held.
    fn share(&self, calls: &mut Calls) {
        let share = |text: &mut Arc<str>| {
            if let Some((known, _)) = self.texts.get_key_value(text) {
                *text = known.clone();
            }
        };
        for frame in &mut calls.frames {
            let Frame { symbol, file, .. } = frame;
            share(&mut frame.module);
            symbol.iter_mut().chain(file).for_each(share);
        }
        calls.api.iter_mut().for_each(share);
    }
}

/// Calls that were given to a reader, by their numbers.
pub(super) struct KnownCalls {
    /// Calls by number, each with its place in the order in which they were given.
    calls: HashMap<u32, (u64, Arc<Calls>)>,
    by_time: BTreeMap<u64, u32>,
    time: u64,
    weight: Weight,
    pub(super) most_bytes: usize,
}

impl Default for KnownCalls {
    fn default() -> Self {
        Self {
            calls: HashMap::new(),
            by_time: BTreeMap::new(),
            time: 0,
            weight: Weight::default(),
            most_bytes: MOST_BYTES,
        }
    }
}

impl KnownCalls {
    /// Adds calls, replacing earlier calls with their number: each file of a trace gives its own calls anew.
    pub(super) fn add(&mut self, number: u32, mut calls: Calls) {
        self.remove(number);
        self.weight.share(&mut calls);
        self.weight.add(&calls);
        self.time += 1;
        self.by_time.insert(self.time, number);
        self.calls.insert(number, (self.time, Arc::new(calls)));
        while self.weight.bytes > self.most_bytes || self.calls.len() > MOST_HELD {
            match self.by_time.first_key_value() {
                Some((time, first)) if *time < self.time => self.remove(*first),
                _ => break,
            }
        }
    }

    fn remove(&mut self, number: u32) {
        if let Some((time, calls)) = self.calls.remove(&number) {
            self.by_time.remove(&time);
            self.weight.remove(&calls);
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<Arc<Calls>> {
        self.calls.get(&number).map(|(_, calls)| calls.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(symbol: &str, frames: usize) -> Calls {
        let frame = Frame {
            symbol: Some(symbol.into()),
            ..Frame::default()
        };
        Calls {
            frames: vec![frame; frames],
            ..Calls::default()
        }
    }

    /// Test that the held calls are bounded in bytes, because the author of a file determines how long the texts of its frames are.
    #[test]
    fn what_is_held_has_a_bound_in_bytes() {
        let mut told = KnownCalls {
            most_bytes: 1 << 20,
            ..KnownCalls::default()
        };
        for number in 0..400 {
            let text = format!("{number}").repeat(8 << 10);
            told.add(number, calls(&text, 1));
            assert!(told.weight.bytes <= 1 << 20, "{}", told.weight.bytes);
        }
        assert!(told.get(0).is_none() && told.get(399).is_some());
        let held: usize = { told.calls.values() }
            .flat_map(|(_, calls)| texts(calls))
            .map(|text| text.len())
            .sum();
        assert!((512 << 10..1 << 20).contains(&held), "{held}");
        // Calls that exceed the limit by themselves are held alone.
        told.add(400, calls(&"x".repeat(2 << 20), 1));
        assert_eq!(told.calls.len(), 1);
        assert!(told.get(400).is_some());
    }

    #[test]
    fn equal_texts_are_held_once() {
        let mut told = KnownCalls {
            most_bytes: 1 << 20,
            ..KnownCalls::default()
        };
        let text = "x".repeat(100 << 10);
        (0..100).for_each(|number| told.add(number, calls(&text, 10)));
        let all: Vec<_> = (0..100).filter_map(|n| told.get(n)).collect();
        assert_eq!(all.len(), 100);
        let first = all[0].frames[0].symbol.as_ref();
        assert!(all.iter().flat_map(|c| &c.frames).all(|f| {
            let symbol = f.symbol.as_ref();
            symbol.zip(first).is_some_and(|(a, b)| Arc::ptr_eq(a, b))
        }));
        // A text is dropped with the last place that uses it.
        (0..100).for_each(|number| told.remove(number));
        assert_eq!((told.weight.bytes, told.weight.texts.len()), (0, 0));
    }

    #[test]
    fn a_number_that_is_told_again_has_its_later_calls() {
        let mut told = KnownCalls::default();
        told.add(7, calls("a", 1));
        told.add(8, calls("a", 1));
        told.add(7, calls("b", 2));
        assert_eq!(told.get(7).map(|c| c.frames.len()), Some(2));
        told.most_bytes = 0;
        told.add(9, calls("c", 1));
        assert!(told.get(7).is_none() && told.get(8).is_none() && told.get(9).is_some());
    }
}
