//! GPU time of programs that run at full speed: how much of it is known, and what reading stamps costs.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use live::measure::Figure;
use live::needs::need_tracing;
use live::programs::{Folder, Running, nvcap, softgpu};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

fn objects(file: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let lines = text.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

fn words(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

/// Measurements of nvcap beside a program.
struct Beside {
    /// The lengths of the program's kernels, ns.
    lengths: Vec<u64>,
    /// The share of a processor that its thread which reads stamps took, in one second in the middle.
    reader: f64,
}

/// Observes a software GPU with these options by nvcap with these.
fn beside(folder: &Folder, gpu: &str, options: &str, to: &Path) -> Result<Beside> {
    let truth = folder.file("truth.json");
    let mut args =
        words("--timed --files --gpus=1 --threads=1 --wait-stdin --before-wait=3 --linger-ms=300");
    args.extend(words(gpu));
    args.push(format!("--timed-truth={}", truth.display()).into());
    let mut program = Running::start(&softgpu()?, args)?;
    program.wait_for_line("waiting")?;
    let mut args = words(options);
    args.extend(["-o".into(), to.into(), "-p".into()]);
    args.push(program.pid().to_string().into());
    let mut nvcap = Running::start(&nvcap()?, args)?;
    nvcap.wait_until("attached", LIMIT, |r| r.stderr().contains("attached"))?;
    program.write(b"g")?;
    std::thread::sleep(Duration::from_millis(300));
    let (began, before) = (Instant::now(), reader_ns(nvcap.pid())?);
    std::thread::sleep(Duration::from_secs(1));
    let took = reader_ns(nvcap.pid())?.saturating_sub(before);
    let reader = took as f64 / began.elapsed().as_nanos() as f64;
    program.end(LIMIT)?.expect_code(0)?;
    nvcap.end(LIMIT)?;
    let mut lengths = Vec::new();
    for ran in objects(&truth)?.iter().filter(|o| o["type"] == "kernel") {
        let time = |name: &str| ran[name].as_u64().context("a time");
        lengths.push(time("end_gpu_ns")? - time("start_gpu_ns")?);
    }
    Ok(Beside { lengths, reader })
}

/// The processor time that the thread which reads stamps has taken, ns.
fn reader_ns(nvcap: u32) -> Result<u64> {
    for task in std::fs::read_dir(format!("/proc/{nvcap}/task"))? {
        let task = task?.path();
        let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        if name.trim_end() == "nvcap-stamps" {
            let times = std::fs::read_to_string(task.join("schedstat"))?;
            return Ok(times.split(' ').next().context("schedstat")?.parse()?);
        }
    }
    anyhow::bail!("no thread nvcap-stamps")
}

fn median(mut of: Vec<u64>) -> f64 {
    of.sort_unstable();
    of.get(of.len() / 2).map_or(f64::NAN, |m| *m as f64)
}

/// Measures how many starts and durations are known of kernels that wait behind each other, and of kernels one at a time: of all that ran.
pub fn coverage() -> Result<Vec<Figure>> {
    need_tracing()?;
    let mut figures = Vec::new();
    for (what, gpu) in [
        ("queued", "--timed-kernel-us=50 --submissions=40000"),
        (
            "one at a time",
            "--timed-kernel-us=50 --timed-burst=1 --timed-pause-us=200 --submissions=8000",
        ),
    ] {
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        let options = "--how observe --gpu-time --json -e op=launch";
        let gpu = format!("{gpu} --channels=1 --timed-spread=50 --timed-lag-ns=2000");
        let ran = beside(&folder, &gpu, options, &trace)?;
        let shown = objects(&trace)?;
        let known = |name: &str| shown.iter().filter(|o| !o[name].is_null()).count() as f64;
        let all = ran.lengths.len() as f64;
        figures.push(
            Figure::new(format!("{what}: starts"), known("gpu_start_ns"), "kernels").beside(all),
        );
        figures.push(
            Figure::new(format!("{what}: durations"), known("gpu_ns"), "kernels").beside(all),
        );
        figures.push(Figure::new(
            format!("{what}: reader"),
            ran.reader,
            "processors",
        ));
    }
    Ok(figures)
}

/// `--observe-cpu` with `--gpu-time`: half of it is for reading stamps, and all of nvcap takes no more than it. The baselines are the shares that
/// were asked for.
pub fn half_of_the_budget() -> Result<Vec<Figure>> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let options = "--how observe --observe-cpu 10% --gpu-time --json -e op=launch";
    let gpu = "--channels=1 --timed-kernel-us=400 --timed-lag-ns=2000 --submissions=8000";
    let ran = beside(&folder, gpu, options, &trace)?;
    let shown = objects(&trace)?;
    let timed = shown.iter().filter(|o| !o["gpu_ns"].is_null()).count();
    let ledger = shown.iter().find(|o| o["type"] == "ledger");
    let ledger = ledger.context("no ledger")?;
    let ns = |name: &str| ledger["observed"][name].as_f64().unwrap_or(f64::NAN);
    let all = ran.lengths.len() as f64;
    Ok(vec![
        Figure::new("reader of stamps", ran.reader, "processors").beside(0.05),
        Figure::new("all of nvcap", ns("cpu_ns") / ns("wall_ns"), "processors").beside(0.1),
        Figure::new("kernels timed", timed as f64, "kernels").beside(all),
    ])
}

/// `--gpu-time-cpu 5%`: the share of a processor, the share of the time in bursts, and the length of kernels by what was seen in bursts, beside
/// how long they ran.
pub fn a_part_of_a_processor() -> Result<Vec<Figure>> {
    need_tracing()?;
    let folder = Folder::new()?;
    let sums = folder.file("sums.json");
    let gpu = "--channels=1 --timed-kernel-us=400 --timed-lag-ns=2000 --submissions=5000";
    let ran = beside(&folder, gpu, "time --json --gpu-time-cpu 5%", &sums)?;
    let all = objects(&sums)?;
    let time = all.iter().find(|o| o["type"] == "gpu_time");
    let time = time.context("no sums")?;
    let of = |name: &str| time[name].as_f64().unwrap_or(f64::NAN);
    let kernels = time["kernels"].as_array().context("kernels")?;
    // Nearly each of the kernels is another one.
    let timed = kernels
        .iter()
        .filter(|k| k["gpu"]["timed"].as_u64() > Some(0));
    let means: Vec<u64> = timed.filter_map(|k| k["gpu"]["mean_ns"].as_u64()).collect();
    let work = &time["gpus"][0]["work"];
    let busy = |name: &str| work[name].as_f64().unwrap_or(f64::NAN);
    let count = means.len() as f64;
    Ok(vec![
        Figure::new("reader of stamps", ran.reader, "processors").beside(0.05),
        Figure::new("time in bursts", of("stamp_read_share"), ""),
        Figure::new("bursts", of("stamp_read_bursts"), "bursts"),
        Figure::new("kernels timed", count, "kernels").beside(ran.lengths.len() as f64),
        Figure::new("median kernel", median(means), "ns").beside(median(ran.lengths)),
        Figure::new(
            "share of the time with work",
            busy("busy_ns") / (busy("busy_ns") + busy("idle_ns")),
            "",
        )
        .beside(1.0),
        Figure::new("its stated error", busy("busy_share_error"), ""),
    ])
}
