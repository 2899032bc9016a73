//! Names of kernels: those of the software GPU's functions, whose records lie elsewhere than libcuda's.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use live::programs::{Folder, Running, Until, nvcap, so_far, softgpu};
use serde_json::Value;

use crate::attach::attach_to;
use crate::setup::{LIMIT, REPEATS, need_tracing};

/// Functions of the software GPU: their programs, and their names as the compiler wrote them.
fn functions() -> BTreeMap<u64, String> {
    use softgpu::kernels;
    (0..kernels::COUNT)
        .map(|n| (kernels::program(n), kernels::name(n)))
        .collect()
}

fn launches(trace: &Path) -> Result<Vec<Value>> {
    let objects = live::json_lines::of_file(trace)?;
    let launches = objects.into_iter().filter(|o| o["op"] == "launch");
    Ok(launches.collect())
}

/// Repeats a run until every launch in its trace has a name. nvcap searches for a limited time: on a busy machine the search may get no processor
/// in it. A name that is wrong ends it at once.
fn expect_names_of(run: impl Fn(&Folder, &Path) -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let folder = Folder::new()?;
        let trace = folder.file("trace.json");
        run(&folder, &trace)?;
        let unnamed = unnamed(&trace)?;
        if unnamed == 0 {
            return Ok(());
        }
        println!("    {unnamed} launches without a name in time");
        ensure!(
            begun.elapsed() < REPEATS,
            "guard: no run has all names, {unnamed} launches of the last one have none"
        );
    }
}

/// Counts the launches that have no name. All others have that of their function, and how it was found; and once a program's name was found,
/// all its launches have it.
fn unnamed(trace: &Path) -> Result<usize> {
    let launches = launches(trace)?;
    ensure!(launches.len() > 50, "{} launches", launches.len());
    let functions = functions();
    let (mut named, mut unnamed) = (BTreeSet::new(), 0);
    for launch in &launches {
        let program = launch["program"].as_u64().context("a program")?;
        if launch["kernel"].is_null() && !named.contains(&program) {
            unnamed += 1;
            continue;
        }
        named.insert(program);
        let name = functions.get(&program).context("a function")?;
        ensure!(
            launch["kernel_mangled"] == name.as_str()
                && launch["kernel_certain"] == true
                && launch["kernel_from"] == "record",
            "{launch}"
        );
        let shown = launch["kernel"].as_str().unwrap_or_default();
        ensure!(
            shown.starts_with("void kernel<") && shown.ends_with(">(float*)"),
            "{shown}"
        );
        let all = launch["arguments"].as_array().context("no arguments")?;
        ensure!(
            all.len() == 1 && all[0]["type"] == "float*" && all[0]["size"] == 8,
            "{launch}"
        );
    }
    Ok(unnamed)
}

/// A command that ends at once: its end is held until its kernels' names are found.
pub fn short_command() -> Result<()> {
    need_tracing()?;
    for how in ["trap", "observe"] {
        let run = |folder: &Folder, trace: &Path| {
            let mut args: Vec<OsString> = ["--json", "-e", "op=launch", "-o"]
                .map(OsString::from)
                .to_vec();
            args.push(trace.into());
            args.extend([format!("--how={how}").into(), "--channels".into()]);
            args.extend([folder.channels()?.into(), "--".into(), softgpu()?.into()]);
            args.extend(
                [
                    "--kernels",
                    "--submissions=300",
                    "--threads=2",
                    "--leave-mapped",
                    "--linger-ms=0",
                ]
                .map(OsString::from),
            );
            Running::start(&nvcap()?, args)?.end(LIMIT)?.expect_code(0)
        };
        expect_names_of(run).with_context(|| how.to_owned())?;
    }
    Ok(())
}

/// Attached to while it runs, by either way.
pub fn attached() -> Result<()> {
    need_tracing()?;
    for how in ["--how=trap", "--how=observe"] {
        let run = |folder: &Folder, trace: &Path| {
            let stay = Until::new(folder, "stay")?;
            let args = [
                "--kernels",
                "--submissions=1200",
                "--before-wait=7",
                "--wait-stdin",
                &stay.stay(),
            ];
            let mut gpu = Running::start(&softgpu()?, args)?;
            gpu.wait_for_line("waiting")?;
            let flags = ["--json", "-e", "op=launch", how].map(OsString::from);
            let nvcap = attach_to(gpu.pid(), trace, folder.channels()?, &flags)?;
            gpu.write(b"g")?;
            gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
            // What it has not yet read is there until it has ended.
            nvcap.signal(libc::SIGINT)?;
            nvcap.end(LIMIT)?.expect_code(0)?;
            stay.release()?;
            gpu.end(LIMIT)?.expect_code(0)
        };
        expect_names_of(run).context(how)?;
    }
    Ok(())
}

/// Modules that come one after another, in memory that was touched long before: near each other, and some anywhere. Which of their launches have
/// names in time depends on the machine; the names are right. (How many: `cargo xtask bench live names`; a bench of the same: docs/names.md.)
pub fn modules_that_keep_coming() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let (hold, stay) = (Until::new(&folder, "hold")?, Until::new(&folder, "stay")?);
    let args = [
        "--kernels",
        "--private-mb=64",
        "--module-every=60",
        "--channels=1",
        "--threads=1",
        "--submissions=1000",
        // Held, it submits for a minute at least: the names of a module may be found long after it was loaded.
        "--sleep-us=10000",
        "--before-wait=20",
        "--wait-stdin",
        &stay.stay(),
        &hold.hold(),
    ];
    let mut gpu = Running::start(&softgpu()?, args)?;
    gpu.wait_for_line("waiting")?;
    let flags = ["--json", "-e", "op=launch"].map(OsString::from);
    let mut nvcap = attach_to(gpu.pid(), &trace, folder.channels()?, &flags)?;
    gpu.write(b"g")?;
    // Names of several modules are there while it goes on.
    nvcap.wait_until("showing names of several modules", LIMIT, |_| {
        let text = std::fs::read_to_string(&trace).unwrap_or_default();
        let named = text.lines().filter(|l| l.contains("\"kernel_mangled\""));
        let named = named.filter_map(|l| serde_json::from_str::<Value>(l).ok());
        let modules: BTreeSet<u64> = named.filter_map(|l| module(&l).ok()).collect();
        modules.len() > 3
    })?;
    hold.release()?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    nvcap.signal(libc::SIGINT)?;
    nvcap.end(LIMIT)?.expect_code(0)?;
    stay.release()?;
    gpu.end(LIMIT)?.expect_code(0)?;
    let mut modules = BTreeSet::new();
    for launch in &launches(&trace)? {
        modules.insert(module(launch)?);
        if launch["kernel"].is_null() {
            continue;
        }
        let program = launch["program"].as_u64().context("a program")?;
        let number = (program - softgpu::kernels::program(0)) / 0x1000;
        ensure!(
            launch["kernel_mangled"] == softgpu::kernels::name(number).as_str(),
            "{launch}"
        );
    }
    ensure!(modules.len() > 12, "{} modules", modules.len());
    Ok(())
}

/// Returns the number of the module whose function is launched.
fn module(launch: &Value) -> Result<u64> {
    let program = launch["program"].as_u64().context("a program")?;
    Ok((program - softgpu::kernels::program(0)) / 0x1000 / softgpu::kernels::COUNT)
}

/// Time for which a search in files may take, on any machine.
const SEARCHED: Duration = Duration::from_secs(120);

/// Functions of which nothing is in the process's memory, but whose code is uploaded and lies, compressed, in a file that it has mapped.
pub fn mapped_file() -> Result<()> {
    need_tracing()?;
    for how in ["--how=trap", "--how=observe"] {
        let folder = Folder::new()?;
        let (trace, file) = (folder.file("trace.json"), folder.file("program"));
        std::fs::write(&file, softgpu::kernels::program_file())?;
        let mut args: Vec<OsString> = [how, "--json", "-e", "op=launch", "-o"]
            .map(OsString::from)
            .to_vec();
        args.extend([trace.clone().into(), "--channels".into()]);
        args.extend([folder.channels()?.into(), "--".into(), softgpu()?.into()]);
        args.extend(["--kernels-in".into(), file.into()]);
        let hold = Until::new(&folder, "hold")?;
        args.extend(
            [
                "--submissions=400",
                "--channels=1",
                "--threads=1",
                "--sleep-us=3000",
                &hold.hold(),
                "--leave-mapped",
            ]
            .map(OsString::from),
        );
        let mut nvcap = Running::start(&nvcap()?, args)?;
        let names = || so_far(&trace, "\"kernel_from\":\"file\"");
        // Held, it makes none of its last launches. They have names where the search got no processor before.
        let begun = Instant::now();
        while names() == 0 && begun.elapsed() < SEARCHED && nvcap.runs() {
            std::thread::sleep(Duration::from_millis(50));
        }
        hold.release()?;
        nvcap.end(LIMIT)?.expect_code(0)?;
        ensure!(names() > 0, "{how}: no name");
        let launches = launches(&trace)?;
        let functions = functions();
        for launch in launches.iter().filter(|l| !l["kernel"].is_null()) {
            let program = launch["program"].as_u64().context("a program")?;
            let name = functions.get(&program).context("a function")?;
            ensure!(
                launch["kernel_mangled"] == name.as_str()
                    && launch["kernel_certain"] == true
                    && launch["kernel_from"] == "file",
                "{launch}"
            );
        }
        // A program's first launches may be shown before its name is known.
        ensure!(launches.len() > 50, "{how}: {} launches", launches.len());
    }
    Ok(())
}

/// `nvcap code ADDRESS -p PID` shows the code of the function whose program is there.
pub fn code_by_address() -> Result<()> {
    need_tracing()?;
    let args = [
        "--files",
        "--kernels",
        "--submissions=300",
        "--linger-ms=900000",
    ];
    let mut gpu = Running::start(&softgpu()?, args)?;
    gpu.wait_until("done", LIMIT, |r| r.stdout().contains("done image=0"))?;
    let code = |address: u64, more: &[&str]| {
        let pid = gpu.pid().to_string();
        let address = format!("{address:#x}");
        let mut args = vec!["code", &address, "-p", &pid];
        args.extend(more);
        Running::start(&nvcap()?, args)?.end(LIMIT)
    };
    for number in [0, 7] {
        let program = softgpu::kernels::program(number);
        let ended = code(program, &["--json"])?;
        ended.expect_code(0)?;
        let shown: Value = serde_json::from_str(&ended.stdout)?;
        ensure!(
            shown["kernel_mangled"] == softgpu::kernels::name(number).as_str()
                && shown["program"] == program
                && shown["kernel_from"] == "record"
                && shown["kernel_certain"] == true,
            "{} {} {}",
            shown["kernel"],
            shown["kernel_from"],
            shown["kernel_certain"]
        );
        // The function's first instruction, as the software GPU makes it.
        let words = format!("{:#018x} {:#018x}", number << 32, number << 32 | 1);
        ensure!(
            shown["instructions"][0]["words"] == words.as_str(),
            "{}",
            shown["instructions"][0]
        );
    }
    let nothing = code(softgpu::kernels::program(99), &[])?;
    nothing.expect_code(1)?;
    ensure!(
        nothing.stderr.contains("no name is known"),
        "{}",
        nothing.stderr
    );
    ensure!(
        nothing.stderr.contains("nvcap code '*' -p"),
        "{}",
        nothing.stderr
    );
    Ok(())
}

/// An observed command's children are held at their ends too, and its own processes without channels are not.
pub fn short_children() -> Result<()> {
    need_tracing()?;
    expect_names_of(|folder, trace| {
        let mut args: Vec<OsString> = ["--json", "-e", "op=launch", "--how=observe", "-o"]
            .map(OsString::from)
            .to_vec();
        args.extend([trace.into(), "--channels".into()]);
        args.extend([folder.channels()?.into(), "--".into()]);
        args.extend(["sh", "-c"].map(OsString::from));
        let mut script = softgpu()?.into_os_string();
        script.push(" --kernels --submissions=300 --leave-mapped --linger-ms=0; true");
        args.push(script);
        Running::start(&nvcap()?, args)?.end(LIMIT)?.expect_code(0)
    })
}

/// No names are looked for where that is not wanted.
pub fn none_unasked() -> Result<()> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut args: Vec<OsString> = ["--no-names", "--json", "-e", "op=launch", "-o"]
        .map(OsString::from)
        .to_vec();
    args.push(trace.clone().into());
    args.extend([
        "--channels".into(),
        folder.channels()?.into(),
        "--".into(),
        softgpu()?.into(),
    ]);
    args.extend(["--kernels", "--submissions=100"].map(OsString::from));
    Running::start(&nvcap()?, args)?
        .end(LIMIT)?
        .expect_code(0)?;
    let launches = launches(&trace)?;
    ensure!(!launches.is_empty(), "no launches");
    ensure!(launches.iter().all(|l| l["kernel"].is_null()), "a name");
    Ok(())
}
