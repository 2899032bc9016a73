//! Place of the process's own copy of GP_PUT: the word that always equals GP_PUT.
//!
//! The submitting library writes GP_PUT into video memory and keeps its own count in system memory, near an address that a
//! register holds when the doorbell is rung. For the first doorbells the BPF programs send the memory around all registers
//! together with GP_PUT. A word that equalled GP_PUT each time, over enough different values, is the copy. The result only
//! tells where to look: the BPF programs compare the word with GP_PUT before they trust it, and again while they trust it
//! (`cached_put.rs` there).

use std::collections::BTreeSet;

use nvcap_common::{REGS, WINDOW, Windows};

/// Number of different values of GP_PUT that a place must have held.
const ENOUGH: usize = 8;
/// The stack pointer: memory near it belongs to one call, and is chosen only when nothing else is left.
const STACK: usize = if cfg!(target_arch = "aarch64") { 31 } else { 4 };

/// A place near a register's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the register, as in [`nvcap_common::Site::regs`].
    pub register: u32,
    /// Index of the word in the register's window.
    pub word: u32,
}

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    /// Not enough has been seen.
    More,
    /// The copy is there.
    At(Place),
    /// There is none.
    Nowhere,
    /// Nothing new since the last result.
    Told,
}

/// The search at one store instruction.
#[derive(Debug)]
pub(crate) struct CachedPut {
    /// Bit w of register r: the word has always equalled GP_PUT.
    candidates: [u128; REGS],
    values: BTreeSet<u32>,
    decided: bool,
}

const _: () = assert!(WINDOW == u128::BITS as usize);

impl Default for CachedPut {
    fn default() -> Self {
        Self {
            candidates: [u128::MAX; REGS],
            values: BTreeSet::new(),
            decided: false,
        }
    }
}

impl CachedPut {
    /// A search that is over: its result is known.
    pub(crate) fn decided() -> Self {
        Self {
            decided: true,
            ..Self::default()
        }
    }

    /// Takes in the memory around the registers at one doorbell.
    pub(crate) fn see(&mut self, w: &Windows) -> Agreement {
        if self.decided {
            return Agreement::Told;
        }
        self.values.insert(w.put);
        let shown = w.words.iter().zip(&w.errors);
        for (left, (words, error)) in self.candidates.iter_mut().zip(shown) {
            let mut equal = 0;
            if *error == 0 {
                for (i, word) in words.iter().enumerate() {
                    equal |= u128::from(*word == w.put) << i;
                }
            }
            *left &= equal;
        }
        let place = |r: usize| {
            let left = self.candidates[r];
            (left != 0).then(|| Place {
                register: r as u32,
                word: left.trailing_zeros(),
            })
        };
        let best = (0..REGS)
            .filter(|r| *r != STACK)
            .chain([STACK])
            .find_map(place);
        let verdict = match best {
            None => Agreement::Nowhere,
            Some(place) if self.values.len() >= ENOUGH => Agreement::At(place),
            Some(_) => Agreement::More,
        };
        self.decided = verdict != Agreement::More;
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_common::Header;

    fn windows(put: u32) -> Windows {
        let mut words = [[0xffff_0000; WINDOW]; REGS];
        for (r, window) in words.iter_mut().enumerate() {
            for (i, word) in window.iter_mut().enumerate() {
                *word += (r * WINDOW + i) as u32;
            }
        }
        Windows {
            header: Header::default(),
            ip: 0,
            space: 0,
            channel: 0,
            put,
            pad: 0,
            errors: [0; REGS],
            words,
        }
    }

    #[test]
    fn the_word_that_always_is_gp_put() {
        let mut search = CachedPut::default();
        for put in 1..=9 {
            let mut w = windows(put);
            w.words[14][34] = put;
            w.words[14][35] = put;
            // On the stack, too; and in a word that is equal by chance now and then.
            w.words[STACK][0] = put;
            w.words[2][7] = put & !1;
            let expected = match put {
                1..=7 => Agreement::More,
                8 => Agreement::At(Place {
                    register: 14,
                    word: 34,
                }),
                _ => Agreement::Told,
            };
            assert_eq!(search.see(&w), expected, "{put}");
        }
    }

    #[test]
    fn nowhere_as_soon_as_no_word_is() {
        let mut search = CachedPut::default();
        let mut w = windows(5);
        w.words[3][127] = 5;
        assert_eq!(search.see(&w), Agreement::More);
        w.put = 6;
        assert_eq!(search.see(&w), Agreement::Nowhere);
    }

    #[test]
    fn unread_windows_hold_no_candidate() {
        let mut search = CachedPut::default();
        let mut w = windows(5);
        w.words[3][0] = 5;
        w.errors[3] = -14;
        assert_eq!(search.see(&w), Agreement::Nowhere);
    }

    #[test]
    fn equal_values_say_little() {
        let mut search = CachedPut::default();
        let mut w = windows(1);
        w.words[9][9] = 1;
        for _ in 0..100 {
            assert_eq!(search.see(&w), Agreement::More);
        }
    }
}
