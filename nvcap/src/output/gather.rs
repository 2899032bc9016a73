//! What `nvcap channels` and `nvcap maps` show at the end of a trace: each process as it was when it had most, for
//! a process that has ended, or freed its channels one by one, has nothing left to show. Knows no source.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::channels::{self, Live};
use crate::{
    driver::{Model, ObjectRef, Options, number},
    record::{ChannelId, Ioctl, Life, Record, Submission},
};

/// NV_ESC_RM_FREE.
const FREE: u32 = 0x29;

/// The model of a trace, with what it was before things went.
#[derive(Debug)]
pub struct Gather {
    model: Model,
    live: BTreeMap<ChannelId, Live>,
    most: BTreeMap<u32, Most>,
    counts: bool,
}

/// A process when it had most channels, and then most mappings.
#[derive(Debug)]
struct Most {
    weight: (usize, usize),
    model: Model,
}

impl Gather {
    /// Nothing yet. `counts`: submissions are among the records, so that a count of none means none.
    #[must_use]
    pub fn new(options: Options, counts: bool) -> Self {
        Self {
            model: Model::new(options),
            live: BTreeMap::new(),
            most: BTreeMap::new(),
            counts,
        }
    }

    /// Takes the next record.
    pub fn record(&mut self, record: &Record) {
        match record {
            Record::Process(p) => match p.life {
                Life::Exit { process: true } => self.keep(p.at.pid),
                // What it inherited and gave up for a new program was never its own.
                Life::Exec { .. } if self.weight(p.at.pid).0 != 0 => self.keep(p.at.pid),
                _ => {}
            },
            Record::Ioctl(i) if self.takes_channels(i) => self.keep(i.at.pid),
            // Of a ring or USERD: a process that tidies up gives those up first.
            Record::Unmapping(u)
                if self
                    .model
                    .mapping_at(u.at.pid, u.start)
                    .is_some_and(|m| !m.channels.is_empty()) =>
            {
                self.keep(u.at.pid);
            }
            Record::Submission(s) => self.submission(s),
            _ => {}
        }
        let _ = self.model.record(record);
    }

    /// GP_GET and GP_PUT of a channel as they are now.
    pub fn positions(&mut self, channel: ChannelId, get: u32, put: u32) {
        let live = self.live.entry(channel).or_default();
        live.gp_get = Some(get);
        live.gp_put = Some(put);
    }

    fn submission(&mut self, s: &Submission) {
        let live = self.live.entry(s.channel).or_default();
        *live.submissions.get_or_insert(0) += 1;
        *live.entries.get_or_insert(0) += s.segments.len() as u64;
        live.gp_get = s.gp_get.or(live.gp_get);
        live.gp_put = Some(s.gp_put);
    }

    /// A free of a channel, or of what may have channels below it.
    fn takes_channels(&self, ioctl: &Ioctl) -> bool {
        if ioctl.request & 0xffff != 0x4600 | FREE {
            return false;
        }
        let handle = |at| number(&ioctl.input.data, at, 4).and_then(|n| u32::try_from(n).ok());
        let (Some(client), Some(handle)) = (handle(0), handle(8)) else {
            return false;
        };
        let class = self.model.class_of(ObjectRef { client, handle });
        handle == client
            || class
                .is_some_and(|c| matches!(c, 0 | 0x41 | 0x80 | 0x2080 | 0xa06c) || c & 0xff == 0x6f)
    }

    fn weight(&self, pid: u32) -> (usize, usize) {
        let channels = self.model.channels().filter(|c| c.pid == pid).count();
        (channels, self.model.mappings(pid).len())
    }

    fn keep(&mut self, pid: u32) {
        let weight = self.weight(pid);
        if weight == (0, 0) || self.most.get(&pid).is_some_and(|m| m.weight > weight) {
            return;
        }
        let model = self.model.clone();
        self.most.insert(pid, Most { weight, model });
    }

    /// Processes with anything to show, each with its model. Call it when all records are in.
    fn processes(&mut self) -> impl Iterator<Item = (u32, &Model)> {
        let alive: Vec<u32> = self.model.pids().collect();
        for pid in alive {
            self.keep(pid);
        }
        self.most.iter().map(|(pid, most)| (*pid, &most.model))
    }

    /// The channels of all processes as a table each; empty where there are none.
    #[must_use]
    pub fn channels_text(&mut self) -> String {
        let live = std::mem::take(&mut self.live);
        let text = self
            .processes()
            .map(|(pid, model)| channels::table(model, Some(pid), &live))
            .collect();
        self.live = live;
        text
    }

    /// The channels of all processes, an object each.
    #[must_use]
    pub fn channels_json(&mut self) -> Vec<Json> {
        let live = std::mem::take(&mut self.live);
        let mut all = Vec::new();
        for (pid, model) in self.processes() {
            if let Json::Array(of) = channels::json(model, Some(pid), &live) {
                all.extend(of);
            }
        }
        self.live = live;
        if !self.counts {
            for object in &mut all {
                object["submissions"] = Json::Null;
            }
        }
        all
    }

    /// The mappings of all processes as a table each; empty where there are none.
    #[must_use]
    pub fn maps_text(&mut self) -> String {
        let mut text = String::new();
        for (pid, model) in self.processes() {
            if model.mappings(pid).is_empty() {
                continue;
            }
            let name = model.process_name(pid);
            let name = name.map_or_else(String::new, |n| format!(" {}", super::style::Plain(n)));
            text.push_str(&format!("process {}{name}\n", channels::pid_name(pid)));
            text.push_str(&channels::maps_table(model, pid));
        }
        text
    }

    /// The mappings of all processes, an object each.
    #[must_use]
    pub fn maps_json(&mut self) -> Vec<Json> {
        let mut all = Vec::new();
        for (pid, model) in self.processes() {
            if let Json::Array(of) = channels::maps_json(model, pid) {
                all.extend(of);
            }
        }
        all
    }
}
