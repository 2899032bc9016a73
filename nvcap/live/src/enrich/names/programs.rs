//! The programs that a submission may launch, found before it is decoded: by the QMDs and the code that its commands write. Memory that the
//! commands copy to holds other code from then on.
//!
//! A launch names a QMD that was written by an inline write, in the same submission or an earlier one; libcuda writes QMDs of graphs when a
//! graph is made or uploaded. So a program's address is known here at its first doorbell, and its name can be looked up while the submission
//! waits for its turn.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::graph_qmds::own_program;
use super::copies;
use nvcap_decode::decode::{qmd_copy, view::View};
use nvcap_decode::record::{ChannelId, Submission};

/// The most words of an inline write that is looked at. It may be the code of one function, or a QMD.
const MOST_WORDS: u16 = 0x1fff;
/// The most bytes of code that are kept of a process. The oldest code is dropped first.
const MOST_CODE: usize = 8 << 20;
/// Alignment of code.
const CODE_ALIGNED: u64 = 128;
/// The shortest code: one block of instructions.
const LEAST_CODE: usize = 128;
/// Compute classes with different layouts of QMDs, tried where the chip is not known.
const CLASSES: [u32; 4] = [0xcbc0, 0xcdc0, 0xc6c0, 0xc3c0];

/// A new program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct New {
    pub(super) address: u64,
    /// Registers of its launch; none where another program stands in for it.
    pub(super) registers: Option<u32>,
    pub(super) code: Option<Vec<u8>>,
}

impl New {
    /// Returns the program that a kernel's QMD names.
    fn named(view: &View) -> Self {
        Self {
            address: view.program.0,
            registers: Some(view.registers),
            code: None,
        }
    }
}

/// The time of a submission: after `after_ns`, and at `by_ns` at the latest. Both are the same for a doorbell's trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct When {
    channel: ChannelId,
    after_ns: u64,
    by_ns: u64,
}

impl When {
    /// Tells whether this submission may have come after the other.
    fn may_follow(self, other: Self) -> bool {
        match self.channel == other.channel {
            true => self.by_ns >= other.by_ns,
            false => self.by_ns > other.after_ns,
        }
    }

    /// Tells whether this submission certainly came after the other, which was seen first.
    fn follows(self, other: Self) -> bool {
        self.channel == other.channel || self.after_ns >= other.by_ns
    }
}

/// Evidence that a name from the process's memory belongs to the launched program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// No other code was seen at the address.
    Whole,
    /// Other code lay at the address before, and its record may be left over: the uploaded code decides.
    ByCode,
    /// The launch may have been of the earlier code.
    None,
}

/// A launch whose program's name is asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    time_ns: u64,
    trust: Trust,
    /// Time by which memory had been read for the name, if a name was told.
    read_ns: Option<u64>,
}

/// Evidence for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct By {
    /// True if a QMD names the program; false if a QMD that names another program has this one fetched beforehand.
    is_named: bool,
    /// True if that QMD may have been submitted before the program's code was written.
    in_doubt: bool,
}

impl By {
    const NAME: Self = Self {
        is_named: true,
        in_doubt: false,
    };
}

/// The most pieces of memory that are remembered because they held other code before.
const MOST_REUSED: usize = 1 << 12;
/// The most launches of one program whose names are awaited or were told.
const MOST_ASKED: usize = 16;
/// The most programs of a process that are distinguished.
const MOST_PROGRAMS: usize = 1 << 16;
/// Longest time by which records of several channels may come out of the order of their events, ns.
const LATE_NS: u64 = 1_000_000_000;
/// The most programs that writes may hit, beyond [`EACH`] for each launch. A process that writes over its programs more often is not
/// followed.
const VISITS: u64 = 1 << 20;
/// Number of hits for each launch (see [`VISITS`]).
const EACH: u64 = 256;

/// Known programs of one process.
#[derive(Debug, Default)]
pub(super) struct Programs {
    known: BTreeMap<u64, By>,
    /// Code by address, with its number.
    code: BTreeMap<u64, (u64, Vec<u8>)>,
    /// Addresses of code by number.
    code_order: BTreeMap<u64, u64>,
    code_bytes: usize,
    written: u64,
    /// The last submissions of each channel: the time of the newest ones, and of those before them.
    channels: HashMap<ChannelId, (u64, u64)>,
    /// The last launch of each program.
    launched: BTreeMap<u64, When>,
    /// Programs whose names were asked for since their code was last written, with their launches.
    asked: BTreeMap<u64, Vec<Asked>>,
    /// Pieces of memory that held other code before, by their beginning: the end, and the time of the last write. They do not overlap.
    reused: BTreeMap<u64, (u64, When)>,
    /// Programs whose names held until a time, and may belong to later code.
    doubted: BTreeSet<(u64, u64)>,
    /// Number of launches, and number of programs that writes have hit.
    launches: u64,
    visits: u64,
    /// True if the process is not followed any more.
    given_up: bool,
    /// Description of an omission, and whether it was reported.
    left_out: Option<(&'static str, bool)>,
}

impl Programs {
    /// Returns an omission of this process, once.
    pub(super) fn left_out(&mut self) -> Option<&'static str> {
        let (what, is_told) = self.left_out.as_mut()?;
        let is_told = std::mem::replace(is_told, true);
        (!is_told).then_some(*what)
    }

    /// The programs that a submission names for the first time, or for the first time since their code was written again. `class`: the
    /// compute class of the GPU, if known.
    pub(super) fn of(&mut self, submission: &Submission, class: Option<u32>) -> Vec<New> {
        let mut new = Vec::new();
        if self.given_up {
            return new;
        }
        let when = self.when(submission);
        for segment in &submission.segments {
            for (address, bytes) in copies::copies(&segment.bytes) {
                self.forget(address.0, bytes, when);
                new.retain(|n: &New| self.known.contains_key(&n.address));
            }
            for upload in qmd_copy::uploads(&segment.bytes, MOST_WORDS) {
                if let Some(view) = kernel(class, upload.data) {
                    self.of_kernel(&view, when, &mut new);
                } else if upload.data.len() >= LEAST_CODE
                    && upload.address.0.is_multiple_of(CODE_ALIGNED)
                {
                    self.write(upload.address.0, upload.data, when);
                    new.retain(|n| n.address != upload.address.0);
                }
            }
        }
        if self.given_up {
            new.clear();
        }
        for new in &mut new {
            new.code = self.code.get(&new.address).map(|(_, code)| code.clone());
        }
        new
    }

    /// The time within which a submission was made.
    fn when(&mut self, submission: &Submission) -> When {
        let by_ns = submission.at.time_ns;
        let (newest, before) = self.channels.entry(submission.channel).or_default();
        if by_ns > *newest {
            (*before, *newest) = (*newest, by_ns);
        }
        When {
            channel: submission.channel,
            after_ns: match submission.how.is_after() || submission.late {
                true => *before,
                false => by_ns,
            },
            by_ns,
        }
    }

    /// The program named by a QMD that was found in the process's memory, or by the driver's part of a kernel's constants; none if it is
    /// known.
    pub(super) fn of_image(&mut self, bytes: &[u8], class: Option<u32>) -> Option<New> {
        if let Some(own) = class.and_then(|class| own_program(class, bytes)) {
            return self.of_constants(own);
        }
        let view = kernel(class, bytes)?;
        let program = view.program.0;
        if self.given_up || !self.has_room_for(program) {
            return None;
        }
        let is_new = self.known.insert(program, By::NAME) != Some(By::NAME);
        is_new.then(|| {
            self.ask(program, 0, self.trust(program));
            New::named(&view)
        })
    }

    /// A kernel's own program, where a profiler's program may stand in for it in the QMD.
    fn of_constants(&mut self, program: u64) -> Option<New> {
        let may_be = (0x1_0000..1 << 57).contains(&program) && program.is_multiple_of(CODE_ALIGNED);
        if !may_be
            || self.given_up
            || !self.has_room_for(program)
            || self.known.contains_key(&program)
        {
            return None;
        }
        let by = By {
            is_named: false,
            in_doubt: false,
        };
        self.known.insert(program, by);
        self.ask(program, 0, self.trust(program));
        Some(New {
            address: program,
            registers: None,
            code: None,
        })
    }

    /// Tells how far a name is to be trusted that was found for a launch of a program; `None` where other code was written there since.
    /// `time_ns`: time of the launch. `read_ns`: time at which the name was found.
    pub(super) fn found(&mut self, program: u64, time_ns: u64, read_ns: u64) -> Option<Trust> {
        let asked = self.asked.get_mut(&program)?;
        let asked = asked.iter_mut().find(|a| a.time_ns == time_ns)?;
        asked.read_ns = Some(read_ns);
        Some(asked.trust)
    }

    /// Takes the programs whose code is not known from a time on, each with that time.
    pub(super) fn take_doubted(&mut self) -> BTreeSet<(u64, u64)> {
        std::mem::take(&mut self.doubted)
    }

    /// Reduces the value to the parts that names on the way need after the process's end.
    pub(super) fn ended(self) -> Self {
        Self {
            asked: self.asked,
            reused: self.reused,
            ..Self::default()
        }
    }

    /// Tells whether code was written where other code had been launched.
    pub(super) fn uses_memory_again(&self) -> bool {
        !self.reused.is_empty()
    }

    /// Returns the time of the last write to the code at a program's address, if other code was launched there before.
    fn rewritten(&self, program: u64) -> Option<When> {
        let (_, (end, when)) = self.reused.range(..=program).next_back()?;
        (program < *end).then_some(*when)
    }

    /// Tells whether a program is known, or can still be added.
    fn has_room_for(&mut self, program: u64) -> bool {
        let in_known = self.known.contains_key(&program) || self.known.len() < MOST_PROGRAMS;
        let has_room = in_known
            && (self.launched.contains_key(&program) || self.launched.len() < MOST_PROGRAMS);
        if !has_room {
            let what = "names of further programs are not looked for: it launches more than 65,536";
            self.left_out.get_or_insert((what, false));
        }
        has_room
    }

    fn trust(&self, program: u64) -> Trust {
        match self.rewritten(program) {
            Some(_) => Trust::ByCode,
            None => Trust::Whole,
        }
    }

    fn ask(&mut self, program: u64, time_ns: u64, trust: Trust) {
        let asked = self.asked.entry(program).or_default();
        asked.retain(|a| a.time_ns != time_ns);
        if asked.len() >= MOST_ASKED {
            asked.remove(0);
        }
        asked.push(Asked {
            time_ns,
            trust,
            read_ns: None,
        });
    }

    /// Takes note that a kernel's QMD names a program, or has it fetched beforehand. True if that is new.
    fn launch(&mut self, program: u64, is_named: bool, when: When) -> bool {
        self.launches += 1;
        if self.given_up || !self.has_room_for(program) {
            return false;
        }
        let before = self.launched.insert(program, when);
        let known = self.known.get(&program).copied();
        if known.is_some_and(|by| !by.in_doubt && (by.is_named || !is_named)) {
            return false;
        }
        let rewritten = self.rewritten(program);
        let is_at = |b: When| (b.channel, b.by_ns) == (when.channel, when.by_ns) && b.by_ns > 0;
        if rewritten.is_some() && known.is_none() && before.is_some_and(is_at) {
            // A name holds from a time on, and this one is also that of a launch of other code.
            return false;
        }
        let is_behind = rewritten.is_none_or(|w| when.follows(w));
        if !is_behind && known.is_some_and(|by| by.in_doubt) {
            return false;
        }
        let trust = match is_behind {
            true => self.trust(program),
            false => Trust::None,
        };
        let in_doubt = !is_behind;
        self.known.insert(program, By { is_named, in_doubt });
        self.ask(program, when.by_ns, trust);
        true
    }

    /// Adds the new programs of a kernel: the program that its QMD names, and the program that the QMD has fetched beforehand, if that is
    /// another one. Under CUPTI a program of CUPTI's stands in for each kernel's, with its own number of registers (docs/names.md); the
    /// fetched program is then the launched one. In a graph, the fetched program may be another kernel's, which is named later.
    fn of_kernel(&mut self, view: &View, when: When, new: &mut Vec<New>) {
        let mut add = |of: New, is_named: bool| {
            if self.launch(of.address, is_named, when) {
                new.retain(|n| n.address != of.address);
                new.push(of);
            }
        };
        let (program, fetched) = (view.program.0, view.prefetch.0);
        add(New::named(view), true);
        if fetched > 0xffff && fetched != program & !0xff {
            let beforehand = New {
                address: fetched,
                registers: None,
                code: None,
            };
            add(beforehand, false);
        }
    }

    /// Takes note that memory is written with data that is not seen: the copy engine uploads modules so.
    fn forget(&mut self, at: u64, bytes: u64, when: When) {
        let end = at.saturating_add(bytes);
        self.overwrite(at, end, when);
        let gone: Vec<u64> = self.code.range(at..end).map(|(at, _)| *at).collect();
        for at in gone {
            self.forget_code(at);
        }
    }

    fn forget_code(&mut self, at: u64) {
        if let Some((number, code)) = self.code.remove(&at) {
            self.code_order.remove(&number);
            self.code_bytes -= code.len();
        }
    }

    /// Forgets the contents of a range of memory.
    fn overwrite(&mut self, at: u64, end: u64, when: When) {
        if self.given_up {
            return;
        }
        let mut gone: BTreeSet<u64> = self.known.range(at..end).map(|(at, _)| *at).collect();
        gone.extend(self.launched.range(at..end).map(|(at, _)| *at));
        self.visits += gone.len() as u64;
        if self.visits > VISITS + EACH * self.launches {
            self.give_up(when);
            return;
        }
        for &program in &gone {
            self.known.remove(&program);
            // What was launched last may have been what is written here; and a name that was read since then may be its.
            let launched = self.launched.get(&program).copied();
            if launched.is_some_and(|l| l.channel != when.channel && l.may_follow(when)) {
                self.doubted.insert((program, when.after_ns + 1));
            }
            // It was before every write that comes yet.
            if launched.is_some_and(|l| l.by_ns.saturating_add(LATE_NS) < when.after_ns) {
                self.launched.remove(&program);
            }
            for asked in self.asked.remove(&program).unwrap_or_default() {
                let is_behind = asked.time_ns > when.after_ns && when.after_ns < when.by_ns;
                if is_behind || asked.read_ns.is_some_and(|r| r > when.after_ns) {
                    self.doubted.insert((program, asked.time_ns));
                }
            }
        }
        let before = self.reused.range(..end).next_back();
        let had_code = before.is_some_and(|(_, (end, _))| *end > at);
        if !gone.is_empty() || had_code {
            self.reuse(at, end, when);
        }
    }

    /// Takes note that memory which held code is written.
    fn reuse(&mut self, at: u64, end: u64, mut when: When) {
        loop {
            let before = self.reused.range(..end).next_back();
            let Some((&from, &(to, of))) = before.filter(|(_, (to, _))| *to > at) else {
                break;
            };
            self.reused.remove(&from);
            if from < at {
                self.reused.insert(from, (at, of));
            }
            if to > end {
                self.reused.insert(end, (to, of));
            }
            // Records of two channels may come in another order than their writes.
            if of.by_ns > when.by_ns {
                when = of;
            }
        }
        self.reused.insert(at, (end, when));
        while self.reused.len() > MOST_REUSED {
            self.reused.pop_first();
        }
    }

    /// Stops following the process: names that were told are withdrawn.
    fn give_up(&mut self, when: When) {
        let told = std::mem::take(&mut self.asked);
        let doubted = told.into_keys().map(|at| (at, when.after_ns + 1));
        let mut doubted: BTreeSet<_> = doubted.collect();
        doubted.append(&mut self.doubted);
        let what = "names of its kernels are not looked for any more: it writes over its programs too often";
        *self = Self {
            doubted,
            given_up: true,
            left_out: Some((what, false)),
            ..Self::default()
        };
    }

    /// Takes data that may be code.
    fn write(&mut self, at: u64, data: &[u8], when: When) {
        self.overwrite(at, at.saturating_add(data.len() as u64), when);
        if self.given_up {
            return;
        }
        self.forget_code(at);
        self.written += 1;
        self.code_bytes += data.len();
        self.code_order.insert(self.written, at);
        self.code.insert(at, (self.written, data.to_vec()));
        while self.code_bytes > MOST_CODE {
            let Some((_, &at)) = self.code_order.first_key_value() else {
                return;
            };
            self.forget_code(at);
        }
    }
}

/// The launch that the QMD of a kernel describes.
fn kernel(class: Option<u32>, bytes: &[u8]) -> Option<View> {
    let of = |class: u32| {
        if bytes.len() != qmd_copy::size(class) {
            return None;
        }
        let view = qmd_copy::node(class, bytes)?;
        (view.program.0 > 0xffff && !view.program_relative).then_some(view)
    };
    match class {
        Some(class) => of(class),
        None => CLASSES.into_iter().find_map(of),
    }
}

#[cfg(test)]
pub(super) mod tests;
