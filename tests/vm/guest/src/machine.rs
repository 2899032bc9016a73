//! The guest as a machine: file systems, modules, device files, child processes, power.

use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::job::Job;

/// Seconds since the kernel started.
pub fn uptime() -> f64 {
    fs::read_to_string("/proc/uptime")
        .ok()
        .and_then(|t| t.split_whitespace().next()?.parse().ok())
        .unwrap_or(0.0)
}

/// The kernel's release.
pub fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .unwrap_or_default()
        .trim()
        .to_string()
}

fn mount(kind: &str, at: &str) -> Result<()> {
    fs::create_dir_all(at).with_context(|| format!("mkdir {at}"))?;
    let (k, a) = (CString::new(kind)?, CString::new(at)?);
    // SAFETY: three NUL-terminated strings and no data.
    let rc = unsafe { libc::mount(k.as_ptr(), a.as_ptr(), k.as_ptr(), 0, std::ptr::null()) };
    if rc != 0 {
        let e = std::io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::EBUSY) {
            return Err(e).with_context(|| format!("mounting {kind} at {at}"));
        }
    }
    Ok(())
}

/// Mounts everything that a program expects of a running Linux, and opens the console.
pub fn mounts() -> Result<()> {
    prepare_exit();
    mount("proc", "/proc")?;
    mount("sysfs", "/sys")?;
    mount("devtmpfs", "/dev")?;
    for (kind, at) in [
        ("tmpfs", "/tmp"),
        ("tmpfs", "/run"),
        ("debugfs", "/sys/kernel/debug"),
        ("tracefs", "/sys/kernel/tracing"),
        ("securityfs", "/sys/kernel/security"),
        ("bpf", "/sys/fs/bpf"),
        ("cgroup2", "/sys/fs/cgroup"),
    ] {
        // A kernel may lack one of these; a test that needs it reports that.
        let _ = mount(kind, at);
    }
    let limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the structure is complete; the interface of the loopback device is left as it is.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
    fs::write(
        "/etc/passwd",
        "root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n",
    )?;
    Ok(())
}

/// Loads a module file with parameters.
pub fn insmod(file: &str, params: &str) -> Result<()> {
    let f = fs::File::open(file).with_context(|| format!("opening {file}"))?;
    let p = CString::new(params)?;
    // SAFETY: an open file and a NUL-terminated string.
    let rc = unsafe { libc::syscall(libc::SYS_finit_module, f.as_raw_fd(), p.as_ptr(), 0) };
    if rc != 0 {
        return Err(std::io::Error::last_os_error())
            .with_context(|| format!("loading {file} {params}"));
    }
    Ok(())
}

/// Unloads a module, by its name.
pub fn rmmod(name: &str) -> Result<()> {
    let n = CString::new(name)?;
    // SAFETY: a NUL-terminated string.
    let rc = unsafe { libc::syscall(libc::SYS_delete_module, n.as_ptr(), libc::O_NONBLOCK) };
    if rc != 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| format!("unloading {name}"));
    }
    Ok(())
}

fn mknod(path: &str, major: u32, minor: u32) -> Result<()> {
    let _ = fs::remove_file(path);
    let p = CString::new(path)?;
    // SAFETY: a NUL-terminated string and numbers.
    let rc = unsafe {
        libc::mknod(
            p.as_ptr(),
            libc::S_IFCHR | 0o666,
            libc::makedev(major, minor),
        )
    };
    if rc != 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| format!("mknod {path}"));
    }
    // SAFETY: as above; the process's umask does not apply to chmod.
    unsafe { libc::chmod(p.as_ptr(), 0o666) };
    Ok(())
}

/// Loads the stand-in that the cell wants and makes its device files, as nvidia-modprobe does.
pub fn load_driver(job: &Job) -> Result<()> {
    insmod(
        &format!("{}/nvidia.ko", job.modules()),
        &format!("gpus={}", job.gpus),
    )?;
    mknod("/dev/nvidiactl", 195, 255)?;
    for gpu in 0..job.gpus as u32 {
        mknod(&format!("/dev/nvidia{gpu}"), 195, gpu)?;
    }
    reload_uvm(job)
}

/// Loads the stand-in's UVM module if it is not loaded, and makes its device files.
pub fn reload_uvm(job: &Job) -> Result<()> {
    if !fs::exists("/sys/module/nvidia_uvm")? {
        insmod(&format!("{}/nvidia-uvm.ko", job.modules()), "")?;
    }
    let devices = fs::read_to_string("/proc/devices")?;
    let uvm = devices
        .lines()
        .find_map(|l| l.trim().strip_suffix(" nvidia-uvm")?.trim().parse().ok())
        .context("/proc/devices does not name nvidia-uvm")?;
    mknod("/dev/nvidia-uvm", uvm, 0)?;
    mknod("/dev/nvidia-uvm-tools", uvm, 1)
}

/// Unloads the stand-in.
pub fn unload_driver() -> Result<()> {
    rmmod("nvidia_uvm")?;
    rmmod("nvidia")
}

/// The port of the isa-debug-exit device.
#[cfg(target_arch = "x86_64")]
const EXIT_PORT: u16 = 0xf4;
/// True if this process may write to the port.
#[cfg(target_arch = "x86_64")]
static MAY_EXIT: std::sync::OnceLock<bool> = std::sync::OnceLock::new();

/// Requests what [`leave`] needs, early: a locked-down kernel gives no access to ports.
#[cfg(target_arch = "x86_64")]
fn prepare_exit() {
    // SAFETY: requests access to one port, of a device that only ends the machine.
    let _ = MAY_EXIT.set(unsafe { libc::ioperm(EXIT_PORT.into(), 1, 1) } == 0);
}

#[cfg(target_arch = "x86_64")]
fn exit_by_device(code: u8) {
    if *MAY_EXIT.get_or_init(|| false) {
        // SAFETY: one port write, which ends the machine.
        unsafe {
            core::arch::asm!("out dx, al", in("dx") EXIT_PORT, in("al") code & 0x7f, options(nostack, nomem));
        }
    }
}

/// Other machines have no such device: they are switched off, and the console alone has the status.
#[cfg(not(target_arch = "x86_64"))]
fn prepare_exit() {}

#[cfg(not(target_arch = "x86_64"))]
fn exit_by_device(_code: u8) {}

/// The stand-in that is loaded: branch, BTF, GPUs.
#[derive(Default)]
pub struct Driver {
    loaded: Option<(u32, bool, usize)>,
    /// kernel.perf_event_paranoid as the kernel has it.
    paranoid: String,
}

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

impl Driver {
    /// Makes the machine what the cell describes, whatever the cell before has left: no process, no file, no probe of it, and the
    /// stand-in loaded anew. Of a locked-down kernel the stand-in stays as it is: unsigned modules cannot be loaded again.
    pub fn become_for(&mut self, job: &Job) -> Result<()> {
        let wanted = (job.branch, job.btf, job.gpus);
        let locked = is_locked();
        if self.loaded.is_some() {
            clear()?;
        }
        if locked && (job.lockdown == "none" || self.loaded != Some(wanted)) {
            bail!(
                "lockdown cannot be undone: cells with it, of one stand-in, must be the last of a boot"
            );
        }
        if !locked {
            if self.loaded.take().is_some() {
                wait_for("unloading the stand-in", || Ok(unload_driver().is_ok()))?;
            }
            load_driver(job)?;
            self.loaded = Some(wanted);
        }
        if job.btf != fs::exists("/sys/kernel/btf/nvidia")? {
            bail!(
                "the kernel {} a BTF of the stand-in",
                if job.btf { "took no" } else { "has" }
            );
        }
        fs::write("/proc/sys/kernel/kptr_restrict", job.kptr.to_string())?;
        if self.paranoid.is_empty() {
            self.paranoid = fs::read_to_string(PARANOID)?;
        }
        // Debian's kernels have 3, by which perf events need CAP_SYS_ADMIN, which such a user does not have.
        let paranoid = if job.user { "2" } else { self.paranoid.trim() };
        fs::write(PARANOID, paranoid).context("setting perf_event_paranoid")?;
        if job.lockdown == "integrity" && !locked {
            fs::write("/sys/kernel/security/lockdown", "integrity").context("raising lockdown")?;
        }
        Ok(())
    }
}

/// True once lockdown has been raised.
fn is_locked() -> bool {
    fs::read_to_string("/sys/kernel/security/lockdown").is_ok_and(|text| !text.contains("[none]"))
}

/// Ends all processes but this one, and removes what they left in folders, in /dev and among the kernel's probes.
fn clear() -> Result<()> {
    // SAFETY: a signal to all other processes: this is the init, which it does not reach.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    wait_for("the end of all processes", || {
        loop {
            // SAFETY: takes the status of any ended child, into nothing.
            let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
            if pid <= 0 {
                // Orphans become this process's children; without any there is none left.
                return Ok(pid < 0);
            }
        }
    })?;
    let tracing = "/sys/kernel/tracing";
    if fs::exists(format!("{tracing}/events/bed"))? {
        fs::write(format!("{tracing}/events/bed/enable"), "0")?;
        fs::write(format!("{tracing}/kprobe_events"), "")?;
    }
    for folder in ["/tmp", "/run"] {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            match path.is_dir() && !path.is_symlink() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            }
            .with_context(|| format!("removing {}", path.display()))?;
        }
    }
    for entry in fs::read_dir("/dev")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if name.as_encoded_bytes().starts_with(b"nvidia") && !is_locked() {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Longest time that the bed waits for anything: a guard against hanging, well within that of a test.
pub const GUARD: Duration = Duration::from_secs(300);

/// Waits until `done` holds.
pub fn wait_for(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !done()? {
        if start.elapsed() > GUARD {
            bail!("guard: {what}: not within {} s", GUARD.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A parameter of the stand-in module.
pub fn param(name: &str) -> Result<u64> {
    let path = format!("/sys/module/nvidia/parameters/{name}");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    text.trim()
        .parse()
        .with_context(|| format!("{path}: {text:?}"))
}

/// Status and output of a child that ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status; none if it was killed.
    pub status: Option<i32>,
    /// Description of the signal, when it was killed.
    pub how: String,
    /// Its output, both streams.
    pub said: String,
}

/// Runs this program again with `args`, in a process group of its own, to its end or until the guard ends it.
pub fn run_self(args: &[&str], guard: Duration) -> Ended {
    let mut command = Command::new("/proc/self/exe");
    command.args(args).env("PATH", "/bin").env("HOME", "/tmp");
    run(&mut command, guard)
}

/// Runs a command to its end, or until it has run for `guard`; then its whole process group is killed.
pub fn run(command: &mut Command, guard: Duration) -> Ended {
    let mut said = String::new();
    let mut ended = stream(command, guard, |line| {
        said.push_str(line);
        said.push('\n');
        false
    });
    ended.said = said;
    ended
}

/// Runs a command as [`run`] does, but passes each line of output to `each` at once. The guard counts from the last line of which `each` said true.
pub fn stream(command: &mut Command, guard: Duration, mut each: impl FnMut(&str) -> bool) -> Ended {
    try_stream(command, guard, &mut each).unwrap_or_else(|e| Ended {
        status: None,
        how: format!("{e:#}"),
        said: String::new(),
    })
}

fn try_stream(
    command: &mut Command,
    guard: Duration,
    each: &mut dyn FnMut(&str) -> bool,
) -> Result<Ended> {
    let (reader, writer) = std::io::pipe()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0)
        .spawn()
        .with_context(|| format!("starting {:?}", command.get_program()))?;
    // The command still holds the writing ends; closing them lets the reader meet an end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n') {
            let Ok(line) = line else { return };
            if sender
                .send(String::from_utf8_lossy(&line).trim_end().to_string())
                .is_err()
            {
                return;
            }
        }
    });
    let kill = |pid: u32| {
        // SAFETY: a signal to the group made above; it does not matter if the group is gone.
        unsafe { libc::kill(-(pid as i32), libc::SIGKILL) };
    };
    let mut start = Instant::now();
    let mut how = String::new();
    let status = loop {
        if let Ok(line) = lines.recv_timeout(Duration::from_millis(5)) {
            if each(&line) {
                start = Instant::now();
            }
        } else if let Some(status) = child.try_wait()? {
            break status;
        }
        if how.is_empty() && start.elapsed() > guard {
            how = format!("guard: came to no end in {} s", guard.as_secs());
            kill(child.id());
        }
    };
    // Processes that it left behind are killed too, which closes the pipe's writing ends. One that left the group may keep its own:
    // what it says is of no interest.
    kill(child.id());
    while let Ok(line) = lines.recv_timeout(Duration::from_secs(10)) {
        each(&line);
    }
    if how.is_empty()
        && let Some(signal) = status.signal()
    {
        how = format!("killed by signal {signal}");
    }
    Ok(Ended {
        status: if how.is_empty() { status.code() } else { None },
        how,
        said: String::new(),
    })
}

/// Makes a command run as an ordinary user who keeps the capabilities that nvcap needs, across the exec. That user must be
/// able to write the files of -o, so their folder is opened for all.
pub fn as_user(command: &mut Command) -> std::io::Result<()> {
    // CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_PERFMON, CAP_BPF; the last two need kernel 5.8.
    const KEPT: [u32; 4] = [2, 19, 38, 39];
    let folder = command
        .get_args()
        .skip_while(|a| *a != "-o")
        .nth(1)
        .and_then(|f| std::path::Path::new(f).parent());
    if let Some(folder) = folder {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777))?;
    }
    let check = |rc: i64| {
        if rc == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    let mask = KEPT.iter().fold(0u64, |m, c| m | 1 << c);
    let halves = [mask as u32, (mask >> 32) as u32];
    // struct __user_cap_header_struct { version 3, pid 0 } and two __user_cap_data_struct { effective, permitted,
    // inheritable }.
    let header = [0x2008_0522u32, 0];
    let data = [
        halves[0], halves[0], halves[0], halves[1], halves[1], halves[1],
    ];
    // SAFETY: plain numbers, and two arrays of the sizes that capset(2) reads for version 3.
    unsafe {
        check(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0).into())?;
        check(libc::setgroups(0, std::ptr::null()).into())?;
        check(libc::setresgid(1000, 1000, 1000).into())?;
        check(libc::setresuid(1000, 1000, 1000).into())?;
        check(libc::syscall(
            libc::SYS_capset,
            header.as_ptr(),
            data.as_ptr(),
        ))?;
        for cap in KEPT {
            check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, cap, 0, 0).into())?;
        }
    }
    Ok(())
}

/// Runs a command as PID 1 of a PID namespace of its own, with its own /proc, and returns its exit code.
pub fn contained(words: Vec<String>) -> Result<std::process::ExitCode> {
    let (program, args) = words.split_first().context("what is to run?")?;
    // SAFETY: only flags; this process has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWPID | libc::CLONE_NEWNS) } != 0 {
        return Err(std::io::Error::last_os_error()).context("unshare");
    }
    let mut command = Command::new(program);
    command.args(args);
    // SAFETY: two mounts between fork and exec, of NUL-terminated strings; nothing is allocated.
    unsafe {
        command.pre_exec(|| {
            let (none, proc_, slash) = (std::ptr::null(), c"proc".as_ptr(), c"/".as_ptr());
            if libc::mount(
                none,
                slash,
                none,
                libc::MS_REC | libc::MS_PRIVATE,
                none.cast(),
            ) != 0
                || libc::mount(proc_, c"/proc".as_ptr(), proc_, 0, none.cast()) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let status = command.status().with_context(|| program.clone())?;
    Ok(std::process::ExitCode::from(
        status.code().unwrap_or(128) as u8
    ))
}

/// A warning or oops of the kernel, from its taint and its log.
pub fn complaint() -> Option<String> {
    const DIED: u64 = 1 << 7;
    const WARNED: u64 = 1 << 9;
    let tainted: u64 = fs::read_to_string("/proc/sys/kernel/tainted")
        .ok()?
        .trim()
        .parse()
        .ok()?;
    if tainted & (DIED | WARNED) == 0 {
        return None;
    }
    let mut log = vec![0u8; 1 << 20];
    // SAFETY: SYSLOG_ACTION_READ_ALL (3) writes at most the length given.
    let n = unsafe { libc::klogctl(3, log.as_mut_ptr().cast(), log.len() as i32) }.max(0) as usize;
    let text = String::from_utf8_lossy(&log[..n]).into_owned();
    let at = text
        .find("------------[ cut here")
        .or_else(|| text.find("BUG:"))
        .unwrap_or(0);
    for line in text[at..].lines().take(60) {
        println!("  {line}");
    }
    Some(format!(
        "tainted {tainted:#x}: it warned or died; see above"
    ))
}

/// Leaves QEMU: on x86-64 its status becomes `code << 1 | 1` through the isa-debug-exit device.
pub fn leave(code: u8) -> ! {
    // SAFETY: flushes a descriptor.
    unsafe { libc::tcdrain(1) };
    exit_by_device(code);
    // SAFETY: ends the machine.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
