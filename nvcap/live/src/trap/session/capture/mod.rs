//! The path of submissions to records: out of the ring buffer, or out of the rings from outside.
//!
//! Invariant: the order of a channel's records is the order of its ring, and no entry is passed on twice. Entries are fetched from
//! outside only while the channel is claimed, after everything that was captured before has been taken out of the ring buffer. Records
//! that are no captures are set aside and acted on later, in their order; see [`Todo`].

mod channels;
pub(super) mod copied_out;
mod fetching;
mod newest;
pub(super) mod put_check;
mod skipping;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use nvcap_common::{self as c, TokenKey, flag};

use copied_out::CopiedOut;

use super::{
    super::{
        assemble::{self, Assembler, Gathered, Raw},
        load::Loaded,
        shared::Shared,
        space::ChannelState,
        watchpoints,
    },
    catch_up,
    channel_table::ChannelTable,
    outbox::Outbox,
    ring_search::RungTokens,
    rung::{DoorbellWord, RungDoorbells},
    spaces::AddressSpaces,
    stacks::Stacks,
    token_evidence::TokenEvidence,
    token_learner::TokenLearner,
    translations::Translations,
    unattributed::HeldSubmissions,
};
use nvcap_decode::{
    driver::{self, AddressMap},
    ledger::Captured,
    record::{ChannelId, CpuVa, How, Ioctl, Loss, Lost, Origin, Record, SkippedWhy, Submission},
};
use nvcap_process::{memory::reuse, stacks::queue::StackQueue};

/// A record of the ring buffer that is no capture. It must be acted on in order.
pub(super) enum Todo {
    Site(c::Site),
    Windows(Box<c::Windows>),
    Scan(c::Scan),
    Gap(c::Gap),
    Ioctl(Box<Ioctl>, u32),
    Mmap(c::Mmap),
    Munmap(c::Munmap),
    Life(c::Life),
    Module(c::Header),
    Nothing,
}

impl Todo {
    fn ioctl(whole: Option<(Ioctl, u32)>) -> Self {
        whole.map_or(Todo::Nothing, |(ioctl, dev)| {
            Todo::Ioctl(Box::new(ioctl), dev)
        })
    }
}

/// The most records that are set aside at a time.
const MOST_ASIDE: usize = 10_000;

/// The most entries for which one doorbell is assumed to be rung.
const FEW: usize = 8;

/// The parts that a submission passes, and the data from which it is made.
pub(super) struct Capture {
    pub(super) bpf: Loaded,
    pub(super) model: driver::Model,
    pub(super) out: Outbox,
    pub(super) table: ChannelTable,
    pub(super) spaces: AddressSpaces,
    pub(super) tokens: TokenLearner,
    pub(super) evidence: TokenEvidence,
    pub(super) rung: RungDoorbells,
    pub(super) stacks: Stacks,
    translations: Translations,
    assembler: Assembler,
    held: HeldSubmissions,
    /// Records that come before all that is in the ring buffer.
    copied_out: CopiedOut,
    /// Records that were taken out of the ring buffer and are still to be acted on.
    pending: VecDeque<Todo>,
    /// Spaces where a store at which threads are stopped has captured.
    pub(super) stopped: BTreeSet<u32>,
    /// Spaces with a doorbell that was not watched at the last read of their rings.
    pub(super) newly_watched: BTreeSet<u32>,
    /// The space of the process that is being attached to.
    pub(super) attaching: Option<u32>,
    /// The newest entries that looks from outside have read.
    newest: HashMap<u32, newest::Newest>,
    /// Channels that were never looked at from outside.
    unpeeked: Vec<u32>,
    /// True if rings are read.
    watch: bool,
    /// Reason why entries that no doorbell captured are skipped now; `None` where they are fetched.
    pub(super) skips: Option<SkippedWhy>,
    /// Counts of what was captured.
    pub(super) captured: Captured,
    /// Number of entries that were skipped, and number of looks between which more may have come.
    skipped: u64,
    doubtful: u64,
}

impl Capture {
    pub(super) fn new(
        bpf: Loaded,
        shared: Shared,
        model: driver::Model,
        watch: bool,
        stacks: Option<StackQueue>,
    ) -> Self {
        Self {
            bpf,
            model,
            out: Outbox::default(),
            table: ChannelTable::new(shared),
            spaces: AddressSpaces::default(),
            tokens: TokenLearner::default(),
            evidence: TokenEvidence::default(),
            rung: RungDoorbells::default(),
            stacks: Stacks::new(stacks),
            translations: Translations::default(),
            assembler: Assembler::default(),
            held: HeldSubmissions::default(),
            copied_out: CopiedOut::default(),
            pending: VecDeque::new(),
            stopped: BTreeSet::new(),
            newly_watched: BTreeSet::new(),
            attaching: None,
            newest: HashMap::new(),
            unpeeked: Vec::new(),
            watch,
            skips: None,
            captured: Captured::default(),
            skipped: 0,
            doubtful: 0,
        }
    }

    /// Takes the record that was set aside first: it came before the records that are still in the ring buffer.
    pub(super) fn take_pending(&mut self) -> Option<Todo> {
        self.pending.pop_front()
    }

    /// Forgets the data of an address space that stacks needed.
    pub(super) fn forget_stacks(&mut self, space: u32) {
        self.stacks.forget(space, &mut self.bpf);
    }

    /// Takes the next record of the ring buffer that is no capture; captures before it are passed on. `None` when there is none.
    pub(super) fn take(&mut self) -> Option<Todo> {
        self.stacks.take(&mut self.bpf);
        let mut done = Vec::new();
        let todo = {
            let copied = self.copied_out.take();
            let item = match &copied {
                Some(_) => None,
                None => Some(self.bpf.records.next()?),
            };
            let record = copied.as_deref().or(item.as_deref());
            // Data are appended in place; only the rest needs this program's other parts.
            match record.and_then(assemble::parse) {
                Some(Raw::Submit(r)) => {
                    self.assembler.submit(&r, &mut done);
                    Todo::Nothing
                }
                Some(Raw::Data(r, bytes)) => {
                    self.assembler.data(&r, bytes, &mut done);
                    Todo::Nothing
                }
                Some(Raw::Site(r)) => Todo::Site(r),
                Some(Raw::Windows(r)) => Todo::Windows(r),
                Some(Raw::Scan(r)) => Todo::Scan(r),
                Some(Raw::Gap(r)) => Todo::Gap(r),
                Some(Raw::IoctlEnter(r, b)) => Todo::ioctl(self.assembler.enter(&r, b)),
                Some(Raw::IoctlExit(r, b)) => Todo::ioctl(self.assembler.exit(&r, b)),
                Some(Raw::Nested(r, b)) => Todo::ioctl(self.assembler.nested(&r, b)),
                Some(Raw::Mmap(r)) => Todo::Mmap(r),
                Some(Raw::Munmap(r)) => Todo::Munmap(r),
                Some(Raw::Life(r)) => Todo::Life(r),
                Some(Raw::Module(h)) => Todo::Module(h),
                None => Todo::Nothing,
            }
        };
        self.gathered_all(done);
        if let Todo::Gap(r) = &todo {
            self.tell_skipped(r.channel);
        }
        if let Todo::Gap(r) = &todo
            && let Some(channel) = self.table.get_mut(r.channel)
        {
            channel.taken = channel.taken.max(r.position + r.count);
        }
        Some(todo)
    }

    /// Copies records out of the ring buffer, to be taken before later ones, as long as fewer than `most` bytes were copied.
    pub(super) fn copy_out(&mut self, most: usize) {
        while self.copied_out.bytes() < most
            && let Some(item) = self.bpf.records.next()
        {
            self.copied_out.add(&item);
        }
    }

    /// Takes captures out of the ring buffer until all of a channel's are out, and sets other records aside. The channel is claimed
    /// meanwhile, which must not last.
    fn take_captured(&mut self, index: u32) {
        let done = self.table.shared().get(index).done;
        let mut patience = 20;
        while self.table[index].taken < done {
            match self.take() {
                Some(Todo::Nothing) => {}
                Some(todo) => self.pending.push_back(todo),
                // Another processor is in the middle of writing something that lies before it.
                None if patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(Duration::from_micros(20));
                }
                None => return,
            }
        }
    }

    /// Takes everything out of the ring buffer that is in it now, and sets aside records that are no captures.
    fn set_all_aside(&mut self) {
        // What comes meanwhile without end can wait.
        for _ in 0..MOST_ASIDE {
            let Some(todo) = self.take() else {
                return;
            };
            if !matches!(todo, Todo::Nothing) {
                self.pending.push_back(todo);
            }
        }
    }

    /// Returns the tokens of the doorbells that were set aside and at which no channel was found moved.
    fn tokens_aside(&self) -> impl Iterator<Item = TokenKey> + '_ {
        let scans = self.pending.iter().filter_map(|todo| match todo {
            Todo::Scan(r) => Some(r),
            _ => None,
        });
        scans
            .filter(|r| r.advanced == 0 && r.token != c::NO_TOKEN)
            .map(|r| TokenKey {
                doorbell: r.doorbell,
                space: r.space,
                token: r.token,
            })
    }

    fn gathered_all(&mut self, done: Vec<Gathered>) {
        for gathered in done {
            self.gathered(gathered);
        }
    }

    /// Passes a submission on, or holds it back until its doorbell is known. The order of a channel stays the ring's: held submissions of
    /// a channel go before later ones.
    fn gathered(&mut self, mut g: Gathered) {
        let index = g.head.channel;
        // What was skipped before it comes before it.
        self.tell_skipped(index);
        if let Some(channel) = self.table.get_mut(index) {
            // What was fetched from outside, because this did not come to light in time, is not told again.
            let again = channel.taken.saturating_sub(g.head.position);
            if again > 0 {
                log::debug!("{:?}: position {} again", channel.id, g.head.position);
                g.skip(again);
            }
            if g.segments.is_empty() {
                return;
            }
            channel.taken = g.head.position + g.segments.len() as u64;
        }
        let scanned = g.head.header.flags & flag::SCANNED != 0;
        if g.head.token == c::NO_TOKEN {
            g.head.token = self.tokens.rung_at(&g.head.header).unwrap_or(c::NO_TOKEN);
        }
        let held = self.held.has(index);
        let channel = self.table.get(index);
        let known = channel.is_none_or(|c| c.token.is_some());
        if (scanned || held) && !known && !self.held.is_full(index) {
            self.held.hold(g, watchpoints::now());
            return;
        }
        // So many while it is not known whose they are: several threads submit, and any of them may have found them.
        let unknown = held && !known;
        for g in self.held.take(index) {
            self.submission(g, unknown);
        }
        self.submission(g, unknown);
    }

    /// Passes on the held submissions of a channel.
    fn release_held(&mut self, index: u32) {
        for g in self.held.take(index) {
            self.submission(g, false);
        }
    }

    /// Passes on submissions that were held for long enough.
    pub(super) fn release_old(&mut self, now: u64) {
        for g in self.held.take_old(now) {
            self.submission(g, false);
        }
    }

    /// Passes on submissions that were held for the end of a thread's scan. `rung`: the token that was rung, if it is known. Submissions
    /// that may belong to other tokens are then held until these are known.
    pub(super) fn scan_has_ended(&mut self, at: &c::Header, rung: Option<u32>) {
        for index in self.held.channels(Some(at.tid)) {
            let channel = self.table.get(index);
            if rung.is_none() || channel.is_none_or(|c| c.token.is_some()) {
                self.release_held(index);
            }
        }
    }

    /// Passes on what has arrived of a channel, if a look at it has ended before its end was told.
    fn flush(&mut self, index: u32) {
        let mut done = Vec::new();
        self.assembler.flush(index, &mut done);
        self.gathered_all(done);
        self.release_held(index);
    }

    /// Passes on everything that has arrived, at the end of the trace.
    pub(super) fn flush_all(&mut self) {
        let mut done = Vec::new();
        for index in self.assembler.unfinished() {
            self.assembler.flush(index, &mut done);
        }
        self.gathered_all(done);
        for index in self.held.channels(None) {
            self.release_held(index);
        }
    }

    /// Returns the ioctl from which an ended thread will not return.
    pub(super) fn ioctl_without_end(&mut self, tid: u32) -> Option<(Ioctl, u32)> {
        self.assembler.gone(tid)
    }

    /// Passes a submission on. `unknown`: its doorbell is not known.
    fn submission(&mut self, mut g: Gathered, unknown: bool) {
        let index = g.head.channel;
        let filled = self.fill_holes(&mut g);
        if !self.table.confirms(index, &g.segments) {
            // The doorbell was another channel's.
            if self.table.get(index).is_some() {
                self.table.dismiss(index, &mut self.bpf);
                self.tokens.orphan(TokenKey {
                    doorbell: g.head.doorbell,
                    space: g.head.space,
                    token: g.head.token,
                });
            }
            return;
        }
        self.drop_stale(&mut g);
        let head = &g.head;
        let (space, pid) = (head.space, head.header.pid);
        let doorbell = DoorbellWord {
            space,
            address: head.doorbell,
        };
        let id = self
            .table
            .announce(index, head.header.time_ns, &mut self.out);
        // What was skipped before it certainly was a channel is no part of its stream.
        if let Some(channel) = self.table.get_mut(index) {
            channel.skipped = (0, 0);
        }
        if head.header.flags & flag::BEFORE != 0 {
            self.stopped.insert(space);
        }
        let record = record_of(g, &self.table[index], id, Doubts { filled, unknown });
        self.rung.submitted(pid, doorbell);
        self.pass_on(space, record);
    }

    /// Drops entries that were submitted before their doorbell was stopped at, and whose memory was written over before it was read. They
    /// count as lost, unless the trace of their channel begins behind them.
    fn drop_stale(&mut self, g: &mut Gathered) {
        let index = g.head.channel;
        let Some(channel) = self.table.get(index) else {
            return;
        };
        // The first doorbell of a running process that is stopped at finds what was submitted since its rings were read.
        let position = g.head.position;
        let first = position == channel.start && channel.announced.origin == Origin::Found;
        if !first && g.head.header.flags & flag::LATE == 0 {
            return;
        }
        // Of a ring that was in use before the trace they were submitted before it, too.
        let begins = first && channel.start != 0;
        let entries: Vec<u64> = g.segments.iter().map(|s| s.entry).collect();
        // A few may all be this doorbell's, and the same memory submitted twice.
        let again = !begins || entries.len() <= FEW;
        let count = reuse::stale(&entries, &[], again) as u64;
        if count == 0 {
            return;
        }
        log::debug!(
            "{:?}: {count} entries from {position} on are stale",
            channel.id
        );
        if begins {
            if let Some(channel) = self.table.get_mut(index) {
                channel.start += count;
            }
        } else {
            let time_ns = g.head.header.time_ns;
            let id = self.table.announce(index, time_ns, &mut self.out);
            self.out.push(Record::Loss(Loss {
                at: assemble::at(&g.head.header),
                channel: Some(id),
                what: Lost::Entries { position, count },
            }));
        }
        g.skip(count);
    }

    /// Takes note that entries are gone.
    pub(super) fn gap(&mut self, r: &c::Gap) {
        if self.table.get(r.channel).is_none() {
            return;
        }
        let Some(id) = self.table.id_of_loss(r.channel, &mut self.out) else {
            return;
        };
        let what = Lost::Entries {
            position: r.position,
            count: r.count,
        };
        self.out.push(Record::Loss(Loss {
            at: assemble::at(&r.header),
            channel: Some(id),
            what,
        }));
    }

    /// Reads from outside what the BPF programs could not read. True if something was filled.
    fn fill_holes(&mut self, g: &mut Gathered) -> bool {
        if g.segments.iter().all(|s| s.holes.is_empty()) {
            return false;
        }
        let space = g.head.space;
        self.open_memory(space);
        let Some(channel) = self.table.get(g.head.channel) else {
            return false;
        };
        let map = self.addresses(channel.model_id);
        let Some(memory) = self.spaces.memory(space) else {
            return false;
        };
        !self.spaces.is_ending(space) && catch_up::fill_holes(g, &map, memory)
    }

    /// Opens the memory of a space, if none is open.
    pub(super) fn open_memory(&mut self, space: u32) {
        let (bpf, table) = (&self.bpf, &self.table);
        self.spaces.open_memory(
            space,
            |pid| bpf.proc(pid),
            |memory| table.is_laid_out(space, memory),
        );
    }

    /// Returns the map from a channel's GPU addresses to those in its process.
    fn addresses(&self, model_id: Option<ChannelId>) -> AddressMap {
        model_id.map_or_else(AddressMap::default, |id| self.model.address_map(id))
    }
}

/// Reasons why a capture does not show its submission as its doorbell found it.
#[derive(Clone, Copy)]
struct Doubts {
    /// True if a part was read later, from outside.
    filled: bool,
    /// True if other doorbells may have been rung for it.
    unknown: bool,
}

/// Makes the record of a capture. `id`: the id of its announced channel.
fn record_of(g: Gathered, channel: &ChannelState, id: ChannelId, doubts: Doubts) -> Submission {
    let head = &g.head;
    let flags = head.header.flags;
    let token = (head.token != c::NO_TOKEN).then_some(head.token);
    // A scan finds entries of other channels than the one that was rung: of those the thread is not known, nor when they
    // were rung for.
    let scanned = flags & flag::SCANNED != 0;
    let other = token.is_some() && channel.token.is_some() && token != channel.token;
    let foreign = scanned && (other || doubts.unknown);
    let mut at = assemble::at(&head.header);
    if foreign {
        at.tid = 0;
    }
    let before = flags & flag::BEFORE != 0;
    let batched = flags & flag::BATCHED != 0;
    let late = doubts.filled || foreign || flags & flag::LATE != 0;
    let entries = g.segments.len() as u64;
    Submission {
        absent_ns: None,
        at,
        channel: id,
        token: if scanned { channel.token } else { token },
        position: head.position,
        gp_get: (head.get != c::NO_GET).then_some(head.get),
        prev_put: channel.index(head.position),
        gp_put: channel.index(head.position + entries),
        ip: (!foreign).then_some(head.ip),
        doorbell: (!foreign).then_some(CpuVa(head.doorbell)),
        // What an earlier doorbell may have been rung for was committed before.
        how: match ((before || c::TRAP_TO_END != 0) && !late, batched) {
            (_, true) => How::Batched,
            (true, false) => How::Precommit,
            (false, false) => How::Trapped,
        },
        late,
        thread: (!foreign).then(|| assemble::name(&head.comm).into()),
        segments: g.segments,
    }
}

impl RungTokens for Capture {
    fn is_followed(&self, space: u32, ring: u64) -> bool {
        self.table.is_followed(space, ring)
    }

    fn count(&self, space: u32) -> usize {
        self.tokens.without_channel(space, self.tokens_aside())
    }

    fn refresh(&mut self) {
        self.set_all_aside();
    }
}
