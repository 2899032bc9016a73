//! View of `nvcap channels` and `nvcap maps` at the end of a trace: each process as it was when it had the most channels, for a process that has
//! ended or freed its channels has nothing left to show. Knows no source.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde_json::Value as Json;

use super::channels::{self, Live};
use super::names::pid_name;
use super::{Detail, Sink};
use crate::pipeline::places::engine_by_stream;
use nvcap_decode::{
    decode::event::{Engine, Event},
    driver::{Model, ObjectRef, number},
    ledger::Ledger,
    record::{ChannelId, Ioctl, Life, Record, Submission},
};

/// NV_ESC_RM_FREE.
const FREE: u32 = 0x29;

/// Keeps copies of a trace's driver model from before objects were freed. This sink writes nothing: its owner asks it at
/// the end.
#[derive(Debug, Default)]
pub struct ModelView {
    live: BTreeMap<ChannelId, Live>,
    most: BTreeMap<u32, Most>,
    counts: bool,
}

/// A process as it was when it had the most channels, and then the most mappings.
#[derive(Debug)]
struct Most {
    weight: (usize, usize),
    /// Driver model of that time; processes that are there at the trace's end share one copy.
    model: Arc<Model>,
}

impl ModelView {
    /// Makes an empty view. `counts`: submissions are among the records, so that 0 submissions are a count, and not unknown.
    #[must_use]
    pub fn new(counts: bool) -> Self {
        Self {
            counts,
            ..Self::default()
        }
    }

    /// Takes GP_GET and GP_PUT of a channel as they are now.
    pub fn positions(&mut self, channel: ChannelId, get: u32, put: u32) {
        let live = self.live.entry(channel).or_default();
        live.gp_get = Some(get);
        live.gp_put = Some(put);
    }

    /// Takes the engine of a channel by the methods in its ring.
    pub fn engine(&mut self, channel: ChannelId, engine: Engine) {
        self.live.entry(channel).or_default().engine = engine;
    }

    fn submission(&mut self, s: &Submission) {
        let live = self.live.entry(s.channel).or_default();
        *live.submissions.get_or_insert(0) += 1;
        *live.entries.get_or_insert(0) += s.segments.len() as u64;
        live.gp_get = s.gp_get.or(live.gp_get);
        live.gp_put = Some(s.gp_put);
        if live.engine == Engine::Unknown {
            live.engine = engine_by_stream(s, s.token);
        }
    }

    fn keep(&mut self, pid: u32, model: &Model) {
        self.keep_copy(pid, model, || Arc::new(model.clone()));
    }

    fn keep_copy(&mut self, pid: u32, model: &Model, copy: impl FnOnce() -> Arc<Model>) {
        let weight = weight(model, pid);
        if weight == (0, 0) || self.most.get(&pid).is_some_and(|m| m.weight > weight) {
            return;
        }
        let model = copy();
        self.most.insert(pid, Most { weight, model });
    }

    /// Processes with anything to show, each with its model.
    fn processes(&self) -> impl Iterator<Item = (u32, &Model)> {
        self.most.iter().map(|(pid, most)| (*pid, &*most.model))
    }

    /// Returns the source's state of each channel. If the source sees submissions, a channel without any has 0.
    fn live(&self) -> BTreeMap<ChannelId, Live> {
        let mut live = self.live.clone();
        if self.counts {
            let ids: Vec<ChannelId> = self
                .processes()
                .flat_map(|(_, model)| model.channels().map(|c| c.id).collect::<Vec<_>>())
                .collect();
            for id in ids {
                live.entry(id).or_default().submissions.get_or_insert(0);
            }
        }
        live
    }

    /// The channels of all processes as a table each; empty where there are none.
    #[must_use]
    pub fn channels_text(&self) -> String {
        let live = self.live();
        self.processes()
            .map(|(pid, model)| channels::table(model, Some(pid), &live))
            .collect()
    }

    /// The channels of all processes, an object each.
    #[must_use]
    pub fn channels_json(&self) -> Vec<Json> {
        let live = self.live();
        let mut all = Vec::new();
        for (pid, model) in self.processes() {
            if let Json::Array(of) = channels::json(model, Some(pid), &live) {
                all.extend(of);
            }
        }
        all
    }

    /// The mappings of all processes as a table each; empty where there are none.
    #[must_use]
    pub fn maps_text(&self) -> String {
        let mut text = String::new();
        for (pid, model) in self.processes() {
            if model.mappings(pid).is_empty() {
                continue;
            }
            let name = model.process_name(pid).and_then(super::names::known_name);
            let name = name.map_or_else(String::new, |n| format!(" {}", super::style::Plain(n)));
            text.push_str(&format!("process {}{name}\n", pid_name(pid)));
            text.push_str(&channels::maps_table(model, pid));
        }
        text
    }

    /// The mappings of all processes, an object each.
    #[must_use]
    pub fn maps_json(&self) -> Vec<Json> {
        let mut all = Vec::new();
        for (pid, model) in self.processes() {
            if let Json::Array(of) = channels::maps_json(model, pid) {
                all.extend(of);
            }
        }
        all
    }
}

impl Sink for ModelView {
    fn detail(&self) -> Option<Detail> {
        None
    }

    fn event(&mut self, _: &Event<'_>) -> io::Result<()> {
        Ok(())
    }

    fn before(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        match record {
            Record::Process(p) => match p.life {
                Life::Exit { process: true } => self.keep(p.at.pid, model),
                // A forked process that executes a program gives up what it inherited: it never used that.
                Life::Exec { .. } if weight(model, p.at.pid).0 != 0 => self.keep(p.at.pid, model),
                _ => {}
            },
            Record::Ioctl(i) if takes_channels(model, i) => self.keep(i.at.pid, model),
            // An unmapping of a ring or USERD: a process that frees everything begins with those.
            Record::Unmapping(u)
                if model
                    .mapping_at(u.at.pid, u.start)
                    .is_some_and(|m| !m.channels.is_empty()) =>
            {
                self.keep(u.at.pid, model);
            }
            Record::Submission(s) => self.submission(s),
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

    /// Keeps the processes that are still there.
    fn finish(&mut self, _: &Ledger, model: &Model) -> io::Result<()> {
        let mut copy = None;
        for pid in model.pids() {
            let shared = || Arc::clone(copy.get_or_insert_with(|| Arc::new(model.clone())));
            self.keep_copy(pid, model, shared);
        }
        Ok(())
    }
}

/// Tells whether the call frees a channel, or an object that may be the parent of channels.
fn takes_channels(model: &Model, ioctl: &Ioctl) -> bool {
    if ioctl.request & 0xffff != 0x4600 | FREE {
        return false;
    }
    let handle = |at| number(&ioctl.input.data, at, 4).and_then(|n| u32::try_from(n).ok());
    let (Some(client), Some(handle)) = (handle(0), handle(8)) else {
        return false;
    };
    let class = model.class_of(ObjectRef { client, handle });
    handle == client
        || class.is_some_and(|c| matches!(c, 0 | 0x41 | 0x80 | 0x2080 | 0xa06c) || c & 0xff == 0x6f)
}

/// The numbers of channels and mappings, to compare two states of a process.
fn weight(model: &Model, pid: u32) -> (usize, usize) {
    let channels = model.channels().filter(|c| c.pid == pid).count();
    (channels, model.mappings(pid).len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{Pipeline, PipelineOptions};
    use nvcap_decode::decode::encode::Pushbuffer;
    use nvcap_decode::gpu_time::made_up::submission;
    use nvcap_decode::record::{At, Channel, How, Origin};
    use nvcap_decode::wire::header::Step;

    /// A recording of a process that was attached to has no allocations, which tell engines.
    #[test]
    fn engines_are_told_by_the_methods_of_a_recording() {
        let mut view = ModelView::new(true);
        let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut view)]);
        for (id, subchannel, class) in [(0, 1, 0xcbc0), (1, 4, 0xc8b5), (2, 4, 0)] {
            let at = At::of_process(1, 7);
            let channel = Channel::bare(at, ChannelId(id), Origin::Found);
            let channel = Record::Channel(Box::new(channel));
            let mut words = Pushbuffer::new();
            words.method(Step::Increment, subchannel, 0, &[class]);
            let s = submission(ChannelId(id), 7, 10 + u64::from(id), How::Observed, &words);
            for record in [channel, Record::Submission(s)] {
                pipeline.record(record).unwrap();
            }
        }
        pipeline.finish().unwrap();
        let all = view.channels_json();
        let engines: Vec<_> = all.iter().map(|c| c["engines"].to_string()).collect();
        assert_eq!(engines, [r#"["gr"]"#, r#"["ce"]"#, "[]"]);
    }
}
