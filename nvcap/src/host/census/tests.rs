//! Tests of the census, against processes of their own.

use super::*;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::thread::sleep;

/// Processes that are said to use GPU 3, and those that are said not to be for everybody's eyes.
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

fn child() -> Child {
    Command::new("sleep").arg("60").spawn().unwrap()
}

/// Rounds until something of these processes changes.
fn changes_of(census: &mut Census, pids: &[u32]) -> Vec<Change> {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        let mut all = census.round();
        all.retain(|c| {
            let (Change::Came(f) | Change::Differs(f) | Change::Hidden(f, _)) = c else {
                return matches!(c, Change::Went(pid) if pids.contains(pid));
            };
            pids.contains(&f.pid)
        });
        if !all.is_empty() {
            return all;
        }
        sleep(Duration::from_millis(20));
    }
    Vec::new()
}

#[test]
fn processes_that_come_and_go() {
    let (mut old, mut other) = (child(), child());
    USING.lock().unwrap().0.push(old.id());
    let choice = Choice {
        comm: vec!["sleep".into()],
        ..Choice::default()
    };
    let mut census = Census::new(Host::new(std::path::Path::new("/")), choice);
    census.look_into = said;
    // They are children of this one.
    census.own = u32::MAX;
    let first = changes_of(&mut census, &[old.id(), other.id()]);
    assert!(
        matches!(&first[..], [Change::Came(f)] if f.pid == old.id() && f.was_there && f.identity.gpus[0].minor == 3),
        "{first:?}"
    );
    assert!(census.len() > 2);
    let mut new = child();
    let mut hidden = child();
    USING.lock().unwrap().0.push(new.id());
    USING.lock().unwrap().1.push(hidden.id());
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let more = changes_of(&mut census, &[new.id(), hidden.id()]);
        assert!(!more.is_empty(), "{seen:?}");
        seen.extend(more);
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
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut gone = Vec::new();
    census.next_sweep = Instant::now();
    while gone.len() < 3 {
        let more = changes_of(&mut census, &[old.id(), new.id(), other.id(), hidden.id()]);
        assert!(!more.is_empty(), "{gone:?}");
        gone.extend(more);
    }
    let told = [old.id(), new.id(), hidden.id()];
    assert!(
        gone.iter()
            .all(|c| matches!(c, Change::Went(pid) if told.contains(pid))),
        "{gone:?}"
    );
}

/// Whoever is told of and then found by its number has come once; of who ended before anything was read it is said that it is missing, but for
/// other GPUs.
#[test]
fn processes_that_are_told_of() {
    let (mut long, mut short) = (child(), child());
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
    short.kill().unwrap();
    short.wait().unwrap();
    let (mut changes, begun) = (
        census.told(&[(long.id(), 3), (ended, 3)], true),
        Instant::now(),
    );
    while begun.elapsed() < 2 * AT_LATEST {
        changes.extend(census.told(&[], true));
    }
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
    let begun = Instant::now();
    changes.extend(census.told(&[(ended, 1)], false));
    while begun.elapsed() < 2 * AT_LATEST {
        changes.extend(census.told(&[], false));
    }
    assert!(changes.is_empty(), "{changes:?}");
    long.kill().unwrap();
    long.wait().unwrap();
}

/// What was hidden, may be looked into later, and uses no GPU, is told of as gone.
#[test]
fn what_was_hidden_and_uses_none() {
    let mut child = child();
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
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn nvcap_s_own_are_none_of_them() {
    let mut child = child();
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
    child.kill().unwrap();
    child.wait().unwrap();
}
