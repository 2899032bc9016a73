//! The file of one process: its begin, its events, and its end.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::counts::{Counts, Rank};
use super::words::{
    Members, arguments, category, category_of_call, correlation, name, quoted, stream, stream_name,
    us,
};
use crate::export::rows::Rows;
use crate::export::works::{Kind, Times, Work};
use crate::output::ended::Ended;
use crate::output::names::gpu_name;
use crate::output::writer::Output;
use nvcap_decode::record::ChannelId;

/// Bytes that are compressed before they are handed on.
const PIECE: usize = 64 << 10;
/// Distance between the numbers of the tracks on which a channel's overlapping slices are shown.
const ROW: u64 = 1_000_000;
/// Row of slices that have no room in the others.
const LAST_ROW: u64 = 99;
/// Number that is added to a GPU's for its place: in Kineto's files processes come first, in the order of their numbers, and then the GPUs.
const BEHIND_PROCESSES: u32 = 5_000_000;
/// Number of submissions whose calls are remembered as written: works of one submission may come with those of others between them.
const REMEMBERED: usize = 256;
/// The most tracks that are remembered as named. A track that comes after that many others is named again.
const NAMED: usize = 1 << 16;
/// The number of a GPU that is not known.
const NO_GPU: i64 = -1;

/// Facts that stand at the begin of a file.
pub(super) struct Head<'a> {
    pub(super) pid: u32,
    pub(super) process: &'a str,
    pub(super) base_ns: Option<u64>,
    pub(super) driver: Option<&'a str>,
    pub(super) rank: Option<Rank>,
    /// GPUs with the names of their chips.
    pub(super) gpus: &'a [(u32, Option<&'static str>)],
}

/// A file that is written.
pub(super) struct File {
    out: Output,
    packed: Option<GzEncoder<Vec<u8>>>,
    line: String,
    begun: bool,
    is_ended: bool,
    pid: u32,
    process: String,
    rows: HashMap<ChannelId, Rows>,
    /// Tracks that were named: process or GPU, and thread or stream.
    named: HashSet<(i64, u64)>,
    /// Threads that have ended.
    ended: Ended<u32>,
    /// Submissions whose call is written.
    called: VecDeque<u64>,
    /// End of the last event, ns.
    last: u64,
    pub(super) counts: Counts,
}

impl File {
    pub(super) fn new(out: Output, packed: bool) -> Self {
        Self {
            out,
            packed: packed.then(|| GzEncoder::new(Vec::new(), Compression::default())),
            line: String::new(),
            begun: false,
            is_ended: false,
            pid: 0,
            process: String::new(),
            rows: HashMap::new(),
            named: HashSet::new(),
            ended: Ended::default(),
            called: VecDeque::new(),
            last: 0,
            counts: Counts::default(),
        }
    }

    /// Tells whether the begin is written, after which the file is a process's.
    pub(super) fn is_begun(&self) -> bool {
        self.begun
    }

    /// Writes the begin.
    pub(super) fn begin(&mut self, head: &Head<'_>) -> io::Result<()> {
        self.begun = true;
        self.pid = head.pid;
        self.process = head.process.to_owned();
        let devices: Vec<String> = { head.gpus.iter() }
            .map(|(id, chip)| {
                let mut device = Members::new();
                device.raw("id", id);
                device.known("name", chip.map(quoted));
                device.object()
            })
            .collect();
        let mut all = Members::new();
        all.raw("schemaVersion", 1);
        all.raw("deviceProperties", format!("[{}]", devices.join(", ")));
        if let Some(rank) = head.rank {
            let mut distributed = Members::new();
            distributed.raw("rank", rank.rank);
            distributed.known("world_size", rank.world_size);
            all.raw("distributedInfo", distributed.object());
        }
        all.known("nvidia_driver_version", head.driver.map(quoted));
        all.text("displayTimeUnit", "ms");
        all.known("baseTimeNanoseconds", head.base_ns);
        let begin = all.object();
        let begin = begin.strip_suffix('}').unwrap_or(&begin);
        self.line = format!("{begin}, \"traceEvents\": [\n");
        self.put()?;
        if head.pid != 0 {
            self.process((i64::from(head.pid), head.pid), head.process, "CPU")?;
        }
        Ok(())
    }

    /// Hands the line on: whole, or not at all.
    fn put(&mut self) -> io::Result<()> {
        match &mut self.packed {
            None => self.out.object().extend_from_slice(self.line.as_bytes()),
            Some(packed) => {
                packed.write_all(self.line.as_bytes())?;
                if packed.get_ref().len() < PIECE {
                    return Ok(());
                }
                self.out.object().append(packed.get_mut());
            }
        }
        self.out.end_object()
    }

    fn metadata(&mut self, (pid, tid): (i64, u64), name: &str, args: &Members) -> io::Result<()> {
        self.line = format!(
            "{{\"ph\": \"M\", \"name\": \"{name}\", \"pid\": {pid}, \"tid\": {tid}, \"args\": {}}},\n",
            args.object()
        );
        self.put()
    }

    /// Names a process, or a GPU, which stands for one.
    fn process(&mut self, (id, order): (i64, u32), name: &str, label: &str) -> io::Result<()> {
        for (of, member, value) in [
            ("process_name", "name", quoted(name)),
            ("process_labels", "labels", quoted(label)),
            ("process_sort_index", "sort_index", order.to_string()),
        ] {
            let mut args = Members::new();
            args.raw(member, value);
            self.metadata((id, 0), of, &args)?;
        }
        Ok(())
    }

    fn thread(&mut self, track: (i64, u64), name: &str) -> io::Result<()> {
        for (of, member, value) in [
            ("thread_name", "name", quoted(name)),
            ("thread_sort_index", "sort_index", track.1.to_string()),
        ] {
            let mut args = Members::new();
            args.raw(member, value);
            self.metadata(track, of, &args)?;
        }
        Ok(())
    }

    /// Tells whether a track is to be named.
    fn is_new(&mut self, track: (i64, u64)) -> bool {
        if self.named.len() >= NAMED {
            self.named.clear();
        }
        self.named.insert(track)
    }

    /// Returns the number of tracks that are remembered.
    #[cfg(test)]
    pub(super) fn named_tracks(&self) -> usize {
        self.named.len()
    }

    /// Takes in that a thread has ended.
    pub(super) fn thread_ends(&mut self, tid: u32) {
        if let Some(oldest) = self.ended.ends(tid) {
            self.forget_thread(oldest);
        }
    }

    /// Takes in that a thread begins: one that had its number has a name of its own.
    pub(super) fn thread_begins(&mut self, tid: u32) {
        self.ended.begins(tid);
        self.forget_thread(tid);
    }

    fn forget_thread(&mut self, tid: u32) {
        self.named.remove(&(i64::from(self.pid), u64::from(tid)));
    }

    /// Returns the number that a work's GPU has as a process of the file. The GPU is named when it comes first.
    fn gpu(&mut self, work: &Work) -> io::Result<i64> {
        let id = work.gpu.map_or(NO_GPU, i64::from);
        if self.is_new((id, 0)) {
            let order = BEHIND_PROCESSES.saturating_add(work.gpu.unwrap_or(99));
            let label = match work.gpu {
                Some(gpu) => format!("GPU {gpu}"),
                None => gpu_name(None),
            };
            let process = self.process.clone();
            self.process((id, order), &process, &label)?;
        }
        Ok(id)
    }

    /// Writes a work, and before it the call that submitted it, where that comes first. `thread`: the name of the calling thread.
    pub(super) fn work(&mut self, work: &Work, thread: Option<&str>) -> io::Result<()> {
        let Some(times) = work.times else {
            self.counts.untimed += 1;
            return Ok(());
        };
        match work.kind {
            Kind::Kernel => self.counts.kernels += 1,
            Kind::Graph => self.counts.replays += 1,
            Kind::Copy(_) => self.counts.copies += 1,
            Kind::Memset => self.counts.memsets += 1,
        }
        let end = times.begin.saturating_add(times.duration);
        self.last = self.last.max(end);
        let gpu = self.gpu(work)?;
        let rows = self.rows.entry(work.channel).or_default();
        let row = rows.take(times.begin, end).map_or(LAST_ROW, |n| n as u64);
        let track = (gpu, stream(work) + row * ROW);
        if self.is_new(track) {
            let name = match row {
                0 => stream_name(work),
                _ => format!("{}, overlapping", stream_name(work)),
            };
            self.thread(track, &name)?;
        }
        self.call(work, thread)?;
        let (category, name) = (category(work.kind), quoted(&name(work)));
        self.line = format!(
            "{{\"ph\": \"X\", \"cat\": \"{category}\", \"name\": {name}, \"pid\": {gpu}, \"tid\": {}, \"ts\": {}, \"dur\": {}, \"args\": {}}},\n",
            track.1,
            us(times.begin),
            us(times.duration),
            arguments(work).object()
        );
        self.put()?;
        match called_before(work, times) {
            Some(_) => self.flow('f', work, track, times.begin),
            None => Ok(()),
        }
    }

    /// Writes the moment of a submission's call, once, and the begin of the arrow to its works.
    fn call(&mut self, work: &Work, thread: Option<&str>) -> io::Result<()> {
        let Some(doorbell) = work.doorbell.filter(|_| work.tid != 0) else {
            return Ok(());
        };
        if self.called.contains(&work.serial) {
            return Ok(());
        }
        if self.called.len() >= REMEMBERED {
            self.called.pop_front();
        }
        self.called.push_back(work.serial);
        self.counts.calls += 1;
        let track = (i64::from(work.pid), u64::from(work.tid));
        if self.is_new(track) {
            let name = match thread {
                Some(name) => format!("thread {} ({name})", work.tid),
                None => format!("thread {}", work.tid),
            };
            self.thread(track, &name)?;
        }
        let api = work.api.as_deref();
        let mut args = Members::new();
        args.raw("correlation", correlation(work));
        args.raw("submission", work.serial);
        self.line = format!(
            "{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": {}, \"pid\": {}, \"tid\": {}, \"ts\": {}, \"dur\": 0, \"args\": {}}},\n",
            category_of_call(api),
            quoted(api.unwrap_or("doorbell")),
            track.0,
            track.1,
            us(doorbell),
            args.object()
        );
        self.put()?;
        self.flow('s', work, track, doorbell)
    }

    /// Writes one end of an arrow.
    fn flow(&mut self, end: char, work: &Work, (pid, tid): (i64, u64), ns: u64) -> io::Result<()> {
        let bind = if end == 'f' { ", \"bp\": \"e\"" } else { "" };
        self.line = format!(
            "{{\"ph\": \"{end}\", \"id\": {}, \"pid\": {pid}, \"tid\": {tid}, \"ts\": {}, \"cat\": \"ac2g\", \"name\": \"ac2g\"{bind}}},\n",
            correlation(work),
            us(ns)
        );
        self.put()
    }

    /// Writes the end, with the verdict on the whole trace. `until`: the end of the trace, ns.
    pub(super) fn end(&mut self, verdict: &str, status: u8, until: u64) -> io::Result<()> {
        if std::mem::replace(&mut self.is_ended, true) {
            return Ok(());
        }
        let mut own = Members::new();
        own.text("version", env!("CARGO_PKG_VERSION"));
        own.text("verdict", verdict);
        own.raw("exit_status", status);
        for (name, count) in self.counts.all() {
            own.raw(name, count);
        }
        self.line = format!(
            "{{\"ph\": \"i\", \"s\": \"g\", \"name\": \"Record Window End\", \"pid\": \"\", \"tid\": \"\", \"ts\": {}}}\n], \"nvcap\": {}}}\n",
            us(self.last.max(until)),
            own.object()
        );
        if let Some(packed) = &mut self.packed {
            packed.write_all(self.line.as_bytes())?;
            packed.try_finish()?;
            self.out.object().append(packed.get_mut());
            self.out.end_object()?;
        } else {
            self.put()?;
        }
        self.out.flush()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    pub(super) fn unshown(&self) -> u64 {
        self.out.unshown()
    }
}

/// The moment of the call of a work, where an arrow from it leads forward in time.
fn called_before(work: &Work, times: Times) -> Option<u64> {
    work.doorbell
        .filter(|at| *at <= times.begin && work.tid != 0)
}
