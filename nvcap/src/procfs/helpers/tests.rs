//! Tests of the helpers, against memory of this process and of a child whose memory nobody answers for.

use super::*;
use crate::procfs::mem::{Memory, Ordinary};
use crate::waiting;

/// What a helper reads is what is there, in parts that are longer than its room, and up to what cannot be read.
#[test]
fn read_as_without_a_helper() {
    let pid = std::process::id();
    let (memory, ordinary) = (Memory::guarded(pid), Ordinary::guarded(pid));
    let bytes: Vec<u8> = (0..2 * ROOM + 77).map(|i| (i % 251) as u8).collect();
    let at = bytes.as_ptr() as u64;
    let mut to = vec![0; bytes.len()];
    memory.read(at, &mut to).unwrap();
    assert!(to == bytes);
    to.fill(0);
    let len = bytes.len();
    let two = [(at + 5, len - 5), (at, 5)];
    assert_eq!(ordinary.read(&two, &mut to).unwrap(), len);
    assert!(to.starts_with(&bytes[5..]) && to.ends_with(&bytes[..5]));
    let many: Vec<(u64, usize)> = (0..3 * MOST_RANGES as u64).map(|i| (at + i, 1)).collect();
    let mut to = vec![0; many.len()];
    assert_eq!(ordinary.read(&many, &mut to).unwrap(), many.len());
    assert!(bytes.starts_with(&to));
    // Nothing is mapped there.
    let mut to = [0; 8];
    assert_eq!(ordinary.read(&[(at, 4), (16, 4)], &mut to).unwrap(), 4);
    assert!(ordinary.read(&[(16, 4)], &mut to).is_err() && memory.read(16, &mut to).is_err());
    assert!(!is_held(pid));
}

/// A child that has a page which nobody answers for; it is ended with this.
struct Child {
    pid: libc::pid_t,
    page: u64,
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of this test.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, ptr::null_mut(), 0);
        }
    }
}

/// Makes one; `None` where a user may not have such memory.
fn child() -> Option<Child> {
    const LEN: usize = 4096;
    let map = |flags| {
        // SAFETY: a new mapping.
        let at = unsafe {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                ptr::null_mut(),
                LEN,
                both,
                flags | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        at
    };
    let (said, page) = (map(libc::MAP_SHARED).cast::<u32>(), map(libc::MAP_PRIVATE));
    // SAFETY: the child makes system calls alone.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above. The structures are those of linux/userfaultfd.h, with their ioctls UFFDIO_API and UFFDIO_REGISTER.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
            let mut api = [0xaau64, 0, 0];
            let mut register = [page as u64, LEN as u64, 1, 0];
            let made = fd >= 0
                && libc::ioctl(fd, 0xc018_aa3f, api.as_mut_ptr()) == 0
                && libc::ioctl(fd, 0xc020_aa00, register.as_mut_ptr()) == 0;
            said.write_volatile(if made { 1 } else { 2 });
            loop {
                libc::pause();
            }
        }
    }
    assert!(pid > 0);
    let child = Child {
        pid,
        page: page as u64,
    };
    // SAFETY: the page is shared with the child.
    let state = || unsafe { said.read_volatile() };
    waiting::until("the child's page", || state() != 0);
    (state() == 1).then_some(child)
}

/// A read that does not come back is given up, and that process is read no more; others are.
#[test]
#[ignore = "needs memory that nobody answers for: cargo xtask test runs it as root"]
fn a_read_that_does_not_come_back() {
    let Some(child) = child() else {
        println!("NOT RUN a_read_that_does_not_come_back: userfaultfd is refused");
        return;
    };
    let (pid, page) = (child.pid.cast_unsigned(), child.page);
    let read = move || {
        let ordinary = Ordinary::guarded(pid);
        ordinary.read(&[(page, 8)], &mut [0; 8]).is_err()
    };
    assert!(waiting::ends("a read that nobody answers", read));
    assert!(is_held(pid));
    let maps = crate::procfs::maps::each_line(pid, &mut || (), &mut |_| ());
    assert!(Memory::open(pid).is_err() && maps.is_err());
    // At once.
    assert!(read());
    let own = Ordinary::guarded(std::process::id());
    let mut to = [0; 2];
    assert_eq!(own.read(&[(b"ab".as_ptr() as u64, 2)], &mut to).unwrap(), 2);
    assert_eq!(&to, b"ab");
}
