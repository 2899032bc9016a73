//! Measurements of nvcap on the running kernel: rates, coverage at full speed, processor time, latency. They judge nothing: each figure is
//! printed and written down beside its baseline of the same run, and no figure fails a run.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::harness::NotRun;

/// The environment variable with the file that the figures are written to, a JSON object a line.
pub const FILE: &str = "NVCAP_MEASURE_FILE";

/// One figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The thing measured, in words.
    pub what: String,
    /// Its value.
    pub value: f64,
    /// The unit of value and baseline; "" for a share or a ratio.
    pub unit: &'static str,
    /// Value of what it is compared with, in the same run.
    pub baseline: Option<f64>,
}

impl Figure {
    /// A figure that is compared with nothing.
    pub fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Figure {
            what: what.into(),
            value,
            unit,
            baseline: None,
        }
    }

    /// Puts the figure beside its baseline.
    pub fn beside(mut self, baseline: f64) -> Self {
        self.baseline = Some(baseline);
        self
    }
}

/// One measurement: a name and what measures.
pub struct Measurement {
    name: &'static str,
    run: fn() -> Result<Vec<Figure>>,
}

impl Measurement {
    /// A measurement of this name, `group::what`.
    pub fn new(name: &'static str, run: fn() -> Result<Vec<Figure>>) -> Self {
        Measurement { name, run }
    }
}

/// Runs the measurements whose names contain one of the arguments, all of them without arguments. Fails where one could not be made, never because
/// of a figure.
pub fn main(all: &[Measurement]) -> ExitCode {
    let names: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let chosen = all
        .iter()
        .filter(|m| names.is_empty() || names.iter().any(|n| m.name.contains(n.as_str())));
    let mut failed = false;
    for measurement in chosen {
        let taken = (measurement.run)().and_then(|figures| show(measurement.name, &figures));
        match taken {
            Ok(()) => {}
            Err(e) if e.is::<NotRun>() => println!("NOT RUN {}: {e}", measurement.name),
            Err(e) => {
                failed = true;
                println!("{}: not measured: {e:#}", measurement.name);
            }
        }
    }
    match failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

fn show(name: &str, figures: &[Figure]) -> Result<()> {
    let mut lines = String::new();
    for figure in figures {
        let ratio = figure.baseline.map(|b| figure.value / b);
        let beside = figure
            .baseline
            .zip(ratio)
            .map_or_else(String::new, |(b, r)| {
                format!("   baseline {b:.4} {}, ratio {r:.3}", figure.unit)
            });
        println!(
            "{name}: {}: {:.4} {}{beside}",
            figure.what, figure.value, figure.unit
        );
        let line = serde_json::json!({
            "measurement": name,
            "what": figure.what,
            "value": figure.value,
            "unit": figure.unit,
            "baseline": figure.baseline,
            "ratio": ratio,
        });
        lines.push_str(&format!("{line}\n"));
    }
    if let Some(path) = std::env::var_os(FILE) {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| path.display().to_string())?;
        file.write_all(lines.as_bytes())?;
    }
    Ok(())
}
