//! Launches by kernel, most frequent first.

use serde_json::{Value, json};

use crate::decode::event::{Launch, LaunchKind};
use crate::output::kernels;
use crate::record::Kernel;
use crate::wire::GpuVa;
use crate::wire::hash::NumberMap;

/// The most kernels that the text shows.
const SHOWN: usize = 20;
/// The most kernels that are kept apart.
const MOST: usize = 1 << 16;
/// The name of the row that counts all further kernels.
const OTHERS: &str = "(kernels that were not kept apart)";

/// How often each kernel was launched.
#[derive(Debug, Default)]
pub(crate) struct Kernels {
    /// By the kernel's mangled name.
    named: NumberMap<String, Count>,
    /// By the program's address, where the name is not known.
    unnamed: NumberMap<u64, Count>,
    /// All kernels that were met after the first [`MOST`].
    others: Option<Count>,
}

/// What a row counts; rows with as many launches are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key<'a> {
    Name(&'a str),
    Program(u64),
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
    pub(crate) fn add(&mut self, launch: &Launch) {
        if matches!(launch.kind, LaunchKind::Companion | LaunchKind::Unresolved) {
            return;
        }
        let kernel = launch.kernel.as_deref();
        let known = match (kernel, launch.program) {
            (Some(kernel), _) => self.named.get_mut(&kernel.name),
            (None, Some(program)) => self.unnamed.get_mut(&program.0),
            (None, None) => return,
        };
        match known {
            Some(count) => count.launches += 1,
            None => self.first(kernel, launch.program).launches += 1,
        }
    }

    /// The row of a kernel that has none.
    fn first(&mut self, kernel: Option<&Kernel>, program: Option<GpuVa>) -> &mut Count {
        let has_room = self.named.len() + self.unnamed.len() < MOST;
        match (kernel, program) {
            (Some(kernel), _) if has_room => self
                .named
                .entry(kernel.name.clone())
                .or_insert_with(|| Count::new(kernels::text(kernel, true))),
            (None, Some(GpuVa(program))) if has_room => self
                .unnamed
                .entry(program)
                .or_insert_with(|| Count::new(format!("program {program:#x}"))),
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
        let unnamed = self.unnamed.iter().map(|(p, c)| (Key::Program(*p), c));
        let others = self.others.iter().map(|c| (Key::Others, c));
        named.chain(unnamed).chain(others)
    }

    /// Most frequent first.
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
                Key::Program(program) => (None, None, Some(program)),
                Key::Others => (Some(&c.text), None, None),
            };
            json!({"kernel": kernel, "kernel_mangled": mangled, "program": program, "launches": c.launches})
        });
        rows.collect()
    }
}
