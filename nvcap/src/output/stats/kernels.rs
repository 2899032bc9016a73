//! Launches by kernel, most frequent first.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::decode::event::{Launch, LaunchKind};
use crate::output::kernels;

/// The most kernels that the text shows.
const SHOWN: usize = 20;
/// The most kernels that are kept apart.
const MOST: usize = 1 << 16;
/// The name of the row that counts all further kernels.
const OTHERS: &str = "(kernels that were not kept apart)";

/// How often each kernel was launched.
#[derive(Debug, Default)]
pub(crate) struct Kernels {
    /// By the kernel's mangled name, or by its program's address if the name is not known.
    by: HashMap<Key, Count>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Name(String),
    Program(u64),
    /// All kernels that were met after the first [`MOST`].
    Others,
}

#[derive(Clone, Debug)]
struct Count {
    launches: u64,
    text: String,
}

impl Kernels {
    pub(crate) fn add(&mut self, launch: &Launch) {
        if matches!(launch.kind, LaunchKind::Companion | LaunchKind::Unresolved) {
            return;
        }
        let kernel = launch.kernel.as_deref();
        let key = match (kernel, launch.program) {
            (Some(kernel), _) => Key::Name(kernel.name.clone()),
            (None, Some(program)) => Key::Program(program.0),
            (None, None) => return,
        };
        let key = match self.by.len() < MOST || self.by.contains_key(&key) {
            true => key,
            false => Key::Others,
        };
        let count = self.by.entry(key).or_insert_with_key(|key| Count {
            launches: 0,
            text: match (kernel, key) {
                (Some(kernel), Key::Name(_)) => kernels::text(kernel, true),
                (_, Key::Program(program)) => format!("program {program:#x}"),
                (None, Key::Name(name)) => name.clone(),
                (_, Key::Others) => OTHERS.to_owned(),
            },
        });
        count.launches += 1;
    }

    /// Most frequent first.
    fn sorted(&self) -> Vec<(&Key, &Count)> {
        let mut all: Vec<_> = self.by.iter().collect();
        all.sort_by_key(|(key, count)| (std::cmp::Reverse(count.launches), *key));
        all
    }

    /// The table's lines without its head; empty if nothing was launched.
    pub(super) fn lines(&self) -> Vec<String> {
        let all: u64 = self.by.values().map(|c| c.launches).sum();
        let mut lines: Vec<String> = self
            .sorted()
            .into_iter()
            .take(SHOWN)
            .map(|(_, c)| {
                let share = 100.0 * c.launches as f64 / all.max(1) as f64;
                format!("{:>10} {share:>7.2}  {}", c.launches, c.text)
            })
            .collect();
        if self.by.len() > SHOWN {
            lines.push(format!(
                "{:>10} {:>7}  {} more kernels (--json has all)",
                "",
                "",
                self.by.len() - SHOWN
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
