//! Room for the program's own file descriptors.

use std::{fs::File, os::fd::AsRawFd};

/// The most descriptors for which room is made at once.
const MOST: u64 = 4096;

/// Makes the kernel enlarge its table of this program's descriptors, before threads are started. Otherwise the table grows as it fills; in
/// a program with threads, the kernel then waits each time for an RCU grace period on all processors: 6 to 20 ms with 16 processors.
pub fn make_room() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limit is writable.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    let (true, Ok(any)) = (known, File::open("/dev/null")) else {
        return;
    };
    let last = limit.rlim_cur.clamp(1, MOST) - 1;
    // SAFETY: duplicates an open descriptor to an unused number, at or above `last`, and closes the duplicate.
    unsafe {
        let high = libc::fcntl(any.as_raw_fd(), libc::F_DUPFD_CLOEXEC, last as libc::c_int);
        if high >= 0 {
            libc::close(high);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    #[test]
    fn the_kernels_table_is_large_then() {
        super::make_room();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
        let size: u64 = size.unwrap().trim().parse().unwrap();
        assert!(size >= 256, "{size}");
    }
}
