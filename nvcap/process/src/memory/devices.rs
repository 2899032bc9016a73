//! Recognition of the driver's device files by their device number. A name proves nothing, because anybody may call a file `nvidia0`.

use std::{
    ffi::{CStr, CString},
    fs,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
    sync::OnceLock,
};

use nvcap_decode::record::Device;

/// Major number of nvidia.ko, which has never changed.
const NVIDIA: u32 = 195;
/// Minor number of nvidiactl. Those of GPUs are below it and below nvidia-modeset's.
const CONTROL: u32 = 255;
const MODESET: u32 = 254;

/// Environment variable that makes files of any kind count as the driver's by their names. The files of the tests' software GPU are not
/// device files.
pub(crate) const BY_NAME: &str = "NVCAP_DEVICES_BY_NAME";

/// Returns the major numbers of the driver's character devices (nvidia, nvidia-uvm); 0 for one that is not loaded.
pub fn majors() -> (u32, u32) {
    let devices = fs::read_to_string("/proc/devices").unwrap_or_default();
    majors_of(&devices)
}

fn majors_of(devices: &str) -> (u32, u32) {
    let (mut nvidia, mut uvm) = (0, 0);
    for line in devices.lines() {
        let mut words = line.split_whitespace();
        match (words.next().and_then(|n| n.parse().ok()), words.next()) {
            // "nvidia-frontend" up to 535, "nvidia" after.
            (Some(n), Some("nvidia" | "nvidia-frontend" | "nvidiactl")) => nvidia = n,
            (Some(n), Some("nvidia-uvm")) => uvm = n,
            _ => {}
        }
    }
    (nvidia, uvm)
}

/// Returns the driver's device for a character device with this number; `None` if it is another driver's. `name` is the device that the
/// file's name claims.
fn of_number(name: Device, number: u64, majors: (u32, u32)) -> Option<Device> {
    let (major, minor) = (libc::major(number), libc::minor(number));
    let nvidia = if majors.0 == 0 { NVIDIA } else { majors.0 };
    match minor {
        CONTROL if major == nvidia => Some(Device::Control),
        MODESET if major == nvidia => None,
        gpu if major == nvidia => Some(Device::Gpu(gpu)),
        // UVM's number differs between machines. If it is not known (a sandbox with no /proc/devices of its own), the name is believed:
        // managed memory that was taken for other memory would be read, and thereby migrated.
        _ if name == Device::Uvm && (majors.1 == 0 || major == majors.1) => Some(name),
        _ => None,
    }
}

fn by_name() -> bool {
    static SET: OnceLock<bool> = OnceLock::new();
    *SET.get_or_init(|| std::env::var_os(BY_NAME).is_some())
}

/// Returns the driver's device that a file is; `None` if it is another's. `name` is the device that the file's name claims. The file is
/// examined by the first of the paths `files` that leads to it: to the file with this `inode`, if the inode is known. If no path leads to
/// the file, its name is believed.
pub(crate) fn checked(name: Device, files: &[&Path], inode: Option<u64>) -> Option<Device> {
    checked_as(name, files, inode, by_name(), majors)
}

fn checked_as(
    name: Device,
    files: &[&Path],
    inode: Option<u64>,
    by_name: bool,
    majors: impl Fn() -> (u32, u32),
) -> Option<Device> {
    let found = files
        .iter()
        .filter_map(|file| about_path(file))
        .find(|about| inode.is_none_or(|i| i == about.inode));
    match found {
        None => Some(name),
        Some(about) if about.is_device() => of_number(name, about.number, majors()),
        Some(_) => by_name.then_some(name),
    }
}

/// Facts about a file.
#[derive(Clone, Copy, Debug)]
struct About {
    /// Type, as in `S_IFMT`.
    kind: u32,
    /// Device number; 0 where the file is no device.
    number: u64,
    inode: u64,
}

impl About {
    fn is_device(self) -> bool {
        self.kind == libc::S_IFCHR
    }
}

/// Returns what is known of a file, as [`about`] does.
fn about_path(file: &Path) -> Option<About> {
    about(
        libc::AT_FDCWD,
        &CString::new(file.as_os_str().as_bytes()).ok()?,
    )
}

/// Returns what the kernel knows of a file, without waiting for a file that another process serves. `file`: a path from `folder`; where it is
/// empty, `folder` is the file itself.
fn about(folder: RawFd, file: &CStr) -> Option<About> {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut about: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: a C string, and room for one structure.
    let result = unsafe {
        libc::statx(
            folder,
            file.as_ptr(),
            flags,
            libc::STATX_TYPE | libc::STATX_INO,
            &raw mut about,
        )
    };
    (result == 0).then(|| About {
        kind: u32::from(about.stx_mode) & libc::S_IFMT,
        number: libc::makedev(about.stx_rdev_major, about.stx_rdev_minor),
        inode: about.stx_ino,
    })
}

/// Returns the driver's major numbers. They stay the same while the driver is loaded.
fn known_majors() -> (u32, u32) {
    static KNOWN: OnceLock<(u32, u32)> = OnceLock::new();
    KNOWN.get().copied().unwrap_or_else(|| {
        let all = majors();
        if all.0 != 0 && all.1 != 0 {
            let _ = KNOWN.set(all);
        }
        all
    })
}

/// Returns the driver's device that a file is, independent of its name, because a device file may be mounted under any name. `None` if the
/// file is no device of the driver's, or may not be examined.
pub(crate) fn of_file(file: &Path) -> Option<Device> {
    let about = about_path(file).filter(|about| about.is_device())?;
    let majors = known_majors();
    if majors.1 != 0 && libc::major(about.number) == majors.1 {
        return Some(Device::Uvm);
    }
    of_number(Device::Control, about.number, majors)
}

/// Returns the device number of the kernel's own file system of shared memory, which holds no device files.
pub(crate) fn shared_memory() -> Option<(u32, u32)> {
    static NUMBER: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        // SAFETY: a C string.
        let fd = unsafe { libc::memfd_create(c"nvcap".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a new descriptor that nobody else has.
        let file = fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let dev = file.metadata().ok()?.dev();
        Some((libc::major(dev), libc::minor(dev)))
    })
}

/// Tells whether an open file is the driver's control device, without waiting for a file that another process serves.
pub(crate) fn is_control(file: BorrowedFd<'_>) -> bool {
    match about(file.as_raw_fd(), c"") {
        Some(about) if about.is_device() => {
            of_number(Device::Control, about.number, majors()) == Some(Device::Control)
        }
        Some(_) => by_name(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let (nvidia, uvm) = majors_of(
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n235 nvidia-uvm\n\nBlock devices:\n  8 sd\n",
        );
        assert_eq!((nvidia, uvm), (195, 235));
        assert_eq!(majors_of("195 nvidia-frontend\n").0, 195);
        let gpu = Device::Gpu(0);
        let of = |major, minor| of_number(gpu, libc::makedev(major, minor), (195, 235));
        assert_eq!(of(195, 3), Some(Device::Gpu(3)));
        assert_eq!(of(195, 255), Some(Device::Control));
        assert_eq!(of(195, 254), None);
        let uvm = |major, known| of_number(Device::Uvm, libc::makedev(major, 0), (195, known));
        assert_eq!(uvm(235, 235), Some(Device::Uvm));
        assert_eq!(uvm(1, 235), None);
        assert_eq!(uvm(240, 0), Some(Device::Uvm), "not to be told");
        assert_eq!(of(235, 0), None);
        assert_eq!(of(1, 3), None);
        // /proc/devices does not give the numbers.
        assert_eq!(
            of_number(gpu, libc::makedev(195, 0), (0, 0)),
            Some(Device::Gpu(0))
        );
        assert_eq!(of_number(gpu, libc::makedev(0, 0), (0, 0)), None);
    }

    /// Test of a device made by root, who may make one; nothing opens it.
    #[test]
    #[ignore = "needs root, who may make a device: cargo xtask test runs it as root"]
    fn a_device_with_the_driver_s_number_is_one_whatever_its_name_says() {
        let path = std::env::temp_dir().join(format!("nvcap-node-{}", std::process::id()));
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a name that ends with 0.
        let made =
            unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(195, 7)) };
        if made != 0 {
            println!(
                "NOT RUN a_device_with_the_driver_s_number_is_one_whatever_its_name_says: {}",
                std::io::Error::last_os_error()
            );
            return;
        }
        let inode = fs::metadata(&path).unwrap().ino();
        let seen = checked_as(Device::Gpu(0), &[&path], Some(inode), false, || (195, 0));
        let by_number = of_file(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(seen, Some(Device::Gpu(7)));
        assert_eq!(by_number, Some(Device::Gpu(7)));
    }

    #[test]
    fn other_files_are_no_devices_of_the_driver() {
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for file in ["/dev/null", own, "/nonexistent"] {
            assert_eq!(of_file(Path::new(file)), None, "{file}");
        }
        let (major, _) = shared_memory().expect("memfd");
        assert_eq!(major, 0, "a file system without a disk");
    }

    #[test]
    fn a_name_proves_nothing() {
        let gpu = Device::Gpu(0);
        let majors = || (195, 235);
        let of = |file: &str, inode, by_name| {
            checked_as(gpu, &[Path::new(file)], inode, by_name, majors)
        };
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert_eq!(of(own, None, false), None);
        assert_eq!(of(own, None, true), Some(gpu), "the tests' own GPU");
        assert_eq!(of("/dev/null", None, true), None, "another device");
        assert_eq!(of("/nonexistent", None, false), Some(gpu), "not to be told");
        let inode = fs::metadata(own).unwrap().ino();
        assert_eq!(of(own, Some(inode), false), None);
        assert_eq!(of(own, Some(inode + 1), false), Some(gpu), "another file");
        let ways = [Path::new("/nonexistent"), Path::new(own)];
        assert_eq!(checked_as(gpu, &ways, None, false, majors), None);
    }
}
