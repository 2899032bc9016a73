//! Streams, priorities, copies and processes that share a GPU: the channel, group and runlist of each, and the work behind which each
//! waited.
//!
//! [`told`] is the program's account of its times, and `traced` is the trace of it. `joined` joins the two by the kernels' numbers and
//! the copies' sizes; `mod@rules` and `mod@findings` draw conclusions; `timeline` draws the scenes.

pub(crate) mod findings;
pub(crate) mod joined;
pub(crate) mod rules;
pub(crate) mod slices;
pub(crate) mod timeline;
pub mod told;
pub(crate) mod traced;

#[cfg(test)]
mod tests;

use serde::Serialize;

use super::{ms, report, table};
use crate::bench::CopyEngine;
use findings::{Finding, findings};
use joined::{Channel, Scene, channels, scenes};
use rules::{Facts, Rule, known, rules};
use told::{Device, Told};
use traced::TracedScenes;

/// The study.
#[derive(Clone, Debug, Serialize)]
pub struct Study {
    /// GPU that was studied, as CUDA tells it.
    pub device: Device,
    /// Rules of Bakita and Anderson, each with the scenes' verdict.
    pub rules: Vec<Rule>,
    /// Findings of the scenes, in words.
    pub findings: Vec<Finding>,
    /// Channels of the processes that took part.
    pub channels: Vec<Channel>,
    /// The GPU's copy engines, as the driver describes them.
    pub copy_engines: Vec<CopyEngine>,
    /// Scenes that were played, in their order.
    pub scenes: Vec<Scene>,
    /// Notes on what could not be done.
    pub notes: Vec<String>,
    /// Account of what is missing in the trace, in words.
    pub ledger: String,
}

/// Joins the account of the traced program, the trace, the account of the run without a trace, and the driver's answer about the copy
/// engines (or the reason why there is none).
pub fn study(
    told: &Told,
    seen: &TracedScenes,
    untraced: &Told,
    copy_engines: Result<Vec<CopyEngine>, String>,
    ledger: String,
) -> Study {
    let mut notes = told.notes.clone();
    let copy_engines = copy_engines.unwrap_or_else(|why| {
        notes.push(format!("the copy engines' physical ones: {why}"));
        Vec::new()
    });
    let channels = channels(told, seen);
    let scenes = scenes(told, seen, Some(untraced));
    let facts = Facts {
        scenes: &scenes,
        channels: &channels,
        copy_engines: &copy_engines,
    };
    Study {
        device: told.device.clone(),
        rules: rules(&facts),
        findings: findings(&scenes, &channels),
        notes,
        channels,
        copy_engines,
        scenes,
        ledger,
    }
}

pub(crate) const STREAMS: [&str; 8] = [
    "scene",
    "connections",
    "streams",
    "channels",
    "most in one",
    "late",
    "behind their channel",
    "late untraced",
];
pub(crate) const CHANNELS: [&str; 7] = [
    "channel", "process", "token", "chid", "runlist", "group", "engines",
];
pub(crate) const KERNELS: [&str; 9] = [
    "stream",
    "priority",
    "channel",
    "runlist",
    "called ms",
    "start ms",
    "end ms",
    "pauses",
    "behind",
];
pub(crate) const COPIES: [&str; 8] = [
    "scene", "process", "way", "channels", "copies", "each us", "GB/s", "pauses",
];

impl Study {
    /// Formats the first line.
    pub(crate) fn head(&self) -> String {
        let device = &self.device;
        format!(
            "CUDA {}.{}, {} SMs, {} blocks of 512 threads at once, priorities {} to {}\n",
            device.cuda / 1000,
            device.cuda % 1000 / 10,
            device.sms,
            device.fill_blocks,
            device.least_priority,
            device.greatest_priority
        )
    }

    /// Makes rows of the scenes with many streams, one for each.
    pub(crate) fn stream_rows(&self) -> Vec<Vec<String>> {
        let is_one = |s: &&Scene| s.name.starts_with("streams_") || s.connections.is_some();
        let number = |n: Option<usize>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
        let row = |s: &Scene| {
            vec![
                s.name.clone(),
                s.connections
                    .map_or_else(|| "default".to_owned(), |c| c.to_string()),
                s.streams.to_string(),
                number(s.channels),
                s.most_in_one.to_string(),
                s.late.to_string(),
                s.late_behind_channel.to_string(),
                number(s.late_untraced),
            ]
        };
        self.scenes.iter().filter(is_one).map(row).collect()
    }

    /// Makes rows of the channels that were used.
    pub(crate) fn channel_rows(&self) -> Vec<Vec<String>> {
        let row = |c: &Channel| {
            vec![
                c.number.to_string(),
                c.pid.to_string(),
                c.token
                    .map_or_else(|| "?".to_owned(), |t| format!("{t:#x}")),
                known(c.chid),
                known(c.runlist),
                known(c.group.map(|g| g as u32)),
                c.engines.join("+"),
            ]
        };
        self.channels.iter().filter(|c| c.used).map(row).collect()
    }

    /// Makes rows of the kernels of a scene.
    pub(crate) fn kernel_rows(&self, scene: &Scene) -> Vec<Vec<String>> {
        let rows = scene.kernels.iter().map(|k| {
            let channel = self.channels.iter().find(|c| Some(c.number) == k.channel);
            let behind = k.behind.as_ref();
            vec![
                k.stream.clone(),
                k.priority.to_string(),
                known(k.channel),
                known(channel.and_then(|c| c.runlist)),
                ms(k.called_ns),
                ms(k.start_ns),
                ms(k.end_ns),
                k.busy.pauses.len().to_string(),
                behind.map_or_else(String::new, |b| b.stream.clone()),
            ]
        });
        rows.collect()
    }

    /// Makes rows of all copies.
    pub(crate) fn copy_rows(&self) -> Vec<Vec<String>> {
        let rows = self.scenes.iter().flat_map(|s| {
            s.copies.iter().map(|c| {
                let channels: Vec<String> = c.channels.iter().map(u32::to_string).collect();
                vec![
                    s.name.clone(),
                    c.pid.to_string(),
                    c.way.clone(),
                    channels.join("+"),
                    c.copies.to_string(),
                    format!("{:.1}", c.each_ns as f64 / 1e3),
                    format!("{:.1}", c.gb_per_s),
                    c.busy.pauses.len().to_string(),
                ]
            })
        });
        rows.collect()
    }

    /// Returns the scenes whose kernels are shown one by one. Of the scenes with many streams, only the one with the most is among
    /// them.
    pub(crate) fn shown(&self) -> impl Iterator<Item = &Scene> {
        let streams = |s: &&Scene| s.name.starts_with("streams_");
        let largest = self.scenes.iter().filter(streams).max_by_key(|s| s.streams);
        let largest = largest.map(|s| s.name.as_str());
        self.scenes
            .iter()
            .filter(move |s| !s.kernels.is_empty())
            .filter(move |s| !s.name.starts_with("streams_") || Some(s.name.as_str()) == largest)
    }

    /// Describes the rules in words.
    pub(crate) fn rule_lines(&self) -> impl Iterator<Item = [String; 3]> {
        self.rules.iter().map(|r| {
            let head = format!("{} {}: {}", r.rule, r.verdict.words(), r.says);
            [head, r.evidence.clone(), r.limit.to_owned()]
        })
    }

    /// Formats the tables.
    pub fn text(&self) -> String {
        let rules = self.rule_lines().flat_map(|[head, evidence, limit]| {
            [head, format!("   {evidence}"), format!("   {limit}")]
        });
        let found = self.findings.iter();
        let found = found.map(|f| format!("{}: {}", f.about, f.text));
        let lines = |lines: &mut dyn Iterator<Item = String>| {
            lines.map(|line| line + "\n").collect::<String>()
        };
        let mut sections = vec![
            ("rules".to_owned(), lines(&mut rules.into_iter())),
            ("beside the rules".to_owned(), lines(&mut found.into_iter())),
            ("streams".to_owned(), table(&STREAMS, &self.stream_rows())),
            (
                "channels".to_owned(),
                table(&CHANNELS, &self.channel_rows()),
            ),
            ("copies".to_owned(), table(&COPIES, &self.copy_rows())),
        ];
        for scene in self.shown() {
            let rows = self.kernel_rows(scene);
            sections.push((scene.name.clone(), table(&KERNELS, &rows)));
        }
        if !self.notes.is_empty() {
            sections.push(("notes".to_owned(), lines(&mut self.notes.iter().cloned())));
        }
        report(self.head(), &sections, &self.ledger)
    }
}
