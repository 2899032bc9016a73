use super::*;
use crate::switches::made_up::switch;
use crate::switches::record::Tag;

fn of(records: &[(Tag, u32, u64)]) -> Residence {
    let mut residence = Residence::new(1_000);
    for (tag, pid, time) in records {
        residence.take(&switch(*tag, *pid, *time));
    }
    residence
}

fn held(sums: &EngineSums, pid: u32) -> Held {
    let context = pid * 10;
    sums.holders
        .get(&(Who::Process(pid), context))
        .copied()
        .unwrap_or_default()
}

/// Checks that all times of an engine add up to the measured time.
fn adds_up(sums: &EngineSums) {
    let held: u64 = sums.holders.values().map(|h| h.resident_ns).sum();
    let all = held + sums.switch_ns + sums.nobody_ns + sums.unknown_ns;
    assert_eq!(all, sums.ns, "{sums:?}");
}

#[test]
fn slices_switches_and_what_lasts() {
    // Process 1 had the engine before; 2 has it at the end.
    let residence = of(&[
        (Tag::END, 1, 1_100),
        (Tag::BEGIN, 2, 1_185),
        (Tag::END, 2, 2_000),
        (Tag::BEGIN, 1, 2_085),
        (Tag::END, 1, 3_000),
        (Tag::BEGIN, 2, 3_085),
    ]);
    let [sums] = &residence.sums(4_000)[..] else {
        panic!("one engine");
    };
    adds_up(sums);
    assert_eq!((sums.ns, sums.switches, sums.switch_ns), (3_000, 3, 255));
    let expected = Held {
        resident_ns: 100 + 915,
        slices: 2,
        longest_ns: 915,
    };
    assert_eq!(held(sums, 1), expected);
    assert_eq!(held(sums, 2).resident_ns, 815 + 915);
    assert_eq!(
        (sums.nobody_ns, sums.unknown_ns, sums.incomplete),
        (0, 0, 0)
    );
}

#[test]
fn nobody_has_an_engine_before_the_first_begin_and_in_long_pauses() {
    let long = 1_500 + LONGEST_SWITCH_NS + 1;
    let records = [
        (Tag::BEGIN, 1, 1_400),
        (Tag::END, 1, 1_500),
        (Tag::BEGIN, 1, long),
        (Tag::END, 1, long + 10),
    ];
    let sums = &of(&records).sums(long + 30)[0];
    adds_up(sums);
    assert_eq!((sums.switches, sums.switch_ns), (0, 0));
    assert_eq!(sums.nobody_ns, 400 + LONGEST_SWITCH_NS + 1 + 20);
}

#[test]
fn times_with_missing_records_are_unknown() {
    let mut residence = of(&[(Tag::BEGIN, 1, 1_100)]);
    residence.lost();
    residence.take(&switch(Tag::END, 2, 5_000));
    residence.take(&switch(Tag::BEGIN, 1, 5_085));
    let sums = &residence.sums(6_000)[0];
    adds_up(sums);
    assert_eq!(sums.unknown_ns, 3_900);
    assert_eq!(
        (held(sums, 1).resident_ns, held(sums, 2).resident_ns),
        (915, 0)
    );
    residence.lost();
    assert_eq!(residence.sums(7_000)[0].unknown_ns, 3_900 + 1_915);
}

#[test]
fn an_engine_that_is_first_told_of_behind_a_loss_was_unknown_before() {
    for (tag, known) in [(Tag::END, 0), (Tag::BEGIN, 1_000)] {
        let mut residence = Residence::new(1_000);
        residence.lost();
        residence.take(&switch(tag, 1, 5_000));
        let sums = &residence.sums(6_000)[0];
        adds_up(sums);
        assert_eq!((sums.unknown_ns, held(sums, 1).resident_ns), (4_000, known));
    }
}

#[test]
fn the_end_of_a_process_that_is_gone_is_its_own() {
    let mut gone = switch(Tag::END, 0, 2_000);
    gone.context = 0;
    let mut residence = of(&[(Tag::BEGIN, 1, 1_000)]);
    residence.take(&gone);
    let sums = &residence.sums(2_000)[0];
    adds_up(sums);
    assert_eq!(held(sums, 1).resident_ns, 1_000);
    assert_eq!(sums.incomplete, 0);
}

#[test]
fn the_end_of_a_context_that_another_user_has_is_no_end_of_a_process_slice() {
    let hidden = Switch {
        context: 0x77,
        ..switch(Tag::END, 0, 2_000)
    };
    let mut residence = of(&[(Tag::BEGIN, 1, 1_000)]);
    residence.take(&hidden);
    let sums = &residence.sums(2_000)[0];
    adds_up(sums);
    assert_eq!((held(sums, 1).resident_ns, sums.incomplete), (0, 1));
    assert_eq!(sums.unknown_ns, 1_000);
}

#[test]
fn sums_of_very_many_holders_are_bounded() {
    let mut residence = Residence::new(0);
    for (pid, time) in (1..).zip((0..MOST_HOLDERS as u64 + 3).map(|i| 100 * i)) {
        residence.take(&switch(Tag::BEGIN, pid, time));
        residence.take(&switch(Tag::END, pid, time + 100));
    }
    let now = 100 * (MOST_HOLDERS as u64 + 3);
    let sums = &residence.sums(now)[0];
    adds_up(sums);
    assert_eq!((sums.holders.len(), sums.unknown_ns), (MOST_HOLDERS, 300));
    residence.restart(now);
    residence.take(&switch(Tag::BEGIN, 7, now));
    let sums = &residence.sums(now + 50)[0];
    assert_eq!(held(sums, 7).resident_ns, 50);
}

/// Test of as many MIG instances as a file can name, and of as many losses and ends as a record can have. Looking at each instance for each
/// of them would take some ten thousand million looks.
#[test]
fn losses_and_ends_do_not_look_at_all_engines() {
    let mut residence = Residence::new(0);
    for number in 0..=u16::MAX {
        let instance = Some(Instance {
            gpu: number as u8,
            compute: Some((number >> 8) as u8),
        });
        let begin = switch(Tag::BEGIN, 7, 5);
        residence.take(&Switch { instance, ..begin });
    }
    for pid in 0..1 << 18 {
        residence.ended(1_000 + pid, 10);
    }
    assert_eq!(residence.holding().count(), 1 << 16);
    residence.ended(7, 10);
    for _ in 0..1 << 18 {
        residence.lost();
    }
    let sums = residence.sums(30);
    assert_eq!(sums.len(), 1 << 16);
    let right = |e: &EngineSums| held(e, 7).resident_ns == 5 && e.unknown_ns == 20;
    assert!(sums.iter().all(right));
}

#[test]
fn nobody_has_what_a_process_had_that_has_ended() {
    let mut residence = of(&[(Tag::BEGIN, 1, 1_000)]);
    residence.ended(2, 3_000);
    assert_eq!(residence.holding().collect::<Vec<_>>(), [1]);
    residence.ended(1, 3_000);
    assert_eq!(residence.holding().count(), 0);
    let sums = &residence.sums(9_000)[0];
    adds_up(sums);
    assert_eq!((held(sums, 1).resident_ns, sums.nobody_ns), (2_000, 6_000));
    residence.take(&switch(Tag::BEGIN, 2, 9_000 + LONGEST_SWITCH_NS));
    let sums = &residence.sums(9_000 + LONGEST_SWITCH_NS)[0];
    adds_up(sums);
    assert_eq!((sums.switches, sums.incomplete), (0, 0));
}

#[test]
fn what_does_not_fit_is_counted_and_its_time_unknown() {
    let records = [
        (Tag::BEGIN, 1, 1_000),
        (Tag::BEGIN, 2, 2_000),
        (Tag::END, 3, 3_000),
        (Tag::END, 3, 4_000),
        (Tag(0x55), 9, 4_500),
    ];
    let sums = &of(&records).sums(4_000)[0];
    adds_up(sums);
    assert_eq!((sums.incomplete, sums.unknown_ns), (3, 3_000));
}

#[test]
fn instances_are_engines_of_their_own() {
    let mut residence = Residence::new(0);
    for gpu in [1, 2] {
        let instance = Some(Instance {
            gpu,
            compute: Some(0),
        });
        let begin = switch(Tag::BEGIN, gpu.into(), 0);
        residence.take(&Switch { instance, ..begin });
    }
    let sums = residence.sums(100);
    let all: Vec<_> = sums.iter().map(|s| s.instance.map(|i| i.gpu)).collect();
    assert_eq!(all, [Some(1), Some(2)]);
    for (engine, pid) in sums.iter().zip(1..) {
        adds_up(engine);
        assert_eq!(held(engine, pid).resident_ns, 100);
    }
}

#[test]
fn sums_begin_anew_and_the_holder_stays_known() {
    let mut residence = of(&[(Tag::BEGIN, 1, 1_000)]);
    residence.restart(5_000);
    let sums = &residence.sums(6_000)[0];
    adds_up(sums);
    assert_eq!((sums.ns, held(sums, 1).resident_ns), (1_000, 1_000));
    assert!(Residence::new(0).sums(1_000).is_empty());
}

#[test]
fn times_that_go_back_take_nothing_away() {
    let records = [
        (Tag::BEGIN, 1, 9_000),
        (Tag::END, 1, 3_000),
        (Tag::BEGIN, 1, u64::MAX),
        (Tag::END, 1, 0),
    ];
    adds_up(&of(&records).sums(0)[0]);
}

/// Makes a record of a process of instance 1, or of another user's context 5, whose instance the driver does not report.
fn of_mig(tag: Tag, is_placed: bool, time_ns: u64) -> Switch {
    let instance = Some(Instance {
        gpu: 1,
        compute: None,
    });
    match is_placed {
        true => Switch {
            instance,
            ..switch(tag, 1, time_ns)
        },
        false => Switch {
            context: 5,
            ..switch(tag, 0, time_ns)
        },
    }
}

#[test]
fn records_without_an_instance_make_no_engine_beside_instances() {
    let mut residence = Residence::new(0);
    residence.take(&of_mig(Tag::BEGIN, false, 10));
    residence.take(&of_mig(Tag::END, false, 20));
    for (tag, is_placed, time_ns) in [
        (Tag::BEGIN, true, 100),
        (Tag::BEGIN, false, 150),
        // It cannot end the slice of another engine.
        (Tag::END, false, 180),
        (Tag::END, true, 300),
        (Tag::BEGIN, true, 400),
        (Tag::END, true, 600),
        // It begins on an engine that nobody had: this one, or another.
        (Tag::BEGIN, false, 650),
        (Tag::END, false, 690),
        (Tag::BEGIN, true, 700),
        // It ends a slice that was not reported: the process's, or another one's.
        (Tag::END, false, 750),
        (Tag::END, true, 800),
        (Tag::BEGIN, true, 900),
    ] {
        residence.take(&of_mig(tag, is_placed, time_ns));
    }
    let all = residence.sums(1_000);
    assert_eq!(all.len(), 1, "{all:?}");
    adds_up(&all[0]);
    assert!(all[0].instance.is_some());
    assert_eq!(held(&all[0], 1).resident_ns, 200 + 200 + 100);
    assert_eq!(all[0].unknown_ns, 100 + 100 + 100);
    assert_eq!((all[0].switches, all[0].incomplete), (2, 0));
}

#[test]
fn what_a_process_had_before_there_were_instances_is_kept() {
    let mut residence = of(&[(Tag::BEGIN, 7, 1_000), (Tag::END, 7, 2_000)]);
    residence.take(&of_mig(Tag::BEGIN, true, 3_000));
    let all = residence.sums(4_000);
    assert_eq!((all.len(), held(&all[0], 7).resident_ns), (2, 1_000));
}
