//! `--explain-streams`: two threads in one channel, one of which waits.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use crate::driver_common::{Machine, announced};
use nvcap_decode::{
    decode::event::{
        Body, Context, Engine, Event, Operation, Semaphore, SemaphoreAction, SemaphoreUnit,
        SubmissionHead,
    },
    driver::{Change, Model, report},
    ledger::Ledger,
    record::{At, Channel, ChannelId, How, Record},
    wire::GpuVa,
};
use nvcap_show::output::{Sink, streams::Streams, writer::Output};

#[derive(Clone, Default)]
struct Sunk(Arc<Mutex<Vec<u8>>>);

impl Write for Sunk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn channel() -> (Machine, Channel) {
    let mut m = Machine::new("580.159.04", true);
    m.cuda(100, 0xc1d0_0001, 0, 0, 0x2_0000_0000);
    m.token(100, 0xc1d0_0001, 12, 0xa);
    let said = m.said();
    assert_eq!(announced(&said), [0]);
    let channel = said
        .into_iter()
        .find_map(|c| match c {
            Change::Channel(c) => Some(*c),
            _ => None,
        })
        .unwrap();
    (m, channel)
}

fn submit(sink: &mut Streams, tid: u32, serial: u64, get: Option<u32>, wait: bool) {
    let context = Context {
        absent_ns: None,
        at: At {
            time_ns: serial,
            pid: 100,
            tid,
        },
        thread: None,
        gpu: Some(0),
        channel: ChannelId(0),
        token: Some(0xa),
        class: Some(0xc86f),
        engine: Engine::Graphics,
        serial,
        how: How::Trapped,
        late: false,
        phase: None,
        stack: None,
        gpu_time: None,
        parts: None,
        identity: None,
    };
    let put = u32::try_from(serial).unwrap();
    sink.event(&Event {
        context: &context,
        entry: 0,
        body: Body::Submission(SubmissionHead {
            position: serial,
            gp_get: get,
            prev_put: put,
            gp_put: put + 1,
            entries: 1,
            bytes: 0,
            missing: 0,
            ip: None,
        }),
    })
    .unwrap();
    if wait {
        let operation = Operation::Semaphore(Semaphore {
            unit: SemaphoreUnit::Host,
            action: SemaphoreAction::AcquireGreaterEqual,
            address: GpuVa(0x2_0460_0010),
            payload: 77,
            wide: false,
            timestamp: false,
            reduction: None,
            wait_for_idle: false,
            execute: 0,
        });
        sink.event(&Event {
            context: &context,
            entry: 0,
            body: Body::Operation(&operation),
        })
        .unwrap();
    }
}

fn run(make: fn(Output) -> Streams, gets: [Option<u32>; 3]) -> String {
    let sunk = Sunk::default();
    let mut sink = make(Output::to(Box::new(sunk.clone())));
    let (_, channel) = channel();
    let model = Model::default();
    sink.record(&Record::Channel(Box::new(channel)), &model)
        .unwrap();
    submit(&mut sink, 7, 0, gets[0], true);
    submit(&mut sink, 8, 1, gets[1], false);
    submit(&mut sink, 8, 2, gets[2], false);
    sink.finish(&Ledger::new(), &model).unwrap();
    let bytes = sunk.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn what_stood_behind_another_threads_wait_is_said() {
    let text = run(Streams::text, [Some(0), Some(1), Some(1)]);
    assert!(text.contains(" 0x0000a "), "{text}");
    assert!(
        text.contains("3 submissions of 2 threads: 8 (2), 7 (1); 1 wait"),
        "{text}"
    );
    assert!(
        text.contains("1 committed while the GPU had not passed an earlier wait of this channel, 1 of them behind another thread's"),
        "{text}"
    );
    assert!(
        text.contains(
            "such as #2 (thread 8) behind #0 (thread 7), which waits for 0x204600010 >= 0x4d"
        ),
        "{text}"
    );
    assert!(text.contains("executed in order"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&run(Streams::json, [Some(0), Some(1), Some(1)])).unwrap();
    assert_eq!(json["type"], "streams");
    assert_eq!(json["channels"][0]["behind_another_threads_wait"], 1);
    assert_eq!(json["channels"][0]["threads"]["8"], 2);
}

#[test]
fn what_cannot_be_told_is_not_said() {
    let text = run(Streams::text, [None; 3]);
    assert!(text.contains("GP_GET was not captured"), "{text}");
    assert!(!text.contains("executed in order"), "{text}");
    let text = run(Streams::text, [Some(0), Some(1), Some(2)]);
    assert!(
        text.contains("No submission was seen to stand behind a wait"),
        "{text}"
    );
}

#[test]
fn channels_are_spread_by_gpu_runlist_and_group() {
    let (mut m, _) = channel();
    m.cuda(100, 0xc1d0_0002, 1, 1, 0x4_0000_0000);
    m.token(100, 0xc1d0_0002, 12, 0x1_0003);
    let spread = report::spread(&m.model);
    let found: Vec<_> = spread
        .iter()
        .map(|g| {
            let r = &g.runlists[0];
            (
                g.gpu,
                r.number,
                r.groups.len(),
                r.channels(),
                r.engines.join("+"),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            (Some(0), Some(0), 1, 1, "GR0".to_owned()),
            (Some(1), Some(1), 1, 1, "GR0".to_owned())
        ]
    );
}
