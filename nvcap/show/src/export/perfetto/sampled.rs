//! Shares of kernels in samples of program counters, as counters of a process over time.

use std::collections::BTreeMap;

use super::Perfetto;
use super::tracks::Track;
use crate::output::kernels;
use crate::samples::kernel_at;
use nvcap_decode::record::Samples;
use nvcap_decode::wire::GpuVa;

/// The most kernels of a process that have a counter.
const MOST: usize = 24;

/// Divisor of a window's samples: a kernel gets a counter from that part of them on.
const LEAST: u64 = 100;

/// Name of the counter of what lies in no known kernel.
const UNKNOWN: &str = "in no known kernel";

impl Perfetto {
    /// Writes the shares of a window at its begin; 0 for a kernel that has none any more. Behind the last window of a turn all counters fall to 0:
    /// nothing is known of the time until the next.
    pub(super) fn samples(&mut self, window: &Samples) {
        let all = window.samples();
        let pid = window.at.pid;
        let mut by_program: BTreeMap<Option<GpuVa>, u64> = BTreeMap::new();
        let mut names: BTreeMap<GpuVa, String> = BTreeMap::new();
        let known = self.sampled.of(pid);
        for (pc, counter) in &window.counters {
            let kernel = kernel_at(known, *pc);
            if let Some(kernel) = kernel
                && !names.contains_key(&kernel.program)
            {
                names.insert(kernel.program, kernels::text(kernel, true));
            }
            *by_program.entry(kernel.map(|k| k.program)).or_default() += counter.samples;
        }
        *by_program.entry(None).or_default() += window.others;
        let mut shares: BTreeMap<usize, u64> = BTreeMap::new();
        let mut largest: Vec<_> = by_program.into_iter().collect();
        largest.sort_by_key(|(program, samples)| (std::cmp::Reverse(*samples), *program));
        for (program, samples) in largest {
            let name = program.and_then(|program| names.get(&program));
            let name = name.map_or(UNKNOWN, String::as_str);
            let name = format!("samples: {name}");
            let most = match samples >= (all / LEAST).max(1) {
                true => MOST,
                false => 0,
            };
            if let Some(Track::Sampled(_, number)) = self.tracks.sampled(pid, &name, most) {
                *shares.entry(number).or_default() += samples;
            }
        }
        for number in 0..self.tracks.sampled_count(pid) {
            let samples = shares.get(&number).copied().unwrap_or(0);
            let share = (100.0 * samples as f64 / all.max(1) as f64).round() as i64;
            let track = self
                .tracks
                .of(&mut self.packets, Track::Sampled(pid, number));
            self.packets.counter(track, window.from_ns, share);
            // The next window, if there is one, begins then, too.
            self.packets.counter(track, window.at.time_ns, 0);
        }
    }
}
