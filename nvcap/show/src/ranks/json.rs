//! The analysis as one JSON object.

use serde_json::{Value, json};

use super::analysis::{Absent, Analysis, Last, Seen, Sum};
use super::arrivals::Arrival;
use super::job::{Comm, Unmet};
use super::matching::Doubt;

/// The most works whose surplus in a rank is told.
const WORKS: usize = 10;

fn unmet_json(unmet: &Unmet) -> Value {
    json!({ "what": unmet.what, "given": unmet.given, "text": unmet.text })
}

impl Analysis {
    /// The object.
    #[must_use]
    pub fn json(&self) -> Value {
        let seen = self.seen.iter().enumerate();
        let communicators = seen.map(|(n, seen)| self.communicator_json(n, seen));
        json!({
            "type": "ranks",
            "verdict": self.verdict,
            "communicators": communicators.collect::<Vec<_>>(),
            "ranks": (0..self.job.ranks.len()).map(|n| self.rank_json(n)).collect::<Vec<_>>(),
            "doubts": self.job.unmet.iter().map(unmet_json).collect::<Vec<_>>(),
            "gpu_times": self.job.has_times,
            "processes_without_collectives": self.job.others,
            "kernels_without_name_of_these": self.job.others_unnamed,
            "works_left_out": self.job.left_out,
        })
    }

    fn rank_json(&self, n: usize) -> Value {
        let (rank, its) = (&self.job.ranks[n], &self.shares[n]);
        json!({
            "name": self.job.name(n),
            "rank": rank.number,
            "world_size": rank.world_size,
            "pid": (rank.pid != 0).then_some(rank.pid),
            "process": rank.process,
            "gpu": rank.gpu,
            "file": rank.file,
            "has_ended": rank.has_ended,
            "calls": rank.calls.len(),
            "calls_without_own_time": rank.shared,
            "works_timed": rank.works.len(),
            "works_untimed": rank.untimed,
            "kernels_without_name": rank.unnamed,
            "losses": rank.losses,
            "span_ns": its.span,
            "compute_ns": its.compute,
            "hidden_ns": its.hidden,
            "exposed_ns": its.exposed,
            "waiting_ns": its.waiting,
            "copying_ns": its.copying,
            "unknown_ns": its.unknown,
            "idle_ns": its.idle,
        })
    }

    fn communicator_json(&self, n: usize, seen: &Seen) -> Value {
        let members: Vec<Value> = { seen.of.members.iter() }
            .map(|member| {
                let (address, channel) = match member.comm {
                    Comm::Argument(address) => (Some(format!("{address:#x}")), None),
                    Comm::Channel(channel) => (None, Some(channel)),
                };
                json!({
                    "name": self.job.name(member.rank),
                    "rank": self.job.ranks[member.rank].number,
                    "communicator": address,
                    "channel": channel,
                    "calls": member.calls.len(),
                })
            })
            .collect();
        let doubts: Vec<Value> = seen.of.doubts.iter().map(|d| self.doubt_json(d)).collect();
        json!({
            "communicator": n,
            "certain": seen.of.members.len() > 1 && doubts.is_empty(),
            "doubts": doubts,
            "members": members,
            "kinds": seen.sums.iter().map(|sum| self.sum_json(seen, sum)).collect::<Vec<_>>(),
            "absent": seen.absent.as_ref().map(|absent| self.absent_json(absent)),
            "arrivals": self.lists.then(|| self.arrivals_json(seen)),
        })
    }

    fn arrivals_json(&self, seen: &Seen) -> Vec<Value> {
        let one = |arrival: &Arrival| {
            let order = self.order(seen, arrival);
            let order = order.iter().map(|(rank, begin, error)| {
                json!({
                    "name": self.job.name(*rank),
                    "begin_ns": begin,
                    "error_ns": error,
                })
            });
            let last = { arrival.last.iter() }.map(|m| self.job.name(seen.of.members[*m].rank));
            json!({
                "call": arrival.call + 1,
                "kind": self.job.names.text(arrival.kind),
                "skew_ns": arrival.skew,
                "skew_error_ns": arrival.error,
                "last": last.collect::<Vec<_>>(),
                "order": order.collect::<Vec<_>>(),
            })
        };
        seen.arrivals.iter().map(one).collect()
    }

    fn doubt_json(&self, doubt: &Doubt) -> Value {
        let (what, rank, count) = match doubt {
            Doubt::Channel(rank) => ("channel", Some(rank), None),
            Doubt::Loss(rank) => ("loss", Some(rank), None),
            Doubt::Unnamed(rank) => ("unnamed", Some(rank), None),
            Doubt::Order(rank) => ("order", Some(rank), None),
            Doubt::Moved(rank) => ("moved", Some(rank), None),
            Doubt::Rival(rank) => ("rival", Some(rank), None),
            Doubt::Several => ("several", None, None),
            Doubt::Apart(n) => ("apart", None, Some(*n)),
            Doubt::Kinds(n) => ("kinds", None, Some(*n)),
            Doubt::Between(n) => ("between", None, Some(*n)),
        };
        json!({
            "what": what,
            "name": rank.map(|rank| self.job.name(*rank)),
            "count": count,
            "text": self.doubt(doubt),
        })
    }

    fn sum_json(&self, seen: &Seen, sum: &Sum) -> Value {
        let known = |ns: u64| (sum.timed > 0).then_some(ns);
        let members = sum.last.iter().enumerate().map(|(member, last)| {
            let name = self.job.name(seen.of.members[member].rank);
            self.last_json(name, last, sum.waits[member])
        });
        json!({
            "kind": self.job.names.text(sum.kind),
            "calls": sum.calls,
            "matched": sum.matched,
            "unmatched": sum.calls - sum.matched,
            "timed": sum.timed,
            "attributed": sum.attributed,
            "skew_ns": {
                "median": known(sum.skew[0]),
                "p99": known(sum.skew[1]),
                "most": known(sum.skew[2]),
                "error": known(sum.error),
            },
            "waited_ns": known(sum.waited),
            "waited_error_ns": known(sum.waited_error),
            "members": members.collect::<Vec<_>>(),
        })
    }

    fn last_json(&self, name: String, last: &Last, waited: u64) -> Value {
        let causes = last.causes.as_ref().map(|causes| {
            let mut works: Vec<_> = causes.works.iter().collect();
            works.sort_by_key(|(_, more)| std::cmp::Reverse(more.ns.unsigned_abs()));
            let works = works.into_iter().take(WORKS).map(|(name, more)| {
                json!({
                    "name": self.job.names.text(*name),
                    "more": more.count,
                    "more_ns": more.ns,
                    "own_ns": more.own_ns,
                })
            });
            json!({
                "calls": causes.calls,
                "works": works.collect::<Vec<_>>(),
                "more_idle_ns": causes.idle,
                "more_without_submission_ns": causes.nothing,
                "more_of_unknown_submission_ns": causes.unknown,
                "text": self.reasons(causes, last.late),
            })
        });
        json!({
            "name": name,
            "last": last.alone,
            "last_with_others": last.among,
            "late_ns": (last.alone > 0).then_some(last.late),
            "waited_ns": waited,
            "others_waited_ns": last.blame,
            "causes": causes,
        })
    }

    fn absent_json(&self, absent: &Absent) -> Value {
        let names = |ranks: &[usize]| ranks.iter().map(|r| self.job.name(*r)).collect::<Vec<_>>();
        json!({
            "call": absent.number,
            "kind": self.job.names.text(absent.kind),
            "present": names(&absent.present),
            "absent": names(&absent.absent),
            "waited_ns": absent.waits,
            "python": absent.absent.iter().map(|r| self.places.get(&self.job.ranks[*r].pid)).collect::<Vec<_>>(),
            "calls_behind": absent.more,
        })
    }
}
