//! Tables: rows of cells, sorted by a column and filtered by a text.

use std::cmp::Ordering;

use nvcap_show::output::names::pid_name;
use nvcap_show::output::style::Plain;
use nvcap_show::output::units::{Bytes, Nanoseconds};

/// Value by which a cell is sorted.
#[derive(Clone, Debug, PartialEq)]
pub enum Rank {
    /// Not known: behind all others.
    None,
    /// A number.
    Number(f64),
    /// Its text.
    Text,
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Text that is shown.
    pub text: String,
    /// Its place among others of its column.
    pub rank: Rank,
}

impl Cell {
    /// Creates the cell for an unknown value.
    pub(crate) fn none() -> Self {
        Self {
            text: "-".to_owned(),
            rank: Rank::None,
        }
    }

    /// Creates the cell of a text, without characters that could do something to the terminal.
    pub(crate) fn text(text: &str) -> Self {
        match text {
            "" => Self::none(),
            _ => Self {
                text: Plain(text).to_string(),
                rank: Rank::Text,
            },
        }
    }

    /// Creates the cell of a number, with the text that is shown for it.
    pub(crate) fn shown(text: impl ToString, rank: f64) -> Self {
        Self {
            text: text.to_string(),
            rank: Rank::Number(rank),
        }
    }

    /// A process.
    pub(crate) fn pid(pid: u32) -> Self {
        Self::shown(pid_name(pid), f64::from(pid))
    }

    /// A count.
    pub(crate) fn count(n: u64) -> Self {
        Self::shown(n, n as f64)
    }

    /// A count, where it is known.
    pub(crate) fn known(n: Option<u64>) -> Self {
        n.map_or_else(Self::none, Self::count)
    }

    /// A rate.
    pub(crate) fn rate(rate: Option<f64>) -> Self {
        rate.map_or_else(Self::none, |rate| Self::shown(format!("{rate:.0}"), rate))
    }

    /// A time, ns.
    pub(crate) fn time(ns: Option<u64>) -> Self {
        ns.map_or_else(Self::none, |ns| Self::shown(Nanoseconds(ns), ns as f64))
    }

    /// Bytes.
    pub(crate) fn bytes(n: u64) -> Self {
        Self::shown(Bytes(n as f64), n as f64)
    }

    /// Marks the number as the least that it may be, where something of it is missing.
    pub(crate) fn at_least(self, is_part: bool) -> Self {
        self.marked(is_part, ">=")
    }

    /// Puts a mark before the number, where it is known.
    pub(crate) fn marked(mut self, is_marked: bool, mark: &str) -> Self {
        if is_marked && matches!(self.rank, Rank::Number(_)) {
            self.text.insert_str(0, mark);
        }
        self
    }
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// Its width; 0 for what is left of the line.
    pub width: u16,
    /// True for a column of texts, which stand at the left and are sorted from A; numbers stand at the right and are sorted from the greatest.
    pub is_text: bool,
    /// Number by which columns are left out where a line is too narrow: the greatest first, 0 last.
    pub spare: u8,
}

impl Column {
    /// Returns the same column with this number, by which a narrow terminal leaves it out.
    pub(crate) const fn spare(self, spare: u8) -> Self {
        Self { spare, ..self }
    }
}

/// A column of numbers.
pub(crate) const fn number(name: &'static str, width: u16) -> Column {
    Column {
        name,
        width,
        is_text: false,
        spare: 0,
    }
}

/// A column of texts.
pub(crate) const fn text(name: &'static str, width: u16) -> Column {
    Column {
        name,
        width,
        is_text: true,
        spare: 0,
    }
}

/// Identifies what a row is about, so that the chosen row stays chosen when others come before it.
pub(crate) type RowId = (u64, u64);

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Identity of the row.
    pub id: RowId,
    /// The process.
    pub pid: u32,
    /// The process's name.
    pub name: String,
    /// Cells by column.
    pub cells: Vec<Cell>,
    /// Time for which its oldest pending submission has waited, ns, if the row may hang.
    pub suspect: Option<u64>,
}

/// Rows under columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The columns.
    pub columns: &'static [Column],
    /// The rows.
    pub rows: Vec<Row>,
    /// Message that is shown if there is no row.
    pub empty: String,
    /// Part of the whole that the rows are of, where it is not all; shown above them.
    pub part: String,
}

/// Least width of the column that has what is left of the line.
const LEAST_WIDTH: u16 = 16;

/// Order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// The column.
    pub column: usize,
    /// True for the other way round.
    pub reversed: bool,
}

impl Row {
    /// Tells whether a text is in one of the row's cells; letter case does not matter. `text` is in lower case.
    fn has(&self, text: &str) -> bool {
        let in_cell = |cell: &Cell| cell.text.to_lowercase().contains(text);
        text.is_empty() || self.cells.iter().any(in_cell)
    }
}

fn compare(a: Option<&Cell>, b: Option<&Cell>, column: Column) -> Ordering {
    let (Some(a), Some(b)) = (a, b) else {
        return Ordering::Equal;
    };
    match (&a.rank, &b.rank) {
        // The most comes first in columns of numbers, the least in those of texts.
        (Rank::Number(a), Rank::Number(b)) if column.is_text => a.total_cmp(b),
        (Rank::Number(a), Rank::Number(b)) => b.total_cmp(a),
        _ => a.text.to_lowercase().cmp(&b.text.to_lowercase()),
    }
}

impl Table {
    /// Returns the numbers of the columns that a line of this width shows: those of least value are left out as a whole. The column that the rows are
    /// sorted by stays, and so does the first one.
    pub(crate) fn fitting(&self, width: usize, sorted: usize) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let of = |at: &usize| self.columns.get(*at);
        let needs = |at: &usize| match of(at).map_or(0, |c| c.width) {
            0 => usize::from(LEAST_WIDTH) + 1,
            width => usize::from(width) + 1,
        };
        while shown.iter().map(needs).sum::<usize>() > width {
            let rest = shown.iter().skip(1).filter(|at| **at != sorted);
            let Some(least) = rest.max_by_key(|at| (of(at).map_or(0, |c| c.spare), **at)) else {
                break;
            };
            let least = *least;
            shown.retain(|at| *at != least);
        }
        shown
    }

    fn compare_numbers(&self, a: &Row, b: &Row) -> Ordering {
        let cells = self.columns.iter().zip(a.cells.iter().zip(&b.cells));
        let numbers = cells.filter(|(column, _)| !column.is_text);
        let mut all = numbers.map(|(column, (a, b))| compare(Some(a), Some(b), *column));
        all.find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    }

    /// The rows that have the text, in order: those that may hang before the others, where that is asked for.
    pub(crate) fn arranged(&self, order: Order, suspects_first: bool, filter: &str) -> Vec<&Row> {
        let filter = filter.to_lowercase();
        let mut rows: Vec<&Row> = self.rows.iter().filter(|r| r.has(&filter)).collect();
        let at = order.column.min(self.columns.len().saturating_sub(1));
        let Some(column) = self.columns.get(at) else {
            return rows;
        };
        let unknown = |row: &Row| row.cells.get(at).is_none_or(|c| c.rank == Rank::None);
        rows.sort_by(|a, b| {
            let by_suspicion = match suspects_first {
                true => b.suspect.cmp(&a.suspect),
                false => Ordering::Equal,
            };
            let by_cell = compare(a.cells.get(at), b.cells.get(at), *column);
            let by_cell = if order.reversed {
                by_cell.reverse()
            } else {
                by_cell
            };
            // If neither value of this column is known (such as times of the GPU), the other numbers decide, not the order of coming.
            let by_others = || match unknown(a) && unknown(b) {
                true => self.compare_numbers(a, b),
                false => Ordering::Equal,
            };
            by_suspicion
                .then(unknown(a).cmp(&unknown(b)))
                .then(by_cell)
                .then_with(by_others)
                .then(a.id.cmp(&b.id))
        });
        rows
    }
}
