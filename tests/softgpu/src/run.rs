//! The work: threads, forks and execs that carry out a plan, and the check that memory held the plan's content.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use nvcap_process::in_step::Table;

use crate::calls::through;
use crate::clock::monotonic;
use crate::hang::{Hang, hang};
use crate::in_step::{self, InStep, Next};
use crate::kernels;
use crate::layout::{Channel, ENTRIES};
use crate::log::Log;
use crate::memory::{CachedPut, Memory};
use crate::plan::{Cursor, Plan, Submission, checksum, total};
use crate::say::say;
use crate::store::Site;
use crate::stream::work;

/// The image number of an executed program is this much higher; numbers in between are children with memory of their own.
pub const EXEC_STRIDE: u32 = 100;

/// Way in which a plan is carried out. None of this changes the content of submissions.
#[derive(Clone, Debug)]
pub struct How {
    /// Everything comes from the driver's device files.
    pub device: bool,
    /// Everything is mapped from files with the names of the driver's device files, including semaphores and notifiers.
    pub files: bool,
    /// Hang in this way at the end.
    pub hang: Option<Hang>,
    /// Time between the last call that makes the context and the first submission, and again between the last submission
    /// and the context's end. In an emulated machine the calls and the tracer are slowed down alike; the rest of CUDA's
    /// work in that time is not done here at all.
    pub context: Duration,
    /// GPUs laid out.
    pub gpus: usize,
    /// Threads of each process.
    pub threads: usize,
    /// Each thread ends after this many submissions and another takes its place (0: they live to the end).
    pub churn: u64,
    /// Children that share the channels' memory and submit to them.
    pub fork: usize,
    /// Children that lay out memory of their own and carry out a plan of their own.
    pub fork_own: usize,
    /// Children that execute the program anew, each with a plan of its own.
    pub spawn: usize,
    /// Execute the program again this many times, each with a plan of its own.
    pub exec: u32,
    /// Execute from a thread that is not the first.
    pub exec_from_thread: bool,
    /// Pause after each submission.
    pub sleep: Duration,
    /// As long as this file is there: longer pauses after the first half of the submissions, and none of the last quarter is made.
    pub hold: Option<PathBuf>,
    /// After the last submission, stay as long as this file is there.
    pub stay_while: Option<PathBuf>,
    /// Wait, once memory is laid out, until this file exists.
    pub wait_file: Option<PathBuf>,
    /// Wait, once memory is laid out, for a byte on standard input.
    pub wait_stdin: bool,
    /// Submissions of each channel before the wait.
    pub before_wait: u64,
    /// Number of submissions of each channel after which another byte is waited for; 0 for never.
    pub portion: u64,
    /// Time from the begin of one thread to that of the next.
    pub apart: Duration,
    /// Stay this long after the last submission.
    pub linger: Duration,
    /// Unmap nothing before the end.
    pub leave_mapped: bool,
    /// Number of entries that GP_GET stays behind GP_PUT.
    pub lag: u64,
    /// Doorbell page that is rung; `None` for both in turn.
    pub page: Option<usize>,
    /// Store that rings; `None` for both.
    pub site: Option<Site>,
    /// Ring after unlocking the channel, so that another thread may submit and ring in between.
    pub late_doorbell: bool,
    /// Behaviour of the program's own copy of GP_PUT.
    pub cached_put: CachedPut,
    /// Leave SIGTRAP as it is, so that a stray trap ends the program.
    pub default_sigtrap: bool,
    /// Number of copies of a ring that are left in memory after the last submission.
    pub remains: u64,
    /// Time between mapping the memory and the first submission.
    pub settle: Duration,
    /// All but the first of these copies are given up after a while.
    pub remains_shrink: bool,
    /// After the last submission: bytes that each entry of a full ring claims.
    pub claim: u32,
    /// Calls of functions with known names, through which it rings.
    pub call_depth: u32,
    /// The file with the functions' image, which is mapped.
    pub kernels_in: Option<PathBuf>,
    /// Private memory that is touched before the first submission, bytes: later modules lie there.
    pub private_bytes: u64,
    /// Folder of the logs of the doorbells, one of each image.
    pub log: Option<PathBuf>,
    /// Number of submissions of the first channel after which the process becomes user nobody's.
    pub nobody_after: Option<u64>,
    /// Number of submissions of the first channel after which there is a debug exception without a cause.
    pub int1_after: Option<u64>,
    /// Wait for those who trace this program.
    pub in_step: Option<in_step::Options>,
    /// After the last submission, wait for the end of standard input or a byte there.
    pub hold_end: bool,
}

static STRAY_TRAPS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_trap(
    _signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    STRAY_TRAPS.fetch_add(1, Ordering::Relaxed);
    skip_int1(context);
}

/// Goes on behind an int1 that would be executed again: virtual machines of KVM on AMD's processors raise its exception before it.
fn skip_int1(context: *mut libc::c_void) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel gives a handler with SA_SIGINFO a ucontext, which it may change; this process was interrupted in code.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        let rip = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
        *rip += i64::from(*(*rip as *const u8) == INT1);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = context;
}

/// The instruction int1.
#[cfg(target_arch = "x86_64")]
const INT1: u8 = 0xf1;

/// Some virtual machines rarely deliver a breakpoint hit as a plain SIGTRAP: it is counted, and does not end the program.
fn count_traps() {
    // SAFETY: the handler adds to an atomic and reads where it interrupted; the structure is zeroed, which is an empty mask and no flags.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
        libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut());
    }
}

/// The beginning of every run.
pub(crate) fn begin(how: &How) {
    if !how.default_sigtrap {
        count_traps();
    }
    say(&format!("pid {}", std::process::id()));
}

/// Maps everything.
pub(crate) fn lay_out(how: &How) -> Result<Memory> {
    let mut memory = map(how)?;
    memory.cached_put = how.cached_put;
    if let Some(options) = &how.in_step {
        memory.in_step = Some(InStep::begin(options)?);
        memory.shared_by_this()?;
    }
    Ok(memory)
}

fn map(how: &How) -> Result<Memory> {
    if how.device {
        let memory = Memory::map_device(how.gpus)?;
        std::thread::sleep(how.context);
        if let Some(line) = memory.unusual_tokens() {
            say(&line);
        }
        Ok(memory)
    } else if how.files {
        Memory::map_files(how.gpus)
    } else {
        Memory::map(how.gpus)
    }
}

/// Ending a context also takes time.
fn give_up(how: &How) {
    if how.device {
        std::thread::sleep(how.context);
    }
}

/// In an emulated machine nvcap may need seconds for its breakpoints, where a GPU machine has the time that the rest of CUDA's work takes: a program
/// that is traced from its start waits for them. `NVCAP_IN_STEP` names the table by which it is told of them.
struct Breakpoints(Option<Table>);

impl Breakpoints {
    /// Before memory is mapped: what was told of the program that this process executed before is forgotten.
    fn expected(how: &How) -> Self {
        let told = std::env::var_os(nvcap_process::in_step::FILE).map(PathBuf::from);
        let own = how.in_step.as_ref().map(|o| o.table.clone());
        let path = own.or(told).filter(|_| how.device);
        let table = path.and_then(|path| Table::open(&path).ok());
        if let Some(table) = &table {
            table.forget_armed(std::process::id());
        }
        Self(table)
    }

    fn wait(&self) {
        const MOST: Duration = Duration::from_secs(60);
        if let Some(table) = &self.0 {
            table.wait_until_armed(std::process::id(), MOST);
        }
    }
}

/// Carries out the plan with all options of `how`, and checks the result.
pub fn run(plan: &Plan, how: &How) -> Result<()> {
    begin(how);
    if let Some(file) = &how.kernels_in {
        kernels::map(file).with_context(|| file.display().to_string())?;
    } else if plan.shape.kernels {
        if how.private_bytes > 0 {
            kernels::touch(how.private_bytes).context("private memory")?;
        }
        kernels::keep(1);
    }
    let breakpoints = Breakpoints::expected(how);
    let mut memory = lay_out(how)?;
    if plan.shape.image != 0 || !(how.wait_stdin || how.wait_file.is_some()) {
        breakpoints.wait();
    }
    let log = how.log.as_ref().map(|folder| Log::new(folder, plan));
    let log = log.transpose()?;
    say("ready");
    std::thread::sleep(how.settle);
    // As after a context's creation: the first submissions come from the first thread alone.
    let first = if plan.shape.image != 0 {
        1
    } else {
        how.before_wait
    };
    Worker {
        plan,
        how,
        memory: &memory,
        log: log.as_ref(),
        index: 0,
        of: 1,
    }
    .work(first, u64::MAX);
    if plan.shape.image == 0 {
        if how.wait_stdin || how.wait_file.is_some() {
            memory.trace_from_here(&plan.channels);
        }
        wait(how)?;
    }
    go_too_far(plan, how, &memory)?;
    in_portions(plan, how, &memory);
    let children = fork_children(plan, how, &memory, log.as_ref())?;
    process(plan, how, &memory, log.as_ref(), 0);
    for child in children {
        reap(child)?;
    }
    drain(plan, &memory);
    finish(plan, &memory)?;
    if how.hold_end {
        say("held");
        wait_for_byte();
    }
    if let Some(kind) = how.hang {
        say(&hang(plan, &memory, kind)?);
    }
    hostile_end(plan, how, &mut memory)?;
    linger(how);
    give_up(how);
    if plan.shape.image / EXEC_STRIDE < how.exec {
        if !how.leave_mapped {
            memory.unmap();
        }
        return execute(plan, how);
    }
    if how.leave_mapped {
        // The end of the process unmaps them.
        std::mem::forget(memory);
    }
    Ok(())
}

/// Stays for a while, everything being done.
fn linger(how: &How) {
    std::thread::sleep(how.linger);
    while how.stay_while.as_ref().is_some_and(|file| file.exists()) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until those who trace this program have read all.
fn drain(plan: &Plan, memory: &Memory) {
    if let Some(step) = &memory.in_step {
        step.drain(memory, &plan.channels);
    }
}

/// Submits more than a ring holds while nobody looks, as the test that asked for it knows: it says "before the lap" and "lapped", and
/// waits for a byte each time.
fn go_too_far(plan: &Plan, how: &How, memory: &Memory) -> Result<()> {
    let Some(lap) = how.in_step.as_ref().and_then(|o| o.lap) else {
        return Ok(());
    };
    let free = How {
        in_step: None,
        ..how.clone()
    };
    let work = |how, until| Worker::alone(plan, how, memory).work(until, u64::MAX);
    work(how, lap.after);
    drain(plan, memory);
    say("before the lap");
    wait_for_byte();
    work(&free, lap.after + lap.by);
    say("lapped");
    wait_for_byte();
    Ok(())
}

/// Submits the plan a portion at a time, as the test that reads along allows: it says "portion" after each, and waits for a byte.
fn in_portions(plan: &Plan, how: &How, memory: &Memory) {
    let quota = |i| plan.quota(i);
    let most = (0..plan.channels.len()).map(quota).max().unwrap_or(0);
    let mut until = how.before_wait;
    while how.portion > 0 && until < most {
        until += how.portion;
        Worker::alone(plan, how, memory).work(until, u64::MAX);
        say("portion");
        wait_for_byte();
    }
}

/// A byte on standard input, or its end.
fn wait_for_byte() {
    let _ = std::io::stdin().read(&mut [0]);
}

/// Conditions that a tracer must withstand, after the whole plan is done.
fn hostile_end(plan: &Plan, how: &How, memory: &mut Memory) -> Result<()> {
    let Some(&channel) = plan.channels.first() else {
        return Ok(());
    };
    if how.remains > 0 {
        memory.leave_remains(channel, how.remains)?;
        for round in 0..5 {
            if how.remains_shrink && round == 3 {
                memory.shrink_remains();
            }
            memory.ring_nobody(channel.gpu);
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    if how.claim > 0 {
        memory.claim(channel, how.claim);
    }
    Ok(())
}

/// Waits for what `how` names.
pub(crate) fn wait(how: &How) -> Result<()> {
    if how.wait_stdin || how.wait_file.is_some() {
        say("waiting");
    }
    if how.wait_stdin {
        let mut byte = [0];
        std::io::stdin()
            .read_exact(&mut byte)
            .context("waiting for a byte on standard input")?;
    }
    if let Some(file) = &how.wait_file {
        while !file.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

/// Forks while there is one thread only. A child with shared memory works with its parent; one process's exit does not end
/// the other.
fn fork_children(
    plan: &Plan,
    how: &How,
    memory: &Memory,
    log: Option<&Log>,
) -> Result<Vec<libc::pid_t>> {
    let mut children = Vec::new();
    for index in 0..how.fork + how.fork_own + how.spawn {
        let _ = std::io::stdout().flush();
        let before = monotonic();
        // SAFETY: no other thread of this process exists yet, so the child may run any code.
        match unsafe { libc::fork() } {
            -1 => bail!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                let own = index.saturating_sub(how.fork);
                let result = if index < how.fork {
                    memory.shared_by_this().map(|()| {
                        process(plan, how, memory, log, index + 1);
                    })
                } else if own < how.fork_own {
                    own_child(plan, how, memory, own)
                } else {
                    // The image numbers of both kinds of children do not overlap.
                    let image = plan.shape.image + 1 + own as u32;
                    Err(again(image)
                        .args([
                            "--fork=0",
                            "--fork-own=0",
                            "--spawn=0",
                            "--exec=0",
                            "--linger-ms=0",
                        ])
                        .exec()
                        .into())
                };
                let code = match result {
                    Ok(()) => 0,
                    Err(e) => {
                        eprintln!("softgpu: child {index}: {e:#}");
                        1
                    }
                };
                // SAFETY: ends the child without running what the parent registered to run at its own exit.
                unsafe { libc::_exit(code) };
            }
            pid => {
                let kind = match index {
                    i if i < how.fork => "shared",
                    i if i < how.fork + how.fork_own => "own",
                    _ => "spawned",
                };
                if let Some(log) = log {
                    log.forked(pid as u32, before);
                }
                say(&format!("child {index} pid {pid} {kind}"));
                children.push(pid);
            }
        }
    }
    Ok(children)
}

/// A child with memory of its own: the parent's is unmapped and laid out again at the same addresses.
fn own_child(plan: &Plan, how: &How, parent: &Memory, index: usize) -> Result<()> {
    parent.forget_in_child();
    let memory = lay_out(how)?;
    let mut plan = plan.clone();
    plan.shape.image += 1 + index as u32;
    let how = How {
        fork: 0,
        fork_own: 0,
        spawn: 0,
        ..how.clone()
    };
    let log = how.log.as_ref().map(|folder| Log::new(folder, &plan));
    process(&plan, &how, &memory, log.transpose()?.as_ref(), 0);
    drain(&plan, &memory);
    finish(&plan, &memory)?;
    give_up(&how);
    if how.leave_mapped {
        std::mem::forget(memory);
    }
    Ok(())
}

fn reap(pid: libc::pid_t) -> Result<()> {
    let mut status = 0;
    loop {
        // SAFETY: waits for a child of this process and writes only `status`.
        let got = unsafe { libc::waitpid(pid, &mut status, 0) };
        if got == pid {
            break;
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error).with_context(|| format!("waiting for child {pid}"));
        }
    }
    if status != 0 {
        bail!("child {pid} ended with wait status {status:#x}");
    }
    Ok(())
}

/// The work of one process: runs its threads until the end of the plan.
fn process(plan: &Plan, how: &How, memory: &Memory, log: Option<&Log>, process: usize) {
    let processes = 1 + how.fork;
    let (turn, begun) = (&Mutex::new(()), &Barrier::new(how.threads));
    std::thread::scope(|scope| {
        for thread in 0..how.threads {
            scope.spawn(move || {
                let worker = Worker {
                    plan,
                    how,
                    memory,
                    log,
                    index: process * how.threads + thread,
                    of: processes * how.threads,
                };
                std::thread::sleep(how.apart * thread as u32);
                if how.churn == 0 {
                    // Each submits, however few processors there are: threads may share a channel.
                    let first = turn.lock();
                    let done = worker.work(u64::MAX, 1);
                    drop(first);
                    begun.wait();
                    if !done {
                        worker.work(u64::MAX, u64::MAX);
                    }
                    return;
                }
                // A thread that only makes threads, one after the other: each inherits from its maker.
                while !std::thread::scope(|inner| {
                    inner
                        .spawn(|| worker.work(u64::MAX, how.churn))
                        .join()
                        .unwrap_or(true)
                }) {}
            });
        }
    });
}

/// One of `of` threads that submit.
pub(crate) struct Worker<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) how: &'a How,
    pub(crate) memory: &'a Memory,
    pub(crate) log: Option<&'a Log>,
    pub(crate) index: usize,
    pub(crate) of: usize,
}

impl<'a> Worker<'a> {
    /// Makes the only one, which keeps no log.
    fn alone(plan: &'a Plan, how: &'a How, memory: &'a Memory) -> Self {
        Worker {
            plan,
            how,
            memory,
            log: None,
            index: 0,
            of: 1,
        }
    }

    /// The channels of this worker: a share of them or, with more workers than channels, one shared with other workers.
    pub(crate) fn channels(&self) -> Vec<usize> {
        let n = self.plan.channels.len();
        if self.of > n {
            vec![self.index % n]
        } else {
            (self.index..n).step_by(self.of).collect()
        }
    }

    /// Submits until each of its channels has made `until` submissions or all of its own; returns `true` then, and `false`
    /// if it stopped after `most`.
    pub(crate) fn work(&self, until: u64, most: u64) -> bool {
        let mut channels = self.channels();
        let mut made = 0;
        while !channels.is_empty() {
            let mut left = Vec::with_capacity(channels.len());
            for &i in &channels {
                if !self.submit(i, until) {
                    continue;
                }
                left.push(i);
                made += 1;
                self.pause(i);
                if made >= most {
                    return false;
                }
            }
            channels = left;
        }
        true
    }

    /// The pause after a submission to channel `i`. A tracer that the file of --hold stands for finds a program at work, however slow it is.
    fn pause(&self, i: usize) {
        let pause = self.how.sleep;
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let Some(file) = &self.how.hold else { return };
        let quota = self.plan.quota(i);
        let made = || {
            let locked = self.memory.lock(self.plan.channels[i]);
            locked.done().cursor.number
        };
        let mut pauses = 0;
        while 2 * made() >= quota && file.exists() {
            if 4 * made() < 3 * quota && pauses >= 20 {
                return;
            }
            std::thread::sleep(pause.max(Duration::from_millis(1)));
            pauses += 1;
        }
    }

    /// One submission to channel `i`, unless it has already made `until` or its quota. In step it waits before, and may pause
    /// afterwards.
    pub(crate) fn submit(&self, i: usize, until: u64) -> bool {
        let step = self.memory.in_step.as_ref();
        let Some(step) = step.filter(|_| self.how.in_step.is_some()) else {
            return !matches!(self.submit_if(i, until, |_, _| Next::Go), Submit::No);
        };
        let channel = self.plan.channels[i];
        loop {
            let next = |before, next: &Submission| step.next(self.memory, channel, before, next);
            match self.submit_if(i, until, next) {
                Submit::No => return false,
                Submit::Made(Next::Slowly(pause)) => std::thread::sleep(pause),
                Submit::Made(_) => step.made(self.memory, &self.plan.channels),
                Submit::Wait(most) => {
                    step.wait(self.memory, channel, most);
                    continue;
                }
            }
            return true;
        }
    }

    /// One submission, if `next` says so.
    fn submit_if(
        &self,
        i: usize,
        until: u64,
        next: impl Fn(Cursor, &Submission) -> Next,
    ) -> Submit {
        let channel = self.plan.channels[i];
        let locked = self.memory.lock(channel);
        let before = locked.done().cursor;
        if before.number >= until.min(self.plan.quota(i)) {
            return Submit::No;
        }
        if self.plan.shape.module_every > 0 {
            kernels::keep(kernels::modules(
                self.plan.shape.module_every,
                before.number,
            ));
        }
        let mut cursor = before;
        let submission = cursor.place(channel, work(&self.plan.shape, channel, before.number));
        let next = next(before, &submission);
        if let Next::Wait(most) = next {
            return Submit::Wait(most);
        }
        let n = before.number + channel.number() as u64;
        let page = self.how.page.unwrap_or((n % 2) as usize);
        let site = self.how.site.unwrap_or(if n % 4 == 3 {
            Site::Displaced
        } else {
            Site::Plain
        });
        locked.write(&submission, cursor);
        let ring = || {
            through(self.how.call_depth, &|| {
                self.memory.ring(channel, page, site)
            })
        };
        let ring = || match self.log {
            Some(log) => log.rung(i, before.number, ring),
            None => ring(),
        };
        if self.how.late_doorbell {
            locked.consume(before.position, cursor.position, self.how.lag);
            drop(locked);
            ring();
        } else {
            ring();
            locked.consume(before.position, cursor.position, self.how.lag);
        }
        if i == 0 && self.how.nobody_after == Some(before.number) {
            become_nobody();
        }
        if i == 0 && self.how.int1_after == Some(before.number) {
            int1();
        }
        Submit::Made(next)
    }
}

/// Outcome of a submission.
enum Submit {
    /// There is none left.
    No,
    /// The submission was made.
    Made(Next),
    /// The submission was not made: at most this many entries may be unread before it.
    Wait(u64),
}

/// The kernel takes a debug exception for one of this instruction where DR6 names no breakpoint.
fn int1() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel sends SIGTRAP, and changes no register.
    unsafe {
        std::arch::asm!(".byte 0xf1", options(nomem, nostack, preserves_flags));
    }
}

/// The process gives root up, in all of its threads.
fn become_nobody() {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: changes ids of this process only.
    let given_up = unsafe { libc::setgid(NOBODY) == 0 && libc::setuid(NOBODY) == 0 };
    say(match given_up {
        true => "nobody's",
        false => "cannot become nobody's",
    });
}

/// Compares the memory contents at each doorbell with the plan, formed again, and prints the result.
pub(crate) fn finish(plan: &Plan, memory: &Memory) -> Result<()> {
    let (mut submissions, mut entries, mut bytes) = (0, 0, 0);
    let mut sums = Vec::new();
    for (i, &channel) in plan.channels.iter().enumerate() {
        let done = memory.lock(channel).done();
        memory.settle(channel, done.cursor.number)?;
        let mut expected = 0;
        for entry in plan.stream(i).flat_map(|s| s.entries) {
            expected = checksum(expected, entry.raw, &entry.bytes);
        }
        let put = (done.cursor.position % u64::from(ENTRIES)) as u32;
        if done.cursor.number != plan.quota(i)
            || done.sum != expected
            || memory.gp_put(channel) != put
        {
            bail!(
                "GPU {} channel {:#x}: result wrong: {} of {} submissions, checksum {:#x} of {expected:#x}, GP_PUT {} of {put}",
                channel.gpu,
                channel.token(),
                done.cursor.number,
                plan.quota(i),
                done.sum,
                memory.gp_put(channel),
            );
        }
        submissions += done.cursor.number;
        entries += done.cursor.position;
        bytes += done.bytes;
        sums.push(done.sum);
    }
    say(&format!(
        "done image={} pid={} submissions={submissions} entries={entries} bytes={bytes} checksum={:#018x} stray_traps={}",
        plan.shape.image,
        std::process::id(),
        total(sums.into_iter()),
        STRAY_TRAPS.load(Ordering::Relaxed),
    ));
    Ok(())
}

/// This program with the same options, as another image.
fn again(image: u32) -> std::process::Command {
    let mut command = std::process::Command::new("/proc/self/exe");
    command
        .args(std::env::args_os().skip(1))
        .arg(format!("--image={image}"));
    command
}

/// Executes the next image of this program; returns only if that failed.
fn execute(plan: &Plan, how: &How) -> Result<()> {
    let image = plan.shape.image + EXEC_STRIDE;
    let mut command = again(image);
    let error = if how.exec_from_thread {
        // The kernel ends all other threads, and the executing thread takes the process's id.
        std::thread::spawn(move || command.exec()).join().ok()
    } else {
        Some(command.exec())
    };
    match error {
        Some(e) => Err(e).context("cannot execute /proc/self/exe again"),
        None => bail!("the thread that was to execute the program again panicked"),
    }
}

/// A launch loop on the plan's first channel: `passes` times `launches`; prints the cost of each pass.
pub fn bench(plan: &Plan, how: &How, launches: u64, passes: u32) -> Result<()> {
    begin(how);
    let memory = lay_out(how)?;
    say("ready");
    wait(how)?;
    let channel: Channel = plan.channels[0];
    let locked = memory.lock(channel);
    let (page, site) = (how.page.unwrap_or(1), how.site.unwrap_or(Site::Plain));
    let mut work = work(&plan.shape, channel, 0);
    let mut cursor = locked.done().cursor;
    for pass in 0..passes {
        let start = Instant::now();
        for _ in 0..launches {
            crate::stream::set_payload(&mut work, channel, cursor.number);
            let submission = cursor.place_again(channel, &work);
            locked.write(&submission, cursor);
            through(how.call_depth, &|| memory.ring(channel, page, site));
            locked.advance(cursor.position, how.lag);
        }
        let ns = start.elapsed().as_nanos() as f64 / launches.max(1) as f64;
        say(&format!(
            "bench pass={pass} launches={launches} ns_per_launch={ns:.1}"
        ));
    }
    drop(locked);
    say(&format!(
        "stray_traps {}",
        STRAY_TRAPS.load(Ordering::Relaxed)
    ));
    std::thread::sleep(how.linger);
    Ok(())
}
