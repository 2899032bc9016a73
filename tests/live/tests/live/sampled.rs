//! `nvcap sample` of programs whose contexts a stand-in driver knows, and samples.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::programs::{Ended, Folder, Running, Until, nvcap, softgpu};
use nvcap_decode::samples::programme::{self, Call, command};
use nvcap_decode::samples::{Operation, Programme, Sample};
use serde_json::Value;
use softgpu::kernels;
use softgpu::served::{Known, Machine, RELEASE, Served, UUID, ask_before_exec, serve};

use crate::setup::LIMIT;

const CLIENT: u32 = 0xc1d0_0040;
const OTHER: u32 = 0xc1d0_0041;
const GROUP: u32 = 0x5c00_0015;
const SECOND: u32 = 0x5c00_0095;

/// Samples at instructions of functions of the software GPU: 28, of which three of four are the first one's.
fn samples(first: u64, second: u64) -> Vec<Sample> {
    let of = |i: u64| Sample {
        sm: 0,
        pc: kernels::program(if i % 4 < 3 { first } else { second }) + 16 * (i % 4),
        warp: 3,
        reason: 10,
        issued: i.is_multiple_of(4),
    };
    (0..28).map(of).collect()
}

/// A folder with a machine that has learnt, and programs on it.
struct Place {
    folder: Folder,
    machine: Machine,
}

impl Place {
    fn new(known: &[(&str, u32, &[(u32, Vec<Sample>)])]) -> Result<Self> {
        let folder = Folder::new()?;
        let known = known.iter().map(|(name, client, contexts)| Known {
            file: file(&folder, name),
            client: *client,
            contexts: contexts.to_vec(),
        });
        let machine = Machine::new(&folder.file("machine"), known.collect())?;
        let programmes = folder.file("programmes");
        std::fs::create_dir(&programmes)?;
        let learnt = programme()?;
        let path = programmes.join(format!("{UUID}.programme"));
        std::fs::write(&path, learnt.text())?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        Ok(Self { folder, machine })
    }

    fn nvcap(&self, args: &[OsString]) -> Result<(Running, Served)> {
        // SAFETY: reads an id.
        if unsafe { libc::geteuid() } != 0 {
            return not_run("needs root, who may answer a program's system calls");
        }
        let mut all = vec![OsString::from("sample")];
        all.extend_from_slice(args);
        let programmes = self.folder.file("programmes");
        let program = Running::start_prepared(&nvcap()?, all, None, |command| {
            command.env("NVCAP_SAMPLE_PROGRAMMES", programmes);
            command.env("NVCAP_LOG", "debug");
            // SAFETY: system calls alone, on memory of its own frame.
            unsafe { std::os::unix::process::CommandExt::pre_exec(command, ask_before_exec) };
        })?;
        let served = serve(program.pid(), &self.machine);
        let served = served.context("nvcap's calls cannot be answered")?;
        Ok((program, served))
    }

    fn sampled(&self, args: &[&str]) -> Result<Ended> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let (program, _served) = self.nvcap(&args)?;
        program.end(LIMIT)
    }

    /// A program with clients' handles in its memory and a file of the driver, which runs until it is released.
    fn program(&self, name: &str, clients: &[u32]) -> Result<(Running, Until)> {
        let until = Until::new(&self.folder, &format!("{name}-stays"))?;
        let mut args = self.program_args(name, clients)?;
        args.push(until.stay().into());
        let mut program = Running::start(&softgpu()?, args)?;
        program.wait_for_line("ready")?;
        Ok((program, until))
    }

    fn program_args(&self, name: &str, clients: &[u32]) -> Result<Vec<OsString>> {
        let file = file(&self.folder, name);
        std::fs::create_dir_all(file.parent().context("a folder")?)?;
        let mut args: Vec<OsString> = ["--kernels", "--gpus=1", "--channels=1"]
            .map(Into::into)
            .into();
        args.extend(["--threads=1", "--submissions=20", "--driver-file"].map(Into::into));
        args.push(file.into());
        args.extend(clients.iter().map(|c| format!("--client={c:x}").into()));
        Ok(args)
    }
}

fn file(folder: &Folder, name: &str) -> PathBuf {
    folder.file(&format!("{name}/dev/nvidiactl"))
}

/// A programme of one unit.
fn programme() -> Result<Programme> {
    let write = |context, offset, value| Call {
        object: (1, 2),
        command: command::EXEC_REG_OPS,
        parameters: programme::parameters(&[Operation {
            context,
            offset,
            value,
            mask: u32::MAX,
        }]),
    };
    let call = |command, len| Call {
        object: (1, 2),
        command,
        parameters: vec![0; len],
    };
    let calls = [
        call(command::RESERVE_PC_SAMPLER, 0),
        write(true, 0x42_43dc, 0),
        write(false, 0x18_0b08, 0x20),
        write(true, 0x42_43dc, 0x1d),
        call(command::UPDATE_GET_PUT, 48),
        write(false, 0x18_0b08, 0x10),
    ];
    Ok(Programme::learn(&calls, &[19], UUID, RELEASE)?)
}

fn objects(text: &str) -> Result<Vec<Value>> {
    let lines = text.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

/// Names of an object's kernels, with a hundred times their shares.
fn shares(object: &Value) -> Vec<(String, u64)> {
    let kernels = object["kernels"].as_array().cloned().unwrap_or_default();
    let share = |kernel: &Value| {
        let name = kernel["kernel"].as_str().unwrap_or_default().to_owned();
        let share = kernel["share"].as_f64().unwrap_or_default();
        (name, (share * 100.0).round() as u64)
    };
    kernels.iter().map(share).collect()
}

fn named(all: &[(u64, u64)]) -> Vec<(String, u64)> {
    let one = |(number, share): &(u64, u64)| (format!("void kernel<{number}>(float*)"), *share);
    all.iter().map(one).collect()
}

/// Text and JSON of one process: every sample, and all of it understood.
pub fn one_process() -> Result<()> {
    let place = Place::new(&[("one", CLIENT, &[(GROUP, samples(2, 5))])])?;
    let (program, until) = place.program("one", &[CLIENT])?;
    let pid = program.pid().to_string();
    let ended = place.sampled(&["-p", &pid, "--duration=1s", "--json"])?;
    ended.expect_code(0)?;
    let all = objects(&ended.stdout)?;
    let [object] = &all[..] else {
        anyhow::bail!("{} objects", all.len());
    };
    ensure!(shares(object) == named(&[(2, 75), (5, 25)]), "{object}");
    ensure!(
        object["complete"] == true
            && object["pid"].as_u64() == Some(program.pid().into())
            && object["client"] == CLIENT
            && object["channel_group"] == GROUP
            && object["sms"] == 2
            && object["period_log2_cycles"] == 19
            && object["unknown"]["samples"] == 0,
        "{object}"
    );
    let kernels = object["kernels"].as_array().context("kernels")?;
    let sum: u64 = kernels.iter().filter_map(|k| k["samples"].as_u64()).sum();
    ensure!(
        sum > 0 && object["samples"].as_u64() == Some(sum),
        "{object}"
    );
    ensure!(
        kernels[0]["stall_reasons"][0]["name"] == "long_scoreboard",
        "{object}"
    );
    let ended = place.sampled(&["-p", &pid, "--duration=1s"])?;
    ended.expect_code(0)?;
    for line in [
        "on GPU 0: ",
        "of 2 SMs, one of each SM in 2^19 cycles",
        "   75.00 % ±",
        "  void kernel<2>(float*)",
        "   25.00 % ±",
        "the hottest instructions",
        "     +0x10  long_scoreboard 100 %    void kernel<2>(float*)",
        "complete: all ",
    ] {
        ensure!(ended.stdout.contains(line), "{line}:\n{}", ended.stdout);
    }
    ensure!(place.machine.holder().is_none(), "the profiler is held");
    until.release()?;
    program.end(LIMIT)?.expect_code(0)
}

/// The code of a kernel, with samples beside the instructions that have any.
pub fn code() -> Result<()> {
    let place = Place::new(&[("one", CLIENT, &[(GROUP, samples(2, 5))])])?;
    let (program, until) = place.program("one", &[CLIENT])?;
    let pid = program.pid().to_string();
    let args = ["-p", &pid, "--duration=1s", "--code", "*kernel<2>*"];
    let ended = place.sampled(&args)?;
    ended.expect_code(0)?;
    let line = |offset: &str| {
        let mut lines = ended.stdout.lines();
        lines.find(|line| line.contains(offset)).unwrap_or_default()
    };
    let sampled = line("/*0010*/");
    // Of three instructions each has a third; without nvdisasm their words are shown.
    ensure!(
        sampled.contains("33.33 %") && sampled.contains("long_scoreboard 100 %"),
        "{}",
        ended.stdout
    );
    ensure!(
        line("/*07f0*/").starts_with(&" ".repeat(58)),
        "{}",
        ended.stdout
    );
    ensure!(
        !ended.stdout.contains("_Z6kernelILi5EEvPf"),
        "{}",
        ended.stdout
    );
    let ended = place.sampled(&[&args[..], &["--json"]].concat())?;
    let all = objects(&ended.stdout)?;
    let listing = &all[0]["kernels"][0]["code"];
    ensure!(listing["kernel"] == "void kernel<2>(float*)", "{listing}");
    let instructions = listing["instructions"].as_array().context("a listing")?;
    let samples = |i: usize| instructions[i]["samples"].as_u64();
    ensure!(
        samples(1) > Some(0) && samples(1) == samples(2) && samples(3) == Some(0),
        "{listing}"
    );
    ensure!(all[0]["kernels"][1]["code"].is_null(), "{}", all[0]);
    let ended = place.sampled(&["-p", &pid, "--duration=1s", "--code", "nothing"])?;
    ensure!(
        ended
            .stderr
            .contains("no sample lies in a kernel that is named nothing"),
        "{}",
        ended.stderr
    );
    until.release()?;
    program.end(LIMIT)?.expect_code(0)
}

/// Two processes, one of them with two contexts: in turns, and none has another's kernels.
pub fn in_turns() -> Result<()> {
    let place = Place::new(&[
        (
            "one",
            CLIENT,
            &[(GROUP, samples(0, 1)), (SECOND, samples(2, 3))],
        ),
        ("other", OTHER, &[(GROUP, samples(4, 5))]),
    ])?;
    let (one, until_one) = place.program("one", &[CLIENT])?;
    let (other, until_other) = place.program("other", &[OTHER])?;
    let pids = format!("{},{}", one.pid(), other.pid());
    let ended = place.sampled(&["-p", &pids, "--duration=2s", "--json"])?;
    ended.expect_code(0)?;
    let all = objects(&ended.stdout)?;
    let found: Vec<_> = all.iter().map(|o| (o["pid"].as_u64(), shares(o))).collect();
    let (one_pid, other_pid) = (Some(one.pid().into()), Some(other.pid().into()));
    let expected = [
        (one_pid, named(&[(0, 75), (1, 25)])),
        (one_pid, named(&[(2, 75), (3, 25)])),
        (other_pid, named(&[(4, 75), (5, 25)])),
    ];
    let mut sorted = found.clone();
    sorted.sort_by_key(|(pid, kernels)| (*pid != one_pid, kernels.clone()));
    ensure!(sorted == expected, "{found:?}");
    ensure!(all.iter().all(|o| o["complete"] == true), "{all:?}");
    let ended = place.sampled(&["-p", &one.pid().to_string(), "--duration=1s"])?;
    ended.expect_code(0)?;
    for line in [", context 1 of 2 on GPU 0", ", context 2 of 2 on GPU 0"] {
        ensure!(ended.stdout.contains(line), "{line}:\n{}", ended.stdout);
    }
    for (program, until) in [(one, until_one), (other, until_other)] {
        until.release()?;
        program.end(LIMIT)?.expect_code(0)?;
    }
    Ok(())
}

/// A process with another's handle in its memory: nothing of the other is shown.
pub fn planted() -> Result<()> {
    let place = Place::new(&[
        ("one", CLIENT, &[(GROUP, samples(0, 1))]),
        ("other", OTHER, &[(GROUP, samples(4, 5))]),
    ])?;
    let (victim, until_victim) = place.program("one", &[CLIENT])?;
    // One that has its own client, too, and one that has none.
    let (both, until_both) = place.program("other", &[CLIENT, CLIENT, OTHER])?;
    let (hostile, until_hostile) = place.program("none", &[CLIENT])?;
    let ended = place.sampled(&["-p", &both.pid().to_string(), "--duration=1s", "--json"])?;
    ended.expect_code(0)?;
    let all = objects(&ended.stdout)?;
    ensure!(
        all.len() == 1 && shares(&all[0]) == named(&[(4, 75), (5, 25)]),
        "{all:?}"
    );
    let ended = place.sampled(&["-p", &hostile.pid().to_string(), "--duration=1s"])?;
    ended.expect_code(1)?;
    ensure!(
        ended.stdout.is_empty()
            && ended
                .stderr
                .contains("another process's would be shown as this one's"),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    for (program, until) in [
        (victim, until_victim),
        (both, until_both),
        (hostile, until_hostile),
    ] {
        until.release()?;
        program.end(LIMIT)?.expect_code(0)?;
    }
    Ok(())
}

/// Another client has the profiler: nvcap says so, and leaves it alone.
pub fn held() -> Result<()> {
    let place = Place::new(&[("one", CLIENT, &[(GROUP, samples(0, 1))])])?;
    let (program, until) = place.program("one", &[CLIENT])?;
    place.machine.hold(Some(1));
    let pid = program.pid().to_string();
    let ended = place.sampled(&["-p", &pid, "--duration=1s"])?;
    ended.expect_code(1)?;
    for part in [
        "another client has the GPU's profiler",
        "end the other profiler first",
    ] {
        ensure!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    ensure!(
        ended.stdout.is_empty() && place.machine.holder() == Some(1),
        "{}",
        ended.stdout
    );
    place.machine.hold(None);
    place
        .sampled(&["-p", &pid, "--duration=1s"])?
        .expect_code(0)?;
    until.release()?;
    program.end(LIMIT)?.expect_code(0)
}

/// A killed nvcap leaves nothing behind, and the program goes on.
pub fn killed() -> Result<()> {
    let place = Place::new(&[("one", CLIENT, &[(GROUP, samples(0, 1))])])?;
    let (mut program, until) = place.program("one", &[CLIENT])?;
    let pid = program.pid().to_string();
    let (mut first, served) =
        place.nvcap(&["-p".into(), (&pid).into(), "--duration=600s".into()])?;
    let own = first.pid();
    let machine = place.machine.clone();
    first.wait_until("it has the profiler", LIMIT, |_| {
        machine.holder() == Some(own)
    })?;
    // A second one beside it.
    let second = place.sampled(&["-p", &pid, "--duration=1s"])?;
    second.expect_code(1)?;
    ensure!(
        second.stderr.contains("another client has"),
        "{}",
        second.stderr
    );
    ensure!(place.machine.holder() == Some(own), "the first one lost it");
    first.signal(libc::SIGKILL)?;
    first.end(LIMIT)?;
    drop(served);
    ensure!(place.machine.holder().is_none(), "the profiler is held");
    ensure!(program.runs(), "the program ended");
    place
        .sampled(&["-p", &pid, "--duration=1s"])?
        .expect_code(0)?;
    until.release()?;
    program.end(LIMIT)?.expect_code(0)
}

/// A command to its end: its standard output stays its own, and names are found though it ends.
pub fn of_a_command() -> Result<()> {
    let place = Place::new(&[("one", CLIENT, &[(GROUP, samples(2, 5))])])?;
    let sampled = place.folder.file("sampled.json");
    let until = Until::new(&place.folder, "stays")?;
    let mut args: Vec<OsString> = vec!["--json".into(), "-o".into(), sampled.clone().into()];
    args.extend([
        "--".into(),
        "sh".into(),
        "-c".into(),
        "\"$@\"; exit 7".into(),
        "sh".into(),
    ]);
    args.push(softgpu()?.into());
    args.extend(place.program_args("one", &[CLIENT])?);
    args.push(until.stay().into());
    let (mut program, served) = place.nvcap(&args)?;
    let own = program.pid();
    let machine = place.machine.clone();
    program.wait_until("it samples", LIMIT, |_| machine.holder() == Some(own))?;
    // The kernels of all four instructions have names: none would be found when the program has ended.
    let known = |program: &Running| program.stderr().contains("4 counters named");
    program.wait_until("names are found", LIMIT, known)?;
    until.release()?;
    let ended = program.end(LIMIT)?;
    drop(served);
    ended.expect_code(0)?;
    ensure!(
        ended.stdout.contains("ready\n") && !ended.stdout.contains("\"type\""),
        "{}",
        ended.stdout
    );
    ensure!(
        ended
            .stderr
            .contains("the command ended with exit status: 7"),
        "{}",
        ended.stderr
    );
    let all = objects(&std::fs::read_to_string(&sampled)?)?;
    ensure!(
        all.len() == 1 && shares(&all[0]) == named(&[(2, 75), (5, 25)]),
        "{all:?}"
    );
    ensure!(all[0]["complete"] == true, "{}", all[0]);
    Ok(())
}
