//! Counts of both recordings, side by side.

use std::collections::{BTreeMap, BTreeSet};

use crate::output::method::{class_name, method_name};

use super::addresses::{Numbers, Renamed};
use super::collect::{Counted, RecordingLines};

/// A count of A and of B.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// Kind of what is counted: `doorbells`, `operation`, `kernel`, `method`.
    pub of: &'static str,
    /// Name of what is counted; for a kernel the number of its name in `Words`, where `kernel` is set.
    pub name: String,
    pub kernel: Option<u32>,
    pub a: Counted,
    pub b: Counted,
    /// True if bytes are counted, too.
    pub has_bytes: bool,
}

impl Sum {
    pub(super) fn differs(&self) -> bool {
        self.a != self.b
    }
}

/// The values of both under each key.
fn both<'m, K: Ord + Copy, V: Copy + Default>(
    a: &'m BTreeMap<K, V>,
    b: &'m BTreeMap<K, V>,
) -> impl Iterator<Item = (K, V, V)> {
    let keys: BTreeSet<K> = a.keys().chain(b.keys()).copied().collect();
    let of = |m: &BTreeMap<K, V>, k: &K| m.get(k).copied().unwrap_or_default();
    keys.into_iter().map(move |k| (k, of(a, &k), of(b, &k)))
}

/// Returns all sums.
pub(super) fn sums(
    a: &RecordingLines,
    b: &RecordingLines,
    renamed: &Renamed,
    numbers: &(Numbers, Numbers),
    observed: bool,
) -> Vec<Sum> {
    let (of_a, of_b) = (&a.counts, &b.counts);
    let mut all = Vec::new();
    let mut put = |of, name: String, kernel, a, b, has_bytes| {
        all.push(Sum {
            of,
            name,
            kernel,
            a,
            b,
            has_bytes,
        });
    };
    // Of what was observed, submissions are looks; their bytes are the program's.
    let submissions = |(count, bytes): Counted| (if observed { 0 } else { count }, bytes);
    let (sub_a, sub_b) = (submissions(of_a.submissions), submissions(of_b.submissions));
    put("doorbells", String::new(), None, sub_a, sub_b, true);
    for ((op, of), a, b) in both(&of_a.operations, &of_b.operations) {
        let name = format!("{op} {of}").trim_end().to_owned();
        put("operation", name, None, a, b, a.1 > 0 || b.1 > 0);
    }
    if of_a.kernels.is_empty() != of_b.kernels.is_empty() {
        // Each would be a difference.
        let whose = if of_b.kernels.is_empty() {
            "first"
        } else {
            "second"
        };
        let name = format!("of any kernel (the {whose} alone has names)");
        let (a, b) = (of_a.launches(), of_b.launches());
        put("kernel", name, None, (a, 0), (b, 0), false);
    } else {
        for (kernel, a, b) in both(&of_a.kernels, &of_b.kernels) {
            put("kernel", String::new(), Some(kernel), (a, 0), (b, 0), false);
        }
        // Programs of B under the address of that of A which they were aligned with.
        let mut programs: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for (program, n) in &of_a.programs {
            programs.entry((false, *program)).or_default().0 += n;
        }
        for (program, n) in &of_b.programs {
            let key = match renamed.a_of(program) {
                Some(of_a) => (false, of_a),
                None => (true, *program),
            };
            programs.entry(key).or_default().1 += n;
        }
        for ((of_b, program), (a, b)) in programs {
            let name = match of_b {
                false => numbers.0.name(&program),
                true => format!("{} of the second", numbers.1.name(&program)),
            };
            put("kernel", name, None, (a, 0), (b, 0), false);
        }
        let (a, b) = (of_a.unknown, of_b.unknown);
        let name = "of a program that is not known".to_owned();
        put("kernel", name, None, (a, 0), (b, 0), false);
    }
    if of_a.has_methods && of_b.has_methods {
        for ((class, method), a, b) in both(&of_a.methods, &of_b.methods) {
            let class_text =
                class_name(class).map_or_else(|| format!("{class:#06x}"), ToOwned::to_owned);
            let name = method_name(class, method).unwrap_or_default();
            let name = format!("{class_text} {method:#06x} {name}")
                .trim_end()
                .to_owned();
            put("method", name, None, (a, 0), (b, 0), false);
        }
    }
    all
}
