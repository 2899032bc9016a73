//! The lines of both recordings, aligned channel by channel.

use std::collections::HashMap;
use std::ops::Range;

use imara_diff::{Algorithm, Diff, InternedInput, Token};

use crate::output::names::EngineName;
use nvcap_decode::record::ChannelId;

use super::addresses::{Numbers, Renamed};
use super::collect::{ChannelLines, Line, RecordingLines};
use super::line::Kind;
use super::sums::{Sum, sums};

/// Options of the comparison of two recordings.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// True if the addresses of the operations do not matter, not even that they are the same one.
    pub any_data: bool,
    /// Unchanged lines before and after a change.
    pub context: usize,
}

/// A line of a hunk: in both recordings, in A alone, or in B alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    Both(u32, u32),
    OnlyA(u32),
    OnlyB(u32),
}

/// Changes that lie close together, with the lines around them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hunk {
    /// The first line in A, from 0, and the number of lines; then the same in B.
    pub a: (u32, u32),
    pub b: (u32, u32),
    pub edits: Vec<Edit>,
}

/// A channel of A beside one of B, or one that the other recording does not have.
#[derive(Debug)]
pub(super) struct Pair {
    /// Places of both in [`RecordingLines::channels`].
    pub a: Option<usize>,
    pub b: Option<usize>,
    pub hunks: Vec<Hunk>,
}

/// Result of a comparison.
#[derive(Debug)]
pub struct Comparison {
    pub(super) pairs: Vec<Pair>,
    pub(super) sums: Vec<Sum>,
    /// Number of lines of A alone, and of B alone.
    pub(super) changed: (u64, u64),
    pub(super) numbers: (Numbers, Numbers),
    /// Number of lines that were not compared, of A and of B.
    pub(super) not_compared: (u64, u64),
    /// True if doorbells are not compared.
    pub(super) observed: bool,
}

impl Comparison {
    /// Tells whether a difference was found.
    pub fn differs(&self) -> bool {
        self.changed != (0, 0) || self.sums.iter().any(Sum::differs)
    }

    /// Tells whether everything was compared.
    pub fn is_whole(&self) -> bool {
        self.not_compared == (0, 0)
    }
}

/// Compares.
pub fn compare(a: &RecordingLines, b: &RecordingLines, options: Options) -> Comparison {
    let named = !a.counts.kernels.is_empty() && !b.counts.kernels.is_empty();
    let observed = a.observed || b.observed;
    let mut pairs: Vec<(Pair, Vec<Edit>)> = channels(a, b)
        .into_iter()
        .map(|(at_a, at_b)| {
            let edits = edits(
                lines(a, at_a, observed).as_slice(),
                lines(b, at_b, observed).as_slice(),
                named,
            );
            let pair = Pair {
                a: at_a,
                b: at_b,
                hunks: Vec::new(),
            };
            (pair, edits)
        })
        .collect();
    let mut renamed = check_addresses(a, b, &mut pairs, observed, options);
    for (pair, edits) in &pairs {
        let of = (lines(a, pair.a, observed), lines(b, pair.b, observed));
        pair_changed_programs(a, b, edits, (&of.0, &of.1), &mut renamed);
    }
    let mut changed = (0, 0);
    for (pair, edits) in &mut pairs {
        for edit in edits.iter() {
            match edit {
                Edit::Both(..) => {}
                Edit::OnlyA(_) => changed.0 += 1,
                Edit::OnlyB(_) => changed.1 += 1,
            }
        }
        pair.hunks = hunks(edits, options.context);
    }
    let numbers = (Numbers::of(a), Numbers::of(b));
    Comparison {
        pairs: pairs.into_iter().map(|(pair, _)| pair).collect(),
        sums: sums(a, b, &renamed, &numbers, observed),
        changed,
        numbers,
        not_compared: (a.not_kept, b.not_kept),
        observed,
    }
}

/// The kind of engine, without the number of a copy engine: the driver chooses among those.
fn kind_of(channel: &ChannelLines) -> String {
    let name = EngineName(channel.engine).to_string();
    name.trim_end_matches(|c: char| c.is_ascii_digit())
        .to_owned()
}

/// Pairs channels of the same kind of engine, in the order of their first use.
fn channels(a: &RecordingLines, b: &RecordingLines) -> Vec<(Option<usize>, Option<usize>)> {
    let mut of_b: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, channel) in b.channels.iter().enumerate().rev() {
        of_b.entry(kind_of(channel)).or_default().push(at);
    }
    let mut all: Vec<_> = a
        .channels
        .iter()
        .enumerate()
        .map(|(at, channel)| {
            let other = of_b.get_mut(&kind_of(channel)).and_then(Vec::pop);
            (Some(at), other)
        })
        .collect();
    let mut rest: Vec<usize> = of_b.into_values().flatten().collect();
    rest.sort_unstable();
    all.extend(rest.into_iter().map(|at| (None, Some(at))));
    all
}

/// The lines of a channel that are compared.
pub(super) fn lines(recording: &RecordingLines, at: Option<usize>, observed: bool) -> Vec<&Line> {
    let channel = at.and_then(|at| recording.channels.get(at));
    let lines = channel.map_or(&[][..], |c| &c.lines);
    lines
        .iter()
        .filter(|line| !(observed && line.doorbell))
        .collect()
}

/// Aligns the lines of two channels by their texts.
fn edits(a: &[&Line], b: &[&Line], named: bool) -> Vec<Edit> {
    let token = |line: &&Line| (line.text, line.kernel.filter(|_| named), line.doorbell);
    let mut input: InternedInput<(u32, Option<u32>, bool)> = InternedInput::default();
    input.update_before(a.iter().map(token));
    input.update_after(b.iter().map(token));
    // Streams of commands repeat few lines often. The algorithm for text then may skip whole steps of a training because of one changed
    // kernel, the other may tear changes apart: whichever changes fewer lines.
    let computed =
        [Algorithm::Histogram, Algorithm::Myers].map(|algorithm| Diff::compute(algorithm, &input));
    let [text, other] = computed;
    let changed =
        |diff: &Diff| u64::from(diff.count_additions()) + u64::from(diff.count_removals());
    let mut diff = if changed(&other) < changed(&text) {
        other
    } else {
        text
    };
    // Where a change can be shown at several places, it is where it begins with a doorbell.
    diff.postprocess_with_heuristic(
        &input,
        |tokens: &[Token], hunk: Range<u32>, earliest: u32| {
            let begins = |end: &u32| {
                let first = end.checked_sub(hunk.end - hunk.start);
                let token = first.and_then(|first| tokens.get(first as usize));
                token.is_some_and(|token| input.interner[*token].2)
            };
            (earliest..=hunk.end).rev().find(begins).unwrap_or(hunk.end)
        },
    );
    let (mut at_a, mut at_b) = (0, 0);
    let mut edits = Vec::with_capacity(a.len().max(b.len()));
    for hunk in diff.hunks() {
        while at_a < hunk.before.start {
            edits.push(Edit::Both(at_a, at_b));
            (at_a, at_b) = (at_a + 1, at_b + 1);
        }
        edits.extend(hunk.before.clone().map(Edit::OnlyA));
        edits.extend(hunk.after.clone().map(Edit::OnlyB));
        (at_a, at_b) = (hunk.before.end, hunk.after.end);
    }
    edits.extend(
        (at_a..)
            .zip(at_b..)
            .take(a.len() - at_a as usize)
            .map(|(a, b)| Edit::Both(a, b)),
    );
    edits
}

/// Checks that aligned lines, in the order of A, have the addresses that were aligned before. Others make a change.
fn check_addresses(
    a: &RecordingLines,
    b: &RecordingLines,
    pairs: &mut [(Pair, Vec<Edit>)],
    observed: bool,
    options: Options,
) -> Renamed {
    let of_pair: Vec<_> = pairs
        .iter()
        .map(|(pair, _)| (lines(a, pair.a, observed), lines(b, pair.b, observed)))
        .collect();
    let mut aligned = Vec::new();
    for (at, ((_, edits), (of_a, of_b))) in pairs.iter().zip(&of_pair).enumerate() {
        for (place, edit) in edits.iter().enumerate() {
            if let Edit::Both(line_a, line_b) = *edit
                && let (Some(line_a), Some(line_b)) =
                    (of_a.get(line_a as usize), of_b.get(line_b as usize))
                && line_a.addresses > 0
            {
                aligned.push((line_a.place, at, place, *line_a, *line_b));
            }
        }
    }
    aligned.sort_unstable_by_key(|(place, ..)| *place);
    let mut renamed = Renamed::default();
    let mut changed: Vec<Vec<usize>> = vec![Vec::new(); pairs.len()];
    for (_, pair, place, line_a, line_b) in aligned {
        let mut same = true;
        for (of_a, of_b) in a.of(line_a).iter().zip(b.of(line_b)) {
            let paired = renamed.pair(*of_a, *of_b);
            same &= paired || (options.any_data && of_a.kind == Kind::Data);
        }
        if let (false, Some(changed)) = (same, changed.get_mut(pair)) {
            changed.push(place);
        }
    }
    for ((_, edits), mut changed) in pairs.iter_mut().zip(changed) {
        changed.sort_unstable();
        let mut changed = changed.into_iter().peekable();
        if changed.peek().is_none() {
            continue;
        }
        let mut all = Vec::with_capacity(edits.len() + 1);
        for (place, edit) in std::mem::take(edits).into_iter().enumerate() {
            match edit {
                Edit::Both(a, b) if changed.next_if_eq(&place).is_some() => {
                    all.extend([Edit::OnlyA(a), Edit::OnlyB(b)]);
                }
                edit => all.push(edit),
            }
        }
        *edits = all;
    }
    renamed
}

/// Pairs the programs of launches that changed, in turn within one change, where nothing is known of them: a launch that changed still has the
/// program that it had.
fn pair_changed_programs(
    a: &RecordingLines,
    b: &RecordingLines,
    edits: &[Edit],
    of: (&[&Line], &[&Line]),
    renamed: &mut Renamed,
) {
    let is_both = |edit: &Edit| matches!(edit, Edit::Both(..));
    for change in edits.split(is_both).filter(|change| !change.is_empty()) {
        let program = |recording: &RecordingLines, line: Option<&&Line>| {
            let addresses = recording.of(line?);
            addresses
                .iter()
                .find(|at| at.kind == Kind::Program)
                .copied()
        };
        let of_a = change.iter().filter_map(|edit| match edit {
            Edit::OnlyA(at) => program(a, of.0.get(*at as usize)),
            Edit::OnlyB(_) | Edit::Both(..) => None,
        });
        let of_b = change.iter().filter_map(|edit| match edit {
            Edit::OnlyB(at) => program(b, of.1.get(*at as usize)),
            Edit::OnlyA(_) | Edit::Both(..) => None,
        });
        for (of_a, of_b) in of_a.zip(of_b) {
            renamed.pair_if_new(of_a, of_b);
        }
    }
}

/// Makes hunks of changes with `context` lines around them; changes whose lines around touch are one hunk.
fn hunks(edits: &[Edit], context: usize) -> Vec<Hunk> {
    let is_change = |edit: &Edit| !matches!(edit, Edit::Both(..));
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (at, _) in edits.iter().enumerate().filter(|(_, edit)| is_change(edit)) {
        let (from, to) = (
            at.saturating_sub(context),
            at.saturating_add(context + 1).min(edits.len()),
        );
        match ranges.last_mut() {
            Some(last) if from <= last.1 => last.1 = to,
            _ => ranges.push((from, to)),
        }
    }
    let mut hunks = Vec::new();
    let (mut at, mut before) = (0, (0, 0));
    for (from, to) in ranges {
        let skipped = edits.get(at..from).unwrap_or(&[]);
        before = passed(before, skipped);
        let edits = edits.get(from..to).unwrap_or(&[]);
        let after = passed(before, edits);
        hunks.push(Hunk {
            a: (before.0, after.0 - before.0),
            b: (before.1, after.1 - before.1),
            edits: edits.to_vec(),
        });
        (at, before) = (to, after);
    }
    hunks
}

/// Returns the numbers of lines of A and B that have passed behind these edits.
fn passed((mut a, mut b): (u32, u32), edits: &[Edit]) -> (u32, u32) {
    for edit in edits {
        match edit {
            Edit::Both(..) => (a, b) = (a + 1, b + 1),
            Edit::OnlyA(_) => a += 1,
            Edit::OnlyB(_) => b += 1,
        }
    }
    (a, b)
}

/// A pair of channels as people read it: `ch3 gr`, or `ch3 gr / ch4 gr` where the numbers differ.
pub(super) fn name_of(pair: &Pair, a: &RecordingLines, b: &RecordingLines) -> String {
    let name = |recording: &RecordingLines, at: Option<usize>| {
        let channel = at.and_then(|at| recording.channels.get(at))?;
        Some(format!("ch{} {}", channel.id.0, EngineName(channel.engine)))
    };
    match (name(a, pair.a), name(b, pair.b)) {
        (Some(a), Some(b)) if a == b => a,
        (Some(a), Some(b)) => format!("{a} / {b}"),
        (Some(a), None) => format!("{a} / no such channel"),
        (None, Some(b)) => format!("no such channel / {b}"),
        (None, None) => String::new(),
    }
}

/// A channel's number in its trace.
pub(super) fn number_of(recording: &RecordingLines, at: Option<usize>) -> Option<ChannelId> {
    Some(recording.channels.get(at?)?.id)
}

#[cfg(test)]
mod tests;
