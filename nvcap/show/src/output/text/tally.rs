//! Sums of what the program asked for, for the end of a trace on a terminal.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use nvcap_decode::decode::event::{Context, Copy, Inline, InlineContent, LaunchKind, Operation};

use crate::output::describe::kernel;
use crate::output::names::direction;
use crate::output::plural::{plural, plural_of};
use crate::output::units::Bytes;

/// Mark behind a name that is not certain, as lines have it.
const UNCERTAIN: &str = "?";
/// The most kernels that have a line.
const LINES: usize = 6;
/// The most kernels that are told apart.
const MOST: usize = 1 << 16;

/// Sums of operations.
#[derive(Debug, Default)]
pub(super) struct Tally {
    launches: Count,
    /// Launches by the kernel's name.
    kernels: HashMap<String, Count>,
    /// Number and bytes of copies by direction, fills among them.
    copies: BTreeMap<&'static str, (Count, Count)>,
    replays: Count,
}

/// A sum, and what it was when it was shown last.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: u64,
    marked: u64,
    /// True if some of the launches have a kernel that is not certain.
    is_uncertain: bool,
}

impl Count {
    fn add(&mut self, more: u64) {
        self.all = self.all.saturating_add(more);
    }

    /// Adds another sum.
    fn join(&mut self, other: Self) {
        self.all += other.all;
        self.marked += other.marked;
    }

    /// Mark behind a kernel's name.
    fn mark_of_doubt(self) -> &'static str {
        if self.is_uncertain { UNCERTAIN } else { "" }
    }

    /// Returns the number a second since it was shown, `passed` before.
    fn rate(self, passed: Duration) -> f64 {
        (self.all - self.marked) as f64 / passed.as_secs_f64().max(1e-3)
    }
}

impl Tally {
    /// Takes an operation; those of the driver's own are no part of the sums.
    pub(super) fn take(&mut self, c: &Context, entry: u32, op: &Operation) {
        if c.part_of(entry).is_some() {
            return;
        }
        match op {
            Operation::Launch(l) => match l.kind {
                LaunchKind::User | LaunchKind::Unresolved => {
                    self.launches.add(1);
                    let name = kernel(l, false).unwrap_or_else(|| "(QMD not seen)".to_owned());
                    // Launches whose name is not certain are counted with those whose is.
                    let (name, is_certain) = match name.strip_suffix(UNCERTAIN) {
                        Some(name) => (name.to_owned(), false),
                        None => (name, true),
                    };
                    if self.kernels.len() < MOST || self.kernels.contains_key(&name) {
                        let count = self.kernels.entry(name).or_default();
                        count.add(1);
                        count.is_uncertain |= !is_certain;
                    }
                }
                LaunchKind::DriverMemset => self.moved("fill", l.moves.and_then(|m| m.bytes)),
                LaunchKind::DriverCopy => {
                    self.moved(direction(l.copy_direction()), l.moves.and_then(|m| m.bytes));
                }
                _ => {}
            },
            Operation::Copy(copy) if copy.dst.is_some() => {
                self.moved(word_of(copy), Some(copy.bytes));
            }
            Operation::Inline(i) => {
                if let Some(word) = word_of_inline(i) {
                    self.moved(word, Some(i.bytes));
                }
            }
            Operation::Graph(_) => self.replays.add(1),
            _ => {}
        }
    }

    fn moved(&mut self, word: &'static str, bytes: Option<u64>) {
        let (count, sum) = self.copies.entry(word).or_default();
        count.add(1);
        sum.add(bytes.unwrap_or(0));
    }

    /// The lines, ten at most; none where nothing was asked for.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let kernels = self.by_launches();
        if self.launches.all > 0 {
            let launches = plural_of(self.launches.all, "launch", "launches");
            let of = plural(kernels.len() as u64, "kernel");
            lines.push(format!("{launches} of {of}"));
        }
        for (kernel, count) in kernels.iter().take(LINES) {
            lines.push(format!(
                "{:>9}  {kernel}{}",
                count.all,
                count.mark_of_doubt()
            ));
        }
        if let Some(rest) = kernels.get(LINES..).filter(|rest| !rest.is_empty()) {
            let launches: u64 = rest.iter().map(|(_, count)| count.all).sum();
            let others = plural(rest.len() as u64, "other kernel");
            lines.push(format!("{launches:>9}  {others}"));
        }
        if !self.copies.is_empty() {
            let moved = |(word, (count, bytes)): (&&str, &(Count, Count))| {
                format!("{word} {} of {}", count.all, Bytes(bytes.all as f64))
            };
            let all: Vec<String> = self.copies.iter().map(moved).collect();
            lines.push(format!("copies and fills: {}", all.join(", ")));
        }
        if self.replays.all > 0 {
            lines.push(plural(self.replays.all, "graph replay"));
        }
        lines
    }

    /// Kernels with their launches, the most first.
    fn by_launches(&self) -> Vec<(&String, Count)> {
        let mut kernels: Vec<(&String, Count)> =
            self.kernels.iter().map(|(k, n)| (k, *n)).collect();
        kernels.sort_by(|a, b| b.1.all.cmp(&a.1.all).then_with(|| a.0.cmp(b.0)));
        kernels
    }

    /// Marks the sums as shown: rates are counted from here on.
    pub(super) fn mark(&mut self) {
        let kernels = self.kernels.values_mut();
        let copies = self.copies.values_mut().flat_map(|(n, bytes)| [n, bytes]);
        let all = [&mut self.launches, &mut self.replays];
        for count in kernels.chain(copies).chain(all) {
            count.marked = count.all;
        }
    }

    /// Returns a table of the sums, with rates since they were last shown, `passed` before. `time` is that of the last line, as the column has it;
    /// `most` is the number of kernels that have a row.
    pub(super) fn table(&self, time: &str, passed: Duration, most: usize) -> Vec<String> {
        let row = |count: Count, what: &str| {
            format!("{:>9.0} {:>11}  {what}", count.rate(passed), count.all)
        };
        let time = time.trim();
        let mut rows = vec![format!(
            "{:>9} {:>11}  at {time} s (-l: every line; Ctrl-C: the end)",
            "/s", "in all"
        )];
        let kernels = self.by_launches();
        if self.launches.all > 0 {
            let of = plural(kernels.len() as u64, "kernel");
            rows.push(row(self.launches, &format!("launches of {of}")));
        }
        for (kernel, count) in kernels.iter().take(most) {
            let doubt = count.mark_of_doubt();
            rows.push(row(*count, &format!("  {kernel}{doubt}")));
        }
        if let Some(rest) = kernels.get(most..).filter(|rest| !rest.is_empty()) {
            let mut others = Count::default();
            for (_, count) in rest {
                others.join(*count);
            }
            let what = plural(rest.len() as u64, "other kernel");
            rows.push(row(others, &format!("  {what}")));
        }
        if self.replays.all > 0 {
            rows.push(row(self.replays, "graph replays"));
        }
        for (word, (count, bytes)) in &self.copies {
            let (rate, all) = (Bytes(bytes.rate(passed)), Bytes(bytes.all as f64));
            rows.push(row(*count, &format!("{word}: {rate}/s, {all} in all")));
        }
        rows
    }

    /// Returns the sums in one line: rates, and the kernels that are launched most.
    pub(super) fn in_a_line(&self, passed: Duration) -> String {
        let mut parts = Vec::new();
        let mut add = |count: Count, what: &str| {
            if count.all > 0 {
                parts.push(format!("{:.0} {what}/s", count.rate(passed)));
            }
        };
        add(self.launches, "launches");
        add(self.replays, "replays");
        let mut copies = (Count::default(), Count::default());
        for (count, bytes) in self.copies.values() {
            copies.0.join(*count);
            copies.1.join(*bytes);
        }
        add(copies.0, "copies and fills");
        if copies.0.all > 0 {
            parts.push(format!("{}/s", Bytes(copies.1.rate(passed))));
        }
        let now = self.kernels.iter().max_by_key(|(name, count)| {
            let since = count.all - count.marked;
            (since, std::cmp::Reverse(*name))
        });
        if let Some((kernel, count)) = now.filter(|(_, count)| count.all > count.marked) {
            let (some, all) = (count.rate(passed), self.launches.rate(passed).max(1e-3));
            parts.push(format!(
                "{:.0} % of launches {kernel}{}",
                100.0 * some / all,
                count.mark_of_doubt()
            ));
        }
        parts.join(", ")
    }
}

fn word_of(copy: &Copy) -> &'static str {
    match (copy.src, copy.direction) {
        (None, _) => "fill",
        (_, Some(d)) => direction(d),
        (_, None) => "copy",
    }
}

/// Returns the word for an inline write; none for one that is not the program's.
fn word_of_inline(i: &Inline) -> Option<&'static str> {
    match (i.content, i.fill) {
        (Some(InlineContent::Data), Some(_)) => Some("fill"),
        (Some(InlineContent::Data), None) => Some(direction(i.direction)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(kernels: &[(&str, u64, u64)]) -> Tally {
        let mut tally = Tally::default();
        for (name, all, marked) in kernels {
            let count = Count {
                all: *all,
                marked: *marked,
                is_uncertain: *name == "relu",
            };
            tally.kernels.insert((*name).to_owned(), count);
            tally.launches.all += all;
            tally.launches.marked += marked;
        }
        tally
    }

    #[test]
    fn a_table_has_rates_and_sums() {
        let mut tally = tally(&[("gemm", 500, 400), ("add", 3000, 1000), ("relu", 7, 7)]);
        tally.moved("h2d", Some(3 << 20));
        let rows = tally.table("  12.345678 ", Duration::from_millis(500), 2);
        assert_eq!(
            rows,
            [
                "       /s      in all  at 12.345678 s (-l: every line; Ctrl-C: the end)",
                "     4200        3507  launches of 3 kernels",
                "     4000        3000    add",
                "      200         500    gemm",
                "        0           7    1 other kernel",
                "        2           1  h2d: 6.0 MiB/s, 3.0 MiB in all",
            ]
        );
        let all = tally.table("", Duration::from_millis(500), 3);
        assert_eq!(all[4], "        0           7    relu?");
        let line = tally.in_a_line(Duration::from_millis(500));
        assert_eq!(
            line,
            "4200 launches/s, 2 copies and fills/s, 6.0 MiB/s, 95 % of launches add"
        );
        tally.mark();
        let rows = tally.table("", Duration::from_millis(500), 2);
        assert!(rows[1..].iter().all(|row| row.starts_with("        0 ")));
        assert_eq!(
            tally.in_a_line(Duration::from_secs(1)),
            "0 launches/s, 0 copies and fills/s, 0 B/s"
        );
    }
}
