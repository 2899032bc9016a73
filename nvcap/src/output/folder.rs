//! The folders above a file that is written. The kernel's rule for links (`fs.protected_symlinks`) is for the last part of a path alone;
//! here it holds for all of them when root writes: a link of another user, in a folder that all may write to, could have root write
//! anywhere.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::style::Plain;

/// Links that are followed one after the other at most: the kernel's own limit.
pub(super) const LINKS: u32 = 40;
/// Flags with which a folder is opened on the way: to go on from, no more.
const ON_THE_WAY: libc::c_int = libc::O_PATH | libc::O_DIRECTORY;
/// The right of all users to write, in a mode.
const ALL_WRITE: u32 = 0o002;

/// Opens a file, new ones with mode 0600.
///
/// # Errors
/// Those of `open`; and for root where a link leads to its folder that is not to be followed.
pub(super) fn open(path: &Path, flags: libc::c_int) -> io::Result<File> {
    let is_folder = path.as_os_str().as_bytes().ends_with(b"/");
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) if own() == 0 && !is_folder => {
            open_at(Some(&walk(folder, 0)?), name, flags)
        }
        _ => open_at(None, path.as_os_str(), flags),
    }
}

/// Checks a folder into which root is to write, as far as it is there.
///
/// # Errors
/// For root where a link leads to it that is not to be followed.
pub(super) fn check(folder: &Path) -> io::Result<()> {
    if own() != 0 {
        return Ok(());
    }
    match walk(folder, 0) {
        // Whoever makes the folder says what else is wrong with it.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(e),
        _ => Ok(()),
    }
}

fn own() -> u32 {
    // SAFETY: reads an id.
    unsafe { libc::geteuid() }
}

fn open_at(folder: Option<&File>, name: &OsStr, flags: libc::c_int) -> io::Result<File> {
    let name = CString::new(name.as_bytes())?;
    let folder = folder.map_or(libc::AT_FDCWD, |f| f.as_raw_fd());
    let mode: libc::c_uint = 0o600;
    // SAFETY: an open descriptor or the current folder, and a name that ends with 0.
    let fd = unsafe { libc::openat(folder, name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was opened here.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// True where `own` follows a link of this user in a folder of this mode.
fn may_follow(owner: u32, mode: u32, own: u32) -> bool {
    owner == 0 || owner == own || mode & ALL_WRITE == 0
}

/// Opens a folder, part by part: what was checked is what is gone through.
fn walk(path: &Path, own: u32) -> io::Result<File> {
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev();
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    // The last one comes first.
    let mut left = parts(path);
    let (mut at, mut shown) = (open_at(None, OsStr::new("."), ON_THE_WAY)?, PathBuf::new());
    let mut links = 0;
    while let Some(name) = left.pop() {
        let next = shown.join(&name);
        match open_at(Some(&at), &name, ON_THE_WAY | libc::O_NOFOLLOW) {
            Ok(folder) => {
                (at, shown) = (folder, next);
                continue;
            }
            // A link, or no folder.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) => {}
            Err(e) => return Err(e),
        }
        if is_proc(&at) {
            // The kernel's own links, which lead where their text does not.
            (at, shown) = (open_at(Some(&at), &name, ON_THE_WAY)?, next);
            continue;
        }
        let link = open_at(Some(&at), &name, libc::O_PATH | libc::O_NOFOLLOW)?;
        let about = link.metadata()?;
        if !about.is_symlink() {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        links += 1;
        if links > LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        // Read through the opened link that is checked: by now the path may lead to another one.
        let to = read_link(&link)?;
        if !may_follow(about.uid(), at.metadata()?.mode(), own) {
            let to = shown.join(&to);
            let why = format!(
                "{} is a symbolic link of another user (uid {}) in a folder that all may write to; \
                 if it may be trusted, name the folder that it leads to: {}",
                Plain(&next.to_string_lossy()),
                about.uid(),
                Plain(&to.to_string_lossy())
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        left.extend(parts(&to));
    }
    Ok(at)
}

/// Where an opened link leads.
pub(super) fn read_link(link: &File) -> io::Result<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;

    let mut to = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: an open descriptor, an empty name that ends with 0, and room for as many bytes as are named.
    let n = unsafe {
        libc::readlinkat(
            link.as_raw_fd(),
            c"".as_ptr(),
            to.as_mut_ptr().cast(),
            to.len(),
        )
    };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    to.truncate(n);
    Ok(std::ffi::OsString::from_vec(to).into())
}

fn is_proc(folder: &File) -> bool {
    // SAFETY: an open descriptor, and a structure of numbers to write to.
    unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        libc::fstatfs(folder.as_raw_fd(), &raw mut about) == 0
            && about.f_type == libc::PROC_SUPER_MAGIC
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};

    use super::*;

    /// Somebody who is neither root nor who runs this test.
    const SOMEBODY: u32 = 65_533;

    /// A link above the last part of a path is followed by its own maker and where nobody else may put one.
    #[test]
    fn links_of_others_on_the_way() {
        let own = own();
        let name = format!("nvcap-folder-{}", std::process::id());
        let root = std::env::temp_dir().canonicalize().unwrap().join(name);
        for folder in ["open", "closed", "to/below"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for (folder, mode) in [("open", 0o1777), ("closed", 0o775)] {
            let folder = root.join(folder);
            fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            symlink("../to", folder.join("link")).unwrap();
            symlink(root.join("to"), folder.join("whole")).unwrap();
            symlink("around", folder.join("around")).unwrap();
            if own == 0 {
                for link in ["link", "whole", "around"] {
                    lchown(folder.join(link), Some(65_534), None).unwrap();
                }
            }
        }
        // Who made the links, and another.
        let (maker, other) = if own == 0 {
            (65_534, 0)
        } else {
            (own, SOMEBODY)
        };
        let to = root.join("to/below").metadata().unwrap().ino();
        for (path, who, leads) in [
            ("to/below", other, true),
            ("closed/../to/./below", other, true),
            ("closed/link/below", other, true),
            ("closed/whole/below", other, true),
            ("open/link/below", maker, true),
            ("open/whole/below", maker, true),
            ("open/link/below", other, false),
            ("open/whole/below", other, false),
            ("closed/../open/link/below", other, false),
        ] {
            let inode = walk(&root.join(path), who).map(|f| f.metadata().unwrap().ino());
            match inode {
                Ok(inode) => assert!(leads && inode == to, "{path}"),
                Err(e) => {
                    let said = e.to_string();
                    assert!(
                        !leads && said.contains("link of another user"),
                        "{path}: {e}"
                    );
                    assert!(said.contains("to: /"), "what to type instead: {said}");
                }
            }
        }
        let around = walk(&root.join("closed/around"), other).unwrap_err();
        assert_eq!(around.raw_os_error(), Some(libc::ELOOP));
        let none = walk(&root.join("to/none"), other).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        fs::write(root.join("file"), "").unwrap();
        let file = walk(&root.join("file/x"), other).unwrap_err();
        assert_eq!(file.raw_os_error(), Some(libc::ENOTDIR));
        // Links that lead where their text does not.
        let kept = File::open(root.join("to")).unwrap();
        let kept = format!("/proc/self/fd/{}/below", kept.as_raw_fd());
        assert_eq!(
            walk(Path::new(&kept), other)
                .map(|f| f.metadata().unwrap().ino())
                .unwrap(),
            to
        );
        fs::remove_dir_all(root).unwrap();
    }
}
