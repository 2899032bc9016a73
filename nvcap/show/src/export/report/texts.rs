//! Texts by number: each is in the page once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

/// The most texts that are kept apart, and their bytes.
const MOST: usize = 1 << 16;
const MOST_BYTES: usize = 16 << 20;
/// Text that stands for a longer form that there was no room for.
const NOT_KEPT: &str = "(its full name is not kept: those before it were too long together)";

/// Texts in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Texts {
    numbers: HashMap<Arc<str>, u32>,
    all: Vec<Arc<str>>,
    /// Longer forms of texts, by number.
    longer: BTreeMap<u32, Option<String>>,
    /// Bytes of all these texts.
    bytes: usize,
    /// Number of the text that stands for those that there was no room for.
    others: Option<u32>,
}

impl Texts {
    /// The number of a text.
    pub(super) fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.all.len() as u32;
        if self.others.is_some() || self.all.len() >= MOST || self.bytes + text.len() > MOST_BYTES {
            return *self.others.get_or_insert_with(|| {
                let said = format!("(not kept apart: {number} others were there before it)");
                self.all.push(said.into());
                number
            });
        }
        let text = Arc::<str>::from(text);
        self.bytes += text.len();
        self.numbers.insert(text.clone(), number);
        self.all.push(text);
        number
    }

    /// The number of a text that has a longer form, which is kept once.
    pub(super) fn number_of(&mut self, text: &str, longer: Option<&str>) -> u32 {
        let number = self.number(text);
        let Some(longer) = longer.filter(|_| self.others != Some(number)) else {
            return number;
        };
        if !self.longer.contains_key(&number) {
            let fits = self.bytes + longer.len() <= MOST_BYTES;
            self.bytes += if fits { longer.len() } else { 0 };
            self.longer.insert(number, fits.then(|| longer.to_owned()));
        }
        number
    }

    /// Returns all texts, for the page.
    pub(super) fn json(&self) -> Value {
        self.all.iter().map(|text| &**text).collect()
    }

    /// The longer forms, by number, for the page.
    pub(super) fn longer_json(&self) -> Value {
        let text = |text: &Option<String>| text.as_deref().unwrap_or(NOT_KEPT).into();
        let all = self.longer.iter();
        Value::Object(
            all.map(|(n, longer)| (n.to_string(), text(longer)))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_said() {
        let mut texts = Texts::default();
        for n in 0..MOST {
            assert_eq!(texts.number(&n.to_string()), n as u32);
        }
        assert_eq!(texts.number("5"), 5);
        assert_eq!(texts.number("more"), MOST as u32);
        assert_eq!(texts.number("and more"), MOST as u32);
        let last = texts.json()[MOST].as_str().unwrap().to_owned();
        assert!(last.starts_with("(not kept apart"), "{last}");
    }

    /// Long names of kernels, each launched with many shapes, are in the page once each, and have a bound together.
    #[test]
    fn long_texts_have_a_bound_in_bytes() {
        let mut texts = Texts::default();
        let long = |n: usize| format!("{n}{}", "x".repeat(16 << 10));
        for n in 0..2_000 {
            let (short, longer) = (format!("k{n}"), long(n));
            let number = texts.number_of(&short, Some(&longer));
            assert_eq!(texts.number_of(&short, Some(&longer)), number);
        }
        let kept = texts.longer.values().flatten().map(String::len);
        let all = texts.all.iter().map(|text| text.len());
        assert_eq!(kept.sum::<usize>() + all.sum::<usize>(), texts.bytes);
        assert!(texts.bytes <= MOST_BYTES);
        let json = texts.longer_json();
        assert_eq!(json["3"], long(3));
        assert_eq!(json["1999"], NOT_KEPT);
        // Nor are texts themselves kept beyond it.
        let mut texts = Texts::default();
        let last = (0..2_000).map(|n| texts.number(&long(n))).max();
        let said = texts.json()[last.unwrap() as usize].clone();
        assert_eq!(
            said,
            format!(
                "(not kept apart: {} others were there before it)",
                last.unwrap()
            )
        );
        assert!(texts.bytes <= MOST_BYTES && texts.number("short") == last.unwrap());
    }
}
