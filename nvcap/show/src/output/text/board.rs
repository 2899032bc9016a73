//! Sums that stand in the place of lines which come too fast to be read.
//!
//! On a terminal of nvcap's own the sums are written anew in their place. Where the traced command writes to the same terminal, they are
//! one more line each second: nvcap cannot know what stands above.

use std::io;
use std::time::{Duration, Instant};

use nvcap_decode::record::At;

use super::pace::Pace;
use super::{Formatter, Role, Text};

/// Form of the output where lines come too fast to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fast {
    /// Every line is shown.
    #[default]
    Lines,
    /// Sums, written anew in their place: nobody else writes to the terminal.
    Anew,
    /// Sums, in one more line each second.
    Appended,
}

/// Time between two tables, and between two lines.
const ANEW: Duration = Duration::from_millis(500);
const APPENDED: Duration = Duration::from_secs(1);

/// Rows of the table beside those of kernels.
const BESIDE: usize = 8;
/// Most kernels of the table.
const MOST_KERNELS: usize = 12;

/// State of the change from lines to sums.
#[derive(Debug)]
pub(super) struct Board {
    began: Instant,
    pace: Pace,
    /// Sums are shown, since a line was too fast; the time of the last ones.
    since: Option<Instant>,
    /// Time of the last operation that was no line.
    pub(super) at: Option<At>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            pace: Pace::default(),
            since: None,
            at: None,
        }
    }
}

impl Board {
    /// Tells whether sums are shown, and no lines.
    pub(super) fn is_shown(&self) -> bool {
        self.since.is_some()
    }
}

impl Text {
    /// Takes a line of an operation that was shown: from one that is too fast on there are sums.
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

    /// Shows the sums anew where their time has come.
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
