//! The names of one process's programs.
//!
//! A new program is looked for where the search costs least: first in the known records, then in memory ([`memory_search`]). (Each module's
//! functions are linked, and a function that is loaded later has had its record from the beginning.) A record leads to its image, because
//! its pointer to the name points into the image.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

mod by_code;
mod in_files;
mod known;
mod learning;
mod memory_search;
mod named_code;
mod noted;

use super::{
    files::OfProcess,
    images::Images,
    layout::{Layout, Name, Program},
    scan::{self, Clocks, Cpu, Run, Space},
};
use known::Known;
pub(crate) use known::Listing;
use named_code::NamedCode;
use noted::Noted;
use nvcap_decode::cubin::Function;
use nvcap_decode::record::{At, Kernel, KernelParam, NamedBy};
use nvcap_decode::wire::GpuVa;
use nvcap_process::clock;
use nvcap_process::procfs::mem::Ordinary;

/// No program lies below this address.
const LEAST_PROGRAM: u64 = 0x1_0000;
/// The most records that are followed.
const MOST_RECORDS: usize = 1 << 18;
/// The most programs whose places are remembered. The oldest are dropped first.
const MOST_PROGRAMS: usize = 1 << 17;
/// The most programs whose names are looked for again later.
const MOST_LEFT: usize = 256;

/// Number of programs from which a layout is settled: it is learnt again when twice as many are known.
const SETTLED: usize = 8;

/// A program whose name is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Time, process and thread of the first submission that launches the program.
    pub(crate) at: At,
    pub(crate) program: GpuVa,
    /// Registers of a thread, by the launch.
    pub(crate) registers: Option<u32>,
    /// Code of the program, if its upload was seen.
    pub(crate) code: Option<Vec<u8>>,
}

/// Cost of the searches of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Number of programs that were asked for, and number whose kernels were found.
    pub(crate) asked: usize,
    pub(crate) found: usize,
    pub(crate) searches: u32,
    /// Number of the searches that went again through memory beyond the surroundings of the last finds.
    pub(crate) whole: u32,
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
    /// Processor time of all threads: of the first search of memory, and of all others.
    pub(crate) first: Duration,
    pub(crate) later: Duration,
    /// Duration of the longest search.
    pub(crate) longest: Duration,
    /// Longest time from a program's first launch to its name.
    pub(crate) latest: Duration,
}

/// Extent of the search in files for the programs that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileSearch {
    /// No search.
    Not,
    /// The files are known, and are being read.
    Reading,
    /// Search in the part of the files that was read while there was time.
    InPart,
    /// Search in all files.
    Whole,
}

/// Finder of the names of one process's programs.
pub(crate) struct Resolver {
    pid: u32,
    space: Box<dyn Space>,
    listing: Listing,
    known: Known,
    images: Images,
    layout: Option<Layout>,
    /// Number of programs that must be known before the layout is looked for again, now and when this search began.
    next_try: usize,
    first_try: usize,
    /// Number of images that were known when the layout was last looked for, and when [`Resolver::tell_again`] last looked.
    images_learnt: usize,
    images_told: usize,
    /// Programs named by text alone. An image may name them again.
    by_text: BTreeMap<u64, Ask>,
    /// Number of known programs when launches were last found to contradict the layout.
    contradicted_at: usize,
    /// Programs that were not found. They are looked for again with the next ones.
    left: Vec<Ask>,
    /// Programs that are left, and whose code equals that of several functions. They have a name that is not certain; a record decides.
    ambiguous: HashSet<u64>,
    /// Every program that was asked for.
    programs: Vec<Program>,
    /// Places of programs' addresses.
    places: HashMap<u64, Vec<u64>>,
    /// Words that were seen near programs' addresses.
    noted: Noted,
    /// The code of functions that were named.
    named_code: NamedCode,
    /// The image of each program's function, where the name came from one.
    homes: HashMap<u64, u64>,
    /// Places in records of functions, loaded or not.
    records: BTreeSet<u64>,
    /// The files that the process has mapped.
    files: OfProcess,
    /// Extent of the search in the files for the process's programs.
    file_search: FileSearch,
    /// True if only files are searched.
    files_alone: bool,
    /// Requests that wait for this search to end.
    waiting: Arc<AtomicUsize>,
    clocks: Clocks,
    began: Instant,
    /// Processor time at the begin of this search, of this thread and of others.
    began_cpu: Cpu,
    helpers: Duration,
    cost: Cost,
}

impl Resolver {
    /// Makes the resolver of a process of this machine.
    ///
    /// # Errors
    /// Those of opening the process's memory.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let space = Box::new(Ordinary::open(pid)?);
        Ok(Self::of(pid, space, Listing::PROCESS))
    }

    pub(super) fn of(pid: u32, space: Box<dyn Space>, listing: Listing) -> Self {
        Self {
            pid,
            space,
            listing,
            known: Known::default(),
            images: Images::default(),
            layout: None,
            next_try: 0,
            first_try: 0,
            images_learnt: 0,
            images_told: 0,
            by_text: BTreeMap::new(),
            contradicted_at: 0,
            left: Vec::new(),
            ambiguous: HashSet::new(),
            programs: Vec::new(),
            places: HashMap::new(),
            noted: Noted::default(),
            named_code: NamedCode::default(),
            homes: HashMap::new(),
            records: BTreeSet::new(),
            files: OfProcess::default(),
            file_search: FileSearch::Not,
            files_alone: false,
            waiting: Arc::default(),
            clocks: Clocks::MACHINE,
            began: Instant::now(),
            began_cpu: Cpu::by(Clocks::MACHINE.cpu),
            helpers: Duration::ZERO,
            cost: Cost::default(),
        }
    }

    /// Makes the resolver search only mapped files, for tests of what is found there.
    #[must_use]
    pub(crate) fn in_files_alone(self) -> Self {
        Self {
            files_alone: true,
            ..self
        }
    }

    /// Makes the resolver's limits use the test's clocks.
    #[must_use]
    #[cfg(test)]
    pub(super) fn by(self, clocks: Clocks) -> Self {
        Self {
            clocks,
            began: (clocks.now)(),
            began_cpu: Cpu::by(clocks.cpu),
            ..self
        }
    }

    /// Makes the resolver interrupt repeated searches while requests wait.
    #[must_use]
    pub(crate) fn that_yields_to(self, waiting: &Arc<AtomicUsize>) -> Self {
        Self {
            waiting: waiting.clone(),
            ..self
        }
    }

    /// Forgets the images that were found, because their modules are gone.
    #[cfg(test)]
    pub(super) fn forget_images(&mut self) {
        self.images = Images::default();
        self.layout = None;
        self.space = Box::new(super::tests::Fake::new(0x1000, 0x1000));
    }

    /// Returns the cost of the searches so far.
    pub(crate) fn cost(&self) -> Cost {
        self.cost
    }

    /// Describes for a log the layout of records that was learnt.
    pub(crate) fn learnt(&self) -> String {
        match &self.layout {
            Some(l) => format!(
                "name pointer at {:+} bytes from the program's address ({} of {} programs), registers at {:?}, {} links, {} records, {} images",
                l.name,
                l.agree,
                l.of,
                l.registers,
                l.links.len(),
                self.records.len(),
                self.images.len()
            ),
            None => format!("no layout of records; {} images", self.images.len()),
        }
    }

    /// Returns the kernels of the programs that are found. Ask for each program once, and again when its code was replaced.
    pub(crate) fn resolve(&mut self, asks: &[Ask]) -> Vec<Kernel> {
        let began = Instant::now();
        (self.began_cpu, self.helpers) = (Cpu::by(self.clocks.cpu), Duration::ZERO);
        self.first_try = self.next_try;
        self.cost.searches += 1;
        self.cost.asked += asks.len();
        let mut found = Vec::new();
        let mut all = std::mem::take(&mut self.left);
        all.retain(|a| asks.iter().all(|b| a.program != b.program));
        let new = sought(asks);
        all.extend(new.iter().copied().cloned());
        let mut wanted: Vec<&Ask> = all.iter().collect();
        let addresses: HashSet<u64> = new.iter().map(|a| a.program.0).collect();
        self.programs.retain(|p| !addresses.contains(&p.address));
        addresses.iter().for_each(|at| self.forget(*at));
        // Of two asks for one program the later one counts.
        let mut seen = HashSet::new();
        let last = new.iter().rev().filter(|a| seen.insert(a.program));
        let mut added: Vec<Program> = last
            .map(|ask| Program {
                address: ask.program.0,
                registers: ask.registers,
            })
            .collect();
        added.reverse();
        self.programs.append(&mut added);
        let too_many = self.programs.len().saturating_sub(MOST_PROGRAMS);
        let oldest: Vec<Program> = self.programs.drain(..too_many).collect();
        for program in oldest {
            self.forget(program.address);
            self.homes.remove(&program.address);
        }
        if !self.files_alone {
            self.in_memory(&mut wanted, &mut found, asks);
        }
        let left: Vec<Ask> = wanted.into_iter().cloned().collect();
        let too_many = left.len().saturating_sub(MOST_LEFT);
        self.left = left.into_iter().skip(too_many).collect();
        if asks.iter().any(|a| a.code.is_some()) {
            self.file_search = FileSearch::Not;
        }
        let took = began.elapsed();
        self.cost.later = self.spent();
        (self.began_cpu, self.helpers) = (Cpu::by(self.clocks.cpu), Duration::ZERO);
        self.cost.longest = self.cost.longest.max(took);
        let now = self.account(&found, took);
        log::debug!(
            "process {}: {} of {} programs named in {took:?} ({} places, {} images), {:?} after the first of their launches",
            self.pid,
            found.len(),
            asks.len(),
            self.places.values().map(Vec::len).sum::<usize>(),
            self.images.len(),
            asks.iter()
                .filter_map(|a| a.at.time())
                .min()
                .map(|t| Duration::from_nanos(now.saturating_sub(t)))
        );
        found
    }

    /// Forgets the findings about a program.
    fn forget(&mut self, program: u64) {
        self.places.remove(&program);
        self.ambiguous.remove(&program);
        self.by_text.remove(&program);
    }

    /// Counts the found kernels, and returns the time.
    fn account(&mut self, found: &[Kernel], took: Duration) -> u64 {
        self.cost.found += found.len();
        self.cost.time += took;
        let now = clock::now();
        for kernel in found {
            let since = kernel.at.time().map_or(0, |t| now.saturating_sub(t));
            self.cost.latest = self.cost.latest.max(Duration::from_nanos(since));
        }
        now
    }

    /// Returns the address of the image with a program's function, if the image was found.
    pub(crate) fn image_of(&self, program: GpuVa) -> Option<u64> {
        self.homes.get(&program.0).copied()
    }

    /// Tells whether programs are left that a further search could find.
    pub(crate) fn has_left(&self) -> bool {
        !self.files_alone && !self.left.is_empty() && self.may_search_again()
    }

    /// Returns the processor time spent after the first search.
    fn spent(&self) -> Duration {
        self.cost.later + self.began_cpu.elapsed() + self.helpers
    }

    /// Looks into the known records.
    fn in_known_records(&mut self, wanted: &mut Vec<&Ask>, found: &mut Vec<Kernel>) {
        if self.layout.is_none() || self.records.is_empty() {
            return;
        }
        let places: Vec<u64> = self.records.iter().copied().collect();
        let words = self.space.words(&places);
        let asked: HashSet<u64> = wanted.iter().map(|a| a.program.0).collect();
        for (at, word) in places.into_iter().zip(words) {
            if asked.contains(&word) {
                let places = self.places.entry(word).or_default();
                if !places.contains(&at) {
                    places.push(at);
                }
            }
        }
        self.conclude(wanted, found, false);
    }

    /// Searches runs of memory.
    fn search(&mut self, runs: &[Run], wanted: &mut Vec<&Ask>, found: &mut Vec<Kernel>) {
        if runs.is_empty() {
            return;
        }
        let programs: Vec<u64> = match self.layout {
            Some(_) => wanted.iter().map(|a| a.program.0).collect(),
            None => self.programs.iter().map(|p| p.address).collect(),
        };
        let seen = scan::search(&*self.space, runs, &programs);
        self.images.add(&*self.space, &seen.images);
        self.noted.add(&seen.near);
        let from = self.note_places(&seen.places);
        self.cost.bytes += seen.bytes;
        self.helpers += seen.helpers;
        self.take_places(from, wanted, found);
        log::trace!(
            "process {}: {} bytes searched from {:#x} on, {} places, {} images; {} programs left",
            self.pid,
            seen.bytes,
            runs.first().map_or(0, |r| r.start),
            self.places.values().map(Vec::len).sum::<usize>(),
            seen.images.len(),
            wanted.len()
        );
    }

    /// Keeps places of programs' addresses; returns them.
    fn note_places(&mut self, seen: &[(u64, u64)]) -> Vec<u64> {
        for of in seen.chunk_by(|a, b| a.0 == b.0) {
            let Some((program, _)) = of.first() else {
                continue;
            };
            let places = self.places.entry(*program).or_default();
            places.extend(of.iter().map(|(_, at)| at));
            places.sort_unstable();
            places.dedup();
        }
        seen.iter().map(|(_, at)| *at).collect()
    }

    /// Takes the programs to which new places lead.
    fn take_places(&mut self, mut from: Vec<u64>, wanted: &mut Vec<&Ask>, found: &mut Vec<Kernel>) {
        self.conclude(wanted, found, false);
        if !wanted.is_empty() || self.is_without_images() {
            if self.layout.is_none() {
                // More may be known than after the part of memory before.
                self.next_try = self.first_try;
            }
            if self.learn() {
                from = self.places.values().flatten().copied().collect();
            }
            self.conclude(wanted, found, false);
        }
        self.tell_again(found);
        self.follow_links(from);
    }

    /// Finds all records of the modules that have one of these places as a record.
    fn follow_links(&mut self, mut from: Vec<u64>) {
        let Some(layout) = &self.layout else {
            return;
        };
        from.retain(|at| {
            !self.records.contains(at)
                && layout
                    .name_at(&*self.space, &mut self.images, *at, None)
                    .is_some()
        });
        self.records.extend(&from);
        layout.neighbours(
            &*self.space,
            &mut self.images,
            &mut self.records,
            &from,
            MOST_RECORDS,
        );
    }

    /// Takes the wanted programs whose records are found. A program whose code contradicts its record is taken only with `contradicted`.
    fn conclude(&mut self, wanted: &mut Vec<&Ask>, found: &mut Vec<Kernel>, contradicted: bool) {
        let Some(layout) = self.layout.clone() else {
            return;
        };
        wanted.retain(|ask| match self.by_record(&layout, ask) {
            Some((kernel, fits)) if fits != Some(false) || contradicted => {
                // It has a name that is not certain already.
                let known = self.ambiguous.contains(&ask.program.0);
                let told = kernel.certain || !known;
                if told {
                    self.ambiguous.remove(&ask.program.0);
                    self.note_told(ask, &layout);
                    found.push(kernel);
                }
                !told
            }
            _ => true,
        });
    }

    /// The name that the record at a place leads to. An unknown image is looked for where the record points.
    fn name_at(&mut self, layout: &Layout, at: u64, registers: Option<u32>) -> Option<Name> {
        let name = layout.name_at(&*self.space, &mut self.images, at, registers);
        if name.is_some() || !layout.in_images {
            return name;
        }
        let pointer = layout.pointer_at(&*self.space, at)?;
        if self.images.holds(pointer) {
            return None;
        }
        let run = self.known.around(pointer)?;
        let image = self.images.seek(&*self.space, pointer, run.start)?;
        self.known.find(image);
        layout.name_at(&*self.space, &mut self.images, at, registers)
    }

    /// Names a program by its records, and tells whether its code agrees.
    fn by_record(&mut self, layout: &Layout, ask: &Ask) -> Option<(Kernel, Option<bool>)> {
        let mut names: Vec<Name> = Vec::new();
        for at in self.places.get(&ask.program.0)?.clone() {
            // The word may have changed since it was found.
            if self.space.word(at).ok() != Some(ask.program.0) {
                continue;
            }
            let Some(name) = self.name_at(layout, at, ask.registers) else {
                continue;
            };
            if !names.contains(&name) {
                names.push(name);
                self.known.find(at);
            }
        }
        // Code that was seen decides between records, of which one is left over from a module that is no more.
        if names.len() > 1
            && let Some(code) = &ask.code
        {
            let fits = |name: &Name| self.has_code(name, code) == Some(true);
            let fitting: Vec<Name> = names.iter().filter(|n| fits(n)).cloned().collect();
            if !fitting.is_empty() {
                names = fitting;
            }
        }
        let mut by_code = (names.first().zip(ask.code.as_ref()))
            .and_then(|(name, code)| self.has_code(name, code));
        // The record may be left over from a module that is no more: nearly the same code is another function's, where one has the very code.
        if by_code.is_none()
            && let Some((of, code)) = names.first().zip(ask.code.as_ref())
            && let Some(name) = self.exactly(of, code)
        {
            (names, by_code) = (vec![name], Some(true));
        }
        let name = names.first()?.clone();
        let same = names.iter().all(|n| self.text(n) == self.text(&name));
        let backed = layout.in_images && (layout.registers.is_some() || ask.registers.is_some())
            || layout.agree >= 4;
        let mut kernel = self.kernel(ask, &name)?;
        self.set_home(ask.program, &name);
        kernel.by = match by_code {
            Some(true) => NamedBy::RecordAndCode,
            _ => NamedBy::Record,
        };
        kernel.certain =
            by_code != Some(false) && (by_code == Some(true) || same && backed && layout.in_images);
        if kernel.certain && by_code == Some(true) {
            self.keep_code(&name, &kernel);
        }
        if let (Name::Of(of), true) = (&name, kernel.certain) {
            kernel.variables = self.images.variables(&*self.space, *of);
        }
        Some((kernel, by_code))
    }

    fn set_home(&mut self, program: GpuVa, name: &Name) {
        match name {
            Name::Of(named) => self.homes.insert(program.0, named.image),
            Name::Text(_) => self.homes.remove(&program.0),
        };
    }

    fn text(&self, name: &Name) -> Option<String> {
        match name {
            Name::Of(named) => self.images.function(*named).map(|f| f.name.clone()),
            Name::Text(text) => Some(text.clone()),
        }
    }

    fn kernel(&self, ask: &Ask, name: &Name) -> Option<Kernel> {
        let function = match name {
            Name::Of(named) => self.images.function(*named),
            Name::Text(_) => None,
        };
        Some(Kernel {
            driver: matches!(name, Name::Of(of) if self.images.is_driver_s(*of)),
            ..of_function(ask, self.text(name)?, function)
        })
    }
}

/// Returns the requests that are searched for. Left out are the driver's companion launches, which have no program address (zeros are
/// everywhere), and requests without registers where another request has those of the program's launches.
fn sought(asks: &[Ask]) -> Vec<&Ask> {
    let named = asks.iter().filter(|a| a.registers.is_some());
    let named: HashSet<GpuVa> = named.map(|a| a.program).collect();
    let is_best = |a: &&Ask| a.registers.is_some() || !named.contains(&a.program);
    let programs = asks.iter().filter(|a| a.program.0 >= LEAST_PROGRAM);
    programs.filter(is_best).collect()
}

/// Makes a kernel that is this function.
fn of_function(ask: &Ask, name: String, function: Option<&Function>) -> Kernel {
    let params = |f: &Function| {
        let params = f.params.iter().map(|p| KernelParam {
            offset: p.offset,
            size: p.size,
        });
        params.collect()
    };
    Kernel {
        at: ask.at,
        program: ask.program,
        name,
        bytes: function.map(|f| f.code.end - f.code.start),
        params: function.map(params),
        by: NamedBy::Record,
        certain: false,
        driver: false,
        variables: Vec::new(),
    }
}
