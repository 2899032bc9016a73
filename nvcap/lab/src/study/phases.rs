//! Phases of a recording: their submissions and bytes, and the means by which data were moved.

use std::collections::BTreeMap;
use std::io;

use nvcap_decode::decode::event::{Body, Event, InlineContent, LaunchKind, Operation};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::Record;
use nvcap_show::output::{Detail, Sink, names::EngineName};

/// The means by which a phase moved data.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(into = "String")]
pub enum Means {
    /// Data of the pushbuffer.
    Inline,
    /// A copy engine, by the name that `nvcap bench` gives it (`CE2`).
    Engine(String),
    /// A kernel of the driver.
    Kernel,
}

impl std::fmt::Display for Means {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Inline => f.pad("inline"),
            Self::Engine(name) => f.pad(name),
            Self::Kernel => f.pad("kernel"),
        }
    }
}

impl From<Means> for String {
    fn from(means: Means) -> Self {
        means.to_string()
    }
}

/// Sums of a phase.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// Number of doorbells.
    pub submissions: u64,
    /// Bytes of pushbuffer.
    pub bytes: u64,
    /// Bytes moved, by means. The bytes that kernels moved are not always known.
    pub moved: BTreeMap<Means, u64>,
    /// Number of kernels of the program, including launches by graphs.
    pub kernels: u64,
}

/// All phases, by name.
#[derive(Debug, Default)]
pub struct PhaseTotals {
    /// Phases by their names (`--phases`).
    pub phases: BTreeMap<String, Phase>,
}

impl Sink for PhaseTotals {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn shows_memory(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let Some(name) = &event.context.phase else {
            return Ok(());
        };
        if !self.phases.contains_key(&**name) {
            self.phases.insert(name.to_string(), Phase::default());
        }
        let Some(phase) = self.phases.get_mut(&**name) else {
            return Ok(());
        };
        let mut moved = |means, bytes: u64| {
            let of = phase.moved.entry(means).or_default();
            *of = of.saturating_add(bytes);
        };
        match &event.body {
            Body::Submission(s) => {
                phase.submissions += 1;
                phase.bytes = phase.bytes.saturating_add(s.bytes);
            }
            Body::Operation(Operation::Inline(i)) if i.content == Some(InlineContent::Data) => {
                moved(Means::Inline, i.bytes);
            }
            Body::Operation(Operation::Copy(c)) if c.src.is_some() && c.bytes > 0 => {
                let name = EngineName(event.context.engine).to_string();
                moved(Means::Engine(name.to_uppercase()), c.bytes);
            }
            Body::Operation(Operation::Launch(l)) => match l.kind {
                LaunchKind::DriverCopy => {
                    moved(Means::Kernel, l.moves.and_then(|m| m.bytes).unwrap_or(0));
                }
                LaunchKind::User => phase.kernels += 1,
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn record(&mut self, _record: &Record, _model: &Model) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _ledger: &Ledger, _model: &Model) -> io::Result<()> {
        Ok(())
    }
}
