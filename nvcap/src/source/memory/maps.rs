//! `/proc/PID/maps`: which device files of the driver a process has mapped where.

use std::{fs, io};

use crate::record::{At, CpuVa, Device, Mapping};

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
    /// MAP_SHARED.
    pub shared: bool,
    /// File name as the kernel shows it, empty for anonymous memory.
    pub path: String,
}

impl Area {
    /// The driver's device file that is mapped here, if it is one.
    pub fn device(&self) -> Option<Device> {
        device_of_path(&self.path)
    }

    /// Has the shape of a doorbell page of CUDA (write only) or of a graphics client: 64 KiB of a GPU's device file.
    pub fn is_doorbell_shape(&self) -> bool {
        self.end - self.start == 0x10000
            && self.shared
            && self.write
            && !self.execute
            && matches!(self.device(), Some(Device::Gpu(_)))
    }

    /// As a record, for a mapping that was there before the trace.
    pub fn record(&self, at: At) -> Option<Mapping> {
        Some(Mapping {
            at,
            device: self.device()?,
            fd: None,
            file: 0,
            start: CpuVa(self.start),
            len: self.end - self.start,
            read: self.read,
            write: self.write,
            found: true,
        })
    }
}

/// The driver's device behind a path such as `/dev/nvidia0`; inside a container the prefix may differ.
pub fn device_of_path(path: &str) -> Option<Device> {
    let name = path.trim_end_matches(" (deleted)").rsplit('/').next()?;
    if !path.contains("/dev/") && !path.starts_with("/nvidia") {
        return None;
    }
    match name {
        "nvidiactl" => Some(Device::Control),
        "nvidia-uvm" | "nvidia-uvm-tools" => Some(Device::Uvm),
        _ => name.strip_prefix("nvidia")?.parse().ok().map(Device::Gpu),
    }
}

/// The mappings of a process.
///
/// # Errors
/// Those of reading `/proc/PID/maps`: no such process, or not the right to read it.
pub fn areas(pid: u32) -> io::Result<Vec<Area>> {
    Ok(fs::read_to_string(format!("/proc/{pid}/maps"))?
        .lines()
        .filter_map(parse)
        .collect())
}

fn parse(line: &str) -> Option<Area> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let flags = words.next()?.as_bytes();
    let path = words.nth(3).unwrap_or("").trim_start();
    Some(Area {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        read: flags.first() == Some(&b'r'),
        write: flags.get(1) == Some(&b'w'),
        execute: flags.get(2) == Some(&b'x'),
        shared: flags.get(3) == Some(&b's'),
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_line() {
        let a = parse(
            "7fbc28cd4000-7fbc28ce4000 -w-s 00000000 00:05 512                        /dev/nvidia0",
        )
        .unwrap();
        assert_eq!((a.start, a.end), (0x7fbc_28cd_4000, 0x7fbc_28ce_4000));
        assert!(a.is_doorbell_shape() && !a.read);
        assert_eq!(a.device(), Some(Device::Gpu(0)));
    }

    #[test]
    fn other_lines() {
        let ring = parse("200600000-200800000 rw-s 00000000 00:05 512 /dev/nvidia13").unwrap();
        assert_eq!(ring.device(), Some(Device::Gpu(13)));
        assert!(!ring.is_doorbell_shape());
        assert_eq!(
            parse("7f00-7f10 rw-s 0 00:05 1 /dev/nvidiactl")
                .unwrap()
                .device(),
            Some(Device::Control)
        );
        assert_eq!(
            parse("7f00-7f10 rw-s 0 00:05 1 /dev/nvidia-uvm")
                .unwrap()
                .device(),
            Some(Device::Uvm)
        );
        assert_eq!(parse("7f00-7f10 rw-p 0 00:00 0 ").unwrap().device(), None);
        assert_eq!(
            parse("7f00-7f10 r-xp 0 00:05 1 /usr/lib/libnvidia-ml.so.1")
                .unwrap()
                .device(),
            None
        );
        assert_eq!(
            parse("7f00-7f10 rw-p 0 00:05 1 [heap]").unwrap().device(),
            None
        );
        assert!(parse("nonsense").is_none());
    }
}
