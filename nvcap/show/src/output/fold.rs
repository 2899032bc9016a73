//! Sums over stacks, as flame graph programs read them: `process;main;train;cuLaunchKernel 17`, one line a stack.
//!
//! Two ways in: the events of a trace ([`Folded`], a sink), and the lines of nvcap's JSON output ([`Folder::line`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use serde_json::{Map, Value};

use nvcap_decode::decode::event::{Body, Context, Event, LaunchKind, Operation};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{Life, Record};

use super::kernel_name;
use super::names::{known_name, operation_name};
use super::stack::{word, word_of};
use super::writer::Output;
use super::{Detail, Sink, describe, kernels};

/// Quantity that is summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Weight {
    /// Submissions: doorbells, nearly.
    #[default]
    Submissions,
    /// Kernels that the program launched, those of graph replays too.
    Launches,
    /// Bytes that copies, fills and inline writes move.
    Bytes,
}

/// Number of submissions that are remembered as counted: events of one may come later than those of the next.
const MOST_COUNTED: usize = 1 << 16;
/// Number of submissions whose stacks are kept: later JSON lines of a submission do not repeat its stack.
const MOST_KNOWN: usize = 4096;

/// Sums of weights by stack.
#[derive(Clone, Debug, Default)]
pub struct Folder {
    weight: Weight,
    /// True if the operation becomes the innermost frame.
    leaf: bool,
    full_names: bool,
    /// True if stacks were taken at only one in several doorbells. Then work without a stack is left out of the output.
    sampled: bool,
    sums: BTreeMap<String, u64>,
    /// Sums of work without a stack, by process (and operation, with `leaf`).
    without: BTreeMap<String, u64>,
    counted: BTreeSet<u64>,
    names: HashMap<u64, String>,
    /// Stacks of JSON lines, by submission.
    known: BTreeMap<u64, Vec<String>>,
    stacks: u64,
    /// The ledger of JSON lines: whether it says that the trace is complete, and its verdict.
    ledger: Option<(bool, String)>,
}

impl Folder {
    /// The last ledger of the JSON lines so far: whether the trace is complete, and its verdict.
    pub fn ledger(&self) -> Option<(bool, &str)> {
        let (complete, verdict) = self.ledger.as_ref()?;
        Some((*complete, verdict))
    }

    /// Begins sums of `weight`; with `leaf` the operation is the innermost frame, a launch with its kernel's name.
    #[must_use]
    pub fn new(weight: Weight, leaf: bool) -> Self {
        Self {
            weight,
            leaf,
            ..Self::default()
        }
    }

    /// Sets whether names of kernels have template arguments and parameters.
    #[must_use]
    pub fn full_names(self, full_names: bool) -> Self {
        Self { full_names, ..self }
    }

    /// Tells whether an event of the submission is the first that came by.
    fn is_first(&mut self, serial: u64) -> bool {
        let first = self.counted.insert(serial);
        if self.counted.len() > MOST_COUNTED {
            self.counted.pop_first();
        }
        first
    }

    fn add(
        &mut self,
        pid: u64,
        thread: Option<&str>,
        frames: Option<Vec<String>>,
        leaf: Option<&str>,
        weight: u64,
    ) {
        if weight == 0 {
            return;
        }
        let mut line = String::new();
        let process = self.names.get(&pid).map(String::as_str).or(thread);
        push(&mut line, process.unwrap_or("?"));
        let sums = match frames {
            Some(frames) => {
                self.stacks += 1;
                frames.iter().rev().for_each(|f| push(&mut line, f));
                &mut self.sums
            }
            None => {
                push(&mut line, "[no stack]");
                &mut self.without
            }
        };
        if let Some(leaf) = leaf {
            push(&mut line, leaf);
        }
        *sums.entry(line).or_default() += weight;
    }

    /// The frame of an operation.
    fn leaf_of(&self, op: &Operation) -> String {
        match op {
            Operation::Launch(launch) => launched(describe::kernel_as(launch, |kernel| match self
                .full_names
            {
                true => kernels::text(kernel, true),
                false => kernels::bare(kernel),
            })),
            op => operation_name(op).to_owned(),
        }
    }

    /// Returns the frame of an operation as [`Folder::leaf_of`] does, for its JSON object.
    fn leaf_of_json(&self, op: &str, object: &Map<String, Value>) -> String {
        let name = object.get("kernel_mangled").and_then(Value::as_str);
        let Some(name) = name.filter(|_| op == "launch") else {
            return op.to_owned();
        };
        let doubt = match object.get("kernel_certain") {
            Some(Value::Bool(false)) => "?",
            _ => "",
        };
        let name = match self.full_names {
            true => kernel_name::demangled(name),
            false => kernel_name::short(name),
        };
        launched(Some(format!("{name}{doubt}")))
    }

    fn event(&mut self, c: &Context, op: Option<&Operation>) {
        let (op, weight) = match (self.weight, op) {
            (Weight::Submissions, op) => {
                // With the operation as a frame it is the operations that are counted.
                let counts = match self.leaf {
                    true => op.is_some(),
                    false => self.is_first(c.serial),
                };
                (op, u64::from(counts))
            }
            (Weight::Launches, Some(op)) => (Some(op), u64::from(is_launch(op))),
            (Weight::Bytes, Some(op)) => (Some(op), bytes_of(op)),
            (_, None) => return,
        };
        let leaf = op.filter(|_| self.leaf).map(|op| self.leaf_of(op));
        let frames = c.stack.as_ref();
        let frames = frames.map(|calls| calls.frames.iter().map(word_of).collect());
        let pid = u64::from(c.at.pid);
        self.add(pid, c.thread.as_deref(), frames, leaf.as_deref(), weight);
    }

    /// Takes a line of nvcap's JSON output; false where it is none.
    pub fn line(&mut self, line: &str) -> bool {
        let Ok(Value::Object(object)) = serde_json::from_str(line) else {
            return false;
        };
        let text = |name: &str| object.get(name).and_then(Value::as_str);
        let number = |name: &str| object.get(name).and_then(Value::as_u64);
        let Some(kind) = text("type") else {
            return false;
        };
        let pid = number("pid").unwrap_or(0);
        if let ("process", Some(name)) = (kind, text("name")) {
            self.names.insert(pid, name.to_owned());
        }
        if kind == "ledger" {
            let stacks = object.get("stacks").and_then(|s| s.get("every"));
            self.sampled |= stacks.and_then(Value::as_u64).is_some_and(|n| n > 1);
            let complete = object.get("complete").and_then(Value::as_bool);
            let verdict = text("verdict").unwrap_or_default().to_owned();
            self.ledger = complete
                .map(|complete| (complete, verdict))
                .or(self.ledger.take());
        }
        let op = text("op").filter(|_| kind == "operation");
        let moved = object.get("moves").and_then(|m| m.get("bytes"));
        let weight = match (self.weight, number("serial"), op) {
            (Weight::Submissions, Some(_), _) if self.leaf => u64::from(op.is_some()),
            (Weight::Submissions, Some(serial), _) => u64::from(self.is_first(serial)),
            (Weight::Launches, _, Some("launch")) => u64::from(text("kind") == Some("user")),
            (Weight::Bytes, _, Some("copy" | "inline")) => number("bytes").unwrap_or(0),
            (Weight::Bytes, _, Some("launch")) => moved.and_then(Value::as_u64).unwrap_or(0),
            _ => 0,
        };
        let word_of = |frame: &'_ Value| {
            let text = |name: &str| frame.get(name).and_then(Value::as_str);
            let line = frame.get("line").and_then(Value::as_u64);
            let python = frame
                .get("python")
                .map(|_| (text("file").unwrap_or("?"), line));
            word(text("symbol"), text("module").unwrap_or(""), python)
        };
        let stack = object.get("stack").and_then(Value::as_array);
        let mut frames = stack.map(|frames| frames.iter().map(word_of).collect::<Vec<_>>());
        // Only the first object of a submission has the stack; it holds for all the others.
        if let Some(serial) = number("serial") {
            match &frames {
                Some(frames) => {
                    self.known.insert(serial, frames.clone());
                    if self.known.len() > MOST_KNOWN {
                        self.known.pop_first();
                    }
                }
                None => frames = self.known.get(&serial).cloned(),
            }
        }
        let leaf = op.filter(|_| self.leaf);
        let leaf = leaf.map(|op| self.leaf_of_json(op, &object));
        self.add(pid, text("thread"), frames, leaf.as_deref(), weight);
        true
    }

    /// Returns the number of stacks that were summed up.
    #[must_use]
    pub fn stacks(&self) -> u64 {
        self.stacks
    }

    /// Appends the sums, one line a stack, in the order of the stacks.
    pub fn write(&self, out: &mut Vec<u8>) {
        let without = self.without.iter().filter(|_| !self.sampled);
        let all: BTreeMap<_, _> = self.sums.iter().chain(without).collect();
        all.into_iter()
            .for_each(|(stack, sum)| write_sum(stack, *sum, out));
    }
}

/// Appends the line of a stack with its sum.
pub(crate) fn write_sum(stack: &str, sum: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(stack.as_bytes());
    out.push(b' ');
    super::json::number(out, sum);
    out.push(b'\n');
}

/// Appends a frame, with the characters made harmless that end a frame or a line.
pub(crate) fn push(line: &mut String, frame: &str) {
    if !line.is_empty() {
        line.push(';');
    }
    let harmless = |c| match c {
        ';' => ':',
        c if super::style::is_acted_on(c) => '?',
        c => c,
    };
    line.extend(frame.chars().map(harmless));
}

/// The frame of a launch.
fn launched(kernel: Option<String>) -> String {
    match kernel {
        Some(kernel) => format!("launch {kernel}"),
        None => "launch".to_owned(),
    }
}

fn is_launch(op: &Operation) -> bool {
    matches!(op, Operation::Launch(l) if l.kind == LaunchKind::User)
}

pub(crate) fn bytes_of(op: &Operation) -> u64 {
    match op {
        Operation::Launch(l) => l.moves.and_then(|m| m.bytes).unwrap_or(0),
        Operation::Copy(c) => c.bytes,
        Operation::Inline(i) => i.bytes,
        _ => 0,
    }
}

/// The sink that sums up the events of a trace in a [`Folder`].
#[derive(Debug)]
pub struct Folded<'a> {
    folder: &'a mut Folder,
}

impl<'a> Folded<'a> {
    /// Makes a sink that sums up into `folder`, which the caller writes out.
    pub fn new(folder: &'a mut Folder) -> Self {
        Self { folder }
    }
}

impl Sink for Folded<'_> {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        match &event.body {
            Body::Submission(_) => self.folder.event(event.context, None),
            Body::Operation(op) => self.folder.event(event.context, Some(op)),
            Body::Entry(_) | Body::Method(_) | Body::Stop(_) | Body::Chip(_) => {}
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        if let Record::Process(p) = record {
            let pid = u64::from(p.at.pid);
            match &p.life {
                Life::Present { name } | Life::Exec { name } => {
                    if let Some(name) = known_name(name) {
                        self.folder.names.insert(pid, name.to_owned());
                    }
                }
                Life::Fork { child } => {
                    if let Some(name) = self.folder.names.get(&pid).cloned() {
                        self.folder.names.insert(u64::from(*child), name);
                    }
                }
                Life::Identity(_) | Life::Thread { .. } | Life::Exit { .. } => {}
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, ledger: &Ledger, _model: &Model) -> io::Result<()> {
        self.folder.sampled |= ledger.stack_sample().is_some();
        Ok(())
    }
}

/// Writes the sums to `out`, whole.
///
/// # Errors
/// When the output can take no more.
pub fn write_out(folder: &Folder, out: &mut Output) -> io::Result<()> {
    folder.write(out.object());
    out.answer()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two submissions with a stack, one without, and lines that are no submissions.
    const LINES: &str = r#"
        {"type":"process","time_ns":1,"pid":7,"tid":7,"token":null,"life":"exec","name":"train;er"}
        {"type":"submission","pid":7,"serial":0,"stack":[{"module":"/l/libcuda.so.1","symbol":null},{"module":"/b/train","symbol":"f(a; b)"},{"module":"","symbol":"g","python":true,"file":"/a/b.py","line":3}]}
        {"type":"operation","pid":7,"serial":0,"op":"launch","kind":"user"}
        {"type":"operation","pid":7,"serial":0,"op":"copy","bytes":100}
        {"type":"operation","pid":7,"serial":1,"op":"inline","bytes":5,"thread":"t"}
        {"type":"operation","pid":8,"serial":2,"op":"launch","kind":"driver_copy","moves":{"bytes":11},"thread":"t","stack":[]}
        {"type":"ledger","complete":true}"#;

    fn folded(weight: Weight, leaf: bool) -> String {
        let mut folder = Folder::new(weight, leaf);
        let lines = LINES.lines().map(str::trim).filter(|l| !l.is_empty());
        for line in lines {
            assert!(folder.line(line), "{line}");
        }
        let mut out = Vec::new();
        folder.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn submissions_once_each() {
        assert_eq!(
            folded(Weight::Submissions, false),
            "t 1\ntrain:er;[no stack] 1\ntrain:er;g (b.py:3);f(a: b);[libcuda.so.1] 1\n"
        );
    }

    #[test]
    fn launches_and_bytes() {
        assert_eq!(
            folded(Weight::Launches, false),
            "train:er;g (b.py:3);f(a: b);[libcuda.so.1] 1\n"
        );
        assert_eq!(
            folded(Weight::Bytes, true),
            "t;launch 11\ntrain:er;[no stack];inline 5\ntrain:er;g (b.py:3);f(a: b);[libcuda.so.1];copy 100\n"
        );
    }

    #[test]
    fn a_launch_on_top_has_its_kernel_s_name() {
        let launch = |kernel: &str| {
            format!(
                r#"{{"type":"operation","pid":7,"serial":0,"op":"launch","kind":"user","stack":[],"thread":"t"{kernel}}}"#
            )
        };
        let mangled = r#","kernel":"f","kernel_mangled":"_Z3addIfEvPT_i","kernel_certain""#;
        for (full, kernel, line) in [
            (false, String::new(), "t;launch 1\n"),
            (false, format!("{mangled}:true"), "t;launch add 1\n"),
            (
                true,
                format!("{mangled}:false"),
                "t;launch void add<float>(float*, int)? 1\n",
            ),
        ] {
            let mut folder = Folder::new(Weight::Launches, true).full_names(full);
            assert!(folder.line(&launch(&kernel)));
            let mut out = Vec::new();
            folder.write(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), line);
        }
    }

    #[test]
    fn of_a_sample_what_has_no_stack_says_nothing() {
        for (every, lines) in [(1, 3), (10, 2)] {
            let mut folder = Folder::new(Weight::Bytes, true);
            for line in LINES.lines().map(str::trim).filter(|l| !l.is_empty()) {
                folder.line(line);
            }
            let end = format!(r#"{{"type":"ledger","stacks":{{"taken":2,"every":{every}}}}}"#);
            assert!(folder.line(&end));
            let mut out = Vec::new();
            folder.write(&mut out);
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.lines().count(), lines, "{text}");
            assert_eq!(text.contains("[no stack]"), every == 1, "{text}");
        }
    }

    #[test]
    fn other_lines_are_told_apart() {
        let mut folder = Folder::default();
        for line in ["", "x", "[1]", "{}", "{\"type\":3}"] {
            assert!(!folder.line(line), "{line}");
        }
        assert_eq!(folder.stacks(), 0);
    }
}
