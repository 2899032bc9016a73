//! The one clock from which all times of records and looks are read. Its times can be compared with each other, and with those of other
//! programs.

/// Returns the time of `CLOCK_MONOTONIC`, ns. The BPF programs read the same clock. (The time since the machine's start is not suitable: it
/// continues while the machine sleeps, and a container may have its own.)
pub fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// Returns the CPU time that this program has used in all its threads, ns.
pub fn own_cpu() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// Returns the CPU time that this thread has used, ns.
pub fn thread_cpu() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// Returns the time of any clock, ns; `None` if the clock does not exist because the process whose time it counts has ended.
pub fn read(id: libc::clockid_t) -> Option<u64> {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: room for one timespec.
    let ok = unsafe { libc::clock_gettime(id, &mut t) } == 0;
    ok.then(|| t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}
