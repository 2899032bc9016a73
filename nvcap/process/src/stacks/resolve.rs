//! Search for the named frames of a stack of the queue. Results are cached: code by address and whole stacks for each address space, and
//! tables for each file.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use nvcap_common::PythonFrame;

use super::{
    api,
    demangle::{MOST_TEXT, demangle, within},
    elf::Elf,
    left_out::{self, LeftOut, Room},
    merge::{merged, runs},
    modules::{self, Mapped, MappedFile},
    python::Python,
    queue::{RawStack, StackQueue},
    unwind::{Code, Unwinder},
};
use nvcap_decode::record::{At, Calls, Frame, Loss, Lost, Record, Stack, StackEnd};

/// The most address spaces that are cached, and the most whole stacks and addresses of each.
const MOST_SPACES: usize = 256;
const MOST_REMEMBERED: usize = 1 << 16;
/// The most bytes that the frames of one stack take in a recording. A larger stack is cut there, as a deep stack is.
const MOST_OF_STACK: usize = 4 << 20;
/// The most cached bytes of names, and of frames of one address space.
const MOST_NAMES: usize = 64 << 20;
const MOST_FRAMES: usize = 64 << 20;
/// Time for which the known mappings of a process are trusted when an address is in none of them.
const BELIEVED: Duration = Duration::from_millis(20);

/// ELF file of a mapping, if it has one, and the bias of its addresses.
#[derive(Clone)]
struct Loaded {
    elf: Option<Rc<Elf>>,
    bias: u64,
}

/// Return addresses and Python frames of a stack.
type CallsKey = (Vec<u64>, Vec<PythonFrame>);

/// State of an address space: its mappings, their files, and the frames found so far.
#[derive(Default)]
struct Space {
    mapped: Vec<Mapped>,
    looked: Option<Instant>,
    /// Budget for the address space's files.
    room: Room,
    /// Files by their mapping's first address.
    loaded: HashMap<u64, Loaded>,
    unwinder: Option<Unwinder>,
    frames: HashMap<u64, Rc<[Frame]>>,
    /// Calls of whole stacks, each with the end that was found for the stack.
    calls: HashMap<CallsKey, (StackEnd, Arc<Calls>)>,
    /// Number of bytes of `frames` and `calls`, without the names.
    held: usize,
    python: Option<Python>,
    /// Frames by code object and instruction.
    python_frames: HashMap<PythonFrame, Frame>,
}

/// Finder of the named frames of a stack, which caches its results.
pub struct Resolver {
    queue: StackQueue,
    spaces: HashMap<u32, Space>,
    files: HashMap<MappedFile, Option<Rc<Elf>>>,
    names: Names,
    /// Counts of omissions in the files of processes that are no longer cached, and in stacks.
    left_out: LeftOut,
}

/// Names, each kept once for all frames that have it.
#[derive(Default)]
struct Names {
    known: HashMap<String, Arc<str>>,
    bytes: usize,
}

impl Names {
    /// Returns the shared form of a name; a long name is cut.
    fn shared(&mut self, text: String) -> Arc<str> {
        let text = within(text);
        if let Some(name) = self.known.get(&text) {
            return Arc::clone(name);
        }
        if self.known.len() >= MOST_REMEMBERED || self.bytes + text.len() > MOST_NAMES {
            self.known.clear();
            self.bytes = 0;
        }
        let name: Arc<str> = text.as_str().into();
        self.bytes += text.len();
        self.known.insert(text, Arc::clone(&name));
        name
    }
}

impl Resolver {
    /// Makes a resolver for the stacks of a queue.
    pub fn new(queue: StackQueue) -> Self {
        Self {
            queue,
            spaces: HashMap::new(),
            files: HashMap::new(),
            names: Names::default(),
            left_out: LeftOut::default(),
        }
    }

    /// Finds the frames of the next waiting stack.
    #[expect(
        clippy::should_implement_trait,
        reason = "no iterator: more may come behind a `None`"
    )]
    pub fn next(&mut self) -> Option<Record> {
        let raw = self.queue.take()?;
        self.take_names();
        let calls = self.calls(&raw);
        Some(Record::Stack(Stack { at: raw.at, calls }))
    }

    /// Returns names, in words, of the data that was left out of a process's files.
    pub(super) fn left_out(&self, space: u32) -> Vec<&'static str> {
        let of = self.spaces.get(&space).map(|s| s.room.left_out());
        of.into_iter().flatten().map(|(what, _)| what).collect()
    }

    /// Returns names of the data that the stacks of any process lack so far, with counts.
    pub fn all_left_out(&self) -> BTreeMap<&'static str, u64> {
        let each = self.spaces.values().flat_map(|s| s.room.left_out());
        let all = self.left_out.counts().chain(self.queue.left_out());
        let mut sums = BTreeMap::new();
        for (what, count) in all.chain(each) {
            *sums.entry(what).or_default() += count;
        }
        sums
    }

    /// Returns a record of the stacks that were lost on their way since the last call.
    pub fn lost(&self) -> Option<Record> {
        let count = self.queue.take_lost();
        (count > 0).then(|| {
            Record::Loss(Loss {
                at: At::default(),
                channel: None,
                what: Lost::Stacks { count },
            })
        })
    }

    /// Takes in the names of Python frames, which came before the stacks with these frames.
    fn take_names(&mut self) {
        for (space, at, name) in self.queue.take_names() {
            let known = &mut self.spaces.entry(space).or_default().python_frames;
            if known.len() >= MOST_REMEMBERED {
                known.clear();
            }
            let frame = Frame {
                symbol: Some(self.names.shared(name.function)),
                file: Some(self.names.shared(name.file)),
                line: name.line,
                python: true,
                ..Frame::default()
            };
            known.insert(at, frame);
        }
    }

    fn calls(&mut self, raw: &RawStack) -> Arc<Calls> {
        if self.spaces.len() >= MOST_SPACES && !self.spaces.contains_key(&raw.space) {
            for (what, count) in self.spaces.drain().flat_map(|(_, s)| s.room.left_out()) {
                self.left_out.count(what, count);
            }
        }
        if raw.python.len() >= nvcap_common::MOST_PYTHON {
            self.left_out.count(left_out::PYTHON_CALLERS, 1);
        }
        let calls = self.found(raw);
        if calls.end == StackEnd::Deep {
            self.left_out.count(left_out::CALLERS, 1);
        }
        calls
    }

    /// Returns the frames of a stack, cached or found now.
    fn found(&mut self, raw: &RawStack) -> Arc<Calls> {
        let space = self.spaces.entry(raw.space).or_default();
        if let Some((mapped, python)) = self.queue.take_space(raw.space) {
            space.learn(mapped);
            space.python = python;
        }
        let (addresses, end) = space.unwind(raw, &mut self.files);
        let key = (addresses, raw.python.clone());
        if let Some((known, calls)) = space.calls.get(&key)
            && *known == end
        {
            return Arc::clone(calls);
        }
        let addresses = &key.0;
        let mut frames = Vec::new();
        for (nth, address) in addresses.iter().enumerate() {
            // The call is before the address to which it returns.
            let lookup = address - u64::from(nth > 0);
            frames.extend_from_slice(&space.frames_at(lookup, *address, &mut self.names));
        }
        let runs = space.python_runs(&raw.python);
        let api = api::called(&frames);
        let mut frames = merged(frames, runs, end);
        let whole = frames.len();
        frames.truncate(kept(&frames, MOST_OF_STACK));
        let calls = Arc::new(Calls {
            end: if frames.len() < whole {
                StackEnd::Deep
            } else {
                end
            },
            api,
            frames,
        });
        space.hold(size_of_val(&*calls.frames) + 8 * key.0.len());
        space.calls.insert(key, (end, Arc::clone(&calls)));
        calls
    }
}

/// Returns the number of frames, from the innermost on, that fit into this many bytes of a recording.
fn kept(frames: &[Frame], most: usize) -> usize {
    /// The most bytes of a frame besides its texts.
    const NUMBERS: usize = 64;
    let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |t| t.len());
    let mut bytes = 0;
    let fits = |frame: &&Frame| {
        bytes += NUMBERS + frame.module.len() + text(&frame.symbol) + text(&frame.file);
        bytes <= most
    };
    frames.iter().take_while(fits).count()
}

impl Space {
    /// Makes room for this many bytes of cached data.
    fn hold(&mut self, bytes: usize) {
        let most = self.frames.len().max(self.calls.len());
        if most >= MOST_REMEMBERED || self.held + bytes > MOST_FRAMES {
            self.frames.clear();
            self.calls.clear();
            self.held = 0;
        }
        self.held += bytes;
    }

    /// Takes in the current mappings. If a known mapping is gone, or another has taken its place, all earlier results are discarded.
    fn learn(&mut self, mapped: Vec<Mapped>) {
        self.looked = Some(Instant::now());
        if mapped.is_empty() {
            // The process is gone: nothing more can be learnt about it.
            return;
        }
        let same = |old: &Mapped| modules::at(&mapped, old.start) == Some(old);
        if !self.mapped.iter().all(same) {
            self.loaded.clear();
            self.frames.clear();
            self.calls.clear();
            self.held = 0;
            self.unwinder = None;
        }
        self.mapped = mapped;
    }

    /// Reads the mappings anew for an address that is in none of them, unless they were just read.
    fn look_again(&mut self, pid: u32, address: u64) {
        let known = modules::at(&self.mapped, address).is_some();
        if known || self.looked.is_some_and(|l| l.elapsed() < BELIEVED) {
            return;
        }
        self.learn(modules::of_process(pid));
    }

    fn unwind(
        &mut self,
        raw: &RawStack,
        files: &mut HashMap<MappedFile, Option<Rc<Elf>>>,
    ) -> (Vec<u64>, StackEnd) {
        self.look_again(raw.at.pid, raw.ip);
        let (found, missed) = self.unwind_once(raw, files);
        // A library may have been loaded since.
        if let Some(address) = missed {
            self.look_again(raw.at.pid, address);
            if modules::at(&self.mapped, address).is_some() {
                return self.unwind_once(raw, files).0;
            }
        }
        found
    }

    /// Unwinds once. If the stack ends at an address without code, that address is also returned.
    fn unwind_once(
        &mut self,
        raw: &RawStack,
        files: &mut HashMap<MappedFile, Option<Rc<Elf>>>,
    ) -> ((Vec<u64>, StackEnd), Option<u64>) {
        let mut missed = None;
        let mut unwinder = self.unwinder.take().unwrap_or_default();
        let found = unwinder.unwind(raw, |unwinder, address| {
            let code = self.code(raw.at.pid, address, unwinder, files);
            if code == Code::None {
                missed = Some(address);
            }
            code
        });
        self.unwinder = Some(unwinder);
        (found, missed)
    }

    /// Returns the kind of code at an address, after adding the tables of its file.
    fn code(
        &mut self,
        pid: u32,
        address: u64,
        unwinder: &mut Unwinder,
        files: &mut HashMap<MappedFile, Option<Rc<Elf>>>,
    ) -> Code {
        let Some(mapped) = modules::at(&self.mapped, address) else {
            return Code::None;
        };
        let room = &self.room;
        let loaded = self.loaded.entry(mapped.start).or_insert_with(|| {
            let elf = match &mapped.file {
                Some(file) => files
                    .entry(file.clone())
                    .or_insert_with(|| Elf::of(mapped, pid, room).map(Rc::new))
                    .clone(),
                None => Elf::of(mapped, pid, room).map(Rc::new),
            };
            let bias = elf.as_ref().and_then(|elf| elf.bias(mapped));
            if let (Some(elf), Some(bias)) = (&elf, bias) {
                unwinder.add(mapped, elf, bias, room);
            }
            Loaded {
                elf: elf.filter(|_| bias.is_some()),
                bias: bias.unwrap_or(0),
            }
        });
        match loaded.elf.is_some() || mapped.file.is_some() {
            true => Code::OfFile,
            false => Code::Other,
        }
    }

    /// Returns the frames of an address: those of inlined functions, and that of the function itself.
    fn frames_at(&mut self, lookup: u64, address: u64, names: &mut Names) -> Rc<[Frame]> {
        // An instruction pointer and a return address may be equal.
        let key = lookup ^ ((address - lookup) << 63);
        if let Some(frames) = self.frames.get(&key) {
            return Rc::clone(frames);
        }
        let frames: Rc<[Frame]> = self.find_frames(lookup, address, names).into();
        self.hold(size_of_val(&*frames));
        self.frames.insert(key, Rc::clone(&frames));
        frames
    }

    /// Returns the Python frames with their names, in runs: one run for each call of the interpreter. A frame whose code object was gone
    /// has no name, and is left out.
    fn python_runs(&self, frames: &[PythonFrame]) -> Vec<Vec<Frame>> {
        let version = self.python.map(|p| (p.version.major, p.version.minor));
        let runs = runs(frames, version == Some((3, 10))).into_iter();
        let named = |at: PythonFrame| self.python_frames.get(&at).cloned();
        runs.map(|run| run.into_iter().filter_map(named).collect())
            .collect()
    }

    fn find_frames(&self, lookup: u64, address: u64, names: &mut Names) -> Vec<Frame> {
        let mut name = |text: String| {
            if text.len() > MOST_TEXT {
                self.room.leave_out(left_out::NAMES, &text);
            }
            names.shared(text)
        };
        let plain = |symbol: &str| {
            demangle(symbol).unwrap_or_else(|symbol| {
                self.room.leave_out(left_out::NAMES, symbol);
                symbol.to_owned()
            })
        };
        let mapped = modules::at(&self.mapped, lookup);
        let loaded = mapped.and_then(|m| self.loaded.get(&m.start));
        let (
            Some(mapped),
            Some(Loaded {
                elf: Some(elf),
                bias,
            }),
        ) = (mapped, loaded)
        else {
            let module = mapped.map_or_else(Arc::default, |m| Arc::clone(&m.name));
            return vec![Frame {
                module,
                address,
                ..Frame::default()
            }];
        };
        let (lookup, address) = (lookup.wrapping_sub(*bias), address.wrapping_sub(*bias));
        let symbol = elf.symbol(lookup, &self.room);
        let places = elf.places(lookup, &self.room);
        let last = places.len().saturating_sub(1);
        let mut frames = Vec::new();
        for (nth, place) in places.into_iter().enumerate() {
            frames.push(Frame {
                module: Arc::clone(&mapped.name),
                symbol: place.function.map(|f| name(plain(&f))),
                offset: None,
                address,
                file: place.file.map(&mut name),
                line: place.line,
                python: false,
                inlined: nth != last,
            });
        }
        if frames.is_empty() {
            frames.push(Frame {
                module: Arc::clone(&mapped.name),
                address,
                ..Frame::default()
            });
        }
        if let (Some(frame), Some((symbol, first))) = (frames.last_mut(), symbol) {
            frame.symbol = Some(name(plain(&symbol)));
            frame.offset = address.checked_sub(first);
        }
        frames
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::procfs::mem::Memory;

    /// Returns the registers and the stack of this thread, as a doorbell in this function would give them.
    #[inline(never)]
    fn ring(bytes: usize) -> RawStack {
        let (ip, sp, fp): (u64, u64, u64);
        // SAFETY: reads three registers.
        unsafe {
            std::arch::asm!(
                "lea {ip}, [rip]", "mov {sp}, rsp", "mov {fp}, rbp",
                ip = out(reg) ip, sp = out(reg) sp, fp = out(reg) fp,
                options(nomem, nostack, preserves_flags)
            );
        }
        let mut stack = vec![0; bytes];
        Memory::open(std::process::id())
            .and_then(|m| m.read(sp, &mut stack))
            .expect("the stack of a test has that many bytes");
        RawStack {
            at: At {
                time_ns: 7,
                pid: std::process::id(),
                tid: 1,
            },
            space: 3,
            ip,
            sp,
            fp,
            lr: 0,
            bytes: stack,
            cut: true,
            python: Vec::new(),
        }
    }

    #[inline(never)]
    fn inner(bytes: usize) -> RawStack {
        std::hint::black_box(ring(bytes))
    }

    #[inline(never)]
    fn outer(bytes: usize) -> RawStack {
        // The function has more than one word of its own on the stack.
        let own = std::hint::black_box([bytes; 40]);
        let raw = inner(own[1]);
        std::hint::black_box(own);
        raw
    }

    fn resolver() -> (StackQueue, Resolver) {
        let queue = StackQueue::new(4096, 1);
        (queue.clone(), Resolver::new(queue))
    }

    fn resolved(
        (queue, resolver): &mut (StackQueue, Resolver),
        change: impl FnOnce(&mut RawStack),
    ) -> (Vec<String>, Calls) {
        let mut raw = outer(4096);
        change(&mut raw);
        queue.put(raw);
        let Some(Record::Stack(stack)) = resolver.next() else {
            panic!("no stack");
        };
        assert!(resolver.next().is_none() && resolver.lost().is_none());
        let frames = stack.calls.frames.iter();
        let names = frames.filter(|f| !f.inlined).map(|f| {
            let name = f.symbol.as_deref().unwrap_or("?");
            name.rsplit("::").next().unwrap_or("").to_owned()
        });
        (names.collect(), (*stack.calls).clone())
    }

    #[test]
    fn the_calls_of_this_test() {
        let (names, calls) = resolved(&mut resolver(), |_| {});
        assert_eq!(names[..3], ["ring", "inner", "outer"], "{calls:?}");
        // The function may have been inlined into the closure that the test harness calls.
        let own = |f: &Frame| {
            f.symbol
                .as_deref()
                .is_some_and(|s| s.contains("the_calls_of_this_test"))
        };
        assert!(calls.frames.iter().any(own), "{calls:?}");
        assert!(
            calls.frames[0]
                .file
                .as_deref()
                .is_some_and(|f| f.ends_with("resolve.rs"))
        );
        assert!(calls.frames[0].line.is_some() && calls.api.is_none());
        assert!(matches!(calls.end, StackEnd::Whole | StackEnd::Cut));
    }

    #[test]
    fn a_stack_that_goes_on_says_so() {
        let (names, calls) = resolved(&mut resolver(), |raw| raw.bytes.truncate(160));
        assert_eq!((names[0].as_str(), calls.end), ("ring", StackEnd::Cut));
    }

    #[test]
    fn whatever_the_bytes_it_ends() {
        let mut all = resolver();
        let mut seed = 1u64;
        let mut next = || {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            seed >> 16
        };
        for _ in 0..200 {
            let (ip, fill) = (next(), next() as u8);
            resolved(&mut all, |raw| raw.bytes.fill(fill));
            resolved(&mut all, |raw| {
                let n = raw.bytes.len() as u64;
                for _ in 0..16 {
                    raw.bytes[(ip.wrapping_mul(31) % n) as usize] ^= fill;
                }
                raw.fp = ip;
            });
            let (_, calls) = resolved(&mut all, |raw| raw.ip = ip);
            assert_eq!((calls.frames.len(), calls.end), (1, StackEnd::NoFile));
        }
        let (_, calls) = resolved(&mut all, |raw| raw.sp = u64::MAX - 8);
        assert!(!calls.frames.is_empty());
    }

    #[test]
    fn a_stack_with_long_names_is_cut() {
        let frame = |bytes: usize| Frame {
            symbol: Some("n".repeat(bytes).into()),
            ..Frame::default()
        };
        let frames = [frame(100), frame(1000), frame(100)];
        assert_eq!([200, 2000, 64].map(|most| kept(&frames, most)), [1, 3, 0]);
        let mut names = Names::default();
        let long = names.shared("n".repeat(MOST_OF_STACK));
        assert!(long.len() < 1 << 16 && long.ends_with('…'));
        for n in 0..MOST_NAMES / long.len() + 3 {
            names.shared(format!("{n}{}", "n".repeat(long.len())));
            assert!(names.bytes <= MOST_NAMES);
        }
    }
}
