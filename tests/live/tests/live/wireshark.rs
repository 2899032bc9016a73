//! Live capture by tshark through nvcap's extcap program. All run as a user without rights: for root, tshark takes programs that
//! capture from the system's folder alone.

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::programs::{Folder, Running, Until, nvcap, softgpu};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::setup::LIMIT;

/// The user nobody.
const NOBODY: u32 = 65534;

/// Channels, submissions of each that are in its ring before the capture begins, and all submissions.
const CHANNELS: u64 = 4;
const BEFORE: u64 = 20;
const ALL: u64 = 300;

fn run(program: &Path, args: &[&str]) -> Result<String> {
    let out = Command::new(program).args(args).output()?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(out.status.code() != Some(1), "{args:?}: {said}");
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn counts<'a>(words: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word.to_owned()).or_default() += 1;
    }
    counts
}

fn copied(program: PathBuf, to: PathBuf) -> Result<PathBuf> {
    std::fs::copy(program, &to)?;
    Ok(to)
}

/// Live captures of tshark are whole, are shown as nvcap decodes them, and can be exported again.
pub fn live_capture() -> Result<()> {
    let tshark = Path::new("tshark");
    if Command::new(tshark).arg("--version").output().is_err() {
        return not_run("there is no tshark; type: sudo apt-get install tshark");
    }
    let folder = Folder::new()?;
    let path = |name: &str| folder.file(name).display().to_string();
    let program = copied(nvcap()?, folder.file("nvcap"))?;
    let gpu = copied(softgpu()?, folder.file("softgpu"))?;
    std::fs::create_dir(folder.file("own"))?;
    // SAFETY: reads an id.
    let user = (unsafe { libc::geteuid() } == 0).then_some(NOBODY);
    if user.is_some() {
        std::os::unix::fs::chown(folder.file("own"), user, user)?;
    }
    run(
        &program,
        &["wireshark", "install", "--dir", &path("installed")],
    )?;

    let stay = Until::new(&folder, "stay")?;
    let mut args: Vec<String> = ["--files", "--threads=1", "--wait-stdin", &stay.stay()]
        .map(str::to_owned)
        .to_vec();
    args.push(format!("--channels={CHANNELS}"));
    args.push(format!("--submissions={ALL}"));
    args.push(format!("--before-wait={BEFORE}"));
    let mut gpu = Running::start_as(&gpu, args, user)?;
    gpu.wait_for_line("waiting")?;

    let script = format!("lua_script:{}", path("installed/plugins/nvcap.lua"));
    let capture = path("own/live.pcapng");
    let pid = format!("extcap.nvcap.pid:{}", gpu.pid());
    let args = [
        "-X",
        &script,
        "-i",
        "nvcap",
        "-o",
        &pid,
        "-o",
        "extcap.nvcap.how:observe",
        "-w",
        &capture,
    ];
    let mut tshark_live = Running::start_prepared(tshark, args, user, |command| {
        command
            .env("HOME", folder.file("own"))
            .env_remove("XDG_CONFIG_HOME")
            .env("WIRESHARK_EXTCAP_DIR", folder.file("installed/extcap"));
    })?;
    let objects = |file: &str| -> Result<Vec<Value>> {
        let json = run(&program, &["decode", "--json", file])?;
        { json.lines() }
            .map(|line| serde_json::from_str(line).context("not JSON"))
            .collect()
    };
    // Of a file that is not there yet, or has no end, nothing or a part is decoded.
    let written = |kind: &str, number: &str| {
        let all = objects(&capture).unwrap_or_default();
        let of_kind = all.iter().filter(|o| o["type"] == kind);
        let numbers: BTreeSet<u64> = of_kind.filter_map(|o| o[number].as_u64()).collect();
        numbers.len() as u64
    };
    // The channels that are found are written when the capture has begun.
    tshark_live.wait_until("capturing", LIMIT, |_| {
        written("channel", "channel") >= CHANNELS
    })?;
    gpu.write(b"g")?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    tshark_live.wait_until("writing submissions", LIMIT, |_| {
        written("submission", "serial") >= ALL - CHANNELS * BEFORE
    })?;
    stay.release()?;
    gpu.end(LIMIT)?.expect_code(0)?;
    tshark_live.end(LIMIT)?.expect_code(0)?;

    let all = objects(&capture)?;
    let ledger = all.last().context("no ledger")?;
    let submissions = ledger["submissions"].as_u64().context("no count")?;
    ensure!(
        (1..=ALL - CHANNELS * BEFORE).contains(&submissions) && ledger["gaps"] == 0,
        "{ledger}"
    );
    let wanted = counts(all.iter().filter_map(|o| o["op"].as_str()));
    let args = [
        "-X",
        &script,
        "-r",
        &capture,
        "-T",
        "fields",
        "-E",
        "aggregator=/s",
        "-e",
        "nvcap.op",
    ];
    let shown = run(tshark, &args)?;
    ensure!(
        counts(shown.split_whitespace()) == wanted && wanted.len() > 2,
        "{:?} {wanted:?}",
        counts(shown.split_whitespace())
    );

    let again = path("again.pcapng");
    run(&program, &["export", "wireshark", &capture, "-o", &again])?;
    ensure!(
        objects(&again)? == all,
        "the export decodes to something else"
    );
    Ok(())
}
