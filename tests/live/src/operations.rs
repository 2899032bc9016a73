//! Compares decoded operations with the operations that the software GPU encoded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use softgpu::plan::Plan;
use softgpu::stream::Op;

/// Shared memory of a block that the system reserves on Hopper.
const RESERVED: u64 = 1024;

fn number(object: &Value, name: &str) -> Result<u64> {
    object[name]
        .as_u64()
        .with_context(|| format!("no number `{name}` in {object}"))
}

fn triple(object: &Value, name: &str) -> Result<[u32; 3]> {
    serde_json::from_value(object[name].clone())
        .with_context(|| format!("no array of three `{name}` in {object}"))
}

/// Compares one decoded operation with its original.
fn check(want: &Op, got: &Value) -> Result<()> {
    match want {
        Op::Launch { qmd, fields, args } => {
            ensure!(got["op"] == "launch", "not a launch: {got}");
            ensure!(number(got, "qmd")? == *qmd, "qmd {:#x}", qmd);
            ensure!(
                triple(got, "grid")? == fields.grid,
                "grid {:?}",
                fields.grid
            );
            ensure!(
                triple(got, "block")? == fields.block,
                "block {:?}",
                fields.block
            );
            ensure!(
                number(got, "registers")? == u64::from(fields.registers),
                "registers {}",
                fields.registers
            );
            let shared = [
                number(got, "shared_bytes")?,
                number(got, "shared_reserved_bytes")?,
            ];
            ensure!(
                shared == [u64::from(fields.shared_bytes) - RESERVED, RESERVED],
                "shared {} of which {RESERVED} are the system's, not {shared:?}",
                fields.shared_bytes
            );
            ensure!(
                number(got, "program")? == fields.program.0,
                "program {:#x}",
                fields.program
            );
            let hex: String = args.iter().map(|b| format!("{b:02x}")).collect();
            let got = got["args"].as_str().context("no `args`")?;
            ensure!(got.starts_with(&hex), "args {hex}, not {got}");
        }
        Op::Copy {
            src,
            dst,
            bytes,
            lines,
        } => {
            ensure!(got["op"] == "copy", "not a copy: {got}");
            ensure!(
                number(got, "src")? == *src && number(got, "dst")? == *dst,
                "{src:#x} to {dst:#x}"
            );
            ensure!(
                number(got, "bytes")? == u64::from(*bytes) * u64::from(*lines),
                "{lines} lines of {bytes} bytes"
            );
            ensure!(number(got, "lines")? == u64::from(*lines), "{lines} lines");
        }
        Op::Fill {
            dst,
            pattern,
            words,
        } => {
            ensure!(
                got["op"] == "copy" && got["mode"] == "fill",
                "not a fill: {got}"
            );
            ensure!(number(got, "dst")? == *dst, "to {dst:#x}");
            ensure!(
                number(got, "bytes")? == u64::from(*words) * 4,
                "{words} words"
            );
            ensure!(got["pattern"][0] == *pattern, "pattern {pattern:#x}");
        }
        Op::Release { address, payload } => {
            // A copy class's release may be shown as a copy of nothing with a semaphore.
            let at = if got["op"] == "copy" {
                &got["semaphore"]
            } else {
                got
            };
            ensure!(
                got["op"] == "copy" || got["action"] == "release",
                "not a release: {got}"
            );
            ensure!(number(at, "address")? == *address, "address {address:#x}");
            ensure!(
                number(at, "payload")? == u64::from(*payload),
                "payload {payload}"
            );
        }
        Op::Acquire { address, payload } => {
            ensure!(
                got["op"] == "semaphore" && got["action"] == "acquire_greater_equal",
                "not a wait: {got}"
            );
            ensure!(number(got, "address")? == *address, "address {address:#x}");
            ensure!(
                number(got, "payload")? == u64::from(*payload),
                "payload {payload}"
            );
        }
        Op::Inline { .. } => bail!("inline writes are compared apart"),
    }
    Ok(())
}

/// Every launch, copy, fill, release and wait of the plan must be in the trace, in its channel's order, and no other; every
/// inline write of data or code must be there in order (the trace also has those of banks and QMDs). The first `before`
/// submissions of each channel are left out: nvcap attached after them.
pub fn verify(path: &Path, plan: &Plan, before: u64) -> Result<()> {
    let file = File::open(path).with_context(|| format!("no trace at {}", path.display()))?;
    let mut got: BTreeMap<(u64, u64), Vec<Value>> = BTreeMap::new();
    for line in BufReader::new(file).lines() {
        let value: Value = serde_json::from_str(&line?)?;
        if value["type"] == "operation" {
            let key = (number(&value, "gpu")?, number(&value, "token")?);
            got.entry(key).or_default().push(value);
        }
    }
    let mut compared = 0;
    for (i, channel) in plan.channels.iter().enumerate() {
        let key = (channel.gpu as u64, u64::from(channel.token()));
        let all = got
            .remove(&key)
            .with_context(|| format!("no operations of channel {:#x}", channel.token()))?;
        let of_interest =
            |v: &&Value| matches!(v["op"].as_str(), Some("launch" | "copy" | "semaphore"));
        let mut others = all.iter().filter(of_interest);
        let mut inlines = all.iter().filter(|v| v["op"] == "inline");
        for s in plan.stream(i).skip(before as usize) {
            for want in &s.ops {
                let place = || {
                    format!(
                        "GPU {} channel {:#x} submission {}",
                        channel.gpu,
                        channel.token(),
                        s.number
                    )
                };
                if let Op::Inline { dst, bytes } = want {
                    let found = inlines.any(|v| v["dst"] == *dst && v["bytes"] == *bytes);
                    ensure!(
                        found,
                        "{}: no inline write of {bytes} bytes to {dst:#x}",
                        place()
                    );
                } else {
                    let got = others
                        .next()
                        .with_context(|| format!("{}: missing {want:?}", place()))?;
                    check(want, got)
                        .with_context(|| format!("{}: {want:?} shown as {got}", place()))?;
                }
                compared += 1;
            }
        }
        if let Some(extra) = others.next() {
            bail!(
                "GPU {} channel {:#x}: an operation too many: {extra}",
                channel.gpu,
                channel.token()
            );
        }
    }
    ensure!(
        got.is_empty(),
        "operations of channels that were not used: {:?}",
        got.keys()
    );
    ensure!(compared > 0, "nothing was compared");
    Ok(())
}
