//! Ends requested by the user, and parts left out on request.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use live::programs::{Folder, Running, Until, nvcap, softgpu};
use live::verify::{Expected, Extent, Report, verify};

use crate::attach::{attach, waiting};
use crate::setup::{LIMIT, expect_result, need_tracing, plan, plan_args};

/// Attaches with a limit to a program that continues beyond it, unharmed.
fn limited(flags: &[&str]) -> Result<Report> {
    need_tracing()?;
    let plan = plan(51, 4000);
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let hold = Until::new(&folder, "hold")?;
    let mut gpu = waiting(&plan, &["--threads=3", "--sleep-us=2000", &hold.hold()])?;
    let flags: Vec<OsString> = flags.iter().map(OsString::from).collect();
    let nvcap = attach(gpu.pid(), &trace, folder.channels()?, &flags)?;
    gpu.write(b"g")?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    ensure!(gpu.runs(), "it did not go on");
    hold.release()?;
    let ended = gpu.end(LIMIT)?;
    ended.expect_code(0)?;
    expect_result(&ended.stdout, &plan)?;
    let report = verify(&trace, &Expected::part(plan, Extent::Part))?;
    report.expect_complete()?;
    Ok(report)
}

/// `--max-submissions N`: N, and no more.
pub fn max_submissions() -> Result<()> {
    let report = limited(&["--max-submissions=200"])?;
    ensure!(
        report.submissions == 200,
        "{} submissions",
        report.submissions
    );
    Ok(())
}

/// `--duration S`.
pub fn duration() -> Result<()> {
    let start = Instant::now();
    limited(&["--duration=1.5"])?;
    ensure!(
        start.elapsed() > Duration::from_millis(1500),
        "over after {:?}",
        start.elapsed()
    );
    Ok(())
}

fn run(flags: &[&str], gpu_args: &[&str], folder: &Folder) -> Result<live::programs::Ended> {
    let mut args: Vec<OsString> = flags.iter().map(OsString::from).collect();
    args.extend([
        "--channels".into(),
        folder.channels()?.into(),
        "--".into(),
        softgpu()?.into(),
    ]);
    args.extend(gpu_args.iter().map(OsString::from));
    Running::start(&nvcap()?, args)?.end(LIMIT)
}

/// `--no-follow`: the trace has all of the parent's submissions and none of the children's.
pub fn no_follow() -> Result<()> {
    need_tracing()?;
    let plan = plan(52, 300);
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let out = trace.display().to_string();
    let mut args = plan_args(&plan);
    args.extend(["--threads=2".to_owned(), "--fork-own=1".to_owned()]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let flags = [
        "--json",
        "-vv",
        "-e",
        "type=submission,entry",
        "-o",
        &out,
        "--no-follow",
    ];
    let ended = run(&flags, &args, &folder)?;
    ended.expect_code(0)?;
    let report = verify(&trace, &Expected::whole(plan))?;
    ensure!(
        report.processes.len() == 1,
        "processes {:?}",
        report.processes
    );
    report.expect_complete()
}

/// `-q`: the ledger and nothing else.
pub fn quiet() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let out = trace.display().to_string();
    let ended = run(
        &["-q", "--json", "-o", &out],
        &["--submissions=200", "--threads=2"],
        &folder,
    )?;
    ended.expect_code(0)?;
    let text = std::fs::read_to_string(&trace)?;
    ensure!(text.lines().count() == 1, "{} lines", text.lines().count());
    let ledger: serde_json::Value = serde_json::from_str(&text)?;
    ensure!(
        ledger["type"] == "ledger" && ledger["complete"] == true,
        "{text}"
    );
    ensure!(ledger["submissions"] == 200, "{text}");
    Ok(())
}

/// Text for people: one line for each operation, and the ledger at the end, which says that it is complete.
pub fn text() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.txt");
    let out = trace.display().to_string();
    let ended = run(
        &["-o", &out],
        &["--submissions=200", "--threads=2"],
        &folder,
    )?;
    ended.expect_code(0)?;
    let text = std::fs::read_to_string(&trace)?;
    ensure!(
        text.lines().filter(|l| l.contains("launch")).count() > 20,
        "few launches:\n{text}"
    );
    ensure!(
        text.contains("complete: 200 submissions"),
        "no verdict in:\n{text}"
    );
    ensure!(!text.contains('\u{1b}'), "colour in a file");
    Ok(())
}

/// A command's standard output is its own: nvcap's output goes to standard error, or to the file of `-o`.
pub fn output_apart() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let plan = plan(53, 300);
    let mut args = plan_args(&plan);
    args.push("--threads=2".to_owned());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let untraced = Running::start(&softgpu()?, &args)?.end(LIMIT)?;
    let same_lines = untraced.stdout.lines().count();
    let objects = |text: &str| text.lines().filter(|l| l.starts_with('{')).count();
    let whole = |text: &str| {
        let lines = text.lines().filter(|l| l.starts_with('{'));
        lines
            .map(serde_json::from_str::<serde_json::Value>)
            .collect::<Result<Vec<_>, _>>()
    };

    let ended = run(&["--json"], &args, &folder)?;
    ended.expect_code(0)?;
    expect_result(&ended.stdout, &plan)?;
    ensure!(
        ended.stdout.lines().count() == same_lines,
        "{}",
        ended.stdout
    );
    let last = whole(&ended.stderr)?.pop();
    ensure!(
        last.is_some_and(|l| l["type"] == "ledger" && l["submissions"] == 300),
        "{}",
        ended.stderr
    );

    let ended = run(&["--json", "-o", "-"], &args, &folder)?;
    ended.expect_code(0)?;
    ensure!(objects(&ended.stdout) > 300, "{}", ended.stdout);
    ensure!(objects(&ended.stderr) == 0, "{}", ended.stderr);

    let ended = run(&["-q"], &args, &folder)?;
    ended.expect_code(0)?;
    ensure!(ended.stderr.contains("complete: 300"), "{}", ended.stderr);
    ensure!(!ended.stdout.contains("complete:"), "{}", ended.stdout);
    Ok(())
}

/// `nvcap -p PID | head`: nvcap ends quietly when its reader ends, and the program continues.
pub fn reader_gone() -> Result<()> {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::{Command, Stdio};

    need_tracing()?;
    let plan = plan(54, 4000);
    let folder = Folder::new()?;
    let hold = Until::new(&folder, "hold")?;
    let mut gpu = waiting(&plan, &["--threads=2", "--sleep-us=500", &hold.hold()])?;
    let mut nvcap = Command::new(nvcap()?)
        .args(["-vvv", "-p", &gpu.pid().to_string(), "--channels"])
        .arg(folder.channels()?)
        .env("NVCAP_DEVICES_BY_NAME", "1")
        .env("NVCAP_STORE_CACHE", "")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // Before it is attached, the program may have ended.
    let mut stderr = BufReader::new(nvcap.stderr.take().context("no standard error")?);
    let mut said = String::new();
    stderr.read_line(&mut said)?;
    ensure!(said.contains("attached"), "{said}");
    gpu.write(b"g")?;
    let mut line = [0; 80];
    let mut stdout = nvcap.stdout.take();
    if let Some(out) = &mut stdout {
        out.read_exact(&mut line)?;
    }
    drop(stdout);
    stderr.read_to_string(&mut said)?;
    let status = nvcap.wait()?;
    ensure!(gpu.runs(), "it did not go on");
    hold.release()?;
    ensure!(status.code() == Some(0), "{status}: {said}");
    ensure!(said.lines().count() == 1, "{said}");
    let ended = gpu.end(LIMIT)?;
    ended.expect_code(0)?;
    expect_result(&ended.stdout, &plan)
}
