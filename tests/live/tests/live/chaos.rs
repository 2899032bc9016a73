//! Programs, traces and other tracers that come, stop each other, are killed and go, at random. Each trace must have every submission of
//! its time byte for byte, or count it, and nothing else.
//!
//! All follows from a seed: `NVCAP_CHAOS_SEED` sets it (`random`: one that nobody knows; 11), `NVCAP_CHAOS_ROUND` runs one round of it alone,
//! `NVCAP_CHAOS_SECONDS` says for how long (else a few rounds; five minutes with --nightly). What a failure says has the first two.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use live::census::{Objects, held_by_processes, is_there, nothing_left, objects};
use live::debugger::{Seized, threads};
use live::perf::Breakpoint;
use live::programs::{Folder, GUARD, Running, nvcap, softgpu};
use live::truth::{Account, Image, Watched, account};
use softgpu::clock::{monotonic, realtime};
use softgpu::layout::Channel;
use softgpu::plan::Plan;
use softgpu::rng::Rng;
use softgpu::run::EXEC_STRIDE;

use crate::setup::{LIMIT, gpus, need_tracing, plan, plan_args};

/// Traces of one program at once.
const TRACES: usize = 3;
/// Programs of a round.
const PROGRAMS: usize = 3;
/// Number of rounds where nobody says for how long.
const ROUNDS: u64 = 6;

fn number(name: &str) -> Result<Option<u64>> {
    let Some(text) = std::env::var_os(name) else {
        return Ok(None);
    };
    let number = text.to_str().and_then(|t| t.parse().ok());
    number
        .map(Some)
        .with_context(|| format!("{name} is no number"))
}

/// Counts of what happened.
#[derive(Debug, Default)]
struct Counts {
    of: BTreeMap<&'static str, u64>,
    submissions: u64,
    account: Account,
    /// Each act is printed, with its time.
    says: bool,
}

impl Counts {
    fn one(&mut self, what: &'static str) {
        if self.says {
            println!("chaos: at {}: {what}", monotonic());
        }
        *self.of.entry(what).or_default() += 1;
    }

    fn print(&self, seed: u64, rounds: u64, seconds: f64) {
        let of: Vec<String> = self
            .of
            .iter()
            .map(|(what, n)| format!("{n} {what}"))
            .collect();
        println!(
            "chaos of seed {seed}: {rounds} rounds in {seconds:.0} s: {}",
            of.join(", ")
        );
        let Account {
            exact,
            captured,
            counted,
            said,
            unwritten,
            late,
            ..
        } = self.account;
        println!(
            "chaos: {} submissions made; in the traces {exact}, each byte for byte ({late} of them late); of the time of the traces \
             {captured} are there, {counted} are counted as missing, {said} more are missing where the ledger says that an unknown \
             number is, {unwritten} were not written by a killed nvcap",
            self.submissions
        );
    }
}

/// A few rounds, or as many as there are in the time that is asked for.
pub fn seeded() -> Result<()> {
    need_tracing()?;
    let seed = match std::env::var("NVCAP_CHAOS_SEED").as_deref() {
        Ok("random") => realtime() % 1_000_000_000,
        _ => number("NVCAP_CHAOS_SEED")?.unwrap_or(11),
    };
    let seconds = number("NVCAP_CHAOS_SECONDS")?.map(Duration::from_secs);
    let only = number("NVCAP_CHAOS_ROUND")?;
    println!("chaos of seed {seed} (NVCAP_CHAOS_SEED={seed} repeats it)");
    let (begun, before) = (Instant::now(), objects()?);
    let (mut counts, mut rounds) = (Counts::default(), 0);
    counts.says = only.is_some();
    while seconds.map_or(rounds < ROUNDS, |all| begun.elapsed() < all) {
        let round = only.unwrap_or(rounds);
        Round::new(seed, round)
            .and_then(|r| r.run(&mut counts))
            .with_context(|| format!("NVCAP_CHAOS_SEED={seed} NVCAP_CHAOS_ROUND={round}"))?;
        rounds += 1;
    }
    counts.print(seed, rounds, begun.elapsed().as_secs_f64());
    left_over(&before)
}

/// No link may be left. On Linux 6.18 the kernel itself sometimes keeps breakpoints' programs of which no
/// process has a descriptor any more: they are counted, not held against nvcap.
fn left_over(before: &Objects) -> Result<()> {
    nothing_left(before, |kind| kind == "link")?;
    let left = &(&objects()? - before) - &held_by_processes();
    println!(
        "chaos: the kernel has {} programs and maps that no process has a descriptor of",
        left.len()
    );
    Ok(())
}

/// A program that submits.
struct Program {
    /// The program as it was started; none where a trace started it.
    running: Option<Running>,
    pid: u32,
    plan: Plan,
    killed: bool,
}

impl Program {
    fn is_alive(&mut self) -> bool {
        match &mut self.running {
            Some(running) => running.runs(),
            None => {
                let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
                stat.is_ok_and(|s| !s.contains(") Z"))
            }
        }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: of this test's own program. One that a trace started may have ended; its id is not given to another one so soon.
        unsafe { libc::kill(self.pid as libc::pid_t, signal) };
    }
}

/// An nvcap.
struct Trace {
    nvcap: Option<Running>,
    file: PathBuf,
    program: usize,
    /// Begin of the trace, CLOCK_MONOTONIC, 0 for the program's start; none while nvcap has not attached.
    from: Option<u64>,
    until: u64,
    killed: bool,
}

/// A few seconds, with an end that everything is verified at.
struct Round {
    seed: [u64; 2],
    rng: Rng,
    folder: Folder,
    logs: PathBuf,
    channels: PathBuf,
    programs: Vec<Program>,
    traces: Vec<Trace>,
    held: Vec<Breakpoint>,
}

impl Round {
    fn new(seed: u64, round: u64) -> Result<Round> {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new()?;
        let logs = folder.file("logs");
        std::fs::create_dir(&logs)?;
        // Some programs become nobody's, and execute.
        std::fs::set_permissions(&logs, std::fs::Permissions::from_mode(0o777))?;
        Ok(Round {
            seed: [seed, round],
            rng: Rng::new(&[seed, round]),
            channels: folder.channels()?,
            folder,
            logs,
            programs: Vec::new(),
            traces: Vec::new(),
            held: Vec::new(),
        })
    }

    fn run(mut self, counts: &mut Counts) -> Result<()> {
        let steps = 12 + self.rng.below(16);
        self.begin(counts)?;
        for step in 0..steps {
            // What a step does depends on the seed alone, not on what was possible before.
            let [seed, round] = self.seed;
            self.rng = Rng::new(&[seed, round, step]);
            let pause = Duration::from_millis(15 + self.rng.below(150));
            let until = Instant::now() + pause;
            while Instant::now() < until {
                self.watch();
                std::thread::sleep(Duration::from_millis(2));
            }
            self.act(counts).with_context(|| format!("step {step}"))?;
        }
        self.end(counts)
    }

    /// A program of any kind; by nvcap, or to be attached to.
    fn begin(&mut self, counts: &mut Counts) -> Result<()> {
        let rng = &mut self.rng;
        let channels = rng.pick(&[1, 2, 4, 8, 12]);
        let (workers, pace) = (1 + rng.below(6), rng.pick(&[300, 1000, 3000]));
        let mut plan = plan(
            rng.next() >> 16,
            (workers * 3_000_000 / (pace + 200)).clamp(200, 6000),
        );
        plan.channels = Channel::first(channels, gpus());
        let mut args = plan_args(&plan);
        args.extend([format!("--threads={workers}"), format!("--sleep-us={pace}")]);
        args.push(format!("--log={}", self.logs.display()));
        let (kind, option) = rng.pick(&[
            ("plain programs", ""),
            ("programs with thread churn", "--churn=3"),
            ("programs that fork", "--fork=1"),
            ("programs that execute others", "--spawn=1"),
            ("programs that execute themselves", "--exec=1"),
            ("programs that execute from a thread", "--exec-from-thread"),
            ("programs that give up root", "--nobody-after=20"),
        ]);
        if option == "--exec-from-thread" {
            args.push("--exec=1".to_owned());
        }
        args.extend((!option.is_empty()).then(|| option.to_owned()));
        args.extend(rng.one_in(4).then(|| "--page=both".to_owned()));
        args.extend(rng.one_in(4).then(|| "--churn=20".to_owned()));
        counts.one(kind);
        if rng.one_in(3) {
            return self.begin_traced(plan, args, counts);
        }
        let running = Running::start(&softgpu()?, args)?;
        self.programs.push(Program {
            pid: running.pid(),
            running: Some(running),
            plan,
            killed: false,
        });
        Ok(())
    }

    fn file(&self) -> PathBuf {
        self.folder
            .file(&format!("trace{}.json", self.traces.len()))
    }

    fn options(&self, file: &std::path::Path, how: &str) -> Vec<OsString> {
        let mut args: Vec<OsString> = ["--json", "-vv", "-e", "type=submission,entry", how, "-o"]
            .iter()
            .map(OsString::from)
            .collect();
        args.extend([
            file.into(),
            "--channels".into(),
            self.channels.clone().into(),
        ]);
        args
    }

    fn begin_traced(&mut self, plan: Plan, gpu: Vec<String>, counts: &mut Counts) -> Result<()> {
        let file = self.file();
        let mut args = self.options(&file, "--how=trap");
        args.extend(["--".into(), softgpu()?.into()]);
        args.extend(gpu.into_iter().map(OsString::from));
        let mut nvcap = Running::start(&nvcap()?, args)?;
        nvcap.wait_for_line("ready")?;
        let said = nvcap.stdout();
        let pid = said
            .lines()
            .find_map(|l| l.strip_prefix("pid ")?.parse().ok());
        self.traces.push(Trace {
            nvcap: Some(nvcap),
            file,
            program: self.programs.len(),
            from: Some(0),
            until: u64::MAX,
            killed: false,
        });
        self.programs.push(Program {
            running: None,
            pid: pid.context("no pid")?,
            plan,
            killed: false,
        });
        counts.one("traces from the start");
        Ok(())
    }

    /// Notes which traces have begun.
    fn watch(&mut self) {
        for trace in self.traces.iter_mut().filter(|t| t.from.is_none()) {
            let says = |nvcap: &Running| nvcap.stderr().contains("attached");
            if trace.nvcap.as_ref().is_some_and(says) {
                trace.from = Some(monotonic());
            }
        }
    }

    fn act(&mut self, counts: &mut Counts) -> Result<()> {
        let (what, program, trace) = (self.rng.below(24), self.rng.below(8), self.rng.below(8));
        let program = program as usize % self.programs.len();
        let alive = self.programs[program].is_alive();
        let trace = (!self.traces.is_empty()).then(|| trace as usize % self.traces.len().max(1));
        match what {
            0..7 if alive => self.attach(program, counts),
            7 if self.programs.len() < PROGRAMS => self.begin(counts),
            8 if alive => {
                self.programs[program].signal(libc::SIGKILL);
                self.programs[program].killed = true;
                counts.one("programs killed");
                Ok(())
            }
            9..12 if alive => self.debug(program, counts),
            12..14 if alive => {
                self.programs[program].signal(libc::SIGSTOP);
                std::thread::sleep(Duration::from_millis(5 + self.rng.below(80)));
                self.programs[program].signal(libc::SIGCONT);
                counts.one("programs stopped for a while");
                Ok(())
            }
            14..17 if alive => self.hold(program, counts),
            17 => {
                self.held.clear();
                Ok(())
            }
            18..22 => trace.map_or(Ok(()), |trace| self.end_trace(trace, counts)),
            22..24 => trace.map_or(Ok(()), |trace| self.stop_trace(trace, counts)),
            _ => Ok(()),
        }
    }

    /// `nvcap -p`.
    fn attach(&mut self, program: usize, counts: &mut Counts) -> Result<()> {
        let how = self.rng.pick(&[
            "--how=trap",
            "--how=trap",
            "--how=trap",
            "--precommit",
            "--how=observe",
        ]);
        let running = self.traces.iter_mut().filter(|t| t.program == program);
        let running = running.filter_map(|t| t.nvcap.as_mut()).map(Running::runs);
        if running.filter(|runs| *runs).count() >= TRACES {
            return Ok(());
        }
        let file = self.file();
        let mut args = self.options(&file, how);
        args.extend(["-p".into(), self.programs[program].pid.to_string().into()]);
        self.traces.push(Trace {
            nvcap: Some(Running::start(&nvcap()?, args)?),
            file,
            program,
            from: None,
            until: u64::MAX,
            killed: false,
        });
        counts.one(match how {
            "--how=observe" => "traces that observe",
            "--precommit" => "attached traces with --precommit",
            _ => "attached traces",
        });
        Ok(())
    }

    fn end_trace(&mut self, trace: usize, counts: &mut Counts) -> Result<()> {
        let signal = self
            .rng
            .pick(&[libc::SIGINT, libc::SIGINT, libc::SIGTERM, libc::SIGKILL]);
        self.watch();
        let trace = &mut self.traces[trace];
        let Some(nvcap) = trace.nvcap.as_mut().filter(|_| trace.until == u64::MAX) else {
            return Ok(());
        };
        if !nvcap.runs() {
            return Ok(());
        }
        trace.until = monotonic();
        nvcap.signal(signal)?;
        trace.killed = signal == libc::SIGKILL;
        counts.one(match signal {
            libc::SIGKILL => "traces killed",
            libc::SIGINT => "traces interrupted",
            _ => "traces terminated",
        });
        Ok(())
    }

    fn stop_trace(&mut self, trace: usize, counts: &mut Counts) -> Result<()> {
        let pause = Duration::from_millis(5 + self.rng.below(80));
        let Some(nvcap) = self.traces[trace].nvcap.as_mut() else {
            return Ok(());
        };
        if nvcap.runs() {
            nvcap.signal(libc::SIGSTOP)?;
            std::thread::sleep(pause);
            nvcap.signal(libc::SIGCONT)?;
            counts.one("traces stopped for a while");
        }
        Ok(())
    }

    /// A debugger or checkpointer seizes all threads, stops them, looks or steps, lets them go.
    fn debug(&mut self, program: usize, counts: &mut Counts) -> Result<()> {
        let (kind, which) = (self.rng.below(3), self.rng.below(64));
        let program = &self.programs[program];
        if program.running.is_none() {
            // Its end is another's to wait for.
            return Ok(());
        }
        let Some(mut seized) = Seized::new(program.pid)? else {
            return Ok(());
        };
        seized.stop()?;
        match kind {
            0 => {
                // It may end meanwhile.
                if seized.read_all().is_ok() {
                    counts.one("checkpoints");
                }
            }
            1 => {
                let all = seized.threads();
                if let Some(tid) = all.get(which as usize % all.len().max(1)) {
                    seized.step(*tid, 100)?;
                    counts.one("threads single-stepped");
                }
            }
            _ => {
                seized.go_on()?;
                std::thread::sleep(Duration::from_millis(5));
                counts.one("ptrace stops");
            }
        }
        Ok(())
    }

    /// Takes debug registers away from some threads.
    fn hold(&mut self, program: usize, counts: &mut Counts) -> Result<()> {
        static WORD: u64 = 0;
        let registers = 1 + self.rng.below(4);
        let share = 1 + self.rng.below(3);
        let pid = self.programs[program].pid;
        let before = self.held.len();
        for tid in threads(pid).unwrap_or_default() {
            if u64::from(tid) % share != 0 {
                continue;
            }
            for _ in 0..registers {
                // There may be none left, or no thread.
                let held = Breakpoint::watch(tid, &raw const WORD as u64, false);
                self.held.extend(held.ok());
            }
        }
        if self.held.len() > before {
            counts.one("debug registers taken away");
        }
        Ok(())
    }

    /// Everything ends, and is verified.
    fn end(mut self, counts: &mut Counts) -> Result<()> {
        let [seed, round] = self.seed;
        self.rng = Rng::new(&[seed, round, u64::MAX]);
        for trace in 0..self.traces.len() {
            if self.rng.one_in(3) {
                self.end_trace(trace, counts)?;
            }
        }
        for program in 0..self.programs.len() {
            let kill = self.rng.one_in(4);
            if kill && self.programs[program].is_alive() {
                self.programs[program].signal(libc::SIGKILL);
                self.programs[program].killed = true;
                counts.one("programs killed");
            }
        }
        let begun = Instant::now();
        while self.programs.iter_mut().any(Program::is_alive) {
            self.watch();
            ensure!(begun.elapsed() < GUARD, "guard: a program does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.held.clear();
        for program in &mut self.programs {
            let Some(running) = program.running.take() else {
                continue;
            };
            let ended = running.end(LIMIT)?;
            // Where threads with breakpoints have ended, the kernel counts registers of others as free (docs/limitations.md): it gives a thread
            // more breakpoints than there are, and refuses a new thread that would inherit them.
            if !program.killed
                && ended.stderr.contains("failed to spawn thread")
                && ended.stderr.contains("code: 28")
            {
                counts.one("programs that the kernel refused a thread");
                program.killed = true;
            }
            if !program.killed {
                ended.expect_code(0).context("a program was harmed")?;
            }
        }
        self.end_stuck_children(counts)?;
        self.end_traces(counts)
    }

    /// A child may wait for ever for a lock of its parent's, which was killed with it.
    fn end_stuck_children(&self, counts: &mut Counts) -> Result<()> {
        for program in self.programs.iter().filter(|p| p.killed) {
            let images = self.images_of(program)?;
            let begun = Instant::now();
            for (child, _) in images.iter().flat_map(Image::children) {
                while is_there(*child) && begun.elapsed() < LIMIT / 4 {
                    std::thread::sleep(Duration::from_millis(20));
                }
                if is_there(*child) {
                    // SAFETY: a child of this test's own program, which is still there.
                    unsafe { libc::kill(*child as libc::pid_t, libc::SIGKILL) };
                    counts.one("children that waited for a killed parent");
                }
            }
        }
        Ok(())
    }

    fn images_of(&self, program: &Program) -> Result<Vec<Image>> {
        let image = |pid: u32, number: u32| {
            let mut plan = program.plan.clone();
            plan.shape.image = number;
            Image::read(&self.logs, pid, &plan)
        };
        let mut all = Vec::new();
        for of_exec in [0, EXEC_STRIDE] {
            let Some(own) = image(program.pid, of_exec)? else {
                continue;
            };
            for (child, _) in own.children() {
                all.extend(image(*child, of_exec + 1)?);
            }
            all.push(own);
        }
        Ok(all)
    }

    fn end_traces(mut self, counts: &mut Counts) -> Result<()> {
        let mut ends = Vec::new();
        for number in 0..self.traces.len() {
            if let Some(nvcap) = self.traces[number].nvcap.take() {
                let ended = nvcap
                    .end(LIMIT)
                    .with_context(|| format!("trace {number}"))?;
                let trace = &mut self.traces[number];
                if trace.from.is_none() && ended.stderr.contains("attached") {
                    // Nobody saw when.
                    trace.from = Some(u64::MAX);
                }
                ends.push((number, ended));
            }
        }
        // Children of a killed program go on, and write their logs.
        let mut images = Vec::new();
        for program in &self.programs {
            let mut of = self.images_of(program)?;
            let children: Vec<u32> = of.iter().flat_map(|i| i.children()).map(|c| c.0).collect();
            let begun = Instant::now();
            while children.iter().any(|pid| is_there(*pid)) {
                ensure!(begun.elapsed() < GUARD, "guard: a child does not end");
                std::thread::sleep(Duration::from_millis(20));
            }
            if !children.is_empty() {
                of = self.images_of(program)?;
            }
            counts.submissions += of.iter().map(Image::submissions).sum::<u64>();
            images.push(of);
        }
        for (number, ended) in ends {
            let trace = &self.traces[number];
            let Some(from) = trace.from else {
                if trace.until == u64::MAX {
                    ensure!(
                        !ended.stderr.is_empty(),
                        "trace {number}: nothing is said of why it did not begin"
                    );
                }
                counts.one(why_not(&ended.stderr));
                continue;
            };
            let watched = Watched {
                pid: self.programs[trace.program].pid,
                from,
                until: trace.until,
                killed: trace.killed,
            };
            let say = || {
                format!(
                    "trace {number} ({}) of {watched:?}: {}",
                    trace.file.display(),
                    ended.stderr
                )
            };
            let account =
                account(&trace.file, &images[trace.program], watched).with_context(say)?;
            if !trace.killed {
                let code = if account.complete { 0 } else { 3 };
                ended.expect_code(code).with_context(say)?;
                counts.one(if account.complete {
                    "complete ledgers"
                } else {
                    "incomplete ledgers"
                });
            }
            counts.account += account;
        }
        Ok(())
    }
}

/// Tells why a trace did not begin, by what it said.
fn why_not(said: &str) -> &'static str {
    let known = [
        (
            "no debug register is left",
            "traces refused for want of a debug register",
        ),
        ("process is gone", "traces of programs that had ended"),
        ("no such process", "traces of programs that had ended"),
    ];
    let why = known.iter().find(|(words, _)| said.contains(words));
    if why.is_none() && !said.is_empty() {
        println!("a trace did not begin: {said}");
    }
    why.map_or("traces that did not begin", |(_, what)| what)
}
