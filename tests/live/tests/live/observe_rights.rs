//! `nvcap --how observe` by users other than root, and on programs without anything to observe.

use std::ffi::OsString;

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::in_step::Step;
use live::programs::{Folder, Running, nvcap, softgpu};
use live::verify::{Expected, Extent, verify};

use crate::observe::{FILES, LEAVE, options};
use crate::refusals::{NOBODY, copy_for_all, refused, run_as_nobody};
use crate::setup::{LIMIT, expect_result, plan, plan_args};

/// nvcap and the program run as the same user, not root.
pub fn own_process_without_root() -> Result<()> {
    let plan = plan(81, 1500);
    let folder = Folder::new()?;
    let program = folder.file("softgpu");
    std::fs::copy(softgpu()?, &program)?;
    let mut args: Vec<OsString> = ["--how=observe", "-q", "--json", "--channels"]
        .map(OsString::from)
        .to_vec();
    args.extend([folder.channels()?.into(), "--".into(), program.into()]);
    args.extend(plan_args(&plan).into_iter().map(OsString::from));
    let step = Step::new(&folder)?;
    args.extend(step.with(&[LEAVE]).into_iter().map(OsString::from));
    let copy = copy_for_all(&folder, &nvcap()?, "nvcap")?;
    let ended = step.start(&copy, args, Some(NOBODY))?.end(LIMIT)?;
    ended.expect_code(0)?;
    expect_result(&ended.stdout, &plan)?;
    let last = ended
        .stderr
        .lines()
        .find(|l| l.starts_with('{'))
        .context("no ledger")?;
    let ledger: serde_json::Value = serde_json::from_str(last)?;
    ensure!(
        ledger["complete"] == true && ledger["submissions"] == plan.submissions,
        "{ledger}"
    );
    Ok(())
}

/// Another user's process: one line that says what to do.
pub fn other_process_without_root() -> Result<()> {
    let folder = Folder::new()?;
    let pid = std::process::id().to_string();
    let ended = run_as_nobody(
        &folder,
        vec!["--how=observe".into(), "-p".into(), pid.into()],
    )?;
    refused(&ended, 1, &["sudo"])
}

/// `--how auto` by a user who may not load BPF programs: it observes, and says so in one line before the ledger.
pub fn auto_without_root() -> Result<()> {
    let folder = Folder::new()?;
    let ended = run_as_nobody(
        &folder,
        vec![
            "--how=auto".into(),
            "-q".into(),
            "--".into(),
            "/bin/true".into(),
        ],
    )?;
    ended.expect_code(4)?;
    let lines: Vec<&str> = ended.stderr.lines().collect();
    ensure!(
        lines[0].contains("observing without a trap, because")
            && lines.iter().filter(|l| l.starts_with("nvcap: ")).count() == 1,
        "{}",
        ended.stderr
    );
    Ok(())
}

/// Programs that never use a GPU, which is said, and one that is gone.
pub fn nothing_to_observe() -> Result<()> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut args = options(&trace, &folder, &[FILES], &[])?;
    args.extend(["--".into(), "/bin/sh".into(), "-c".into()]);
    args.push("for i in 1 2 3 4 5; do /bin/true; done; exit 7".into());
    let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
    ended.expect_code(4)?;
    ensure!(ended.stderr.contains("status: 7"), "{}", ended.stderr);
    let report = verify(&trace, &Expected::part(plan(1, 1), Extent::Part))?;
    report.expect_complete()?;
    if std::path::Path::new("/proc/4194305").exists() {
        return not_run("there is a process 4194305");
    }
    let mut args = options(&folder.file("none.json"), &folder, &[], &[])?;
    args.extend(["-p".into(), "4194305".into()]);
    let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
    refused(&ended, 1, &["no such process", "4194305"])
}
