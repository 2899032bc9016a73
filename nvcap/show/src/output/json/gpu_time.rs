//! Members of submissions, launches, copies and graph replays with the times of the GPU's work. Times are those of ring entries: if an entry has
//! several launches or copies, none of them has a duration of its own.

use super::form::{key, member, optional, text};
use nvcap_decode::decode::event::{Context, GpuDuration, GpuTime, Preempted};

/// The members of a submission: those of its first entry that works or has times; `null` where they are not known.
pub(super) fn of_submission(out: &mut Vec<u8>, c: &Context) {
    if let Some(time) = c.gpu_time_of_submission() {
        let time = time.by_stamp();
        members(out, &time, time.worked(), time.executed());
    }
}

/// The members of a launch, copy or replay of an entry.
pub(super) fn of_work(out: &mut Vec<u8>, c: &Context, entry: u32) {
    let Some(time) = c.gpu_time_of(entry) else {
        return;
    };
    let time = time.by_stamp();
    members(out, &time, time.alone(), time.exec_alone());
    if time.works > 1 {
        member(out, "gpu_works", u64::from(time.works));
        key(out, "gpu_works_ns");
        optional(out, time.worked().map(|d| d.ns));
        if time.exec.is_some() {
            key(out, "gpu_works_exec_ns");
            optional(out, time.executed().map(|d| d.ns));
        }
    }
}

fn members(
    out: &mut Vec<u8>,
    time: &GpuTime,
    duration: Option<GpuDuration>,
    executed: Option<GpuDuration>,
) {
    let GpuTime { start, queued, .. } = time;
    key(out, "gpu_start_ns");
    optional(out, start.map(|s| s.host_ns));
    if let Some(start) = start {
        member(out, "gpu_start_error_ns", start.host_error_ns);
        member(out, "gpu_clock_start_ns", start.gpu_ns);
        member(out, "gpu_clock_error_ns", start.gpu_error_ns);
    }
    if let Some(by) = time.start_by {
        text(out, "gpu_start_by", by.name());
    }
    key(out, "gpu_ns");
    optional(out, duration.map(|d| d.ns));
    if let Some(duration) = duration {
        member(out, "gpu_ns_error", duration.error_ns);
        text(out, "gpu_ns_by", duration.by.name());
    }
    match time.preempted {
        Preempted::NotRecorded => {}
        Preempted::Unknown => {
            key(out, "preempted_ns");
            optional(out, None);
        }
        Preempted::Ns(ns) => member(out, "preempted_ns", ns),
    }
    if let Some((launch, exec)) = time.launch().zip(time.exec) {
        member(out, "gpu_launch_ns", launch);
        member(out, "gpu_launch_error_ns", exec.start.gpu_error_ns);
        key(out, "gpu_exec_ns");
        optional(out, executed.map(|d| d.ns));
        if let Some(executed) = executed {
            member(out, "gpu_exec_ns_error", executed.error_ns);
        }
    }
    key(out, "queued_ns");
    optional(out, queued.map(|(least, most)| least.midpoint(most)));
    if let Some((least, most)) = queued {
        member(out, "queued_least_ns", *least);
        member(out, "queued_most_ns", *most);
    }
    if let Some(by) = time.queued_by {
        text(out, "queued_by", by.name());
    }
}
