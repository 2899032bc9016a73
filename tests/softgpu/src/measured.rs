//! `nvcap bench` with the driver and the GPU of [`rm`](crate::rm): the same code as on a real GPU, in memory.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nvcap_decode::driver::Version;
use nvcap_lab::bench::{Measured, Options, measure, report::text};

use crate::rm::{Rm, RmView};

/// Sizes of transfers: within a word, a page, more than one header holds.
const SIZES: [u64; 4] = [4, 1000, 4096, 65_536];

/// One run at a time: its memory lies at fixed addresses of the process.
static ONE: Mutex<()> = Mutex::new(());

fn run(driver: Option<Version>, keep: bool, passes: usize) -> Result<(Measured, RmView)> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (rm, view) = Rm::new(driver, keep);
    let options = Options {
        minor: 0,
        driver,
        sizes: SIZES.to_vec(),
        passes,
        warm_up: Duration::from_millis(5),
        keep,
    };
    let measured = measure(Rc::new(rm), &options, &|_| {})?;
    Ok((measured, view))
}

/// Writes the channels file of such a run.
pub fn describe(path: &Path) -> Result<()> {
    let (_, view) = run(None, false, 1)?;
    let text = view.channels_file();
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Measures, and returns the tables. Each executed submission goes to `truth`, a line each: token, ring entry and pushbuffer,
/// hexadecimal.
pub fn bench(truth: Option<&Path>) -> Result<String> {
    let (measured, view) = run(None, truth.is_some(), 1)?;
    if let Some(path) = truth {
        let mut lines = String::new();
        for one in view.executed() {
            let _ = write!(lines, "{:x} {:016x} ", one.token, one.entry);
            one.bytes.iter().for_each(|byte| {
                let _ = write!(lines, "{byte:02x}");
            });
            lines.push('\n');
        }
        fs::write(path, lines).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(text(&measured))
}

#[cfg(test)]
mod tests {
    use nvcap_decode::decode::{Decoded, pushbuffer};
    use nvcap_lab::bench::{CopyEngine, copy_engines};

    use super::*;

    #[test]
    fn physical_copy_engines_are_told() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        for driver in [None, Some("515.43.04".parse::<Version>().unwrap())] {
            let (rm, _) = Rm::new(driver, false);
            let engine = |engine: &str, physical: &[u32]| CopyEngine {
                engine: engine.to_owned(),
                physical: physical.to_vec(),
            };
            assert_eq!(
                copy_engines(Rc::new(rm), driver, 0).unwrap(),
                [engine("COPY0", &[4]), engine("COPY2", &[4, 6])]
            );
        }
    }

    #[test]
    fn everything_is_measured() {
        // The second pass has a client of its own.
        let (measured, view) = run(None, true, 2).unwrap();
        assert!(measured.notes.is_empty(), "{:?}", measured.notes);
        // Inline data, and two copy engines in three ways.
        assert_eq!(measured.transfers.len(), 7);
        assert_eq!(measured.latencies.len(), 8);
        for series in &measured.transfers {
            let sizes: Vec<u64> = series.points.iter().map(|p| p.bytes).collect();
            assert_eq!(sizes, SIZES);
        }
        let executed = view.executed();
        assert!(executed.len() > 1000);
        assert_eq!(measured.submissions.len(), executed.len());
        for (submitted, executed) in measured.submissions.iter().zip(&executed) {
            let bytes: Vec<u8> = submitted
                .words
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect();
            assert_eq!(
                (submitted.token, submitted.entry),
                (executed.token, executed.entry)
            );
            assert_eq!(bytes, executed.bytes);
        }
    }

    /// The driver here refuses an argument that has not the release's size, as the real one does.
    #[test]
    fn structures_are_those_of_the_release() {
        for release in [
            "515.43.04",
            "520.61.07",
            "525.47.04",
            "535.43.02",
            "535.288.01",
            "545.29.06",
            "550.163.01",
            "560.35.03",
            "570.211.01",
            "575.64.05",
            "580.159.04",
            "595.45.04",
        ] {
            let driver = Some(release.parse().unwrap());
            let (measured, _) = run(driver, false, 1).unwrap_or_else(|e| panic!("{release}: {e}"));
            assert!(measured.notes.is_empty(), "{release}: {:?}", measured.notes);
            assert_eq!(measured.transfers.len(), 7, "{release}");
        }
    }

    /// Submissions are decoded by nvcap to what they are.
    #[test]
    fn submissions_are_decoded() {
        let (_, view) = run(None, true, 1).unwrap();
        let mut counts = std::collections::BTreeMap::<String, usize>::new();
        for one in view.executed() {
            let class = if one.token == 0xa { 0xcbc0 } else { 0xc8b5 };
            for decoded in pushbuffer(&one.bytes, class) {
                match decoded {
                    Decoded::Method(write) => {
                        *counts.entry(write.id().to_string()).or_default() += 1;
                    }
                    Decoded::Operation(_) => {}
                    other => panic!("{other:?} of {one:?}"),
                }
            }
        }
        // Of each engine in each way: 4 sizes, 21 runs and 2 before them; and the copies that warm up.
        let copies = 2 * 3 * 4 * 23;
        let count = |name: &str| counts.get(name).copied().unwrap_or(0);
        assert!(count("LINE_LENGTH_IN") >= copies, "{counts:?}");
        let words = count("LOAD_INLINE_DATA");
        // Each size is submitted once to begin with, then 23 times; and the kernel's program and QMD.
        let kernel = (64 * 16 + 384) / 4;
        assert_eq!(words, 24 * (1 + 250 + 1024 + 16_384) + kernel, "{counts:?}");
        assert_eq!(count("SEND_PCAS_A"), 503, "{counts:?}");
        assert!(
            !counts.keys().any(|name| name.starts_with("0x")),
            "{counts:?}"
        );
    }

    #[test]
    fn addresses_are_the_same_in_each_run() {
        let channels = || run(None, false, 1).unwrap().1.channels_file();
        let one = channels();
        assert_eq!(one, channels());
        assert_eq!(
            one.lines().filter(|l| l.starts_with("channel ")).count(),
            3,
            "{one}"
        );
        assert_eq!(
            one.lines().filter(|l| l.starts_with("doorbell ")).count(),
            1,
            "{one}"
        );
    }
}
