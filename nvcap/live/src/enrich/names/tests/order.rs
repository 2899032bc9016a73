//! Tests that the same evidence in another order gives names of the same certainty.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::*;

/// Address of records, and of tables of programs' addresses; images lie before them.
const RECORDS: u64 = BASE + 0x20_0000;
const END: u64 = BASE + (8 << 20);

thread_local! {
    /// Range of the process's memory that is present.
    static THERE: Cell<(u64, u64)> = const { Cell::new((BASE, END)) };
}

const PART: Listing = Listing {
    areas: |_| {
        let (start, end) = THERE.get();
        Ok(vec![Run { start, end }])
    },
    present: |_, areas| areas.to_vec(),
};

/// Returns the last name of each program after these requests. Each has a number of programs, and the range of memory
/// that is present.
fn last_names(requests: &[(usize, (u64, u64))]) -> BTreeMap<u64, (String, NamedBy, bool)> {
    let functions = many(24);
    let fake = process(&functions, HOPPER, 24);
    let mut resolver = Resolver::of(PID, Box::new(fake), PART).by(CLOCKS);
    let (mut last, mut asked) = (BTreeMap::new(), 0);
    for (count, there) in requests {
        THERE.set(*there);
        let next = asked..asked + count;
        asked = next.end;
        let mut asks: Vec<Ask> = next.map(|i| ask(i, &functions[i])).collect();
        if asked == functions.len() {
            // One without a record: it is looked for in all memory.
            asks.push(ask(1000, &functions[0]));
        }
        for k in resolver.resolve(&asks) {
            last.insert(k.program.0, (k.name, k.by, k.certain));
        }
    }
    last
}

#[test]
fn names_are_as_certain_whichever_memory_was_searched_first() {
    let (whole, records) = ((BASE, END), (RECORDS, END));
    let at_once = last_names(&[(24, whole)]);
    assert_eq!(at_once.len(), 24);
    assert!(
        at_once.values().all(|(_, _, certain)| *certain),
        "{at_once:?}"
    );
    // Without images all names are text, and uncertain.
    let text = last_names(&[(24, records)]);
    assert_eq!(text.len(), 24);
    assert!(text.values().all(|(_, _, certain)| !certain), "{text:?}");
    let orders: [&[(usize, (u64, u64))]; 6] = [
        &[(23, records), (1, whole)],
        &[(8, records), (16, whole)],
        &[(4, records), (4, records), (16, whole)],
        &[(12, whole), (12, whole)],
        &[(1, records), (22, records), (1, whole)],
        &[(24, records), (0, whole)],
    ];
    for order in orders {
        assert_eq!(last_names(order), at_once, "{order:?}");
    }
}
