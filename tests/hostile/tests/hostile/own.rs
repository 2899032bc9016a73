//! nvcap itself under bad conditions: too little memory, no descriptors, no reader, killed at any moment.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hostile::mode::{Mode, find};
use live::needs::need_tracing;
use live::programs::Folder;
use softgpu::rng::Rng;

use crate::judge::{honest, orderly, read, truth, unharmed};
use crate::modes::{Way, attached, attached_by, end_noted_server, one, tracer, untraced};
use crate::run::Running;

fn mode(name: &str) -> Result<&'static Mode> {
    find(name).with_context(|| format!("no mode {name}"))
}

fn both(test: impl Fn(Way) -> Result<()>) -> Result<()> {
    need_tracing()?;
    for way in [Way::TrapAttached, Way::ObserveAttached] {
        test(way).with_context(|| way.name())?;
    }
    Ok(())
}

/// Attaches with one thing changed for nvcap. A refusal is a valid answer; otherwise the trace is compared with the counts.
fn changed(name: &str, way: Way, change: impl FnOnce(&mut Command)) -> Result<()> {
    let mode = mode(name)?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut tracer = tracer(mode, way, &folder, &trace)?;
    change(&mut tracer);
    let (nvcap, program) = attached(mode, way, tracer)?;
    unharmed(&*untraced(mode)?, &program.out, program.status)?;
    let code = orderly(&nvcap)?;
    if code == 1 {
        ensure!(nvcap.err.starts_with("nvcap: "), "{}", nvcap.err);
        return Ok(());
    }
    let truth = truth(&program.out)?;
    let got = read(&trace).with_context(|| nvcap.err.clone())?;
    honest(code, &got, Some(&truth)).with_context(|| nvcap.err.clone())
}

/// A ring buffer of the smallest size, and as many submissions as possible.
pub fn small_buffer() -> Result<()> {
    both(|way| {
        changed("rings::storm", way, |c| {
            c.arg("--buffer=64K");
        })
    })
}

fn limited(resource: libc::__rlimit_resource_t, most: u64) -> Result<()> {
    both(|way| {
        changed("ends::left_mapped", way, |command| {
            let limit = libc::rlimit {
                rlim_cur: most,
                rlim_max: most,
            };
            let set = move || {
                // SAFETY: the kernel reads the structure.
                match unsafe { libc::setrlimit(resource, &limit) } {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            };
            // SAFETY: one system call, between fork and exec.
            unsafe { command.pre_exec(set) };
        })
    })
}

/// Few descriptors.
pub fn few_descriptors() -> Result<()> {
    limited(libc::RLIMIT_NOFILE, 64)
}

/// Fewer than it needs.
pub fn no_descriptors() -> Result<()> {
    limited(libc::RLIMIT_NOFILE, 8)
}

/// Little address space.
pub fn little_memory() -> Result<()> {
    limited(libc::RLIMIT_AS, 1 << 30)
}

/// No more processes, if the kernel applies that limit to nvcap's user.
pub fn few_processes() -> Result<()> {
    limited(libc::RLIMIT_NPROC, 1)
}

/// Running processes are stopped at their end, too; or no process is stopped.
pub fn stop_at_exit() -> Result<()> {
    for (way, which) in [
        (Way::ObserveAttached, "always"),
        (Way::ObserveAttached, "never"),
        (Way::Observe, "always"),
        (Way::Observe, "never"),
    ] {
        for name in [
            "ends::left_mapped",
            "ends::sigkill",
            "ends::first_thread_ends",
        ] {
            let flag = format!("--stop-at-exit={which}");
            one(mode(name)?, way, &[&flag]).with_context(|| format!("{name} {way:?} {which}"))?;
        }
    }
    Ok(())
}

/// Nothing reads its output: its standard output is closed, or the reader is gone.
pub fn output_closed() -> Result<()> {
    both(|way| {
        for closed in [true, false] {
            let mode = mode("ends::left_mapped")?;
            let folder = Folder::new()?;
            let mut tracer = tracer(mode, way, &folder, "-".as_ref())?;
            if closed {
                // SAFETY: one system call, between fork and exec.
                unsafe {
                    tracer.pre_exec(|| {
                        libc::close(1);
                        Ok(())
                    });
                }
            } else {
                let (reader, writer) = std::io::pipe()?;
                drop(reader);
                tracer.stdout(Stdio::from(writer));
            }
            let (nvcap, program) = attached_by(mode, way, tracer, Running::start_with_output)?;
            unharmed(&*untraced(mode)?, &program.out, program.status)?;
            let code = nvcap.status.code();
            let words = format!("closed {closed}: {}: {}", nvcap.status, nvcap.err);
            ensure!(
                code != Some(101) && !nvcap.err.contains("panicked"),
                "{words}"
            );
            // The reader's end is a regular end (`| head`): SIGPIPE, or a status for it.
            ensure!(code.is_some() || !closed, "{words}");
        }
        Ok(())
    })
}

/// Killed at twenty moments: the target ends as if untraced.
pub fn killed() -> Result<()> {
    let mut rng = Rng::new(&[7, 1]);
    let moments: Vec<(u64, i32)> = (0..20)
        .map(|_| {
            let signal = rng.pick(&[libc::SIGKILL, libc::SIGTERM, libc::SIGINT]);
            (rng.below(60), signal)
        })
        .collect();
    both(|way| {
        let mode = mode("signals::timers")?;
        for (moment, signal) in &moments {
            let folder = Folder::new()?;
            let trace = folder.file("trace.json");
            let tracer = tracer(mode, way, &folder, &trace)?;
            let (nvcap, mut program) = crate::modes::watched(mode, way, tracer, Running::start)?;
            program.go()?;
            std::thread::sleep(Duration::from_millis(*moment));
            nvcap.signal(*signal);
            let nvcap = nvcap.end().context("nvcap")?;
            let program = program.end().context("the target")?;
            unharmed(&*untraced(mode)?, &program.out, program.status)?;
            if *signal != libc::SIGKILL {
                orderly(&nvcap)?;
            }
        }
        Ok(())
    })
}

/// Names reach a terminal as printable characters only, and no name starts a line of its own.
pub fn names_as_text() -> Result<()> {
    need_tracing()?;
    for way in [Way::Trap, Way::Observe] {
        for name in ["names::of_threads", "names::of_mappings"] {
            let mode = mode(name)?;
            let folder = Folder::new()?;
            let text = folder.file("trace.txt");
            let mut tracer = tracer(mode, way, &folder, &text)?;
            let args: Vec<_> = tracer
                .get_args()
                .filter(|a| *a != "--json")
                .map(Into::into)
                .collect::<Vec<std::ffi::OsString>>();
            let mut plain = Command::new(tracer.get_program());
            plain
                .args(args)
                .arg("--")
                .arg(crate::run::target())
                .arg(mode.name);
            tracer = plain;
            let nvcap = Running::start(tracer)?.end()?;
            orderly(&nvcap)?;
            let written = std::fs::read(&text)?;
            let shown = String::from_utf8(written).context("not UTF-8")?;
            ensure!(!shown.is_empty(), "no text");
            let bad = shown
                .chars()
                .find(|c| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c));
            ensure!(bad.is_none(), "{name}: {bad:?} in the text");
        }
    }
    Ok(())
}

/// A process with 60,000 mappings, which cost much to read: observing it ends well, and tells what it used. (How much: `cargo xtask bench live
/// mappings`.)
pub fn budget_of_many_mappings() -> Result<()> {
    let mode = mode("mappings::many")?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut tracer = tracer(mode, Way::Observe, &folder, &trace)?;
    tracer
        .arg("--observe-cpu=2%")
        .arg("--")
        .arg(crate::run::target())
        .arg(mode.name)
        .env(hostile::mappings::STAY_MS, "1000");
    let nvcap = Running::start(tracer)?.end()?;
    let code = orderly(&nvcap)?;
    let got = read(&trace).with_context(|| nvcap.err.clone())?;
    let ns = |name: &str| got.ledger["observed"][name].as_f64().unwrap_or(f64::NAN);
    ensure!(ns("cpu_ns") > 0.0 && ns("wall_ns") > 1e9, "{}", got.ledger);
    honest(code, &got, Some(&truth(&nvcap.out)?))
}

/// The program's own file has such a name.
pub fn names_of_programs() -> Result<()> {
    need_tracing()?;
    use std::os::unix::ffi::OsStrExt;
    let mode = mode("ends::left_mapped")?;
    for way in [Way::Trap, Way::Observe] {
        for name in hostile::names::NAMES {
            let folder = Folder::new()?;
            let program = folder
                .file("x")
                .with_file_name(std::ffi::OsStr::from_bytes(name));
            std::fs::hard_link(crate::run::target(), &program)
                .or_else(|_| std::fs::copy(crate::run::target(), &program).map(drop))?;
            let trace = folder.file("trace.json");
            let mut tracer = tracer(mode, way, &folder, &trace)?;
            tracer.arg("--").arg(&program).arg(mode.name);
            let nvcap = Running::start(tracer)?.end()?;
            unharmed(&*untraced(mode)?, &nvcap.out, untraced(mode)?.status)?;
            let code = orderly(&nvcap)?;
            ensure!(code == 0, "{name:?}: status {code}: {}", nvcap.err);
            honest(code, &read(&trace)?, Some(&truth(&nvcap.out)?))?;
        }
    }
    Ok(())
}

/// Processes of one user whose memory does not answer.
const SILENT: usize = 48;
/// Reads of a user's processes that nvcap leaves alone at a time (`MOST_OF_USER` of procfs/errands.rs).
const LEFT_OF_USER: usize = 16;

/// Processes of nvcap's that read for it, and its threads: each thread may have one that waits for work, and leave one beyond the bound.
fn errands(nvcap: u32) -> Result<(usize, usize)> {
    let mut count = 0;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.split_once('(').and_then(|(_, s)| s.rsplit_once(')')) else {
            continue;
        };
        let mut words = rest.split_whitespace();
        let (state, parent) = (words.next(), words.next());
        let is = name == "nvcap-errand" && parent == Some(&nvcap.to_string());
        count += usize::from(is && state != Some("Z"));
    }
    let threads = std::fs::read_dir(format!("/proc/{nvcap}/task"))?.count();
    Ok((count, threads))
}

/// Many processes of one user whose memory does not answer: so many reads are left alone and no more; another process of that user is not read
/// meanwhile, which is told, and is read again once reads have ended.
pub fn many_that_do_not_answer() -> Result<()> {
    if std::fs::File::open("/dev/fuse").is_err() || !hostile::served::has_faults() {
        println!("NOT RUN own::many_that_do_not_answer: no /dev/fuse, or no userfaultfd");
        return Ok(());
    }
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let (mut silent, mut notes) = (Vec::new(), Vec::new());
    let start = |args: &[&str], note: &std::path::Path| {
        let mut command = Command::new(crate::run::target());
        command
            .args(args)
            .args(["--files", "--wait", "--go-on"])
            .env(hostile::served::NOTE, note);
        let mut program = Running::start(command)?;
        program.wait_until("ready", |r| r.out().contains("ready\n"))?;
        anyhow::Ok(program)
    };
    for n in 0..SILENT {
        let note = folder.file(&format!("server.{n}"));
        silent.push(start(&["served::faults"], &note)?);
        notes.push(note);
    }
    let mut beside = start(&["ends::left_mapped", "--stranger"], &folder.file("none"))?;
    let all = silent.iter().chain([&beside]).map(|r| r.pid().to_string());
    let pids: Vec<String> = all.collect();
    let mut tracer = crate::run::nvcap()?;
    tracer
        .args(["--how", "observe", "--json", "-e", "type=submission"])
        .args(["--no-follow", "-p", &pids.join(","), "-o"])
        .arg(&trace)
        .env("NVCAP_DEVICES_BY_NAME", "1")
        .env("NVCAP_LOG", "warn");
    let mut nvcap = Running::start(tracer)?;
    let attached = |r: &Running| r.err().matches("attached").count() >= pids.len();
    nvcap.wait_until("all attached", attached)?;
    beside.go()?;
    let own = format!("\"pid\":{},", beside.pid());
    let seen = || -> usize {
        let text = std::fs::read_to_string(&trace).unwrap_or_default();
        text.lines().filter(|line| line.contains(&own)).count()
    };
    nvcap.wait_until("it is traced", |_| seen() > 50)?;
    // Stopped meanwhile, nvcap has not read the rings when their memory answers no more: else it would have no need to read them again.
    nvcap.signal(libc::SIGSTOP);
    silent.iter_mut().try_for_each(Running::go)?;
    let is_noted = |note: &PathBuf| std::fs::metadata(note).is_ok_and(|m| m.len() > 0);
    beside.wait_until("no memory answers", |_| notes.iter().all(is_noted))?;
    nvcap.signal(libc::SIGCONT);
    let refused = format!("process {}: its memory is not read until", beside.pid());
    let most = std::cell::Cell::new((0, 0));
    let told = |r: &Running| {
        most.set(most.get().max(errands(r.pid()).unwrap_or_default()));
        let (count, threads) = most.get();
        r.err().contains(&refused) || count > LEFT_OF_USER + 2 * threads
    };
    nvcap.wait_until("it is not read, or more are left", told)?;
    let (count, threads) = most.get();
    ensure!(
        count <= LEFT_OF_USER + 2 * threads,
        "{count} processes read for {threads} threads"
    );
    // Their file systems' programs end, and so do the reads.
    let before = seen();
    notes.iter().try_for_each(|note| end_noted_server(note))?;
    nvcap.wait_until("it is traced again", |_| seen() > before + 100)?;
    for program in silent.iter_mut().chain([&mut beside]) {
        program.go()?;
    }
    for program in silent.into_iter().chain([beside]) {
        program.end().context("a target")?;
    }
    let nvcap = nvcap.end()?;
    let code = orderly(&nvcap)?;
    let got = std::fs::read_to_string(&trace)?;
    let ledger = got.lines().last().unwrap_or_default();
    ensure!(code == 3, "status {code}: {}", nvcap.err);
    ensure!(
        ledger.contains("its memory is not read until a read of another process has ended"),
        "{ledger}"
    );
    if std::env::var_os("HOSTILE_SHOW").is_some() {
        println!("    {count} processes read for {threads} threads");
    }
    Ok(())
}

/// The most memory of a trace of a flood: what nvcap has of its own, and the bounds of docs/security.md for one process.
const FLOODED: u64 = 512 << 20;
/// The most memory of an export of one, whatever the recording has.
const EXPORTED: u64 = 128 << 20;

/// What a process gives a tracer to remember without an end has a bound, with the GPU's times, too.
pub fn floods() -> Result<()> {
    both(|way| {
        for name in [
            "floods::programs",
            "floods::semaphores",
            "floods::notifiers",
        ] {
            let mode = mode(name)?;
            let folder = Folder::new()?;
            let trace = folder.file("trace.json");
            let mut tracer = tracer(mode, way, &folder, &trace)?;
            tracer.arg("--gpu-time");
            let (nvcap, program) = attached(mode, way, tracer)?;
            unharmed(&*untraced(mode)?, &program.out, program.status)?;
            let code = orderly(&nvcap).context(name)?;
            let got = read(&trace).with_context(|| nvcap.err.clone())?;
            honest(code, &got, Some(&truth(&program.out)?)).with_context(|| nvcap.err.clone())?;
            let peak = nvcap.peak;
            ensure!(peak <= FLOODED, "{name}: nvcap had {} MiB", peak >> 20);
            let faults = got.ledger["faults"].as_array().map_or(0, Vec::len);
            ensure!(faults <= 256, "{name}: the ledger keeps {faults} faults");
        }
        Ok(())
    })
}

/// Threads that come and go are all in what is exported, and none is remembered for ever.
pub fn threads_that_are_exported() -> Result<()> {
    both(|way| {
        let mode = mode("floods::threads")?;
        let folder = Folder::new()?;
        let (trace, recording) = (folder.file("trace.json"), folder.file("trace.pcapng"));
        let mut tracer = tracer(mode, way, &folder, &trace)?;
        tracer.arg("--record").arg(&recording);
        let (nvcap, program) = attached(mode, way, tracer)?;
        unharmed(&*untraced(mode)?, &program.out, program.status)?;
        orderly(&nvcap)?;
        for format in ["perfetto", "kineto", "nsys-sqlite"] {
            let mut export = crate::run::nvcap()?;
            let to = folder.file(&format!("exported.{format}"));
            export
                .arg("export")
                .arg(format)
                .arg("--force")
                .arg("-o")
                .arg(to)
                .arg(&recording);
            let ended = Running::start(export)?.end().context(format)?;
            orderly(&ended).context(format)?;
            let peak = ended.peak;
            ensure!(peak <= EXPORTED, "{format}: nvcap had {} MiB", peak >> 20);
        }
        Ok(())
    })
}
