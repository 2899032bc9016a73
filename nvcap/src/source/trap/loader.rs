//! aya's loader, made without the kernel's type information.
//!
//! `EbpfLoader::new` reads and parses all of /sys/kernel/btf/vmlinux, 40 ms and 100 MB that nothing is done with: our
//! programs have no relocations ([`super::btf`] finds what they need). aya knows no other way to make one, and carries on
//! where that file cannot be opened. So it is made in a thread that can open nothing.

use std::{io, thread};

use aya::EbpfLoader;

/// A loader that knows no kernel's types. Where the thread cannot be held back, one that does.
pub fn loader() -> EbpfLoader<'static> {
    let made = thread::Builder::new().spawn(|| {
        if let Err(e) = open_nothing() {
            log::debug!("seccomp: {e}: aya reads the kernel's BTF in vain");
        }
        EbpfLoader::new()
    });
    made.ok().and_then(|t| t.join().ok()).unwrap_or_default()
}

/// From now on this thread, and no other, is told that no file is there.
fn open_nothing() -> io::Result<()> {
    let statement = |code: u32, jt, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    let mut filter = [
        // The system call's number is the first word of what a filter is shown.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            libc::SYS_openat as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | libc::ENOENT as u32,
        ),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: both calls change this thread alone; the second reads a whole program and copies it.
    let rc = unsafe {
        match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
            0 => libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program),
            rc => rc,
        }
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_the_thread_that_asked_opens_nothing() {
        let inside = std::thread::spawn(|| {
            super::open_nothing().unwrap();
            std::fs::File::open("/proc/self/stat")
                .err()
                .map(|e| e.kind())
        });
        assert_eq!(inside.join().unwrap(), Some(std::io::ErrorKind::NotFound));
        std::fs::File::open("/proc/self/stat").unwrap();
    }
}
