//! Labelled time ranges (`--phases FILE`): each event carries the name of the range its time falls into.
//!
//! The file has one range a line, `PHASE name t0 t1`, times in ns of the traced machine's `CLOCK_MONOTONIC`, both
//! included; empty lines and lines that begin with `#` are passed over.

use std::fmt;
use std::sync::Arc;

/// The ranges, sorted for look-ups.
#[derive(Clone, Debug, Default)]
pub struct Phases {
    /// Ranges by start, longer ones first.
    ranges: Vec<Range>,
}

#[derive(Clone, Debug)]
struct Range {
    start: u64,
    end: u64,
    /// The latest end of this range and all before it: a search backwards for a later time can stop here.
    reach: u64,
    name: Arc<str>,
}

/// A line that is no range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseError {
    /// Line number, from 1.
    pub line: usize,
    /// Description of the error.
    pub message: String,
}

impl fmt::Display for PhaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}: {}; a line is `PHASE name t0 t1`, times in ns of CLOCK_MONOTONIC",
            self.line, self.message
        )
    }
}

impl std::error::Error for PhaseError {}

impl Phases {
    /// Reads the file's text.
    ///
    /// # Errors
    /// The first line that is no range.
    pub fn parse(text: &str) -> Result<Self, PhaseError> {
        let mut ranges = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let error = |message: String| PhaseError {
                line: i + 1,
                message,
            };
            let words: Vec<&str> = line.split_whitespace().collect();
            let &["PHASE", name, start, end] = words.as_slice() else {
                return Err(error(format!("'{line}' is no phase")));
            };
            let time = |word: &str| {
                word.parse::<u64>()
                    .map_err(|_| error(format!("'{word}' is no time in ns")))
            };
            let (start, end) = (time(start)?, time(end)?);
            if end < start {
                return Err(error(format!("{name} ends before it starts")));
            }
            ranges.push(Range {
                start,
                end,
                reach: 0,
                name: name.into(),
            });
        }
        ranges.sort_by_key(|r| (r.start, u64::MAX - r.end));
        let mut reach = 0;
        for r in &mut ranges {
            reach = reach.max(r.end);
            r.reach = reach;
        }
        Ok(Self { ranges })
    }

    /// The names of the ranges, by start.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.ranges.iter().map(|r| &*r.name)
    }

    /// The name of the range that `time_ns` falls into; of nested ones the innermost.
    #[must_use]
    pub fn at(&self, time_ns: u64) -> Option<&Arc<str>> {
        let after = self.ranges.partition_point(|r| r.start <= time_ns);
        self.ranges[..after]
            .iter()
            .rev()
            .take_while(|r| r.reach >= time_ns)
            .find(|r| r.end >= time_ns)
            .map(|r| &r.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_and_apart() {
        let p =
            Phases::parse("PHASE outer 10 100\n# note\n\nPHASE inner 20 30\nPHASE later 200 200\n")
                .unwrap();
        let at = |t| p.at(t).map(|n| n.to_string());
        assert_eq!(at(9), None);
        assert_eq!(at(10).as_deref(), Some("outer"));
        assert_eq!(at(25).as_deref(), Some("inner"));
        assert_eq!(at(31).as_deref(), Some("outer"));
        assert_eq!(at(101), None);
        assert_eq!(at(200).as_deref(), Some("later"));
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(Phases::parse("PHASE a 1 2\nPHASE b 3").unwrap_err().line, 2);
        assert_eq!(Phases::parse("PHASE a 5 2").unwrap_err().line, 1);
        assert_eq!(Phases::parse("PHASE a x 2").unwrap_err().line, 1);
    }
}
