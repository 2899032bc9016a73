//! Sums of what the program asked for, for the end of a trace on a terminal.

use std::collections::{BTreeMap, HashMap};

use nvcap_decode::decode::event::{Context, Copy, Inline, InlineContent, LaunchKind, Operation};

use crate::output::describe::kernel;
use crate::output::names::direction;
use crate::output::plural::{plural, plural_of};
use crate::output::units::Bytes;

/// The most kernels that have a line.
const LINES: usize = 6;
/// The most kernels that are told apart.
const MOST: usize = 1 << 16;

/// Sums of operations.
#[derive(Debug, Default)]
pub(super) struct Tally {
    launches: u64,
    /// Launches by the kernel's name.
    kernels: HashMap<String, u64>,
    /// Number and bytes of copies by direction, fills among them.
    copies: BTreeMap<&'static str, (u64, u64)>,
    replays: u64,
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
                    self.launches += 1;
                    let name = kernel(l, false).unwrap_or_else(|| "(QMD not seen)".to_owned());
                    if self.kernels.len() < MOST || self.kernels.contains_key(&name) {
                        *self.kernels.entry(name).or_default() += 1;
                    }
                }
                LaunchKind::DriverMemset => self.moved("fill", l.moves.and_then(|m| m.bytes)),
                LaunchKind::DriverCopy => self.moved("d2d", l.moves.and_then(|m| m.bytes)),
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
            Operation::Graph(_) => self.replays += 1,
            _ => {}
        }
    }

    fn moved(&mut self, word: &'static str, bytes: Option<u64>) {
        let (count, sum) = self.copies.entry(word).or_default();
        *count += 1;
        *sum = sum.saturating_add(bytes.unwrap_or(0));
    }

    /// The lines, ten at most; none where nothing was asked for.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut kernels: Vec<(&String, u64)> = self.kernels.iter().map(|(k, n)| (k, *n)).collect();
        kernels.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        if self.launches > 0 {
            let launches = plural_of(self.launches, "launch", "launches");
            let of = plural(kernels.len() as u64, "kernel");
            lines.push(format!("{launches} of {of}"));
        }
        for (kernel, count) in kernels.iter().take(LINES) {
            lines.push(format!("{count:>9}  {kernel}"));
        }
        if let Some(rest) = kernels.get(LINES..).filter(|rest| !rest.is_empty()) {
            let launches: u64 = rest.iter().map(|(_, count)| count).sum();
            let others = plural(rest.len() as u64, "other kernel");
            lines.push(format!("{launches:>9}  {others}"));
        }
        if !self.copies.is_empty() {
            let moved = |(word, (count, bytes)): (&&str, &(u64, u64))| {
                format!("{word} {count} of {}", Bytes(*bytes as f64))
            };
            let all: Vec<String> = self.copies.iter().map(moved).collect();
            lines.push(format!("copies and fills: {}", all.join(", ")));
        }
        if self.replays > 0 {
            lines.push(plural(self.replays, "graph replay"));
        }
        lines
    }
}

fn word_of(copy: &Copy) -> &'static str {
    match (copy.src, copy.direction) {
        (None, _) => "fill",
        (_, Some(d)) => direction(d),
        (_, None) => "copy",
    }
}

/// The word of an inline write; none of one that is not the program's.
fn word_of_inline(i: &Inline) -> Option<&'static str> {
    match (i.content, i.fill) {
        (Some(InlineContent::Data), Some(_)) => Some("fill"),
        (Some(InlineContent::Data), None) => Some(direction(i.direction)),
        _ => None,
    }
}
