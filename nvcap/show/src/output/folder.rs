//! Folders above a file that is written. The kernel's rule for links (`fs.protected_symlinks`) is for the last part of a path alone. When root
//! writes, all parts are checked here, and more strictly: a link of another user could lead root's output anywhere, also a link in that user's own
//! folder, which the kernel follows.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{style::Plain, which::LINKS};

/// Flags with which a folder is opened on the way, only to go on from.
const ON_THE_WAY: libc::c_int = libc::O_PATH | libc::O_DIRECTORY;
/// Number of names that are tried for a new file.
const TRIES: u32 = 100;
/// Mode of a new file: its owner's alone.
const OWNERS: libc::c_uint = 0o600;

/// Opens a file, new ones with mode 0600.
///
/// # Errors
/// Those of `open`; and for root where a link leads to its folder that is not to be followed.
pub(super) fn open(path: &Path, flags: libc::c_int) -> io::Result<File> {
    let is_folder = path.as_os_str().as_bytes().ends_with(b"/");
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) if own() == 0 && !is_folder => {
            open_at(Some(&walk(folder, name, 0)?), name, flags, OWNERS)
        }
        _ => open_at(None, path.as_os_str(), flags, OWNERS),
    }
}

/// Puts a new file in the place of the one at a path, whole or not at all: it is written beside it, under a name that no file has. Links
/// at the path are not followed. `mode` as the user's umask limits it. `is_own` tells of the file that is there whether it may be replaced.
///
/// # Errors
/// Those of [`open`]; where something other than a regular file or a link is at the path; where a file is there that may not be replaced.
pub(super) fn replace(
    path: &Path,
    bytes: &[u8],
    mode: libc::c_uint,
    is_own: &dyn Fn(File) -> bool,
) -> io::Result<()> {
    let no_name = || io::Error::from_raw_os_error(libc::EISDIR);
    let name = path.file_name().ok_or_else(no_name)?;
    let folder = match path.parent() {
        Some(folder) if own() == 0 => walk(folder, name, 0)?,
        Some(folder) if !folder.as_os_str().is_empty() => {
            open_at(None, folder.as_os_str(), ON_THE_WAY, OWNERS)?
        }
        _ => open_at(None, OsStr::new("."), ON_THE_WAY, OWNERS)?,
    };
    let there = libc::O_PATH | libc::O_NOFOLLOW;
    let is_there = match open_at(Some(&folder), name, there, OWNERS).and_then(|f| f.metadata()) {
        Ok(about) if about.is_file() => {
            let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
            if !is_own(open_at(Some(&folder), name, flags, OWNERS)?) {
                return Err(not_own());
            }
            true
        }
        Ok(about) if about.is_symlink() => true,
        Ok(_) => return Err(no_file()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(e) => return Err(e),
    };
    let (new, mut file) = beside(&folder, name, mode)?;
    let name = CString::new(name.as_bytes())?;
    let written = io::Write::write_all(&mut file, bytes)
        .and_then(|()| rename_at(folder.as_raw_fd(), (&new, &name), !is_there));
    if written.is_err() {
        // SAFETY: an open folder and a name that ends with 0: that of the file that was made here.
        unsafe { libc::unlinkat(folder.as_raw_fd(), new.as_ptr(), 0) };
    }
    written
}

/// Makes a new file in a folder, under a name that is made of another one's.
fn beside(folder: &File, name: &OsStr, mode: libc::c_uint) -> io::Result<(CString, File)> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    for number in 0..TRIES {
        let mut new = OsString::from(".");
        new.push(name);
        new.push(format!(".{}-{number}.new", std::process::id()));
        match open_at(Some(folder), &new, flags, mode) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            file => return Ok((CString::new(new.as_bytes())?, file?)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Renames a file; with `is_new` only where there is none of the new name. `at`: an open folder, or the current one.
fn rename_at(at: libc::c_int, (from, to): (&CString, &CString), is_new: bool) -> io::Result<()> {
    let flags = match is_new {
        true => libc::RENAME_NOREPLACE,
        false => 0,
    };
    // The call itself: not every library has a function for it.
    // SAFETY: an open folder or the current one, and two names that end with 0.
    let renamed = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            at,
            from.as_ptr(),
            at,
            to.as_ptr(),
            flags,
        )
    };
    if renamed == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    // Some file systems cannot: a second name then, which takes the place of none.
    if !is_new || !matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) {
        return Err(e);
    }
    // SAFETY: as above.
    let linked = unsafe { libc::linkat(at, from.as_ptr(), at, to.as_ptr(), 0) };
    // SAFETY: as above.
    if linked != 0 || unsafe { libc::unlinkat(at, from.as_ptr(), 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Renames a file, unless there is one of the new name.
///
/// # Errors
/// `AlreadyExists` where there is one; those of `rename`.
pub(super) fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes());
    rename_at(libc::AT_FDCWD, (&name(from)?, &name(to)?), true)
}

/// Makes the error for a file that is not nvcap's to be replaced.
fn not_own() -> io::Error {
    io::Error::new(
        io::ErrorKind::AlreadyExists,
        "there is something in it that nvcap has not written, which would be lost; name another file",
    )
}

/// Makes the error for something that is not replaced by a file.
pub(super) fn no_file() -> io::Error {
    io::Error::other("it is no regular file; name another one")
}

/// Checks a folder into which root is to write, as far as it is there.
///
/// # Errors
/// For root where a link leads to it that is not to be followed.
pub(super) fn check(folder: &Path) -> io::Result<()> {
    if own() != 0 {
        return Ok(());
    }
    match walk(folder, OsStr::new(""), 0) {
        // Whoever makes the folder says what else is wrong with it.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(e),
        _ => Ok(()),
    }
}

fn own() -> u32 {
    // SAFETY: reads an id.
    unsafe { libc::geteuid() }
}

/// Opens what is in a folder, or in the current one; a new file with this mode.
fn open_at(
    folder: Option<&File>,
    name: &OsStr,
    flags: libc::c_int,
    mode: libc::c_uint,
) -> io::Result<File> {
    let name = CString::new(name.as_bytes())?;
    let folder = folder.map_or(libc::AT_FDCWD, |f| f.as_raw_fd());
    // SAFETY: an open descriptor or the current folder, and a name that ends with 0.
    let fd = unsafe { libc::openat(folder, name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was opened here.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Tells whether `own` follows a link of this user in any folder, also in one whose owner can put another link there.
pub(super) fn may_follow(owner: u32, own: u32) -> bool {
    owner == 0 || owner == own
}

/// Makes the error for a link of another user that is not followed, by its path; `to` is a path that leads where the link does.
pub(super) fn another_users(link: &Path, owner: u32, to: &Path) -> io::Error {
    let to = match (to.canonicalize(), to.parent().zip(to.file_name())) {
        (Ok(real), _) => real,
        (_, Some((folder, name))) => folder.canonicalize().map_or(to.into(), |f| f.join(name)),
        _ => to.into(),
    };
    let why = format!(
        "{} is a symbolic link of another user (uid {owner}), who could have it lead anywhere; if it may be trusted, name the path that it \
         leads to: {}",
        Plain(&link.to_string_lossy()),
        Plain(&to.to_string_lossy())
    );
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Opens a folder, part by part, so that the parts that were checked are those that are gone through. `file` is the name to be opened in it, for the
/// error.
fn walk(path: &Path, file: &OsStr, own: u32) -> io::Result<File> {
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev();
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    // The last one comes first.
    let mut left = parts(path);
    let (mut at, mut shown) = (
        open_at(None, OsStr::new("."), ON_THE_WAY, OWNERS)?,
        PathBuf::new(),
    );
    let mut links = 0;
    while let Some(name) = left.pop() {
        let next = shown.join(&name);
        match open_at(Some(&at), &name, ON_THE_WAY | libc::O_NOFOLLOW, OWNERS) {
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
            (at, shown) = (open_at(Some(&at), &name, ON_THE_WAY, OWNERS)?, next);
            continue;
        }
        let link = open_at(Some(&at), &name, libc::O_PATH | libc::O_NOFOLLOW, OWNERS)?;
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
        if !may_follow(about.uid(), own) {
            let mut to = shown.join(&to);
            to.extend(left.iter().rev());
            if !file.is_empty() {
                to.push(file);
            }
            return Err(another_users(&next, about.uid(), &to));
        }
        left.extend(parts(&to));
    }
    Ok(at)
}

/// Returns the target of an opened link.
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

    /// Id of a user who is neither root nor the one who runs this test.
    const SOMEBODY: u32 = 65_533;

    /// A link above the last part of a path is followed where its maker or root made it, whatever folder it lies in.
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
            ("closed/link/below", maker, true),
            ("closed/whole/below", maker, true),
            ("closed/link/below", other, false),
            ("closed/whole/below", other, false),
            ("open/link/below", maker, true),
            ("open/whole/below", maker, true),
            ("open/link/below", other, false),
            ("open/whole/below", other, false),
            ("closed/../open/link/below", other, false),
        ] {
            let inode = walk(&root.join(path), OsStr::new("out"), who);
            let inode = inode.map(|f| f.metadata().unwrap().ino());
            match inode {
                Ok(inode) => assert!(leads && inode == to, "{path}"),
                Err(e) => {
                    let said = e.to_string();
                    assert!(
                        !leads && said.contains("link of another user"),
                        "{path}: {e}"
                    );
                    let real = format!("leads to: {}", root.join("to/below/out").display());
                    assert!(said.ends_with(&real), "what to type instead: {said}");
                }
            }
        }
        assert!(may_follow(0, SOMEBODY) && !may_follow(SOMEBODY, 0));
        let none = OsStr::new("");
        let around = walk(&root.join("closed/around"), none, maker).unwrap_err();
        assert_eq!(around.raw_os_error(), Some(libc::ELOOP));
        let gone = walk(&root.join("to/none"), none, other).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        fs::write(root.join("file"), "").unwrap();
        let file = walk(&root.join("file/x"), none, other).unwrap_err();
        assert_eq!(file.raw_os_error(), Some(libc::ENOTDIR));
        // Links that lead where their text does not.
        let kept = File::open(root.join("to")).unwrap();
        let kept = format!("/proc/self/fd/{}/below", kept.as_raw_fd());
        assert_eq!(
            walk(Path::new(&kept), none, other)
                .map(|f| f.metadata().unwrap().ino())
                .unwrap(),
            to
        );
        fs::remove_dir_all(root).unwrap();
    }
}
