//! Files that a process chose, by their paths or because they are open or mapped there. The file, or a folder on the way to it, may be of a FUSE file
//! system whose program never answers. Such a file is found without a question to that program, and never opened.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek as _, SeekFrom};
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::{errands, served};

/// `RESOLVE_IN_ROOT` and `RESOLVE_CACHED` of linux/openat2.h.
const IN_ROOT: u64 = 0x10;
const CACHED: u64 = 0x20;

/// A file that was found, and not opened.
pub(crate) struct Found {
    file: File,
    about: libc::statx,
    /// The process that has it; none where that is not in the path.
    pid: Option<u32>,
}

impl Found {
    /// Finds a file. `path`: a link of a process in `/proc`, or a path that a process chose, also below its `root`.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let text = path.to_str().ok_or(io::ErrorKind::InvalidInput)?;
        let way = Way::of(text);
        Ok(Self {
            pid: way.pid,
            ..Self::of(found(text, &way)?)?
        })
    }

    /// Finds a file that is open in this program.
    pub(crate) fn of_open(file: BorrowedFd<'_>) -> io::Result<Self> {
        Self::of(file.try_clone_to_owned()?.into())
    }

    fn of(file: File) -> io::Result<Self> {
        // SAFETY: zeros are a statx, which the kernel fills; an empty path is the descriptor's file.
        let about = unsafe {
            let mut about: libc::statx = std::mem::zeroed();
            let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
            let mask = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
            match libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, &raw mut about) {
                0 => about,
                _ => return Err(io::Error::last_os_error()),
            }
        };
        Ok(Self {
            file,
            about,
            pid: None,
        })
    }

    /// The file's type: `S_IFREG` and others.
    pub(crate) fn kind(&self) -> u32 {
        u32::from(self.about.stx_mode) & libc::S_IFMT
    }

    /// The file's inode.
    pub(crate) fn inode(&self) -> u64 {
        self.about.stx_ino
    }

    /// The number of the device that the file is.
    pub(crate) fn device(&self) -> u64 {
        libc::makedev(self.about.stx_rdev_major, self.about.stx_rdev_minor)
    }

    /// Opens the file where it is a regular one that no program serves.
    pub(crate) fn open(&self) -> Option<File> {
        let number = (self.about.stx_dev_major, self.about.stx_dev_minor);
        let may_wait = || served::may_wait(self.pid, number, self.about.stx_mnt_id);
        (self.kind() == libc::S_IFREG && !may_wait()).then_some(())?;
        let same = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let mut options = OpenOptions::new();
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        options.read(true).custom_flags(flags).open(same).ok()
    }
}

fn linked(path: impl AsRef<Path>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH).open(path)
}

/// A link of a process in `/proc`, which the kernel follows without a look at the folders on the way; and the path from there.
#[derive(Debug, PartialEq, Eq)]
struct Way<'a> {
    link: &'a str,
    pid: Option<u32>,
    /// True if the kernel looks at the process's mappings to follow the link.
    by_mappings: bool,
    rest: &'a str,
}

impl<'a> Way<'a> {
    fn of(path: &'a str) -> Self {
        Self::by_link(path).unwrap_or(Self {
            link: "/",
            pid: None,
            by_mappings: false,
            rest: path,
        })
    }

    fn by_link(path: &'a str) -> Option<Self> {
        let is_number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        let (pid, mut below) = path.strip_prefix("/proc/")?.split_once('/')?;
        (pid == "self" || is_number(pid)).then_some(())?;
        if let Some(task) = below.strip_prefix("task/") {
            let (tid, of_task) = task.split_once('/')?;
            is_number(tid).then_some(())?;
            below = of_task;
        }
        let (folder, name) = below.split_once('/').unwrap_or((below, ""));
        let rest = match folder {
            "root" => name,
            "exe" if name.is_empty() => "",
            "fd" if is_number(name) => "",
            "map_files" if !name.contains('/') => "",
            _ => return None,
        };
        Some(Self {
            link: path.strip_suffix(rest)?,
            pid: pid.parse().ok(),
            by_mappings: folder == "map_files",
            rest,
        })
    }
}

/// Finds the file of a path by `O_PATH`.
fn found(path: &str, way: &Way<'_>) -> io::Result<File> {
    // The kernel waits for whoever changes the mappings, who may wait for a page that never comes.
    let mapped = way.pid.filter(|_| way.by_mappings);
    let by_errand = mapped.and_then(|pid| errands::find(pid, way.link));
    let link = by_errand.unwrap_or_else(|| linked(way.link))?;
    if way.rest.is_empty() && way.link != "/" {
        return Ok(link);
    }
    let rest = std::ffi::CString::new(way.rest.trim_start_matches('/'))?;
    // The kernel knows each folder on the way to a file that is mapped or open, and need not ask a program about it.
    let how = [(libc::O_PATH | libc::O_CLOEXEC) as u64, 0, IN_ROOT | CACHED];
    // SAFETY: a descriptor, a path and a structure that live.
    let fd = unsafe {
        let size = size_of::<[u64; 3]>();
        libc::syscall(
            libc::SYS_openat2,
            link.as_raw_fd(),
            rest.as_ptr(),
            how.as_ptr(),
            size,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: a new descriptor that nobody else has.
        Ok(fd) if fd >= 0 => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENOSYS) => linked(path),
            e => Err(e),
        },
    }
}

/// A file of a process in `/proc` that lies in its memory, or tells of its mappings. It is read by a process that can be left alone where a
/// read may never end.
#[derive(Debug)]
pub struct Text {
    pid: u32,
    file: File,
}

impl Text {
    /// Opens `what` of a process: `maps`, `pagemap` and others.
    ///
    /// # Errors
    /// Those of opening the file: no such process, or no right to read it.
    pub fn open(pid: u32, what: &str) -> io::Result<Self> {
        let file = File::open(super::of_process(pid, what))?;
        Ok(Self { pid, file })
    }
}

impl Text {
    /// Reads exactly `to.len()` bytes from a place on.
    ///
    /// # Errors
    /// Those of the read, and `TimedOut` where it was given up.
    pub fn read_exact_at(&mut self, to: &mut [u8], at: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(at))?;
        self.read_exact(to)
    }
}

impl Read for Text {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        // As much as an errand reads at once.
        let most = to.len().min(errands::MOST_BYTES);
        let to = &mut to[..most];
        let by_errand = errands::read_file(self.pid, &self.file, to);
        by_errand.unwrap_or_else(|| self.file.read(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_told_from_paths() {
        let of = |path| {
            let way = Way::of(path);
            (way.link, way.pid, way.by_mappings, way.rest)
        };
        let seven = Some(7);
        assert_eq!(
            of("/proc/7/root/a/b"),
            ("/proc/7/root/", seven, false, "a/b")
        );
        assert_eq!(
            of("/proc/7/task/8/root/a"),
            ("/proc/7/task/8/root/", seven, false, "a")
        );
        assert_eq!(of("/proc/7/exe"), ("/proc/7/exe", seven, false, ""));
        assert_eq!(of("/proc/self/fd/5"), ("/proc/self/fd/5", None, false, ""));
        let mapped = "/proc/7/task/8/map_files/1000-2000";
        assert_eq!(of(mapped), (mapped, seven, true, ""));
        // What a process may call its files, to have them looked up by other links.
        for path in [
            "/a/b",
            "/proc/7/cwd/a",
            "/proc/7/exe/a",
            "/proc/7/fd/5/a",
            "/proc/7/map_files/1-2/a",
            "/proc/x/root/a",
            "/proc/7/task/x/root/a",
            "/proc",
        ] {
            assert_eq!(of(path), ("/", None, false, path));
        }
    }

    #[test]
    fn files_are_found_by_each_way() {
        let path = std::env::current_exe().unwrap();
        let path = path.to_str().unwrap();
        let inode = |path: &str| Found::at(Path::new(path)).map(|f| f.inode()).ok();
        let own = inode("/proc/self/exe");
        assert!(own.is_some());
        assert_eq!(inode(path), own);
        assert_eq!(inode(&format!("/proc/self/root{path}")), own);
        assert_eq!(inode("/nonexistent"), None);
        let found = Found::at(Path::new(path)).unwrap();
        assert!(found.kind() == libc::S_IFREG && found.open().is_some());
        let device = Found::at(Path::new("/proc/self/root/dev/null")).unwrap();
        assert!(device.kind() == libc::S_IFCHR && device.open().is_none());
        assert_eq!(device.device(), libc::makedev(1, 3));
    }
}
