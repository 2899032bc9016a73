//! Mappings of files that another program serves. A read of such a mapping may last for ever: a FUSE file system's program, which any user may
//! start, need not answer, and the read cannot be given up. These mappings are known by the numbers of their file systems' devices, which the
//! kernel tells without asking any program. They are neither opened nor read.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError, RwLock};

use super::{exists, of_process};

/// The most bytes of a `mountinfo` that are read: some ten thousand file systems.
const MOST_MOUNTS: u64 = 4 << 20;
/// Number of processes above which those that have ended are forgotten.
const MOST_PROCESSES: usize = 1024;
/// Folder in which the kernel lists the FUSE file systems of all mount namespaces, by the minor numbers of their devices.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A device: major and minor number.
type Number = (u32, u32);

/// Returns the device numbers of those file systems in a `mountinfo` that a program serves. Network file systems are left out, because root
/// mounts them.
fn mounted(mountinfo: &str) -> BTreeSet<Number> {
    let number = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let kind = system.split(' ').next()?;
        (kind == "fuse" || kind.starts_with("fuse.")).then_some(())?;
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    mountinfo.lines().filter_map(number).collect()
}

/// Parses a device from the hexadecimal form of `/proc/PID/maps`. `None` for the device of a disk, and for memory without a file. (A disk's
/// file system may be served by a program, too, `fuseblk`, but root mounted it.)
fn number(device: &str) -> Option<Number> {
    let minor = u32::from_str_radix(device.strip_prefix("00:")?, 16).ok()?;
    (minor != 0).then_some((0, minor))
}

/// Returns the text of a `mountinfo`; empty if it cannot be read.
fn mountinfo(path: &str) -> String {
    let mut bytes = Vec::new();
    let file = fs::File::open(path);
    let read = file.map(|f| f.take(MOST_MOUNTS).read_to_end(&mut bytes));
    if let Err(e) = read {
        log::debug!("{path}: {e}");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the file system that lists the FUSE file systems of this machine. If it is not mounted, it is mounted for nvcap alone, in no
/// folder.
fn list() -> Option<&'static OwnedFd> {
    static LIST: OnceLock<OwnedFd> = OnceLock::new();
    static REFUSED: AtomicBool = AtomicBool::new(false);
    if let Some(list) = LIST.get() {
        return Some(list);
    }
    // If nothing is mounted on it, the folder is empty, whatever FUSE file systems exist.
    let there = fs::File::open(CONNECTIONS).map(OwnedFd::from).ok();
    let list = there.filter(is_list);
    let list = list.or_else(|| {
        let made = (!REFUSED.load(Ordering::Relaxed)).then(mount).flatten();
        REFUSED.store(made.is_none(), Ordering::Relaxed);
        made
    })?;
    Some(LIST.get_or_init(|| list))
}

/// Opens the list while this thread has all its rights.
pub(crate) fn prepare() {
    if Path::new(FUSE).exists() {
        list();
    }
}

fn is_list(fd: &OwnedFd) -> bool {
    const MAGIC: u64 = 0x6573_5543;
    // SAFETY: zeros are a statfs, which the kernel fills.
    let (got, of) = unsafe {
        let mut of: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(fd.as_raw_fd(), &raw mut of), of)
    };
    got == 0 && of.f_type as u64 == MAGIC
}

/// Mounts the list in no folder, so that the mount ends with the descriptor.
fn mount() -> Option<OwnedFd> {
    let new = |fd: libc::c_long| {
        let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: a new descriptor that nobody else has.
        Some(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    // SAFETY: a name; flags; descriptors that live.
    unsafe {
        let context = new(libc::syscall(
            libc::SYS_fsopen,
            c"fusectl".as_ptr(),
            FSOPEN_CLOEXEC,
        ))?;
        let (fd, none) = (context.as_raw_fd(), std::ptr::null::<u8>());
        let made = libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0);
        (made == 0).then_some(())?;
        new(libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, 0))
    }
}

const FSOPEN_CLOEXEC: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSMOUNT_CLOEXEC: u32 = 1;

/// Returns the entries of the list. Each FUSE file system has a folder, named by the minor number of its device, that belongs to the user
/// who mounted it.
fn listed(list: &OwnedFd) -> Option<impl Iterator<Item = fs::DirEntry> + use<>> {
    let all = fs::read_dir(format!("/proc/self/fd/{}", list.as_raw_fd()));
    Some(all.ok()?.flatten())
}

/// Returns the FUSE file systems of this machine; `None` if the kernel's list of them is not available.
fn connections() -> Option<BTreeSet<Number>> {
    let minor = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let all = listed(list()?)?;
    Some(all.filter_map(minor).map(|minor| (0, minor)).collect())
}

/// Tells whether a FUSE file system may be mounted that a user other than root serves. It is called before each read, and makes only one
/// system call if there is no FUSE file system. `now` is the time of a clock, ns.
pub(super) fn strangers_serve(now: u64) -> bool {
    /// Number of links of the list, time of the last look at it, and whether it had a stranger's file system.
    static KNOWN: Mutex<(u64, u64, bool)> = Mutex::new((0, 0, false));
    if !LOADED.load(Ordering::Relaxed) {
        static HAS_SYS: LazyLock<bool> = LazyLock::new(|| Path::new(SYS).exists());
        if *HAS_SYS && !Path::new(FUSE).exists() {
            return false;
        }
        LOADED.store(true, Ordering::Relaxed);
    }
    let Some(list) = list() else {
        return true;
    };
    // SAFETY: zeros are a stat, which the kernel fills.
    let links = unsafe {
        let mut of: libc::stat = std::mem::zeroed();
        match libc::fstat(list.as_raw_fd(), &raw mut of) {
            0 => of.st_nlink as u64,
            _ => return true,
        }
    };
    if links <= EMPTY_LINKS {
        return false;
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.0 != links || now.saturating_sub(known.1) > LOOK_AGAIN_NS {
        let strange = |entry: fs::DirEntry| entry.metadata().is_ok_and(|m| m.uid() != 0);
        let any = listed(list).is_none_or(|mut all| all.any(strange));
        *known = (links, now, any);
    }
    known.2
}

/// True once the kernel was seen to support FUSE.
static LOADED: AtomicBool = AtomicBool::new(false);
const SYS: &str = "/sys/fs";
const FUSE: &str = "/sys/fs/fuse";
/// Number of links of an empty list.
const EMPTY_LINKS: u64 = 2;
/// Time after which the list is read again although its number of links has not changed, ns.
const LOOK_AGAIN_NS: u64 = 100_000_000;

/// The served file systems from which a process may have mapped files. They are looked up at the first question. A new value is made for
/// each look at the process's mappings.
#[derive(Debug)]
pub struct Served {
    pid: u32,
    all: OnceCell<BTreeSet<Number>>,
}

impl Served {
    /// Makes the value of a process.
    pub fn of(pid: u32) -> Self {
        Self {
            pid,
            all: OnceCell::new(),
        }
    }

    /// Makes the value of named file systems.
    #[cfg(test)]
    pub(crate) fn made_up(text: &str) -> Self {
        Self {
            pid: 0,
            all: mounted(text).into(),
        }
    }

    /// Looks up the file systems in the kernel's list; without it, in the process's mounts and in nvcap's own, because the process's files
    /// may be on either.
    fn asked(&self) -> BTreeSet<Number> {
        connections().unwrap_or_else(|| {
            let mut all = mounted(&mountinfo(&of_process(self.pid, "mountinfo")));
            all.extend(mounted(&mountinfo("/proc/self/mountinfo")));
            all
        })
    }

    /// Tells whether a program serves the file of a mapping with this device. The memory must then not be read, and the file must not be
    /// opened.
    pub fn has(&self, device: &str) -> bool {
        number(device).is_some_and(|n| self.all.get_or_init(|| self.asked()).contains(&n))
    }
}

/// Ranges of processes' memory that were found to be unreadable, by process.
static UNREADABLE: RwLock<BTreeMap<u32, Vec<Range<u64>>>> = RwLock::new(BTreeMap::new());
/// True once any process has such ranges. Before that, reads need no check.
static ANY: AtomicBool = AtomicBool::new(false);

/// Keeps the ranges of a process's memory that must not be read, as found by a look at its mappings, in ascending order.
pub(crate) fn keep(pid: u32, ranges: Vec<Range<u64>>) {
    if ranges.is_empty() && !ANY.load(Ordering::Relaxed) {
        return;
    }
    let mut all = UNREADABLE.write().unwrap_or_else(PoisonError::into_inner);
    if all.len() >= MOST_PROCESSES {
        all.retain(|pid, _| exists(*pid));
    }
    if ranges.is_empty() {
        all.remove(&pid);
    } else if all.insert(pid, ranges).is_none() {
        log::warn!("process {pid}: {NOT_READ}");
    }
    ANY.store(!all.is_empty(), Ordering::Relaxed);
}

/// Text for a process that has such memory.
pub(crate) const NOT_READ: &str = "it has mapped files of a FUSE file system: that memory is not read, for its program need not answer";

/// Tells whether one of these ranges (address and length) of a process's memory must not be read, by the last look at its mappings.
pub(super) fn is_unreadable(pid: u32, mut ranges: impl Iterator<Item = (u64, usize)>) -> bool {
    if !ANY.load(Ordering::Relaxed) {
        return false;
    }
    let all = UNREADABLE.read().unwrap_or_else(PoisonError::into_inner);
    let Some(own) = all.get(&pid) else {
        return false;
    };
    ranges.any(|(at, len)| {
        let end = at.saturating_add(len as u64);
        let behind = own.partition_point(|r| r.end <= at);
        own.get(behind).is_some_and(|r| r.start < end)
    })
}

/// Tells whether a process was found to have memory that must not be read.
pub(crate) fn has_unreadable(pid: u32) -> bool {
    is_unreadable(pid, std::iter::once((0, usize::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::mem::{Memory, Ordinary};

    const MOUNTS: &str = "\
22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw
30 22 0:45 / /home/a\\040b rw,nosuid,nodev shared:7 master:2 - fuse.sshfs a@b:/ rw,user_id=1001,allow_other
31 22 0:46 / /mnt rw - fuse hang rw,user_id=1001
32 22 0:47 / /data ro - nfs4 server:/ ro
33 22 0:48 / /dev/shm rw - tmpfs - fuse rw
34 22 8:17 / /usb rw - fuseblk /dev/sdb1 rw
35 22 0:49 / /fused rw - fusectl none rw
36 22 0:50 / /9 rw - 9p host rw
nonsense - fuse x
37 22 nonsense / /a rw - fuse x";

    #[test]
    fn file_systems_that_somebody_answers_for() {
        assert_eq!(mounted(MOUNTS), [(0, 45), (0, 46)].into());
    }

    #[test]
    fn mappings_by_their_devices() {
        let served = Served::made_up(MOUNTS);
        // The numbers are hexadecimal.
        for (device, is_served) in [
            ("00:2d", true),
            ("00:2e", true),
            ("00:2f", false),
            ("00:30", false),
            ("00:31", false),
            ("00:45", false),
            ("08:02", false),
            ("08:11", false),
            ("00:00", false),
            ("nonsense", false),
        ] {
            assert_eq!(served.has(device), is_served, "{device}");
        }
    }

    /// Test of memory of this process, treated as if it were mapped from such a file.
    #[test]
    fn kept_ranges_are_not_read() {
        let bytes = [7u8; 64];
        let at = bytes.as_ptr() as u64;
        // The thread's number stands for the process, because other tests look at the mappings of this process. SAFETY: reads an id.
        let pid = unsafe { libc::gettid() }.cast_unsigned();
        let (memory, ordinary) = (Memory::open(pid).unwrap(), Ordinary::open(pid).unwrap());
        let read = |from: u64| {
            let mut to = [0; 16];
            let by_file = memory.read(from, &mut to).is_ok();
            assert_eq!(ordinary.read(&[(from, 16)], &mut to).is_ok(), by_file);
            by_file
        };
        let all = [0, 1, 16, 31, 32, 48].map(|offset| at + offset);
        assert_eq!(all.map(read), [true; 6]);
        keep(pid, vec![at + 16..at + 32, at + 63..at + 64]);
        assert!(has_unreadable(pid));
        assert_eq!(all.map(read), [true, false, false, false, true, false]);
        keep(pid, Vec::new());
        assert!(!has_unreadable(pid));
        assert_eq!(all.map(read), [true; 6]);
    }
}
