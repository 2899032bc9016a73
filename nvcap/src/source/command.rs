//! The command that nvcap starts: forked first, executed when the trace is ready for it.

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

/// A child that waits to be let go, or runs.
#[derive(Debug)]
pub struct Command {
    /// Its process id.
    pub pid: u32,
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
    /// Forks the process that will execute `argv`. Call it before other threads are started.
    ///
    /// # Errors
    /// When there can be no further process, or an argument holds a NUL.
    pub fn prepare(argv: &[OsString]) -> Result<Self> {
        let name = argv
            .first()
            .map(|a| a.to_string_lossy().into_owned())
            .unwrap_or_default();
        let wrong = |why: &dyn std::fmt::Display| {
            Error::new(
                format!("running {name}"),
                why,
                "check the command behind --",
            )
        };
        let args: Vec<CString> = argv
            .iter()
            .map(|a| CString::new(a.clone().into_vec()))
            .collect::<std::result::Result<_, _>>()
            .map_err(|e| wrong(&e))?;
        let mut pointers: Vec<*const libc::c_char> = args.iter().map(|a| a.as_ptr()).collect();
        pointers.push(std::ptr::null());
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
                    &pointers,
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

    /// Lets it execute its command.
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
        let mut errno = [0; 4];
        // The pipe closes by itself when the exec succeeds.
        if self.failure.read_exact(&mut errno).is_ok() {
            let e = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
            self.wait();
            return Err(Error::new(
                format!("running {}", self.name),
                e,
                "check the command's name and its rights",
            ));
        }
        Ok(())
    }

    /// Its status, if it has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.reap(libc::WNOHANG)
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        self.reap(0)
    }

    fn reap(&mut self, flags: i32) -> Option<ExitStatus> {
        if self.status.is_none() {
            let mut status = 0;
            // SAFETY: status is an int; the process is our child.
            if unsafe { libc::waitpid(self.pid as i32, &mut status, flags) } == self.pid as i32 {
                self.status = Some(ExitStatus::from_raw(status));
            }
        }
        self.status
    }

    /// Sends it a signal, if it still runs.
    pub fn signal(&mut self, signal: i32) {
        if self.try_wait().is_none() {
            // SAFETY: it is our child and not reaped, so the id is its own.
            unsafe { libc::kill(self.pid as i32, signal) };
        }
    }
}

/// # Safety
/// To be called in a forked child only; `argv` must be NUL-terminated strings behind a null-terminated list.
unsafe fn child(go: i32, other: i32, failure: i32, argv: &[*const libc::c_char]) -> ! {
    // SAFETY: async-signal-safe functions on descriptors of ours and on memory of the parent's copied frame.
    unsafe {
        // Without this our own copy keeps the pipe open when nvcap dies before it says go.
        libc::close(other);
        let mut byte = 0u8;
        if libc::read(go, (&raw mut byte).cast(), 1) != 1 {
            libc::_exit(125);
        }
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::execvp(argv[0], argv.as_ptr());
        let errno = (*libc::__errno_location()).to_ne_bytes();
        libc::write(failure, errno.as_ptr().cast(), 4);
        libc::_exit(127)
    }
}
