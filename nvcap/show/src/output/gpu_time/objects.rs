//! The sums as JSON.

use serde_json::{Map, Value, json};

use super::intervals::Intervals;
use super::sentence::verdict;
use super::{Account, Durations, Row, What, Whose};
use crate::output::names::{EngineName, known_pid};

impl Account {
    /// One object of type `gpu_time`.
    pub(crate) fn json(&self) -> Value {
        let sample = self.coverage.sample();
        let is_sample = sample.is_some();
        let engines = self.engines.iter().map(|((whose, engine), w)| {
            json!({"of": whose.to_string(), "engine": engine, "work": work(w, is_sample)})
        });
        let processes = self
            .processes
            .iter()
            .map(|(pid, w)| json!({"pid": known_pid(*pid), "work": work(w, is_sample)}));
        let [all_kernels, all_copies] = self.totals.map(|total| {
            total.map(|t| json!({
                "total_ns": t.about_ns, "total_error_ns": t.error_ns(), "total_least_ns": t.least_ns, "total_most_ns": t.most_ns,
            }))
        });
        json!({
            "type": "gpu_time", "time_ns": self.span.map(|s| s.1), "pid": null, "tid": null, "token": null,
            "first_ns": self.span.map(|s| s.0), "last_ns": self.span.map(|s| s.1),
            "entries": self.known.entries, "starts": self.known.starts, "durations": self.known.durations,
            "stamp_reads": self.stamps.reads, "stamp_read_ns": self.stamps.ns, "stamps": self.stamps.stamps,
            "stamp_read_share": sample.map_or(1.0, |s| s.1), "stamp_read_bursts": sample.map(|s| s.0),
            "clock_steps": self.stamps.steps, "exec_time": self.exec_time, "kernels": self.kernel_rows(), "copies": self.copy_rows(),
            "all_kernels": all_kernels, "all_copies": all_copies, "gpus": self.gpu_rows(is_sample),
            "engines": engines.collect::<Vec<_>>(), "processes": processes.collect::<Vec<_>>(), "channels": self.channel_rows(is_sample),
            "waits": self.wait_rows(), "unfinished": self.unfinished_rows(), "untimed": self.untimed_rows(), "earlier": self.earlier.json(),
            "earlier_unknown": self.earlier.left(), "graphs": self.graphs.json(),
        })
    }

    fn unfinished_rows(&self) -> Vec<Value> {
        let all = self.unfinished.last(self.newest).into_iter();
        all.map(|of| {
            json!({"channel": of.channel.0, "pid": known_pid(of.pid), "entries": of.entries, "ns": of.ns})
        })
        .collect()
    }

    fn untimed_rows(&self) -> Vec<Value> {
        let all = self.unfinished.untimed().into_iter();
        all.map(|of| json!({"pid": known_pid(of.pid), "entries": of.entries}))
            .collect()
    }

    fn kernel_rows(&self) -> Vec<Value> {
        let rows = self.sorted(false).into_iter().map(|(what, row)| {
            let (pid, what) = whose(what);
            let mangled = match what {
                What::Kernel(name) => Some(name),
                _ => None,
            };
            let program = match what {
                What::Program(program) => Some(program),
                _ => None,
            };
            let mut object = Map::from_iter([
                ("kernel".to_owned(), json!(row.text)),
                ("kernel_mangled".to_owned(), json!(mangled)),
                ("program".to_owned(), json!(program)),
                ("count".to_owned(), json!(row.count)),
                ("works".to_owned(), json!(what.works())),
                ("pid".to_owned(), json!(pid)),
                ("processes".to_owned(), json!(processes(row))),
                ("gpu".to_owned(), durations(row)),
            ]);
            row.preempted.members(&mut object);
            Value::Object(object)
        });
        rows.collect()
    }

    fn copy_rows(&self) -> Vec<Value> {
        let rows = self.sorted(true).into_iter().map(|(what, row)| {
            let rate = row.bytes as f64 / row.durations.sum_ns.max(1) as f64;
            json!({
                "copies": row.text, "count": row.count, "works": what.works(), "bytes": row.bytes,
                "gb_per_s": row.durations.known(rate), "pid": whose(what).0, "processes": processes(row), "gpu": durations(row),
            })
        });
        rows.collect()
    }

    fn gpu_rows(&self, is_sample: bool) -> Vec<Value> {
        let rows = self.gpus.iter().map(|(whose, w)| {
            let gaps: Vec<Value> = w
                .gaps
                .iter()
                .map(|g| json!({
                    "at_ns": g.host, "gpu_clock_ns": g.begin, "ns": g.idle.ns, "waited_ns": g.idle.waited_ns,
                    "nothing_there_least_ns": g.idle.empty_ns.0, "nothing_there_most_ns": g.idle.empty_ns.1,
                }))
                .collect();
            let (gpu, pid) = match whose {
                Whose::Gpu(gpu) => (Some(gpu), None),
                Whose::Process(pid) => (None, known_pid(*pid)),
            };
            let parts = self.parts(*whose);
            json!({
                "gpu": gpu, "pid": pid, "work": work(w, is_sample), "verdict": verdict(w, parts, self.starts()), "copies_alone_ns": parts.copies_ns,
                "replays_ns": parts.replays_ns, "waiting_for_ranks_ns": parts.peers_ns, "gaps": gaps,
            })
        });
        rows.collect()
    }

    fn channel_rows(&self, is_sample: bool) -> Vec<Value> {
        let half = |d: &Durations| d.known(d.quantile_ns(0.5));
        let rows = self.channels.iter().map(|(id, c)| {
            json!({
                "channel": id.0, "pid": known_pid(c.pid), "gpu": c.gpu, "engine": EngineName(c.engine).to_string(),
                "work": work(&c.work, is_sample), "queued_p50_ns": half(&c.queued), "queued_ns": c.queued.sum_ns,
                "queued_least_p50_ns": half(&c.queued_least), "queued_most_p50_ns": half(&c.queued_most),
                "waited_ns": c.waited_ns, "depth": c.depth(),
            })
        });
        rows.collect()
    }

    fn wait_rows(&self) -> Vec<Value> {
        let rows = self.waits.iter().map(|w| {
            json!({
                "channel": w.channel.0, "for_channel": w.by.map(|b| b.0), "semaphore": w.semaphore.0, "ns": w.ns,
                "until_ns": w.at_host_ns,
            })
        });
        rows.collect()
    }
}

/// The process that a row is of, where rows are by process, and its work.
fn whose(what: &What) -> (Option<u32>, &What) {
    match what {
        What::Of(pid, what) => (known_pid(*pid), what),
        what => (None, what),
    }
}

/// The parts of a row by process.
fn processes(row: &Row) -> Vec<Value> {
    let all = row.of.iter();
    all.map(|(pid, (count, timed, ns))| {
        json!({"pid": known_pid(*pid), "count": count, "timed": timed, "timed_ns": ns})
    })
    .collect()
}

/// The durations of a row, and its total.
fn durations(row: &Row) -> Value {
    let d = &row.durations;
    json!({
        "timed": d.count, "timed_ns": d.sum_ns, "timed_error_ns": row.works.error_ns, "total_ns": row.total.map(|t| t.about_ns), "total_error_ns": row.total.map(|t| t.error_ns()),
        "total_least_ns": row.total.map(|t| t.least_ns), "total_most_ns": row.total.map(|t| t.most_ns), "mean_ns": d.known(d.mean_ns()), "least_ns": d.known(d.least_ns), "most_ns": d.known(d.most_ns),
        "p50_ns": d.known(d.quantile_ns(0.5)), "p90_ns": d.known(d.quantile_ns(0.9)), "p99_ns": d.known(d.quantile_ns(0.99)),
    })
}

/// Busy and idle times. The share of the busy ones has an error if stamps were read in samples.
fn work(w: &Intervals, is_sample: bool) -> Value {
    json!({
        "span_ns": w.span_ns(), "busy_ns": w.busy_ns, "sum_ns": w.sum_ns, "idle_ns": w.idle.ns, "unknown_ns": w.unknown_ns,
        "unknown_about_ns": w.unknown_about_ns, "untold_ns": w.untold_ns(),
        "waited_ns": w.idle.waited_ns, "nothing_there_least_ns": w.idle.empty_ns.0, "nothing_there_most_ns": w.idle.empty_ns.1,
        "ran_dry_least_ns": w.idle.dry_ns.0, "ran_dry_most_ns": w.idle.dry_ns.1,
        "busy_share_error": w.share_error().filter(|_| is_sample),
    })
}
