//! Reads of other users' memory that may last for ever, made by a process of nvcap's own that can be given up.
//!
//! A page of a process may be such that whoever touches it waits for another program (a file of a FUSE file system, memory with a userfaultfd),
//! and mappings change at any time: no look beforehand makes a read safe. A thread that waits there cannot be ended, nor can its process. So
//! a helper reads: a child without threads, files or signals, into memory that it shares with nvcap. If it does not answer, it is left
//! where it is, and that process is not read any more.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    ptr::{self, NonNull},
    sync::{
        Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::stat::Stat;

/// The bit of cap_sys_ptrace.
const SYS_PTRACE: u64 = 1 << 19;
/// Bytes that a helper reads at once.
const ROOM: usize = 1 << 20;
/// Ranges that it reads at once: the kernel's limit.
const MOST_RANGES: usize = 1024;
/// Bytes of the ranges, which lie behind the room.
const TABLE: usize = MOST_RANGES * size_of::<libc::iovec>();
/// How long a helper may sleep in a read.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two looks what a helper that does not answer does.
const LOOKS: i32 = 250;
/// Processes that are kept until those that have ended are forgotten.
const MOST_HELD: usize = 1024;

/// Processes of which a read has not come back, each with the time of its start.
static HELD: RwLock<BTreeMap<u32, Option<u64>>> = RwLock::new(BTreeMap::new());
/// There are such processes.
static ANY_HELD: AtomicBool = AtomicBool::new(false);
/// Helpers that have nothing to do.
static IDLE: Mutex<Vec<Helper>> = Mutex::new(Vec::new());

/// Text for a process that is not read any more.
pub(crate) const GIVEN_UP: &str = "a read of its memory did not come back, for who answers for a page of it does not (FUSE, userfaultfd): \
                                   it is not read any more";

/// True where a read of this process has not come back: it must not be read, nor its mappings be asked for.
pub(crate) fn is_held(pid: u32) -> bool {
    if !ANY_HELD.load(Ordering::Relaxed) {
        return false;
    }
    let all = HELD.read().unwrap_or_else(PoisonError::into_inner);
    let start = all.get(&pid);
    start.is_some_and(|start| *start == start_of(pid))
}

fn start_of(pid: u32) -> Option<u64> {
    Stat::of_process(pid).ok().and_then(|s| s.start)
}

fn hold(pid: u32) {
    let start = start_of(pid);
    let mut all = HELD.write().unwrap_or_else(PoisonError::into_inner);
    if all.len() >= MOST_HELD {
        all.retain(|pid, _| super::exists(*pid));
    }
    if all.insert(pid, start).is_none() {
        log::warn!("process {pid}: {GIVEN_UP}");
    }
    ANY_HELD.store(true, Ordering::Relaxed);
}

/// Whether a process is a stranger's: another user's, or one with mounts of its own, as in a container. Who could trace nvcap itself need not be
/// guarded against.
pub(super) fn is_strange(pid: u32) -> bool {
    // Without the right to read other users' memory it reads none.
    if super::status_bits("thread-self", "CapEff").is_some_and(|bits| bits & SYS_PTRACE == 0) {
        return false;
    }
    // SAFETY: reads an id.
    let own = unsafe { libc::geteuid() }.to_string();
    let uids = super::status(pid, "Uid").unwrap_or_default();
    let mounts = |who: &str| fs::read_link(format!("/proc/{who}/ns/mnt")).ok();
    uids.is_empty()
        || uids.split_whitespace().any(|uid| uid != own)
        || mounts(&pid.to_string()) != mounts("self")
}

/// What a helper is to read: from a file, or ranges of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Order {
    at: u64,
    /// Bytes, or ranges.
    count: u64,
    /// The process, or 0: from the file that comes with the order.
    pid: libc::pid_t,
    _unused: u32,
}

/// A process that reads.
#[derive(Debug)]
struct Helper {
    pid: libc::pid_t,
    socket: OwnedFd,
    /// `ROOM` and `TABLE` bytes, shared.
    room: NonNull<u8>,
}

// SAFETY: the room is the helper's alone, and whoever has the helper asks it.
unsafe impl Send for Helper {}

impl Drop for Helper {
    fn drop(&mut self) {
        // SAFETY: mapped by `start`; nothing refers to it any more, and the child has a mapping of its own.
        unsafe { libc::munmap(self.room.as_ptr().cast(), ROOM + TABLE) };
    }
}

impl Helper {
    fn start() -> io::Result<Self> {
        let mut ends: [RawFd; 2] = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: there is room for both ends.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: two new descriptors that nobody else has.
        let [socket, child] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: a new mapping.
        let room = unsafe {
            libc::mmap(
                ptr::null_mut(),
                ROOM + TABLE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if room == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let room = NonNull::new(room.cast::<u8>()).ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: the child makes system calls alone, on memory that it has.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: this is that child.
            unsafe { serve(child.as_raw_fd(), room.as_ptr()) };
        }
        let helper = Self { pid, socket, room };
        match pid {
            ..0 => Err(io::Error::last_os_error()),
            _ => Ok(helper),
        }
    }

    /// Has it read; the number of bytes. `None`: it does not answer.
    fn ask(&self, order: &Order, file: Option<RawFd>) -> Option<io::Result<usize>> {
        if let Err(e) = self.send(order, file) {
            return Some(Err(e));
        }
        let begun = Instant::now();
        loop {
            let mut poll = libc::pollfd {
                fd: self.socket.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one pollfd.
            if unsafe { libc::poll(&raw mut poll, 1, LOOKS) } > 0 {
                break;
            }
            // On a busy machine it waits for a processor.
            let state = Stat::of_process(self.pid.cast_unsigned()).map(|s| s.state);
            if begun.elapsed() >= PATIENCE && !matches!(state, Ok('R')) {
                return None;
            }
        }
        let mut answer = [0u8; 8];
        // SAFETY: there is room for the answer.
        let got = unsafe {
            libc::recv(
                self.socket.as_raw_fd(),
                answer.as_mut_ptr().cast(),
                answer.len(),
                0,
            )
        };
        let answer = i64::from_ne_bytes(answer);
        Some(match usize::try_from(answer) {
            // It is gone.
            _ if got != 8 => Err(io::Error::from_raw_os_error(libc::EPIPE)),
            Ok(bytes) => Ok(bytes.min(ROOM)),
            Err(_) => Err(io::Error::from_raw_os_error((-answer) as i32)),
        })
    }

    /// Sends an order, with a file.
    fn send(&self, order: &Order, file: Option<RawFd>) -> io::Result<()> {
        let mut part = libc::iovec {
            iov_base: ptr::from_ref(order).cast_mut().cast(),
            iov_len: size_of::<Order>(),
        };
        let mut room = [0u64; 8];
        // SAFETY: an all-zero msghdr is a valid one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if let Some(file) = file {
            message.msg_control = room.as_mut_ptr().cast();
            // SAFETY: the room is large enough for a header and a descriptor, and aligned.
            unsafe {
                message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
                libc::CMSG_DATA(header)
                    .cast::<RawFd>()
                    .write_unaligned(file);
            }
        }
        // SAFETY: the message's parts live until then.
        let sent = unsafe {
            libc::sendmsg(
                self.socket.as_raw_fd(),
                &raw const message,
                libc::MSG_NOSIGNAL,
            )
        };
        match sent {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The bytes that it has read.
    fn copy(&self, to: &mut [u8]) {
        // SAFETY: the room is longer, and the child writes it only while it is asked.
        let from = unsafe { std::slice::from_raw_parts(self.room.as_ptr(), to.len().min(ROOM)) };
        to.copy_from_slice(from);
    }

    /// Writes the ranges that are to be read.
    fn put(&self, ranges: &[(u64, usize)]) {
        for (i, (at, len)) in ranges.iter().take(MOST_RANGES).enumerate() {
            let range = libc::iovec {
                iov_base: ptr::with_exposed_provenance_mut(*at as usize),
                iov_len: *len,
            };
            // SAFETY: there is room for so many behind the data, aligned.
            unsafe {
                let table = self.room.as_ptr().add(ROOM).cast::<libc::iovec>();
                table.add(i).write(range);
            }
        }
    }
}

/// What the child does: it reads as it is told, until nobody can tell it any more.
///
/// # Safety
/// To be called in a child that was just forked: it makes system calls alone, and does not return. `room` has `ROOM` and `TABLE` bytes.
unsafe fn serve(socket: RawFd, room: *mut u8) -> ! {
    // SAFETY: as above; each call has room for what it writes.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
        libc::dup2(socket, 0);
        // Nobody who waits for the end of nvcap's output is to wait for this.
        if libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0) != 0 {
            for fd in 1..4096 {
                libc::close(fd);
            }
        }
        loop {
            let mut order = Order::default();
            let mut part = libc::iovec {
                iov_base: (&raw mut order).cast(),
                iov_len: size_of::<Order>(),
            };
            let mut control = [0u64; 8];
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control) as _;
            if libc::recvmsg(0, &raw mut message, 0) != size_of::<Order>() as isize {
                libc::_exit(0);
            }
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            let read = if header.is_null() {
                let local = libc::iovec {
                    iov_base: room.cast(),
                    iov_len: ROOM,
                };
                let table = room.add(ROOM).cast::<libc::iovec>();
                libc::process_vm_readv(order.pid, &raw const local, 1, table, order.count as _, 0)
            } else {
                let file = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
                let read = libc::pread(file, room.cast(), order.count as usize, order.at as _);
                let failed = *libc::__errno_location();
                libc::close(file);
                *libc::__errno_location() = failed;
                read
            };
            let answer = match read {
                0.. => read as i64,
                _ => -i64::from(*libc::__errno_location()),
            };
            let answer = answer.to_ne_bytes();
            if libc::send(0, answer.as_ptr().cast(), 8, libc::MSG_NOSIGNAL) != 8 {
                libc::_exit(0);
            }
        }
    }
}

/// Has a helper read from a process. One that does not answer is given up, and so is the process.
fn have(pid: u32, mut work: impl FnMut(&Helper) -> Option<io::Result<usize>>) -> io::Result<usize> {
    if is_held(pid) {
        return Err(io::Error::from_raw_os_error(libc::EIO));
    }
    let idle = || IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let used = idle().pop();
    let is_used = used.is_some();
    let mut helper = used.map_or_else(Helper::start, Ok)?;
    let mut read = work(&helper);
    let fails = |read: &Option<io::Result<usize>>, with: i32| matches!(read, Some(Err(e)) if e.raw_os_error() == Some(with));
    // It has the rights of the thread that made it.
    if is_used && (fails(&read, libc::EPERM) || fails(&read, libc::EPIPE)) {
        helper = Helper::start()?;
        read = work(&helper);
    }
    let is_gone = fails(&read, libc::EPIPE);
    let Some(read) = read else {
        hold(pid);
        return Err(io::Error::from_raw_os_error(libc::EIO));
    };
    if !is_gone {
        idle().push(helper);
    }
    read
}

/// Reads exactly `to.len()` bytes of a process's `mem`.
pub(super) fn read_file(pid: u32, file: &fs::File, mut at: u64, to: &mut [u8]) -> io::Result<()> {
    for part in to.chunks_mut(ROOM) {
        let mut done = 0;
        while let Some(left @ [_, ..]) = part.get_mut(done..) {
            let order = Order {
                at,
                count: left.len() as u64,
                ..Order::default()
            };
            let read = have(pid, |helper| {
                let read = helper.ask(&order, Some(file.as_raw_fd()))?;
                if let Ok(len) = read {
                    let len = len.min(left.len());
                    helper.copy(left.split_at_mut(len).0);
                }
                Some(read)
            });
            match read? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => {
                    done += n.min(left.len());
                    at += n as u64;
                }
            }
        }
    }
    Ok(())
}

/// Reads ranges (address and length) of a thread's memory one after the other, as `process_vm_readv` does; the number of bytes read until one
/// could not be.
pub(super) fn read_ranges(
    pid: u32,
    thread: libc::pid_t,
    ranges: impl Iterator<Item = (u64, usize)>,
    to: &mut [u8],
) -> io::Result<usize> {
    let (mut batch, mut bytes, mut done) = (Vec::new(), 0, 0);
    let mut flush = |batch: &mut Vec<(u64, usize)>, bytes: &mut usize, done: &mut usize| {
        let (wanted, order) = (
            std::mem::take(bytes),
            Order {
                count: batch.len() as u64,
                pid: thread,
                ..Order::default()
            },
        );
        let read = have(pid, |helper| {
            helper.put(batch);
            let read = helper.ask(&order, None)?;
            if let Ok(len) = read
                && let Some(to) = to.get_mut(*done..*done + len)
            {
                helper.copy(to);
            }
            Some(read)
        });
        batch.clear();
        let read = read?;
        *done += read;
        Ok::<bool, io::Error>(read == wanted)
    };
    for (mut at, mut len) in ranges {
        while len > 0 {
            let part = len.min(ROOM - bytes);
            batch.push((at, part));
            bytes += part;
            (at, len) = (at.saturating_add(part as u64), len - part);
            if bytes == ROOM || batch.len() == MOST_RANGES {
                match flush(&mut batch, &mut bytes, &mut done) {
                    Ok(true) => {}
                    Err(e) if done == 0 => return Err(e),
                    _ => return Ok(done),
                }
            }
        }
    }
    if bytes > 0
        && let Err(e) = flush(&mut batch, &mut bytes, &mut done)
        && done == 0
    {
        return Err(e);
    }
    Ok(done)
}

#[cfg(test)]
mod tests;
