//! Launches by kernel, most frequent first.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::output::kernels;
use nvcap_decode::decode::event::{Event, Launch, LaunchKind};
use nvcap_decode::record::{At, Kernel};
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::hash::NumberMap;

/// The most kernels that the text shows.
const SHOWN: usize = 20;
/// The most kernels that are kept apart, and the bytes of their names.
const MOST: usize = 1 << 16;
const MOST_BYTES: usize = 64 << 20;
/// The name of the row that counts all further kernels.
const OTHERS: &str = "(kernels that were not kept apart)";

/// Number of launches of each kernel.
#[derive(Debug, Default)]
pub(crate) struct Kernels {
    /// Launches by the kernel's mangled name.
    named: NumberMap<String, Count>,
    /// Launches by process and the program's address, where the name is not known, each with the time of the first, ns. The time is 0 where other
    /// code was written there since: a name that comes later is not theirs.
    unnamed: BTreeMap<(u32, u64), (u64, Count)>,
    /// Bytes of the names.
    bytes: usize,
    /// Launches of all kernels that came after the first [`MOST`].
    others: Option<Count>,
}

/// Kernels that a row counts; rows with as many launches are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key<'a> {
    Name(&'a str),
    Program(u64, u32),
    Others,
}

#[derive(Clone, Debug)]
struct Count {
    launches: u64,
    text: String,
}

impl Count {
    fn new(text: String) -> Self {
        Self { launches: 0, text }
    }
}

impl Kernels {
    /// Counts a launch.
    pub(crate) fn add(&mut self, at: At, launch: &Launch) {
        if matches!(launch.kind, LaunchKind::Companion | LaunchKind::Unresolved) {
            return;
        }
        let kernel = launch.kernel.as_deref();
        let known = match (kernel, launch.program) {
            (Some(kernel), _) => self.named.get_mut(&kernel.name),
            (None, Some(program)) => {
                let of = self.unnamed.get_mut(&(at.pid, program.0));
                of.map(|(_, count)| count)
            }
            (None, None) => return,
        };
        match known {
            Some(count) => count.launches += 1,
            None => self.first(at, kernel, launch.program).launches += 1,
        }
    }

    /// Takes a kernel's name. It was asked for at the first launch and may come after further ones, which it is the name of, too.
    pub(crate) fn learn(&mut self, kernel: &Kernel) {
        if !kernel.is_known() {
            return;
        }
        let key = (kernel.at.pid, kernel.program.0);
        // What was launched before was another program at the same address.
        let is_its = |(first, _): &(u64, Count)| *first > 0 && *first >= kernel.at.time_ns;
        if !self.unnamed.get(&key).is_some_and(is_its) {
            return;
        }
        if let Some((_, unnamed)) = self.unnamed.remove(&key) {
            self.first(kernel.at, Some(kernel), None).launches += unnamed.launches;
        }
    }

    /// Takes an event that may write code: names that come later are not those of programs that were launched there before.
    pub(crate) fn event(&mut self, event: &Event<'_>) {
        let Some((at, bytes)) = kernels::code_written(event) else {
            return;
        };
        self.written(event.context.at.pid, at, bytes);
    }

    fn written(&mut self, pid: u32, at: GpuVa, bytes: u64) {
        let range = (pid, at.0)..(pid, at.0.saturating_add(bytes));
        if range.start < range.end {
            for (_, (first, _)) in self.unnamed.range_mut(range) {
                *first = 0;
            }
        }
    }

    /// Adds the row of a kernel that has none.
    fn first(&mut self, at: At, kernel: Option<&Kernel>, program: Option<GpuVa>) -> &mut Count {
        let has_room = self.named.len() + self.unnamed.len() < MOST && self.bytes < MOST_BYTES;
        let bytes = &mut self.bytes;
        match (kernel, program) {
            (Some(kernel), _) if has_room => {
                self.named.entry(kernel.name.clone()).or_insert_with(|| {
                    let text = kernels::text(kernel, true);
                    *bytes = bytes.saturating_add(kernel.name.len() + text.len());
                    Count::new(text)
                })
            }
            (None, Some(GpuVa(program))) if has_room => {
                let new = || (at.time_ns, Count::new(format!("program {program:#x}")));
                let of = self.unnamed.entry((at.pid, program));
                &mut of.or_insert_with(new).1
            }
            _ => self
                .others
                .get_or_insert_with(|| Count::new(OTHERS.to_owned())),
        }
    }

    fn len(&self) -> usize {
        self.named.len() + self.unnamed.len() + usize::from(self.others.is_some())
    }

    fn rows(&self) -> impl Iterator<Item = (Key<'_>, &Count)> {
        let named = self.named.iter().map(|(n, c)| (Key::Name(n), c));
        let unnamed = self.unnamed.iter();
        let unnamed = unnamed.map(|((pid, p), (_, c))| (Key::Program(*p, *pid), c));
        let others = self.others.iter().map(|c| (Key::Others, c));
        named.chain(unnamed).chain(others)
    }

    /// Returns the rows, most frequent kernels first.
    fn sorted(&self) -> Vec<(Key<'_>, &Count)> {
        let mut all: Vec<_> = self.rows().collect();
        all.sort_by_key(|(key, count)| (std::cmp::Reverse(count.launches), *key));
        all
    }

    /// The table's lines without its head; empty if nothing was launched.
    pub(super) fn lines(&self) -> Vec<String> {
        let all: u64 = self.rows().map(|(_, c)| c.launches).sum();
        let mut lines: Vec<String> = self
            .sorted()
            .into_iter()
            .take(SHOWN)
            .map(|(_, c)| {
                let share = 100.0 * c.launches as f64 / all.max(1) as f64;
                format!("{:>10} {share:>7.2}  {}", c.launches, c.text)
            })
            .collect();
        if self.len() > SHOWN {
            lines.push(format!(
                "{:>10} {:>7}  {} more kernels (--json has all)",
                "",
                "",
                self.len() - SHOWN
            ));
        }
        lines
    }

    pub(crate) fn json(&self) -> Value {
        let rows = self.sorted().into_iter().map(|(key, c)| {
            let (kernel, mangled, program) = match key {
                Key::Name(name) => (Some(&c.text), Some(name), None),
                Key::Program(program, _) => (None, None, Some(program)),
                Key::Others => (Some(&c.text), None, None),
            };
            json!({"kernel": kernel, "kernel_mangled": mangled, "program": program, "launches": c.launches})
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are looked for beside the trace: a recording may have some behind launches of theirs.
    #[test]
    fn a_name_that_comes_later_is_that_of_the_launches_before_it() {
        let kernel =
            |time_ns, pid, name| Kernel::called(At::of_process(time_ns, pid), 0x1000, name);
        let mut all = Kernels::default();
        for (time_ns, pid) in [(5, 1), (6, 1), (7, 2), (8, 3)] {
            let program = Some(GpuVa(0x1000));
            let of = all.unnamed.get_mut(&(pid, 0x1000)).map(|(_, count)| count);
            match of {
                Some(count) => count.launches += 1,
                None => {
                    all.first(At::of_process(time_ns, pid), None, program)
                        .launches += 1
                }
            }
        }
        // Other code was written there, elsewhere or before.
        all.written(1, GpuVa(0x1001), 0x1000);
        all.written(2, GpuVa(0x800), 0x1000);
        all.learn(&kernel(7, 2, "later"));
        all.learn(&kernel(5, 1, ""));
        all.learn(&kernel(5, 1, "vadd"));
        // Asked for later than the first launch: that was another program's.
        all.learn(&kernel(9, 3, "scale"));
        let lines: Vec<String> = all.lines().iter().map(|l| l.trim().to_owned()).collect();
        let expected = [
            "2   50.00  vadd",
            "1   25.00  program 0x1000",
            "1   25.00  program 0x1000",
        ];
        assert_eq!(lines, expected);
    }
}
