//! Processes whose memory does not answer: nobody else waits for them, and nothing is lost or counted twice.

use super::fakes::{FakeProcess, SECOND};
use super::tests::{Test, all, sums};

/// A process whose memory does not answer is given up: what it had counts, the others are counted on, and it is counted again when it answers.
#[test]
fn a_process_that_does_not_answer_is_given_up_alone() {
    let mut test = Test::new();
    let (one, two) = (
        test.start(10, FakeProcess::new(1)),
        test.start(20, FakeProcess::new(2)),
    );
    one.work(0, 1, 5);
    two.work(0, 1, 7);
    assert_eq!(all(&test.round()), sums(12, 12));
    let answers = |test: &mut Test, answers: bool| {
        let process = test.host.system.processes.get_mut(&10).unwrap();
        process.given_up = !answers;
        process.memory.gone.set(!answers);
    };
    answers(&mut test, false);
    two.work(0, 8, 20);
    let view = test.round();
    assert_eq!(all(&view), sums(25, 25));
    let view = test.round();
    assert_eq!((view.given_up, view.refused.len()), (1, 1));
    two.work(0, 21, 30);
    answers(&mut test, true);
    // It is asked again after half a minute.
    test.host.system.now += 31 * SECOND;
    let view = test.round();
    assert_eq!((view.given_up, all(&view)), (0, sums(35, 35)));
    one.work(0, 6, 9);
    assert_eq!(all(&test.round()), sums(39, 39));
}

/// A reading is given up in its middle: its channels' sums stay, and when the process answers again, at once or later, it is counted from then on.
#[test]
fn a_reading_that_is_given_up_loses_no_sums_and_counts_nothing_twice() {
    for at_once in [true, false] {
        let mut test = Test::new();
        let one = test.start(10, FakeProcess::new(1));
        one.work(0, 1, 5);
        one.submit(0, 6, 8);
        assert_eq!(all(&test.round()), sums(8, 5));
        one.gives_up.set(true);
        one.work(0, 6, 9);
        test.host.system.processes.get_mut(&10).unwrap().given_up = !at_once;
        let view = test.round();
        assert_eq!(
            (all(&view), view.processes.len()),
            (sums(8, 5), usize::from(at_once))
        );
        assert_eq!(
            view.blind_ns["ended"], SECOND,
            "what it did meanwhile was not seen"
        );
        one.gives_up.set(false);
        test.host.system.processes.get_mut(&10).unwrap().given_up = false;
        test.host.system.now += 31 * SECOND;
        let view = test.round();
        assert_eq!((view.given_up, all(&view)), (0, sums(8, 5)));
        one.work(0, 10, 12);
        assert_eq!(all(&test.round()), sums(11, 8));
    }
}
