//! Estimates of a process's submissions by `nvcap counts --sample`.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};

use nvcap_decode::wire::GpuVa;
use nvcap_live::enrich;
use nvcap_monitor::counts::detail::estimate::{Estimate, Share};
use nvcap_monitor::counts::detail::{Doing, Sampled, Samples, What};
use nvcap_show::output::kernels::{self, Name};
use nvcap_show::output::style::Plain;
use nvcap_show::output::units::Bytes;

/// Number of kernels of a process that the text shows.
const SHOWN: usize = 8;
/// Number of programs whose names are asked for at once.
const MOST_ASKED: usize = 64;

/// Names of programs, as far as they have been found.
#[derive(Default)]
pub(super) struct Names {
    by: HashMap<(u32, GpuVa), Option<Arc<Name>>>,
}

/// Returns texts that distinguish programs: their short names; if those are equal, their whole names; if these are equal, too, the names
/// with the program's address. `None` for a program without a name.
fn told_apart(programs: &[(GpuVa, Option<Arc<Name>>)]) -> Vec<Option<String>> {
    let count = |of: fn(&Name) -> &str| {
        let mut all: HashMap<String, u32> = HashMap::new();
        for name in programs.iter().filter_map(|(_, name)| name.as_deref()) {
            *all.entry(of(name).to_owned()).or_default() += 1;
        }
        all
    };
    let (short, full) = (count(|n| &n.short), count(|n| &n.full));
    let text = |(program, name): &(GpuVa, Option<Arc<Name>>)| {
        let name = name.as_deref()?;
        Some(match (short[&name.short], full[&name.full]) {
            (1, _) => name.short.clone(),
            (_, 1) => name.full.clone(),
            _ => format!("{} (program {program:#x})", name.full),
        })
    };
    programs.iter().map(text).collect()
}

/// Line of a kernel.
struct Row {
    program: GpuVa,
    launches: Estimate,
    time: Option<Share>,
}

/// Returns the kernels of a process, those with the most time first.
fn rows(sampled: &Sampled) -> Vec<Row> {
    let mut all: BTreeMap<GpuVa, Row> = BTreeMap::new();
    let row = |program| Row {
        program,
        launches: Estimate::default(),
        time: sampled.share(Doing::Kernel(program)),
    };
    for (what, estimate) in &sampled.sums {
        if let What::Kernel(Some(program)) = *what {
            all.entry(program).or_insert_with(|| row(program)).launches = *estimate;
        }
    }
    for doing in sampled.at.keys() {
        if let Doing::Kernel(program) = *doing {
            all.entry(program).or_insert_with(|| row(program));
        }
    }
    let mut all: Vec<Row> = all.into_values().collect();
    let time = |r: &Row| r.time.map_or(0.0, |t| t.share);
    all.sort_by(|a, b| {
        let by_time = time(b).total_cmp(&time(a));
        by_time.then(b.launches.total.total_cmp(&a.launches.total))
    });
    all
}

impl Names {
    /// Asks for the names of those programs in `rows` for which it has not asked yet.
    fn ask(&mut self, pid: u32, rows: &[Row], (_, programs): Samples<'_>) {
        let known = |r: &&Row| !self.by.contains_key(&(pid, r.program));
        let asked: Vec<(GpuVa, Option<u32>)> = rows
            .iter()
            .filter(known)
            .take(MOST_ASKED)
            .map(|r| (r.program, programs.get(&r.program).copied().flatten()))
            .collect();
        if asked.is_empty() {
            return;
        }
        for (program, _) in &asked {
            self.by.insert((pid, *program), None);
        }
        for kernel in enrich::names::of(pid, &asked) {
            let name = kernels::name(&kernel);
            self.by.insert((pid, kernel.program), Some(name));
        }
    }

    /// Returns texts for the programs of rows; `None` for a program without a name.
    fn of_rows(&self, pid: u32, rows: &[Row]) -> Vec<Option<String>> {
        let name = |row: &Row| {
            let name = self.by.get(&(pid, row.program)).cloned().flatten();
            (row.program, name)
        };
        told_apart(&rows.iter().map(name).collect::<Vec<_>>())
    }

    /// Writes the lines of one process: its kernels, copies and bytes, as estimated from samples.
    pub(super) fn text(&mut self, out: &mut Vec<u8>, pid: u32, samples: Samples<'_>) {
        let (sampled, _) = samples;
        let rows = rows(sampled);
        self.ask(
            pid,
            rows.get(..SHOWN.min(rows.len())).unwrap_or_default(),
            samples,
        );
        let (all, read) = sampled.submissions;
        let _ = writeln!(
            out,
            "{:>8} sampled: {read} of {all} submissions decoded{}, the GPU looked at {} times: at work {}",
            "",
            match sampled.unread {
                0 => String::new(),
                n => format!(" ({n} could not be)"),
            },
            sampled.moments.0,
            share(sampled.busy())
        );
        for (what, estimate) in &sampled.sums {
            let word = match what {
                What::Launches => "kernel launches".to_owned(),
                What::Graphs => "graph launches".to_owned(),
                What::Copies(by, path) => {
                    let bytes = sampled.sums.get(&What::CopyBytes(*by, path));
                    let bytes = bytes.copied().unwrap_or_default();
                    let (sum, error) = (Bytes(bytes.total), Bytes(bytes.error()));
                    format!("{path} by {}, {sum} ± {error}", by.word())
                }
                _ => continue,
            };
            let _ = writeln!(out, "{:>10}{} {word}", "", number(estimate));
        }
        if !rows.is_empty() {
            let _ = writeln!(out, "{:>10}{:>20} {:>22}  KERNEL", "", "LAUNCHES", "TIME");
        }
        let named = self.of_rows(pid, &rows);
        for (row, name) in rows.iter().zip(named).take(SHOWN) {
            let name =
                name.unwrap_or_else(|| format!("program {:#x} (no name found)", row.program));
            let _ = writeln!(
                out,
                "{:>10}{} {:>22}  {}",
                "",
                number(&row.launches),
                share(row.time),
                Plain(&name)
            );
        }
        if rows.len() > SHOWN {
            let more = rows.len() - SHOWN;
            let _ = writeln!(out, "{:>10}{:>20} {:>22}  {more} more", "", "", "");
        }
    }

    /// Returns the kernels, copies and bytes of one process, as estimated from samples, as JSON.
    pub(super) fn json(&mut self, pid: u32, samples: Samples<'_>) -> Value {
        let (sampled, _) = samples;
        let rows = rows(sampled);
        self.ask(pid, &rows, samples);
        let kernels: Vec<Value> = rows
            .iter()
            .zip(self.of_rows(pid, &rows))
            .map(|(row, name)| {
                json!({
                    "kernel": name,
                    "program": row.program.0,
                    "launches": estimate_json(&row.launches),
                    "time_share": share_json(row.time),
                })
            })
            .collect();
        let of = |what: What| estimate_json(&sampled.sums.get(&what).copied().unwrap_or_default());
        let copies: Vec<Value> = sampled
            .sums
            .iter()
            .filter_map(|(what, estimate)| {
                let What::Copies(by, path) = *what else {
                    return None;
                };
                let value = json!({
                    "kind": by.word(),
                    "path": path,
                    "operations": estimate_json(estimate),
                    "bytes": of(What::CopyBytes(by, path)),
                });
                Some(value)
            })
            .collect();
        json!({
            "submissions": sampled.submissions.0,
            "decoded": sampled.submissions.1,
            "unread": sampled.unread,
            "lapped": sampled.lapped,
            "early": sampled.early,
            "moments": sampled.moments.0,
            "busy_share": share_json(sampled.busy()),
            "graph_share": share_json(sampled.share(Doing::Graph)),
            "waiting_share": share_json(sampled.share(Doing::Wait)),
            "not_read_share": share_json(sampled.share(Doing::Unread)),
            "kernel_launches": of(What::Launches),
            "graph_launches": of(What::Graphs),
            "pushbuffer_bytes": of(What::PushbufferBytes),
            "copies": copies,
            "kernels": kernels,
        })
    }
}

fn number(estimate: &Estimate) -> String {
    format!("{:>11.0} ± {:<6.0}", estimate.total, estimate.error())
}

fn share(share: Option<Share>) -> String {
    share.map_or("-".to_owned(), |s| {
        let (least, most) = s.interval;
        format!(
            "{:.1} % ({:.1}..{:.1})",
            100.0 * s.share,
            100.0 * least,
            100.0 * most
        )
    })
}

fn estimate_json(estimate: &Estimate) -> Value {
    json!({"estimate": estimate.total, "error_95": estimate.error()})
}

fn share_json(share: Option<Share>) -> Value {
    share.map_or(
        Value::Null,
        |s| json!({"share": s.share, "interval_95": [s.interval.0, s.interval.1]}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::{At, Kernel};

    #[test]
    fn kernels_of_one_short_name_are_told_apart() {
        let name = |program, name: &str| {
            let kernel = Kernel::called(At::default(), program, name);
            (GpuVa(program), Some(kernels::name(&kernel)))
        };
        let programs = [
            name(1, "_Z6kernelILi1EEvPf"),
            name(2, "_Z6kernelILi2EEvPf"),
            name(3, "_Z3addPf"),
            name(4, "vadd"),
            name(5, "vadd"),
            (GpuVa(6), None),
        ];
        let texts = told_apart(&programs);
        let texts: Vec<&str> = texts.iter().map(|t| t.as_deref().unwrap_or("-")).collect();
        let expected = [
            "void kernel<1>(float*)",
            "void kernel<2>(float*)",
            "add",
            "vadd (program 0x4)",
            "vadd (program 0x5)",
            "-",
        ];
        assert_eq!(texts, expected);
    }
}
