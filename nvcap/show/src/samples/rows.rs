//! Rows of kernels with their samples.

use std::collections::BTreeMap;

use super::kernel_at;
use nvcap_decode::record::Kernel;
use nvcap_decode::samples::Counter;
use nvcap_decode::wire::GpuVa;

/// A kernel with its samples.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// The sum of its samples.
    pub all: Counter,
    /// Its instructions by address, the hottest first.
    pub instructions: Vec<(u64, Counter)>,
}

/// Returns the kernels with samples, the longest first, and the program counters that lie in no known kernel, the hottest first.
#[must_use]
pub fn rows<'a>(
    counters: &BTreeMap<u64, Counter>,
    kernels: &'a [Kernel],
) -> (Vec<Row<'a>>, Vec<(u64, Counter)>) {
    let mut by_kernel: BTreeMap<GpuVa, Row<'a>> = BTreeMap::new();
    let mut unknown = Vec::new();
    for (pc, counter) in counters {
        let Some(kernel) = kernel_at(kernels, *pc) else {
            unknown.push((*pc, *counter));
            continue;
        };
        let row = by_kernel.entry(kernel.program).or_insert(Row {
            kernel,
            all: Counter::default(),
            instructions: Vec::new(),
        });
        row.all.join(counter);
        row.instructions.push((*pc, *counter));
    }
    let hottest = |(pc, counter): &(u64, Counter)| (std::cmp::Reverse(counter.samples), *pc);
    let mut rows: Vec<Row<'_>> = by_kernel.into_values().collect();
    for row in &mut rows {
        row.instructions.sort_by_key(hottest);
    }
    rows.sort_by_key(|row| (std::cmp::Reverse(row.all.samples), row.kernel.program));
    unknown.sort_by_key(hottest);
    (rows, unknown)
}

/// Returns a part as a share of all, 0 to 1.
#[must_use]
pub fn share(part: u64, all: u64) -> f64 {
    match all {
        0 => 0.0,
        all => part as f64 / all as f64,
    }
}

/// Returns half of the interval in which a share lies with 95 %, if samples are independent of each other.
#[must_use]
pub fn half_interval(share: f64, all: u64) -> f64 {
    match all {
        0 => 0.0,
        all => 1.96 * (share * (1.0 - share) / all as f64).sqrt(),
    }
}
