//! The analysis as text.

use std::fmt::Write as _;

use super::analysis::{Analysis, Seen, Sum};
use super::kinds::words;
use crate::output::plural::{plural, plural_of};
use crate::output::style::Plain;
use crate::output::units::Nanoseconds;

/// The most ranks that a line names as last.
const NAMED: usize = 4;
/// The most reasons that are shown of each.
const REASONS: usize = 3;

fn share(part: u64, of: u64) -> String {
    match of {
        0 => "?".to_owned(),
        of => format!("{:.1} %", 100.0 * part as f64 / of as f64),
    }
}

impl Analysis {
    /// Writes the verdict, communicators, ranks, and what is missing.
    pub fn text(&self, out: &mut Vec<u8>) {
        let mut text = String::new();
        let _ = writeln!(text, "{}", Plain(&self.verdict));
        for line in &self.earlier {
            let _ = writeln!(text, "  {}", Plain(line));
        }
        let (several, alone): (Vec<_>, Vec<_>) =
            { self.seen.iter().enumerate() }.partition(|(_, seen)| seen.of.members.len() > 1);
        for (n, seen) in several {
            self.communicator(&mut text, n, seen);
        }
        if !alone.is_empty() {
            let calls: usize = alone.iter().map(|(_, s)| s.of.calls.len()).sum();
            let _ = writeln!(
                text,
                "\n{} of {} that {} seen in one rank alone",
                plural(calls as u64, "call"),
                plural(alone.len() as u64, "communicator"),
                if alone.len() == 1 { "was" } else { "were" },
            );
        }
        self.ranks(&mut text);
        self.notes(&mut text);
        out.extend_from_slice(text.as_bytes());
    }

    fn communicator(&self, text: &mut String, n: usize, seen: &Seen) {
        let _ = writeln!(text, "\ncommunicator {n}: {}", Plain(&self.ranks_of(seen)));
        let _ = writeln!(
            text,
            "{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}  {:<14} last",
            "calls", "matched", "timed", "skew", "p99", "+-", "waited", "kind"
        );
        for sum in &seen.sums {
            let time = |ns: u64| match sum.timed {
                0 => "?".to_owned(),
                _ => Nanoseconds(ns).to_string(),
            };
            let _ = writeln!(
                text,
                "{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}  {:<14} {}",
                sum.calls,
                sum.matched,
                sum.timed,
                time(sum.skew[0]),
                time(sum.skew[1]),
                time(sum.error),
                time(sum.waited),
                Plain(self.job.names.text(sum.kind)).to_string(),
                Plain(&self.last(seen, sum)),
            );
        }
        for sum in &seen.sums {
            self.reasons_of(text, seen, sum);
        }
        if let Some(absent) = &seen.absent {
            let waits = match absent.waits {
                Some(ns) => format!("the first of them has waited for {}", Nanoseconds(ns)),
                None => "submitted, and not seen to have begun".to_owned(),
            };
            let more = match absent.more {
                0 => String::new(),
                n => format!("; {} behind it", plural(n, "call")),
            };
            let line = format!(
                "  {} {} at the end of the trace: {} there ({waits}), {} not{more}",
                words(self.job.names.text(absent.kind), false),
                absent.number,
                self.job.several(&absent.present),
                self.job.several(&absent.absent),
            );
            let _ = writeln!(text, "{}", Plain(&line));
            for rank in &absent.absent {
                if let Some(place) = self.places.get(&self.job.ranks[*rank].pid) {
                    let name = self.job.name(*rank);
                    let _ = writeln!(text, "    {name}: python at {}", Plain(place));
                }
            }
        }
        for doubt in &seen.of.doubts {
            let _ = writeln!(text, "  not certain: {}", Plain(&self.doubt(doubt)));
        }
        if self.lists {
            self.arrivals(text, seen);
        }
    }

    /// Lists calls, with the order in which the ranks came.
    fn arrivals(&self, text: &mut String, seen: &Seen) {
        if seen.arrivals.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "{:>9}{:>9}{:>9}  {:<14} in the order of arrival",
            "call", "skew", "+-", "kind"
        );
        for arrival in &seen.arrivals {
            let order = self.order(seen, arrival);
            let first = order.first().map_or(0, |o| o.1);
            let order = order
                .iter()
                .enumerate()
                .map(|(n, (rank, begin, _))| match n {
                    0 => self.job.name(*rank),
                    _ => format!("{} +{}", self.job.name(*rank), Nanoseconds(begin - first)),
                });
            let order: Vec<String> = order.collect();
            let _ = writeln!(
                text,
                "{:>9}{:>9}{:>9}  {:<14} {}",
                arrival.call + 1,
                Nanoseconds(arrival.skew).to_string(),
                Nanoseconds(arrival.error).to_string(),
                Plain(self.job.names.text(arrival.kind)).to_string(),
                Plain(&order.join(", ")),
            );
        }
    }

    /// Tells which ranks came last to calls of one kind, and how often.
    fn last(&self, seen: &Seen, sum: &Sum) -> String {
        if sum.timed == 0 {
            return "not known: no times".to_owned();
        }
        let mut all: Vec<_> = sum
            .last
            .iter()
            .enumerate()
            .filter(|(_, l)| l.alone + l.among > 0)
            .collect();
        all.sort_by_key(|(_, l)| std::cmp::Reverse((l.alone, l.among)));
        let one = |(member, last): &(usize, &super::analysis::Last)| {
            let among = match last.among {
                0 => String::new(),
                n => format!(" (and {} with others)", share(n, sum.timed)),
            };
            format!(
                "{} {}{among}",
                self.job.name(seen.of.members[*member].rank),
                share(last.alone, sum.timed)
            )
        };
        let mut parts: Vec<String> = all.iter().take(NAMED).map(one).collect();
        if all.len() > NAMED {
            parts.push(format!("{} more", all.len() - NAMED));
        }
        let together = sum.timed - sum.attributed;
        if together > 0 {
            parts.push(format!("none {}", share(together, sum.timed)));
        }
        parts.join(", ")
    }

    fn reasons_of(&self, text: &mut String, seen: &Seen, sum: &Sum) {
        for (member, last) in sum.last.iter().enumerate() {
            let Some(causes) = &last.causes else { continue };
            // One that is last now and then has no cause of its own.
            if last.alone * 10 < sum.timed {
                continue;
            }
            let reasons = self.reasons(causes, last.late);
            let reasons = match reasons.is_empty() {
                true => "nothing that the others did not do".to_owned(),
                false => reasons
                    .into_iter()
                    .take(REASONS)
                    .collect::<Vec<_>>()
                    .join("; "),
            };
            let line = format!(
                "  {}, {} late on average to {} {}: {reasons}",
                self.job.name(seen.of.members[member].rank),
                Nanoseconds(last.late),
                last.alone,
                words(self.job.names.text(sum.kind), last.alone != 1),
            );
            let _ = writeln!(text, "{}", Plain(&line));
        }
    }

    fn ranks(&self, text: &mut String) {
        if self.job.ranks.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "\n{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}  of",
            "compute", "hidden", "exposed", "waiting", "copies", "unknown", "idle", "time"
        );
        for (n, (rank, its)) in self.job.ranks.iter().zip(&self.shares).enumerate() {
            let part = |ns: u64| share(ns, its.span);
            let span = match its.span {
                0 => "?".to_owned(),
                ns => Nanoseconds(ns).to_string(),
            };
            let who = match rank.number {
                Some(_) => format!(", process {}", crate::output::names::pid_name(rank.pid)),
                None => String::new(),
            };
            let gpu = match (rank.number, rank.gpu) {
                (Some(_), Some(gpu)) => format!(" on GPU {gpu}"),
                _ => String::new(),
            };
            let process = rank
                .process
                .as_deref()
                .map_or_else(String::new, |p| format!(" {p}"));
            let who = format!("{}{who}{process}{gpu}", self.job.name(n));
            let _ = writeln!(
                text,
                "{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{span:>9}  {}",
                part(its.compute),
                part(its.hidden),
                part(its.exposed),
                part(its.waiting),
                part(its.copying),
                part(its.unknown),
                part(its.idle),
                Plain(&who),
            );
        }
        for line in [
            "(compute: kernels that are no collectives ran; hidden: part of it beside a collective; exposed: a",
            " collective alone ran, and all ranks had come; waiting: it waited for another rank; copies: copies",
            " alone ran; unknown: works were there whose times are not known; idle: nothing ran)",
        ] {
            let _ = writeln!(text, "{line}");
        }
    }

    /// Lists what is not known.
    fn notes(&self, text: &mut String) {
        let _ = writeln!(text);
        let ranks = || self.job.ranks.iter();
        let timed: u64 = ranks().map(|r| r.works.len() as u64).sum();
        let untimed: u64 = ranks().map(|r| r.untimed).sum();
        let all = timed + untimed;
        if all > 0 {
            let _ = writeln!(
                text,
                "times known of {} of {}",
                share(timed, all),
                plural(all, "work")
            );
        }
        if all > 0 && !self.job.has_times {
            let _ = writeln!(
                text,
                "no times of the GPU were recorded: nvcap record --gpu-time takes them"
            );
        }
        let shared: u64 = ranks().map(|r| r.shared).sum();
        if shared > 0 {
            let _ = writeln!(
                text,
                "{} of collectives {} within a graph replay or beside other work of one entry, and {} no time of {} own",
                plural(shared, "call"),
                if shared == 1 { "is" } else { "are" },
                if shared == 1 { "has" } else { "have" },
                if shared == 1 { "its" } else { "their" },
            );
        }
        if ranks().any(|r| r.number.is_none()) && ranks().len() > 1 {
            let _ = writeln!(
                text,
                "which rank a process is was not told: --rank PID=RANK"
            );
        }
        for unmet in &self.job.unmet {
            let _ = writeln!(text, "{}", Plain(&unmet.text));
        }
        let seen = ranks().filter(|r| r.number.is_some()).count() as u64;
        let world = ranks().filter_map(|r| r.world_size).max();
        if let Some(world) = world.filter(|w| u64::from(*w) > seen && seen > 0) {
            let _ = writeln!(
                text,
                "{seen} of {} seen",
                plural_of(world.into(), "rank was", "ranks were")
            );
        }
        if self.job.others > 0 {
            let _ = writeln!(
                text,
                "{} without a collective {} left out",
                plural_of(self.job.others, "process", "processes"),
                if self.job.others == 1 { "is" } else { "are" }
            );
        }
        if self.job.left_out > 0 {
            let _ = writeln!(
                text,
                "{} left out, for there are too many: a shorter trace is whole",
                plural_of(self.job.left_out, "work was", "works were")
            );
        }
    }
}
