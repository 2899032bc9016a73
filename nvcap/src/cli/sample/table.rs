//! Table of `nvcap sample`, and its JSON.

use std::io::Write as _;

use serde_json::{Value, json};

use nvcap_decode::record::Kernel;
use nvcap_decode::samples::{Counter, reason};
use nvcap_decode::wire::GpuVa;
use nvcap_show::output::json::write_line;
use nvcap_show::output::kernel_name::demangled;
use nvcap_show::output::plural::plural;
use nvcap_show::output::style::Plain;
use nvcap_show::samples::{ContextSums, Row, half_interval, rows, share};

/// The most kernels that the table shows one by one.
const MOST: usize = 30;

/// The most program counters outside of known kernels that JSON lists one by one.
const MOST_UNKNOWN: usize = 100;

/// Results of a sampling.
pub(super) struct Found {
    pub(super) name: Option<String>,
    /// Number of the context among those of its process that were sampled, from 1, and their total.
    pub(super) number: (usize, usize),
    pub(super) sums: ContextSums,
    /// Kernels, in the order of addresses.
    pub(super) kernels: Vec<Kernel>,
    /// Kernels whose code was asked for.
    pub(super) code: Vec<Listed>,
}

/// Listing of a kernel.
pub(super) struct Listed {
    pub(super) program: GpuVa,
    pub(super) text: String,
    pub(super) json: Value,
}

/// Returns the number of a context among those of its process, from 1, and their total.
pub(super) fn number(pids: &[u32], i: usize) -> (usize, usize) {
    let own = pids.get(i);
    let of = |pids: &[u32]| pids.iter().filter(|pid| Some(*pid) == own).count();
    (1 + of(pids.get(..i).unwrap_or_default()), of(pids))
}

/// Returns the period in words.
fn period(found: &Found) -> String {
    match found.sums.period {
        Some(period) => format!("one of each SM in 2^{period} cycles"),
        None => "in the period that was learnt".to_owned(),
    }
}

pub(super) fn text(to: &mut Vec<u8>, found: &Found, top: usize) {
    let (rows, unknown) = rows(&found.sums.counters, &found.kernels);
    let all = found.sums.samples();
    let name = found.name.as_deref().unwrap_or("?");
    let _ = writeln!(
        to,
        "process {} ({}){} on {}: {:.2} s, {} of {}, {}",
        found.sums.key.pid,
        Plain(name),
        match found.number {
            (_, ..=1) => String::new(),
            (number, all) => format!(", context {number} of {all}"),
        },
        match found.sums.key.gpu {
            Some(gpu) => format!("GPU {gpu}"),
            None => "a GPU".to_owned(),
        },
        found.sums.ns as f64 / 1e9,
        plural(all, "sample"),
        plural(found.sums.sm_count(), "SM"),
        period(found)
    );
    if all > 0 {
        let _ = writeln!(
            to,
            "{:>18} {:>11} {:>9}  KERNEL",
            "SHARE", "SAMPLES", "NO ISSUE"
        );
    }
    let line = |to: &mut Vec<u8>, counter: &Counter, name: &dyn std::fmt::Display| {
        let part = share(counter.samples, all);
        let _ = writeln!(
            to,
            "{:>8.2} % ±{:>5.2} {:>11} {:>7.1} %  {name}",
            100.0 * part,
            100.0 * half_interval(part, all),
            counter.samples,
            100.0 * share(counter.not_issued, counter.samples),
        );
    };
    for row in rows.iter().take(MOST) {
        line(to, &row.all, &shown(row.kernel));
    }
    let mut others = Counter::default();
    for row in rows.iter().skip(MOST) {
        others.join(&row.all);
    }
    if rows.len() > MOST {
        let count = (rows.len() - MOST) as u64;
        line(to, &others, &format!("({})", plural(count, "other kernel")));
    }
    let mut outside = Counter::default();
    for (_, counter) in &unknown {
        outside.join(counter);
    }
    outside.samples += found.sums.others;
    if outside.samples > 0 {
        line(to, &outside, &"(in no known kernel)");
    }
    let mut hottest: Vec<(&Row<'_>, &(u64, Counter))> = { rows.iter() }
        .flat_map(|row| row.instructions.iter().take(top).map(move |i| (row, i)))
        .collect();
    hottest.sort_by_key(|(_, (pc, counter))| (std::cmp::Reverse(counter.samples), *pc));
    hottest.truncate(top);
    if !hottest.is_empty() {
        let _ = writeln!(
            to,
            "the hottest instructions\n{:>10} {:>12} {:>9} {:>9}  {:<24} KERNEL",
            "SHARE", "OF KERNEL", "NO ISSUE", "OFFSET", "STALL"
        );
    }
    for (row, (pc, counter)) in hottest {
        let _ = writeln!(
            to,
            "{:>8.2} % {:>10.2} % {:>7.1} % {:>+#9x}  {:<24} {}",
            100.0 * share(counter.samples, all),
            100.0 * share(counter.samples, row.all.samples),
            100.0 * share(counter.not_issued, counter.samples),
            pc - row.kernel.program.0,
            stall(counter),
            shown(row.kernel)
        );
    }
    for code in &found.code {
        let _ = writeln!(to, "{}", code.text);
    }
    let _ = writeln!(to, "{}", verdict(found));
}

/// Returns the process with its samples, and the verdict, on one line.
pub(super) fn summary(found: &Found) -> String {
    let name = found.name.as_deref().unwrap_or("?");
    format!(
        "process {} ({}): {}, {}",
        found.sums.key.pid,
        Plain(name),
        plural(found.sums.samples(), "sample"),
        verdict(found)
    )
}

/// Returns the most frequent stall reason at an instruction, with its share of the samples there.
pub(super) fn stall(counter: &Counter) -> String {
    let reasons = (0u8..).zip(counter.reasons);
    let Some((number, samples)) = reasons.max_by_key(|(_, samples)| *samples) else {
        return String::new();
    };
    let name = reason(number).map_or_else(|| format!("raw {number}"), str::to_owned);
    format!(
        "{name} {:.0} %",
        100.0 * share(samples.into(), counter.samples)
    )
}

/// Returns a kernel's name on one line.
fn shown(kernel: &Kernel) -> String {
    let name = demangled(&kernel.name);
    let doubt = if kernel.certain { "" } else { " (?)" };
    format!("{}{doubt}", Plain(&name))
}

/// Returns the verdict, which says whether the result is complete.
fn verdict(found: &Found) -> String {
    let sums = &found.sums;
    let mut parts = Vec::new();
    if sums.overflows > 0 {
        let times = plural(sums.overflows, "reading");
        parts.push(format!(
            "samples were lost: at {times} the buffer was full; a longer --period loses none"
        ));
    }
    if sums.cut_bytes > 0 {
        parts.push(format!(
            "{} of samples that are not whole",
            plural(sums.cut_bytes, "byte")
        ));
    }
    if sums.strange_bytes > 0 {
        parts.push(format!(
            "{} of the stream not understood",
            plural(sums.strange_bytes, "byte")
        ));
    }
    let ended = match sums.ended {
        true => "; the process ended meanwhile",
        false => "",
    };
    match parts.is_empty() {
        true => format!(
            "complete: all {} of the stream are understood, none was lost{ended}",
            plural(sums.bytes, "byte")
        ),
        false => format!("not complete: {}{ended}", parts.join("; ")),
    }
}

/// Returns the samples by stall reason, in JSON.
pub(super) fn reasons(counter: &Counter) -> Value {
    let reasons = counter.reasons.iter().enumerate();
    let reasons = reasons.filter(|(_, samples)| **samples > 0);
    reasons
        .map(|(raw, samples)| {
            let name = u8::try_from(raw).ok().and_then(reason);
            json!({"raw": raw, "name": name, "samples": samples})
        })
        .collect()
}

pub(super) fn json(to: &mut Vec<u8>, found: &Found, top: usize) {
    let sums = &found.sums;
    let (rows, unknown) = rows(&sums.counters, &found.kernels);
    let all = sums.samples();
    let counter = |counter: &Counter| {
        json!({
            "samples": counter.samples,
            "share": share(counter.samples, all),
            "not_issued": counter.not_issued,
            "stall_reasons": reasons(counter),
        })
    };
    let kernels: Vec<Value> = { rows.iter() }
        .map(|row| {
            let kernel = row.kernel;
            let mut object = counter(&row.all);
            object["kernel"] = json!(demangled(&kernel.name));
            object["mangled"] = json!(kernel.name);
            object["program"] = json!(kernel.program.0);
            object["bytes"] = json!(kernel.bytes);
            object["certain"] = json!(kernel.certain);
            let part = share(row.all.samples, all);
            object["share_half_interval"] = json!(half_interval(part, all));
            let instructions = row.instructions.iter().take(top);
            let instructions = instructions.map(|(pc, c)| {
                let mut object = counter(c);
                object["offset"] = json!(pc - kernel.program.0);
                object
            });
            object["instructions"] = instructions.collect();
            let code = found
                .code
                .iter()
                .find(|code| code.program == kernel.program);
            if let Some(code) = code {
                object["code"] = code.json.clone();
            }
            object
        })
        .collect();
    let outside = unknown.iter().map(|(_, c)| c.samples).sum::<u64>() + sums.others;
    let counters = unknown.iter().take(MOST_UNKNOWN);
    let counters: Vec<Value> = counters
        .map(|(pc, c)| {
            let mut object = counter(c);
            object["pc"] = json!(pc);
            object
        })
        .collect();
    let object = json!({
        "type": "sample",
        "pid": sums.key.pid,
        "comm": found.name,
        "gpu": sums.key.gpu,
        "client": sums.key.client,
        "channel_group": sums.key.group,
        "seconds": sums.ns as f64 / 1e9,
        "period_log2_cycles": sums.period,
        "samples": all,
        "sms": sums.sm_count(),
        "kernels": kernels,
        "unknown": {"samples": outside, "share": share(outside, all), "counters": counters},
        "ended": sums.ended,
        "complete": !sums.lost() && sums.strange_bytes == 0,
        "overflows": sums.overflows,
        "stream_bytes": sums.bytes,
        "cut_bytes": sums.cut_bytes,
        "strange_bytes": sums.strange_bytes,
    });
    write_line(to, &object);
}
