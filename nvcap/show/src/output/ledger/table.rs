//! The ledger's table of channels: the columns that say something, as many as the terminal has room for.

use std::fmt::Write as _;

use nvcap_decode::ledger::{ChannelLedger, Ledger, Totals};
use nvcap_decode::record::ChannelId;

use crate::output::names::{EngineName, known_name, token_name};
use crate::output::plural::plural;
use crate::output::style::{Formatter, Plain, Role};
use crate::output::units::Bytes;

/// Fit of the ledger's table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fit {
    /// True to show every column, whatever is in it, and a row for each channel that submitted anything. A narrow terminal still loses columns.
    pub all: bool,
    /// Width of the terminal in columns; `None` if the output is no terminal.
    pub width: Option<usize>,
    /// True to leave the table out.
    pub without_table: bool,
}

/// A column of the table.
struct Column {
    pub name: &'static str,
    /// True if its cells are aligned to the right, as figures are.
    figures: bool,
    /// Condition on which it is shown.
    shown: Shown,
    of: fn(ChannelId, &ChannelLedger) -> String,
    total: fn(&Totals) -> String,
}

/// Condition on which a column is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Always,
    /// Shown if there is room. The column with the lowest number is left out first.
    Room(u8),
    /// Shown if not all channels have the same cell.
    Differs,
    /// Shown if the cell of at least one channel is not this text.
    Unlike(&'static str),
}

fn nothing(_: &Totals) -> String {
    String::new()
}

const COLUMNS: [Column; 14] = [
    Column {
        name: "channel",
        figures: true,
        shown: Shown::Always,
        of: |id, _| id.0.to_string(),
        total: |_| "total".to_owned(),
    },
    Column {
        name: "process",
        figures: false,
        shown: Shown::Unlike("?"),
        of: |_, c| process(c),
        total: nothing,
    },
    Column {
        name: "gpu",
        figures: false,
        shown: Shown::Differs,
        of: |_, c| c.gpu.map_or_else(|| "?".into(), |g| g.to_string()),
        total: nothing,
    },
    Column {
        name: "token",
        figures: false,
        shown: Shown::Room(1),
        of: |_, c| token_name(c.token),
        total: nothing,
    },
    Column {
        name: "engine",
        figures: false,
        shown: Shown::Always,
        of: |_, c| EngineName(c.engine).to_string(),
        total: nothing,
    },
    Column {
        name: "submissions",
        figures: true,
        shown: Shown::Always,
        of: |_, c| c.submissions.to_string(),
        total: |t| t.submissions.to_string(),
    },
    Column {
        name: "entries",
        figures: true,
        shown: Shown::Room(0),
        of: |_, c| c.entries.to_string(),
        total: |t| t.entries.to_string(),
    },
    Column {
        name: "bytes",
        figures: true,
        shown: Shown::Always,
        of: |_, c| c.bytes.to_string(),
        total: |t| t.bytes.to_string(),
    },
    Column {
        name: "gaps",
        figures: true,
        shown: Shown::Unlike("0"),
        of: |_, c| c.gaps.to_string(),
        total: |t| t.gaps.to_string(),
    },
    Column {
        name: "unreadable",
        figures: true,
        shown: Shown::Unlike("0"),
        of: |_, c| c.unreadable.to_string(),
        total: |t| t.unreadable.to_string(),
    },
    Column {
        name: "late",
        figures: true,
        shown: Shown::Unlike("0"),
        of: |_, c| c.late.to_string(),
        total: |t| t.late.to_string(),
    },
    Column {
        name: "counted",
        figures: true,
        shown: Shown::Unlike("0"),
        of: |_, c| c.doorbells.to_string(),
        total: |t| t.doorbells.to_string(),
    },
    Column {
        name: "passed over",
        figures: true,
        shown: Shown::Unlike("0"),
        of: |_, c| c.skipped.to_string(),
        total: |t| t.skipped.to_string(),
    },
    Column {
        name: "seen from",
        figures: false,
        shown: Shown::Unlike(ITS_START),
        of: |_, c| started(c),
        total: nothing,
    },
];

const ITS_START: &str = "its start";

fn process(c: &ChannelLedger) -> String {
    let name = c.process.as_deref().and_then(known_name).unwrap_or("?");
    match c.pid {
        0 => Plain(name).to_string(),
        pid => format!("{}/{pid}", Plain(name)),
    }
}

fn started(c: &ChannelLedger) -> String {
    match (c.from_start(), c.first) {
        (true, _) => ITS_START.into(),
        (false, Some(first)) => format!("position {first}"),
        (false, None) => "?".into(),
    }
}

/// A column with its cells.
struct Cells {
    column: &'static Column,
    cells: Vec<String>,
    total: String,
    width: usize,
}

impl Cells {
    fn of(column: &'static Column, rows: &[(ChannelId, &ChannelLedger)], totals: &Totals) -> Self {
        let cells: Vec<String> = rows.iter().map(|(id, c)| (column.of)(*id, c)).collect();
        let total = (column.total)(totals);
        let width = [column.name, &total]
            .into_iter()
            .chain(cells.iter().map(String::as_str))
            .map(|cell| cell.chars().count())
            .max();
        Self {
            column,
            cells,
            total,
            width: width.unwrap_or(0).min(WIDEST),
        }
    }

    /// Tells whether the column is shown, if there is room for it.
    fn is_shown(&self) -> bool {
        match self.column.shown {
            Shown::Always | Shown::Room(_) => true,
            Shown::Differs => self.cells.iter().any(|c| *c != self.cells[0]),
            Shown::Unlike(usual) => self.cells.iter().any(|c| c != usual),
        }
    }
}

/// The widest column, characters; what is longer, as a name in a forged recording, sticks out.
const WIDEST: usize = 200;

/// Leaves out columns until a row fits this width, as far as columns may be left out.
fn narrow(columns: &mut Vec<Cells>, width: usize) {
    loop {
        let wide: usize = columns.iter().map(|c| c.width + 2).sum();
        let next = columns
            .iter()
            .enumerate()
            .filter_map(|(at, c)| match c.column.shown {
                Shown::Room(order) => Some((order, at)),
                _ => None,
            })
            .min();
        match next {
            Some((_, at)) if wide > width + 2 => {
                columns.remove(at);
            }
            _ => return,
        }
    }
}

/// Writes the table, then a line that sums up the channels with one submission, and one for those without any.
pub(super) fn write(f: &mut Formatter<'_>, ledger: &Ledger, totals: &Totals, fit: Fit) {
    let (mut rows, mut silent) = (Vec::new(), 0);
    let (mut once, mut once_bytes) = (0, 0);
    // A channel with one submission, which is its set-up. Such channels become one line if other channels have a row and if that
    // saves lines.
    let is_once = |c: &ChannelLedger| c.submissions == 1 && c.is_complete();
    let count = |has: fn(u64) -> bool| {
        ledger
            .channels()
            .filter(|(_, c)| has(c.submissions))
            .count()
    };
    let fold = !fit.all && count(|n| n > 1) > 0 && count(|n| n == 1) > 1;
    for (id, c) in ledger.channels() {
        if c.submissions == 0 && c.doorbells == 0 && c.is_complete() {
            silent += 1;
        } else if fold && is_once(c) {
            once += 1;
            once_bytes += c.bytes;
        } else {
            rows.push((id, c));
        }
    }
    if !rows.is_empty() {
        let all = COLUMNS.iter().map(|c| Cells::of(c, &rows, totals));
        let mut columns: Vec<Cells> = all.filter(|c| fit.all || c.is_shown()).collect();
        if let Some(width) = fit.width {
            narrow(&mut columns, width);
        }
        row(f, &columns, |c| c.column.name, Some(Role::Operation));
        for (n, (_, channel)) in rows.iter().enumerate() {
            let role = (!channel.is_complete()).then_some(Role::Alarm);
            row(f, &columns, |c| &c.cells[n], role);
        }
        row(f, &columns, |c| &c.total, Some(Role::Operation));
    }
    let mut sum = |text: String| {
        f.line("", 0, Some(Role::Dim));
        f.text(format_args!("{text}"));
        f.end();
    };
    if once > 0 {
        sum(format!(
            "{} with one submission each, {} in all",
            plural(once, "more channel"),
            Bytes(once_bytes as f64)
        ));
    }
    if silent > 0 {
        sum(format!(
            "{} that submitted nothing",
            plural(silent, "channel")
        ));
    }
}

/// One row; words to the left, figures to the right.
fn row(
    f: &mut Formatter<'_>,
    columns: &[Cells],
    cell: impl Fn(&Cells) -> &str,
    role: Option<Role>,
) {
    let mut line = String::new();
    for (i, c) in columns.iter().enumerate() {
        let (gap, width) = (if i == 0 { "" } else { "  " }, c.width);
        // Writing to a string does not fail.
        let _ = match c.column.figures {
            true => write!(line, "{gap}{:>width$}", cell(c)),
            false => write!(line, "{gap}{:<width$}", cell(c)),
        };
    }
    f.line("", 0, role);
    f.text(format_args!("{}", line.trim_end()));
    f.end();
}

#[cfg(test)]
mod tests {
    use super::Fit;
    use crate::output::ledger::fitted;
    use nvcap_decode::ledger::Ledger;
    use nvcap_decode::record::{
        At, ChannelId, CpuVa, How, Life, Process, Record, Segment, Submission,
    };

    const PID: u32 = 4711;

    fn submission(channel: u32, position: u64) -> Record {
        Record::Submission(Submission {
            absent_ns: None,
            at: At {
                time_ns: 1,
                pid: PID,
                tid: PID,
            },
            channel: ChannelId(channel),
            token: Some(channel),
            position,
            gp_get: None,
            prev_put: position as u32,
            gp_put: position as u32 + 1,
            ip: None,
            doorbell: Some(CpuVa(0x90)),
            how: How::Trapped,
            late: false,
            thread: None,
            segments: vec![Segment {
                entry: 0x2_0080_0000 | (1 << 42),
                bytes: vec![0; 4],
                holes: Vec::new(),
            }],
        })
    }

    fn table(ledger: &Ledger, fit: Fit) -> String {
        let mut out = Vec::new();
        fitted(&mut out, ledger, false, fit);
        String::from_utf8(out).unwrap()
    }

    /// Channel 0 with two submissions, and others with one.
    fn ledger(others: u32) -> Ledger {
        let mut l = Ledger::new();
        l.record(&submission(0, 0));
        l.record(&submission(0, 1));
        for n in 1..=others {
            l.record(&submission(n, 0));
        }
        l
    }

    #[test]
    fn columns_that_say_nothing_are_left_out() {
        let shown = table(&ledger(0), Fit::default());
        let expected = "channel  process  token    engine  submissions  entries  bytes\n";
        assert!(shown.starts_with(expected), "{shown}");
        let mut l = ledger(0);
        l.record(&submission(0, 5));
        let shown = table(&l, Fit::default());
        let header = shown.lines().next().unwrap();
        assert!(header.ends_with("bytes  gaps"), "{shown}");
        let all = Fit {
            all: true,
            width: Some(40),
            ..Fit::default()
        };
        let shown = table(&ledger(0), all);
        let header = shown.lines().next().unwrap();
        assert!(
            header.ends_with("gaps  unreadable  late  counted  passed over  seen from"),
            "{shown}"
        );
    }

    /// A format's width is 65,535 at most, and a forged recording may name a process at greater length.
    #[test]
    fn a_process_with_a_name_of_70_000_bytes() {
        let name = "n".repeat(70_000);
        let mut l = ledger(0);
        l.record(&Record::Process(Process {
            at: At {
                time_ns: 0,
                pid: PID,
                tid: PID,
            },
            life: Life::Present { name: name.clone() },
        }));
        for width in [None, Some(80)] {
            let shown = table(
                &l,
                Fit {
                    all: false,
                    width,
                    ..Fit::default()
                },
            );
            assert!(shown.contains("nnn"), "the process is named");
            let longest = shown.lines().map(str::len).max();
            // Its own row may stick out; the others have the width of the widest column.
            let others = shown.lines().filter(|line| !line.contains("nnn"));
            let others = others.map(str::len).max();
            assert!(longest.unwrap() <= name.len() + 400 && others.unwrap() <= 400);
        }
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns() {
        for (width, without) in [
            (62, &[][..]),
            (61, &["entries"][..]),
            (52, &["entries", "token"]),
        ] {
            let fit = Fit {
                all: false,
                width: Some(width),
                ..Fit::default()
            };
            let shown = table(&ledger(0), fit);
            let header = shown.lines().next().unwrap();
            assert!(header.chars().count() <= width, "{width}: {header}");
            for name in ["entries", "token"] {
                assert_eq!(
                    header.contains(name),
                    !without.contains(&name),
                    "{width}: {header}"
                );
            }
        }
    }

    #[test]
    fn channels_with_their_set_up_alone_are_one_line() {
        let shown = table(&ledger(3), Fit::default());
        let rows = shown.lines().take_while(|l| !l.contains("total")).count();
        assert_eq!(rows, 2, "{shown}");
        assert!(
            shown.contains("\n3 more channels with one submission each, 12 B in all\n"),
            "{shown}"
        );
        assert!(
            shown.contains("complete: 5 submissions on 4 channels"),
            "{shown}"
        );
        // One row is as short as one line; and who asks for all gets all.
        for (others, all) in [(1, false), (3, true)] {
            let shown = table(
                &ledger(others),
                Fit {
                    all,
                    width: None,
                    ..Fit::default()
                },
            );
            assert!(!shown.contains("more channel"), "{shown}");
        }
    }
}
