//! The rules of Bakita and Anderson ("Demystifying NVIDIA GPU Internals to Enable Reliable GPU Management", RTAS 2024), each with the
//! scenes' verdict.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::joined::{Channel, Copied, Ran, Scene};
use super::slices::overlap;
use crate::bench::CopyEngine;
use crate::study::{grouped, ms};

/// Verdict of the scenes on a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Shown,
    Contradicted,
    NotShown,
}

impl Verdict {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Shown => "shown",
            Self::Contradicted => "contradicted",
            Self::NotShown => "cannot be shown here",
        }
    }

    /// Makes a verdict of two answers. The second counts only where the first is no.
    fn of(shown: bool, contradicted: bool) -> Self {
        match (shown, contradicted) {
            (true, _) => Self::Shown,
            (_, true) => Self::Contradicted,
            _ => Self::NotShown,
        }
    }
}

/// A rule.
#[derive(Clone, Debug, Serialize)]
pub struct Rule {
    /// Name of the rule, such as `R1`.
    pub rule: &'static str,
    pub says: &'static str,
    pub verdict: Verdict,
    /// The figures that the verdict rests on.
    pub evidence: String,
    /// Limit of the verdict: the cases that it does not cover, or the reason why there is no verdict.
    pub limit: &'static str,
}

/// Evidence by which the rules are judged.
pub(crate) struct Facts<'a> {
    pub scenes: &'a [Scene],
    pub channels: &'a [Channel],
    pub copy_engines: &'a [CopyEngine],
}

/// Judges all eight rules.
pub(crate) fn rules(facts: &Facts<'_>) -> Vec<Rule> {
    vec![
        facts.r1(),
        facts.r2(),
        facts.r3(),
        facts.r4(),
        facts.r5(),
        facts.r6(),
        facts.r7(),
        facts.r8(),
    ]
}

const UNKNOWN: &str = "the trace does not show it";

impl Facts<'_> {
    fn scene(&self, name: &str) -> Option<&Scene> {
        self.scenes.iter().find(|s| s.name == name)
    }

    fn runlist(&self, channel: u32) -> Option<u32> {
        self.channels.iter().find(|c| c.number == channel)?.runlist
    }

    fn r1(&self) -> Rule {
        let kernels = || self.scenes.iter().flat_map(|s| &s.kernels);
        let copies = || self.scenes.iter().flat_map(|s| &s.copies);
        let in_channel = kernels().filter(|k| k.channel.is_some()).count();
        let made: u64 = copies().map(|c| c.copies as u64).sum();
        let seen: u64 = copies().map(|c| c.seen.min(c.copies as u64)).sum();
        let ran = kernels().count();
        Rule {
            rule: "R1",
            says: "Every operation that uses an engine goes through a channel.",
            verdict: Verdict::of(ran > 0 && in_channel == ran && seen == made, false),
            evidence: format!(
                "{in_channel} of {ran} kernels and {seen} of {made} copies that ran stand in the pushbuffer of a channel"
            ),
            limit: "That nothing runs while channels are disabled would be a change of the GPU's state.",
        }
    }

    fn r2(&self) -> Rule {
        let usual: Vec<&Scene> = self
            .scenes
            .iter()
            .filter(|s| s.name.starts_with("streams_"))
            .collect();
        let (over, under): (Vec<&Scene>, Vec<&Scene>) = usual
            .iter()
            .partition(|s| s.channels.is_some_and(|c| s.streams > c));
        let late = |scenes: &[&Scene]| scenes.iter().map(|s| s.late).sum::<usize>();
        let behind: usize = over.iter().map(|s| s.late_behind_channel).sum();
        let all_known = !usual.is_empty() && usual.iter().all(|s| s.channels.is_some());
        // One in ten may have started at another kernel's end by chance.
        let explained = over.iter().all(|s| s.late > 0) && behind * 10 >= late(&over) * 9;
        let shown = all_known && !over.is_empty() && late(&under) == 0 && explained;
        let evidence: Vec<String> = self
            .scenes
            .iter()
            .filter(|s| s.name.starts_with("streams_") || s.connections.is_some())
            .map(late_line)
            .collect();
        Rule {
            rule: "R2",
            says: "The number of channels limits how much of one process runs at the same time: where streams share a channel, one waits for what another has put before it.",
            verdict: Verdict::of(shown, all_known && !over.is_empty() && late(&over) == 0),
            evidence: evidence.join("; "),
            limit: "A late kernel is the first of its stream, independent of all others, that started more than a quarter of its length after its launch.",
        }
    }

    fn r3(&self) -> Rule {
        let used: Vec<&Channel> = self.channels.iter().filter(|c| c.used).collect();
        let listed = used.iter().filter(|c| c.runlist.is_some()).count();
        let runlists: BTreeSet<u32> = used.iter().filter_map(|c| c.runlist).collect();
        Rule {
            rule: "R3",
            says: "A channel is scheduled only as a member of a runlist.",
            verdict: Verdict::of(!used.is_empty() && listed == used.len(), false),
            evidence: format!(
                "{listed} of {} channels with work have a runlist in their work-submit token: {}",
                used.len(),
                list(&runlists)
            ),
            limit: "That a channel outside of all runlists never runs is not tried: the driver makes none.",
        }
    }

    fn r4(&self) -> Rule {
        let says = "A runlist runs one process at a time on each of its engines; processes take turns by time slices.";
        let limit = "Two processes without MPS, which makes one of all of them. A pause is what a kernel's clock says that it stood still.";
        let pair = self.scene("pair_compute").map(|s| s.kernels.as_slice());
        let Some([a, b]) = pair else {
            return unknown("R4", says, "no scene with two processes");
        };
        let runlists = [a, b].map(|k| k.channel.and_then(|c| self.runlist(c)));
        let (window, both) = overlap(&a.busy, &b.busy);
        let turns = a.busy.pauses.len().min(b.busy.pauses.len());
        let same = runlists[0].is_some() && runlists[0] == runlists[1];
        let mut evidence = format!(
            "of {} ms in which both kernels had begun and not ended, both ran for {} ms; {}; {}; runlists {}",
            ms(window),
            ms(both),
            turns_of(a),
            turns_of(b),
            runlists.map(known).join(" and ")
        );
        evidence += &self.copies_in_turn();
        Rule {
            rule: "R4",
            says,
            verdict: Verdict::of(
                same && turns >= 2 && both * 20 <= window,
                same && both * 2 > window,
            ),
            evidence,
            limit,
        }
    }

    /// Describes two processes' copies in the same direction, as evidence on R4.
    fn copies_in_turn(&self) -> String {
        let alone = self.scene("alone_copies").and_then(|s| s.copies.first());
        let pair = self.scene("pair_copies").map(|s| s.copies.as_slice());
        let (Some(alone), Some([a, b])) = (alone, pair) else {
            return String::new();
        };
        let (window, both) = overlap(&a.busy, &b.busy);
        format!(
            "; copies: {:.1} GB/s alone, {:.1} and {:.1} together; of {} ms both had copies that ended one after the other for {} ms; {} and {} pauses, medians {} and {} ms",
            alone.gb_per_s,
            a.gb_per_s,
            b.gb_per_s,
            ms(window),
            ms(both),
            a.busy.pauses.len(),
            b.busy.pauses.len(),
            ms(a.busy.median_slice_and_pause().1),
            ms(b.busy.median_slice_and_pause().1),
        )
    }

    fn r5(&self) -> Rule {
        let says = "The number of runlists limits how much of several processes runs at the same time: work on different runlists does not wait for each other's.";
        let limit = "Compute of one process and copies of another; not every pair of runlists.";
        let pair = self.scene("pair_compute_copies");
        let pair = pair.and_then(|s| s.kernels.first().zip(s.copies.first()));
        let alone = self.scene("alone_copies").and_then(|s| s.copies.first());
        let (Some((kernel, copies)), Some(alone)) = (pair, alone) else {
            return unknown("R5", says, "no scene with two processes");
        };
        let kernels = kernel.channel.and_then(|c| self.runlist(c));
        let of_copies = self.runlists_of(copies);
        let differ = kernels.is_some_and(|k| !of_copies.is_empty() && !of_copies.contains(&k));
        let length = kernel.end_ns - kernel.start_ns;
        let paused = kernel.busy.paused_ns();
        let slower = copies.each_ns as f64 / alone.each_ns.max(1) as f64;
        let undisturbed = paused * 50 <= length && slower < 1.25;
        let disturbed = paused * 5 > length || slower > 1.5;
        Rule {
            rule: "R5",
            says,
            verdict: Verdict::of(differ && undisturbed, differ && disturbed),
            evidence: format!(
                "a kernel of {} ms (runlist {}) stood still for {} ms while another process copied (runlist {}); a copy took {} ns beside it and {} ns alone, {slower:.2} times",
                ms(length),
                known(kernels),
                ms(paused),
                list(&of_copies),
                grouped(copies.each_ns as f64),
                grouped(alone.each_ns as f64),
            ),
            limit,
        }
    }

    fn runlists_of(&self, copies: &Copied) -> BTreeSet<u32> {
        let channels = copies.channels.iter();
        channels.filter_map(|c| self.runlist(*c)).collect()
    }

    /// Returns each runlist with each engine of its channels.
    fn served(&self) -> impl Iterator<Item = (u32, &str)> {
        self.channels.iter().flat_map(|channel| {
            let engines = channel.engines.iter();
            engines.filter_map(|e| Some((channel.runlist?, e.as_str())))
        })
    }

    fn r6(&self) -> Rule {
        let mut engines: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
        for (runlist, engine) in self.served() {
            engines.entry(runlist).or_default().insert(engine);
        }
        let line = |(runlist, engines): (&u32, &BTreeSet<&str>)| {
            format!("runlist {runlist}: {}", list(engines))
        };
        let lines: Vec<String> = engines.iter().map(line).collect();
        let several = engines.values().any(|e| e.len() > 1);
        Rule {
            rule: "R6",
            says: "A runlist can serve more than one engine.",
            verdict: Verdict::of(several, engines.len() > 1 && !several),
            evidence: nonempty(lines.join("; ")),
            limit: "The engines are those of the objects that the driver has bound to channels of each runlist; runlists without a channel of these processes are not seen.",
        }
    }

    fn r7(&self) -> Rule {
        let mut runlists: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for (runlist, engine) in self.served() {
            runlists.entry(engine).or_default().insert(runlist);
        }
        let line =
            |(engine, runlists): (&&str, &BTreeSet<u32>)| format!("{engine}: {}", list(runlists));
        let lines: Vec<String> = runlists.iter().map(line).collect();
        let one = runlists.values().all(|r| r.len() == 1);
        Rule {
            rule: "R7",
            says: "An engine belongs to exactly one runlist.",
            verdict: Verdict::of(runlists.len() > 1 && one, !one),
            evidence: nonempty(lines.join("; ")),
            limit: "Of engines that these processes have channels for, one GPU.",
        }
    }

    fn r8(&self) -> Rule {
        let alone = |way: &str| self.scene(&format!("copies_{way}"))?.copies.first();
        let both = self.scene("copies_both").map(|s| s.copies.as_slice());
        let line = |copies: &Copied| {
            let alone = alone(&copies.way)?;
            let slower = copies.each_ns as f64 / alone.each_ns.max(1) as f64;
            let (engines, way) = (self.engines_of(copies), &copies.way);
            Some(format!(
                "{way} on {engines}: {:.1} GB/s alone, {:.1} beside the other way ({slower:.2} times as long)",
                alone.gb_per_s, copies.gb_per_s
            ))
        };
        let mut serves: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
        for one in self.copy_engines {
            for physical in &one.physical {
                serves.entry(*physical).or_default().insert(&one.engine);
            }
        }
        // Those that are served by the same physical engines, in one line.
        let mut served: BTreeMap<&BTreeSet<&str>, BTreeSet<u32>> = BTreeMap::new();
        for (physical, engines) in &serves {
            served.entry(engines).or_default().insert(*physical);
        }
        let serving = served.iter().map(|(engines, physical)| {
            let by = match engines.len() {
                1 => "alone has",
                _ => "share",
            };
            let kind = match physical.len() {
                1 => "physical engine",
                _ => "physical engines",
            };
            format!("{} {by} {kind} {}", list(engines), list(physical))
        });
        let both = both.unwrap_or_default().iter().filter_map(line);
        let lines: Vec<String> = serving.chain(both).collect();
        Rule {
            rule: "R8",
            says: "Copy engines are not always independent: logical ones can share a physical one.",
            verdict: Verdict::of(serves.values().any(|engines| engines.len() > 1), false),
            evidence: nonempty(lines.join("; ")),
            limit: "The driver's account of its engines (NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK), of this GPU; how much slower copies are beside each other may be the bus's part.",
        }
    }

    fn engines_of(&self, copies: &Copied) -> String {
        let of = |number: &u32| self.channels.iter().find(|c| c.number == *number);
        let engines = copies.channels.iter().filter_map(of);
        list(&engines.flat_map(|c| &c.engines).collect())
    }
}

fn unknown(rule: &'static str, says: &'static str, limit: &'static str) -> Rule {
    Rule {
        rule,
        says,
        verdict: Verdict::NotShown,
        evidence: UNKNOWN.to_owned(),
        limit,
    }
}

fn nonempty(text: String) -> String {
    match text.is_empty() {
        true => UNKNOWN.to_owned(),
        false => text,
    }
}

fn late_line(scene: &Scene) -> String {
    let connections = scene.connections;
    let connections = connections.map_or_else(String::new, |c| {
        format!(" with CUDA_DEVICE_MAX_CONNECTIONS={c}")
    });
    format!(
        "{} streams in {} channels{connections}: {} late, {} of them behind a kernel of their own channel",
        scene.streams,
        scene
            .channels
            .map_or_else(|| "?".to_owned(), |c| c.to_string()),
        scene.late,
        scene.late_behind_channel,
    )
}

fn turns_of(kernel: &Ran) -> String {
    let (slice, pause) = kernel.busy.median_slice_and_pause();
    format!(
        "process {} was stopped {} times, ran {} ms and stood still {} ms at a time (medians)",
        kernel.pid,
        kernel.busy.pauses.len(),
        ms(slice),
        ms(pause)
    )
}

pub(crate) fn known(number: Option<u32>) -> String {
    number.map_or_else(|| "?".to_owned(), |n| n.to_string())
}

fn list<T: ToString>(values: &BTreeSet<T>) -> String {
    let values: Vec<String> = values.iter().map(T::to_string).collect();
    match values.is_empty() {
        true => "?".to_owned(),
        false => values.join(", "),
    }
}
