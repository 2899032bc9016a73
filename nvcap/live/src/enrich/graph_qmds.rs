//! QMDs of a running process that were written before the trace began: the graphs that it replays.
//!
//! GPU memory cannot be read, but libcuda keeps two things in the process's own memory. One is a copy of every graph node's QMD: it is
//! up to date, but has no address. The other is the commands that once uploaded the QMD: they have the address, but may be outdated. An
//! upload is trusted if its data equals a copy, or if nothing contradicts it. A copy without a matching upload gets its address from its
//! neighbours: copies of a graph lie one after another, and each names the next one as its dependent. Contradictory QMDs are left out,
//! so that they show as not seen.

use nvcap_decode::wire::graph_table::{GraphEntry, GraphTable};
use nvcap_process::procfs;
use std::{
    collections::{BTreeMap, HashMap, HashSet, btree_map::Entry},
    fs::File,
    io,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::present;
use nvcap_decode::decode::{arguments_at, own_program_at, qmd_copy, view::View};
use nvcap_decode::record::{At, CpuVa, Device, QmdCopy};
use nvcap_decode::wire::{GpuVa, words::u64_at};
pub use nvcap_process::procfs::mem::{Memory, Ordinary, ReadMemory};
use nvcap_process::{
    clock,
    memory::{
        chip,
        maps::{self, Area},
    },
};

/// Bytes that are read at once: they stay in a core's cache while they are searched.
const CHUNK: usize = 512 << 10;
/// Bytes that are read again with the next chunk, because an upload or a QMD may lie across the border.
const OVERLAP: usize = 8192;
/// The most words of an upload that is examined. QMDs have 64 or 96; the tables of graphs are longer.
const MOST_WORDS: u16 = 1024;
/// The most bytes of uploads other than QMDs (arguments and tables of the driver's kernels) that are kept while searching.
const MOST_KEPT: usize = 64 << 20;
/// The most QMDs of either kind.
const MOST_QMDS: usize = 1 << 18;
/// The most different QMDs that were uploaded to one address.
const MOST_CONTENTS: usize = 16;
/// The most threads of one search.
const MOST_THREADS: usize = 8;
/// The most bytes of memory that are read. The smallest areas are read first; libcuda's own are among them.
const MOST_READ: u64 = 32 << 30;
/// The greatest distance between copies of one graph; the least is the size of a QMD.
const MOST_STRIDE: u64 = 4096;
/// Largest area that may hold a graph. Larger ones are reserved address space, or model weights in host memory.
const MOST_AREA: u64 = 16 << 30;

/// Result of a search, and its cost.
#[derive(Clone, Debug, Default)]
pub struct QmdSearchResult {
    /// Contents of GPU memory, QMDs first.
    pub copies: Vec<QmdCopy>,
    /// Bytes of memory that were read.
    pub read: u64,
    /// Bytes that were left out because of the limit.
    pub cut: u64,
    /// QMDs that were left out because their copies contradict each other.
    pub contradicted: usize,
    /// Copies that were left out because they have no address.
    pub unnamed: usize,
}

/// A QMD copy: its place and its bytes.
struct Node {
    at: u64,
    bytes: Box<[u8]>,
    view: View,
}

/// Bytes, and the place where they were found.
type Data = (Box<[u8]>, u64);

/// Result of one pass over the memory.
#[derive(Default)]
struct Pass {
    /// Different contents that were uploaded to an address, with their places.
    uploads: BTreeMap<u64, Vec<Data>>,
    /// Other uploads, by address; `None` where different ones went to the address.
    others: BTreeMap<u64, Option<Data>>,
    nodes: Vec<Node>,
    read: u64,
}

/// Amounts that all threads of a search have found together, for comparison with the limits.
#[derive(Default)]
struct Room {
    uploads: AtomicUsize,
    nodes: AtomicUsize,
    /// Bytes of other uploads.
    kept: AtomicUsize,
}

/// Counts one more. True if there was room for it.
fn take(taken: &AtomicUsize, most: usize) -> bool {
    taken.fetch_add(1, Ordering::Relaxed) < most
}

/// The memory of a process. It is read by `process_vm_readv` where possible, which is faster; memory that the driver has mapped is read
/// by the memory file.
struct Either {
    ordinary: Ordinary,
    any: Memory,
}

impl ReadMemory for Either {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let read = self.ordinary.read_bytes(at, to);
        read.or_else(|_| self.any.read_bytes(at, to))
    }
}

/// A part of a process's memory that is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// True if it can hold copies; otherwise it holds commands only (a mapping of the driver's).
    pub heap: bool,
}

/// Searches the memory of a process. `class` is the compute class of its GPU.
///
/// # Errors
/// Those of opening `/proc/PID/mem` and `/proc/PID/maps`. Memory that cannot be read is skipped.
pub(crate) fn search(pid: u32, class: u32) -> io::Result<QmdSearchResult> {
    let memory = Either {
        ordinary: Ordinary::open(pid)?,
        any: Memory::open(pid)?,
    };
    let present = File::open(procfs::of_process(pid, "pagemap")).ok();
    let mut areas = maps::areas(pid)?;
    areas.retain(|area| area.end - area.start <= MOST_AREA && is_searched(area));
    areas.sort_by_key(|area| area.end - area.start);
    let mut parts = Vec::new();
    for area in areas {
        // Only pages in memory are read: reading an untouched page would allocate it. The page map says nothing of device
        // memory.
        let heap = area.device().is_none();
        let pages = present.as_ref().filter(|_| heap);
        let touched = present::pages(pages, area.start, area.end);
        parts.extend(
            touched
                .into_iter()
                .map(|(start, end)| Part { start, end, heap }),
        );
    }
    let at = At {
        time_ns: clock::now(),
        pid,
        tid: 0,
    };
    log::trace!("process {pid}: {} parts are to be searched", parts.len());
    Ok(search_in(&memory, &parts, class, at))
}

/// Searches as `search` does, in parts of any memory. `at`: the time and process for the copies. Large memory is read by several
/// threads.
#[must_use]
pub fn search_in(
    memory: &(dyn ReadMemory + Sync),
    parts: &[Part],
    class: u32,
    at: At,
) -> QmdSearchResult {
    let (pieces, cut) = pieces(parts);
    let room = Room::default();
    let next = AtomicUsize::new(0);
    let whole = Mutex::new(Pass::default());
    let work = || {
        let mut pass = Pass::default();
        let mut buffer = vec![0; CHUNK];
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            pass.piece(memory, class, *piece, (&mut buffer, &room));
        }
        if let Ok(mut whole) = whole.lock() {
            whole.merge(pass);
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores * 3 / 4).clamp(1, MOST_THREADS).min(pieces.len());
    thread::scope(|scope| {
        for _ in 1..threads {
            // Threads inherit the niceness of the one that makes them.
            let _ = thread::Builder::new()
                .name("nvcap-images".into())
                .spawn_scoped(scope, work);
        }
        work();
    });
    log::trace!("{} pieces were read by {threads} threads", pieces.len());
    QmdSearchResult {
        cut,
        ..whole.into_inner().unwrap_or_default().conclude(class, at)
    }
}

/// Returns the pieces of memory that are read one at a time, up to the limit, and the number of bytes beyond it.
fn pieces(parts: &[Part]) -> (Vec<Part>, u64) {
    let (mut pieces, mut read, mut cut) = (Vec::new(), 0, 0);
    for part in parts {
        if read >= MOST_READ {
            cut += part.end - part.start;
            continue;
        }
        let mut start = part.start;
        while start < part.end {
            let end = part.end.min(start + CHUNK as u64);
            pieces.push(Part {
                start,
                end,
                ..*part
            });
            read += end - start;
            if end == part.end {
                break;
            }
            start = end - OVERLAP as u64;
        }
    }
    (pieces, cut)
}

/// Returns the copies that `search` finds. Nothing if the chip of the GPUs is unknown, or the memory may not be read.
#[must_use]
pub fn of(pid: u32) -> Vec<QmdCopy> {
    let only = chip::only();
    only.and_then(|chip| search(pid, chip.compute).ok())
        .map_or_else(Vec::new, |found| found.copies)
}

/// True for private memory that libcuda may have allocated, and for its pushbuffers.
fn is_searched(area: &Area) -> bool {
    let is_pushbuffer = area.read && area.write && area.device() == Some(Device::Control);
    is_pushbuffer || area.is_own_memory()
}

impl Pass {
    fn piece(
        &mut self,
        memory: &dyn ReadMemory,
        class: u32,
        piece: Part,
        (buffer, room): (&mut [u8], &Room),
    ) {
        let len = usize::try_from(piece.end - piece.start).unwrap_or(CHUNK);
        let Some(bytes) = buffer.get_mut(..len) else {
            return;
        };
        memory.read_bytes_lax_to(piece.start, bytes);
        self.read += len as u64;
        self.bytes(class, piece.start, bytes, piece.heap, room);
    }

    /// Adds the findings of another thread.
    fn merge(&mut self, other: Pass) {
        self.read += other.read;
        self.nodes.extend(other.nodes);
        for (address, contents) in other.uploads {
            let own = self.uploads.entry(address).or_default();
            for (bytes, found) in contents {
                match own.iter().position(|(b, _)| *b == bytes) {
                    Some(i) => own[i].1 = found.min(own[i].1),
                    None if own.len() < MOST_CONTENTS => own.push((bytes, found)),
                    None => {}
                }
            }
        }
        for (address, data) in other.others {
            match self.others.entry(address) {
                Entry::Vacant(slot) => {
                    slot.insert(data);
                }
                Entry::Occupied(mut slot) => {
                    let same = |(a, _): &Data| data.as_ref().is_some_and(|(b, _)| a == b);
                    if !slot.get().as_ref().is_some_and(same) {
                        slot.insert(None);
                    }
                }
            }
        }
    }

    fn bytes(&mut self, class: u32, at: u64, bytes: &[u8], heap: bool, room: &Room) {
        let size = qmd_copy::size(class);
        for upload in qmd_copy::uploads(bytes, MOST_WORDS) {
            let found = at + upload.offset as u64;
            if upload.data.len() == size && qmd_copy::is_node(class, upload.data) {
                let known = self.uploads.get(&upload.address.0);
                let is_new = known.is_none_or(|contents| {
                    contents.len() < MOST_CONTENTS
                        && contents.iter().all(|(c, _)| **c != *upload.data)
                });
                // Beyond the limit no address is kept either.
                if is_new && take(&room.uploads, MOST_QMDS) {
                    let contents = self.uploads.entry(upload.address.0).or_default();
                    contents.push((upload.data.into(), found));
                }
            } else if room.kept.load(Ordering::Relaxed) < MOST_KEPT {
                match self.others.entry(upload.address.0) {
                    Entry::Vacant(slot) => {
                        room.kept.fetch_add(upload.data.len(), Ordering::Relaxed);
                        slot.insert(Some((upload.data.into(), found)));
                    }
                    Entry::Occupied(mut slot) => {
                        // It is unknown which of them is current.
                        if slot
                            .get()
                            .as_ref()
                            .is_some_and(|(d, _)| **d != *upload.data)
                        {
                            slot.insert(None);
                        }
                    }
                }
            }
        }
        if !heap {
            return;
        }
        for offset in qmd_copy::nodes(class, bytes) {
            let Some(bytes) = bytes.get(offset..offset + size) else {
                continue;
            };
            let Some(view) = View::of(class, bytes) else {
                continue;
            };
            if take(&room.nodes, MOST_QMDS) {
                self.nodes.push(Node {
                    at: at + offset as u64,
                    bytes: bytes.into(),
                    view,
                });
            }
        }
    }

    fn conclude(mut self, class: u32, at: At) -> QmdSearchResult {
        self.nodes.sort_by_key(|n| n.at);
        self.nodes.dedup_by_key(|n| n.at);
        // Commands contain QMDs too: those are no copies.
        let in_commands: HashSet<u64> = self
            .uploads
            .values()
            .flatten()
            .map(|(_, found)| *found)
            .collect();
        let uploaded: HashSet<&[u8]> = self.uploads.values().flatten().map(|(c, _)| &**c).collect();
        let copies: Vec<&Node> = self
            .nodes
            .iter()
            .filter(|n| !in_commands.contains(&n.at))
            .collect();
        let live: HashSet<&[u8]> = copies.iter().map(|n| &*n.bytes).collect();

        let mut found = QmdSearchResult {
            read: self.read,
            ..QmdSearchResult::default()
        };
        let named = by_neighbours(&copies);
        // The address that neighbours of copies give them; none where they disagree.
        let mut placed: HashMap<u64, Option<&Node>> = HashMap::new();
        for node in &copies {
            if let Some(&address) = named.get(&node.at) {
                let place = placed.entry(address).or_insert(Some(node));
                if place.is_some_and(|p| p.bytes != node.bytes) {
                    *place = None;
                }
            }
        }
        let mut qmds: BTreeMap<u64, (&[u8], u64)> = BTreeMap::new();
        for (&address, contents) in &self.uploads {
            let now: Vec<_> = contents
                .iter()
                .filter(|(c, _)| live.contains(&**c))
                .collect();
            let by_place = || placed.get(&address).copied().flatten();
            let one = match (now.as_slice(), contents.as_slice()) {
                ([one], _) => Some((&*one.0, one.1)),
                ([], [one]) => Some((&*one.0, one.1)),
                // A graph and its instance, or a graph that was changed: the neighbours decide.
                _ => by_place().map(|node| (&*node.bytes, node.at)),
            };
            match one {
                Some(one) => {
                    qmds.insert(address, one);
                }
                None => found.contradicted += 1,
            }
        }
        // Copies without a matching upload.
        for node in &copies {
            if uploaded.contains(&*node.bytes) {
                continue;
            }
            match named.get(&node.at) {
                // The copy is current; an upload with other data is older.
                Some(&address) => {
                    qmds.insert(address, (&node.bytes, node.at));
                }
                None => found.unnamed += 1,
            }
        }
        for (&address, &(bytes, place)) in &qmds {
            found.copies.push(QmdCopy {
                at,
                address: GpuVa(address),
                bytes: bytes.to_vec(),
                found: CpuVa(place),
            });
        }
        let more = self.arguments(class, at, &qmds);
        found.copies.extend(more);
        found
    }

    /// The arguments of the kernels that were found, where all uploads of the arguments agree; and the tables of the driver's kernels
    /// that continue a graph, where the table's entry names the QMD (the decoder checks this too).
    fn arguments(&self, class: u32, at: At, qmds: &BTreeMap<u64, (&[u8], u64)>) -> Vec<QmdCopy> {
        let copy = |address: u64, bytes: &[u8], found: u64| QmdCopy {
            at,
            address: GpuVa(address),
            bytes: bytes.to_vec(),
            found: CpuVa(found),
        };
        let mut told = HashSet::new();
        let mut all = Vec::new();
        for (&qmd, &(bytes, _)) in qmds {
            let Some(view) = View::of(class, bytes) else {
                continue;
            };
            let Some(bank) = view.constant_banks.iter().find(|b| b.index == 0) else {
                continue;
            };
            // Under a profiler the driver's part of the constants alone has the kernel's own program. It was written before the arguments.
            if let Some(Some((part, found))) = self.others.get(&bank.address.0)
                && own_program(class, part).is_some_and(|own| own != view.program.0)
            {
                all.push(copy(bank.address.0, part, *found));
            }
            let args_at = bank.address.0.wrapping_add(arguments_at(class));
            let Some(Some((args, args_found))) = self.others.get(&args_at) else {
                continue;
            };
            all.push(copy(args_at, args, *args_found));
            let Some(graph) = GraphTable::of(view.grid, view.block, args) else {
                continue;
            };
            // The upload that holds the table, and the edges behind it.
            let before = self.others.range(..=graph.table).next_back();
            let Some((&start, Some((data, found)))) = before else {
                continue;
            };
            let own = (graph.table - start).saturating_add(GraphTable::offset(graph.index));
            let own = usize::try_from(own).ok().and_then(|at| data.get(at..));
            let proven = own.and_then(GraphEntry::read).is_some_and(|e| e.qmd == qmd);
            if proven && told.insert(start) {
                all.push(copy(start, data, *found));
            }
        }
        all
    }
}

/// The address of a kernel's own program, in the driver's part of constant bank 0.
pub(super) fn own_program(class: u32, part: &[u8]) -> Option<u64> {
    let at = usize::try_from(own_program_at(class)?).ok()?;
    let is_part = part.len() as u64 == arguments_at(class);
    u64_at(is_part.then_some(part)?, at)
}

/// Computes addresses of copies from their neighbours. Copies of one graph lie at equal distances, and each names the next one as its
/// dependent, so that its pointer is the next one's address. No copy names the first one; its address lies one step before the second's.
fn by_neighbours(copies: &[&Node]) -> HashMap<u64, u64> {
    let mut distances: HashMap<u64, usize> = HashMap::new();
    for pair in copies.windows(2) {
        let distance = pair[1].at - pair[0].at;
        if distance <= MOST_STRIDE {
            *distances.entry(distance).or_default() += 1;
        }
    }
    let Some((stride, _)) = distances.into_iter().max_by_key(|(_, n)| *n) else {
        return HashMap::new();
    };
    let mut named = HashMap::new();
    let mut from = 0;
    while from < copies.len() {
        let mut to = from + 1;
        while to < copies.len() && copies[to].at - copies[to - 1].at == stride {
            to += 1;
        }
        let graph = &copies[from..to];
        let mut addresses: Vec<Option<u64>> = vec![None; graph.len()];
        for (i, node) in graph.iter().enumerate() {
            if let (Some(next), Some(slot)) =
                (node.view.dependents.first(), addresses.get_mut(i + 1))
            {
                *slot = Some(next.address.0);
            }
        }
        // The distance of most QMDs in GPU memory.
        let mut steps: HashMap<u64, usize> = HashMap::new();
        for pair in addresses.windows(2) {
            if let [Some(a), Some(b)] = pair
                && b > a
            {
                *steps.entry(b - a).or_default() += 1;
            }
        }
        let agreed = steps.into_iter().max_by_key(|(_, n)| *n);
        if let Some((step, count)) = agreed
            && count >= 2
        {
            // A copy off that step belongs to another graph, and its neighbour did not name it.
            for i in (0..addresses.len().saturating_sub(1)).rev() {
                if addresses[i].is_none()
                    && let Some(next) = addresses[i + 1]
                {
                    addresses[i] = next.checked_sub(step);
                }
            }
        }
        for (node, address) in graph.iter().zip(addresses) {
            if let Some(address) = address {
                named.insert(node.at, address);
            }
        }
        from = to;
    }
    named
}

#[cfg(test)]
mod tests;
