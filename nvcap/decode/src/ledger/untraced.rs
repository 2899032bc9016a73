//! Account of what could not be followed.

/// The most reasons that are kept in a row with their process, and again in a row with their words only. Further reasons are only counted.
pub(super) const REASONS_KEPT: usize = 64;

/// Words for reasons beyond the limit.
pub(super) const MORE_REASONS: &str = "more reasons than are kept in words";

/// Reason why something could not be followed, and its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untraced {
    /// Process id; 0 if unknown, and for reasons of several processes that have no row of their own.
    pub pid: u32,
    /// Reason in words.
    pub why: String,
    /// Number of occurrences.
    pub count: u64,
}

/// Adds a reason: in a row of its process while there is room, else in one row for its words, else in the row without its words. A reason
/// that many processes have thus hides no other reason.
pub(super) fn add(rows: &mut Vec<Untraced>, pid: u32, why: &str, count: u64) {
    let place = |pid: u32, why: &str| rows.iter().position(|r| r.pid == pid && r.why == why);
    let is_room = rows.len() < REASONS_KEPT;
    let is_room_for_words = rows.len() < 2 * REASONS_KEPT;
    let known = place(pid, why).or_else(|| if is_room { None } else { place(0, why) });
    let (pid, why, known) = match known {
        Some(_) => (pid, why, known),
        None if is_room => (pid, why, None),
        None if is_room_for_words => (0, why, None),
        None => (0, MORE_REASONS, place(0, MORE_REASONS)),
    };
    match known.and_then(|place| rows.get_mut(place)) {
        Some(row) => row.count = row.count.saturating_add(count),
        None => rows.push(Untraced {
            pid,
            why: why.to_owned(),
            count,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_many_processes_hide_no_other() {
        let mut rows = Vec::new();
        for pid in 1..=200 {
            add(&mut rows, pid, "no answer", 1);
        }
        add(&mut rows, 7, "no rights", 3);
        add(&mut rows, 8, "no rights", 1);
        add(&mut rows, 1, "no answer", 1);
        assert_eq!(rows.len(), REASONS_KEPT + 2);
        let count = |pid, why| {
            let mut of = rows.iter().filter(|r| r.pid == pid && r.why == why);
            of.next().map(|r| r.count)
        };
        assert_eq!(count(1, "no answer"), Some(2));
        assert_eq!(count(0, "no answer"), Some(136));
        assert_eq!(count(0, "no rights"), Some(4));
    }

    #[test]
    fn words_without_an_end_have_a_bound_and_are_counted() {
        let mut rows = Vec::new();
        for n in 0..1000 {
            add(&mut rows, n, &format!("reason {n}"), 1);
        }
        assert_eq!(rows.len(), 2 * REASONS_KEPT + 1);
        assert_eq!(rows.iter().map(|r| r.count).sum::<u64>(), 1000);
        assert_eq!(rows.last().map(|r| r.why.as_str()), Some(MORE_REASONS));
    }
}
