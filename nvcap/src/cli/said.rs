//! A hang or an error of a process in words and as JSON, as `nvcap watch` and `nvcap serve --faults` report it.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use nvcap_decode::record::Fault;
use nvcap_monitor::watch::{Cause, Finding};
use nvcap_show::output::dump::{self, Collective, Shown};
use nvcap_show::output::fault;
use nvcap_show::output::style::Plain;

/// Version of the object.
const VERSION: u32 = 1;

/// A hang or an error of a process, in words and as JSON.
#[derive(Debug)]
pub(super) struct Said {
    /// Process id; 0 if not known.
    pid: u32,
    cause: Cause,
    name: Option<String>,
    rank: Option<u32>,
    /// Collective in which the process hangs, with the ranks that are missing.
    pub(super) collective: Option<Collective>,
    /// Kernel, wait or cycle of waits in which the process hangs.
    why: Option<String>,
    /// Error of the process.
    pub(super) fault: Option<Box<Fault>>,
    unix_ns: u64,
}

impl Said {
    /// Describes a finding, as of now.
    pub(super) fn of(finding: &Finding) -> Self {
        let process = finding.report.processes.first();
        let shown = Shown {
            report: &finding.report,
            moved: finding.moved.as_ref(),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            pid: finding.pid,
            cause: finding.cause,
            name: finding.name.clone(),
            rank: process.and_then(|p| p.rank),
            collective: None,
            why: process.and_then(|p| dump::cause(&shown, p)),
            fault: finding.fault.clone(),
            unix_ns: now.map_or(0, |s| s.as_nanos() as u64),
        }
    }

    /// Returns the cause in one word.
    pub(super) fn word(&self) -> &'static str {
        match self.cause {
            Cause::Hang => "hang",
            Cause::Error => "error",
        }
    }

    /// Returns the process, if it is known.
    pub(super) fn pid(&self) -> Option<u32> {
        (self.pid != 0).then_some(self.pid)
    }

    /// Returns the GPU of an error whose process is not known.
    fn gpu(&self) -> String {
        let message = self.fault.as_ref().and_then(|f| f.message.as_ref());
        match message.map(|m| (m.gpu, &m.pci)) {
            Some((Some(gpu), _)) => format!("GPU {gpu}"),
            Some((None, pci)) => format!("the GPU at {}", Plain(pci)),
            None => "a GPU".to_owned(),
        }
    }

    /// Returns the line: `process 4711 python3: ERROR: Xid 31 in writes(float*), a write to the page at 0x7f00c4800000, where nothing is
    /// mapped`.
    pub(super) fn text(&self) -> String {
        let word = self.word().to_uppercase();
        let head = match (self.pid(), &self.name) {
            (Some(pid), name) => {
                format!(
                    "process {pid} {}: {word}",
                    Plain(name.as_deref().unwrap_or("?"))
                )
            }
            (None, _) => format!("{}, process not known: {word}", self.gpu()),
        };
        match (&self.fault, &self.why) {
            (Some(f), _) => format!("{head}: {}", fault::in_short(f)),
            (None, Some(why)) => format!("{head}: {why}"),
            (None, None) => head,
        }
    }

    /// Returns the object. For an error, it has all members of a trace's fault.
    pub(super) fn json(&self, dump: Option<&(PathBuf, PathBuf)>) -> Value {
        let mut all = Map::new();
        for (name, value) in [
            ("type", json!("finding")),
            ("version", json!(VERSION)),
            ("unix_ns", json!(self.unix_ns)),
            ("verdict", json!(self.word())),
            ("pid", json!(self.pid())),
            ("name", json!(self.name)),
            ("rank", json!(self.rank)),
            ("text", json!(self.text())),
            ("collective", json!(self.collective)),
            ("dump", json!(dump.map(|d| d.0.to_string_lossy()))),
            ("dump_json", json!(dump.map(|d| d.1.to_string_lossy()))),
        ] {
            all.insert(name.to_owned(), value);
        }
        let members = self.fault.as_ref().map(|f| fault::members(f));
        for (name, value) in members.into_iter().flatten() {
            all.insert(name.to_owned(), value);
        }
        Value::Object(all)
    }
}
