//! `/proc/PID/maps`: which device files of the driver a process has mapped where.

use std::{
    fs::File,
    io::{self, Read},
};

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
    areas_in_pieces(pid, &mut || ())
}

/// As [`areas`]; calls `between` after each page of text, which the kernel takes some tens of microseconds to write: a
/// large process has a hundred of them.
///
/// # Errors
/// As [`areas`].
pub fn areas_in_pieces(pid: u32, between: &mut dyn FnMut()) -> io::Result<Vec<Area>> {
    let mut file = File::open(format!("/proc/{pid}/maps"))?;
    let mut all = Vec::new();
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let n = match file.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        text.extend_from_slice(piece.get(..n).unwrap_or_default());
        // Whole lines; what is left is the beginning of one.
        if let Some(end) = text.iter().rposition(|b| *b == b'\n') {
            all.extend(lines(text.get(..end).unwrap_or_default()));
            text.drain(..=end);
        }
        between();
    }
    all.extend(lines(&text));
    Ok(all)
}

/// The areas that lines of text name. A path need not be UTF-8.
fn lines(text: &[u8]) -> impl Iterator<Item = Area> + '_ {
    text.split(|b| *b == b'\n')
        .filter_map(|line| parse(&String::from_utf8_lossy(line)))
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
    fn in_pieces_they_are_the_same() {
        let me = std::process::id();
        let mut pieces = 0;
        let areas = areas_in_pieces(me, &mut || pieces += 1).unwrap();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(pieces > 0 && areas.len() > 10);
        assert!(areas.iter().all(|a| a.start < a.end));
        // The heap and the stacks may have changed between the two; files have not.
        let file = |a: &&Area| a.path.starts_with('/');
        let whole: Vec<Area> = lines(text.as_bytes()).collect();
        assert_eq!(
            areas.iter().filter(file).collect::<Vec<_>>(),
            whole.iter().filter(file).collect::<Vec<_>>()
        );
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
