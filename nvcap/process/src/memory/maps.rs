//! Mappings in `/proc/PID/maps`: the device files of the driver that a process has mapped, with their addresses.

use std::{collections::HashMap, fs, io, path::Path};

use super::devices;

use crate::procfs::{self, maps::Line, served::Served};
use nvcap_decode::decode::event::Place;
use nvcap_decode::record::{At, CpuVa, Device, Mapping};

/// Size of a doorbell page's mapping, bytes.
const DOORBELL_PAGE: u64 = 0x10000;

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// True if the memory may be read; false also where another program serves the file.
    pub read: bool,
    /// True where another program serves the file, so that nvcap does not read the memory whatever the process's rights ([`procfs::served`]).
    pub served: bool,
    /// True if the memory may be written.
    pub write: bool,
    /// True if the memory is executable.
    pub execute: bool,
    /// True for a shared mapping (MAP_SHARED).
    pub shared: bool,
    /// File name as the kernel shows it, empty for anonymous memory.
    pub path: String,
    /// Driver's device whose file is mapped here, if it is one.
    pub device: Option<Device>,
}

impl Area {
    /// Makes the area of a line. Its device is the one that the name claims.
    fn of(line: &Line<'_>) -> Self {
        Self {
            start: line.start,
            end: line.end,
            read: line.read(),
            served: false,
            write: line.write(),
            execute: line.execute(),
            shared: line.shared(),
            path: line.path.to_owned(),
            device: device_of_path(line.path),
        }
    }

    /// Makes a shared area with these rights (`rw`), for made-up processes.
    #[doc(hidden)]
    #[must_use]
    pub fn made_up(start: u64, len: u64, flags: &str, path: &str) -> Self {
        Self {
            start,
            end: start + len,
            read: flags.contains('r'),
            served: false,
            write: flags.contains('w'),
            execute: false,
            shared: true,
            path: path.to_owned(),
            device: device_of_path(path),
        }
    }

    /// Returns the driver's device file that is mapped here, if it is one.
    pub fn device(&self) -> Option<Device> {
        self.device
    }

    /// Tells whether the area is private readable and writable memory of the program's own: its heap, or memory that it maps without a
    /// file, including huge pages.
    pub fn is_own_memory(&self) -> bool {
        let is_own = |path: &str| {
            path.is_empty()
                || path == "[heap]"
                || path.starts_with("[anon")
                || path.starts_with("/anon_hugepage")
        };
        self.read && self.write && !self.shared && self.device().is_none() && is_own(&self.path)
    }

    /// Returns the GPU whose device file is mapped here, by its minor number.
    pub fn gpu(&self) -> Option<u32> {
        match self.device()? {
            Device::Gpu(minor) => Some(minor),
            _ => None,
        }
    }

    /// Tells whether the area has the shape of a doorbell page: 64 KiB of a GPU's device file, of CUDA (write only) or of a graphics
    /// client.
    pub fn is_doorbell_shape(&self) -> bool {
        self.end - self.start == DOORBELL_PAGE
            && self.shared
            && self.write
            && !self.execute
            && matches!(self.device(), Some(Device::Gpu(_)))
    }

    /// Tells whether `next` begins where this area ends, with other rights to the same file of a GPU, and both are smaller than a doorbell page.
    /// Such areas are parts of one doorbell page whose rights were changed.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        let rights = |a: &Self| (a.read, a.write, a.execute);
        let is_part = |a: &Self| a.end - a.start < DOORBELL_PAGE;
        self.end == next.start
            && self.path == next.path
            && self.device() == next.device()
            && matches!(self.device(), Some(Device::Gpu(_)))
            && rights(self) != rights(next)
            && is_part(self)
            && is_part(next)
    }

    /// Joins parts that follow each other ([`Area::is_followed_by`]) into one area, with every right that any part has. There must be at least one
    /// part.
    #[must_use]
    pub fn joined(parts: &[Self]) -> Self {
        Self {
            end: parts[parts.len() - 1].end,
            read: parts.iter().any(|part| part.read),
            write: parts.iter().any(|part| part.write),
            ..parts[0].clone()
        }
    }

    /// Tells whether the area is writable memory of a GPU's device file, which a process needs to submit.
    pub fn may_submit(&self) -> bool {
        self.shared && self.write && matches!(self.device(), Some(Device::Gpu(_)))
    }

    /// Tells whether the area is memory without a named file that several processes could share. libcuda takes pinned memory from it.
    pub fn is_shared_memory(&self) -> bool {
        self.shared
            && self.read
            && self.write
            && self.device().is_none()
            && self.path == "/dev/zero (deleted)"
    }

    /// Tells whether the addresses are reserved in whole large pages, as libcuda reserves them for the device's memory. A heap's addresses
    /// are not.
    pub fn is_reserved(&self) -> bool {
        let is_page = |at: u64| at.is_multiple_of(2 << 20);
        !(self.read || self.write || self.execute || self.shared)
            && self.path.is_empty()
            && self.device().is_none()
            && is_page(self.start)
            && is_page(self.end)
    }

    /// Returns the kind of memory that a GPU finds at these addresses, if the GPU uses the process's addresses, as with CUDA; `None` if the
    /// kind is not known.
    pub fn place(&self) -> Option<Place> {
        match self.device() {
            Some(Device::Gpu(_)) => Some(Place::Device),
            Some(Device::Control) => Some(Place::Host),
            // Managed memory migrates.
            Some(_) => None,
            None if self.read || self.write => Some(Place::Host),
            // These addresses are reserved: libcuda maps the device's memory there for the GPU only.
            None => Some(Place::Device),
        }
    }

    /// Returns the record of a mapping that was there before the trace: of the driver's files, of memory from which pinned memory is taken, or of
    /// reserved addresses.
    pub fn record_with_memory(&self, at: At) -> Option<Mapping> {
        Some(self.record_as(at, self.device_or_memory()?))
    }

    /// Returns the driver's device, or the mark of memory from which pinned memory is taken, or of reserved addresses.
    pub fn device_or_memory(&self) -> Option<Device> {
        match self.device() {
            None if self.is_shared_memory() => Some(Device::MEMORY),
            None if self.is_reserved() => Some(Device::RESERVED),
            device => device,
        }
    }

    /// Returns the record of a mapping of the driver's files that was there before the trace.
    pub fn record(&self, at: At) -> Option<Mapping> {
        Some(self.record_as(at, self.device()?))
    }

    fn record_as(&self, at: At, device: Device) -> Mapping {
        Mapping {
            at,
            device,
            fd: None,
            file: 0,
            start: CpuVa(self.start),
            len: self.end - self.start,
            read: self.read,
            write: self.write,
            found: true,
        }
    }
}

/// Returns the driver's device for a path such as `/dev/nvidia0`. In a container the prefix may differ.
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

/// Returns the driver's device that an open file is, by its link `/proc/PID/fd/N`.
pub fn device_of_open(link: &Path) -> Option<Device> {
    devices::of_file(link).or_else(|| {
        let target = fs::read_link(link).ok()?;
        let name = device_of_path(&target.to_string_lossy())?;
        devices::checked(name, &[link], None)
    })
}

/// Returns the mappings of a process.
///
/// # Errors
/// The errors of reading `/proc/PID/maps`: no such process, or not the right to read it.
pub fn areas(pid: u32) -> io::Result<Vec<Area>> {
    areas_in_pieces(pid, &mut || ())
}

/// Tells whether a process has a file of the driver open or mapped. `areas` are its mappings.
pub fn uses_gpu(pid: u32, areas: &[Area]) -> bool {
    if areas.iter().any(|a| a.device().is_some()) {
        return true;
    }
    match procfs::open_files(pid) {
        Ok(files) => files.flatten().any(|f| device_of_open(&f.path()).is_some()),
        // Files that may not be seen may be the driver's. Only a process without any memory has none that matter.
        Err(_) => !areas.is_empty(),
    }
}

/// Does as [`areas`], and calls `between` after each page of text. The kernel takes some tens of microseconds to write such a page, and a large
/// process has a hundred of them.
///
/// # Errors
/// As [`areas`].
pub fn areas_in_pieces(pid: u32, between: &mut dyn FnMut()) -> io::Result<Vec<Area>> {
    let mut all = Vec::new();
    let mut files = Files::of(pid);
    let mut unreadable = Vec::new();
    procfs::maps::each_line(pid, between, &mut |line| {
        let area = files.of_line(&line);
        if area.is_none() {
            unreadable.push(line.start..line.end);
        }
        all.push(area.unwrap_or_else(|| Area {
            read: false,
            served: true,
            device: None,
            ..Area::of(&line)
        }));
    })?;
    // The kernel gives them in this order, except where they changed between two pieces.
    all.sort_by_key(|a| a.start);
    unreadable.sort_by_key(|r| r.start);
    procfs::served::keep(pid, unreadable);
    Ok(all)
}

/// Tells whether these areas, in ascending order, contain the same area. The search is by address, because a process may have 65,530 areas.
pub fn has(areas: &[Area], area: &Area) -> bool {
    at(areas, area.start).is_some_and(|a| a == area)
}

/// Returns the area that contains an address. `areas` are in ascending order.
pub fn at(areas: &[Area], address: u64) -> Option<&Area> {
    let behind = areas.partition_point(|a| a.start <= address);
    areas[..behind].last().filter(|a| address < a.end)
}

/// A mapped file: its file system's number, its inode, and its device by its name.
type FileKey = (Option<(u32, u32)>, u64, Option<Device>);

/// Files of a process that may be the driver's. Each is examined once.
struct Files {
    pid: u32,
    served: Served,
    known: HashMap<FileKey, Option<Device>>,
}

impl Files {
    fn of(pid: u32) -> Self {
        Self {
            pid,
            served: Served::of(pid),
            known: HashMap::new(),
        }
    }

    /// Returns the area of a line; `None` if its memory must not be read and its file must not be examined.
    fn of_line(&mut self, line: &Line<'_>) -> Option<Area> {
        let unreadable = self.served.has(line.device);
        (!unreadable).then(|| self.check(Area::of(line), line))
    }

    fn check(&mut self, mut area: Area, line: &Line<'_>) -> Area {
        let inode = line.inode;
        // A device file may be mounted under any name. The memory that processes share, including pinned memory, is none.
        let shared = area.shared && inode != 0 && area.path.starts_with('/');
        let may_be =
            || shared && devices::shared_memory().is_none_or(|own| line.number() != Some(own));
        let name = area.device;
        if name.is_none() && !may_be() {
            return area;
        }
        let of = || {
            let mapped = format!(
                "/proc/{}/map_files/{:x}-{:x}",
                self.pid, area.start, area.end
            );
            let Some(name) = name else {
                return devices::of_file(Path::new(&mapped));
            };
            // For root, the kernel leads to the file itself. For other users, its path in the process's own file system is used, which may
            // lead anywhere.
            let path = format!("/proc/{}/root{}", self.pid, area.path);
            let ways = [Path::new(&mapped), Path::new(&path)];
            devices::checked(name, &ways, Some(inode))
        };
        let key = (line.number(), inode, name);
        area.device = match self.known.get(&key) {
            Some(device) => *device,
            None => {
                let device = of();
                self.known.insert(key, device);
                device
            }
        };
        area
    }
}

/// Tells whether a process has a GPU's file open.
pub fn has_gpu_open(pid: u32) -> bool {
    let open = procfs::open_files(pid);
    let mut devices = open
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| device_of_open(&entry.path()));
    devices.any(|device| matches!(device, Device::Gpu(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Area> {
        Line::parse(line).map(|line| Area::of(&line))
    }

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

    /// Test of a doorbell page of which half was made unreadable, beside another mapping with the same rights.
    #[test]
    fn parts_of_a_mapping_follow_each_other() {
        let of =
            |start: u64, len: u64, flags: &str| Area::made_up(start, len, flags, "/dev/nvidia0");
        let (first, second) = (of(0x10000, 0x8000, "w"), of(0x18000, 0x8000, ""));
        assert!(first.is_followed_by(&second) && first.may_submit() && !second.may_submit());
        assert!(
            !first.is_followed_by(&of(0x18000, 0x8000, "w")),
            "two mappings"
        );
        assert!(!first.is_followed_by(&of(0x20000, 0x8000, "")), "elsewhere");
        assert!(
            !of(0, 0x10000, "w").is_followed_by(&of(0x10000, 0x1000, "rw")),
            "whole"
        );
        let other = Area::made_up(0x18000, 0x8000, "", "/dev/nvidia1");
        assert!(!first.is_followed_by(&other));
    }

    #[test]
    fn areas_are_found_by_address() {
        let area = |start, end| Area {
            start,
            end,
            ..parse("0-0 rw-p 00000000 00:00 0").unwrap()
        };
        let areas = [area(10, 20), area(20, 30), area(40, 50)];
        let start_at = |address| at(&areas, address).map(|a| a.start);
        assert_eq!(start_at(9), None);
        assert_eq!(start_at(10), Some(10));
        assert_eq!(start_at(20), Some(20));
        assert_eq!(start_at(30), None);
        assert_eq!(start_at(49), Some(40));
        assert_eq!(start_at(50), None);
        assert!(has(&areas, &area(20, 30)));
        assert!(!has(&areas, &area(20, 31)));
        assert!(!has(&areas, &area(12, 20)));
    }

    #[test]
    fn in_pieces_they_are_the_same() {
        let me = std::process::id();
        let mut pieces = 0;
        let areas = areas_in_pieces(me, &mut || pieces += 1).unwrap();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(pieces > 0 && areas.len() > 10);
        assert!(areas.iter().all(|a| a.start < a.end));
        // The heap and the stacks may have changed between the two reads, but files have not.
        let file = |a: &&Area| a.path.starts_with('/');
        let (mut whole, mut files) = (Vec::new(), Files::of(me));
        procfs::maps::lines(text.as_bytes(), &mut |line| {
            whole.push(files.check(Area::of(&line), &line));
        });
        assert_eq!(
            areas.iter().filter(file).collect::<Vec<_>>(),
            whole.iter().filter(file).collect::<Vec<_>>()
        );
    }

    /// Test that a mapping of a FUSE file is neither read nor examined, whatever its name.
    #[test]
    fn files_that_a_program_answers_for() {
        let text = "200600000-200800000 rw-s 00000000 00:2d 512 /dev/nvidia0";
        let mut files = Files {
            served: Served::made_up("30 22 0:45 / /dev rw - fuse.mine x rw"),
            ..Files::of(std::process::id())
        };
        assert_eq!(files.of_line(&Line::parse(text).unwrap()), None);
        assert!(files.known.is_empty());
        let other = text.replace("00:2d", "00:2e");
        assert!(files.of_line(&Line::parse(&other).unwrap()).is_some());
    }

    #[test]
    fn what_a_program_allocates_is_its_own() {
        let own = |line: &str| parse(line).unwrap().is_own_memory();
        assert!(own("7f00-7f10 rw-p 0 00:00 0 "));
        assert!(own("7f00-7f10 rw-p 0 00:05 0 [heap]"));
        assert!(own("7f00-7f10 rw-p 0 00:00 0 [anon:glibc: malloc arena]"));
        assert!(own("7f00-7f10 rw-p 0 00:0f 4711 /anon_hugepage (deleted)"));
        assert!(!own("7f00-7f10 rw-s 0 00:0f 4711 /anon_hugepage (deleted)"));
        assert!(!own("7f00-7f10 r--p 0 00:00 0 "));
        assert!(!own("7f00-7f10 rw-p 0 00:00 0 [stack]"));
        assert!(!own("7f00-7f10 rw-p 0 00:05 1 /usr/lib/libcuda.so.1"));
        assert!(!own("7f00-7f10 rw-p 0 00:05 1 /dev/nvidiactl"));
    }

    /// Test of lines of a CUDA program's mappings on an H200 (driver 580).
    #[test]
    fn what_a_gpu_finds_at_addresses_of_the_process() {
        for (line, memory, place) in [
            (
                "7f91de800000-7f91dea00000 rw-s 00000000 00:01 3076 /dev/zero (deleted)",
                true,
                Some(Place::Host),
            ),
            (
                "7f91dea00000-7f91dec00000 rw-s 00000000 00:06 142 /dev/nvidiactl",
                false,
                Some(Place::Host),
            ),
            (
                "200600000-200800000 rw-s 00000000 00:06 143 /dev/nvidia0",
                false,
                Some(Place::Device),
            ),
            (
                "7f91c0000000-7f91e0000000 ---p 00000000 00:00 0",
                false,
                Some(Place::Device),
            ),
            (
                "302000000-48ea000000 ---p 00000000 00:00 0",
                false,
                Some(Place::Device),
            ),
            (
                "7f91b6000000-7f91b6200000 rw-s 7f91b6000000 00:06 144 /dev/nvidia-uvm",
                false,
                None,
            ),
            (
                "55c1f726f000-55c1f81d0000 rw-p 00000000 00:00 0 [heap]",
                false,
                Some(Place::Host),
            ),
        ] {
            let area = parse(line).unwrap();
            assert_eq!(
                (area.is_shared_memory(), area.place()),
                (memory, place),
                "{line}"
            );
            let record = area.record_with_memory(At::default());
            let reserved = line.contains("---p");
            assert_eq!(area.is_reserved(), reserved, "{line}");
            assert_eq!(
                record.is_some(),
                memory || reserved || area.device().is_some(),
                "{line}"
            );
            assert_eq!(
                area.record(At::default()).is_some(),
                area.device().is_some()
            );
        }
    }

    /// Test that addresses reserved by a thread's heap or a guard page are not a GPU's.
    #[test]
    fn not_all_that_is_kept_free_is_the_gpus() {
        for line in [
            "7f2004021000-7f2008000000 ---p 00000000 00:00 0",
            "7f9000000000-7f9000001000 ---p 00000000 00:00 0",
            "7f9000000000-7f9000200000 ---p 00001000 08:01 77 /usr/lib/libc.so.6",
            "7f9000000000-7f9000200000 rw-p 00000000 00:00 0",
        ] {
            assert!(!parse(line).unwrap().is_reserved(), "{line}");
        }
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
