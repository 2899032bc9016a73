//! Reads written traces again: here by the same messages, and by Perfetto's own bindings (tests/perfetto/check.py).

mod viewer;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use prost::Message as _;
use serde_json::Value as Json;

use super::proto::{INSTANT, NEEDS_STATE, SLICE_BEGIN, SLICE_END, STATE_CLEARED, TracePacket};
use super::*;
use crate::export::made::{self, Place, context, give};
use crate::pipeline::{Pipeline, PipelineOptions};
use nvcap_decode::decode::event::Launch;
use nvcap_decode::decode::event::{Semaphore, SemaphoreAction, SemaphoreUnit};
use nvcap_decode::gpu_time::made_up::records;
use nvcap_decode::record::{At, How, Kernel, Lost};
use nvcap_decode::wire::GpuVa;
use nvcap_recording::file::{orc, packed};

/// All of a file.
#[derive(Clone, PartialEq, prost::Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

fn packets(place: &Place) -> Vec<TracePacket> {
    let bytes = place.bytes.lock().unwrap();
    Trace::decode(bytes.as_slice()).unwrap().packet
}

fn sink(place: &Place) -> Perfetto {
    let out = Output::to(Box::new(place.clone()));
    Perfetto::new(out, PerfettoOptions::default())
}

/// An operation with one entry that ran from `start` for `ns`.
fn timed(channel: u32, serial: u64, time_ns: u64, start: u64, ns: u64) -> Context {
    made::timed(context(channel, serial, time_ns), start, ns)
}

fn launch() -> Operation {
    Operation::Launch(Box::new(made::launch()))
}

fn semaphore(action: SemaphoreAction, payload: u64) -> Operation {
    Operation::Semaphore(Semaphore {
        unit: SemaphoreUnit::Host,
        action,
        address: GpuVa(0x1000),
        payload,
        wide: false,
        timestamp: false,
        reduction: None,
        wait_for_idle: false,
        execute: 0,
    })
}

fn finish(mut sink: Perfetto) {
    let model = Model::new(nvcap_decode::driver::ModelOptions::default());
    sink.finish(&Ledger::new(), &model).unwrap();
}

/// An event as it is shown: type, time, track, name, arrows from and to.
type Shown = (i32, u64, String, String, Vec<u64>, Vec<u64>);

/// The events, with the names of their tracks.
fn events(packets: &[TracePacket]) -> Vec<Shown> {
    let mut tracks = HashMap::new();
    let mut names = HashMap::new();
    let mut all = Vec::new();
    for packet in packets {
        for text in packet.interned_data.iter().flat_map(|d| &d.event_names) {
            names.insert(text.iid, text.name.clone().unwrap());
        }
        if let Some(track) = &packet.track_descriptor {
            let thread = track.thread.as_ref().map(|t| format!("thread {}", t.tid()));
            let name = track.name.clone().or(thread).unwrap_or_default();
            let again = all_tracks_named(&tracks, &name);
            tracks.insert(track.uuid(), (name, again));
        }
        if let Some(event) = &packet.track_event {
            let (track, row) = &tracks[&event.track_uuid()];
            let name = names.get(&event.name_iid).cloned().unwrap_or_default();
            all.push((
                event.r#type(),
                packet.timestamp(),
                format!("{track}{}", ["", "'", "''"][*row]),
                name,
                event.flow_ids.clone(),
                event.terminating_flow_ids.clone(),
            ));
        }
    }
    all.sort_by_key(|e| e.1);
    all
}

fn all_tracks_named(tracks: &HashMap<u64, (String, usize)>, name: &str) -> usize {
    tracks.values().filter(|(n, _)| n == name).count()
}

fn of_kind(all: &[Shown], kind: i32) -> Vec<(u64, &str, &str)> {
    let all = all.iter().filter(|e| e.0 == kind);
    all.map(|e| (e.1, e.2.as_str(), e.3.as_str())).collect()
}

#[test]
fn arrows_lead_from_the_rank_that_comes_last() {
    let place = Place::default();
    let mut sink = sink(&place);
    let name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
    for call in 0..6 {
        for (rank, late) in [(0, 0), (1, 400)] {
            let begin = 1_000_000 + 10_000 * call + late;
            let serial = 2 * call + u64::from(rank);
            let mut c = timed(rank, serial, begin - 100, begin, 900 - late);
            (c.at.pid, c.gpu) = (11 + rank, Some(rank));
            let kernel = Kernel::called(c.at, 0x7f00, name);
            let launch = Operation::Launch(Box::new(Launch {
                kernel: Some(Arc::new(kernel)),
                ..made::launch()
            }));
            give(&mut sink, &c, &launch);
        }
    }
    finish(sink);
    let all = events(&packets(&place));
    let of_ranks = |kind: i32, name: &str| -> Vec<Shown> {
        let of = all
            .iter()
            .filter(|e| e.0 == kind && e.2.starts_with("collectives") && e.3 == name);
        of.cloned().collect()
    };
    assert_eq!(of_ranks(SLICE_BEGIN, "AllReduce").len(), 12);
    let last = of_ranks(INSTANT, "comes last");
    let come = of_ranks(INSTANT, "process 12 on GPU 1 has come");
    assert_eq!((last.len(), come.len()), (6, 6));
    for (call, (last, come)) in (0..).zip(last.iter().zip(&come)) {
        // At the moment of the last arrival, from its track to the other one's.
        let time = 1_000_400 + 10_000 * call;
        assert_eq!((last.1, come.1), (time, time));
        assert_ne!(last.2, come.2);
        assert_eq!((last.4.len(), &last.4), (1, &come.5));
    }
}

#[test]
fn overlapping_slices_have_rows_and_arrows_lead_from_doorbells() {
    let place = Place::default();
    let mut sink = sink(&place);
    give(&mut sink, &timed(3, 0, 100, 200, 50), &launch());
    give(&mut sink, &timed(3, 1, 110, 240, 20), &launch());
    give(&mut sink, &timed(3, 2, 120, 260, 5), &launch());
    // Begins before its doorbell, within its error; and without a known time.
    give(&mut sink, &timed(3, 3, 300, 297, 5), &launch());
    give(&mut sink, &context(3, 4, 400), &launch());
    finish(sink);
    let all = events(&packets(&place));
    let begins = of_kind(&all, SLICE_BEGIN);
    assert_eq!(
        begins,
        [
            (200, "channel 3", "prog 0x7f00"),
            (240, "channel 3'", "prog 0x7f00"),
            (260, "channel 3", "prog 0x7f00"),
            (300, "channel 3", "prog 0x7f00"),
        ]
    );
    let ends: Vec<u64> = of_kind(&all, SLICE_END).iter().map(|e| e.0).collect();
    assert_eq!(ends, [250, 260, 265, 305]);
    let instants = of_kind(&all, INSTANT);
    assert!(
        instants.contains(&(400, "at an unknown time", "prog 0x7f00")),
        "{instants:?}"
    );
    let doorbells: Vec<&Shown> = all.iter().filter(|e| e.3 == "doorbell").collect();
    assert_eq!(doorbells.len(), 5);
    for (n, doorbell) in doorbells.iter().enumerate() {
        assert_eq!(doorbell.2, "thread 8");
        let flow = n as u64 + 1;
        assert_eq!(doorbell.4, [flow]);
        assert_eq!(all.iter().filter(|e| e.5 == [flow]).count(), 1);
    }
}

#[test]
fn a_wait_for_another_channel_has_an_arrow_from_the_release() {
    let place = Place::default();
    let mut sink = sink(&place);
    let release = semaphore(SemaphoreAction::Release, 9);
    give(&mut sink, &timed(1, 0, 100, 200, 50), &release);
    let acquire = semaphore(SemaphoreAction::AcquireGreaterEqual, 9);
    // Its own wait, then that of another channel, at a time that is not known: not before the release.
    give(&mut sink, &timed(1, 1, 120, 260, 5), &acquire);
    give(&mut sink, &context(2, 2, 150), &acquire);
    let mut waits = timed(2, 3, 210, 265, 5);
    let time = waits.gpu_time.as_deref().unwrap()[0];
    waits.gpu_time = Some(Arc::from([GpuTime {
        ready_gpu_ns: Some(1_000_260),
        wait: Some(nvcap_decode::decode::event::GpuWait {
            semaphore: GpuVa(0x1000),
            ns: 40,
        }),
        ..time
    }]));
    give(&mut sink, &waits, &acquire);
    finish(sink);
    let all = events(&packets(&place));
    let arrows: Vec<_> = all
        .iter()
        .filter(|e| e.3 == "release")
        .map(|from| {
            let to = all.iter().find(|e| e.5.contains(&from.4[0])).unwrap();
            (from.1, from.2.as_str(), to.1, to.2.as_str(), to.3.as_str())
        })
        .collect();
    assert_eq!(
        arrows,
        [
            (250, "channel 1", 250, "channel 2", "wait for channel 1"),
            (250, "channel 1", 260, "channel 2", "acquired"),
        ]
    );
    assert_eq!(
        of_kind(&all, SLICE_BEGIN),
        [(220, "channel 2", "wait for channel 1")]
    );
    assert_eq!(of_kind(&all, SLICE_END), [(260, "channel 2", "")]);
}

#[test]
fn behind_a_loss_the_file_begins_anew() {
    let place = Place::default();
    *place.room.lock().unwrap() = Some(20_000);
    let mut sink = sink(&place);
    for n in 0..300 {
        give(
            &mut sink,
            &timed(3, n, 100 * n, 100 * n + 10, 50),
            &launch(),
        );
        if n % 10 == 0 {
            sink.flush().unwrap();
        }
        if n == 200 {
            *place.room.lock().unwrap() = None;
        }
    }
    assert!(sink.unshown() > 50, "{}", sink.unshown());
    finish(sink);
    let packets = packets(&place);
    let cleared: Vec<usize> = (0..packets.len())
        .filter(|n| packets[*n].sequence_flags() & STATE_CLEARED != 0)
        .collect();
    assert!(cleared.len() >= 2, "{cleared:?}");
    let last = *cleared.last().unwrap();
    assert!(packets[last].previous_packet_dropped());
    // All that is used behind it is given behind it.
    let mut given = std::collections::HashSet::new();
    let mut named = 0;
    for packet in &packets[last..] {
        for text in packet.interned_data.iter().flat_map(|d| &d.event_names) {
            given.insert(text.iid());
        }
        if let Some(track) = &packet.track_descriptor {
            given.insert(1_000_000 + track.uuid());
        }
        if let Some(event) = &packet.track_event {
            assert!(given.contains(&(1_000_000 + event.track_uuid())));
            assert!(event.name_iid.is_none_or(|iid| given.contains(&iid)));
            assert_eq!(packet.sequence_flags(), NEEDS_STATE);
            named += 1;
        }
    }
    assert!(named > 100, "{named}");
}

#[test]
fn texts_do_not_grow_without_end() {
    let place = Place::default();
    let mut sink = sink(&place);
    for n in 0..66_000u64 {
        let mut op = launch();
        if let Operation::Launch(l) = &mut op {
            l.program = Some(GpuVa(n));
        }
        give(&mut sink, &context(3, n, n + 1), &op);
    }
    finish(sink);
    let packets = packets(&place);
    let cleared = packets
        .iter()
        .filter(|p| p.sequence_flags() & STATE_CLEARED != 0);
    assert_eq!(cleared.count(), 2);
    assert_eq!(of_kind(&events(&packets), INSTANT).len(), 132_001);
}

#[test]
fn losses_and_the_ledger_are_on_a_track_of_their_own() {
    let place = Place::default();
    let mut sink = sink(&place);
    let loss = Record::Loss(Loss {
        at: At {
            time_ns: 50,
            pid: 7,
            tid: 0,
        },
        channel: Some(ChannelId(3)),
        what: Lost::Entries {
            position: 4,
            count: 2,
        },
    });
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut sink)]);
    pipeline.record(loss).unwrap();
    let _ = pipeline.finish().unwrap();
    drop(sink);
    let all = events(&packets(&place));
    assert_eq!(
        of_kind(&all, INSTANT),
        [
            (50, "nvcap", "lost entries"),
            (50, "nvcap", "ledger: INCOMPLETE")
        ]
    );
}

/// Python with Perfetto's bindings, which `cargo xtask test` installs beside what was built.
fn python() -> Option<PathBuf> {
    let tests = std::env::current_exe().ok()?;
    let target = tests.ancestors().nth(3)?;
    let python = target.join("perfetto/venv/bin/python");
    python.exists().then_some(python)
}

/// Returns the report of check.py on a trace; none where check.py cannot run.
fn checked(test: &str, bytes: &[u8], whole: bool) -> Option<Json> {
    let Some(python) = python() else {
        println!(
            "NOT RUN {test}: no Python with Perfetto's bindings; cargo xtask test installs it where python3 and pip are there"
        );
        return None;
    };
    let file = std::env::temp_dir().join(format!("nvcap-{test}-{}.pftrace", std::process::id()));
    std::fs::write(&file, bytes).unwrap();
    let check = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/perfetto/check.py");
    let mut command = Command::new(python);
    command.arg(check).arg(&file);
    if whole {
        command.arg("--whole");
    }
    let out = command.output().unwrap();
    let (said, error) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    // Where it fails the file stays.
    assert!(out.status.success(), "{said}{error}");
    std::fs::remove_file(&file).unwrap();
    Some(serde_json::from_str(&said).unwrap())
}

/// All records through a pipeline, as `nvcap export perfetto` makes one.
fn exported(all: impl Iterator<Item = Record>, options: PerfettoOptions) -> Vec<u8> {
    let place = Place::default();
    let sink = Perfetto::new(Output::to(Box::new(place.clone())), options);
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(sink)])
        .with_gpu_time()
        .in_time_order();
    for record in all {
        pipeline.record(record).unwrap();
    }
    let _ = pipeline.finish().unwrap();
    let bytes = place.bytes.lock().unwrap();
    bytes.clone()
}

#[test]
#[ignore = "needs Python with Perfetto's bindings: cargo xtask test runs it where it is"]
fn a_simulated_gpu_gives_slices_arrows_and_counters() {
    for how in [How::Trapped, How::Observed] {
        let options = PerfettoOptions {
            clocks: Some(Clocks {
                monotonic: 900_000,
                boottime: Some(1_900_000),
                realtime: Some(1_700_000_000_000_000_000),
            }),
            ..PerfettoOptions::default()
        };
        let bytes = exported(records(400, how).into_iter(), options);
        let name = format!("simulated-{how:?}");
        let Some(sums) = checked(&name, &bytes, true) else {
            return;
        };
        let number = |path: &str| sums.pointer(path).and_then(Json::as_u64).unwrap_or(0);
        // Copies that were observed have no begin.
        let least = if how == How::Trapped { 600 } else { 410 };
        assert!(number("/slices") >= least, "{sums:#}");
        assert_eq!(number("/names/prog 0x7f0000000000"), 400, "{sums:#}");
        assert_eq!(number("/names/copy"), 100, "{sums:#}");
        assert_eq!(number("/arrows/release"), 100, "{sums:#}");
        assert_eq!(number("/clocks"), 3);
        assert_eq!(number("/channels"), 2);
        assert!(number("/counters/busy") > 700, "{sums:#}");
        assert!(number("/counters/depth") > 500, "{sums:#}");
        if how == How::Trapped {
            assert_eq!(number("/counters/moved"), 100, "{sums:#}");
            assert_eq!(number("/arrows/doorbell"), 500, "{sums:#}");
            assert!(number("/counters/fill") > 300, "{sums:#}");
        }
        assert_eq!(sums.pointer("/ledger/complete"), Some(&Json::Bool(true)));
    }
}

#[test]
#[ignore = "needs Python with Perfetto's bindings: cargo xtask test runs it where it is"]
fn captures_are_traces() {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/");
    for (file, all, kind, least) in [
        ("fixtures/h200-cut.orc", true, "/kinds/submission", 3),
        ("captures/h200-mixed.orc.xz", false, "/names/copy h2d", 39),
        (
            "captures/h200-graphs.orc.xz",
            false,
            "/names/graph replay",
            40,
        ),
        ("captures/h200-graphs.orc.xz", true, "/names/release", 900),
    ] {
        if file.ends_with(".xz") && !cfg!(feature = "xz") {
            println!("NOT RUN {file}: built without the feature xz");
            continue;
        }
        let reader = packed::open(std::path::Path::new(&format!("{top}{file}"))).unwrap();
        let records = orc::Orc::new(reader).filter_map(Result::ok);
        let options = PerfettoOptions {
            all,
            ..PerfettoOptions::default()
        };
        let bytes = exported(records, options);
        let Some(sums) = checked("capture", &bytes, false) else {
            return;
        };
        let count = sums.pointer(kind).and_then(Json::as_u64).unwrap_or(0);
        assert!(count >= least, "{file}: {kind} {count} {sums:#}");
    }
}

/// A program that makes threads without end costs no more than one that makes a few, and a number that is used again is another track.
#[test]
fn threads_that_have_ended_are_forgotten() {
    let place = Place::default();
    let mut sink = sink(&place);
    let model = Model::new(nvcap_decode::driver::ModelOptions::default());
    let mut by = |serial: u64, tid: u32, name: &str| {
        let mut life = |at_tid, life| {
            let at = At {
                time_ns: 1,
                pid: 7,
                tid: at_tid,
            };
            let process = Process { at, life };
            sink.record(&Record::Process(process), &model).unwrap();
        };
        life(7, Life::Thread { child: tid });
        life(tid, Life::Present { name: name.into() });
        let mut c = timed(3, serial, 100 + serial, 10_000 + 10 * serial, 5);
        c.at.tid = tid;
        give(&mut sink, &c, &launch());
        let at = At {
            time_ns: 1,
            pid: 7,
            tid,
        };
        let life = Life::Exit { process: false };
        let end = Record::Process(Process { at, life });
        sink.record(&end, &model).unwrap();
    };
    by(0, 50, "first");
    by(1, 50, "second");
    for n in 0..2000 {
        by(2 + n, 1000 + n as u32, "many");
    }
    let remembered = sink.tracks.remembered();
    assert!(remembered < 700, "{remembered} tracks and names");
    finish(sink);
    let packets = packets(&place);
    let threads = packets.iter().filter_map(|p| {
        let track = p.track_descriptor.as_ref()?;
        let thread = track.thread.as_ref().filter(|t| t.tid() == 50)?;
        Some((track.uuid(), thread.thread_name()))
    });
    let threads: std::collections::BTreeSet<_> = threads.collect();
    let names: Vec<&str> = threads.iter().map(|(_, name)| *name).collect();
    assert_eq!(names, ["first", "second"]);
}
