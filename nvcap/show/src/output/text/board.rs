//! Sums that stand in the place of lines which come too fast to be read.
//!
//! On a terminal of nvcap's own the sums are written anew in their place. Where the traced command writes to the same terminal, they are
//! one more line each second: nvcap cannot know what stands above.

use std::io;
use std::time::{Duration, Instant};

use super::fast::Fast;
use super::{Formatter, Role, Text};

/// Time between two tables, and between two lines.
const ANEW: Duration = Duration::from_millis(500);
const APPENDED: Duration = Duration::from_secs(1);

/// Number of rows of the table beside those of kernels.
const BESIDE: usize = 8;
/// The most kernels of the table.
const MOST_KERNELS: usize = 12;

impl Text {
    /// Counts a line of an operation that was shown. Sums are shown from the first line on that comes too fast.
    pub(super) fn shown(&mut self) -> io::Result<()> {
        if self.options.fast == Fast::Lines || !self.sums_up() || self.board.is_shown() {
            return Ok(());
        }
        if !self.board.pace.is_too_fast(self.board.began.elapsed()) {
            return Ok(());
        }
        self.end_repeats()?;
        self.board.since = Some(Instant::now());
        self.tally.mark();
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line("", 0, Some(Role::Dim));
        f.text(format_args!(
            "too fast for lines: from here on sums; -l shows each line"
        ));
        f.end();
        self.out.end_object()
    }

    /// Shows the sums anew if that is due.
    pub(super) fn refresh(&mut self) -> io::Result<()> {
        let form = self.options.fast;
        let every = match form {
            Fast::Lines => return Ok(()),
            Fast::Anew => ANEW,
            Fast::Appended => APPENDED,
        };
        let Some(passed) = self.board.since.map(|at| at.elapsed()) else {
            return Ok(());
        };
        if passed < every {
            return Ok(());
        }
        self.board.since = Some(Instant::now());
        let width = self.width();
        let at = self.board.at;
        let time = at.map_or_else(String::new, |at| self.columns.time(at));
        match form {
            Fast::Anew => {
                let kernels = self.out.height().map_or(MOST_KERNELS, |rows| {
                    rows.saturating_sub(BESIDE).min(MOST_KERNELS)
                });
                let rows = self.tally.table(&time, passed, kernels);
                let mut table = Vec::new();
                let mut f = Formatter::new(&mut table, self.color).fitted(width);
                for (n, row) in rows.iter().enumerate() {
                    f.line("", 0, (n == 0).then_some(Role::Dim));
                    f.text(format_args!("{row}"));
                    f.end();
                }
                self.out.passing(&table)?;
            }
            _ => {
                let line = self.tally.in_a_line(passed);
                let mut f = Formatter::new(self.out.object(), self.color).fitted(width);
                f.line(&format!("{time} "), 0, None);
                f.text(format_args!("{line}"));
                f.end();
                self.out.end_object()?;
            }
        }
        self.tally.mark();
        Ok(())
    }
}
