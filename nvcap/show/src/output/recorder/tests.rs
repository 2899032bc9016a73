mod blocks;
mod on_disk;
#[cfg(feature = "zstd")]
mod packed;

use std::path::PathBuf;

use super::*;
use crate::output::text::{Text, TextOptions};
use crate::output::writer::Output;
use crate::pipeline::{Finished, Pipeline, PipelineOptions};
use nvcap_decode::decode::encode::Pushbuffer;
use nvcap_decode::record::{At, Channel, ChannelId, How, Life, Origin, Process, Segment};
use nvcap_decode::wire::{GpuVa, header::Step};
use nvcap_recording::recording::{Item, Reader};

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nvcap-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn at(time_ns: u64) -> At {
    At {
        time_ns,
        pid: 7,
        tid: 7,
    }
}

fn submission(n: u64, segments: Vec<Segment>) -> Record {
    Record::Submission(Submission {
        absent_ns: None,
        at: at(n + 1),
        channel: ChannelId(0),
        token: None,
        position: n,
        gp_get: None,
        prev_put: n as u32,
        gp_put: n as u32 + 1,
        ip: None,
        doorbell: None,
        how: How::Trapped,
        late: false,
        thread: None,
        segments,
    })
}

fn bytes(n: u64, len: usize) -> Record {
    let segment = Segment {
        bytes: vec![n as u8; len],
        ..Segment::default()
    };
    submission(n, vec![segment])
}

fn channel() -> Record {
    Record::Channel(Box::new(Channel {
        class: Some(0xc86f),
        entries: Some(1024),
        ..Channel::bare(at(1), ChannelId(0), Origin::Allocated)
    }))
}

fn life(life: Life) -> Record {
    Record::Process(Process { at: at(1), life })
}

/// The records of a file, and what is wrong with it.
fn read(bytes: impl io::Read) -> (Vec<Record>, Vec<String>) {
    let (mut records, mut errors) = (Vec::new(), Vec::new());
    for item in Reader::new(bytes) {
        match item {
            Ok(Item::Record(record)) => records.push(record),
            Ok(_) => {}
            Err(e) => errors.push(e.to_string()),
        }
    }
    (records, errors)
}

fn recorder(files: Files, redacted: bool) -> Recorder {
    let info = TraceInfo {
        redacted,
        ..TraceInfo::default()
    };
    let recorder = Recorder::new(files, info, 1).unwrap();
    match redacted {
        true => recorder.redacting(),
        false => recorder,
    }
}

/// Gives the records to the recorder through a pipeline, as a live trace does.
fn record(recorder: Recorder, records: Vec<Record>) {
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(recorder)];
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
    for record in records {
        pipeline.record(record).unwrap();
    }
    pipeline.finish().unwrap();
}

#[test]
fn files_follow_one_another_and_each_stands_alone() {
    let folder = Folder::new("rotation");
    let rotation = Rotation {
        bytes: Some(40_000),
        time: None,
        keep: Some(3),
    };
    let files = Files::numbered(&folder.0.join("run.pcapng"), rotation, false).unwrap();
    let mut all = vec![life(Life::Present { name: "a".into() }), channel()];
    all.extend((0..200).map(|n| bytes(n, 1_000)));
    record(recorder(files, false), all);
    assert_eq!(
        folder.names(),
        ["run.00004.pcapng", "run.00005.pcapng", "run.00006.pcapng"]
    );
    let mut positions = Vec::new();
    for name in folder.names() {
        let file = std::fs::File::open(folder.0.join(name)).unwrap();
        let (records, errors) = read(file);
        assert_eq!(errors, Vec::<String>::new());
        // Each file repeats the records of the process and of the channel.
        assert!(
            matches!(&records[0], Record::Process(_)),
            "{:?}",
            records[0]
        );
        assert!(
            matches!(&records[1], Record::Channel(_)),
            "{:?}",
            records[1]
        );
        positions.extend(records[2..].iter().map(|r| match r {
            Record::Submission(s) => s.position,
            other => panic!("{other:?}"),
        }));
    }
    assert!(positions.len() > 70, "{}", positions.len());
    let first = 200 - positions.len() as u64;
    assert_eq!(positions, (first..200).collect::<Vec<_>>());
    // The next trace goes on behind them.
    let files = Files::numbered(&folder.0.join("run.pcapng"), rotation, false).unwrap();
    record(recorder(files, false), vec![channel()]);
    assert!(folder.names().contains(&"run.00007.pcapng".to_owned()));
}

/// Two recordings of one name take names in turn, and neither removes, renames or writes over what it has not written.
#[test]
fn files_of_others_stay() {
    static SEAL: AtomicBool = AtomicBool::new(false);
    let folder = Folder::new("others");
    let rotation = Rotation {
        bytes: Some(20_000),
        time: None,
        keep: Some(2),
    };
    let at = |name: &str| folder.0.join(name);
    let theirs = [
        "run.00001.pcapng",
        "run.00004.sealed.pcapng",
        "run.99999999999999999999.pcapng",
    ];
    for name in theirs {
        std::fs::write(at(name), "precious").unwrap();
    }
    let mut both = [0, 1].map(|_| {
        let files = Files::numbered(&at("run.pcapng"), rotation, false).unwrap();
        let recorder = recorder(files, false).sealing(&SEAL);
        Pipeline::new(PipelineOptions::default(), vec![Box::new(recorder) as _])
    });
    for n in 0..60 {
        for pipeline in &mut both {
            pipeline.record(bytes(n, 1_000)).unwrap();
        }
    }
    // One that is kept is replaced: what has its name now stays.
    let last = folder
        .names()
        .into_iter()
        .rev()
        .find(|n| n.len() == 16)
        .unwrap();
    std::fs::remove_file(at(&last)).unwrap();
    std::fs::write(at(&last), "precious").unwrap();
    SEAL.store(true, Ordering::Relaxed);
    for n in 60..200 {
        for pipeline in &mut both {
            pipeline.record(bytes(n, 1_000)).unwrap();
        }
    }
    for pipeline in both {
        let _ = pipeline.finish();
    }
    for name in theirs.into_iter().chain([&*last]) {
        assert_eq!(std::fs::read(at(name)).unwrap(), b"precious", "{name}");
    }
    let mut seen = 0;
    for name in folder.names() {
        if theirs.contains(&&*name) || name == last {
            continue;
        }
        let (records, errors) = read(std::fs::File::open(at(&name)).unwrap());
        assert_eq!(errors, Vec::<String>::new(), "{name}");
        let positions: Vec<u64> = { records.iter() }
            .filter_map(|record| match record {
                Record::Submission(s) => Some(s.position),
                _ => None,
            })
            .collect();
        let first = positions.first().copied().unwrap_or(0);
        let is_whole = { positions.iter().zip(first..) }.all(|(a, b)| *a == b);
        assert!(is_whole, "{name}: {positions:?}");
        seen += 1;
    }
    // Two of each, and those that were sealed.
    assert!(seen >= 4, "{:?}", folder.names());
}

/// Each complete file is reported once, before it is removed, and can be opened then; the last one is reported at the end.
#[test]
fn files_that_are_whole_are_told() {
    let folder = Folder::new("told");
    let rotation = Rotation {
        bytes: Some(40_000),
        time: None,
        keep: Some(1),
    };
    let files = Files::numbered(&folder.0.join("run.pcapng"), rotation, false).unwrap();
    let told = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let seen = std::rc::Rc::clone(&told);
    let files = files.telling(Box::new(move |path| {
        let (records, errors) = read(std::fs::File::open(path).unwrap());
        assert_eq!(errors, Vec::<String>::new());
        let positions = records.iter().filter_map(|r| match r {
            Record::Submission(s) => Some(s.position),
            _ => None,
        });
        seen.borrow_mut().extend(positions);
    }));
    let mut all = vec![channel()];
    all.extend((0..200).map(|n| bytes(n, 1_000)));
    record(recorder(files, false), all);
    assert_eq!(*told.borrow(), (0..200).collect::<Vec<_>>());
    assert_eq!(folder.names().len(), 1);
}

/// Keeps what it is given, up to its room; then it is a full disk.
#[derive(Clone, Default)]
struct Room {
    kept: std::sync::Arc<std::sync::Mutex<Vec<u8>>>,
    room: usize,
}

impl io::Write for Room {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.kept.lock().unwrap();
        let taken = bytes.len().min(self.room - kept.len());
        if taken == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        kept.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Shows a trace and records it on a disk of this size. Returns what was shown, the length of the recording, and the end of the trace.
fn shown_and_recorded(room: usize) -> (String, usize, Finished) {
    let disk = Room {
        room,
        ..Room::default()
    };
    let screen = Room {
        room: usize::MAX,
        ..Room::default()
    };
    let out = |to: &Room| Output::to(Box::new(to.clone()));
    let files = Files::one(out(&disk), false);
    let sinks: Vec<Box<dyn Sink>> = vec![
        Box::new(Text::new(out(&screen), TextOptions::default())),
        Box::new(recorder(files, false)),
    ];
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
    for record in [channel(), bytes(0, 100)] {
        pipeline.record(record).unwrap();
    }
    let finished = pipeline.finish_counted().unwrap();
    let shown = String::from_utf8(screen.kept.lock().unwrap().clone()).unwrap();
    let length = disk.kept.lock().unwrap().len();
    (shown, length, finished)
}

/// The end of a recording is the last that is written, and may be what the disk has no room for.
#[test]
fn the_verdict_that_is_shown_has_what_the_recording_lacks_at_its_very_end() {
    let (shown, whole, finished) = shown_and_recorded(usize::MAX);
    assert!(shown.contains("complete: ") && finished.is_shown, "{shown}");
    let (shown, _, finished) = shown_and_recorded(whole - 1);
    assert_eq!(finished.ledger.unshown(), 1);
    let verdict = crate::output::ledger::verdict(&finished.ledger);
    assert!(verdict.starts_with("INCOMPLETE"), "{verdict}");
    assert!(finished.is_shown && shown.contains(&verdict), "{shown}");
    assert!(!shown.contains("complete: "), "{shown}");
}

/// A submission that is too long for a recording is a loss there: the trace that is shown has the same verdict.
#[test]
fn the_verdict_that_is_shown_has_what_is_too_long_for_the_recording() {
    for (most, is_complete) in [(1 << 20, true), (1000, false)] {
        let room = || Room {
            room: usize::MAX,
            ..Room::default()
        };
        let (disk, screen) = (room(), room());
        let out = |to: &Room| Output::to(Box::new(to.clone()));
        let mut recorder = recorder(Files::one(out(&disk), false), false);
        recorder.writer.most = most;
        let sinks: Vec<Box<dyn Sink>> = vec![
            Box::new(Text::new(out(&screen), TextOptions::default())),
            Box::new(recorder),
        ];
        let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
        for record in [channel(), bytes(0, 100), bytes(1, 5000)] {
            pipeline.record(record).unwrap();
        }
        let ledger = pipeline.finish().unwrap();
        let shown = String::from_utf8(screen.kept.lock().unwrap().clone()).unwrap();
        let mut recorded = Ledger::new();
        let file = disk.kept.lock().unwrap().clone();
        let (records, errors) = read(file.as_slice());
        assert_eq!(errors, Vec::<String>::new());
        records.iter().for_each(|r| recorded.record(r));
        let verdicts = [&ledger, &recorded].map(Ledger::is_complete);
        assert_eq!(verdicts, [is_complete; 2], "{shown}");
        assert_eq!(ledger.unshown(), u64::from(!is_complete));
        assert_eq!(shown.contains("\ncomplete: "), is_complete, "{shown}");
    }
}

/// A file that was removed meanwhile has nothing of what was recorded, and is not told as one that has its end.
#[test]
fn a_recording_that_was_removed_lacks_everything() {
    let folder = Folder::new("removed");
    let path = folder.0.join("run.pcapng");
    let files = Files::one(Output::recording(&path, false).unwrap(), false);
    let files = files.telling(Box::new(|path| panic!("{}", path.display())));
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(recorder(files, false))];
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
    pipeline.record(channel()).unwrap();
    pipeline.flush().unwrap();
    std::fs::remove_file(&path).unwrap();
    let ledger = pipeline.finish().unwrap();
    assert!(ledger.unshown() > 2, "{}", ledger.unshown());
}

#[test]
fn sealed_files_stay() {
    static SEAL: AtomicBool = AtomicBool::new(false);
    let folder = Folder::new("seal");
    let rotation = Rotation {
        bytes: Some(20_000),
        time: None,
        keep: Some(2),
    };
    let files = Files::numbered(&folder.0.join("x"), rotation, false).unwrap();
    let recorder = recorder(files, false).sealing(&SEAL);
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(recorder)];
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
    pipeline.record(channel()).unwrap();
    (0..50).for_each(|n| pipeline.record(bytes(n, 1_000)).unwrap());
    SEAL.store(true, Ordering::Relaxed);
    pipeline.flush().unwrap();
    assert!(!SEAL.load(Ordering::Relaxed));
    (50..150).for_each(|n| pipeline.record(bytes(n, 1_000)).unwrap());
    pipeline.finish().unwrap();
    let names = folder.names();
    assert_eq!(names[..2], ["x.00002.sealed", "x.00003.sealed"]);
    assert_eq!(names.len(), 4, "{names:?}");
    let sealed = std::fs::File::open(folder.0.join("x.00003.sealed")).unwrap();
    let (records, errors) = read(sealed);
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(records.last(), Some(&bytes(49, 1_000)));
}

#[test]
fn what_is_kept_is_bounded() {
    let mut kept = Kept::within(10_000);
    for n in 0..100 {
        kept.note(&life(Life::Thread { child: n }));
    }
    assert!(kept.records().count() < 40);
    assert!(kept.left_out() > 60);
    // Records of threads and processes that have ended are not kept.
    let mut kept = Kept::within(10_000);
    for n in 0..10_000 {
        kept.note(&life(Life::Thread { child: n }));
        let mut end = at(1);
        end.tid = n;
        kept.note(&Record::Process(Process {
            at: end,
            life: Life::Exit { process: false },
        }));
    }
    assert_eq!((kept.records().count(), kept.left_out()), (0, 0));
    kept.note(&channel());
    kept.note(&life(Life::Exec { name: "b".into() }));
    assert_eq!(kept.records().count(), 1);
    kept.note(&life(Life::Exit { process: true }));
    assert_eq!(kept.records().count(), 0);
}

#[cfg(feature = "zstd")]
#[test]
fn compressed_recordings_are_read() {
    let folder = Folder::new("zstd");
    let path = folder.0.join("run.pcapng.zst");
    let files = Files::one(Output::file(&path).unwrap(), true);
    let all: Vec<Record> = (0..5_000).map(|n| bytes(n, 1_000)).collect();
    record(recorder(files, false), all.clone());
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size < 1_000_000, "{size}");
    let (records, errors) = read(nvcap_recording::file::packed::open(&path).unwrap());
    assert_eq!(errors, Vec::<String>::new());
    assert!(records == all);
    // A file that was cut still gives the records before the cut.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let (records, errors) = read(nvcap_recording::file::packed::open(&path).unwrap());
    assert!(!records.is_empty() && records == all[..records.len()]);
    assert!(errors.iter().any(|e| e.contains("no end")), "{errors:?}");
}

const SECRET: u32 = 0x5ec2_e75e;

/// A submission with an inline write, an immediate one, a fill and a QMD.
fn with_data() -> Record {
    let mut words = Pushbuffer::new();
    words.bind(1, 0xcbc0);
    let data = [SECRET.to_le_bytes(); 16].concat();
    let to = GpuVa(0x2_0000_1000);
    words.inline(1, 0xcbc0, to, &data).unwrap();
    words.bind(4, 0xc8b5);
    words
        .named(4, 0xc8b5, "SET_REMAP_CONST_A", &[SECRET])
        .unwrap();
    words.named(4, 0xc8b5, "LINE_LENGTH_IN", &[77]).unwrap();
    submission(0, vec![words.segment(GpuVa(0x2_0080_0000))])
}

fn occurrences(records: &[Record]) -> (usize, usize) {
    let (mut secrets, mut words) = (0, 0);
    for record in records {
        let Record::Submission(s) = record else {
            continue;
        };
        for word in s.segments.iter().flat_map(|s| s.bytes.chunks_exact(4)) {
            words += 1;
            secrets += usize::from(word == SECRET.to_le_bytes());
        }
    }
    (secrets, words)
}

#[test]
fn users_data_is_hidden_and_nothing_else_changes() {
    let folder = Folder::new("redact");
    let path = folder.0.join("run.pcapng");
    let files = Files::one(Output::file(&path).unwrap(), false);
    let all = vec![channel(), with_data(), with_data()];
    record(recorder(files, true), all.clone());
    let (records, errors) = read(std::fs::File::open(&path).unwrap());
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(records.len(), all.len());
    let (secrets, words) = occurrences(&all);
    assert_eq!((secrets, occurrences(&records)), (2 * 17, (0, words)));
    let changed = |a: &Record, b: &Record| match (a, b) {
        (Record::Submission(a), Record::Submission(b)) => {
            let [a, b] = [a, b].map(|s| s.segments[0].bytes.chunks_exact(4));
            a.zip(b).filter(|(a, b)| a != b).count()
        }
        _ => 0,
    };
    // The method headers and all other data are as they were.
    assert_eq!(changed(&all[1], &records[1]), 17);
    // Equal data stays equal.
    let Record::Submission(s) = &records[1] else {
        panic!()
    };
    let Record::Submission(t) = &records[2] else {
        panic!()
    };
    assert_eq!(s.segments, t.segments);
}

#[test]
fn words_for_an_unknown_class_are_hidden() {
    let mut words = Pushbuffer::new();
    words.method(Step::Increment, 5, 0x400, &[SECRET, SECRET]);
    let segment = words.segment(GpuVa(0x2_0080_0000));
    let folder = Folder::new("unknown");
    let path = folder.0.join("run.pcapng");
    let files = Files::one(Output::file(&path).unwrap(), false);
    record(recorder(files, true), vec![submission(0, vec![segment])]);
    let (records, _) = read(std::fs::File::open(&path).unwrap());
    assert_eq!(occurrences(&records), (0, 3));
}
