//! Possible leftovers of a tracer: BPF objects of the kernel, descriptors and memory of processes, entries of a process's maps.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::programs::GUARD;

const MAP_GET_NEXT_KEY: u32 = 4;
const PROG_GET_NEXT_ID: u32 = 11;
const MAP_GET_NEXT_ID: u32 = 12;
const MAP_GET_FD_BY_ID: u32 = 14;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const LINK_GET_NEXT_ID: u32 = 31;
/// Those whose entries come and go, and are not dropped by the kernel itself where there are many.
const BPF_MAP_TYPE_HASH: u32 = 1;

/// `union bpf_attr`, as words; as long as these commands need.
type Attr = [u64; 4];

fn bpf(command: u32, attr: &mut Attr) -> io::Result<i32> {
    // SAFETY: `attr` is as long as is said, and what it points to is the caller's.
    let got =
        unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of::<Attr>()) };
    match got {
        n if n < 0 => Err(io::Error::last_os_error()),
        n => Ok(n as i32),
    }
}

/// The kernel's BPF objects: their kinds and ids.
pub type Objects = BTreeSet<(&'static str, u32)>;

/// All programs, maps and links that the kernel has.
pub fn objects() -> Result<Objects> {
    let mut all = Objects::new();
    for (kind, command) in [
        ("program", PROG_GET_NEXT_ID),
        ("map", MAP_GET_NEXT_ID),
        ("link", LINK_GET_NEXT_ID),
    ] {
        let mut id = 0u32;
        loop {
            // start_id, next_id
            let mut attr: Attr = [u64::from(id), 0, 0, 0];
            match bpf(command, &mut attr) {
                Ok(_) => id = (attr[0] >> 32) as u32,
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => break,
                // No links before Linux 5.8.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => break,
                Err(e) => return Err(e).context("asking for the next BPF object"),
            }
            all.insert((kind, id));
        }
    }
    Ok(all)
}

/// Waits until nothing of this kind is left of what the kernel has now and had not `before`. Others may use BPF meanwhile: what an nvcap that
/// runs has a descriptor of is not left behind. The caller's have ended.
pub fn nothing_left(before: &Objects, of_kind: impl Fn(&'static str) -> bool) -> Result<()> {
    let begun = Instant::now();
    let mut left: Objects = &objects()? - before;
    loop {
        left = &left & &objects()?;
        left.retain(|(kind, _)| of_kind(kind));
        // Looked for after the objects: one that is there and has an owner has it still, or goes with it.
        left = &left - &held_by_processes();
        if left.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > GUARD {
            bail!("guard: left after {GUARD:?}: {left:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The objects that some nvcap has a descriptor of.
pub fn held_by_processes() -> Objects {
    let folders = |path: &str| std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut all = Objects::new();
    for process in folders("/proc") {
        // Services of the machine use BPF, too.
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        if !name.starts_with("nvcap") {
            continue;
        }
        let path = process.path().join("fdinfo");
        for file in folders(&path.to_string_lossy()) {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            for line in text.lines() {
                for (word, kind) in [
                    ("map_id:", "map"),
                    ("prog_id:", "program"),
                    ("link_id:", "link"),
                ] {
                    let id = line
                        .strip_prefix(word)
                        .and_then(|id| id.trim().parse().ok());
                    all.extend(id.map(|id| (kind, id)));
                }
            }
        }
    }
    all
}

/// Open descriptors of a process.
pub fn descriptors(pid: u32) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    Ok(std::fs::read_dir(&path).context(path)?.count())
}

/// Bytes of a process's own resident memory, without files and shared memory.
pub fn resident(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.context(path)? << 10)
}

/// Entries of all hash maps that a process has open, by the maps' names.
pub fn map_entries(pid: u32) -> Result<BTreeMap<String, u64>> {
    let infos = descriptor_infos(pid)?;
    let ids = infos.iter().filter_map(|text| number(text, "map_id:"));
    let ids: BTreeSet<u64> = ids.collect();
    let mut all = BTreeMap::new();
    for id in ids {
        let id = u32::try_from(id)?;
        let (name, entries) = entries_of(id).with_context(|| format!("map {id}"))?;
        *all.entry(name).or_default() += entries;
    }
    Ok(all)
}

fn entries_of(id: u32) -> io::Result<(String, u64)> {
    let fd = bpf(MAP_GET_FD_BY_ID, &mut [u64::from(id), 0, 0, 0])?;
    // SAFETY: the call returned a new descriptor that nothing else owns.
    let map = unsafe { OwnedFd::from_raw_fd(fd) };
    // struct bpf_map_info: type, id, key_size, value_size, max_entries, map_flags, 16 bytes of name, ...
    let mut info = [0u32; 64];
    let fd = map.as_raw_fd() as u64;
    let len = (size_of_val(&info) as u64) << 32;
    bpf(
        OBJ_GET_INFO_BY_FD,
        &mut [fd | len, info.as_mut_ptr() as u64, 0, 0],
    )?;
    let name = info[6..10].iter().flat_map(|word| word.to_le_bytes());
    let name = name.take_while(|byte| *byte != 0).map(char::from).collect();
    if info[0] != BPF_MAP_TYPE_HASH {
        return Ok((name, 0));
    }
    let (mut key, mut next) = (vec![0u8; info[2] as usize], vec![0u8; info[2] as usize]);
    let mut at = 0; // no key: the first
    let mut entries = 0;
    loop {
        match bpf(MAP_GET_NEXT_KEY, &mut [fd, at, next.as_mut_ptr() as u64, 0]) {
            Ok(_) => entries += 1,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok((name, entries)),
            Err(e) => return Err(e),
        }
        std::mem::swap(&mut key, &mut next);
        at = key.as_ptr() as u64;
    }
}

/// Tells whether a process is there.
pub fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Instructions that the kernel's verifier went through for each BPF program that a process has open, by the program's number. Empty before Linux 5.16.
pub fn verified_instructions(pid: u32) -> Result<BTreeMap<u64, u64>> {
    let of = |text: &String| number(text, "prog_id:").zip(number(text, "verified_insns:"));
    Ok(descriptor_infos(pid)?.iter().filter_map(of).collect())
}

/// Texts of what the kernel tells of each descriptor of a process.
fn descriptor_infos(pid: u32) -> Result<Vec<String>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let files = std::fs::read_dir(&folder).context(folder)?.flatten();
    Ok(files
        .filter_map(|file| std::fs::read_to_string(file.path()).ok())
        .collect())
}

/// Number behind a word at the begin of a line.
fn number(text: &str, word: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(word))?;
    line.trim().parse().ok()
}
