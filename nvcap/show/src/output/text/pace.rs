//! Pace of lines, which tells whether they come too fast to be read.

use std::time::Duration;

/// Length of the time in which lines are counted.
const SPAN: Duration = Duration::from_secs(1);
/// Number of lines in each of two spans in a row that is too many to be read.
const STEADY: u64 = 200;
/// Number of lines in one span that is too many to be read.
const BURST: u64 = 1000;

/// Counts lines in spans of a second.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Begin of the span, as a time since some fixed moment.
    begin: Duration,
    lines: u64,
    /// Number of lines of the span before.
    before: u64,
}

impl Pace {
    /// Takes a line; tells whether lines have come too fast to be read.
    pub(super) fn is_too_fast(&mut self, now: Duration) -> bool {
        let passed = now.saturating_sub(self.begin);
        if passed >= SPAN {
            // After a pause the span before had nothing.
            self.before = if passed < 2 * SPAN { self.lines } else { 0 };
            (self.begin, self.lines) = (now, 0);
        }
        self.lines += 1;
        self.lines > BURST || self.lines > STEADY && self.before > STEADY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of the line, from one on, that is too fast; `lines` are the times of lines, ms.
    fn first(lines: impl Iterator<Item = u64>) -> Option<usize> {
        let mut pace = Pace::default();
        let mut lines = lines;
        let at = lines.position(|ms| pace.is_too_fast(Duration::from_millis(ms)))?;
        Some(at + 1)
    }

    #[test]
    fn what_can_be_read_stays() {
        // A hundred a second for a minute.
        assert_eq!(first((0..6000).map(|n| n * 10)), None);
        // The making of a context: 900 lines at once, then one a second.
        let burst = std::iter::repeat_n(5, 900).chain((1..60).map(|s| s * 1000));
        assert_eq!(first(burst), None);
        // Two bursts with a pause between.
        let bursts = std::iter::repeat_n(5, 900).chain(std::iter::repeat_n(5000, 900));
        assert_eq!(first(bursts), None);
    }

    #[test]
    fn a_steady_stream_and_a_flood_are_too_fast() {
        // 500 a second: in the second second, at its 201st line.
        assert_eq!(first((0..5000).map(|n| n * 2)), Some(701));
        assert_eq!(first((0..5000).map(|n| n / 100)), Some(1001));
    }
}
