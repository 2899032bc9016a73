//! `nvcap dump`: one look at an unprepared process. No breakpoint and no BPF, so these tests run wherever a process's
//! memory may be read.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::programs::{Ended, Folder, Running, nvcap, softgpu};
use live::verify::{Expected, Extent, verify};
use nvcap_decode::record::Record;
use nvcap_recording::recording::{Item, Reader};
use nvcap_show::output::dump::Status;
use serde_json::Value;
use softgpu::hang::{BLOCK, GRID, ORPHAN, ORPHAN_PAYLOAD, PROGRAM, QUEUED, end_of};
use softgpu::layout::{CHANNELS, Channel, ENTRIES};
use softgpu::plan::Plan;
use softgpu::stream::{Shape, semaphore};

/// Possible statuses of a look at a running process.
const SEEN: [i32; 5] = [
    Status::Idle as i32,
    Status::Unread as i32,
    Status::Moving as i32,
    Status::Busy as i32,
    Status::Unknown as i32,
];

const LIMIT: Duration = live::programs::GUARD;

/// A plan on channels of one GPU.
pub fn plan(seed: u64, channels: usize, submissions: u64) -> Plan {
    Plan {
        shape: Shape {
            seed,
            image: 0,
            burst: 1,
            big_one_in: 0,
            launches_only: false,
            kernels: false,
            module_every: 0,
            rounds: None,
            timed: None,
            code: false,
        },
        channels: Channel::first(channels, 1),
        submissions,
    }
}

/// The software GPU, looking like a CUDA process, with its work done or in progress.
pub fn start(plan: &Plan, args: &[&str]) -> Result<Running> {
    // SAFETY: reads an id.
    if unsafe { libc::geteuid() } != 0 {
        return not_run("not root: another process's memory may not be readable");
    }
    let mut all = vec![
        "--files".to_owned(),
        "--gpus=1".to_owned(),
        format!("--seed={}", plan.shape.seed),
        format!("--submissions={}", plan.submissions),
        format!("--channels={}", plan.channels.len()),
    ];
    if plan.shape.burst > 1 {
        all.push(format!("--burst={}", plan.shape.burst));
    }
    all.extend(args.iter().map(|a| (*a).to_owned()));
    Running::start(&softgpu()?, all)
}

fn dump(gpu: &Running, args: &[&str]) -> Result<Ended> {
    let mut all: Vec<OsString> = vec!["dump".into(), "-p".into(), gpu.pid().to_string().into()];
    all.extend(args.iter().map(Into::into));
    Running::start(&nvcap()?, all)?.end(LIMIT)
}

/// One look (or two: `--watch`) that ends with this status.
fn one_look(gpu: &Running, args: &[&str], status: Status) -> Result<Value> {
    let ended = dump(gpu, &[&["--json"], args].concat())?;
    ended.expect_code(status.code().into())?;
    let look: Value = serde_json::from_str(&ended.stdout).context("the dump is no JSON")?;
    Ok(look["processes"][0].clone())
}

fn channel(process: &Value, token: u32) -> Result<&Value> {
    let all = process["channels"].as_array().context("no channels")?;
    all.iter()
        .find(|c| c["token"] == token)
        .with_context(|| format!("no channel with token {token:#x} among {}", all.len()))
}

fn last_of(plan: Plan, last: u32, args: &[&str]) -> Result<()> {
    let mut gpu = start(&plan, &[args, &["--linger-ms=900000"]].concat())?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut command: Vec<OsString> = vec![
        "dump".into(),
        "-p".into(),
        gpu.pid().to_string().into(),
        "--stream".into(),
        "--json".into(),
        "-vv".into(),
        "-e".into(),
        "type=submission,entry".into(),
        format!("--last={last}").into(),
        "-o".into(),
    ];
    command.push(trace.clone().into());
    let ended = Running::start(&nvcap()?, command)?.end(LIMIT)?;
    ended.expect_code(0)?;
    let expected: u64 = (0..plan.channels.len())
        .map(|i| {
            let entries: usize = plan.stream(i).map(|s| s.entries.len()).sum();
            (entries as u64).min(u64::from(last.min(ENTRIES - 1)))
        })
        .sum();
    let report = verify(&trace, &Expected::part(plan, Extent::Suffix))?;
    ensure!(
        report.entries == expected,
        "{} entries instead of {expected}",
        report.entries
    );
    report.expect_complete()
}

/// Rings that have not wrapped: everything, to the last byte, without preparation.
pub fn whole_history() -> Result<()> {
    last_of(plan(61, CHANNELS, 8000), 1000, &[])
}

/// Rings that have wrapped several times: the newest thousand of each.
pub fn last_thousand() -> Result<()> {
    last_of(plan(62, 4, 20_000), 1000, &[])?;
    last_of(plan(63, 3, 12_345), 5000, &[])
}

/// As many as the user requests.
pub fn last_few() -> Result<()> {
    last_of(plan(64, CHANNELS, 30_000), 7, &[])
}

/// Submissions of several entries, methods that continue across entries, control entries.
pub fn bursts() -> Result<()> {
    let mut plan = plan(65, 6, 3000);
    plan.shape.burst = 9;
    last_of(plan, 1000, &[])
}

/// Channels, tokens and what was proven of them.
pub fn channels_and_tokens() -> Result<()> {
    let plan = plan(66, CHANNELS, 25_000);
    let mut gpu = start(&plan, &["--linger-ms=900000"])?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    // No ring shows its beginning any more, and this machine has no GPU that shows its chip.
    let process = one_look(&gpu, &["--chip=GH100"], Status::Idle)?;
    ensure!(process["verdict"] == "idle", "{}", process["verdict"]);
    for (i, c) in plan.channels.iter().enumerate() {
        let seen = channel(&process, c.token())?;
        let put = plan.quota(i) % u64::from(ENTRIES);
        ensure!(seen["gp_put"] == put && seen["gp_get"] == put, "{seen}");
        ensure!(seen["found"]["ring"] == c.ring() && seen["found"]["userd"] == c.userd());
        ensure!(seen["found"]["target"] == "parses", "{}", seen["found"]);
        ensure!(seen["semaphore"]["address"] == semaphore(*c));
        ensure!(seen["semaphore"]["value"] == plan.quota(i));
        let engine = if c.runlist() == 0 { "gr" } else { "ce" };
        ensure!(seen["engine"] == engine, "{}", seen["engine"]);
    }
    Ok(())
}

/// The program hangs in this way; the dump must say which.
fn hung(kind: &str) -> Result<(Running, Value)> {
    let mut gpu = start(&plan(70, 8, 4000), &["--hang", kind, "--linger-ms=900000"])?;
    gpu.wait_until("hung", LIMIT, |r| r.stdout().contains("hung "))?;
    // However few entries are requested, running work and releases are searched for further back.
    let process = one_look(
        &gpu,
        &["--watch=0.3", "--last=1", "--no-stacks"],
        Status::Hang,
    )?;
    ensure!(process["verdict"] == "hang", "{}", process["says"]);
    let process_once = one_look(&gpu, &["--last=1", "--no-stacks"], Status::Busy)?;
    ensure!(
        process_once["verdict"] == "busy",
        "{}",
        process_once["says"]
    );
    Ok((gpu, process))
}

fn expect_kernel(c: &Value) -> Result<()> {
    let running = &c["running"];
    let launch = &running["operation"];
    ensure!(
        running["kind"] == "kernel" && running["certain"] == true,
        "{running}"
    );
    ensure!(launch["grid"] == serde_json::json!(GRID), "{launch}");
    ensure!(launch["block"] == serde_json::json!(BLOCK), "{launch}");
    ensure!(launch["program"] == PROGRAM, "{launch}");
    Ok(())
}

/// `nvcap time` of a process whose kernel does not end: nothing is submitted, and what runs is told.
pub fn times_of_a_hang() -> Result<()> {
    let (gpu, _) = hung("spin")?;
    let pid = gpu.pid().to_string();
    let args = ["time", "--duration=0.1", "-p", &pid];
    let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
    let said = &ended.stdout;
    let head = "no work was submitted to the GPU in this time: earlier work has not ended\n";
    ensure!(said.starts_with(head), "{said}");
    let [x, y, z] = GRID;
    let work = format!("a kernel has not ended: grid {x}x{y}x{z} ");
    let all = format!("; nvcap dump -p {pid} shows all of it");
    let line = said.lines().nth(1).unwrap_or_default();
    ensure!(
        line.starts_with(&format!("process {pid}: channel ")) && line.contains(&work),
        "{said}"
    );
    ensure!(line.ends_with(&all), "{said}");
    // Beside a process that works, which may have no processor in that time; and in JSON.
    let mut beside = start(&plan(73, 2, 10), &["--hang=slow", "--linger-ms=900000"])?;
    beside.wait_until("slow", LIMIT, |r| r.stdout().contains("slow channel"))?;
    let both = format!("{pid},{}", beside.pid());
    let begun = Instant::now();
    loop {
        ensure!(begun.elapsed() < LIMIT, "guard: what works is earlier work");
        let args = ["time", "--duration=0.5", "--json", "-p", &both];
        let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
        let times = ended.stdout.lines().next().unwrap_or_default();
        let times: Value = serde_json::from_str(times)?;
        let earlier = times["earlier"].as_array().context("no earlier work")?;
        let of = |pid: u32| earlier.iter().find(|of| of["pid"] == pid);
        let says = of(gpu.pid()).map(|of| of["says"].to_string());
        let says = says.with_context(|| ended.stdout.clone())?;
        ensure!(says.contains(&work) && says.contains(&all), "{says}");
        if of(beside.pid()).is_none() {
            return Ok(());
        }
    }
}

/// `nvcap` alone: what each process does, between two looks.
pub fn in_the_overview() -> Result<()> {
    let (spinning, _) = hung("spin")?;
    let plans = |seed| plan(seed, 8, 4000);
    let mut slow = start(&plans(71), &["--hang=slow", "--linger-ms=900000"])?;
    slow.wait_until("slow", LIMIT, |r| r.stdout().contains("slow channel"))?;
    let mut stopped = start(&plans(72), &["--fault=31", "--linger-ms=900000"])?;
    stopped.wait_until("faulted", LIMIT, |r| r.stdout().contains("faulted"))?;
    let mut said = String::new();
    let row = |said: &str, pid: u32| -> Vec<String> {
        let pid = pid.to_string();
        let of = |line: &&str| line.split_whitespace().next() == Some(&pid);
        let line = said.lines().find(of).unwrap_or_default();
        line.split_whitespace().map(str::to_owned).collect()
    };
    // Where many tests run beside it, there is not always time for the second look.
    let begun = Instant::now();
    loop {
        let done = |text: &str| row(text, slow.pid()).get(3).cloned().unwrap_or_default();
        let is = |text: &str, pid: u32, word: &str| row(text, pid).iter().any(|w| w == word);
        if is(&said, spinning.pid(), "waiting")
            && is(&said, stopped.pid(), "Xid")
            && is(&said, slow.pid(), "working")
            && done(&said)
                .trim_start_matches('~')
                .parse()
                .is_ok_and(|n: u64| n > 0)
        {
            break;
        }
        ensure!(begun.elapsed() < LIMIT, "guard: {said}");
        let ended = Running::start(&nvcap()?, [] as [&str; 0])?.end(LIMIT)?;
        ended.expect_code(2)?;
        said = ended.stdout;
    }
    for line in [
        "\nwaiting: none of its pending work ended in 300 ms: ",
        "\nXid 31: the driver has stopped it after an error; nvcap dump -p ",
    ] {
        ensure!(said.contains(line), "{said}");
    }
    Ok(())
}

/// A kernel that does not end: its grid and program, what is queued, who waits, and that the chain ends at it.
pub fn spinning_kernel() -> Result<()> {
    let (gpu, process) = hung("spin")?;
    // The kernel that the channel's semaphore has passed is not done.
    let text = dump(&gpu, &["--no-stacks"])?.stdout;
    let row =
        { text.lines() }.find(|l| l.contains(" 0x0000a ") && l.contains(" running, then waits"));
    let numbers: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
    let [done, submitted] = [7, 8].map(|n| numbers.get(n).and_then(|n| n.parse::<u64>().ok()));
    ensure!(
        done.zip(submitted)
            .is_some_and(|(d, s)| s - d == QUEUED + 1),
        "{text}"
    );
    let a = channel(&process, 0xa)?;
    expect_kernel(a)?;
    // The first of the queued launches is fetched and waits for the kernel's end.
    ensure!(
        a["pending"] == QUEUED - 1 && a["running"]["behind"] == QUEUED,
        "{a}"
    );
    ensure!(a["state"] == "running_and_waiting", "{}", a["state"]);
    let root = serde_json::json!({"kind": "work", "channel": a["channel"]});
    let (end, ended) = end_of(0);
    let own = &channel(&process, 0xb)?["semaphore"]["address"];
    for (token, address, payload, now, on) in [
        (0xa, &Value::from(end), ended, ended - 1, 0xa),
        (0xb, &Value::from(end), ended, ended - 1, 0xa),
        (0x1_0012, own, 501, 500, 0xb),
    ] {
        let waiter = channel(&process, token)?;
        let wait = &waiter["wait"];
        ensure!(wait["address"] == *address, "{wait}");
        ensure!(wait["payload"] == payload && wait["value"] == now, "{wait}");
        let releaser = &wait["releasers"][0];
        ensure!(
            releaser["channel"] == channel(&process, on)?["channel"],
            "{wait}"
        );
        ensure!(releaser["kernel"] == (on == 0xa), "{wait}");
        ensure!(waiter["root"] == root, "{}", waiter["root"]);
    }
    Ok(())
}

/// Nothing is queued, GP_GET equals GP_PUT and the channel's own semaphore is released: only the semaphore that the kernel
/// should release at its end shows that it has not ended.
pub fn lost_kernel() -> Result<()> {
    let (_gpu, process) = hung("lost")?;
    let a = channel(&process, 0xa)?;
    ensure!(a["gp_get"] == a["gp_put"] && a["state"] == "running", "{a}");
    expect_kernel(a)
}

/// A wait that nothing releases.
pub fn orphaned_wait() -> Result<()> {
    let (_gpu, process) = hung("wait")?;
    let a = channel(&process, 0xa)?;
    ensure!(
        a["wait"]["address"] == ORPHAN && a["wait"]["payload"] == ORPHAN_PAYLOAD,
        "{}",
        a["wait"]
    );
    ensure!(a["wait"]["releasers"] == serde_json::json!([]));
    ensure!(a["root"]["kind"] == "nobody_releases", "{}", a["root"]);
    Ok(())
}

/// Two channels that wait for each other.
pub fn cycle() -> Result<()> {
    let (gpu, process) = hung("cycle")?;
    for token in [0xa, 0xb] {
        let c = channel(&process, token)?;
        ensure!(c["root"]["kind"] == "cycle", "{}", c["root"]);
    }
    let text = dump(&gpu, &[])?;
    let head = text.stdout.lines().next().unwrap_or_default();
    ensure!(head.contains(": BUSY: DEADLOCK, "), "{}", text.stdout);
    Ok(())
}

/// The rows of a process at work are of one moment: what a channel's semaphore shows as done is not among its entries that are not fetched.
pub fn of_one_moment() -> Result<()> {
    let args = [
        "--timed",
        "--kernels",
        "--threads=3",
        "--timed-kernel-us=1000",
    ];
    let mut gpu = start(&plan(76, 3, 100_000), &args)?;
    gpu.wait_until("work", LIMIT, |r| r.stdout().contains("ready"))?;
    let mut seen = 0;
    while seen < 10 {
        let ended = dump(&gpu, &["--json", "--no-stacks"])?;
        let look: Value = serde_json::from_str(&ended.stdout).context("the dump is no JSON")?;
        let channels = look["processes"][0]["channels"].as_array();
        for c in channels.into_iter().flatten() {
            let number = |v: &Value| v.as_u64().with_context(|| format!("{c}"));
            let line = &c["semaphore"];
            let (newest, value) = (number(&line["newest"])?, number(&line["value"])?);
            let open = newest.saturating_sub(value);
            ensure!(number(&c["pending"])? <= open, "{open} are not done: {c}");
            seen += u32::from(open > 0);
        }
    }
    Ok(())
}

/// Who interrupts the wait for the second look gets the first.
pub fn interrupted() -> Result<()> {
    let (gpu, _) = hung("spin")?;
    let folder = Folder::new()?;
    let file = folder.file("look.pcapng");
    let (pid, into) = (gpu.pid().to_string(), file.display().to_string());
    let args = [
        "dump",
        "-p",
        &pid,
        "--no-stacks",
        "--watch=100000",
        "--record",
        &into,
    ];
    let mut nvcap = Running::start(&nvcap()?, args)?;
    // It is written between the first look and the wait.
    nvcap.wait_until("recorded", LIMIT, |_| file.exists())?;
    nvcap.signal(libc::SIGINT)?;
    let ended = nvcap.end(LIMIT)?;
    ended.expect_code(Status::Busy.code().into())?;
    let said = &ended.stdout;
    ensure!(
        said.contains(": BUSY: ") && said.contains("a kernel has not ended: "),
        "{said}"
    );
    Ok(())
}

/// A recording of a look has all that was read: its stream is that of the look, and what the verdict was made of is in it.
pub fn recorded() -> Result<()> {
    let (gpu, process) = hung("spin")?;
    let folder = Folder::new()?;
    let [live, streamed, looked] =
        ["live.json", "stream.pcapng", "look.pcapng"].map(|f| folder.file(f));
    let text = |path: &Path| path.display().to_string();
    let mut args = vec!["--stream", "--json", "-vv", "--last=1000"];
    let (out, into) = (text(&live), text(&streamed));
    args.extend(["-o", &out, "--record", &into]);
    let shown = dump(&gpu, &args)?;
    let told = "nvcap decode ";
    ensure!(shown.stderr.contains(told), "{}", shown.stderr);
    let decoded = Running::start(&nvcap()?, ["decode", "--json", "-vv", &into])?.end(LIMIT)?;
    let live = std::fs::read_to_string(&live)?;
    ensure!(live.matches("\"type\":\"submission\"").count() > 100);
    ensure!(live == decoded.stdout, "the recording shows something else");
    ensure!(
        decoded.status.code() == shown.status.code(),
        "{}",
        decoded.stderr
    );

    let into = text(&looked);
    let once = dump(&gpu, &["--json", "--record", &into])?;
    once.expect_code(Status::Busy.code().into())?;
    ensure!(once.stderr.contains(told), "{}", once.stderr);
    // The file's report is the look's.
    let again = Running::start(&nvcap()?, ["dump", "--json", &into])?.end(LIMIT)?;
    again.expect_code(Status::Busy.code().into())?;
    ensure!(
        again.stdout == once.stdout,
        "{}{}",
        once.stdout,
        again.stdout
    );
    let (mut words, mut puts) = (HashMap::new(), HashMap::new());
    for item in Reader::new(std::fs::File::open(&looked)?) {
        match item? {
            Item::Record(Record::Stamps(s)) => {
                words.extend(s.stamps.iter().map(|s| (s.address.0, s.payload)));
            }
            Item::Record(Record::Submission(s)) => {
                puts.insert(u64::from(s.channel.0), u64::from(s.gp_put));
            }
            Item::Trace(info) => ensure!(info.how == "dump" && info.in_order, "{info:?}"),
            _ => {}
        }
    }
    for token in [0xa, 0xb, 0x1_0012] {
        let c = channel(&process, token)?;
        let number = c["channel"]
            .as_u64()
            .context("a channel without a number")?;
        ensure!(puts.get(&number).copied() == c["gp_put"].as_u64(), "{c}");
        for (semaphore, value) in [(&c["semaphore"], "value"), (&c["wait"], "value")] {
            let address = semaphore["address"].as_u64().context("no address")?;
            let value = semaphore[value].as_u64().context("no value")?;
            let word = words.get(&address).copied().map(u64::from);
            ensure!(
                word == Some(value & 0xffff_ffff),
                "{address:#x}: {word:?}, not {value}"
            );
        }
    }
    for command in [
        &["stats"][..],
        &["diff", &into],
        &["export", "csv", "--table=kernels"],
    ] {
        let args = command.iter().copied().chain([into.as_str()]);
        let ended = Running::start(&nvcap()?, args)?.end(LIMIT)?;
        let code = ended.status.code();
        ensure!(
            matches!(code, Some(0 | 3 | 5)),
            "{command:?} {code:?} {}",
            ended.stderr
        );
    }
    // Watched, the first look is recorded, and the second one finds the hang.
    let watched = dump(&gpu, &["--watch=1", "--record", &into, "--force"])?;
    watched.expect_code(Status::Hang.code().into())?;
    ensure!(watched.stderr.contains(told), "{}", watched.stderr);
    let again = Running::start(&nvcap()?, ["dump", "--json", &into])?.end(LIMIT)?;
    again.expect_code(Status::Busy.code().into())
}

/// Slow is not hung: what moves, and how fast.
pub fn slow_kernels() -> Result<()> {
    let mut gpu = start(&plan(71, 8, 4000), &["--hang=slow", "--linger-ms=900000"])?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let first = Instant::now();
    let (ended, most) = loop {
        let began = Instant::now();
        let ended = dump(&gpu, &["--json", "--watch=3"])?;
        // One every 50 ms: more cannot have ended between the two looks. None has where the program had no processor meanwhile.
        let most = began.elapsed().as_millis() as u64 / 50 + 1;
        if ended.code()? != i32::from(Status::Hang.code()) || first.elapsed() > LIMIT / 5 {
            break (ended, most);
        }
    };
    ended.expect_code(Status::Moving.code().into())?;
    let look: Value = serde_json::from_str(&ended.stdout)?;
    let process = &look["processes"][0];
    ensure!(process["verdict"] == "moving", "{}", process["says"]);
    let number = &channel(process, 0xa)?["channel"];
    let moves = look["moved"]["channels"]
        .as_array()
        .context("no movement")?;
    let a = moves
        .iter()
        .find(|m| m["channel"] == *number)
        .context("not there")?;
    let done = a["done"].as_u64().unwrap_or(0);
    ensure!((1..=most).contains(&done), "{a}, {most} at most");
    Ok(())
}

/// Repeated looks at a process that runs at full speed: every entry shown was submitted, and the others are counted as
/// overwritten.
pub fn running_process() -> Result<()> {
    let plan = plan(72, 6, 200_000);
    let mut gpu = start(&plan, &["--threads=2", "--linger-ms=900000"])?;
    gpu.wait_for_line("ready")?;
    let folder = Folder::new()?;
    for n in 0..6 {
        // The last look is at one that rests: it is whole.
        let rests = n == 5;
        if rests {
            gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
        }
        let trace = folder.file(&format!("{n}.json"));
        let command: Vec<OsString> = [
            "dump",
            "--stream",
            "--json",
            "-vv",
            "--last=300",
            "-e",
            "type=submission,entry",
            "-p",
        ]
        .iter()
        .map(Into::into)
        .chain([
            gpu.pid().to_string().into(),
            "-o".into(),
            trace.clone().into(),
        ])
        .collect();
        let ended = Running::start(&nvcap()?, command)?.end(LIMIT)?;
        if rests {
            ended.expect_code(0)?;
        }
        if ended.code()? == 0 {
            let report = verify(&trace, &Expected::part(plan.clone(), Extent::Part))?;
            ensure!(report.entries > 0 || !rests, "nothing was seen");
        }
    }
    Ok(())
}

/// The process is killed during a look: a whole look, a partial one that says so, or one line; never a crash.
pub fn killed_meanwhile() -> Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..12 {
        let mut gpu = start(
            &plan(73, CHANNELS, 20_000),
            &["--linger-ms=900000", "--threads=2"],
        )?;
        gpu.wait_for_line("ready")?;
        let args: Vec<OsString> = vec![
            "dump".into(),
            "--last=1000".into(),
            "--json".into(),
            "-p".into(),
            gpu.pid().to_string().into(),
        ];
        let nvcap = Running::start(&nvcap()?, args)?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(1200 * n) {
            std::thread::yield_now();
        }
        gpu.signal(libc::SIGKILL)?;
        let ended = nvcap.end(LIMIT)?;
        let code = ended.code()?;
        // The files of a process that ends are closed before it is gone.
        let no_gpu = i32::from(Status::NoGpu.code());
        ensure!(
            SEEN.contains(&code) || code == 1 || code == no_gpu,
            "status {code}\n{}",
            ended.stderr
        );
        ensure!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        if code == 1 || code == no_gpu {
            ensure!(ended.stderr.lines().count() == 1, "{}", ended.stderr);
        } else {
            serde_json::from_str::<Value>(&ended.stdout)?;
        }
        seen.insert(code);
    }
    ensure!(!seen.is_empty());
    Ok(())
}

/// Rings are unmapped and mapped again (an exec) during repeated looks.
pub fn unmapped_meanwhile() -> Result<()> {
    let mut looks = 0;
    // The slower the machine, the fewer looks there are before a program has ended.
    while looks <= 5 {
        let mut gpu = start(&plan(74, 6, 300), &["--exec=30", "--linger-ms=100"])?;
        while gpu.runs() {
            let ended = dump(&gpu, &["--last=100", "--json", "--no-stacks"])?;
            let code = ended.code()?;
            // Between an exec and the first use of a driver file the process uses no GPU.
            let no_gpu = i32::from(Status::NoGpu.code());
            ensure!(
                SEEN.contains(&code) || code == 1 || code == no_gpu,
                "status {code}\n{}",
                ended.stderr
            );
            ensure!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
            looks += 1;
        }
        gpu.end(LIMIT)?.expect_code(0)?;
    }
    Ok(())
}

/// All processes, including this test's.
pub fn all_processes() -> Result<()> {
    let mut gpu = start(&plan(75, 4, 100), &["--linger-ms=900000"])?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let ended = Running::start(&nvcap()?, ["dump", "-a", "--json"])?.end(LIMIT)?;
    let look: Value = serde_json::from_str(&ended.stdout)?;
    let pids = look["processes"].as_array().context("no processes")?;
    ensure!(pids.iter().any(|p| p["pid"] == gpu.pid()), "{pids:?}");
    Ok(())
}

/// The worst status of several processes wins; a process without a GPU is reported, and is no failure.
pub fn statuses() -> Result<()> {
    let mut idle = start(&plan(77, 4, 100), &["--linger-ms=900000"])?;
    idle.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let (hung, _) = hung("lost")?;
    let other = Running::start(Path::new("sleep"), ["900"])?;
    let [idle, hung, other] = [&idle, &hung, &other].map(|r| r.pid().to_string());
    for (pids, status) in [
        (vec![&idle], Status::Idle),
        (vec![&other], Status::NoGpu),
        (vec![&idle, &other], Status::NoGpu),
        (vec![&hung, &idle], Status::Busy),
        (vec![&other, &hung, &idle], Status::Busy),
    ] {
        // Reading the program's debugging information takes longest, and tells nothing here.
        let mut args = vec!["dump", "--no-stacks"];
        args.extend(pids.iter().flat_map(|pid| ["-p", pid.as_str()]));
        let ended = Running::start(&nvcap()?, &args)?.end(LIMIT)?;
        ended
            .expect_code(status.code().into())
            .with_context(|| format!("{args:?}"))?;
        ensure!(
            ended.stderr.contains("uses no GPU") == pids.contains(&&other),
            "{}",
            ended.stderr
        );
        args.push("--watch=0.2");
        let ended = Running::start(&nvcap()?, &args)?.end(LIMIT)?;
        let status = match status {
            Status::Busy => Status::Hang,
            same => same,
        };
        ended
            .expect_code(status.code().into())
            .with_context(|| format!("{args:?}"))?;
    }
    let args = ["dump", "--no-stacks", "-p", &hung, "-p", "4194304"];
    for (watch, status) in [(None, Status::Error), (Some("--watch=0.2"), Status::Hang)] {
        let ended = Running::start(&nvcap()?, args.into_iter().chain(watch))?.end(LIMIT)?;
        ended.expect_code(status.code().into())?;
        ensure!(ended.stderr.contains("no such process"), "{}", ended.stderr);
    }
    Ok(())
}

/// One line that says what to do.
pub fn refusals() -> Result<()> {
    let gpu = start(&plan(76, 4, 100), &["--linger-ms=900000"])?;
    let folder = Folder::new()?;
    let copy = folder.file("nvcap");
    std::fs::copy(nvcap()?, &copy)?;
    let pid = gpu.pid().to_string();
    for (user, pid, word) in [
        (Some(65534), pid.as_str(), "sudo"),
        (None, "4194304", "no such process"),
    ] {
        let ended = Running::start_as(&copy, ["dump", "-p", pid], user)?.end(LIMIT)?;
        ended.expect_code(1)?;
        ensure!(ended.stderr.lines().count() == 1, "{}", ended.stderr);
        ensure!(ended.stderr.contains(word), "{}", ended.stderr);
    }
    let nothing = Running::start(&nvcap()?, ["dump"])?.end(LIMIT)?;
    nothing.expect_code(2)
}

/// The stacks of the threads, of those that wait and of those that spin; none where they are not wanted.
pub fn stacks() -> Result<()> {
    let mut gpu = start(&plan(80, 2, 200), &["--linger-ms=900000"])?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let process = one_look(&gpu, &[], Status::Idle)?;
    let threads = process["threads"].as_array().context("no threads")?;
    let native = |t: &Value| -> Vec<String> {
        let frames = t["native"]["frames"].as_array();
        let frames = frames.into_iter().flatten();
        frames.map(|f| f["module"].to_string()).collect()
    };
    ensure!(!threads.is_empty());
    for thread in threads {
        let modules = native(thread);
        ensure!(modules.iter().any(|m| m.contains("softgpu")), "{thread}");
        ensure!(thread["python"].is_null(), "{thread}");
        let end = &thread["native"]["end"];
        // Without BPF the frame pointer is not known.
        ensure!(end == "whole" || end == "no_table", "{thread}");
    }
    let text = dump(&gpu, &["--full-stacks"])?.stdout;
    ensure!(text.contains("          native  "), "{text}");
    let without = one_look(&gpu, &["--no-stacks"], Status::Idle)?;
    ensure!(without["threads"][0]["native"].is_null(), "{without}");
    Ok(())
}
