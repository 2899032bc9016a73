//! Work that ends long after its submission, whose times are known wherever nobody reads before the end of the trace.

use serde_json::Value;

use super::kept::Kept;
use super::{GPU_TIME_WINDOW_NS, Pipeline, PipelineOptions};
use crate::output::Sink;
use crate::output::gpu_time::TimeReport;
use crate::output::json::{Json, JsonOptions};
use nvcap_decode::gpu_time::made_up::{COPY_STAMP, OFFSET, PID, copy, far_ahead, submission};
use nvcap_decode::record::{At, ChannelId, How, Life, Process, Record, Stamp, Stamps};
use nvcap_decode::wire::GpuVa;

/// Kernels of 5 ms, submitted at once: 3 s of work.
const QUEUED: [u64; 600] = [5_000_000; 600];

/// Gives the records, live or of a recording. `idles`: after each record that comes a second behind the last submission, a live source says that it
/// has no more for the moment.
fn given(sink: Box<dyn Sink>, records: Vec<Record>, recorded: bool, idles: bool) {
    let pipeline = Pipeline::new(PipelineOptions::default(), vec![sink]);
    let mut pipeline = match recorded {
        false => pipeline.with_gpu_time().in_time_order(),
        true => pipeline,
    };
    if recorded {
        pipeline.as_recorded(None, true, true, true);
    }
    let is_work = |r: &&Record| matches!(r, Record::Submission(_));
    let last = records.iter().rfind(is_work);
    let awaited_ns = last.map_or(0, |r| r.at().time_ns) + GPU_TIME_WINDOW_NS;
    for record in records {
        let is_idle = record.at().time_ns > awaited_ns;
        pipeline.record(record).expect("taken");
        if idles && is_idle {
            pipeline.flush().expect("written");
        }
    }
    pipeline.finish().expect("taken");
}

fn sums(records: Vec<Record>, recorded: bool, idles: bool) -> Value {
    let sums = Kept::default();
    let report = TimeReport::new(sums.output(), true, false);
    given(Box::new(report), records, recorded, idles);
    sums.objects()[0].clone()
}

/// The launches as lines of JSON, of which some have times.
fn launches(records: Vec<Record>, recorded: bool) -> Vec<Value> {
    let lines = Kept::default();
    let json = Json::new(lines.output(), JsonOptions::default());
    given(Box::new(json), records, recorded, !recorded);
    let all = lines.objects().into_iter();
    all.filter(|o| o["op"] == "launch").collect()
}

fn busy_ns(sums: &Value) -> u64 {
    let busy = &sums["gpus"][0]["work"]["busy_ns"];
    busy.as_u64().unwrap_or_else(|| panic!("{sums}"))
}

#[test]
fn work_that_was_submitted_seconds_ahead_has_times_in_sums() {
    for how in [How::Trapped, How::Observed] {
        for (recorded, idles) in [(false, false), (false, true), (true, false)] {
            let sums = sums(far_ahead(&QUEUED, how), recorded, idles);
            let busy = busy_ns(&sums);
            let whole = 3_000_000_000;
            assert!(
                busy.abs_diff(whole) < whole / 500,
                "{how:?} {recorded} {idles}: {busy}"
            );
            assert_eq!(
                sums["kernels"][0]["gpu"]["timed"], 601,
                "{how:?} {recorded} {idles}: {sums}"
            );
        }
    }
}

#[test]
fn a_kernel_of_half_a_minute_has_its_time() {
    for how in [How::Trapped, How::Observed] {
        let sums = sums(far_ahead(&[30_000_000_000, 7_000_000], how), false, true);
        let busy = busy_ns(&sums);
        assert!(busy.abs_diff(30_007_020_000) < 1_000_000, "{how:?}: {busy}");
    }
}

#[test]
fn lines_wait_for_a_second_where_they_are_read_as_they_come_and_for_their_end_in_a_recording() {
    let timed = |all: &[Value]| all.iter().filter(|o| o["gpu_ns"].is_u64()).count();
    let live = launches(far_ahead(&QUEUED, How::Trapped), false);
    let recorded = launches(far_ahead(&QUEUED, How::Trapped), true);
    assert_eq!((live.len(), recorded.len()), (601, 601));
    assert_eq!(timed(&recorded), 601);
    assert!(timed(&live) < 400, "{}", timed(&live));
}

#[test]
fn what_a_process_left_undone_at_its_end_is_awaited_no_more() {
    let mut records = far_ahead(&[40_000_000_000], How::Trapped);
    let is_work = |r: &&Record| matches!(r, Record::Submission(_));
    let last = records.iter().rfind(is_work);
    let last = last.map_or(0, |r| r.at().time_ns);
    let at = |time_ns| At {
        time_ns,
        pid: PID,
        tid: 0,
    };
    let process = |time_ns, life| {
        Record::Process(Process {
            at: at(time_ns),
            life,
        })
    };
    records.retain(|r| r.at().time_ns <= last + 200_000_000);
    let name = "the next".to_owned();
    records.push(process(last + 200_000_001, Life::Exit { process: true }));
    records.push(process(last + 3_000_000_000, Life::Present { name }));
    let lines = Kept::default();
    let json = Json::new(lines.output(), JsonOptions::default());
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(json)]);
    pipeline.as_recorded(None, true, true, true);
    for record in records {
        pipeline.record(record).expect("taken");
    }
    pipeline.flush().expect("written");
    let shown = lines.objects().into_iter();
    assert_eq!(shown.filter(|o| o["op"] == "launch").count(), 2);
}

/// Makes a stamp that was seen at a time of the host, and not yet 100 us before.
fn stamped(pid: u32, number: u32, seen_ns: u64) -> Record {
    let stamp = Stamp {
        address: GpuVa(0x2_0000_0000 | COPY_STAMP & 0xffff_ffff),
        payload: number,
        gpu_ns: Some(seen_ns - OFFSET - 1_000),
        before_ns: seen_ns - 100_000,
        seen_ns,
    };
    let at = At {
        time_ns: seen_ns + 500_000,
        pid,
        tid: 0,
    };
    Record::Stamps(Box::new(Stamps {
        at,
        from_ns: seen_ns - 1_000_000,
        reads: 10,
        stamps: vec![stamp],
    }))
}

/// A copy of twelve seconds holds up all that was submitted behind it. Contexts that another process makes meanwhile count in the same semaphore from
/// one on: each has the times of its own numbers.
#[test]
fn numbers_of_a_later_context_are_not_taken_for_those_of_one_that_waits() {
    const S: u64 = 1_000_000_000;
    let mut records = Vec::new();
    let submit = |records: &mut Vec<Record>, pid, channel, position, time_ns| {
        let p = copy(position as u32);
        let mut s = submission(ChannelId(channel), position, time_ns, How::Trapped, &p);
        s.at.pid = pid;
        records.push(Record::Submission(s));
    };
    submit(&mut records, 7, 1, 0, S);
    records.push(stamped(7, 1, S + 600_000));
    submit(&mut records, 7, 1, 1, S + 2_000_000);
    for context in 0..3u32 {
        for n in 0..150u32 {
            let time = S + 10_000_000 + u64::from(context) * 3 * S + u64::from(n) * 10_000_000;
            submit(&mut records, 8, 2 + context, n.into(), time);
            records.push(stamped(8, n + 1, time + 600_000));
        }
    }
    records.push(stamped(7, 2, 13 * S));
    let lines = Kept::default();
    let json = Json::new(lines.output(), JsonOptions::default());
    given(Box::new(json), records, true, false);
    let copies: Vec<Value> = { lines.objects().into_iter() }
        .filter(|o| o["op"] == "copy" && o["pid"] == 8)
        .collect();
    assert_eq!(copies.len(), 450);
    let ended = copies.iter().filter_map(|o| {
        let (from, ns) = (o["gpu_start_ns"].as_u64()?, o["gpu_ns"].as_u64()?);
        Some((from + ns).abs_diff(o["time_ns"].as_u64()?))
    });
    let ended: Vec<u64> = ended.collect();
    assert!(ended.len() > 400, "{}", ended.len());
    assert!(ended.iter().all(|late| *late < 2_000_000), "{ended:?}");
}
