//! The bed's own tests: the stand-in behaves like the driver at its interface, and this kernel can trace it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use softgpu::layout::{
    Channel, DOORBELL_PAGE, PUSHBUFFERS_LEN, RINGS_LEN, doorbell_page, pushbuffers, rings,
};

use super::Outcome;
use super::target::{Target, Want, go};
use super::{GUARD, revocations};
use crate::job::Job;
use crate::machine::{load_driver, param, run, unload_driver, wait_for};

/// The whole life of a CUDA process: ioctls, mappings, submissions, and a GPU that fetches all of them and releases the
/// semaphores with their time (softgpu itself checks the semaphores).
pub fn life(job: &Job) -> Result<Outcome> {
    let want = Want::new(job.gpus, 400).how(&["--threads", "3"]);
    let before = (param("entries_done")?, param("bytes_done")?);
    let ended = run(&mut want.command(), GUARD);
    ensure!(
        ended.status == Some(0),
        "softgpu: {:?} {}\n{}",
        ended.status,
        ended.how,
        ended.said
    );
    let plan = want.plan(0);
    let (mut entries, mut bytes) = (0, 0);
    for e in (0..plan.channels.len())
        .flat_map(|i| plan.stream(i))
        .flat_map(|s| s.entries)
    {
        entries += 1;
        bytes += e.bytes.len() as u64;
    }
    let after = (
        param("entries_done")? - before.0,
        param("bytes_done")? - before.1,
    );
    ensure!(
        after == (entries, bytes),
        "the GPU fetched {after:?} of {:?} entries and bytes",
        (entries, bytes)
    );
    ensure!(
        param("faults")? == 0,
        "the GPU could not reach {} addresses",
        param("faults")?
    );
    Ok(Outcome::Passed)
}

/// The mappings look like the driver's, and /proc/PID/mem reads rings and pushbuffers, not doorbells.
pub fn maps(job: &Job) -> Result<Outcome> {
    let want = Want::new(job.gpus, 60).how(&["--wait-file", "/tmp/maps-go", "--linger-ms", "200"]);
    let mut target = Target::start(&want)?;
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid()))?;
    for gpu in 0..job.gpus {
        let device = format!("/dev/nvidia{gpu}");
        for (at, len, mode, file) in [
            (
                doorbell_page(gpu, 0),
                DOORBELL_PAGE,
                "-w-s",
                device.as_str(),
            ),
            (doorbell_page(gpu, 1), DOORBELL_PAGE, "-w-s", &device),
            (rings(gpu), RINGS_LEN, "rw-s", &device),
            (pushbuffers(gpu), PUSHBUFFERS_LEN, "rw-s", "/dev/nvidiactl"),
        ] {
            let start = format!("{at:x}-{:x} {mode} 00000000", at + len);
            ensure!(
                maps.lines()
                    .any(|l| l.starts_with(&start) && l.ends_with(file)),
                "no mapping {start} of {file} in\n{maps}"
            );
        }
    }
    let mem = File::open(format!("/proc/{}/mem", target.pid()))?;
    wait_for("the first submission in the ring", || {
        let mut userd = [0u8; 8];
        mem.read_exact_at(&mut userd, (Channel { gpu: 0, index: 0 }).userd() + 0x88)?;
        Ok(userd[4..] != [0; 4])
    })?;
    let plan = want.plan(0);
    let first = plan.stream(0).next().context("a first submission")?;
    let (channel, entry) = (plan.channels[0], &first.entries[0]);
    let mut raw = [0u8; 8];
    mem.read_exact_at(&mut raw, channel.ring())?;
    ensure!(
        u64::from_le_bytes(raw) == entry.raw,
        "ring entry {raw:x?}, planned {:#x}",
        entry.raw
    );
    let mut bytes = vec![0; entry.bytes.len()];
    mem.read_exact_at(&mut bytes, channel.pushbuffer())?;
    ensure!(
        bytes == entry.bytes,
        "pushbuffer bytes differ from the plan"
    );
    let peeks = param("doorbell_peeks")?;
    let _ = mem.read_at(&mut raw, doorbell_page(0, 1) + 0x90);
    ensure!(
        param("doorbell_peeks")? == peeks + 1,
        "a read of the doorbell page was not counted"
    );
    go("/tmp/maps-go")?;
    target.until("done")?;
    target.end()?;
    Ok(Outcome::Passed)
}

/// The driver may remove a device's page table entries at any time; the process does not notice.
pub fn revoke(job: &Job) -> Result<Outcome> {
    let want =
        Want::new(job.gpus, 1000).how(&["--wait-file", "/tmp/revoke-go", "--before-wait", "1"]);
    let mut target = Target::start(&want)?;
    revocations(&want, "/tmp/revoke-go")?;
    target.until("done")?;
    target.end()?;
    Ok(Outcome::Passed)
}

/// Kprobes on the driver's entry points fire as often as a process maps and calls.
pub fn kprobe(job: &Job) -> Result<Outcome> {
    let events = "/sys/kernel/tracing/kprobe_events";
    if !fs::exists(events)? {
        return Ok(Outcome::NotRun("this kernel has no kprobe_events".into()));
    }
    let control = if job.branch >= 545 {
        "nvidia_unlocked_ioctl"
    } else {
        "nvidia_frontend_unlocked_ioctl"
    };
    let probes = [
        ("nvidia_mmap", 4 + 1),
        ("nvidia_mmap_helper", 4 + 1),
        (control, 100),
        ("nvidia_ioctl", 100),
        ("uvm_unlocked_ioctl_entry", 20),
        ("nvidia_vma_release", 4),
    ];
    for (symbol, _) in probes {
        let mut file = OpenOptions::new().append(true).open(events)?;
        // One write call: each is taken for a whole line.
        file.write_all(format!("p:bed/{symbol} {symbol}\n").as_bytes())
            .with_context(|| format!("a kprobe on {symbol}"))?;
    }
    fs::write("/sys/kernel/tracing/events/bed/enable", "1")?;
    let ended = run(&mut Want::new(job.gpus, 20).command(), GUARD);
    let profile = fs::read_to_string("/sys/kernel/tracing/kprobe_profile")?;
    fs::write("/sys/kernel/tracing/events/bed/enable", "0")?;
    fs::write(events, "")?;
    ensure!(
        ended.status == Some(0),
        "softgpu: {:?}\n{}",
        ended.status,
        ended.said
    );
    for (symbol, least) in probes {
        let hits: u64 = profile
            .lines()
            .find_map(|l| {
                let mut words = l.split_whitespace();
                (words.next()? == symbol).then(|| words.next()?.parse().ok())?
            })
            .with_context(|| format!("{symbol} is not in\n{profile}"))?;
        ensure!(
            hits >= least * job.gpus as u64,
            "{symbol}: {hits} hits, at least {least} a GPU expected"
        );
    }
    Ok(Outcome::Passed)
}

/// A hung GPU: submitted entries stay in the ring until it continues.
pub fn hung(job: &Job) -> Result<Outcome> {
    let paused = "/sys/module/nvidia/parameters/paused";
    fs::write(paused, "1")?;
    let mut want = Want::new(job.gpus, 40);
    want.channels = 4;
    let mut target = Target::start(&want)?;
    let mem = File::open(format!("/proc/{}/mem", target.pid()))?;
    let channel = Channel::first(1, job.gpus)[0];
    let mut userd = [0u8; 8];
    let waiting = wait_for("submissions that wait", || {
        mem.read_exact_at(&mut userd, channel.userd() + 0x88)?;
        Ok(userd == [0, 0, 0, 0, 10, 0, 0, 0])
    });
    fs::write(paused, "0")?;
    waiting.with_context(|| format!("GP_GET, GP_PUT = {userd:?}"))?;
    target.until("done")?;
    target.end()?;
    Ok(Outcome::Passed)
}

/// The modules are unloaded and loaded again, and everything works as before.
pub fn reload(job: &Job) -> Result<Outcome> {
    if job.lockdown == "integrity" {
        return Ok(Outcome::NotRun("lockdown refuses unsigned modules".into()));
    }
    unload_driver()?;
    ensure!(
        !fs::exists("/proc/driver/nvidia/version")?,
        "the driver's files are still there"
    );
    load_driver(job)?;
    life(job)
}

/// A machine whose driver shows no GPU.
pub fn none(job: &Job) -> Result<Outcome> {
    if job.gpus != 0 {
        return Ok(Outcome::NotRun("this boot has GPUs".into()));
    }
    let ended = run(&mut Want::new(1, 1).command(), GUARD);
    ensure!(
        ended.status == Some(1) && ended.said.contains("the driver shows 0 GPU(s)"),
        "{ended:?}"
    );
    Ok(Outcome::Passed)
}
