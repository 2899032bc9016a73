//! Works of a file in sums: by name, and the time of each GPU.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::work::{What, Work};
use super::{Works, names};
use crate::output::gpu_time::Durations;
use crate::output::kernel_name::demangled;

/// The most names of kernels that are kept apart, and their bytes.
const MOST_NAMES: usize = 1 << 16;
const MOST_BYTES: usize = 64 << 20;
/// The most works whose begins and ends are kept, for the time in which any of them ran.
const MOST_SPANS: usize = 1 << 24;
/// The longest gaps that are told.
const GAPS: usize = 10;
/// Row of the kernels that have no row of their own.
const OTHERS: &str = "other kernels: there are too many names";

/// The works of one name.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) is_copy: bool,
    /// Its name for people; and the form in which it is compared.
    pub(super) text: String,
    pub(super) form: String,
    /// Number of works, timed or not.
    pub(super) count: u64,
    pub(super) durations: Durations,
    pub(super) bytes: u64,
}

/// A stretch of a GPU's time.
type Span = (u64, u64, bool);

/// A time without work, ns: its begin from the first work of the file on, and its length.
pub(super) type Gap = (u64, u64);

/// The time of a GPU, ns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Busy {
    /// From the begin of the first work to the end of the last.
    pub(super) span_ns: u64,
    /// Part in which something ran, and in which nothing but copies and memsets ran.
    pub(super) busy_ns: u64,
    pub(super) copies_alone_ns: u64,
    /// The longest times without work, longest first.
    pub(super) gaps: Vec<Gap>,
}

/// The works of a file in sums.
#[derive(Debug, Default)]
pub struct Sums {
    rows: Vec<Row>,
    /// Index of the row of each name as the files have it, by kernels and copies, and of each form.
    by_text: [HashMap<String, usize>; 2],
    by_form: HashMap<(bool, String), usize>,
    bytes: usize,
    spans: BTreeMap<Option<u32>, Vec<Span>>,
    kept_spans: usize,
    /// True if some works' begins and ends were not kept.
    spans_left_out: bool,
    works: u64,
}

impl Sums {
    /// Number of works.
    #[must_use]
    pub fn works(&self) -> u64 {
        self.works
    }

    /// Number of works whose times are not known.
    pub(super) fn untimed(&self) -> u64 {
        let timed: u64 = self.rows.iter().map(|row| row.durations.count).sum();
        self.works - timed
    }

    /// Index of the row of a name.
    fn at(&mut self, is_copy: bool, text: &str) -> usize {
        if let Some(at) = self.by_text[usize::from(is_copy)].get(text) {
            return *at;
        }
        let has_room = self.by_text[0].len() < MOST_NAMES && self.bytes < MOST_BYTES;
        if !is_copy && !has_room && text != OTHERS {
            return self.at(false, OTHERS);
        }
        let form = match is_copy {
            true => text.to_owned(),
            false => names::form(text),
        };
        let rows = &mut self.rows;
        self.bytes += 2 * text.len() + 2 * form.len();
        let at = *self
            .by_form
            .entry((is_copy, form.clone()))
            .or_insert_with(|| {
                rows.push(Row {
                    is_copy,
                    text: demangled(text),
                    form,
                    ..Row::default()
                });
                rows.len() - 1
            });
        self.by_text[usize::from(is_copy)].insert(text.to_owned(), at);
        at
    }

    fn add(&mut self, work: &Work<'_>) {
        self.works += 1;
        let at = match (work.what, work.what.of_copies()) {
            (What::Kernel(""), _) => self.at(false, "kernel without a name"),
            (What::Kernel(name), _) => self.at(false, name),
            (_, Some(text)) => self.at(true, &text),
            (_, None) => return,
        };
        let row = &mut self.rows[at];
        row.count += 1;
        row.bytes = row.bytes.saturating_add(work.bytes);
        let Some((begin, ns)) = work.times else {
            return;
        };
        row.durations.add(ns);
        let is_copy = row.is_copy;
        if self.kept_spans >= MOST_SPANS {
            self.spans_left_out = true;
            return;
        }
        self.kept_spans += 1;
        let spans = self.spans.entry(work.gpu).or_default();
        spans.push((begin, begin.saturating_add(ns), is_copy));
    }

    /// Rows of kernels, or of copies: those that took longest first.
    pub(super) fn rows(&self, copies: bool) -> Vec<&Row> {
        let mut rows: Vec<&Row> = { self.rows.iter() }
            .filter(|row| row.is_copy == copies)
            .collect();
        rows.sort_by_key(|row| (Reverse(row.durations.sum_ns), Reverse(row.count), &row.text));
        rows
    }

    /// The row of a form.
    pub(super) fn row(&self, is_copy: bool, form: &str) -> Option<&Row> {
        let key = (is_copy, form.to_owned());
        self.rows.get(*self.by_form.get(&key)?)
    }

    /// Returns the time of each GPU; `None` where there were too many works to know it.
    pub(super) fn busy(&mut self) -> Option<BTreeMap<Option<u32>, Busy>> {
        if self.spans_left_out {
            return None;
        }
        let first = self.spans.values().flatten().map(|span| span.0).min()?;
        let all = self.spans.iter_mut().map(|(gpu, spans)| {
            spans.sort_unstable();
            (*gpu, busy(spans, first))
        });
        Some(all.collect())
    }
}

/// Sums up stretches that are in the order of their begins.
fn busy(spans: &[Span], first: u64) -> Busy {
    let mut of = Busy::default();
    let (mut until, mut kernels_until, mut kernels_ns) = (None::<u64>, 0, 0);
    let begin = spans.first().map_or(0, |span| span.0);
    for &(from, to, is_copy) in spans {
        if !is_copy {
            kernels_ns += to.saturating_sub(from.max(kernels_until));
            kernels_until = kernels_until.max(to);
        }
        let last = until.unwrap_or(from);
        if from > last {
            of.gap((last - first, from - last));
        }
        of.busy_ns += to.saturating_sub(from.max(last));
        until = Some(last.max(to));
    }
    of.span_ns = until.unwrap_or(begin) - begin;
    of.copies_alone_ns = of.busy_ns - kernels_ns;
    of
}

impl Busy {
    fn gap(&mut self, gap: Gap) {
        let at = self.gaps.partition_point(|g| g.1 >= gap.1);
        if at < GAPS {
            self.gaps.insert(at, gap);
            self.gaps.truncate(GAPS);
        }
    }
}

impl Works for Sums {
    fn work(&mut self, work: &Work<'_>) {
        self.add(work);
    }

    fn goes_on(&mut self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn work(name: Option<&str>, begin: u64, ns: u64) -> Work<'_> {
        Work {
            what: name.map_or(What::Memset, What::Kernel),
            gpu: Some(0),
            stream: None,
            times: Some((begin, ns)),
            errors: (0, 0),
            bytes: 0,
        }
    }

    #[test]
    fn a_kernel_that_is_written_in_two_ways_has_one_row() {
        let mut sums = Sums::default();
        for name in ["void f<4>(float*)", "void f<(int)4>(float *)", "g"] {
            sums.work(&work(Some(name), 0, 10));
        }
        let rows = sums.rows(false);
        let counts: Vec<_> = rows.iter().map(|row| (&*row.text, row.count)).collect();
        assert_eq!(counts, [("void f<4>(float*)", 2), ("g", 1)]);
        assert_eq!(sums.row(false, "void f<4>(float*)").unwrap().count, 2);
    }

    #[test]
    fn names_have_a_bound() {
        let mut sums = Sums::default();
        for n in 0..MOST_NAMES + 10 {
            sums.work(&work(Some(&format!("k{n}")), 0, 1));
        }
        let others = sums.row(false, &names::form(OTHERS)).unwrap();
        assert_eq!(others.count, 10);
        assert_eq!(sums.rows.len(), MOST_NAMES + 1);
        let mut sums = Sums::default();
        for n in 0..200 {
            let name = format!("{n}{}", "x".repeat(1 << 20));
            sums.work(&work(Some(&name), 0, 1));
        }
        assert!(sums.bytes <= MOST_BYTES + (4 << 20), "{}", sums.bytes);
        assert_eq!(sums.works(), 200);
    }

    proptest! {
        #[test]
        fn the_time_of_a_gpu_is_the_union_of_its_works(
            works in prop::collection::vec((0u64..300, 0u64..40, any::<bool>()), 1..40),
        ) {
            let mut sums = Sums::default();
            let (mut any, mut kernels) = ([false; 400], [false; 400]);
            for (begin, ns, is_copy) in &works {
                sums.work(&work((!is_copy).then_some("k"), *begin, *ns));
                for at in *begin..begin + ns {
                    any[at as usize] = true;
                    kernels[at as usize] |= !is_copy;
                }
            }
            let of = sums.busy().unwrap()[&Some(0)].clone();
            let count = |all: [bool; 400]| all.iter().filter(|is| **is).count() as u64;
            prop_assert_eq!(of.busy_ns, count(any));
            prop_assert_eq!(of.copies_alone_ns, count(any) - count(kernels));
            let begin = works.iter().map(|w| w.0).min().unwrap();
            let end = works.iter().map(|w| w.0 + w.1).max().unwrap();
            prop_assert_eq!(of.span_ns, end - begin);
            let gaps: u64 = of.gaps.iter().map(|gap| gap.1).sum();
            prop_assert!(gaps <= of.span_ns - of.busy_ns);
            if of.gaps.len() < GAPS {
                prop_assert_eq!(gaps, of.span_ns - of.busy_ns);
            }
        }
    }
}
