//! The driver's modules during the trace: loaded later, unloaded, loaded again. Reports driver calls that may have gone
//! unseen.
//!
//! Invariant: the device numbers are the ones that the BPF programs have.

use std::{fs, path::Path};

use nvcap_common::Config;

use super::super::{load::majors, watchpoints};
use nvcap_decode::record::{At, Device};
use nvcap_process::error::Error;
use nvcap_process::procfs;

/// The modules at the last look.
#[derive(Debug)]
pub(super) struct Modules {
    uvm_major: u32,
    nvidia_major: u32,
    /// Time of the last look.
    looked_at: u64,
    /// Begin and end of the time in which another driver was loaded and not watched.
    unwatched: Option<(u64, u64)>,
    /// A random number that hides kernel addresses.
    secret: u64,
    gp_get: bool,
}

impl Modules {
    /// Makes the state of modules that were not looked at yet. `gp_get`: GP_GET is read at every doorbell.
    pub(super) fn new(gp_get: bool) -> Self {
        Self {
            uvm_major: 0,
            nvidia_major: 0,
            looked_at: 0,
            unwatched: None,
            secret: secret(),
            gp_get,
        }
    }

    /// Reads the device numbers; returns a configuration for the BPF programs if they changed.
    pub(super) fn refresh_majors(&mut self) -> Option<Config> {
        let (nvidia, uvm) = majors();
        // nvidia.ko's number is fixed; the module may be loaded after nvcap started.
        let nvidia = if nvidia == 0 { 195 } else { nvidia };
        if (nvidia, uvm) == (self.nvidia_major, self.uvm_major) {
            return None;
        }
        (self.nvidia_major, self.uvm_major) = (nvidia, uvm);
        Some(Config {
            uvm_major: uvm,
            nvidia_major: nvidia,
            secret: self.secret,
            gp_get: u32::from(self.gp_get),
            pad: 0,
        })
    }

    /// Returns the device with this device number.
    pub(super) fn device(&self, dev: u32) -> Device {
        let (major, minor) = (dev >> 20, dev & 0xf_ffff);
        match (major, minor) {
            (m, _) if m == self.uvm_major => Device::Uvm,
            (m, 255) if m == self.nvidia_major => Device::Control,
            (m, n) if m == self.nvidia_major && n < 247 => Device::Gpu(n),
            _ => Device::Other(major, minor),
        }
    }

    /// Returns the time at which the modules were last looked at, ns.
    pub(super) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Takes note that the modules have been looked at.
    pub(super) fn looked(&mut self, now: u64) {
        self.looked_at = now;
    }

    /// Takes note that another driver was loaded after `since`, and is watched now.
    pub(super) fn was_unwatched(&mut self, since: u64, now: u64) {
        self.unwatched = Some((since, now));
    }

    /// Tells whether the driver was not watched at that time.
    pub(super) fn is_unwatched(&self, at: At) -> bool {
        let unwatched = self.unwatched;
        unwatched.is_some_and(|(from, to)| (from..to).contains(&at.time_ns))
    }
}

/// Makes the error that a part of a process's driver calls is not known, because another driver was loaded.
pub(super) fn unseen(pid: u32) -> Error {
    Error::new(
        format!("following process {pid}"),
        "the NVIDIA driver was loaded again, and what the process did with it before nvcap had attached to it is unknown",
        "start the process later, or use --discover fentry or tracepoint",
    )
}

/// Returns the processes that have one of the driver's device files open.
pub(super) fn users_of_driver() -> impl Iterator<Item = u32> {
    let all = procfs::processes().into_iter();
    all.filter(|pid| uses_driver(*pid))
}

/// Tells whether the process has one of the driver's device files open.
fn uses_driver(pid: u32) -> bool {
    let Ok(files) = procfs::open_files(pid) else {
        return false;
    };
    let is_driver = |target: &Path| {
        target
            .to_str()
            .is_some_and(|t| t.starts_with("/dev/nvidia"))
    };
    files
        .flatten()
        .any(|f| fs::read_link(f.path()).is_ok_and(|target| is_driver(&target)))
}

/// Draws a random number that hides kernel addresses, from getrandom(2).
fn secret() -> u64 {
    let mut b = [0u8; 8];
    // SAFETY: the buffer is 8 bytes.
    let n = unsafe { libc::getrandom(b.as_mut_ptr().cast(), 8, 0) };
    if n == 8 {
        u64::from_ne_bytes(b)
    } else {
        watchpoints::now().wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_files_are_told_apart_by_their_numbers() {
        let mut modules = Modules::new(false);
        (modules.nvidia_major, modules.uvm_major) = (195, 510);
        let device = |major: u32, minor| modules.device(major << 20 | minor);
        assert_eq!(device(195, 255), Device::Control);
        assert_eq!(device(195, 3), Device::Gpu(3));
        assert_eq!(device(195, 254), Device::Other(195, 254));
        assert_eq!(device(510, 1), Device::Uvm);
        assert_eq!(device(1, 3), Device::Other(1, 3));
    }

    #[test]
    fn a_time_without_a_watched_driver_is_remembered() {
        let mut modules = Modules::new(false);
        let at = |time_ns| At {
            time_ns,
            pid: 1,
            tid: 1,
        };
        assert!(!modules.is_unwatched(at(7)));
        modules.was_unwatched(5, 9);
        assert!(modules.is_unwatched(at(5)) && !modules.is_unwatched(at(9)));
    }
}
