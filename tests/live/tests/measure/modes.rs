//! `--count` and `--duty` at full speed: how soon, and how near to the truth.

use anyhow::Result;
use live::measure::Figure;

use crate::runs::traced;

/// Doorbells counted, beside all.
pub fn count() -> Result<Vec<Figure>> {
    let program = ["--gpus=1", "--threads=4", "--submissions=40000"];
    let traced = traced(&["--how=trap", "--count"], &program)?;
    let channels = traced.ledger["channels"].as_array().into_iter().flatten();
    let counted: u64 = channels
        .filter_map(|c| c["doorbells_counted"].as_u64())
        .sum();
    let counted = counted as f64;
    Ok(vec![
        Figure::new("doorbells counted", counted, "").beside(40_000.0),
    ])
}

/// The share of the time watched, beside what was asked for; and the sum of entries beside the truth.
pub fn duty() -> Result<Vec<Figure>> {
    let program = [
        "--gpus=1",
        "--threads=4",
        "--submissions=40000",
        "--sleep-us=100",
    ];
    let traced = traced(&["--how=trap", "--duty=20%"], &program)?;
    let of = |name: &str| traced.number(&["trapped", "duty", name]);
    let all = of("all_ns").max(1.0);
    let (entries, bytes) = (of("entries"), &["trapped", "duty", "bytes"]);
    let estimate = |name| traced.number(&[&bytes[..], &[name]].concat());
    let (about, margin) = (estimate("about"), estimate("margin"));
    Ok(vec![
        Figure::new("share of the time watched", of("watched_ns") / all, "").beside(0.2),
        Figure::new("entries", entries, "").beside(40_000.0),
        Figure::new("margin of the sum of bytes, beside the sum", margin, "B").beside(about),
    ])
}
