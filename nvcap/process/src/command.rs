//! The command that nvcap starts: it is forked first, and executed when the trace is ready for it.

use std::{
    ffi::{CString, OsString},
    io::{self, Read},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{ffi::OsStringExt, process::ExitStatusExt},
    },
    process::ExitStatus,
};

use super::error::{Error, Result};
use super::user::User;

/// A command to be started, and its user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Command and arguments.
    pub argv: Vec<OsString>,
    /// User as which the command runs; nvcap's own user if none is named.
    pub user: Option<User>,
}

/// A child process that waits for [`go`](Self::go), or runs its command.
#[derive(Debug)]
pub struct Command {
    /// Process id of the child.
    pub pid: u32,
    /// Name of the command, followed by its user if that is not nvcap's own.
    name: String,
    go: Option<OwnedFd>,
    failure: std::fs::File,
    status: Option<ExitStatus>,
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new descriptors that nobody else has.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

impl Command {
    /// Forks the process that will execute the command. It must be called before other threads are started.
    ///
    /// # Errors
    /// When no further process can be started, or an argument holds a NUL.
    pub fn prepare(launch: &Launch) -> Result<Self> {
        let name = launch.name();
        let wrong = |why: &dyn std::fmt::Display| {
            Error::new(
                format!("running {name}"),
                why,
                "check the command behind --",
            )
        };
        let args = strings(launch.argv.iter().cloned()).map_err(|e| wrong(&e))?;
        let argv = pointers(&args);
        let environment = launch.user.as_ref().map(environment).transpose();
        let environment = environment.map_err(|e| wrong(&e))?;
        let envp = environment.as_deref().map(pointers);
        let (go_read, go_write) = pipe().map_err(|e| wrong(&e))?;
        let (failure_read, failure_write) = pipe().map_err(|e| wrong(&e))?;
        // SAFETY: in the child only async-signal-safe functions are called before exec or _exit.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(wrong(&io::Error::last_os_error()));
        }
        if pid == 0 {
            // SAFETY: as above; the pointers live in this frame.
            unsafe {
                child(
                    go_read.as_raw_fd(),
                    go_write.as_raw_fd(),
                    failure_write.as_raw_fd(),
                    launch.user.as_ref(),
                    &argv,
                    envp.as_deref(),
                )
            }
        }
        drop((go_read, failure_write));
        Ok(Self {
            pid: pid as u32,
            name,
            go: Some(go_write),
            failure: failure_read.into(),
            status: None,
        })
    }

    /// Lets the child execute its command.
    ///
    /// # Errors
    /// When the command cannot be executed.
    pub fn go(&mut self) -> Result<()> {
        let Some(go) = self.go.take() else {
            return Ok(());
        };
        // SAFETY: one byte of a static.
        unsafe { libc::write(go.as_raw_fd(), b"g".as_ptr().cast(), 1) };
        drop(go);
        let mut failure = [0; 8];
        // The pipe closes by itself when the exec succeeds.
        if self.failure.read_exact(&mut failure).is_ok() {
            self.wait();
            return Err(self.failed(failure));
        }
        Ok(())
    }

    /// Returns the error of a child that could not do a step. `failure` holds the bytes that the child wrote.
    fn failed(&self, failure: [u8; 8]) -> Error {
        let [step, errno] =
            [&failure[..4], &failure[4..]].map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        let e = io::Error::from_raw_os_error(errno);
        let what = format!("running {}", self.name);
        let changing = match step {
            step if step == Step::Groups as i32 => "its groups",
            step if step == Step::Group as i32 => "its group",
            step if step == Step::User as i32 => "its user",
            _ => return Error::new(what, e, "check the command's name and its rights"),
        };
        Error::new(
            what,
            format!("{changing} could not be set: {e}"),
            "run nvcap as root (sudo nvcap ...), or leave --user out",
        )
    }

    /// Returns the child's status, if the child has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.reap(libc::WNOHANG)
    }

    /// Waits for the child's end.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        self.reap(0)
    }

    fn reap(&mut self, flags: i32) -> Option<ExitStatus> {
        if self.status.is_none() && has_ended(self.pid, flags) {
            let mut status = 0;
            // SAFETY: status is an int; the process is our child.
            if unsafe { libc::waitpid(self.pid as i32, &mut status, flags) } == self.pid as i32 {
                self.status = Some(ExitStatus::from_raw(status));
            }
        }
        self.status
    }

    /// Sends the child a signal, if the child still runs.
    pub fn signal(&mut self, signal: i32) {
        if self.try_wait().is_none() {
            // SAFETY: it is our child and not reaped, so the id is its own.
            unsafe { libc::kill(self.pid as i32, signal) };
        }
    }
}

/// Tells whether a child has ended. A child that is stopped by its tracer has not ended. The child's status is left for a later
/// wait.
fn has_ended(pid: u32, flags: i32) -> bool {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOWAIT | flags;
    // SAFETY: room for one structure.
    let result = unsafe { libc::waitid(libc::P_PID, pid, &mut info, options) };
    // SAFETY: waitid has filled the structure, or left it zero if there is nothing.
    let known = unsafe { info.si_pid() } == pid as i32;
    let stopped = matches!(info.si_code, libc::CLD_TRAPPED | libc::CLD_STOPPED);
    result == 0 && known && !stopped
}

impl Launch {
    fn name(&self) -> String {
        let command = self.argv.first().cloned().unwrap_or_default();
        let command = command.to_string_lossy();
        match &self.user {
            Some(user) => format!("{command} as {}", user.name),
            None => command.into_owned(),
        }
    }
}

fn strings(
    all: impl Iterator<Item = OsString>,
) -> std::result::Result<Vec<CString>, std::ffi::NulError> {
    all.map(|s| CString::new(s.into_vec())).collect()
}

/// Returns the strings in the form that exec takes: a list that ends with a null pointer.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    let end = std::iter::once(std::ptr::null());
    strings.iter().map(|s| s.as_ptr()).chain(end).collect()
}

/// Returns nvcap's own environment, with the variables that name the user replaced by those of `user`.
fn environment(user: &User) -> std::result::Result<Vec<CString>, std::ffi::NulError> {
    let is_changed = |name: &OsString| user.environment.iter().any(|(n, _)| name == n);
    let kept = std::env::vars_os().filter(|(name, _)| !is_changed(name));
    let own = user.environment.iter();
    let own = own.map(|(name, value)| (OsString::from(name), value.clone()));
    strings(kept.chain(own).map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        name
    }))
}

/// A step of the child. The steps are done in this order.
#[derive(Clone, Copy)]
enum Step {
    Groups = 1,
    Group,
    User,
    Exec,
}

/// # Safety
/// Must be called in a forked child only. `argv` and `envp` must be null-terminated lists of NUL-terminated strings.
unsafe fn child(
    go: i32,
    other: i32,
    failure: i32,
    user: Option<&User>,
    argv: &[*const libc::c_char],
    envp: Option<&[*const libc::c_char]>,
) -> ! {
    // SAFETY: async-signal-safe functions on descriptors of ours and on memory of the parent's copied frame.
    unsafe {
        // Without this close, our own copy would keep the pipe open if nvcap died before it says go.
        libc::close(other);
        let mut byte = 0u8;
        if libc::read(go, (&raw mut byte).cast(), 1) != 1 {
            libc::_exit(125);
        }
        for signal in [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGHUP,
            libc::SIGPIPE,
            libc::SIGXFSZ,
        ] {
            libc::signal(signal, libc::SIG_DFL);
        }
        if let Some(Err(step)) = user.map(|user| become_user(user)) {
            fail(failure, step);
        }
        match envp {
            Some(envp) => libc::execvpe(argv[0], argv.as_ptr(), envp.as_ptr()),
            None => libc::execvp(argv[0], argv.as_ptr()),
        };
        fail(failure, Step::Exec)
    }
}

/// Changes the process's user for good; `Err` has the step that failed. The groups are set first, because a user who is not root may not
/// set them. The system calls are made directly, because the C library's functions would first look for other threads.
///
/// # Safety
/// Must be called in a forked child only.
unsafe fn become_user(user: &User) -> std::result::Result<(), Step> {
    let (uid, gid) = (user.uid, user.gid);
    // SAFETY: as many numbers as are named; the other two calls take numbers alone.
    unsafe {
        if libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()) != 0 {
            return Err(Step::Groups);
        }
        if libc::syscall(libc::SYS_setresgid, gid, gid, gid) != 0 {
            return Err(Step::Group);
        }
        if libc::syscall(libc::SYS_setresuid, uid, uid, uid) != 0 {
            return Err(Step::User);
        }
    }
    Ok(())
}

/// Tells the parent which step failed, and why.
///
/// # Safety
/// Must be called in a forked child only, right after the step that failed.
unsafe fn fail(to: i32, step: Step) -> ! {
    // SAFETY: async-signal-safe functions; eight bytes of this frame.
    unsafe {
        let failure = [step as i32, *libc::__errno_location()];
        libc::write(to, failure.as_ptr().cast(), 8);
        libc::_exit(127)
    }
}
