//! Sums of a profiler's file, as `nvcap time` shows them: kernels and copies by the time that they took, and how busy each GPU was. Why a GPU was idle is not in such
//! a file.

use serde_json::{Value, json};

use super::about::About;
use super::sums::{Busy, Row, Sums};
use crate::output::gpu_time::Durations;
use crate::output::style::{Formatter, Plain, Role};
use crate::output::units::Nanoseconds;

/// The most rows of a table in text.
const SHOWN: usize = 20;
/// Least part of the time that is told, per cent.
const TOLD: f64 = 5.0;

fn share(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

fn gpu_name(gpu: Option<u32>) -> String {
    gpu.map_or_else(
        || "a GPU that is not told".to_owned(),
        |gpu| format!("GPU {gpu}"),
    )
}

/// Writer of lines, each with its role.
type Write<'a> = &'a mut dyn FnMut(Option<Role>, &str);

/// Writes the tables. `width`: columns of the terminal, where there is one.
pub fn text(out: &mut Vec<u8>, color: bool, width: Option<usize>, sums: &mut Sums, about: &About) {
    let mut f = Formatter::new(out, color);
    let mut line = |role: Option<Role>, text: &str| {
        f.line("", 0, role);
        f.text(format_args!("{}", Plain(text)));
        f.end();
    };
    let busy = sums.busy();
    match &busy {
        Some(busy) => busy.iter().for_each(|(gpu, of)| {
            line(Some(Role::Operation), &sentence(*gpu, of));
        }),
        None => line(
            Some(Role::Alarm),
            "there are too many works to tell how busy each GPU was",
        ),
    }
    let mut f = Formatter::new(out, color).fitted(width);
    let mut row = |role: Option<Role>, text: &str| {
        f.line("", 0, role);
        f.text(format_args!("{}", Plain(text)));
        f.end();
    };
    kernels(&mut row, sums);
    copies(&mut row, sums);
    for (gpu, of) in busy.iter().flatten().filter(|(_, of)| !of.gaps.is_empty()) {
        row(None, "");
        let head = format!(
            "{:>12} {:>8}  longest gaps of {}",
            "at s",
            "gap",
            gpu_name(*gpu)
        );
        row(Some(Role::Operation), &head);
        for (at, ns) in &of.gaps {
            let us = at / 1000;
            let at = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
            row(
                None,
                &format!("{at:>12} {:>8}", Nanoseconds(*ns).to_string()),
            );
        }
    }
    let mut f = Formatter::new(out, color);
    for text in [String::new(), about.says()] {
        let role = about.cut.as_ref().map(|_| Role::Alarm);
        f.line("", 0, role);
        f.text(format_args!("{}", Plain(&text)));
        f.end();
    }
}

/// The sentence on a GPU's time.
fn sentence(gpu: Option<u32>, of: &Busy) -> String {
    let mut text = format!(
        "{}: work ran in {:.1} % of {}",
        gpu_name(gpu),
        share(of.busy_ns, of.span_ns),
        Nanoseconds(of.span_ns)
    );
    if share(of.copies_alone_ns, of.span_ns) >= TOLD {
        text += &format!(
            "; in {:.1} % copies alone ran",
            share(of.copies_alone_ns, of.span_ns)
        );
    }
    text
}

/// A time of these durations; `?` where there are none.
fn timed(of: &Durations, time: impl Fn(&Durations) -> u64) -> String {
    let known = of.known(());
    known.map_or_else(|| "?".to_owned(), |()| Nanoseconds(time(of)).to_string())
}

fn kernels(line: Write<'_>, sums: &Sums) {
    let rows = sums.rows(false);
    let all = rows.iter().map(|row| row.durations.sum_ns);
    let all = all.fold(0, u64::saturating_add);
    if rows.is_empty() {
        return;
    }
    line(None, "");
    let head = format!(
        "{:>5} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7}  kernel",
        "time%", "total", "count", "mean", "median", "least", "most"
    );
    line(Some(Role::Operation), &head);
    for row in rows.iter().take(SHOWN) {
        let of = &row.durations;
        let text = format!(
            "{:>5.1} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7}  {}",
            share(of.sum_ns, all),
            timed(of, |of| of.sum_ns),
            row.count,
            timed(of, Durations::mean_ns),
            timed(of, |of| of.quantile_ns(0.5)),
            timed(of, |of| of.least_ns),
            timed(of, |of| of.most_ns),
            row.text
        );
        line(None, &text);
    }
    if let Some(more) = rows.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        line(None, &format!("{:>5} {more} more (--json has all)", ""));
    }
    if rows.len() > 1 {
        let text = format!("{:>5} {:>8}  all kernels", "", Nanoseconds(all).to_string());
        line(Some(Role::Operation), &text);
    }
}

fn copies(line: Write<'_>, sums: &Sums) {
    let rows = sums.rows(true);
    if rows.is_empty() {
        return;
    }
    line(None, "");
    let head = format!(
        "{:>8} {:>7} {:>7} {:>15} {:>7}  copies",
        "total", "count", "mean", "bytes", "GB/s"
    );
    line(Some(Role::Operation), &head);
    for row in rows {
        let of = &row.durations;
        let rate = of.known(format!("{:.2}", rate(row)));
        let text = format!(
            "{:>8} {:>7} {:>7} {:>15} {:>7}  {}",
            timed(of, |of| of.sum_ns),
            row.count,
            timed(of, Durations::mean_ns),
            row.bytes,
            rate.unwrap_or_else(|| "?".to_owned()),
            row.text
        );
        line(None, &text);
    }
}

fn rate(row: &Row) -> f64 {
    row.bytes as f64 / row.durations.sum_ns.max(1) as f64
}

fn durations(of: &Durations) -> Value {
    json!({
        "timed": of.count, "total_ns": of.known(of.sum_ns), "mean_ns": of.known(of.mean_ns()), "least_ns": of.known(of.least_ns),
        "most_ns": of.known(of.most_ns), "p50_ns": of.known(of.quantile_ns(0.5)), "p90_ns": of.known(of.quantile_ns(0.9)),
        "p99_ns": of.known(of.quantile_ns(0.99)),
    })
}

/// Members of JSON that say what a file is.
pub(super) fn file(name: &str, about: &About) -> Value {
    let own = about.own.as_ref();
    json!({
        "file": name, "format": about.format.name(), "rank": about.rank, "world_size": about.world_size, "cut": about.cut,
        "verdict": own.and_then(|own| own.verdict.as_deref()), "untimed": own.map(|own| own.untimed),
    })
}

/// The object of type `profile`.
pub fn object(name: &str, sums: &mut Sums, about: &About) -> Value {
    let busy = sums.busy();
    let kernels = sums.rows(false).into_iter();
    let kernels = kernels.map(
        |row| json!({"kernel": row.text, "count": row.count, "gpu": durations(&row.durations)}),
    );
    let copies = sums.rows(true).into_iter().map(|row| {
        let of = &row.durations;
        json!({
            "copies": row.text, "count": row.count, "bytes": row.bytes, "gb_per_s": of.known(rate(row)), "gpu": durations(of),
        })
    });
    let gpus = busy.map(|all| {
        let all = all.into_iter().map(|(gpu, of)| {
            let gaps = of.gaps.iter().map(|(at, ns)| json!({"at_ns": at, "ns": ns}));
            let name = gpu.and_then(|gpu| about.gpus.get(&gpu));
            json!({
                "gpu": gpu, "name": name, "span_ns": of.span_ns, "busy_ns": of.busy_ns, "copies_alone_ns": of.copies_alone_ns,
                "gaps": gaps.collect::<Value>(),
            })
        });
        all.collect::<Value>()
    });
    json!({
        "type": "profile", "time_ns": null, "pid": null, "tid": null, "token": null, "of": file(name, about),
        "kernels": kernels.collect::<Value>(), "copies": copies.collect::<Value>(), "gpus": gpus,
    })
}
