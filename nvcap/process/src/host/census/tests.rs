//! Tests of the census against processes that the tests start.

use super::*;
use nvcap_waiting::{self, Sleeper};
use std::sync::Mutex;

/// Processes that count as using GPU 3, and processes that count as hidden.
static USING: Mutex<(Vec<u32>, Vec<u32>)> = Mutex::new((Vec::new(), Vec::new()));

fn said(pid: u32) -> io::Result<Uses> {
    let (using, hidden) = &*USING.lock().unwrap();
    if hidden.contains(&pid) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(Uses {
        gpus: using.contains(&pid).then_some(3).into_iter().collect(),
        mapped: true,
    })
}

/// Makes rounds until something changes for these processes.
fn changes_of(census: &mut Census, pids: &[u32]) -> Vec<Change> {
    let mut all = Vec::new();
    nvcap_waiting::until("a round with a change", || {
        all = census.round();
        all.retain(|c| {
            let (Change::Came(f) | Change::Differs(f) | Change::Hidden(f, _)) = c else {
                return matches!(c, Change::Went(pid) if pids.contains(pid));
            };
            pids.contains(&f.pid)
        });
        !all.is_empty()
    });
    all
}

#[test]
fn processes_that_come_and_go() {
    let (mut old, mut other) = (Sleeper::start(), Sleeper::start());
    USING.lock().unwrap().0.push(old.id());
    let choice = Choice {
        comm: vec!["sleep".into()],
        ..Choice::default()
    };
    let mut census = Census::new(Host::new(std::path::Path::new("/")), choice);
    census.look_into = said;
    // The processes are children of this one.
    census.own = u32::MAX;
    let first = changes_of(&mut census, &[old.id(), other.id()]);
    assert!(
        matches!(&first[..], [Change::Came(f)] if f.pid == old.id() && f.was_there && f.identity.gpus[0].minor == 3),
        "{first:?}"
    );
    assert!(census.len() > 2);
    let mut new = Sleeper::start();
    let mut hidden = Sleeper::start();
    USING.lock().unwrap().0.push(new.id());
    USING.lock().unwrap().1.push(hidden.id());
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(changes_of(&mut census, &[new.id(), hidden.id()]));
    }
    for change in &seen {
        match change {
            Change::Came(f) => assert!(f.pid == new.id() && !f.was_there),
            Change::Hidden(f, why) => {
                assert!(f.pid == hidden.id() && f.identity.comm == "sleep");
                assert_eq!(why, "permission denied");
            }
            other => panic!("{other:?}"),
        }
    }
    for child in [&mut old, &mut other, &mut new, &mut hidden] {
        child.end();
    }
    let mut gone = Vec::new();
    census.next_sweep = Instant::now();
    while gone.len() < 3 {
        let pids = [old.id(), new.id(), other.id(), hidden.id()];
        gone.extend(changes_of(&mut census, &pids));
    }
    let told = [old.id(), new.id(), hidden.id()];
    assert!(
        gone.iter()
            .all(|c| matches!(c, Change::Went(pid) if told.contains(pid))),
        "{gone:?}"
    );
}

/// Test that a process which is reported and then found by its number has come once. A process that ended before anything was read of it is
/// reported as missed, unless it used other GPUs.
#[test]
fn processes_that_are_told_of() {
    let (long, mut short) = (Sleeper::start(), Sleeper::start());
    let choice = Choice {
        comm: vec!["sleep".into()],
        gpu: vec!["3".into()],
        ..Choice::default()
    };
    let mut census = Census::new(Host::new(std::path::Path::new("/")), choice);
    census.own = u32::MAX;
    census.look_into = |_| {
        Ok(Uses {
            gpus: [3].into(),
            mapped: true,
        })
    };
    let ended = short.id();
    short.end();
    let begun = Instant::now();
    let mut changes = census.told(&[(long.id(), 3), (ended, 3)], true, begun);
    assert!(matches!(&changes[..], [Change::NotAllTold]), "{changes:?}");
    let just_before = Duration::from_nanos(1);
    assert!(
        census
            .told(&[], true, begun + SETTLED - just_before)
            .is_empty()
    );
    changes.extend(census.told(&[], true, begun + SETTLED));
    let came = |c: &Change| matches!(c, Change::Came(f) if f.pid == long.id());
    let missed =
        |c: &Change| matches!(c, Change::Missed(f) if f.pid == ended && f.identity.comm.is_empty());
    let lost = |c: &Change| matches!(c, Change::NotAllTold);
    assert!(
        changes.len() == 3
            && changes.iter().any(came)
            && changes.iter().any(missed)
            && changes.iter().any(lost),
        "{changes:?}"
    );
    changes.clear();
    let start = Stat::of_process(long.id()).unwrap().start.unwrap();
    census.born(long.id(), start, Some(Instant::now()), &mut changes);
    census.look(long.id(), false, &mut changes);
    changes.extend(census.told(&[(ended, 1)], false, begun));
    changes.extend(census.told(&[], false, begun + AT_LATEST));
    assert!(changes.is_empty(), "{changes:?}");
}

/// Makes a census of all processes, including this one, that looks into them with `look_into`.
fn looking_with(look_into: fn(u32) -> io::Result<Uses>) -> Census {
    let mut census = Census::new(Host::new(std::path::Path::new("/")), Choice::default());
    census.own = u32::MAX;
    census.look_into = look_into;
    census
}

/// Test that a process which unmapped its memory before it was looked at may have submitted.
#[test]
fn a_process_that_has_given_its_memory_up_may_have_submitted() {
    let child = Sleeper::start();
    let mut census = looking_with(|_| {
        Ok(Uses {
            gpus: [3].into(),
            mapped: false,
        })
    });
    let begun = Instant::now();
    assert!(census.told(&[(child.id(), 3)], false, begun).is_empty());
    let changes = census.told(&[], false, begun + AT_LATEST);
    assert!(
        matches!(&changes[..], [Change::Came(f)] if f.pid == child.id() && f.can_submit),
        "{changes:?}"
    );
}

/// Test that a process which keeps mapping memory is looked at nevertheless, after some time at the latest.
#[test]
fn a_process_that_maps_all_the_time_is_looked_at() {
    let child = Sleeper::start();
    let mut census = looking_with(|_| {
        Ok(Uses {
            gpus: [3].into(),
            mapped: true,
        })
    });
    let begun = Instant::now();
    let mut now = begun;
    while now < begun + AT_LATEST {
        let changes = census.told(&[(child.id(), 3)], false, now);
        assert!(changes.is_empty(), "{changes:?}");
        now += SETTLED / 2;
    }
    let changes = census.told(&[(child.id(), 3)], false, now);
    assert!(
        matches!(&changes[..], [Change::Came(f)] if f.pid == child.id()),
        "{changes:?}"
    );
}

/// Test that a process which may not be looked into, and uses no GPU by the driver's answer, is not reported until the driver or the kernel
/// reports that it uses one.
#[test]
fn hidden_processes_that_use_none() {
    /// Processes that the driver reports.
    static USERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
    let (asked, mapping) = (Sleeper::start(), Sleeper::start());
    let mut census = looking_with(|_| Err(io::ErrorKind::PermissionDenied.into()));
    census.ask_driver = || Some(USERS.lock().unwrap().clone());
    let of = |changes: &[Change]| -> Vec<u32> {
        let ours = [asked.id(), mapping.id()];
        let hidden = changes.iter().filter_map(|c| match c {
            Change::Hidden(f, _) => Some(f.pid),
            _ => None,
        });
        hidden.filter(|pid| ours.contains(pid)).collect()
    };
    assert!(of(&census.round()).is_empty());
    census.opened = true;
    assert!(of(&census.last()).is_empty());
    USERS.lock().unwrap().insert(asked.id());
    census.opened = true;
    assert_eq!(of(&census.last()), [asked.id()]);
    census.opened = true;
    assert!(of(&census.last()).is_empty(), "once");
    let begun = Instant::now();
    assert!(of(&census.told(&[(mapping.id(), 0)], false, begun)).is_empty());
    let changes = census.told(&[], false, begun + AT_LATEST);
    assert_eq!(of(&changes), [mapping.id()]);
}

/// Test of a driver that does not answer: a process that may not be looked into may use a GPU.
#[test]
fn hidden_processes_of_a_silent_driver() {
    let child = Sleeper::start();
    let mut census = looking_with(|_| Err(io::ErrorKind::PermissionDenied.into()));
    let is_hidden = |c: &Change| matches!(c, Change::Hidden(f, _) if f.pid == child.id());
    assert!(census.round().iter().any(is_hidden));
}

/// Test of a process that was hidden, may be looked into later, and uses no GPU: it is reported as gone.
#[test]
fn what_was_hidden_and_uses_none() {
    let child = Sleeper::start();
    let mut census = Census::new(Host::new(std::path::Path::new("/")), Choice::default());
    census.own = u32::MAX;
    census.look_into = |_| Err(io::ErrorKind::PermissionDenied.into());
    let first = census.round();
    let is_hidden = |c: &Change| matches!(c, Change::Hidden(f, _) if f.pid == child.id());
    assert_eq!(first.iter().filter(|c| is_hidden(c)).count(), 1);
    census.look_into = |_| Ok(Uses::default());
    for goes in [true, false] {
        let mut changes = Vec::new();
        census.look(child.id(), false, &mut changes);
        let went = matches!(&changes[..], [Change::Went(pid)] if *pid == child.id());
        assert!(
            went == goes && changes.len() == usize::from(goes),
            "{changes:?}"
        );
    }
}

#[test]
fn nvcap_s_own_are_none_of_them() {
    let child = Sleeper::start();
    let mut census = Census::new(Host::new(std::path::Path::new("/")), Choice::default());
    census.look_into = |_| {
        Ok(Uses {
            gpus: [0].into(),
            mapped: true,
        })
    };
    let first = census.round();
    let came = |pid: u32| {
        first
            .iter()
            .any(|c| matches!(c, Change::Came(f) if f.pid == pid))
    };
    assert!(!came(child.id()) && !came(std::process::id()));
}
