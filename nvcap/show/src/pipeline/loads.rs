//! Submissions that are the driver's own: those that make a context and those that load a module.
//!
//! libcuda writes a module by entries that look like small copies and memsets of the program: each variable and constant
//! bank is an inline write (a fill or copy by a copy engine, where it is large) with a semaphore release behind it. The last
//! write is a table of the variables' addresses, and an invalidation of the constants' cache closes it; code is closed by
//! one of the instructions' cache. So the records from the first entry that can belong to a load wait until it is known whether
//! one closes it, at most [`HOLD_NS`] of their time. docs/decoding.md, "Module loads", has the evidence.
//!
//! A context's entries are those from the first on its channels to a table that is written in one entry with an invalidation.

mod form;
mod held;
mod members;
mod named;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::order::MOST_BYTES;
use form::{Form, chunk};
use held::{Decide, Item, Waiting};
pub(super) use held::{Parts, Taken};
use members::{Members, count, load, name};
use named::Named;
use nvcap_decode::decode::event::{Load, PartOf};
use nvcap_decode::record::{ChannelId, Kernel, Record, Submission};
use nvcap_decode::wire::hash::NumberMap;

/// Longest time for which a load is waited for, by the records, ns.
const HOLD_NS: u64 = 20_000_000;
/// Longest time for which a context is waited for, by the records, ns: it is made once, in 30 to 60 ms under the trap.
const HOLD_CONTEXT_NS: u64 = 1_000_000_000;
/// Longest time without a record within a load, ns: 10 ms were seen.
const IDLE_NS: u64 = 60_000_000;
/// Time between two looks for what has waited too long, in time of the records, ns.
const LOOK_NS: u64 = 1_000_000;
/// The most records that wait.
const MOST_HELD: usize = 1 << 14;
/// The most entries of a channel that wait for a decision.
const MOST_ITEMS: usize = 1 << 13;
/// The most bytes of functions' names that are kept, of all processes.
const MOST_NAMED: usize = 16 << 20;
/// The most pieces of memory with code that are remembered of a process.
const MOST_CODE: usize = 1 << 12;

/// The entries of one channel that wait for a decision.
#[derive(Debug, Default)]
struct Pending {
    items: VecDeque<Item>,
    /// The load that goes on.
    load: Option<Open>,
}

/// A load that goes on: its last entry waits for what comes next.
#[derive(Debug)]
struct Open {
    load: Load,
    record: u64,
    entry: u32,
    /// Beginnings of its code.
    code: Vec<u64>,
}

/// Channels of which a context is made.
#[derive(Debug)]
struct Making {
    channels: Vec<ChannelId>,
    items: Vec<(u64, u32)>,
    since: u64,
    load: Load,
}

/// Loads of one process, and what is known of its channels and code.
#[derive(Debug, Default)]
struct ProcessLoads {
    pending: BTreeMap<ChannelId, Pending>,
    /// Channels that were announced, and have submitted nothing yet.
    announced: Vec<ChannelId>,
    making: Vec<Making>,
    /// Memory with code.
    code: BTreeSet<u64>,
    named: Named,
}

impl ProcessLoads {
    /// Forgets the names. False if nothing else is known.
    fn forget_names(&mut self) -> bool {
        self.named.forget();
        !(self.pending.is_empty()
            && self.announced.is_empty()
            && self.making.is_empty()
            && self.code.is_empty())
    }
}

/// Submissions that wait until it is known whether they are the driver's own.
#[derive(Debug, Default)]
pub(super) struct Loads {
    waiting: VecDeque<Waiting>,
    /// Bytes of the records that wait.
    bytes: usize,
    /// Number of the first record that waits.
    first: u64,
    processes: NumberMap<u32, ProcessLoads>,
    /// Bytes of the names that came since names were last forgotten.
    named: usize,
    /// Times of the latest ends of processes that wait.
    ends: NumberMap<u32, u64>,
    /// Time of the newest record, and time of the last look for records that have waited too long.
    newest: u64,
    looked: u64,
    /// True if no record has come since the source said that it has none.
    is_idle: bool,
}

impl Loads {
    /// Takes in the next record, in the order of the times.
    pub(super) fn put(&mut self, record: Record) {
        let number = self.first + self.waiting.len() as u64;
        self.is_idle = false;
        if let Some(time) = record.at().time() {
            if self.newest > 0 && time.saturating_sub(self.newest) > IDLE_NS {
                self.give_up_all();
            }
            self.newest = self.newest.max(time);
        }
        let mut place = None;
        let mut forms = Vec::new();
        match &record {
            Record::Submission(s) => {
                place = Some(Place::of(s));
                forms.extend(s.segments.iter().map(Form::of));
            }
            Record::Channel(c) => {
                let process = self.processes.entry(c.at.pid).or_default();
                if !process.announced.contains(&c.id) && !process.pending.contains_key(&c.id) {
                    process.announced.push(c.id);
                }
            }
            Record::Process(p) if p.life.ends_work() => {
                self.give_up(p.at.pid);
                self.processes.remove(&p.at.pid);
                self.ends.insert(p.at.pid, p.at.time_ns);
            }
            _ => {}
        }
        self.bytes = self.bytes.saturating_add(record.size());
        self.waiting.push_back(Waiting::new(record, forms.len()));
        if let Some(place) = place {
            for (entry, form) in forms.into_iter().enumerate() {
                self.entry(&place, number, entry as u32, form);
            }
        }
        self.expire();
    }

    /// Tells whether submissions wait.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Tells whether a record is of the process that has the number of another one, whose end waits.
    pub(super) fn is_behind_end(&self, record: &Record) -> bool {
        let at = record.at();
        { self.ends.get(&at.pid) }.is_some_and(|end| *end < at.time_ns)
    }

    /// The next record whose turn it is.
    pub(super) fn take(&mut self) -> Option<Taken> {
        if self.waiting.front()?.undecided > 0 {
            return None;
        }
        let Waiting {
            record,
            parts,
            load,
            ..
        } = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(record.size());
        self.first += 1;
        if let Record::Process(p) = &record
            && p.life.ends_work()
            && self.ends.get(&p.at.pid) == Some(&p.at.time_ns)
        {
            self.ends.remove(&p.at.pid);
        }
        let parts = parts.iter().any(Option::is_some).then(|| parts.into());
        Some(Taken {
            record,
            parts,
            load,
        })
    }

    /// Takes note that no record has come for a while. The second time in a row, and at the end, nothing is waited for any more.
    pub(super) fn idle(&mut self, is_end: bool) {
        if self.is_idle || is_end {
            self.give_up_all();
        }
        self.is_idle = true;
    }

    /// Takes the name of a function, which waits for nothing. Names may be of any process, and come behind its end: where they are too many, all are
    /// forgotten.
    pub(super) fn name(&mut self, kernel: &Kernel) {
        self.named += size_of::<Kernel>() + kernel.name.len();
        if self.named > MOST_NAMED {
            self.named = 0;
            self.processes.retain(|_, process| process.forget_names());
        }
        let process = self.processes.entry(kernel.at.pid).or_default();
        process.named.take(kernel);
    }

    /// Takes note that a record has come that waits for nothing: a load may still go on.
    pub(super) fn stir(&mut self) {
        self.is_idle = false;
    }

    fn give_up_all(&mut self) {
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.give_up(pid));
    }

    /// Takes one entry of a submission.
    fn entry(&mut self, place: &Place, record: u64, entry: u32, form: Form) {
        let Self {
            waiting,
            first,
            processes,
            ..
        } = self;
        let mut decide = Decide::new(waiting, *first);
        let process = processes.entry(place.pid).or_default();
        if place.position == 0 && entry == 0 && process.announced.contains(&place.channel) {
            let announced = std::mem::take(&mut process.announced);
            // A source may announce each channel at its first submission.
            match process.making.last_mut() {
                Some(making) => making.channels.extend(announced),
                None => process.making.push(Making {
                    channels: announced,
                    items: Vec::new(),
                    since: place.time,
                    load: load(PartOf::Context),
                }),
            }
        }
        let is_of = |m: &Making| m.channels.contains(&place.channel);
        if let Some(at) = process.making.iter().position(is_of)
            && process.making_entry(at, &mut decide, record, entry, &form)
        {
            return;
        }
        let item = Item {
            record,
            entry,
            time: place.time,
            form,
        };
        process.entry(place.channel, &mut decide, item);
    }

    /// Decides that entries which have waited too long are the program's; if too much waits, that all are.
    fn expire(&mut self) {
        // Mostly nothing waits.
        if self.waiting.front().is_none_or(|w| w.undecided == 0) {
            return;
        }
        let full = self.waiting.len() > MOST_HELD || self.bytes > MOST_BYTES;
        if !full && self.newest.saturating_sub(self.looked) < LOOK_NS {
            return;
        }
        self.looked = self.newest;
        let Self {
            waiting,
            first,
            processes,
            newest,
            ..
        } = self;
        let mut decide = Decide::new(waiting, *first);
        let old = |time: u64, hold: u64| full || time.saturating_add(hold) < *newest;
        for process in processes.values_mut() {
            for pending in process.pending.values_mut() {
                while let Some(item) = pending.items.front().filter(|i| old(i.time, HOLD_NS)) {
                    decide.settle(item.record, item.entry, None);
                    pending.items.pop_front();
                }
                if pending.load.as_ref().is_some_and(|open| {
                    let time = decide.time(open.record);
                    time.is_none_or(|time| old(time, HOLD_NS))
                }) {
                    pending.end(&mut decide, &process.named);
                }
            }
            process.making.retain_mut(|making| {
                let over = old(making.since, HOLD_CONTEXT_NS) || making.items.len() > MOST_ITEMS;
                if over {
                    making.give_up(&mut decide);
                }
                !over
            });
        }
    }

    /// Decides on all that waits of a process.
    fn give_up(&mut self, pid: u32) {
        let Self {
            waiting,
            first,
            processes,
            ..
        } = self;
        let mut decide = Decide::new(waiting, *first);
        let Some(process) = processes.get_mut(&pid) else {
            return;
        };
        for pending in process.pending.values_mut() {
            pending.give_up(&mut decide);
            pending.end(&mut decide, &process.named);
        }
        for mut making in process.making.drain(..) {
            making.give_up(&mut decide);
        }
    }
}

/// Place and time of a submission.
struct Place {
    pid: u32,
    channel: ChannelId,
    position: u64,
    time: u64,
}

impl Place {
    fn of(s: &Submission) -> Self {
        Self {
            pid: s.at.pid,
            channel: s.channel,
            position: s.position,
            time: s.at.time_ns,
        }
    }
}

impl Making {
    fn give_up(&mut self, decide: &mut Decide<'_>) {
        for (record, entry) in self.items.drain(..) {
            decide.settle(record, entry, None);
        }
    }
}

impl Pending {
    /// Decides that all entries that wait are the program's.
    fn give_up(&mut self, decide: &mut Decide<'_>) {
        for item in self.items.drain(..) {
            decide.settle(item.record, item.entry, None);
        }
    }

    /// Ends the load that goes on, with its last entry.
    fn end(&mut self, decide: &mut Decide<'_>, named: &Named) {
        if let Some(mut open) = self.load.take() {
            let functions: Vec<&Kernel> = { open.code.iter() }
                .flat_map(|start| named.of(*start))
                .collect();
            name(&mut open.load, &functions);
            decide.settle(open.record, open.entry, Some(open.load.part_of));
            decide.ended(open.record, open.load);
        }
    }
}

impl ProcessLoads {
    /// Takes an entry of channels of which a context is made. Returns false if it is no part of that.
    fn making_entry(
        &mut self,
        at: usize,
        decide: &mut Decide<'_>,
        record: u64,
        entry: u32,
        form: &Form,
    ) -> bool {
        let Some(making) = self.making.get_mut(at) else {
            return false;
        };
        if form.other && decide.launches(record, entry) {
            making.give_up(decide);
            self.making.remove(at);
            return false;
        }
        count(&mut making.load, form, true);
        decide.hold(record);
        making.items.push((record, entry));
        self.learn_code(form);
        if let Some((dst, _, true)) = form.copy {
            self.code.insert(chunk(dst));
        }
        if form.is_table() && form.constant {
            let making = self.making.remove(at);
            for (record, entry) in making.items {
                decide.settle(record, entry, Some(PartOf::Context));
            }
            decide.ended(record, making.load);
            for channel in making.channels {
                self.pending.entry(channel).or_default();
            }
        }
        true
    }

    /// Remembers the memory to which an entry writes code.
    fn learn_code(&mut self, form: &Form) {
        if self.code.len() >= MOST_CODE {
            self.code.clear();
        }
        self.code.extend(form.code());
    }

    fn entry(&mut self, channel: ChannelId, decide: &mut Decide<'_>, item: Item) {
        self.named.until(item.time);
        let pending = self.pending.entry(channel).or_default();
        if item.form.other {
            pending.give_up(decide);
            return pending.end(decide, &self.named);
        }
        if !item.form.closes() {
            if item.form.is_idle() && pending.load.is_none() && pending.items.is_empty() {
                return;
            }
            decide.hold(item.record);
            if pending.items.len() >= MOST_ITEMS
                && let Some(oldest) = pending.items.pop_front()
            {
                decide.settle(oldest.record, oldest.entry, None);
            }
            self.learn_code(&item.form);
            self.pending
                .entry(channel)
                .or_default()
                .items
                .push_back(item);
            return;
        }
        self.close(channel, decide, item);
    }

    /// Closes a load by an entry that invalidates caches.
    fn close(&mut self, channel: ChannelId, decide: &mut Decide<'_>, item: Item) {
        let Self {
            pending,
            code,
            named,
            ..
        } = self;
        let Some(mut own) = pending.remove(&channel) else {
            return;
        };
        let before = own.load.take();
        let so_far = before.as_ref().map(|b| b.load.clone());
        let mut members = Members::new(so_far, &item.form, code);
        let mut items: Vec<Item> = own.items.drain(..).collect();
        // The closing entry writes the table itself, or the last write before it is one.
        members.list(&item.form);
        if item.form.constant
            && item.form.writes.is_empty()
            && let Some(last) = items.iter().rposition(|i| !i.form.writes.is_empty())
        {
            let table = items.remove(last);
            members.list(&table.form);
            members.take(&table, decide);
        }
        members.writes(items, decide);
        // What copy engines did for it: variables and code that are large.
        for other in pending.values_mut() {
            let items = std::mem::take(&mut other.items);
            other.items = members.copies(items, decide);
        }
        count(&mut members.load, &item.form, true);
        let Members { load, written, .. } = members;
        let mut code = Vec::new();
        if let Some(before) = before {
            decide.settle(before.record, before.entry, Some(PartOf::Module));
            code = before.code;
        }
        if load.code_writes + load.data_writes > 0 {
            decide.hold(item.record);
            for written in written {
                code.push(written.at.start);
                named.write(written);
            }
            own.load = Some(Open {
                load,
                record: item.record,
                entry: item.entry,
                code,
            });
        }
        pending.insert(channel, own);
    }
}
