//! Made operations, for the tests of the formats.

use std::io;
use std::sync::{Arc, Mutex};

use crate::output::Sink;
use nvcap_decode::decode::event::{
    Body, Context, DurationBy, Engine, Event, GpuDuration, GpuMoment, GpuTime, Launch, LaunchHow,
    LaunchKind, Operation, SubmissionHead,
};
use nvcap_decode::record::{At, ChannelId, How};
use nvcap_decode::wire::GpuVa;

/// A place in memory of limited size, which refuses what does not fit.
#[derive(Clone, Default)]
pub(crate) struct Place {
    pub(crate) bytes: Arc<Mutex<Vec<u8>>>,
    pub(crate) room: Arc<Mutex<Option<usize>>>,
}

impl io::Write for Place {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.bytes.lock().unwrap();
        let room = self.room.lock().unwrap().unwrap_or(usize::MAX);
        if all.len() + bytes.len() > room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        all.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes the context of a submission by a thread of process 7.
pub(crate) fn context(channel: u32, serial: u64, time_ns: u64) -> Context {
    Context {
        absent_ns: None,
        at: At {
            time_ns,
            pid: 7,
            tid: 8,
        },
        thread: Some("worker".into()),
        gpu: Some(0),
        channel: ChannelId(channel),
        token: None,
        class: None,
        engine: Engine::Graphics,
        serial,
        how: How::Trapped,
        late: false,
        phase: None,
        stack: None,
        gpu_time: None,
        parts: None,
        identity: None,
    }
}

/// Returns the context with one entry that ran from `start` for `ns`.
pub(crate) fn timed(context: Context, start: u64, ns: u64) -> Context {
    let time = GpuTime {
        start: Some(GpuMoment {
            host_ns: start,
            host_error_ns: 5,
            gpu_ns: start + 1_000_000,
            gpu_error_ns: 2,
        }),
        duration: Some(GpuDuration {
            ns,
            error_ns: 3,
            by: DurationBy::NextStamp,
        }),
        ..GpuTime::default()
    };
    Context {
        gpu_time: Some(Arc::from([time])),
        ..context
    }
}

/// Makes a launch of a program's kernel whose name is not known.
pub(crate) fn launch() -> Launch {
    Launch {
        kind: LaunchKind::User,
        how: LaunchHow::Scheduled,
        pcas: None,
        replay: None,
        place: None,
        qmd: None,
        qmd_version: None,
        qmd_from: None,
        grid: Some([7, 5, 3]),
        block: Some([64, 1, 1]),
        cluster: None,
        cooperative: false,
        registers: Some(24),
        shared_bytes: None,
        shared_reserved_bytes: None,
        local_bytes: None,
        barriers: None,
        program: Some(GpuVa(0x7f00)),
        program_bytes: None,
        stand_in: None,
        kernel: None,
        moves: None,
        args: Some(vec![1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]),
        arg_memory: Vec::new(),
        constant_banks: Vec::new(),
        releases: Vec::new(),
        dependent: None,
    }
}

/// Gives a submission with one operation.
pub(crate) fn give(sink: &mut impl Sink, context: &Context, op: &Operation) {
    let head = SubmissionHead {
        position: 0,
        gp_get: None,
        prev_put: 0,
        gp_put: 1,
        entries: 1,
        bytes: 64,
        missing: 0,
        ip: None,
    };
    let event = |body| Event {
        context,
        entry: 0,
        body,
    };
    sink.event(&event(Body::Submission(head))).unwrap();
    sink.event(&event(Body::Operation(op))).unwrap();
}
