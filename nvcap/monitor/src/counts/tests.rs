//! Counting on made-up memory: what is counted is what was submitted, whatever processes and channels do.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use super::channel::{Doubt, From, Sums};
use super::fakes::{ENTRIES, Fake, FakeProcess, Fakes, PUSHBUFFERS, RINGS, SECOND};
use super::find::Readable;
use super::host::{Host, HostOptions};
use super::process::Channels;
use super::view::{Key, Refused, View, named};
use nvcap_process::memory::scan::Effort;
use nvcap_process::procfs::mem::ReadMemory;

/// A host and its truth.
pub(super) struct Test {
    pub(super) host: Host<Fakes>,
}

impl Test {
    pub(super) fn new() -> Self {
        Self::with(HostOptions::default())
    }

    fn with(options: HostOptions) -> Self {
        Self {
            host: Host::new(Fakes::default(), options),
        }
    }

    pub(super) fn start(&mut self, pid: u32, process: FakeProcess) -> Fake {
        let memory = process.memory.clone();
        self.host.system.processes.insert(pid, process);
        memory
    }

    pub(super) fn end(&mut self, pid: u32) {
        if let Some(process) = self.host.system.processes.remove(&pid) {
            process.memory.gone.set(true);
        }
    }

    /// Counts a second later.
    pub(super) fn round(&mut self) -> View {
        self.host.system.now += SECOND;
        self.host.round();
        self.host.view()
    }
}

pub(super) fn all(view: &View) -> Sums {
    let mut sums = view.ended.unwrap_or_default();
    for of in view.processes.iter().flat_map(|p| p.gpus.values()) {
        sums.add(of.sums);
    }
    let mut kept = Sums::default();
    view.sums.values().for_each(|of| kept.add(of.sums));
    view.folded.values().for_each(|of| kept.add(of.sums));
    assert_eq!(kept, sums, "by key it is as much");
    sums
}

pub(super) fn sums(submitted: u64, done: u64) -> Sums {
    Sums { submitted, done }
}

#[test]
fn every_submission_is_counted_once() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    let two = test.start(20, FakeProcess::new(2));
    test.host.system.processes.get_mut(&20).unwrap().is_new = false;
    one.work(0, 1, 5);
    one.work(2, 1, 3000);
    two.work(0, 1, 700);
    // The second one was there before: it counts from now on.
    let view = test.round();
    assert_eq!(all(&view), sums(3005, 3005));
    let of = |view: &View, pid: u32| {
        let process = view.processes.iter().find(|p| p.pid == pid).unwrap();
        process.gpus[&Some(0)].clone()
    };
    assert_eq!(of(&view, 20).in_all, Some(sums(700, 700)));
    // Many laps, and some that are pending.
    one.work(2, 3001, 50_000);
    two.submit(0, 701, 1700);
    two.done(0, 1500);
    let view = test.round();
    assert_eq!(all(&view), sums(3005 + 47_000 + 1000, 3005 + 47_000 + 800));
    let seen = of(&view, 20);
    assert_eq!((seen.pending, seen.unfetched), (200, 200));
    let oldest = seen.oldest.unwrap();
    assert_eq!((oldest.least_ns, oldest.most_ns), (0, Some(SECOND)));
    // One that ends keeps its sums, also if it was seen for the last time before.
    two.submit(0, 1701, 1710);
    test.end(20);
    let view = test.round();
    assert_eq!(all(&view), sums(3005 + 47_000 + 1000, 3005 + 47_000 + 800));
    assert_eq!(view.blind_ns["ended"], SECOND);
    assert_eq!((view.processes.len(), view.sums.len()), (1, 1));
}

#[test]
fn a_lap_between_two_readings_is_no_loss() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 100);
    test.round();
    for lap in 1..5 {
        // GP_PUT stands where it stood.
        one.work(0, 100 + (lap - 1) * 1024 + 1, 100 + lap * 1024);
        assert_eq!(all(&test.round()), sums(100 + lap * 1024, 100 + lap * 1024));
    }
}

#[test]
fn a_channel_that_is_made_again() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 100);
    one.work(1, 1, 7);
    assert_eq!(all(&test.round()), sums(107, 107));
    one.remake(0);
    one.work(0, 1, 30);
    // Another one appears at the first look, and is found at the next.
    test.round();
    one.work(0, 31, 40);
    test.round();
    let view = test.round();
    assert_eq!(all(&view), sums(147, 147));
    // What the process has now, and what it had.
    assert_eq!(view.processes[0].gpus[&Some(0)].in_all, Some(sums(47, 47)));
    // What the first one did after its last reading nobody saw.
    assert_eq!(doubts(&view, 10), [Doubt::Gone]);
    // A slot that was unused comes into use.
    one.work(2, 1, 9);
    assert_eq!(all(&test.round()), sums(156, 156));
}

#[test]
fn a_fork_is_not_counted_twice_and_goes_on() {
    let mut test = Test::new();
    let parent = test.start(10, FakeProcess::new(1));
    parent.work(0, 1, 50);
    parent.work(1, 1, 60);
    test.round();
    let child = parent.forked();
    for pid in [11, 12] {
        test.start(
            pid,
            FakeProcess {
                memory: child.forked(),
                ..FakeProcess::new(1)
            },
        );
    }
    let view = test.round();
    assert_eq!(all(&view), sums(110, 110));
    let shares: Vec<_> = view.processes.iter().map(|p| p.shares).collect();
    assert_eq!(shares, [None, Some(10), Some(10)]);
    // A sibling of the same image with channels of its own, at the same addresses, is counted.
    let own = test.start(13, FakeProcess::new(1));
    own.work(0, 1, 5);
    assert_eq!(all(&test.round()), sums(115, 115));
    // The children submit to the same rings: they go on when the parent has ended.
    parent.work(0, 51, 58);
    test.round();
    test.end(10);
    child.work(0, 59, 70);
    test.round();
    let view = test.round();
    assert_eq!(all(&view), sums(135, 135));
    assert_eq!(view.processes[0].shares, None);
    assert_eq!(view.processes[1].shares, Some(11));
    test.end(11);
    child.work(0, 71, 75);
    test.round();
    let view = test.round();
    assert_eq!(all(&view), sums(140, 140));
    assert_eq!(view.processes[0].pid, 12);
    // One that is found when the last of them has ended: what was counted is not counted again.
    test.end(12);
    test.round();
    let late = FakeProcess {
        memory: child.forked(),
        ..FakeProcess::new(1)
    };
    test.start(14, late);
    test.round();
    child.work(0, 76, 80);
    assert_eq!(all(&test.round()), sums(145, 145));
}

/// Memory in which channel 0 goes on with every read of its semaphore.
struct Busy(Fake, Cell<u64>);

impl ReadMemory for Busy {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        if at == Fake::semaphore(0) {
            self.1.set(self.1.get() + 1);
            self.0.work(0, self.1.get(), self.1.get());
        }
        self.0.read_bytes(at, to)
    }
}

#[test]
fn a_fork_of_a_busy_process_is_known() {
    let memory = Fake::new();
    memory.work(0, 1, 50);
    memory.work(1, 1, 60);
    let search = super::find::search(&memory, &Fake::areas(), Effort::Usual);
    let mut channels = Channels::default();
    let readable = Readable::new(&Fake::areas());
    channels.found(&memory, readable, &search, From::Now, 1);
    let busy = Busy(memory.clone(), Cell::new(50));
    assert!(channels.are_in(&busy, &busy));
    assert!(channels.are_in(&memory, &memory.forked()));
    let other = Fake::new();
    other.work(0, 1, 50);
    other.work(1, 1, 40);
    assert!(!channels.are_in(&busy, &other) && !channels.are_in(&memory, &other));
}

#[test]
fn an_exec_is_another_program() {
    let mut test = Test::new();
    let before = test.start(10, FakeProcess::new(1));
    before.work(0, 1, 50);
    assert_eq!(all(&test.round()), sums(50, 50));
    before.gone.set(true);
    let mut process = FakeProcess::new(2);
    // When its process began says nothing of its program.
    process.is_new = false;
    let after = test.start(10, process);
    after.work(0, 1, 70);
    test.round();
    let view = test.round();
    assert_eq!(all(&view), sums(120, 120));
    assert_eq!(view.processes.len(), 1);
    assert_eq!(view.ended, Some(sums(50, 50)));
}

#[test]
fn what_the_semaphore_does_not_count_is_counted_by_the_ring_and_said() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    // Payloads that go up by two.
    for n in 0..20 {
        one.submit_at(0, n, 2 * n as u32 + 2);
    }
    one.done(0, 20);
    let view = test.round();
    let of = &view.processes[0].gpus[&Some(0)];
    assert_eq!((of.by_ring, of.in_all, of.sums), (1, None, sums(0, 0)));
    for n in 20..33 {
        one.submit_at(0, n, 2 * n as u32 + 2);
    }
    one.done(0, 30);
    let view = test.round();
    let of = &view.processes[0].gpus[&Some(0)];
    assert_eq!((of.sums, of.pending), (sums(13, 10), 3));
}

#[test]
fn entries_without_a_release_between_are_parts_of_a_submission() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    // Of each two entries the second releases.
    let submit = |n: u64| {
        one.submit_at(0, 2 * n, 0);
        let at = PUSHBUFFERS + 2 * n % ENTRIES * 32;
        one.put(at, &[0; 20]);
        one.submit_at(0, 2 * n + 1, n as u32 + 1);
    };
    (0..40).for_each(submit);
    one.done(0, 40);
    // GP_GET counts entries.
    one.put(RINGS + 0x2088, &80_u32.to_le_bytes());
    let view = test.round();
    let of = &view.processes[0].gpus[&Some(0)];
    assert_eq!((of.by_ring, of.sums), (0, sums(40, 40)));
    (40..1500).for_each(submit);
    one.done(0, 1498);
    let view = test.round();
    let of = &view.processes[0].gpus[&Some(0)];
    assert_eq!((of.sums, of.pending), (sums(1500, 1498), 2));
}

#[test]
fn one_that_may_not_be_read_is_named_and_the_others_go_on() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 5);
    let mut process = FakeProcess::new(2);
    process.refused = true;
    test.start(20, process);
    test.round();
    let view = test.round();
    assert_eq!(all(&view), sums(5, 5));
    assert_eq!(view.refused.keys().collect::<Vec<_>>(), [&20]);
    assert_eq!(view.blind_ns["unreadable"], SECOND);
    // It may be read later: nobody knows what it did before.
    let it = test.host.system.processes.get_mut(&20).unwrap();
    it.refused = false;
    let memory = it.memory.clone();
    memory.work(0, 1, 1000);
    for _ in 0..40 {
        test.round();
    }
    memory.work(0, 1001, 1010);
    let view = test.round();
    assert_eq!((all(&view), view.refused.len()), (sums(15, 15), 0));
}

#[test]
fn an_idle_process_costs_a_few_reads() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    for slot in 0..20 {
        one.work(slot, 1, 50);
    }
    test.round();
    test.round();
    let before = one.reads.get();
    for _ in 0..100 {
        test.round();
    }
    let reads = one.reads.get() - before;
    // Their semaphores in one, GP_GET and GP_PUT of each and of the unused slots behind them.
    assert!(reads <= 100 * (1 + 20 + 24), "{reads}");
}

#[test]
fn garbage_is_no_reason_to_panic_or_to_go_back() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 50);
    one.work(1, 1, 50);
    let mut last = all(&test.round()).submitted;
    let mut random = 1_u64;
    for n in 0..3000_u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(n | 1);
        let places = [
            RINGS + 8 * (random >> 40) % 0x800,
            RINGS + 0x2088,
            RINGS + 0x3000 + 0x2088,
            Fake::semaphore(0),
            PUSHBUFFERS + (random >> 33) % 0x8000 / 4 * 4,
        ];
        let at = places[(random >> 60) as usize % places.len()];
        one.put(at, &((random >> 20) as u32).to_le_bytes());
        let now = all(&test.round()).submitted;
        assert!(now >= last, "{now} after {last}");
        last = now;
    }
}

/// A thousand containers come and go, and processes by the thousand: no sum ever goes down, and what is kept of them is bounded.
#[test]
fn what_has_ended_is_kept_by_its_owner_and_then_folded() {
    for by_process in [false, true] {
        let mut test = Test::with(HostOptions {
            by_process,
            most: 50,
            keep: Duration::from_secs(20),
            ..HostOptions::default()
        });
        let (mut truth, mut before) = (0, BTreeMap::<Key, u64>::new());
        for n in 0..400_u32 {
            let mut process = FakeProcess::new(n);
            if n % 4 != 0 {
                process.owner.container = format!("c{}", n / 10);
            }
            let memory = test.start(100 + n, process);
            memory.work(0, 1, u64::from(n) + 1);
            truth += u64::from(n) + 1;
            let view = test.round();
            assert_eq!(all(&view).submitted, truth);
            assert!(view.sums.len() <= 51, "{}", view.sums.len());
            for (key, counted) in &view.sums {
                let last = before.get(key).copied().unwrap_or(0);
                assert!(counted.sums.submitted >= last, "{key:?}");
                assert!(counted.created_unix_ns > 0 && counted.created_unix_ns <= view.unix_ns);
            }
            before = { view.sums.iter() }
                .map(|(key, counted)| (key.clone(), counted.sums.submitted))
                .collect();
            if n >= 3 {
                test.end(100 + n - 3);
            }
        }
        for _ in 0..30 {
            test.round();
        }
        let view = test.round();
        assert_eq!(all(&view).submitted, truth);
        assert!(
            !view.folded.is_empty() && view.sums.len() <= 4,
            "{:?}",
            view.sums
        );
    }
}

/// A lone kernel that runs on is pending, although the tracking semaphore has its number.
#[test]
fn a_kernel_that_runs_is_not_done() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 50);
    test.round();
    for (number, program) in [(51, Some(0x7f00_0000_0000)), (52, None)] {
        let word = Fake::word_of(3);
        one.submit_work(0, number, program, word);
        one.done(0, number.into());
        for _ in 0..3 {
            let view = test.round();
            assert_eq!(all(&view), sums(number.into(), u64::from(number) - 1));
        }
        let view = test.round();
        let of = &view.processes[0].gpus[&Some(0)];
        assert_eq!(of.pending, 1);
        one.ended(word, number);
        assert_eq!(all(&test.round()), sums(number.into(), number.into()));
    }
    // With more work behind it: the semaphore has the number of the one that runs.
    let word = Fake::word_of(3);
    one.submit_work(0, 53, Some(0x7f00_0000_0000), word);
    one.done(0, 53);
    one.submit(0, 54, 56);
    for _ in 0..3 {
        assert_eq!(all(&test.round()), sums(56, 52));
    }
    one.ended(word, 53);
    assert_eq!(all(&test.round()), sums(56, 53));
    one.done(0, 55);
    assert_eq!(all(&test.round()), sums(56, 55));
    // From the first look on, too.
    for (pid, behind) in [(20, 0), (21, 3)] {
        let other = FakeProcess::new(pid - 18);
        let memory = other.memory.clone();
        memory.work(0, 1, 4);
        memory.submit_work(0, 5, Some(0x7f00_0000_0000), Fake::word_of(4));
        memory.done(0, 5);
        memory.submit(0, 6, 5 + behind);
        test.start(pid, other);
        let view = test.round();
        let of = &view.processes.last().unwrap().gpus[&Some(0)];
        assert_eq!(of.pending, 1 + behind);
    }
}

/// Tests that processes which may not be looked into are named, count as time in which something may have passed unseen, and go when
/// they end; the others are counted.
#[test]
fn processes_that_may_not_be_looked_into() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 50);
    let mut shut = FakeProcess::new(2);
    shut.refused = true;
    test.start(20, shut);
    let stranger = Refused {
        name: "sshd".to_owned(),
        user: "root".to_owned(),
        why: "no".to_owned(),
        uses_gpu: false,
    };
    test.host.system.hidden.insert(30, stranger.clone());
    test.round();
    let view = test.round();
    assert_eq!(all(&view), sums(50, 50));
    let pids: Vec<u32> = view.refused.keys().copied().collect();
    assert_eq!(pids, [20, 30]);
    assert_eq!(view.refused[&30], stranger);
    assert_eq!(named(&view.refused), "p20 20 of ann, sshd 30 of root");
    // One was known before the first reading and the other since: two seconds and one.
    assert_eq!(view.blind_ns["unreadable"], 3 * SECOND);
    test.end(20);
    test.host.system.hidden.clear();
    let view = test.round();
    assert!(view.refused.is_empty());
    assert_eq!(view.blind_ns["unreadable"], 3 * SECOND);
    test.round();
    assert_eq!(test.host.view().blind_ns["unreadable"], 3 * SECOND);
}

#[test]
fn many_that_may_not_be_looked_into_are_not_all_named() {
    let one = |pid: u32| {
        let refused = Refused {
            name: format!("p{pid}"),
            uses_gpu: pid == 11,
            ..Refused::default()
        };
        (pid, refused)
    };
    let text = named(&(1..12).map(one).collect());
    assert_eq!(
        text,
        "p11 11, p1 1, p2 2, p3 3, p4 4, p5 5, p6 6, p7 7 and 3 more"
    );
    assert_eq!(named(&BTreeMap::new()), "");
}

/// A process that executes another program under its name goes on with its sums: no two keys have the same labels.
#[test]
fn another_program_of_the_same_name() {
    let options = HostOptions {
        by_process: true,
        ..HostOptions::default()
    };
    let mut test = Test::with(options);
    test.start(10, FakeProcess::new(1)).work(0, 1, 5);
    test.round();
    test.host.system.processes[&10].memory.gone.set(true);
    test.start(10, FakeProcess::new(2)).work(0, 1, 7);
    test.round();
    let view = test.round();
    assert_eq!(all(&view), sums(12, 12));
    let keys: Vec<&Key> = view.sums.keys().collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
}

/// Submissions that are pending when a channel is read for the last time are not seen to be done.
#[test]
fn what_was_pending_at_the_end() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.submit(0, 1, 9);
    one.done(0, 4);
    one.work(1, 1, 6);
    let view = test.round();
    assert!(view.left.is_empty());
    // Another channel comes to the place of the second one, with nothing pending; then all end.
    one.remake(1);
    one.work(1, 1, 2);
    for _ in 0..4 {
        test.round();
    }
    assert!(test.host.view().left.values().all(|left| *left == 0));
    test.end(10);
    let view = test.round();
    let left: Vec<u64> = view.left.values().copied().collect();
    assert_eq!(left, [5]);
}

/// Returns the reasons why the counts of a process on its GPU are not exact.
pub(super) fn doubts(view: &View, pid: u32) -> Vec<Doubt> {
    let process = view.processes.iter().find(|p| p.pid == pid).unwrap();
    let of = process.gpus.get(&Some(0)).unwrap();
    of.doubts.iter().copied().collect()
}
