//! Rules that hold for every run: no panic, no harm to the target, bounded memory, and no incomplete trace called complete.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitStatus;

use anyhow::{Context, Result, bail, ensure};
use compare::read::{Item, Reader};
use softgpu::plan::checksum;

use crate::run::Ended;

/// The most memory that nvcap may use at once, bytes: its ring buffer of 64 MiB, the BPF programs' tables, data being read;
/// records that wait to be decoded (256 MiB, `source::run::QUEUE`) and to be put in order (64 MiB), and the same again for
/// what the allocator keeps.
pub const MEMORY: u64 = 800 << 20;

/// Entries and the sum of their checksums, by token.
pub type Counts = BTreeMap<u32, (u64, u64)>;

/// Sums up entries and their checksums without the tokens, for a trace that does not know them.
pub fn together(counts: &Counts) -> Counts {
    let mut all = Counts::new();
    for (entries, sum) in counts.values() {
        let count = all.entry(0).or_default();
        *count = (count.0 + entries, count.1.wrapping_add(*sum));
    }
    all
}

/// The counts that the target printed: the sum over its program images.
pub fn truth(out: &[u8]) -> Result<Counts> {
    let mut counts = Counts::new();
    for line in String::from_utf8_lossy(out).lines() {
        let Some(words) = line.strip_prefix("truth ") else {
            continue;
        };
        let field = |name: &str| {
            let word = words.split(' ').find_map(|w| w.strip_prefix(name));
            word.with_context(|| format!("no {name} in {line:?}"))
        };
        let sum = u64::from_str_radix(field("sum=0x")?, 16)?;
        let count = counts.entry(field("token=")?.parse()?).or_default();
        count.0 += field("entries=")?.parse::<u64>()?;
        count.1 = count.1.wrapping_add(sum);
    }
    counts.retain(|_, count| count.0 > 0);
    Ok(counts)
}

/// A trace's entries and its ledger.
pub struct Trace {
    pub counts: Counts,
    pub unread: u64,
    pub ledger: serde_json::Value,
}

/// Reads a trace; entries without a token count for token 0, which no channel has.
pub fn read(trace: &Path) -> Result<Trace> {
    let mut reader = Reader::new(BufReader::new(File::open(trace)?), false);
    let (mut counts, mut unread) = (Counts::new(), 0);
    while let Some(item) = reader.next_item()? {
        match item {
            Item::Entry(e) => {
                let token = e.key.token.unwrap_or(0);
                let count = counts.entry(token).or_default();
                count.0 += 1;
                let sum = checksum(0, e.raw, &e.data);
                count.1 = count.1.wrapping_add(sum);
                unread += e.missing;
            }
            Item::Ledger(ledger) => {
                return Ok(Trace {
                    counts,
                    unread,
                    ledger,
                });
            }
            _ => {}
        }
    }
    bail!("the trace has no ledger")
}

/// nvcap ended in an orderly way.
pub fn orderly(nvcap: &Ended) -> Result<i32> {
    let code = nvcap
        .status
        .code()
        .with_context(|| format!("nvcap: {}\n{}", nvcap.status, nvcap.err))?;
    ensure!(
        code != 101 && !nvcap.err.contains("panicked"),
        "nvcap panicked: {}",
        nvcap.err
    );
    ensure!(
        [0, 1, 3, 5, 6].contains(&code),
        "nvcap's status is {code}: {}",
        nvcap.err
    );
    let peak = nvcap.peak >> 20;
    ensure!(nvcap.peak <= MEMORY, "nvcap had {peak} MiB");
    Ok(code)
}

/// The target ended and printed the same as untraced.
pub fn unharmed(untraced: &Ended, out: &[u8], status: ExitStatus) -> Result<()> {
    ensure!(
        status == untraced.status,
        "the target ended with {status}, untraced with {}",
        untraced.status
    );
    ensure!(
        out == untraced.out,
        "the target said\n{}\nand untraced\n{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(&untraced.out)
    );
    Ok(())
}

/// Compares a trace with the counts: a complete trace has all entries, and one that lacks some is not called complete.
pub fn honest(code: i32, trace: &Trace, truth: Option<&Counts>) -> Result<()> {
    let verdict = trace.ledger["verdict"].as_str().unwrap_or_default();
    let complete = trace.ledger["complete"] == true;
    ensure!(
        complete == [0, 5, 6].contains(&code),
        "status {code}, but {verdict:?}"
    );
    let entries: u64 = trace.counts.values().map(|c| c.0).sum();
    ensure!(
        trace.ledger["entries"] == entries,
        "{entries} entries in the trace, {} in its ledger",
        trace.ledger["entries"]
    );
    ensure!(
        !complete || trace.unread == 0,
        "{} bytes unread, {verdict:?}",
        trace.unread
    );
    let Some(truth) = truth else { return Ok(()) };
    if complete {
        ensure!(
            trace.counts == *truth,
            "{verdict:?}, but the trace has {:x?} of {truth:x?}",
            trace.counts
        );
    }
    for (token, (entries, _)) in &trace.counts {
        let most = truth.get(token).map_or(0, |t| t.0);
        ensure!(
            *entries <= most,
            "{entries} entries of token {token}, of which there were {most}"
        );
    }
    Ok(())
}
