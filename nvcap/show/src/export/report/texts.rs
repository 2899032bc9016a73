//! Texts by number: each is in the page once.

use std::collections::HashMap;

use serde_json::Value;

/// The most that are kept apart.
const MOST: usize = 1 << 16;

/// Texts in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Texts {
    numbers: HashMap<String, u32>,
    all: Vec<String>,
    /// Number of the text that stands for those that there was no room for.
    others: Option<u32>,
}

impl Texts {
    /// The number of a text.
    pub(super) fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        if self.all.len() >= MOST {
            let next = self.all.len() as u32;
            return *self.others.get_or_insert_with(|| {
                self.all.push(format!(
                    "(not kept apart: {MOST} others were there before it)"
                ));
                next
            });
        }
        let number = self.all.len() as u32;
        self.numbers.insert(text.to_owned(), number);
        self.all.push(text.to_owned());
        number
    }

    /// All of them, for the page.
    pub(super) fn json(&self) -> Value {
        self.all.as_slice().into()
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
}
