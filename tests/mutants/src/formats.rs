//! The formats that nvcap reads: their seeds, their bounds, and what is true of anything that is read of them.

mod kernel;
mod recording;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use nvcap_decode::decode::encode::Pushbuffer;
use nvcap_decode::decode::{Decoder, explain, qmd, qmd_copy, view::View};
use nvcap_decode::driver::{Model, ModelOptions};
use nvcap_decode::record::{
    At, ChannelId, CpuVa, How, Loss, Lost, QmdCopy, Record, Segment, Submission,
};
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::entry;
use nvcap_decode::wire::entry::EntryKind;
use nvcap_process::channels_file::ChannelsFile;
use nvcap_recording::file::{ioctl_log, orc};
use nvcap_show::output::model_view::ModelView;
use nvcap_show::output::{
    Detail, Sink, channels, filter::Filter, ioctls, json, phases::Phases, text,
};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

use crate::mutate::Mutant;

/// Bytes of output that any input may give, and more for each byte of the input: each word of a pushbuffer is a method
/// write with its fields by name, in both text and JSON.
const OUTPUT: (usize, usize) = (1 << 20, 2000);

/// Inputs that are whole.
pub struct Seeds {
    pub names: Vec<String>,
    pub bytes: Vec<Vec<u8>>,
    /// Number of records that a reader gives of each, where that is compared.
    records: Vec<usize>,
}

/// A format.
pub struct Format {
    pub name: &'static str,
    pub seeds: Seeds,
    /// True if the format is text.
    pub text: bool,
    /// Bytes of memory that one input may take at once.
    pub most_memory: usize,
    pub check: fn(&Seeds, &Mutant) -> Result<(), String>,
}

const MIB: usize = 1 << 20;

/// Returns all formats, with the seeds that are in the repository.
pub fn all() -> anyhow::Result<Vec<Format>> {
    let fixture = |name: &str| root().join("tests/fixtures").join(name);
    let capture = |name: &str| root().join("tests/captures").join(name);
    let of = |name: &str| files(&root().join("fuzz/seeds").join(name));
    let mut orc = of("orc")?;
    orc.push(fixture("h200-cut.orc"));
    let plain_log = unzipped(&fixture("h200-ioctl-part.log.gz"))?;
    let mut logs = read(of("ioctl_log")?)?;
    logs.names.push("the log cut from an H200's".to_owned());
    logs.bytes.push(plain_log);
    let mut compressed = read(vec![fixture("h200-cut.orc.xz")])?;
    compressed.records = vec![orc_records(&compressed.bytes[0]).0];
    let mut zipped = read(vec![fixture("h200-ioctl-part.log.gz")])?;
    zipped.records = vec![log_of_file(&zipped.bytes[0]).map_or(0, |l| l.records.len())];
    let mut words = read(of("methods")?)?;
    let more = read(of("operations")?)?;
    words.names.extend(more.names);
    words.bytes.extend(more.bytes);
    let format = |name, seeds, text, most_memory, check| Format {
        name,
        seeds,
        text,
        most_memory,
        check,
    };
    // The largest record of a capture and zeros for what could not be read of it: what a record may announce.
    let orc = read(orc)?;
    let recordings = recording::of_captures(&orc);
    let packed = recording::compressed(&recordings);
    Ok(vec![
        format("recording", recordings, false, 256 * MIB, recording::check),
        // With the window of a frame: its head may ask for up to 100 MiB.
        format(
            "recording-zstd",
            packed,
            false,
            384 * MIB,
            recording::check_compressed,
        ),
        format("orc", orc, false, 256 * MIB, check_orc),
        format("orc-xz", compressed, false, 256 * MIB, check_orc_xz),
        format("ioctl-log", logs, true, 64 * MIB, check_log),
        format("ioctl-log-gz", zipped, false, 64 * MIB, check_log_gz),
        format(
            "oracle-channels",
            read(vec![capture("h200-mixed.channels")])?,
            true,
            8 * MIB,
            check_oracle_channels,
        ),
        format(
            "channels-file",
            read(of("channels_file")?)?,
            true,
            8 * MIB,
            check_channels,
        ),
        format(
            "phases",
            read(vec![
                capture("h200-mixed.phases"),
                capture("h200-graphs.phases"),
            ])?,
            true,
            8 * MIB,
            check_phases,
        ),
        format("filter", read(of("filter")?)?, true, 8 * MIB, check_filter),
        format("methods", words, false, 64 * MIB, check_words),
        format(
            "entries",
            read(of("entries")?)?,
            false,
            8 * MIB,
            check_entries,
        ),
        format("qmd", read(of("qmd")?)?, false, 8 * MIB, check_qmd),
        format("image", read(of("image")?)?, false, 64 * MIB, check_image),
        format("btf", read(of("btf")?)?, false, 8 * MIB, kernel::check_btf),
        format(
            "maps",
            read(of("maps")?)?,
            true,
            8 * MIB,
            kernel::check_maps,
        ),
        format(
            "ring-records",
            read(of("ring_records")?)?,
            false,
            256 * MIB,
            kernel::check_ring_records,
        ),
        format(
            "switches",
            read(of("switches")?)?,
            false,
            8 * MIB,
            kernel::check_switches,
        ),
        format(
            "samples",
            read(of("samples")?)?,
            false,
            8 * MIB,
            kernel::check_samples,
        ),
    ])
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let all = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut all: Vec<PathBuf> = all.flatten().map(|entry| entry.path()).collect();
    all.sort();
    Ok(all)
}

fn read(paths: Vec<PathBuf>) -> anyhow::Result<Seeds> {
    let mut seeds = Seeds {
        names: Vec::new(),
        bytes: Vec::new(),
        records: Vec::new(),
    };
    for path in paths {
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.strip_prefix(root()).unwrap_or(&path);
        seeds.names.push(name.display().to_string());
        seeds.bytes.push(bytes);
    }
    Ok(seeds)
}

fn unzipped(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    flate2::read::MultiGzDecoder::new(file).read_to_end(&mut text)?;
    Ok(text)
}

fn holds(is: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    is.then_some(()).ok_or_else(what)
}

// ---- output ----

/// Keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Ok(mut kept) = self.0.lock() {
            kept.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Kept {
    fn output(&self) -> nvcap_show::output::writer::Output {
        nvcap_show::output::writer::Output::to(Box::new(self.clone()))
    }

    fn take(&self) -> Vec<u8> {
        self.0
            .lock()
            .map(|mut kept| std::mem::take(&mut *kept))
            .unwrap_or_default()
    }
}

/// Text and JSON as a user may read them: not too much, each line of JSON an object, nothing that moves a terminal.
fn check_output(input: usize, text: &[u8], json: &[u8]) -> Result<(), String> {
    let most = OUTPUT.0 + OUTPUT.1 * input;
    let bytes = text.len() + json.len();
    holds(bytes <= most, || {
        format!("{bytes} B of output for {input} B of input")
    })?;
    for line in json.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
        serde_json::from_slice::<serde_json::Value>(line)
            .map_err(|e| format!("no JSON: {e}: {}", String::from_utf8_lossy(line)))?;
    }
    for shown in [text, json] {
        let shown = std::str::from_utf8(shown).map_err(|e| format!("no UTF-8: {e}"))?;
        let acts = |c: char| c.is_control() && c != '\n';
        holds(!shown.contains(acts), || {
            "a control character is shown".to_owned()
        })?;
    }
    Ok(())
}

/// The pipeline with every word shown, in text and JSON.
fn pipeline(text_to: &Kept, json_to: &Kept) -> Pipeline<'static> {
    let detail = Detail::Words;
    let text = text::TextOptions {
        detail,
        verbose: true,
        ..text::TextOptions::default()
    };
    let json = json::JsonOptions {
        detail,
        ..json::JsonOptions::default()
    };
    let sinks: Vec<Box<dyn Sink>> = vec![
        Box::new(text::Text::new(text_to.output(), text)),
        Box::new(json::Json::new(json_to.output(), json)),
    ];
    Pipeline::new(PipelineOptions::default(), sinks)
}

// ---- captures of the oracle ----

/// Records that were read, and whether nothing was found wrong.
fn orc_records(bytes: &[u8]) -> (usize, bool) {
    let input = Box::new(io::Cursor::new(bytes.to_vec()));
    let Ok(capture) = orc::Orc::plain_or_compressed(input) else {
        return (0, false);
    };
    let (mut records, mut whole) = (0, true);
    for record in capture {
        match record {
            Ok(_) => records += 1,
            Err(_) => whole = false,
        }
    }
    (records, whole)
}

/// Checks what a capture gives: nothing is wrong with it only where every byte of it is part of a record that is given. So one
/// that is cut within a record is never complete. (One that is cut between two cannot be told: the format has no end.)
fn check_orc(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let (text, json) = (Kept::default(), Kept::default());
    let mut pipeline = pipeline(&text, &json);
    let (mut whole, mut taken, mut submissions) = (true, 0, 0u64);
    for record in orc::Orc::new(mutant.bytes.as_slice()) {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                whole = false;
                let why = error.to_string();
                Record::Loss(Loss {
                    at: At::default(),
                    channel: None,
                    what: Lost::Untraced { why },
                })
            }
        };
        if let Record::Submission(s) = &record {
            submissions += 1;
            let had = |s: &Segment| if s.holes.is_empty() { s.bytes.len() } else { 0 };
            taken += 48 + s.segments.iter().map(|s| 12 + had(s)).sum::<usize>();
        }
        pipeline.record(record).map_err(|e| e.to_string())?;
    }
    let len = mutant.bytes.len();
    holds(taken <= len, || format!("{taken} of {len} B were read"))?;
    holds(!whole || taken == len, || {
        format!("nothing is said of {} B that were not read", len - taken)
    })?;
    let ledger = pipeline.finish().map_err(|e| e.to_string())?;
    holds(ledger.is_complete() <= whole, || {
        "complete after an error".to_owned()
    })?;
    holds(ledger.totals().submissions == submissions, || {
        "the ledger counts others than were read".to_owned()
    })?;
    check_output(len, &text.take(), &json.take())
}

/// xz sums up what it holds: where nothing is found wrong, no record is missing.
fn check_orc_xz(seeds: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let (records, whole) = orc_records(&mutant.bytes);
    let had = seeds.records[mutant.seed];
    holds(!whole || records >= had, || {
        format!("whole with {records} of {had} records")
    })
}

// ---- ioctl logs ----

/// Shows the contents of a log by each command that takes one.
fn check_records(input: usize, log: &ioctl_log::Log) -> Result<(), String> {
    let (text, json) = (Kept::default(), Kept::default());
    let raw = ioctls::IoctlOptions {
        raw: true,
        zeros: true,
        ..ioctls::IoctlOptions::default()
    };
    let mut sinks = [
        ioctls::Ioctls::text(text.output(), raw.clone()),
        ioctls::Ioctls::json(json.output(), raw),
    ];
    let mut gather = ModelView::new(false);
    let mut model = Model::new(ModelOptions::default());
    let mut shown: Vec<Box<dyn Sink + '_>> = vec![Box::new(&mut gather)];
    shown.extend(sinks.iter_mut().map(|s| Box::new(s) as Box<dyn Sink + '_>));
    let mut pipeline = Pipeline::new(PipelineOptions::default(), shown);
    for record in &log.records {
        pipeline.record(record.clone()).map_err(|e| e.to_string())?;
        let _ = model.record(record);
    }
    let _ = pipeline.finish().map_err(|e| e.to_string())?;
    holds(sinks[0].totals() == sinks[1].totals(), || {
        "text and JSON count differently".to_owned()
    })?;
    let _ = (gather.channels_text(), gather.maps_text());
    let _ = (gather.channels_json(), gather.maps_json());
    let _ = channels::table(&model, None, &BTreeMap::new());
    check_output(input, &text.take(), &json.take())
}

/// Nothing is known to be missing.
fn is_whole(log: &ioctl_log::Log) -> bool {
    log.cut.is_none() && log.bad_lines.is_empty() && log.unfinished == 0
}

/// A log that ends within a line is never whole, nor is one that ends within a call.
fn check_log(seeds: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let bytes = mutant.bytes.as_slice();
    let options = ioctl_log::LogOptions::default();
    let Ok(log) = ioctl_log::read(bytes, options) else {
        return Ok(());
    };
    let lines = bytes.iter().filter(|b| **b == b'\n').count() + 1;
    holds(log.records.len() + log.bad_lines.len() <= 2 * lines, || {
        format!("{} records of {lines} lines", log.records.len())
    })?;
    let ends = bytes.is_empty() || bytes.ends_with(b"\n");
    holds(ends || !is_whole(&log), || {
        "it ends within a line".to_owned()
    })?;
    if mutant.cut && ends {
        let rest = &seeds.bytes[mutant.seed][bytes.len()..];
        let within = rest.starts_with(b" ret=") || rest.starts_with(b" out");
        holds(!within || !is_whole(&log), || {
            "it ends within a call".to_owned()
        })?;
    }
    check_records(bytes.len(), &log)
}

thread_local! {
    static FILE: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Reads a log as a command does: from a file.
fn log_of_file(bytes: &[u8]) -> Option<ioctl_log::Log> {
    let path = FILE.with_borrow_mut(|file| {
        file.get_or_insert_with(|| {
            let thread = format!("{:?}", std::thread::current().id());
            let number: String = thread.chars().filter(char::is_ascii_digit).collect();
            std::env::temp_dir().join(format!("nvcap-mutant-{}-{number}", std::process::id()))
        })
        .clone()
    });
    fs::write(&path, bytes).ok()?;
    let log = ioctl_log::read_file(&path, ioctl_log::LogOptions::default());
    let _ = fs::remove_file(&path);
    log.ok()
}

/// gzip sums up what it holds: where nothing is found wrong, no record is missing.
fn check_log_gz(seeds: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let Some(log) = log_of_file(&mutant.bytes) else {
        return Ok(());
    };
    let (records, had) = (log.records.len(), seeds.records[mutant.seed]);
    holds(!is_whole(&log) || records >= had, || {
        format!("whole with {records} of {had} records")
    })
}

// ---- texts ----

fn as_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A line of what is wrong is one that is there.
fn is_line(text: &str, line: usize) -> Result<(), String> {
    let lines = text.lines().count();
    holds((1..=lines).contains(&line), || {
        format!("line {line} of {lines} is wrong")
    })
}

fn check_oracle_channels(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let _ = orc::Channels::parse(&as_text(&mutant.bytes));
    Ok(())
}

/// Every line that is no comment gives one thing, or the file is refused.
fn check_channels(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let text = as_text(&mutant.bytes);
    let given = match ChannelsFile::parse(&text) {
        Ok(given) => given,
        Err((line, _)) => return is_line(&text, line),
    };
    let said = |line: &&str| !line.split('#').next().unwrap_or_default().trim().is_empty();
    let (things, lines) = (
        given.doorbells.len() + given.channels.len(),
        text.lines().filter(said).count(),
    );
    holds(things == lines, || {
        format!("{things} things of {lines} lines")
    })
}

fn check_phases(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let text = as_text(&mutant.bytes);
    let phases = match Phases::parse(&text) {
        Ok(phases) => phases,
        Err(error) => return is_line(&text, error.line),
    };
    for time in [0, 1, 29_289_450_297, u64::MAX] {
        let Some(name) = phases.at(time) else {
            continue;
        };
        holds(text.contains(&**name), || {
            format!("no phase is called {name}")
        })?;
    }
    Ok(())
}

/// A filter is refused at one of its columns, or says the opposite of its negation.
fn check_filter(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let text = as_text(&mutant.bytes);
    let filter = match Filter::parse(&text) {
        Ok(filter) => filter,
        Err(error) => {
            let columns = 1..=text.chars().count() + 1;
            return holds(columns.contains(&error.column), || error.to_string());
        }
    };
    // One level deeper, which may be one too many.
    let Ok(not) = Filter::parse(&format!("!({text})")) else {
        return Ok(());
    };
    let submission = sample();
    let mut decoder = Decoder::new(nvcap_decode::decode::DecodeOptions::default());
    let context = decoder.context(&submission, 0);
    let mut outcome = Ok(());
    decoder.submission(&submission, &context, &(), &mut |event| {
        let stop = matches!(event.body, nvcap_decode::decode::event::Body::Stop(_));
        if !stop && filter.matches(event) == not.matches(event) {
            outcome = Err(format!("{text:?} and its negation match the same"));
        }
    });
    outcome
}

/// A submission with an event of most kinds in it.
fn sample() -> Submission {
    let mut p = Pushbuffer::new();
    p.bind(1, 0xcbc0).bind(4, 0xc8b5);
    let _ = p.inline(1, 0xcbc0, GpuVa(0x7f00_0000_0000), &[1; 64]);
    let _ = p.pcas(1, 0xcbc0, GpuVa(0x2_0000_0000));
    let _ = p.copy(4, 0xc8b5, GpuVa(0x1000), GpuVa(0x2000), 4096);
    let _ = p.release(1, 0xcbc0, GpuVa(0x3000), 7);
    submission(0, vec![p.segment(GpuVa(0x1000))])
}

fn submission(position: u64, segments: Vec<Segment>) -> Submission {
    Submission {
        absent_ns: None,
        at: At {
            time_ns: 5_000_000_000 + position,
            pid: 70,
            tid: 71,
        },
        channel: ChannelId(3),
        token: Some(0x10012),
        position,
        gp_get: None,
        prev_put: position as u32,
        gp_put: (position + segments.len() as u64) as u32,
        ip: None,
        doorbell: None,
        how: How::Trapped,
        late: false,
        thread: Some("name".into()),
        segments,
    }
}

// ---- what rings and pushbuffers hold ----

/// Words of a pushbuffer, on subchannels with classes bound: decoded, shown, and counted whole.
fn check_words(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let (text, json) = (Kept::default(), Kept::default());
    let mut pipeline = pipeline(&text, &json);
    let mut bind = Pushbuffer::new();
    for (subchannel, class) in [
        0xcb97, 0xcbc0, 0xa140, 0x902d, 0xc8b5, 0xc9b0, 0xc9d1, 0xcba2,
    ]
    .into_iter()
    .zip(0..)
    .map(|(class, n)| (n, class))
    {
        bind.bind(subchannel, class);
    }
    let bytes = &mutant.bytes;
    let words = bytes.len() & !3;
    let raw = entry::segment(GpuVa(0x1000), words as u32, false, false, false);
    let segment = Segment {
        entry: raw,
        bytes: bytes[..words].to_vec(),
        holes: Vec::new(),
    };
    let all = [
        submission(0, vec![bind.segment(GpuVa(0))]),
        submission(1, vec![segment]),
    ];
    for one in all {
        let record = Record::Submission(one);
        pipeline.record(record).map_err(|e| e.to_string())?;
    }
    let ledger = pipeline.finish().map_err(|e| e.to_string())?;
    holds(ledger.is_complete(), || {
        "a whole submission is not complete".to_owned()
    })?;
    check_output(bytes.len(), &text.take(), &json.take())
}

/// An entry that is read is formed again as it was.
fn check_entries(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let mut base = 0;
    for raw in entry::iter(&mutant.bytes) {
        let kind = entry::read(raw, base);
        let formed = match kind {
            EntryKind::Segment {
                address,
                len,
                conditional,
                subroutine,
                sync,
            } => entry::segment(address, len, conditional, subroutine, sync),
            EntryKind::Control {
                opcode,
                operand,
                sync,
            } => {
                let opcode = entry::Opcode(opcode);
                if opcode == entry::Opcode::SET_PB_SEGMENT_EXTENDED_BASE {
                    base = entry::extended_base(operand);
                    continue;
                }
                entry::control(opcode, operand, sync)
            }
        };
        holds(entry::read(formed, base) == kind, || {
            format!("{raw:#018x}: {kind:?}")
        })?;
    }
    Ok(())
}

const CLASSES: [u32; 10] = [
    0, 0xa0c0, 0xb1c0, 0xc1c0, 0xc3c0, 0xc5c0, 0xc6c0, 0xc9c0, 0xcbc0, 0xcdc0,
];

/// A QMD is read by each class's layout alike, and within its bytes.
fn check_qmd(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let bytes = &mutant.bytes;
    for class in CLASSES {
        let version = qmd::version_of(class, bytes);
        let view = View::of(class, bytes);
        let text = explain::qmd(class, bytes);
        holds(view.as_ref().map(|v| v.version) == version, || {
            "another version".to_owned()
        })?;
        holds(text.as_ref().map(|t| t.version) == version, || {
            "another text".to_owned()
        })?;
        let size = text.map_or(0, |t| t.bytes);
        holds(size <= bytes.len(), || {
            format!("{size} of {} B", bytes.len())
        })?;
    }
    Ok(())
}

/// Memory of a process: what is found of QMDs lies within it, and is taken by the decoder as an image record.
fn check_image(_: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let bytes = &mutant.bytes;
    let (text, json) = (Kept::default(), Kept::default());
    let mut pipeline = pipeline(&text, &json);
    let mut p = Pushbuffer::new();
    let class = 0xcbc0;
    p.bind(1, class);
    let found = |at: usize, address: u64, data: &[u8]| {
        Record::QmdCopy(Box::new(QmdCopy {
            at: At {
                time_ns: 1,
                pid: 70,
                tid: 0,
            },
            address: GpuVa(address),
            bytes: data.to_vec(),
            found: CpuVa(at as u64),
        }))
    };
    let mut run = 0;
    for upload in qmd_copy::uploads(bytes, 1024) {
        let there = bytes.get(upload.offset..upload.offset + upload.data.len());
        holds(there == Some(upload.data), || {
            "an upload that is not there".to_owned()
        })?;
        let record = found(upload.offset, upload.address.0, upload.data);
        pipeline.record(record).map_err(|e| e.to_string())?;
        if run < 64 && p.pcas(1, class, GpuVa(upload.address.0 & !0xff)).is_ok() {
            run += 1;
        }
    }
    let size = qmd_copy::size(class);
    for (i, at) in qmd_copy::nodes(class, bytes).enumerate() {
        let node = bytes.get(at..at + size).ok_or("a node that is not there")?;
        let address = 0x2_0400_0000 + i as u64 * 0x200;
        let record = found(at, address, node);
        pipeline.record(record).map_err(|e| e.to_string())?;
        if run < 64 && p.pcas(1, class, GpuVa(address)).is_ok() {
            run += 1;
        }
    }
    let launches = Record::Submission(submission(0, vec![p.segment(GpuVa(0x1000))]));
    pipeline.record(launches).map_err(|e| e.to_string())?;
    pipeline.finish().map_err(|e| e.to_string())?;
    check_output(bytes.len(), &text.take(), &json.take())
}
