//! Names found by code: the code of functions in the fat binaries of files that a process has mapped, which are its program and its
//! libraries.
//!
//! This serves programs without a record and without an image in the process's memory. Their code was seen when it was uploaded; here it is
//! compared with the functions of the files, by size and bytes. Unpacking all images of a large library takes seconds. It is done once for
//! each file, in small pieces, within a share of processor time, by a thread that has nothing else to do. Of each function its place, its
//! size and a hash of some instructions are kept; an image is unpacked again when one of its functions may match.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs::File,
    io,
    ops::Range,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    time::{Duration, Instant},
};

use super::{images, scan};
use nvcap_decode::cubin::{
    Cubin, Function, compare,
    fatbin::{self, Content, Entry, Packing, Room},
};
use nvcap_decode::wire::read_memory::ReadMemory;
use nvcap_decode::wire::words::{u16_at, u32_at, u64_at};
use nvcap_process::memory::chip;
use nvcap_process::procfs::{self, maps::Line, served::Served};

/// Sections with fat binaries: of linked code, and of code that is linked when it is loaded.
const SECTIONS: [&[u8]; 2] = [b".nv_fatbin", b"__nv_relfatbin"];
/// The most files with fat binaries. Each stays open.
const MOST_FILES: usize = 64;
/// The most images of all files.
const MOST_ENTRIES: usize = 1 << 18;
/// The most functions of all files.
const MOST_FUNCTIONS: usize = 1 << 20;
/// The most bytes of one image.
const MOST_IMAGE: u64 = 256 << 20;
/// The most sections of a program or library, and bytes of their names.
const MOST_SECTIONS: u64 = 1 << 14;
const MOST_NAMES: u64 = 1 << 20;
/// The most functions whose whole code is compared.
const MOST_COMPARED: usize = 64;
/// The most bytes of images that are unpacked again for one process, to compare code with.
const MOST_COMPARED_BYTES: u64 = 64 << 30;
/// Processor time that reading the files may take without a limit of its share, over the whole trace.
const FREE: Duration = Duration::from_secs(1);
/// Share of one core that reading the files may take beyond that time, in thousandths.
const SHARE_PER_MILLE: u32 = 5;
/// Bytes of an instruction.
const INSTRUCTION: usize = 16;
/// Number of instructions of a function that are hashed, spread over it.
const SAMPLES: usize = 16;

/// A file, read at its own offsets.
struct Opened(File);

impl ReadMemory for Opened {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(to, at)
    }
}

/// A file with fat binaries.
struct Fat {
    file: Opened,
    sections: Vec<Range<u64>>,
    bytes: u64,
    /// Budget for the unpacked bytes of its images.
    room: Room,
    /// Architectures whose images were put on the list.
    listed: Vec<BTreeSet<u32>>,
}

/// A hash of some of the sampled instructions: those that the loader does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    /// Sampled instructions that are hashed, a bit each.
    which: u16,
    hash: u64,
}

/// A function of a file.
struct Place {
    file: usize,
    entry: Entry,
    /// Its index in the image.
    index: usize,
    sample: Sample,
}

/// A function whose code is the one asked for.
#[derive(Clone, Debug)]
pub(super) struct MatchingFunction {
    pub(super) function: Function,
    /// True if it is one of the driver's own kernels.
    pub(super) driver: bool,
}

/// Files that a process has mapped.
#[derive(Default)]
pub(super) struct OfProcess {
    /// Files by device and inode; with the file's number where it has fat binaries.
    known: HashMap<(Box<str>, u64), Option<usize>>,
    /// Bytes of images that were unpacked again for this process.
    compared: u64,
}

impl OfProcess {
    fn numbers(&self) -> BTreeSet<usize> {
        self.known.values().flatten().copied().collect()
    }
}

/// Functions of the files that processes have mapped, found by their code. All processes of a trace share it.
pub(crate) struct Files {
    files: Vec<Fat>,
    /// Files by device, inode, size and time of the last change.
    known: HashMap<(u64, u64, u64, i64), Option<usize>>,
    /// Images that were read or are to be read.
    taken: HashSet<(usize, u64)>,
    /// Images that are to be read. The last one is read first.
    waiting: Vec<(usize, Entry)>,
    /// Functions by the size of their code.
    functions: BTreeMap<u64, Vec<Place>>,
    count: usize,
    /// True if there are more files, images or functions than are kept.
    too_many: bool,
    unpacked: u64,
    cpu: Duration,
    /// Processor time that reading may still take without a limit of its share.
    free: Duration,
    began: Instant,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            known: HashMap::new(),
            taken: HashSet::new(),
            waiting: Vec::new(),
            functions: BTreeMap::new(),
            count: 0,
            too_many: false,
            unpacked: 0,
            cpu: Duration::ZERO,
            free: FREE,
            began: Instant::now(),
        }
    }
}

impl Files {
    /// Makes files that may take as much processor time as they need.
    pub(crate) fn without_limit() -> Self {
        Self {
            free: Duration::from_secs(1 << 32),
            ..Self::default()
        }
    }

    /// Takes the files that a process has mapped now. Their images are taken for the generations of these architectures (sm_8x); all images
    /// where no architecture is given.
    pub(super) fn add(&mut self, pid: u32, architectures: &BTreeSet<u32>, of: &mut OfProcess) {
        let before = scan::thread_cpu();
        let mut mapped: BTreeMap<(Box<str>, u64), ([String; 2], String)> = BTreeMap::new();
        let read = procfs::maps::each_line(pid, &mut || {}, &mut |line: Line<'_>| {
            // A device's file is not to be opened.
            if line.inode == 0 || !line.path.starts_with('/') || line.path.starts_with("/dev/") {
                return;
            }
            mapped
                .entry((line.device.into(), line.inode))
                .or_insert_with(|| {
                    let range = format!("map_files/{:x}-{:x}", line.start, line.end);
                    let root = format!("root{}", line.path);
                    let ways = [range, root].map(|what| procfs::of_process(pid, &what));
                    let name = line.path.strip_suffix(" (deleted)").unwrap_or(line.path);
                    (ways, name.to_owned())
                });
        });
        if let Err(e) = read {
            log::debug!("mapped files of process {pid}: {e}");
        }
        let served = Served::of(pid);
        let mut closed = 0;
        for (key, (ways, name)) in mapped {
            if of.known.contains_key(&key) {
                continue;
            }
            if served.has(&key.0) {
                closed += 1;
                of.known.insert(key, None);
                continue;
            }
            let mut ways = ways.iter();
            let file = ways.find_map(|way| open(way, key.1));
            // A program whose file was deleted, without the right to open mapped files.
            let program = || open(&procfs::program_as(pid, &name)?, key.1);
            let file = file.or_else(program);
            let number = file.and_then(|file| self.file(file));
            of.known.insert(key, number);
        }
        if closed > 0 {
            log::debug!("mapped files of process {pid}: {closed} on FUSE are not opened");
        }
        for number in of.numbers() {
            self.want(number, architectures);
        }
        self.cpu += scan::thread_cpu().saturating_sub(before);
    }

    /// The number of a file; none if the file has no fat binaries.
    fn file(&mut self, file: File) -> Option<usize> {
        let data = file.metadata().ok()?;
        let key = (data.dev(), data.ino(), data.size(), data.mtime());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let file = Opened(file);
        let sections = fat_sections(&file).unwrap_or_default();
        let bytes = sections.iter().map(|s| s.end - s.start).sum();
        let number = if sections.is_empty() {
            None
        } else if self.files.len() == MOST_FILES {
            self.too_many = true;
            None
        } else {
            self.files.push(Fat {
                file,
                sections,
                bytes,
                room: Room::default(),
                listed: Vec::new(),
            });
            Some(self.files.len() - 1)
        };
        self.known.insert(key, number);
        number
    }

    /// Puts a file's images for architectures on the list of those to be read, small files first.
    fn want(&mut self, number: usize, architectures: &BTreeSet<u32>) {
        let Some(fat) = self.files.get_mut(number) else {
            return;
        };
        if fat.listed.contains(architectures) {
            return;
        }
        fat.listed.push(architectures.clone());
        let before = self.waiting.len();
        for section in &fat.sections {
            for entry in fatbin::entries(&fat.file, section.clone()) {
                // Code of sm_80 runs on sm_86, too.
                let fits = |sm: &u32| sm / 10 == entry.sm / 10;
                if entry.content != Content::Elf
                    || !(architectures.is_empty() || architectures.iter().any(fits))
                    || self.taken.contains(&(number, entry.at))
                {
                    continue;
                }
                if self.taken.len() == MOST_ENTRIES {
                    self.too_many = true;
                    break;
                }
                self.taken.insert((number, entry.at));
                self.waiting.push((number, entry));
            }
        }
        if self.waiting.len() > before {
            let bytes = |number: usize| self.files.get(number).map_or(0, |fat| fat.bytes);
            self.waiting
                .sort_by_key(|(number, _)| std::cmp::Reverse(bytes(*number)));
        }
    }

    /// Reads images for up to this much processor time, and at least one image.
    pub(super) fn step(&mut self, most: Duration) {
        let before = scan::thread_cpu();
        while let Some((number, entry)) = self.waiting.pop() {
            self.read(number, &entry);
            if scan::thread_cpu().saturating_sub(before) >= most {
                break;
            }
        }
        self.cpu += scan::thread_cpu().saturating_sub(before);
    }

    /// Tells whether all images have been read.
    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Tells whether the functions of all images are known: all images were read, and none was beyond the limits.
    pub(super) fn is_whole(&self) -> bool {
        self.is_done() && !self.too_many
    }

    /// Tells whether processor time is left for reading images.
    pub(crate) fn may_work(&self) -> bool {
        self.cpu < self.free + self.began.elapsed() * SHARE_PER_MILLE / 1000
    }

    /// Describes for a log the amounts read and the time that it took.
    pub(crate) fn cost(&self) -> String {
        format!(
            "{} files with fat binaries: {} functions, {:.0} MB of images, {:.0} ms of processor time, {} images not read",
            self.files.len(),
            self.count,
            self.unpacked as f64 / 1e6,
            self.cpu.as_secs_f64() * 1e3,
            self.waiting.len()
        )
    }

    /// Tells whether there is any file.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Takes the functions of an image, if its file has room for it.
    fn read(&mut self, number: usize, entry: &Entry) {
        let fat = self.files.get_mut(number);
        if !fat.is_some_and(|fat| fat.room.take(entry)) {
            if !self.too_many {
                log::warn!(
                    "images of a mapped file are too long unpacked: kernels may have no names"
                );
            }
            self.too_many = true;
            return;
        }
        let Some((bytes, image)) = self.image(number, entry) else {
            return;
        };
        self.unpacked += bytes.len() as u64;
        for (index, function) in image.functions.iter().enumerate() {
            let Some(code) = of_image(&bytes, &function.code) else {
                continue;
            };
            if self.count == MOST_FUNCTIONS {
                self.too_many = true;
                return;
            }
            self.count += 1;
            let which = unchanged(code.len(), &function.relocations);
            let place = Place {
                file: number,
                entry: *entry,
                index,
                sample: sample(code, which),
            };
            let same_size = self.functions.entry(code.len() as u64).or_default();
            same_size.push(place);
        }
    }

    /// An image: its bytes, and its structure.
    fn image(&self, number: usize, entry: &Entry) -> Option<(Vec<u8>, Cubin)> {
        let fat = self.files.get(number)?;
        let bytes = match entry.unpack(&fat.file, MOST_IMAGE) {
            Ok(bytes) => bytes,
            Err(e) => {
                log::debug!("an image at {:#x} of a mapped file: {e}", entry.at);
                return None;
            }
        };
        debug_assert!(entry.packing != Packing::None || bytes.len() as u64 == entry.len);
        let image = Cubin::read(bytes.as_slice(), 0)?;
        Some((bytes, image))
    }

    /// The functions of a process's files whose code equals the uploaded code, except where the loader changes it.
    pub(super) fn with_code(
        &mut self,
        of: &mut OfProcess,
        registers: Option<u32>,
        code: &[u8],
    ) -> Vec<MatchingFunction> {
        let before = scan::thread_cpu();
        let files = of.numbers();
        // Zeros may follow a function's code.
        let least = compare::without_zeros(code).len().max(INSTRUCTION) as u64;
        let sizes = least..(code.len() as u64).saturating_add(1).max(least);
        let places = self.functions.range(sizes).flat_map(|(size, places)| {
            let size = usize::try_from(*size).unwrap_or(usize::MAX);
            let own = code.get(..size).unwrap_or_default();
            let fits = move |p: &&Place| !own.is_empty() && sample(own, p.sample.which) == p.sample;
            places.iter().filter(fits)
        });
        let mut places: Vec<&Place> = places.filter(|p| files.contains(&p.file)).collect();
        places.sort_by_key(|p| (p.file, p.entry.at, p.index));
        let mut found = Vec::new();
        let mut last: Option<(usize, u64, Vec<u8>, Cubin)> = None;
        for place in places.into_iter().take(MOST_COMPARED) {
            let at = (place.file, place.entry.at);
            if last
                .as_ref()
                .is_none_or(|(file, entry, ..)| (*file, *entry) != at)
            {
                let compared = of.compared.saturating_add(place.entry.unpacked);
                if compared > MOST_COMPARED_BYTES {
                    log::warn!(
                        "code of a process was compared with too many bytes of images: kernels may have no names"
                    );
                    break;
                }
                of.compared = compared;
                last = self
                    .image(place.file, &place.entry)
                    .map(|(bytes, image)| (at.0, at.1, bytes, image));
            }
            let Some((_, _, bytes, image)) = &last else {
                continue;
            };
            let Some(function) = image.functions.get(place.index) else {
                continue;
            };
            let too_few = function
                .registers
                .zip(registers)
                .is_some_and(|(f, l)| f > l);
            let own = of_image(bytes, &function.code);
            let same = |own| compare::masked_equal(own, &function.relocations, code);
            if !too_few && own.is_some_and(same) {
                found.push(MatchingFunction {
                    function: function.clone(),
                    driver: images::is_driver_s_in(image, function),
                });
            }
        }
        self.cpu += scan::thread_cpu().saturating_sub(before);
        found
    }
}

/// Bytes of a range of an image.
fn of_image<'a>(bytes: &'a [u8], range: &Range<u64>) -> Option<&'a [u8]> {
    let from = usize::try_from(range.start).ok()?;
    let to = usize::try_from(range.end).ok()?;
    bytes.get(from..to).filter(|code| !code.is_empty())
}

/// The sampled instructions of code of this length.
fn looked_at(len: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = len.div_ceil(INSTRUCTION);
    let samples = all.min(SAMPLES);
    (0..samples).map(move |n| (n, n * all / samples * INSTRUCTION))
}

/// Returns the sampled instructions that the loader does not change, a bit each.
fn unchanged(len: usize, relocations: &[u64]) -> u16 {
    looked_at(len)
        .filter(|(_, at)| {
            let first = relocations.partition_point(|r| *r < *at as u64);
            let next = relocations.get(first);
            next.is_none_or(|r| *r >= (*at + INSTRUCTION) as u64)
        })
        .fold(0, |which, (n, _)| which | 1 << n)
}

/// Returns a hash of these sampled instructions (FNV-1a, by words).
fn sample(code: &[u8], which: u16) -> Sample {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (_, at) in looked_at(code.len()).filter(|(n, _)| which >> n & 1 != 0) {
        for word in [u64_at(code, at), u64_at(code, at + 8)]
            .into_iter()
            .flatten()
        {
            hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            hash ^= hash >> 32;
        }
    }
    Sample { which, hash }
}

/// Opens a mapped file; none if it was replaced by another file, or is no regular file.
fn open(way: &str, inode: u64) -> Option<File> {
    procfs::open_regular(way, |data| data.ino() == inode)
}

/// An architecture of the generation of this machine's GPUs, by the compute class of their chips (open-gpu-doc, `cl*c0.h`); none where the
/// generation is not known, or differs among the GPUs.
pub(super) fn architecture_of_chip() -> Option<u32> {
    match chip::only()?.compute {
        0xc3c0 => Some(70),
        0xc5c0 => Some(75),
        0xc6c0 => Some(80),
        0xc7c0 => Some(86),
        0xc9c0 => Some(89),
        0xcbc0 => Some(90),
        0xcdc0 => Some(100),
        0xcec0 => Some(120),
        _ => None,
    }
}

/// Finds the sections with fat binaries in a program or library (ELF, 64 bits, little-endian).
fn fat_sections(file: &impl ReadMemory) -> Option<Vec<Range<u64>>> {
    let mut header = [0; 64];
    file.read_bytes(0, &mut header).ok()?;
    header.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let table = u64_at(&header, 40)?;
    let each = u64::from(u16_at(&header, 58)?);
    let count = u64::from(u16_at(&header, 60)?);
    let names = usize::from(u16_at(&header, 62)?);
    (each == 64 && count <= MOST_SECTIONS).then_some(())?;
    let read = |at: u64, len: u64| {
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        file.read_bytes(at, &mut bytes).ok()?;
        Some(bytes)
    };
    let table = read(table, count * each)?;
    let headers = || table.chunks_exact(64);
    let place = |header: &[u8]| Some((u64_at(header, 24)?, u64_at(header, 32)?));
    let (at, len) = place(headers().nth(names)?)?;
    let names = read(at, len.min(MOST_NAMES))?;
    let fat = headers().filter_map(|header| {
        let name = names.get(u32_at(header, 0)? as usize..)?;
        let end = name.iter().position(|b| *b == 0)?;
        let (at, len) = place(header)?;
        // A section without bytes in the file (as in separate debug information) is none.
        (SECTIONS.contains(&name.get(..end)?) && u32_at(header, 4)? != 8)
            .then(|| at.checked_add(len).map(|end| at..end))?
    });
    Some(fat.collect())
}

#[cfg(test)]
mod tests;
