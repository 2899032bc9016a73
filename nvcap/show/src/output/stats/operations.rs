//! Operations by kind.

use std::collections::BTreeMap;

use super::sum::Sum;

/// The two words of a kind.
pub(super) type Kind = (&'static str, &'static str);

/// Number of operations of each kind, and the bytes that they moved.
///
/// A kind is found by the places of its words in memory, which is cheaper than to compare them: this is done for each operation.
/// The words of a kind may be in the program twice, so rows are put together when they are shown.
#[derive(Debug, Default)]
pub(super) struct Operations {
    /// Kinds with their sums; more frequent ones are nearer to the front.
    rows: Vec<(Kind, Sum)>,
}

impl Operations {
    pub(super) fn add(&mut self, kind: Kind, bytes: u64) {
        let is_kind =
            |row: &(Kind, Sum)| std::ptr::eq(row.0.0, kind.0) && std::ptr::eq(row.0.1, kind.1);
        let Some(at) = self.rows.iter().position(is_kind) else {
            let mut first = Sum::default();
            first.add(bytes);
            return self.rows.push((kind, first));
        };
        self.rows[at].1.add(bytes);
        if at > 0 && self.rows[at - 1].1.count < self.rows[at].1.count {
            self.rows.swap(at - 1, at);
        }
    }

    /// The sums, by the kinds' words.
    pub(super) fn by_kind(&self) -> BTreeMap<Kind, Sum> {
        let mut all: BTreeMap<Kind, Sum> = BTreeMap::new();
        for (kind, sum) in &self.rows {
            let of_kind = all.entry(*kind).or_default();
            of_kind.count += sum.count;
            of_kind.bytes = of_kind.bytes.saturating_add(sum.bytes);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_one_wherever_its_words_are() {
        let twice: &'static str = String::from("copy").leak();
        let again: &'static str = String::from("copy").leak();
        assert!(!std::ptr::eq(twice, again));
        let mut operations = Operations::default();
        for (word, bytes) in [(twice, 1), (again, 20), ("launch", 0), (again, 300)] {
            operations.add((word, ""), bytes);
        }
        let all = operations.by_kind();
        let of = |word| all.get(&(word, "")).map(|s| (s.count, s.bytes));
        assert_eq!(of("copy"), Some((3, 321)));
        assert_eq!(of("launch"), Some((1, 0)));
        assert_eq!(all.len(), 2);
    }
}
