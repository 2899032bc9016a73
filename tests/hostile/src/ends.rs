//! Process ends of every kind, in the middle of work.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bed::{Bed, CHANNELS, pause, say_to};
use crate::process::{end_now, fork, raise, wait};

const SOME: usize = 100;

/// Ends without unmapping anything.
pub fn left_mapped(bed: &Bed) -> Result<()> {
    bed.submit_many(SOME);
    Ok(())
}

/// Unmaps everything and ends at once.
pub fn unmapped(bed: &Bed) -> Result<()> {
    bed.submit_many(SOME);
    bed.unmap();
    Ok(())
}

fn killed(bed: &Bed, signal: i32) -> Result<()> {
    bed.submit_many(SOME);
    bed.tell();
    // SAFETY: the default action of a signal, then the signal.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    raise(signal);
    Ok(())
}

/// Kills itself.
pub fn sigkill(bed: &Bed) -> Result<()> {
    killed(bed, libc::SIGKILL)
}

/// A fault ends it.
pub fn sigsegv(bed: &Bed) -> Result<()> {
    killed(bed, libc::SIGSEGV)
}

/// Aborts.
pub fn sigabrt(bed: &Bed) -> Result<()> {
    killed(bed, libc::SIGABRT)
}

/// A thread that has submitted nothing ends the process.
pub fn exit_group_elsewhere(bed: &Bed) -> Result<()> {
    bed.submit_many(SOME);
    let own = *bed;
    std::thread::spawn(move || {
        own.tell();
        end_now(3);
    });
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The first thread ends, another goes on.
pub fn first_thread_ends(bed: &Bed) -> Result<()> {
    bed.submit(0);
    let own = *bed;
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        own.submit_many(SOME);
        own.tell();
        end_now(4);
    });
    // SAFETY: ends this thread alone; nothing on its stack is used by others.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    Ok(())
}

/// A daemon: the process that was started ends before the first submission.
pub fn daemon(bed: &Bed) -> Result<()> {
    let own = *bed;
    fork(move || {
        // SAFETY: makes a session of its own.
        unsafe { libc::setsid() };
        let grandchild = fork(move || {
            std::thread::sleep(Duration::from_millis(20));
            own.submit_many(SOME);
            own.tell();
        });
        end_now(i32::from(grandchild.is_err()));
    })
    .map(wait)?;
    end_now(0)
}

/// Runs `orphan` in a process whose parent has ended, and waits for its end, even after an exec.
fn with_orphan(orphan: impl FnOnce()) -> Result<()> {
    let (mut reader, writer) = std::io::pipe()?;
    // The descriptor stays open in the program that the orphan executes.
    // SAFETY: a flag of an open descriptor.
    unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFD, 0) };
    fork(move || {
        // SAFETY: makes a session of its own.
        unsafe { libc::setsid() };
        end_now(i32::from(fork(orphan).is_err()));
    })
    .map(wait)?;
    drop(writer);
    reader.read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Lives on for a while after its last submission.
pub fn lingers(bed: &Bed) -> Result<()> {
    bed.submit_many(SOME);
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}

/// A daemon that executes another program at once.
pub fn daemon_executes(bed: &Bed) -> Result<()> {
    bed.submit(0);
    with_orphan(|| {
        let _ = again(bed, "ends::lingers").exec();
        end_now(6);
    })
}

/// A daemon that starts another one, in a process that has slept for long.
pub fn daemons_late(bed: &Bed) -> Result<()> {
    bed.submit_many(8);
    std::thread::sleep(Duration::from_millis(1500));
    with_orphan(|| {
        let _ = with_orphan(|| bed.submit_many(SOME));
        bed.submit_many(SOME);
    })?;
    bed.submit_many(8);
    Ok(())
}

/// A child has its own memory at its parent's addresses, with other entries in it, and outlives the parent.
pub fn own_rings(bed: &Bed) -> Result<()> {
    let (mut reader, writer) = std::io::pipe()?;
    bed.submit_many(21);
    fork(|| {
        bed.tell();
        bed.unmap();
        let Ok(own) = bed.map_again() else { end_now(6) };
        // SAFETY: this process does not use it any more; its parent waits for that.
        unsafe { libc::close(writer.as_raw_fd()) };
        own.submit_many(SOME);
        std::thread::sleep(Duration::from_millis(50));
        own.tell();
    })?;
    drop(writer);
    reader.read_to_end(&mut Vec::new())?;
    end_now(5)
}

/// This program again, in another mode with a bed of the same kind.
fn again(bed: &Bed, mode: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(mode);
    if bed.files {
        command.arg("--files");
    }
    command
}

/// A program started the way shells do now: vfork and exec.
pub fn spawn(bed: &Bed) -> Result<()> {
    for _ in 0..3 {
        bed.submit(0);
        let status = again(bed, "ends::left_mapped").status()?;
        ensure!(status.success(), "{status}");
    }
    Ok(())
}

/// Executes another program right after its last submission.
pub fn exec_at_once(bed: &Bed) -> Result<()> {
    bed.submit_many(SOME);
    bed.tell();
    Err(again(bed, "ends::left_mapped").exec()).context("exec")
}

/// A child works on after its parent has ended.
pub fn child_outlives(bed: &Bed) -> Result<()> {
    let own = *bed;
    bed.submit_many(20);
    fork(move || {
        std::thread::sleep(Duration::from_millis(50));
        own.submit_many(SOME);
        own.tell();
    })?;
    end_now(5)
}

/// Two hundred children, each of which lives for one submission.
pub fn short_forks(bed: &Bed) -> Result<()> {
    for n in 0..200 {
        let own = *bed;
        let child = fork(move || own.submit(n % CHANNELS))?;
        ensure!(wait(child) == 0, "child {n}");
    }
    Ok(())
}

/// Five hundred threads, each of which lives for one submission.
pub fn threads(bed: &Bed) -> Result<()> {
    for _ in 0..50 {
        std::thread::scope(|scope| {
            for n in 0..10 {
                scope.spawn(move || bed.submit(n % CHANNELS));
            }
        });
    }
    Ok(())
}

/// Only root may read its memory.
pub fn undumpable(bed: &Bed) -> Result<()> {
    // SAFETY: an attribute of this process.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    bed.submit_many(SOME);
    Ok(())
}

/// A child that is already traced by its parent.
pub fn traced(bed: &Bed) -> Result<()> {
    let own = *bed;
    let child = fork(move || {
        // SAFETY: asks to be traced; takes no pointer.
        if unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } == 0 {
            raise(libc::SIGSTOP);
        }
        own.submit_many(SOME);
    })?;
    loop {
        let status = wait(child);
        if !libc::WIFSTOPPED(status) {
            ensure!(status == 0, "wait status {status:#x}");
            return Ok(());
        }
        // SAFETY: lets a stopped child of this process go on; takes no pointer.
        unsafe { libc::ptrace(libc::PTRACE_CONT, child, 0, 0) };
    }
}

/// Closes all of its descriptors except one with a high number.
pub fn closed(bed: &Bed) -> Result<()> {
    const KEPT: i32 = 900;
    // SAFETY: this program uses none of the descriptors that are closed.
    unsafe {
        libc::dup2(1, KEPT);
        libc::syscall(libc::SYS_close_range, 0, KEPT - 1, 0);
        libc::syscall(libc::SYS_close_range, KEPT + 1, u32::MAX, 0);
    }
    bed.submit_many(SOME);
    say_to(KEPT, &bed.truth());
    pause();
    end_now(0)
}
