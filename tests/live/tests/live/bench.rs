//! `nvcap bench` traced by nvcap: the one program whose every byte is known.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::programs::{Folder, Running, nvcap, softgpu};

use crate::setup::{LIMIT, need_tracing};

/// Ring entries with their pushbuffers, by token, in order.
type Entries = BTreeMap<u64, Vec<(String, String)>>;

/// The trace is what the GPU executed, byte for byte.
pub fn byte_for_byte() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let (channels, truth, trace) = (
        folder.file("channels.txt"),
        folder.file("truth.txt"),
        folder.file("trace.json"),
    );
    let describe: [OsString; 3] = [
        "--nvcap-bench".into(),
        "--describe".into(),
        channels.clone().into(),
    ];
    Running::start(&softgpu()?, describe)?
        .end(LIMIT)?
        .expect_code(0)?;
    let command: [OsString; 13] = [
        "--json".into(),
        "-vv".into(),
        "-o".into(),
        trace.clone().into(),
        "-e".into(),
        "type=submission,entry".into(),
        "--channels".into(),
        channels.into(),
        "--".into(),
        softgpu()?.into(),
        "--nvcap-bench".into(),
        "--nvcap-bench-truth".into(),
        truth.clone().into(),
    ];
    let ended = Running::start(&nvcap()?, command)?.end(LIMIT)?;
    ended.expect_code(0)?;
    ensure!(ended.stdout.contains("empty kernel"), "{}", ended.stdout);
    let executed = executed(&truth)?;
    ensure!(executed.len() == 3, "{} channels", executed.len());
    let traced = traced(&trace)?;
    for (token, executed) in &executed {
        let traced = traced.get(token).map_or(&[][..], Vec::as_slice);
        let differs = executed.iter().zip(traced).position(|(a, b)| a != b);
        ensure!(
            executed.len() == traced.len() && differs.is_none(),
            "token {token:#x}: {} entries executed, {} traced, the first that differs is {differs:?}",
            executed.len(),
            traced.len()
        );
    }
    Ok(())
}

/// A loaded driver, whose GPU may be a stand-in, takes all of it: few and small sizes, and nothing is said of times.
pub fn on_the_device() -> Result<()> {
    if !Path::new("/dev/nvidiactl").exists() {
        return not_run("no NVIDIA driver is loaded (/dev/nvidiactl)");
    }
    let folder = Folder::new()?;
    let truth = folder.file("truth.txt");
    let bench = ["bench", "--sizes=4,4K,64K", "--passes=1", "--warm-up=1"];
    let mut command = Vec::from(bench.map(OsString::from));
    command.extend(["--submissions".into(), truth.clone().into()]);
    let ended = Running::start(&nvcap()?, command)?.end(LIMIT)?;
    ended.expect_code(0)?;
    for measured in ["empty kernel", "inline", "H2D", "D2H", "D2D"] {
        ensure!(ended.stdout.contains(measured), "{}", ended.stdout);
    }
    let submitted = executed(&truth)?;
    ensure!(submitted.len() > 1, "{} channels", submitted.len());
    Ok(())
}

/// Reads the executed entries from a file with a line for each submission.
fn executed(path: &Path) -> Result<Entries> {
    let mut entries = Entries::new();
    for line in std::fs::read_to_string(path)?.lines() {
        let mut words = line.split(' ');
        let mut word = || words.next().context("a line of three words");
        let (token, entry, bytes) = (word()?, word()?, word()?);
        let token = u64::from_str_radix(token, 16)?;
        let entry = (format!("0x{entry}"), bytes.to_owned());
        entries.entry(token).or_default().push(entry);
    }
    Ok(entries)
}

/// Reads the entries that nvcap saw.
fn traced(path: &Path) -> Result<Entries> {
    let mut entries = Entries::new();
    for line in std::fs::read_to_string(path)?.lines() {
        let object: serde_json::Value = serde_json::from_str(line)?;
        if object["type"] != "entry" {
            continue;
        }
        let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
        let token = object["token"].as_u64().context("an entry's token")?;
        let entry = (text("raw"), text("data"));
        entries.entry(token).or_default().push(entry);
    }
    Ok(entries)
}
