//! Memory whose pages never come: mapped from a file of a FUSE file system whose program answers no read. Whoever reads it waits in the
//! kernel until that program ends, which is long after this one; no signal ends the wait.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::entry;
use std::sync::atomic::Ordering;

use crate::bed::{Bed, CHANNELS, pause};
use crate::process::fork;

/// A user without rights, to whom the file system belongs.
const USER: u32 = 65_533;
/// Time after which the program that does not answer ends, s: every tracer has ended by then, or been found to hang.
const LIVES: u32 = 900;
/// Environment variable that names a file for the id of that program.
pub const NOTE: &str = "HOSTILE_SERVER";
/// Address at which pushbuffers are mapped from the file.
const AT: u64 = 0x2_6000_0000;
/// Bytes of the file.
const LEN: u64 = 1 << 20;
/// The file's number in its file system; the folder has 1.
const NODE: u64 = 2;

/// Pushbuffers in a file that does not answer: mapped just before they are submitted, so that no tracer has looked at the mappings since.
pub fn pushbuffers(bed: &Bed) -> Result<()> {
    bed.submit_many(200);
    let Some(file) = file()? else {
        return Ok(());
    };
    map(&file, AT, LEN as usize)?;
    for n in 0..8u64 {
        let position = 200 / CHANNELS as u64 + n;
        let raw = entry::segment(GpuVa(AT + n * 0x1000), 32, false, true, false);
        bed.write_entry(0, position, raw);
        bed.gp_put(0).store(position as u32 + 1, Ordering::Release);
        bed.doorbell(0);
        pause();
    }
    go_on(bed);
    Ok(())
}

/// A ring in whose place such a file is mapped.
pub fn ring(bed: &Bed) -> Result<()> {
    bed.submit_many(200);
    let Some(file) = file()? else {
        return Ok(());
    };
    map(&file, bed.ring(0), bed.slot() as usize)?;
    go_on(bed);
    Ok(())
}

/// A ring in memory of whose pages nobody is asked but a program that does not answer (userfaultfd): no look at the mappings tells it from
/// what it was. Such a file system is mounted, too, without which a tracer need not expect it: a user without rights has no other way.
pub fn faults(bed: &Bed) -> Result<()> {
    bed.submit_many(200);
    let Some(faults) = Faults::new() else {
        return Ok(());
    };
    // The program of the file system keeps the descriptor.
    if file()?.is_none() {
        return Ok(());
    }
    faults.take(bed.ring(0), bed.slot() as usize)?;
    go_on(bed);
    Ok(())
}

/// A userfaultfd that nobody reads.
struct Faults(OwnedFd);

impl Faults {
    /// Creates one for faults of the kernel, too; none where that may not be.
    fn new() -> Option<Self> {
        /// `UFFDIO_API` of linux/userfaultfd.h.
        const API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
        let mut api = [0xaa_u64, 0, 0];
        // SAFETY: a new descriptor that nobody else has, and a structure as long as the request says.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
            let fd = OwnedFd::from_raw_fd(fd);
            (libc::ioctl(fd.as_raw_fd(), API, api.as_mut_ptr()) == 0).then_some(Self(fd))
        }
    }

    /// Takes the pages out of shared memory, and the faults of whoever asks for them; the mapping stays as it is.
    fn take(&self, at: u64, len: usize) -> Result<()> {
        /// `UFFDIO_REGISTER`.
        const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
        // Where, how long, and that missing pages are asked for.
        let mut register = [at, len as u64, 1, 0];
        // SAFETY: memory of the bed that is not touched any more; a structure as long as the request says.
        unsafe {
            let removed = libc::madvise(at as *mut libc::c_void, len, libc::MADV_REMOVE);
            ensure!(removed == 0, "cannot take pages out");
            let taken = libc::ioctl(self.0.as_raw_fd(), REGISTER, register.as_mut_ptr());
            ensure!(taken == 0, "cannot take the faults");
        }
        Ok(())
    }
}

/// True where memory of whose pages nobody answers can be made here.
pub fn has_faults() -> bool {
    Faults::new().is_some()
}

/// The other channels go on, for longer than a tracer waits for memory.
fn go_on(bed: &Bed) {
    (0..300).for_each(|n| beside(bed, n));
}

/// Submits to a channel whose memory is as any other's, the next one for each number.
fn beside(bed: &Bed, n: usize) {
    bed.submit(1 + n % (CHANNELS - 1));
    std::thread::sleep(Duration::from_millis(10));
}

/// Goes on until standard input has a byte or ends.
pub fn go_on_until_told(bed: &Bed) {
    let mut input = libc::pollfd {
        fd: 0,
        events: libc::POLLIN,
        revents: 0,
    };
    for n in 0.. {
        // SAFETY: one structure, which the kernel fills.
        if unsafe { libc::poll(&raw mut input, 1, 0) } != 0 {
            return;
        }
        beside(bed, n);
    }
}

fn map(file: &File, at: u64, len: usize) -> Result<()> {
    let address = at as *mut libc::c_void;
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_FIXED,
    );
    // SAFETY: memory of the bed that is not touched any more, or an address that nobody uses; nothing is dereferenced here.
    let got = unsafe { libc::mmap(address, len, prot, flags, file.as_raw_fd(), 0) };
    ensure!(got == address, "cannot map the file");
    Ok(())
}

/// Gives up all rights: the file system's user.
pub fn become_stranger() -> Result<()> {
    // SAFETY: rights are given up.
    let given_up = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(USER, USER, USER) == 0
            && libc::setresuid(USER, USER, USER) == 0
    };
    ensure!(given_up, "cannot become another user");
    Ok(())
}

/// Opens the file, of a new file system in a mount namespace of its own; none where the kernel has no FUSE: then the rest is the mode.
fn file() -> Result<Option<File>> {
    let Ok(device) = OpenOptions::new().read(true).write(true).open("/dev/fuse") else {
        return Ok(None);
    };
    let folder = std::env::temp_dir().join(format!("hostile-served.{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let name = CString::new(folder.as_os_str().as_bytes())?;
    let fd = device.as_raw_fd();
    let options = format!("fd={fd},rootmode=40000,user_id={USER},group_id={USER},allow_other");
    let options = CString::new(options)?;
    // SAFETY: names that end with a zero; the mounts of this process alone change.
    let mounted = unsafe {
        let none = std::ptr::null();
        let apart = libc::MS_REC | libc::MS_PRIVATE;
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, apart, none.cast()) == 0
            && libc::mount(
                c"hostile".as_ptr(),
                name.as_ptr(),
                c"fuse".as_ptr(),
                libc::MS_NOSUID | libc::MS_NODEV,
                options.as_ptr().cast(),
            ) == 0
    };
    let error = std::io::Error::last_os_error();
    if !mounted && error.kind() == std::io::ErrorKind::PermissionDenied {
        return Ok(None);
    }
    ensure!(mounted, "cannot mount: {error}");
    let server = fork(|| {
        // SAFETY: a timer, and the end of what this process shares with the tests: their pipes end with the target.
        unsafe {
            libc::alarm(LIVES);
            libc::setsid();
            for fd in 0..3 {
                libc::close(fd);
            }
        }
        serve(&device);
    })?;
    if let Some(note) = std::env::var_os(NOTE) {
        fs::write(note, server.to_string())?;
    }
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .open(folder.join("f"))
        .context("the file")?;
    become_stranger()?;
    // So long may be taken for root's what was root's.
    std::thread::sleep(Duration::from_millis(100));
    Ok(Some(opened))
}

/// Answers what is asked before the file can be mapped, and no read.
fn serve(mut device: &File) {
    /// Requests: numbers of linux/fuse.h.
    const LOOKUP: u32 = 1;
    const FORGET: u32 = 2;
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const READ: u32 = 15;
    const INIT: u32 = 26;
    const INTERRUPT: u32 = 36;
    let mut request = vec![0u8; 1 << 20];
    loop {
        let n = match device.read(&mut request) {
            Ok(n) if n >= 40 => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            _ => return,
        };
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| request[at + i]));
        let (operation, node) = (word(4), u64::from(word(16)));
        let mut answer = Vec::new();
        let mut failed = 0i32;
        match operation {
            INIT => {
                // Version 7.31, and the least of all that may be asked for.
                for word in [7, 31, 0, 0, 0x30_0040, 4096] {
                    answer.extend(u32::to_le_bytes(word));
                }
                answer.resize(64, 0);
            }
            LOOKUP if request[40..n].starts_with(b"f\0") => {
                for word in [NODE, 0, 3600, 3600, 0] {
                    answer.extend(u64::to_le_bytes(word));
                }
                answer.extend(attributes(NODE));
            }
            LOOKUP => failed = libc::ENOENT,
            GETATTR => {
                for word in [3600u64, 0] {
                    answer.extend(word.to_le_bytes());
                }
                answer.extend(attributes(node));
            }
            // A handle, and that what is read is kept.
            OPEN => answer.extend([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]),
            READ | FORGET | INTERRUPT => continue,
            _ => failed = libc::ENOSYS,
        }
        if failed != 0 {
            answer.clear();
        }
        let mut whole = Vec::new();
        whole.extend((16 + answer.len() as u32).to_le_bytes());
        whole.extend((-failed).to_le_bytes());
        whole.extend(&request[8..16]);
        whole.extend(answer);
        if device.write_all(&whole).is_err() {
            return;
        }
    }
}

/// `struct fuse_attr` of the folder or the file.
fn attributes(node: u64) -> Vec<u8> {
    let is_file = node == NODE;
    let mode = match is_file {
        true => libc::S_IFREG | 0o666,
        false => libc::S_IFDIR | 0o777,
    };
    let mut all = Vec::new();
    // Number, size, blocks, three times.
    for word in [node, if is_file { LEN } else { 0 }, 0, 0, 0, 0] {
        all.extend(word.to_le_bytes());
    }
    // Their nanoseconds; mode, links, user, group, device, size of a block, flags.
    for word in [0, 0, 0, mode, 1, USER, USER, 0, 4096, 0] {
        all.extend(u32::to_le_bytes(word));
    }
    all
}
