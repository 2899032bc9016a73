//! `nvcap sample --learn`: the register programme of this GPU, taken from the calls that CUPTI makes.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, bail};
use nvcap_decode::samples::{Call, Programme};
use nvcap_process::memory::chip::Named;
use nvcap_show::output::message::tell;
use serde_json::Value;

use super::kept;

/// Periods that are learnt, as their logarithms. CUPTI accepts 5 to 31.
const PERIODS: std::ops::RangeInclusive<u8> = 10..=24;

/// Learns a programme, and keeps it.
pub(super) fn run(gpu: &Named, file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let (calls, periods) = match file {
        Some(file) => (calls_of(file)?, Vec::new()),
        None => (calls_of_child(gpu)?, PERIODS.collect()),
    };
    let learnt = Programme::learn(&calls, &periods, &gpu.uuid, &kept::driver()?);
    let learnt = learnt.with_context(|| match file {
        Some(file) => format!(
            "{} has no PC sampling with CUPTI: it is what `sudo nvcap ioctls -vv --json -o FILE -- PROGRAM` writes, of a program that samples continuously (cuptiPCSamplingStart)",
            file.display()
        ),
        None => "what CUPTI did is not understood".to_owned(),
    })?;
    let path = kept::write(&learnt)?;
    let periods = match (learnt.periods.keys().next(), learnt.periods.keys().last()) {
        (Some(first), Some(last)) => format!("periods from 2^{first} to 2^{last} cycles"),
        _ => "the period of that program".to_owned(),
    };
    tell(format_args!(
        "learnt how GPU {} is told to sample, with {periods}: {}",
        gpu.minor,
        path.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Program that samples an empty context with CUPTI. It is in Python because a static nvcap cannot load a library.
const CUPTI: &str = include_str!("learn/cupti.py");

/// Returns the calls of [`CUPTI`], as `nvcap ioctls` records them.
fn calls_of_child(gpu: &Named) -> anyhow::Result<Vec<Call>> {
    if gpu.bus.is_empty() {
        bail!("the PCI address of GPU {} is not known", gpu.minor);
    }
    let program = std::env::current_exe().context("cannot find nvcap's own program")?;
    let folder = std::env::temp_dir().join(format!("nvcap-learn-{}", std::process::id()));
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let made = builder.create(&folder);
    made.with_context(|| format!("cannot make {}", folder.display()))?;
    let file = folder.join("calls.jsonl");
    let script = folder.join("cupti.py");
    let mut command = Command::new(&program);
    command.args(["ioctls", "-vv", "--json", "-o"]).arg(&file);
    // Nothing in the user's environment or in the folder is taken for a Python module.
    command.args(["--", "python3", "-I"]).arg(&script);
    command.arg(&gpu.bus);
    command.args([PERIODS.start(), PERIODS.end()].map(u8::to_string));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let written = std::fs::write(&script, CUPTI);
    let done = written.and_then(|()| command.stderr(Stdio::piped()).output());
    let calls = done.context("cannot start nvcap ioctls").and_then(|done| {
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if !said(&done.stdout).ends_with(DONE) {
            bail!(
                "CUPTI did not sample (by python3, which is needed for it): {} {}",
                said(&done.stdout),
                said(&done.stderr)
            );
        }
        calls_of(&file)
    });
    let _ = std::fs::remove_dir_all(&folder);
    calls
}

/// Last word of the program.
const DONE: &str = "sampled";

/// Returns the control calls in the output of `nvcap ioctls -vv --json`.
fn calls_of(file: &Path) -> anyhow::Result<Vec<Call>> {
    let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut calls = Vec::new();
    for (number, line) in BufReader::new(opened).lines().enumerate() {
        let at = || format!("{}, line {}", file.display(), number + 1);
        let line = line.with_context(at)?;
        let value: Value =
            serde_json::from_str(&line).with_context(|| format!("{} is no JSON object", at()))?;
        calls.extend(call(&value));
    }
    Ok(calls)
}

/// Parses the control call of an object, if the call succeeded.
fn call(value: &Value) -> Option<Call> {
    let word = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let command = word(value.get("command")?)?;
    if value.get("status").and_then(Value::as_u64) != Some(0) {
        return None;
    }
    let given = value.get("args")?.get("in")?;
    let object = (word(given.get("hClient")?)?, word(given.get("hObject")?)?);
    let hex = value.get("params").and_then(|params| params.get("in_hex"));
    let hex = hex.and_then(Value::as_str).unwrap_or_default().as_bytes();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let parameters: Option<Vec<u8>> = hex.as_chunks::<2>().0.iter().map(byte).collect();
    Some(Call {
        object,
        command,
        parameters: parameters?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_call_is_read_of_the_json_of_ioctls() {
        let value = json!({
            "command": 0xb0cc010au32, "status": 0, "name": "NV_ESC_RM_CONTROL",
            "args": {"in": {"hClient": 0xc1d00029u32, "hObject": 0xc0000006u32}},
            "params": {"in_hex": "0100ff"},
        });
        let expected = Call {
            object: (0xc1d0_0029, 0xc000_0006),
            command: 0xb0cc_010a,
            parameters: vec![1, 0, 255],
        };
        assert_eq!(call(&value), Some(expected));
        let mut refused = value;
        refused["status"] = json!(0x56);
        assert_eq!(call(&refused), None);
        assert_eq!(call(&json!({"type": "mmap"})), None);
    }
}
