//! A comparison as people know it from `diff -u`: hunks, channel by channel, and then the sums, which a terminal shows last.

use std::cmp::Reverse;

use crate::output::kernel_name;
use crate::output::plural::plural;
use crate::output::style::{Formatter, Plain, Role};

use super::align::{Comparison, Edit, lines, name_of};
use super::collect::{Line, RecordingLines, Words};
use super::sums::Sum;

/// The most sums of a kind that text shows, unless all are asked for: those that differ most.
const SUMS: usize = 10;
/// The most lines of hunks that text shows, unless all are asked for.
const LINES: usize = 40;

/// Input of the text of a comparison: both recordings with their names, and words.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    /// Name and content of the first recording.
    pub a: (&'a str, &'a RecordingLines),
    /// Name and content of the second recording.
    pub b: (&'a str, &'a RecordingLines),
    /// Texts of both recordings.
    pub words: &'a Words,
    /// True for sums alone, without hunks.
    pub brief: bool,
    /// True for all sums and hunks, not only the sums that differ most and the first hunks.
    pub all: bool,
}

impl Sum {
    /// Returns the difference, in number and in bytes.
    fn difference(&self) -> [u128; 2] {
        let (number, bytes) = (self.a.0.abs_diff(self.b.0), self.a.1.abs_diff(self.b.1));
        [number, bytes].map(u128::from)
    }

    /// Its name, with that of a kernel demangled.
    pub(super) fn title(&self, words: &Words) -> String {
        match (self.kernel, self.of) {
            (Some(kernel), _) => format!("launch {}", kernel_name::demangled(words.text(kernel))),
            (None, "kernel") => format!("launch {}", self.name),
            (None, "method") => format!("method {}", self.name),
            _ => self.name.clone(),
        }
    }
}

/// A line as it is shown, with the names of its addresses.
pub(super) fn shown(
    comparison: &Comparison,
    words: &Words,
    recording: &RecordingLines,
    of_b: bool,
    line: &Line,
) -> String {
    let mut text = words.text(line.text).to_owned();
    if let Some(kernel) = line.kernel {
        text = format!("{text} {}", kernel_name::short(words.text(kernel)));
    }
    let numbers = match of_b {
        false => &comparison.numbers.0,
        true => &comparison.numbers.1,
    };
    // A program has an address here where its kernel has no name.
    for address in recording.of(line) {
        text = format!("{text} {}", numbers.name(address));
    }
    text
}

/// Writes the comparison.
pub fn text(out: &mut Vec<u8>, color: bool, comparison: &Comparison, with: Shown<'_>) {
    let mut f = Formatter::new(out, color);
    let mut line = |role: Option<Role>, text: &str| {
        f.line("", 0, role);
        f.text(format_args!("{}", Plain(text)));
        f.end();
    };
    if comparison.changed != (0, 0) && !with.brief {
        hunks(&mut line, comparison, with);
        line(None, "");
    }
    sums(&mut line, comparison, with);
}

/// Writes the hunks, or the first lines of them.
fn hunks(line: Write<'_>, comparison: &Comparison, with: Shown<'_>) {
    line(Some(Role::Alarm), &format!("--- {}", with.a.0));
    line(Some(Role::Good), &format!("+++ {}", with.b.0));
    let mut room = if with.all { usize::MAX } else { LINES };
    let (mut lines_left_out, mut hunks_left_out) = (0u64, 0u64);
    for pair in &comparison.pairs {
        if pair.hunks.is_empty() {
            continue;
        }
        let (of_a, of_b) = (
            lines(with.a.1, pair.a, comparison.observed),
            lines(with.b.1, pair.b, comparison.observed),
        );
        let name = name_of(pair, with.a.1, with.b.1);
        let text_a = |at: u32| {
            let line = of_a.get(at as usize)?;
            Some(shown(comparison, with.words, with.a.1, false, line))
        };
        let text_b = |at: u32| {
            let line = of_b.get(at as usize)?;
            Some(shown(comparison, with.words, with.b.1, true, line))
        };
        for hunk in &pair.hunks {
            let shown = hunk.edits.len().min(room);
            let left_out = (hunk.edits.len() - shown) as u64;
            lines_left_out += left_out;
            hunks_left_out += u64::from(left_out > 0);
            room -= shown;
            if shown == 0 {
                continue;
            }
            let head = format!("@@ -{} +{} @@ {name}", range(hunk.a), range(hunk.b));
            line(Some(Role::Name), &head);
            for edit in hunk.edits.iter().take(shown) {
                let (role, sign, text) = match *edit {
                    Edit::Both(a, _) => (None, ' ', text_a(a)),
                    Edit::OnlyA(a) => (Some(Role::Alarm), '-', text_a(a)),
                    Edit::OnlyB(b) => (Some(Role::Good), '+', text_b(b)),
                };
                line(role, &format!("{sign}{}", text.unwrap_or_default()));
            }
        }
    }
    if lines_left_out > 0 {
        let lines = plural(lines_left_out, "line");
        let hunks = plural(hunks_left_out, "hunk");
        let text = format!("... {lines} more of {hunks} (-v shows all)");
        line(Some(Role::Dim), &text);
    }
}

/// Writes a first line and a number of lines as `diff -u` does: an empty range has the line before it.
fn range((from, count): (u32, u32)) -> String {
    match count {
        0 => format!("{from},0"),
        1 => (from + 1).to_string(),
        _ => format!("{},{count}", from + 1),
    }
}

/// Writer of lines, each with its role.
type Write<'a> = &'a mut dyn FnMut(Option<Role>, &str);

/// Writes the sums that differ, and what was found besides.
fn sums(line: Write<'_>, comparison: &Comparison, with: Shown<'_>) {
    if !comparison.differs() {
        no_difference(line, comparison);
    } else if comparison.sums.iter().any(Sum::differs) {
        let head = format!(
            "{:>14} {:>14} {:>14}  what",
            "first", "second", "difference"
        );
        line(Some(Role::Operation), &head);
    }
    for of in ["doorbells", "operation", "kernel", "method"] {
        sums_of(line, comparison, with, of);
    }
    let (a, b) = comparison.changed;
    if (a, b) != (0, 0) {
        let hunks: usize = comparison.pairs.iter().map(|pair| pair.hunks.len()).sum();
        line(
            None,
            &format!(
                "{} of the first and {b} of the second alone, in {}",
                plural(a, "line"),
                plural(hunks as u64, "hunk")
            ),
        );
    }
    if comparison.observed {
        line(
            None,
            "doorbells are not compared: at least one of the recordings was observed, and its submissions are looks",
        );
    }
    if !comparison.is_whole() {
        let (a, b) = comparison.not_compared;
        line(
            Some(Role::Alarm),
            &format!(
                "NOT ALL COMPARED: {a} lines of the first and {b} of the second were counted alone (-e takes a part of them)"
            ),
        );
    }
}

/// Writes the amount in which there is no difference.
fn no_difference(line: Write<'_>, comparison: &Comparison) {
    if let Some(sum) = comparison.sums.iter().find(|sum| sum.of == "doorbells") {
        let what = match comparison.observed {
            true => format!("{} B of pushbuffer", sum.a.1),
            false => format!("{} of {} B", plural(sum.a.0, "submission"), sum.a.1),
        };
        line(None, &format!("no difference in {what}"));
    }
}

/// Writes the sums of a kind that differ, the greatest difference first, and how many more do.
fn sums_of(line: Write<'_>, comparison: &Comparison, with: Shown<'_>, of: &str) {
    let of_kind = |sum: &&Sum| sum.differs() && sum.of == of;
    let mut differing: Vec<&Sum> = comparison.sums.iter().filter(of_kind).collect();
    // Numbers and bytes, each as a part of the differences of its kind.
    let all = |n: usize| -> u128 { differing.iter().map(|sum| sum.difference()[n]).sum() };
    let all = [all(0), all(1)];
    let part = |sum: &Sum| {
        let parts = sum.difference().into_iter().zip(all);
        parts.map(|(of, all)| of * 1_000_000_000 / all.max(1)).max()
    };
    differing.sort_by_key(|sum| Reverse(part(sum)));
    let shown = if with.all { differing.len() } else { SUMS };
    let mut row = |a: u64, b: u64, what: &str| {
        let by = i128::from(b) - i128::from(a);
        line(None, &format!("{a:>14} {b:>14} {by:>+14}  {what}"));
    };
    for sum in differing.iter().take(shown) {
        let (title, bytes) = match of {
            "doorbells" => ("doorbells".to_owned(), "bytes submitted".to_owned()),
            _ => {
                let title = sum.title(with.words);
                let bytes = format!("bytes of {title}");
                (title, bytes)
            }
        };
        if sum.a.0 != sum.b.0 {
            row(sum.a.0, sum.b.0, &title);
        }
        if sum.has_bytes && sum.a.1 != sum.b.1 {
            row(sum.a.1, sum.b.1, &bytes);
        }
    }
    let left_out = differing.len().saturating_sub(shown) as u64;
    if left_out > 0 {
        let what = match of {
            "kernel" => plural(left_out, "more kernel"),
            "method" => plural(left_out, "more method"),
            _ => plural(left_out, "more operation"),
        };
        let text = format!("{:44}  {what}, which differ less (-v shows all)", "");
        line(Some(Role::Dim), &text);
    }
}
