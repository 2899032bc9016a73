//! An errand and its desk: the memory that tells the errand what to read, and in which it returns the bytes.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::ids;
use crate::procfs::stat::Stat;

/// Interval at which it is checked whether an errand waits in the kernel.
const LOOK: Duration = Duration::from_millis(5);
/// Longest wait for the end of an errand that is no longer needed.
const FAREWELL: Duration = Duration::from_secs(1);
/// The most ranges that one errand reads, and their most bytes together.
pub(super) const MOST_RANGES: usize = 256;
pub(super) const MOST_BYTES: usize = 256 << 10;
/// Size of an errand's stack, bytes.
const STACK: usize = 64 << 10;

/// States of a desk.
const IDLE: u32 = 0;
const ASKED: u32 = 1;
const DONE: u32 = 2;
/// The errand is to end.
const QUIT: u32 = 3;
/// The reading thread no longer waits for the errand.
const LEFT: u32 = 4;
/// The errand has come back after it was left alone, and ends.
const BACK: u32 = 5;

/// Memory that tells an errand what to read, and in which it answers.
#[repr(C)]
struct Desk {
    state: AtomicU32,
    /// Id of the errand, which the kernel clears at the errand's end.
    tid: AtomicU32,
    /// Number of bytes read, or the negative number of an error.
    answer: AtomicI64,
    /// Process id of nvcap, while nvcap lives.
    parent: u32,
    /// Thread whose memory is read by `process_vm_readv`; 0 if the file is read.
    thread: AtomicU32,
    /// nvcap's descriptor of the file.
    file: AtomicU32,
    /// Place in the file; all ones for the file's current position.
    offset: AtomicU64,
    /// Number of ranges, and the sum of their bytes.
    ranges: AtomicU32,
    bytes: AtomicU32,
    range: [libc::iovec; MOST_RANGES],
    buffer: [u8; MOST_BYTES],
    _stack: [u8; STACK],
}

impl Desk {
    fn set_file(&self, file: Option<(&File, u64)>) {
        let (fd, at) = file.map_or((-1, 0), |(file, at)| (file.as_raw_fd(), at));
        self.file.store(fd.cast_unsigned(), Ordering::Relaxed);
        self.offset.store(at, Ordering::Relaxed);
    }
}

/// Memory to read: addresses and lengths.
pub(super) type Range = (u64, usize);

/// Source of a read: memory of a thread's process, a file at its current position, or the file of a process's memory at a place.
pub(super) enum Asked<'a> {
    Thread(u32, &'a [Range]),
    File(&'a File),
    Memory(u32, &'a File, u64),
}

/// Makes a system call without libc, which would write `errno`: the errand shares the thread-local memory of the thread that
/// started it.
///
/// # Safety
/// The rules of the call that is made.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: libc::c_long, a: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: by the kernel's convention, it changes rcx, r11, rax and the memory to which the arguments point.
    unsafe {
        std::arch::asm!(
            "syscall", inlateout("rax") number as isize => answer,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    answer
}

/// Makes a system call without libc, which would write `errno`: the errand shares the thread-local memory of the thread that started it.
///
/// # Safety
/// The rules of the call that is made.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: libc::c_long, a: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: by the kernel's convention, it changes x0 and the memory to which the arguments point.
    unsafe {
        std::arch::asm!(
            "svc 0", in("x8") number as isize, inlateout("x0") a[0] as isize => answer,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack)
        );
    }
    answer
}

/// Main function of an errand: a process that shares nvcap's memory. It accesses only its desk, and never panics.
extern "C" fn errand(desk: *mut libc::c_void) -> libc::c_int {
    let at = desk.cast::<Desk>();
    // SAFETY: the desk was made by `Errand::start`, and is unmapped only after this process has ended.
    let desk = unsafe { &*at };
    let state = std::ptr::from_ref(&desk.state) as usize;
    // SAFETY: requests a signal at the end of the thread that made it; sets a name; closes all descriptors of nvcap's.
    unsafe {
        let (death, kill) = (libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize);
        call(libc::SYS_prctl, [death, kill, 0, 0, 0, 0]);
        let name = c"nvcap-errand".as_ptr() as usize;
        let set_name = libc::PR_SET_NAME as usize;
        call(libc::SYS_prctl, [set_name, name, 0, 0, 0, 0]);
        call(libc::SYS_close_range, [0, u32::MAX as usize, 0, 0, 0, 0]);
        if call(libc::SYS_getppid, [0; 6]) != desk.parent as isize {
            return 0;
        }
    }
    // SAFETY: opens a descriptor of nvcap's process.
    let nvcap = unsafe { call(libc::SYS_pidfd_open, [desk.parent as usize, 0, 0, 0, 0, 0]) };
    loop {
        match desk.state.load(Ordering::Acquire) {
            ASKED => {
                let answer = read_at(at, nvcap);
                desk.answer.store(answer as i64, Ordering::Relaxed);
                let done =
                    desk.state
                        .compare_exchange(ASKED, DONE, Ordering::AcqRel, Ordering::Acquire);
                let wake = libc::FUTEX_WAKE as usize;
                // SAFETY: wakes the thread that waits for the state.
                unsafe { call(libc::SYS_futex, [state, wake, 1, 0, 0, 0]) };
                if done.is_err() {
                    desk.state.store(BACK, Ordering::Release);
                    return 0;
                }
            }
            QUIT | LEFT => return 0,
            now => {
                let wait = libc::FUTEX_WAIT as usize;
                // SAFETY: waits for another value of the state.
                unsafe { call(libc::SYS_futex, [state, wait, now as usize, 0, 0, 0]) };
            }
        }
    }
}

/// Reads the ranges that the desk names. `nvcap` is a descriptor of nvcap's process.
fn read_at(at: *mut Desk, nvcap: isize) -> isize {
    // SAFETY: as in `errand`.
    let desk = unsafe { &*at };
    let base = at.cast::<u8>();
    // Both belong to this process while a request is open.
    let buffer = base.wrapping_add(offset_of!(Desk, buffer)) as usize;
    let ranges = base.wrapping_add(offset_of!(Desk, range)) as usize;
    let thread = desk.thread.load(Ordering::Relaxed) as usize;
    let count = desk.ranges.load(Ordering::Relaxed) as usize;
    let len = desk.bytes.load(Ordering::Relaxed) as usize;
    let local = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(buffer),
        iov_len: len,
    };
    let local = (&raw const local) as usize;
    let mut by_thread = false;
    if thread != 0 {
        // The call comes first in any case: while it waits, it holds no lock on that process's memory. With such a lock, every program
        // would wait that asks for the process's mappings or command line (ps, too). SAFETY: the local range is the buffer; the kernel
        // checks the remote ones.
        let answer = unsafe {
            call(
                libc::SYS_process_vm_readv,
                [thread, local, 1, ranges, count, 0],
            )
        };
        by_thread = answer == len as isize;
        if desk.file.load(Ordering::Relaxed) == u32::MAX {
            return answer;
        }
    }
    let (file, from) = (
        desk.file.load(Ordering::Relaxed) as usize,
        desk.offset.load(Ordering::Relaxed) as usize,
    );
    let mut byte = 0u8;
    let (to, most) = match by_thread {
        true => ((&raw mut byte) as usize, 1),
        false => (buffer, len),
    };
    // SAFETY: a buffer of this length, and the descriptor that was opened.
    unsafe {
        // The file as nvcap has it.
        let fd = call(libc::SYS_pidfd_getfd, [nvcap as usize, file, 0, 0, 0, 0]);
        if fd < 0 {
            return fd;
        }
        let answer = match from {
            usize::MAX => call(libc::SYS_read, [fd as usize, to, most, 0, 0, 0]),
            _ => call(libc::SYS_pread64, [fd as usize, to, most, from, 0, 0]),
        };
        call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
        match answer {
            // The file is the memory of the program that ran when it was opened. It has this byte still, so that the process has not executed
            // another program, whose bytes the thread would have given. The page is there: it has just been read.
            1 if by_thread => len as isize,
            answer => answer,
        }
    }
}

fn wait_on(word: &AtomicU32, while_it_is: u32, most: Duration) {
    let most = libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: most.subsec_nanos().into(),
    };
    // SAFETY: a word and a time, both of which are alive.
    unsafe {
        let (at, wait) = (std::ptr::from_ref(word), libc::FUTEX_WAIT);
        libc::syscall(libc::SYS_futex, at, wait, while_it_is, &raw const most)
    };
}

fn wake(word: &AtomicU32) {
    // SAFETY: a word that is alive.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            std::ptr::from_ref(word),
            libc::FUTEX_WAKE,
            1,
        )
    };
}

/// An errand with its desk.
pub(super) struct Errand {
    desk: AtomicPtr<Desk>,
    pub(super) pid: u32,
}

impl Errand {
    /// Starts an errand.
    pub(super) fn start() -> io::Result<Self> {
        // SAFETY: new memory at a place that the kernel chooses; it is touched only where it is used.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Desk>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let desk = at.cast::<Desk>();
        let top = at.cast::<u8>().wrapping_add(size_of::<Desk>() & !15);
        // SAFETY: zeros are a valid desk. The new process has its own stack, shares no descriptors, and blocks every signal; the kernel
        // clears `tid` at its end.
        let pid = unsafe {
            (*desk).parent = std::process::id();
            let (mut every, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut every);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const every, &raw mut before);
            let tid = (*desk).tid.as_ptr();
            let flags = libc::CLONE_VM | libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_CLEARTID;
            let none: *mut libc::c_void = std::ptr::null_mut();
            let mut errands = ids::all();
            let pid = libc::clone(errand, top.cast(), flags, at, tid, none, tid);
            let refused = io::Error::last_os_error();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            if pid < 0 {
                libc::munmap(at, size_of::<Desk>());
                return Err(refused);
            }
            errands.insert(pid.cast_unsigned());
            pid.cast_unsigned()
        };
        Ok(Self {
            desk: AtomicPtr::new(desk),
            pid,
        })
    }

    fn desk(&self) -> &Desk {
        // SAFETY: mapped until this is dropped.
        unsafe { &*self.desk.load(Ordering::Relaxed) }
    }

    /// Reads ranges that fit the desk; `None` if the errand did not come back in time.
    pub(super) fn ask(
        &mut self,
        from: &Asked<'_>,
        to: &mut [u8],
        patience: &dyn Fn() -> Duration,
    ) -> io::Result<Option<isize>> {
        let at = self.desk.load(Ordering::Relaxed);
        let desk = self.desk();
        match *from {
            Asked::Thread(thread, ranges) => {
                // SAFETY: the errand does not access the ranges before it is asked.
                let places = unsafe { &mut (*at).range };
                for (place, (at, len)) in places.iter_mut().zip(ranges) {
                    place.iov_base = std::ptr::with_exposed_provenance_mut(*at as usize);
                    place.iov_len = *len;
                }
                desk.thread.store(thread, Ordering::Relaxed);
                desk.ranges.store(ranges.len() as u32, Ordering::Relaxed);
                desk.set_file(None);
            }
            Asked::File(file) => {
                desk.thread.store(0, Ordering::Relaxed);
                desk.set_file(Some((file, u64::MAX)));
            }
            Asked::Memory(thread, file, offset) => {
                // SAFETY: as above.
                let places = unsafe { &mut (*at).range };
                places[0] = libc::iovec {
                    iov_base: std::ptr::with_exposed_provenance_mut(offset as usize),
                    iov_len: to.len(),
                };
                desk.thread.store(thread, Ordering::Relaxed);
                desk.ranges.store(1, Ordering::Relaxed);
                desk.set_file(Some((file, offset)));
            }
        }
        desk.bytes.store(to.len() as u32, Ordering::Relaxed);
        desk.state.store(ASKED, Ordering::Release);
        wake(&desk.state);
        let mut waits = None;
        while desk.state.load(Ordering::Acquire) == ASKED {
            wait_on(&desk.state, ASKED, LOOK);
            if desk.state.load(Ordering::Acquire) != ASKED {
                break;
            }
            // The errand may lack a processor, or it was killed.
            let stat = Stat::of_process(self.pid);
            if desk.tid.load(Ordering::Acquire) == 0 || stat.as_ref().is_ok_and(Stat::is_over) {
                return Err(io::Error::other("the process that reads was killed"));
            }
            match stat.is_ok_and(|stat| stat.state != 'R') {
                true => {
                    let until = *waits.get_or_insert_with(|| Instant::now() + patience());
                    let left = Instant::now() >= until
                        && desk
                            .state
                            .compare_exchange(ASKED, LEFT, Ordering::AcqRel, Ordering::Acquire)
                            .is_ok();
                    if left {
                        return Ok(None);
                    }
                }
                false => waits = None,
            }
        }
        let answer = desk.answer.load(Ordering::Relaxed) as isize;
        if let Some(n) = usize::try_from(answer).ok().filter(|n| *n <= to.len()) {
            // SAFETY: the errand has written this many bytes, and is done.
            let from = unsafe { &(*at).buffer };
            to[..n].copy_from_slice(&from[..n]);
        }
        desk.state.store(IDLE, Ordering::Release);
        Ok(Some(answer))
    }

    /// Tells whether the errand was left alone and has come back.
    pub(super) fn is_back(&self) -> bool {
        let desk = self.desk();
        desk.state.load(Ordering::Acquire) == BACK || desk.tid.load(Ordering::Acquire) == 0
    }
}

impl Drop for Errand {
    /// Ends the errand. An errand that does not end keeps its desk.
    fn drop(&mut self) {
        let desk = self.desk();
        let idle = desk
            .state
            .compare_exchange(IDLE, QUIT, Ordering::AcqRel, Ordering::Acquire);
        if idle.is_ok() {
            wake(&desk.state);
        }
        let began = Instant::now();
        loop {
            match desk.tid.load(Ordering::Acquire) {
                0 => break,
                _ if !self.is_back() && idle.is_err() || began.elapsed() > FAREWELL => return,
                tid => wait_on(&desk.tid, tid, LOOK),
            }
        }
        let at = self.desk.load(Ordering::Relaxed);
        // SAFETY: a child of this process, which has ended, and its memory, which nobody uses any more.
        unsafe {
            libc::waitpid(self.pid.cast_signed(), std::ptr::null_mut(), libc::__WALL);
            libc::munmap(at.cast(), size_of::<Desk>());
        }
        ids::all().remove(&self.pid);
    }
}
