//! The pipeline: what it adds to events, what it passes on, how it ends.

use std::io;
use std::sync::{Arc, Mutex};

use crate::common::events::Written;
use crate::common::files;
use nvcap_decode::decode::encode::Pushbuffer;
use nvcap_decode::decode::event::{
    Body, Context, Direction, Engine, Event, Evidence, Operation, Place,
};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{
    At, ChannelId, CpuVa, Device, How, Life, Mapping, Process, Record, Segment, Submission,
};
use nvcap_decode::wire::GpuVa;
use nvcap_recording::file::ioctl_log;
use nvcap_show::output::filter::Filter;
use nvcap_show::output::phases::Phases;
use nvcap_show::output::{Detail, Sink, json};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

/// Keeps what comes.
#[derive(Clone, Default)]
struct Keep(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    contexts: Vec<Context>,
    operations: Vec<Operation>,
    methods: u64,
    finished: Option<bool>,
    fail: Option<io::ErrorKind>,
    unshown: u64,
}

impl Sink for Keep {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let mut kept = self.0.lock().unwrap();
        if let Some(kind) = kept.fail {
            return Err(kind.into());
        }
        match &event.body {
            Body::Submission(_) => kept.contexts.push(event.context.clone()),
            Body::Operation(op) => kept.operations.push((*op).clone()),
            Body::Method(_) => kept.methods += 1,
            _ => {}
        }
        Ok(())
    }

    fn record(&mut self, _: &Record, _: &Model) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn unshown(&self) -> u64 {
        self.0.lock().unwrap().unshown
    }

    fn finish(&mut self, ledger: &Ledger, _: &Model) -> io::Result<()> {
        self.0.lock().unwrap().finished = Some(ledger.is_complete());
        Ok(())
    }
}

fn life(pid: u32, tid: u32, life: Life) -> Record {
    Record::Process(Process {
        at: At {
            time_ns: 0,
            pid,
            tid,
        },
        life,
    })
}

/// One entry that binds `class` on subchannel `sub` of channel `id`.
fn bind(id: u32, position: u64, tid: u32, time_ns: u64, sub: u32, class: u32) -> Record {
    let words = [0x2001_0000 | (sub << 13), class];
    Record::Submission(Submission {
        absent_ns: None,
        at: At {
            time_ns,
            pid: 10,
            tid,
        },
        channel: ChannelId(id),
        token: Some(id),
        position,
        gp_get: None,
        prev_put: position as u32,
        gp_put: position as u32 + 1,
        thread: None,
        ip: None,
        doorbell: None,
        how: How::Trapped,
        late: false,
        segments: vec![Segment {
            entry: 0x2_0080_0000 | (2 << 42),
            bytes: words.iter().flat_map(|w| w.to_le_bytes()).collect(),
            holes: Vec::new(),
        }],
    })
}

fn run(options: PipelineOptions, records: Vec<Record>) -> (Keep, Ledger) {
    let keep = Keep::default();
    let mut pipeline = Pipeline::new(options, vec![Box::new(keep.clone())]);
    for r in records {
        pipeline.record(r).unwrap();
    }
    let ledger = pipeline.finish().unwrap();
    (keep, ledger)
}

#[test]
fn threads_bear_the_name_of_their_process_until_they_say_otherwise() {
    let (keep, _) = run(
        PipelineOptions::default(),
        vec![
            life(
                10,
                10,
                Life::Present {
                    name: "python".into(),
                },
            ),
            life(10, 10, Life::Thread { child: 11 }),
            bind(0, 0, 11, 1, 1, 0xcbc0),
            life(
                10,
                12,
                Life::Present {
                    name: "worker".into(),
                },
            ),
            bind(0, 1, 12, 2, 1, 0xcbc0),
            bind(0, 2, 99, 3, 1, 0xcbc0),
            life(
                10,
                10,
                Life::Exec {
                    name: "vadd".into(),
                },
            ),
            bind(1, 0, 10, 4, 1, 0xcbc0),
            life(10, 10, Life::Exit { process: true }),
            bind(1, 1, 99, 5, 1, 0xcbc0),
        ],
    );
    let kept = keep.0.lock().unwrap();
    let names: Vec<_> = kept.contexts.iter().map(|c| c.thread.as_deref()).collect();
    assert_eq!(
        names,
        [
            Some("python"),
            Some("worker"),
            Some("python"),
            Some("vadd"),
            None
        ]
    );
    let serials: Vec<u64> = kept.contexts.iter().map(|c| c.serial).collect();
    assert_eq!(serials, [0, 1, 2, 3, 4]);
}

#[test]
fn the_engine_of_an_unknown_channel_is_told_by_what_it_binds() {
    let (keep, ledger) = run(
        PipelineOptions::default(),
        vec![
            bind(0, 0, 1, 1, 4, 0xc8b5),
            bind(1, 0, 1, 2, 1, 0xcbc0),
            bind(2, 0, 1, 3, 5, 0x0000),
        ],
    );
    let kept = keep.0.lock().unwrap();
    let engines: Vec<Engine> = kept.contexts.iter().map(|c| c.engine).collect();
    assert_eq!(
        engines,
        [Engine::Copy(None), Engine::Graphics, Engine::Unknown]
    );
    assert_eq!(
        ledger.channel(ChannelId(1)).unwrap().engine,
        Engine::Graphics
    );
}

/// One entry with one method write on channel `id` with this token.
fn write(id: u32, token: u32, sub: u32, method: u32) -> Record {
    let Record::Submission(mut s) = bind(id, 0, 1, 1, sub, 0) else {
        unreachable!()
    };
    s.token = Some(token);
    s.segments[0].bytes[..4]
        .copy_from_slice(&(0x2001_0000 | (sub << 13) | (method >> 2)).to_le_bytes());
    Record::Submission(s)
}

#[test]
fn where_nothing_is_bound_the_subchannels_tell_the_engine() {
    let (keep, _) = run(
        PipelineOptions::default(),
        vec![
            write(0, 0xa, 1, 0x1b0),
            write(1, 0x10012, 4, 0x418),
            write(2, 0x10012, 1, 0x10),
            write(3, 0xa, 4, 0x418),
            write(4, 0xa001a, 4, 0x200),
        ],
    );
    let engines: Vec<Engine> = keep
        .0
        .lock()
        .unwrap()
        .contexts
        .iter()
        .map(|c| c.engine)
        .collect();
    assert_eq!(
        engines,
        [
            Engine::Graphics,
            Engine::Copy(None),
            Engine::Unknown,
            Engine::Unknown,
            Engine::Unknown
        ]
    );
}

#[test]
fn phases_and_filters_apply() {
    let (keep, ledger) = run(
        PipelineOptions {
            filter: Some(Filter::parse("phase=second").unwrap()),
            phases: Some(Phases::parse("PHASE first 0 9\nPHASE second 10 19").unwrap()),
            ..PipelineOptions::default()
        },
        vec![
            bind(0, 0, 1, 5, 1, 0xcbc0),
            bind(0, 1, 1, 15, 4, 0xc8b5),
            bind(0, 2, 1, 25, 1, 0xcbc0),
        ],
    );
    let kept = keep.0.lock().unwrap();
    assert_eq!(kept.contexts.len(), 1);
    assert_eq!(kept.contexts[0].phase.as_deref(), Some("second"));
    assert_eq!(kept.operations.len(), 1);
    assert_eq!(ledger.totals().submissions, 3, "the ledger counts all");
}

#[test]
fn a_filter_that_asks_for_methods_gets_them() {
    let records = || vec![bind(0, 0, 1, 5, 1, 0xcbc0)];
    let (keep, _) = run(PipelineOptions::default(), records());
    assert_eq!(keep.0.lock().unwrap().methods, 0);
    let options = PipelineOptions {
        filter: Some(Filter::parse("method=SET_OBJECT").unwrap()),
        ..PipelineOptions::default()
    };
    let (keep, _) = run(options, records());
    assert_eq!(keep.0.lock().unwrap().methods, 1);
}

#[test]
fn a_sink_that_fails_stops_the_pipeline_with_its_error() {
    let keep = Keep::default();
    keep.0.lock().unwrap().fail = Some(io::ErrorKind::BrokenPipe);
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(keep)]);
    let error = pipeline.record(bind(0, 0, 1, 1, 1, 0xcbc0)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(
        pipeline.ledger().totals().submissions,
        1,
        "it was captured all the same"
    );
}

#[test]
fn what_could_not_be_written_makes_the_trace_incomplete() {
    let keep = Keep::default();
    keep.0.lock().unwrap().unshown = 2;
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(keep.clone())]);
    pipeline.record(bind(0, 0, 1, 1, 1, 0xcbc0)).unwrap();
    let ledger = pipeline.finish().unwrap();
    assert_eq!(ledger.unshown(), 2);
    assert_eq!(ledger.exit_status(), 3);
    assert_eq!(
        keep.0.lock().unwrap().finished,
        Some(false),
        "and the sink says so"
    );
}

#[test]
fn with_quiet_sinks_nothing_is_decoded_and_the_ledger_is_whole() {
    let written = Written::default();
    let options = json::JsonOptions {
        quiet: true,
        ..json::JsonOptions::default()
    };
    let sink = json::Json::new(written.output(), options);
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(sink)]);
    for i in 0..10 {
        pipeline.record(bind(0, i, 1, i, 1, 0xcbc0)).unwrap();
    }
    let ledger = pipeline.finish().unwrap();
    assert_eq!(ledger.totals().submissions, 10);
    assert_eq!(written.text().lines().count(), 1, "{}", written.text());
}

#[test]
fn strict_ends_at_what_is_not_whole() {
    let damaged = || {
        let mut record = bind(0, 1, 1, 2, 1, 0xcbc0);
        if let Record::Submission(s) = &mut record {
            s.segments[0].bytes[..4].copy_from_slice(&0xc000_0000u32.to_le_bytes());
        }
        record
    };
    let (keep, ledger) = run(
        PipelineOptions::default(),
        vec![
            bind(0, 0, 1, 1, 1, 0xcbc0),
            damaged(),
            bind(0, 2, 1, 3, 4, 0xc8b5),
        ],
    );
    // Lax: the others are whole.
    assert_eq!(keep.0.lock().unwrap().operations.len(), 2);
    assert_eq!(ledger.totals().submissions, 3);

    let strict = PipelineOptions {
        strict: true,
        ..PipelineOptions::default()
    };
    let keep = Keep::default();
    let mut pipeline = Pipeline::new(strict, vec![Box::new(keep.clone())]);
    pipeline.record(bind(0, 0, 1, 1, 1, 0xcbc0)).unwrap();
    let error = pipeline.record(damaged()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    let text = error.to_string();
    for part in [
        "submission 1 ",
        "entry 0 at byte 0",
        "0xc0000000 is no method header",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(keep.0.lock().unwrap().operations.len(), 1);
}

#[test]
fn a_copy_says_what_memory_its_addresses_are() {
    let log = files::fixture("h200-ioctl-part.log.gz");
    let options = ioctl_log::LogOptions {
        pid: 10,
        driver_version: None,
    };
    let mut records = ioctl_log::read_file(&log, options).unwrap().records;
    let mut copy = Pushbuffer::new();
    copy.bind(4, 0xc8b5);
    copy.copy(4, 0xc8b5, GpuVa(0x2_0080_1234), GpuVa(0x2_0060_3000), 4096)
        .unwrap();
    copy.copy(4, 0xc8b5, GpuVa(0x1234_5678), GpuVa(0x2_0080_0000), 16)
        .unwrap();
    let mut submission = bind(0, 0, 10, 5, 4, 0xc8b5);
    if let Record::Submission(s) = &mut submission {
        s.segments = vec![copy.segment(GpuVa(0x2_0080_0000))];
    }
    records.push(submission);
    let (keep, _) = run(PipelineOptions::default(), records);
    let kept = keep.0.lock().unwrap();
    let copies: Vec<_> = kept
        .operations
        .iter()
        .filter_map(|o| match o {
            Operation::Copy(c) => Some((c.src_memory, c.dst_memory, c.direction)),
            _ => None,
        })
        .collect();
    let [(Some(src), Some(dst), direction), (None, Some(again), _)] = copies[..] else {
        panic!("{copies:?}")
    };
    // Pushbuffers are 56 MiB of system memory, rings 2 MiB of video memory.
    assert_eq!((src.place, src.handle), (Some(Place::Host), 0x5c00_0019));
    assert_eq!((src.size, src.offset), (Some(56 << 20), 0x1234));
    assert_eq!(src.cpu, Some(nvcap_decode::record::CpuVa(0x2_0080_1234)));
    assert_eq!((dst.place, dst.handle), (Some(Place::Device), 0x5c00_0017));
    assert_eq!((dst.size, dst.offset), (Some(2 << 20), 0x3000));
    assert_eq!((again.handle, again.offset), (0x5c00_0019, 0));
    assert_eq!(direction, Some(Direction::HostToDevice));
}

/// Of a process that was attached to nothing but its mappings is known: pinned memory is in them, the device's is not.
#[test]
fn the_memory_of_an_attached_process_tells_the_direction() {
    let (pinned, staging, managed, device) = (
        0x7f91_de80_0000,
        0x7f91_dea0_0000,
        0x7f91_b600_0000,
        0x7f91_d9e0_0000,
    );
    let mapped = |(start, device): (u64, Device)| {
        Record::Mapping(Mapping {
            at: At::of_process(1, 10),
            device,
            fd: None,
            file: 0,
            start: CpuVa(start),
            len: 0x20_0000,
            read: true,
            write: true,
            found: true,
        })
    };
    let maps = [
        (pinned, Device::MEMORY),
        (staging, Device::Control),
        (managed, Device::Uvm),
    ];
    let mut records: Vec<Record> = maps.map(mapped).into();
    let mut copies = Pushbuffer::new();
    copies.bind(4, 0xc8b5);
    for (src, dst) in [
        (pinned, device),
        (device, pinned + 64),
        (staging, device),
        (device, staging),
        (device, device + 4096),
        (managed, device),
        (pinned, managed),
        (pinned, staging),
    ] {
        copies
            .copy(4, 0xc8b5, GpuVa(src), GpuVa(dst), 4096)
            .unwrap();
    }
    let mut submission = bind(0, 0, 10, 5, 4, 0xc8b5);
    if let Record::Submission(s) = &mut submission {
        s.segments = vec![copies.segment(GpuVa(0x2_0080_0000))];
        s.token = None;
    }
    records.push(submission);
    let (keep, _) = run(PipelineOptions::default(), records);
    let kept = keep.0.lock().unwrap();
    let told: Vec<_> = kept
        .operations
        .iter()
        .filter_map(|o| match o {
            Operation::Copy(c) => Some(c.direction.zip(c.direction_from)),
            _ => None,
        })
        .collect();
    let (to, from) = (
        Some((Direction::HostToDevice, Evidence::Habit)),
        Some((Direction::DeviceToHost, Evidence::Habit)),
    );
    let within = Some((Direction::HostToHost, Evidence::Mappings));
    assert_eq!(told, [to, from, to, from, None, None, None, within]);
}

/// Neither memory that was registered before nor the device's is mapped as the driver's; the device's lies in reserved addresses.
#[test]
fn reserved_addresses_of_an_attached_process_tell_the_direction() {
    const HEAP: u64 = 0x55e9_df00_0000;
    const DEVICE: u64 = 0x7f26_4800_0000;
    const LATER: u64 = DEVICE + 0x200_0000;
    let told = |gpus: &[u32]| {
        let mapped = |(start, len, device)| {
            Record::Mapping(Mapping {
                at: At::of_process(1, 10),
                device,
                fd: None,
                file: 0,
                start: CpuVa(start),
                len,
                read: device != Device::RESERVED,
                write: device != Device::RESERVED,
                found: true,
            })
        };
        let rings = gpus.iter().map(|gpu| {
            (
                u64::from(*gpu) << 32 | 0x20_0000,
                0x20_0000,
                Device::Gpu(*gpu),
            )
        });
        let mut records: Vec<Record> = rings.map(mapped).collect();
        records.push(mapped((DEVICE, 0x2000_0000, Device::RESERVED)));
        // What is mapped into it later is no longer reserved.
        records.push(mapped((LATER, 0x20_0000, Device::MEMORY)));
        let mut copies = Pushbuffer::new();
        copies.bind(4, 0xc8b5);
        for (src, dst) in [
            (HEAP, DEVICE),
            (DEVICE, HEAP),
            (DEVICE, DEVICE + 4096),
            (HEAP, HEAP + 4096),
            (LATER, LATER + 0x20_0000),
            (LATER, LATER + 4096),
        ] {
            copies
                .copy(4, 0xc8b5, GpuVa(src), GpuVa(dst), 4096)
                .unwrap();
        }
        let mut submission = bind(0, 0, 10, 5, 4, 0xc8b5);
        if let Record::Submission(s) = &mut submission {
            s.segments = vec![copies.segment(GpuVa(0x2_0080_0000))];
            s.token = None;
        }
        records.push(submission);
        let (keep, _) = run(PipelineOptions::default(), records);
        let kept = keep.0.lock().unwrap();
        { kept.operations.iter() }
            .filter_map(|o| match o {
                Operation::Copy(c) => Some(c.direction),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    use Direction::{DeviceToDevice, DeviceToHost, HostToDevice, HostToHost};
    let within = [Some(HostToDevice), Some(HostToHost)];
    let of_one = [
        Some(HostToDevice),
        Some(DeviceToHost),
        Some(DeviceToDevice),
        None,
    ];
    assert_eq!(told(&[1]), [&of_one[..], &within].concat());
    // Of several GPUs it could be another's.
    assert_eq!(told(&[1, 2]), [&[None; 4][..], &within].concat());
}
