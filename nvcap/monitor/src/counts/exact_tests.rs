//! Exact is a promise: what may be missing is said.

use super::channel::Doubt;
use super::fakes::{FakeProcess, RINGS, SECOND};
use super::source::System as _;
use super::tests::{Test, all, doubts, sums};
use super::view::LastSeen;

/// Each second of a process that has all its channels is exact, however its size changes.
#[test]
fn a_process_that_lives_on_is_exact() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 10);
    one.work(1, 1, 10);
    for n in 1..200 {
        one.work(n % 2, 10 * n + 1, 10 * n + 10);
        one.work(1 - n % 2, 10 * n + 1, 10 * n + 10);
        test.host.system.processes.get_mut(&10).unwrap().pages += n % 3;
        let view = test.round();
        assert_eq!(all(&view), sums(20 * n + 20, 20 * n + 20));
        assert_eq!(doubts(&view, 10), []);
    }
}

/// A second channel whose first submissions come just after the search: no reading that lacks them says that it is exact.
#[test]
fn a_channel_that_comes_after_the_search_is_missing_and_said() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 30);
    assert_eq!(doubts(&test.round(), 10), []);
    one.work(1, 1, 30);
    // It is too early to search again.
    test.host.system.now += SECOND / 10;
    test.host.round();
    let view = test.host.view();
    assert_eq!(
        (all(&view), doubts(&view, 10)),
        (sums(30, 30), vec![Doubt::Search])
    );
    let view = test.round();
    assert_eq!((all(&view), doubts(&view, 10)), (sums(60, 60), vec![]));
    // And where the process ends before.
    one.work(2, 1, 30);
    test.host.system.now += SECOND / 10;
    test.host.round();
    assert_eq!(doubts(&test.host.view(), 10), [Doubt::Search]);
    test.end(10);
    let view = test.round();
    assert_eq!(view.ended_unseen, [(LastSeen::Searched, 1)].into());
    assert_eq!(view.blind_ns["ended"], SECOND);
}

/// A ring that could not be proven when it was searched: its positions tell that there is something.
#[test]
fn a_ring_that_could_not_be_read_is_looked_for_again() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 30);
    one.work(1, 1, 30);
    let entries: Vec<u64> = (0..30).map(|n| one.ring_entry(1, n)).collect();
    let hide = || (0..30).for_each(|n| one.set_ring_entry(1, n, 0));
    let show = || (0..30).for_each(|n| one.set_ring_entry(1, n, entries[n as usize]));
    hide();
    let view = test.round();
    assert_eq!(
        (all(&view), doubts(&view, 10)),
        (sums(30, 30), vec![Doubt::Search])
    );
    show();
    let view = test.round();
    assert_eq!((all(&view), doubts(&view, 10)), (sums(60, 60), vec![]));
    // One that is counted is not lost for that, and not counted again.
    hide();
    one.work(2, 1, 5);
    let view = test.round();
    assert_eq!(
        (all(&view), doubts(&view, 10)),
        (sums(65, 65), vec![Doubt::Search, Doubt::Unread])
    );
    show();
    let view = test.round();
    assert_eq!((all(&view), doubts(&view, 10)), (sums(65, 65), vec![]));
    // What never becomes a channel is none in the end.
    one.put(RINGS + 0x3000 * 4 + 0x2088, &[9, 0, 0, 0, 9, 0, 0, 0]);
    for _ in 0..6 {
        test.round();
    }
    assert_eq!(doubts(&test.round(), 10), []);
}

/// A channel whose ring is counted first, as its number could not be proven, counts from its beginning when it is.
#[test]
fn a_number_that_is_proven_later_counts_from_the_beginning() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 3000);
    // One of the newest releases was written over by the next lap.
    let entry = one.ring_entry(0, 2997);
    one.set_ring_entry(0, 2997, one.ring_entry(0, 2990));
    let view = test.round();
    assert_eq!(all(&view), sums(0, 0));
    assert!(doubts(&view, 10).contains(&Doubt::Ring));
    one.set_ring_entry(0, 2997, entry);
    one.work(0, 3001, 3005);
    let view = test.round();
    assert_eq!((all(&view), doubts(&view, 10)), (sums(3005, 3005), vec![]));
    // And one whose number is proven is not counted by its ring for a search that cannot prove it.
    one.set_ring_entry(0, 3002, one.ring_entry(0, 2990));
    one.work(1, 1, 5);
    test.round();
    one.work(0, 3006, 9000);
    test.round();
    let view = test.round();
    assert_eq!((all(&view), doubts(&view, 10)), (sums(9005, 9005), vec![]));
}

/// A process that ends while its ring is counted: laps of the ring may be missing, and its end is not that of an idle one.
#[test]
fn an_end_with_a_number_that_was_not_proven_is_said() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 3000);
    one.set_ring_entry(0, 2997, one.ring_entry(0, 2990));
    let mut view = test.round();
    for _ in 0..8 {
        view = test.round();
    }
    assert_eq!(doubts(&view, 10), [Doubt::Ring]);
    test.end(10);
    let view = test.round();
    assert_eq!(view.ended_unseen, [(LastSeen::Searched, 1)].into());
    assert!(!view.blind_ns.contains_key("ended_idle"));
}

/// Numbers that do not count from the channel's beginning: what was before the first reading is missing.
#[test]
fn a_beginning_that_nobody_saw_is_said() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    for n in 0..1500 {
        one.submit_at(0, n, n as u32 + 700);
    }
    one.done(0, 2199);
    one.put(RINGS + 0x2088, &(1500_u32 % 1024).to_le_bytes());
    let view = test.round();
    assert_eq!(
        (all(&view), doubts(&view, 10)),
        (sums(0, 0), vec![Doubt::Beginning])
    );
    // Of a process that was there before, no more is promised than what came since.
    let mut process = FakeProcess::new(2);
    process.is_new = false;
    let memory = process.memory.clone();
    for n in 0..1500 {
        memory.submit_at(0, n, n as u32 + 700);
    }
    memory.done(0, 2199);
    memory.put(RINGS + 0x2088, &(1500_u32 % 1024).to_le_bytes());
    test.start(20, process);
    assert_eq!(doubts(&test.round(), 20), []);
}

/// The last moments of a process are not seen: the sums of what has ended are the least that there can have been.
#[test]
fn an_end_is_seen_by_nobody() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 30);
    test.start(20, FakeProcess::new(2)).work(0, 1, 5);
    test.round();
    assert!(test.round().ended_unseen.is_empty());
    one.work(0, 31, 60);
    test.end(10);
    let view = test.round();
    assert_eq!(view.ended_unseen, [(LastSeen::Idle, 1)].into());
    assert_eq!(view.blind_ns["ended_idle"], SECOND);
    assert!(!view.blind_ns.contains_key("ended"));
    assert_eq!(doubts(&view, 20), []);
}

/// A newest entry that cannot be read: the reading is that of a second ago.
#[test]
fn a_reading_that_was_not_taken_is_said() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 30);
    test.round();
    one.work(0, 31, 40);
    one.set_ring_entry(0, 39, 0xffff_ffff_ffff_ffff);
    let view = test.round();
    assert_eq!(
        (all(&view), doubts(&view, 10)),
        (sums(30, 30), vec![Doubt::Unread])
    );
    one.work(0, 41, 45);
    let view = test.round();
    assert_eq!((all(&view), doubts(&view, 10)), (sums(45, 45), vec![]));
}

/// A process that got no processor between its first two readings, which follow at once, has not rested: what it does before its end is as much as it
/// can do in the time until then.
#[test]
fn a_process_is_idle_that_rested_for_as_long_as_it_was_not_seen() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    one.work(0, 1, 10);
    test.round();
    one.work(0, 11, 90);
    test.end(10);
    let view = test.round();
    assert_eq!(view.ended_unseen, [(LastSeen::Busy, 1)].into());
    assert_eq!(view.blind_ns["ended"], SECOND);
    // One that had no channel yet when it was found, too.
    let two = test.start(20, FakeProcess::new(2));
    test.round();
    two.work(0, 1, 90);
    test.end(20);
    assert_eq!(test.round().ended_unseen[&LastSeen::Searched], 1);
    // It was seen at rest for a second, and was not seen for three.
    let three = test.start(30, FakeProcess::new(3));
    three.work(0, 1, 10);
    test.round();
    test.round();
    three.work(0, 11, 90);
    test.host.system.now += 2 * SECOND;
    test.end(30);
    let view = test.round();
    let ends = [(LastSeen::Busy, 2), (LastSeen::Searched, 1)];
    assert_eq!(view.ended_unseen, ends.into());
}

/// A process that had ended when it was to be opened: it is said, once.
#[test]
fn an_end_before_the_first_reading_is_said() {
    let mut test = Test::new();
    test.round();
    let ended = FakeProcess {
        ended: true,
        ..FakeProcess::new(1)
    };
    test.start(10, ended);
    test.round();
    let view = test.round();
    assert_eq!(view.ended_unseen, [(LastSeen::Searched, 1)].into());
    assert_eq!(view.blind_ns["ended"], SECOND);
    // Nor is the end of one that was counted said again while it is found still.
    test.end(10);
    test.start(20, FakeProcess::new(2)).work(0, 1, 10);
    test.round();
    let counted = test.host.system.processes.get_mut(&20).unwrap();
    counted.ended = true;
    counted.pages = 0;
    counted.memory.gone();
    test.round();
    let view = test.round();
    assert_eq!(view.ended_unseen.values().sum::<u64>(), 2);
}

/// Workers of one program that were forked have one image. One that began after another had ended has none of its channels, and is counted from its
/// beginning. Of one that was there before, what it did before it was found is not known, which is said.
#[test]
fn a_worker_with_the_image_of_one_that_has_ended() {
    let mut test = Test::new();
    test.start(10, FakeProcess::new(1)).work(0, 1, 30);
    test.round();
    test.end(10);
    test.round();
    let later = FakeProcess {
        began_unix_ns: Some(test.host.system.unix_ns() + SECOND),
        ..FakeProcess::new(1)
    };
    test.start(11, later).work(0, 1, 50);
    test.host.system.now += SECOND;
    let view = test.round();
    assert_eq!((all(&view), doubts(&view, 11)), (sums(80, 80), vec![]));
    let beside = FakeProcess {
        began_unix_ns: Some(1),
        ..FakeProcess::new(1)
    };
    test.end(11);
    test.round();
    let memory = test.start(12, beside);
    memory.work(0, 1, 50);
    let view = test.round();
    assert_eq!(
        (all(&view), doubts(&view, 12)),
        (sums(80, 80), vec![Doubt::Beginning])
    );
    for _ in 0..2 {
        test.round();
    }
    test.end(12);
    let view = test.round();
    assert_eq!(view.ended_unseen[&LastSeen::Searched], 1);
}

/// A ring of which laps may be missing, counted by its number from then on: its sums lack what they lacked.
#[test]
fn what_a_count_lacked_it_lacks_when_it_is_counted_in_another_way() {
    let mut test = Test::new();
    let one = test.start(10, FakeProcess::new(1));
    (0..1500).for_each(|n| one.submit_at(0, n, n as u32 + 700));
    one.done(0, 2199);
    one.put(RINGS + 0x2088, &(1500_u32 % 1024).to_le_bytes());
    let entry = one.ring_entry(0, 1497);
    one.set_ring_entry(0, 1497, one.ring_entry(0, 1490));
    assert!(doubts(&test.round(), 10).contains(&Doubt::Ring));
    one.set_ring_entry(0, 1497, entry);
    let mut view = test.round();
    for _ in 0..8 {
        view = test.round();
    }
    assert_eq!(doubts(&view, 10), [Doubt::Ring, Doubt::Gone]);
    test.end(10);
    let view = test.round();
    assert_eq!(view.ended_unseen, [(LastSeen::Searched, 1)].into());
}
