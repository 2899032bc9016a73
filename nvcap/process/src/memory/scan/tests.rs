use super::*;
use crate::memory::fake_memory::{FakeMemory, Ring};

fn searched(memory: &FakeMemory, effort: Effort) -> Search {
    search(memory, memory.areas(), effort)
}

#[test]
fn libcudas_slots_cost_little() {
    let mut memory = FakeMemory::cuda();
    for (slot, entries) in [(0, 700), (3, 5), (8, 3000), (19, 1024)] {
        memory.submit_many(Ring::slot(slot), entries);
    }
    let found = searched(&memory, Effort::Usual);
    let used: Vec<_> = found.found.iter().filter(|f| f.used).collect();
    assert_eq!(
        used.iter().map(|f| (f.ring, f.put)).collect::<Vec<_>>(),
        [(0, 700), (3, 5), (8, 3000 % 1024), (19, 0)]
            .map(|(slot, put)| (Ring::slot(slot).ring, put))
    );
    assert!(used.iter().all(|f| f.entries == 1024
        && f.proof.target == Target::Parses
        && f.proof.place == Place::Habit));
    assert_eq!(found.notes, Vec::<String>::new());
    // By the costs measured on an H200: 5.4 us for a read of GPU memory and 26 ns for each byte.
    let us = memory.gpu_cost_us();
    assert!(us < 5_000.0, "{us} us");
    let habit = FakeMemory::cuda();
    let _ = search(&habit, habit.areas(), Effort::Habit);
    assert!(habit.gpu_cost_us() < 1_000.0, "{}", habit.gpu_cost_us());
}

#[test]
fn rings_at_any_place() {
    // Slots of another size, rings of another length, USERD before its ring.
    for (apart, entries) in [
        (0x4000i64, 2048u32),
        (0x1000, 512),
        (-0x1000, 256),
        (0x8000, 4096),
    ] {
        let mut memory = FakeMemory::cuda();
        let rings: Vec<Ring> = (0..3)
            .map(|i| {
                let ring = memory.rings_at() + 0x2_3000 + i * 0x1_0000;
                Ring {
                    ring,
                    entries,
                    userd: ring.wrapping_add_signed(apart),
                    gpu_va: 0,
                }
            })
            .collect();
        for (i, ring) in rings.iter().enumerate() {
            memory.submit_many(
                *ring,
                [20, 2 * u64::from(entries) + 9, 3 * u64::from(entries) - 3][i],
            );
        }
        let found = searched(&memory, Effort::Usual).found;
        assert_eq!(
            found
                .iter()
                .map(|f| (f.ring, f.userd, f.put))
                .collect::<Vec<_>>(),
            rings
                .iter()
                .zip([20, 9, entries - 3])
                .map(|(r, put)| (r.ring, r.userd, put))
                .collect::<Vec<_>>(),
            "{apart:#x} {entries}"
        );
        // Rings that have wrapped show their size; for the first, only the room is known. (A ring with both positions at 0 is not found,
        // because any zeros look like that.)
        assert_eq!(
            (found[1].entries, found[1].proof.size),
            (entries, Size::Wrapped)
        );
        assert_eq!(
            (found[2].entries, found[2].proof.size),
            (entries, Size::Wrapped)
        );
        assert!(found[0].entries >= entries);
    }
}

#[test]
fn a_pushbuffer_that_just_holds_the_rings_entries_is_no_reason_to_doubt() {
    // With 2 MiB of pushbuffer and entries of 2048 bytes, the oldest entry's bytes lie right behind the newest's.
    let mut memory = FakeMemory::cuda();
    memory.submit_many(Ring::slot(0), 2);
    let mut words = vec![0x2001_8000, 0xc8b5];
    words.resize(512, 0);
    for position in 0..3000 {
        memory.submit(Ring::slot(1), position, &words, 0);
    }
    let found = searched(&memory, Effort::Usual).found;
    let used: Vec<u64> = found.iter().filter(|f| f.used).map(|f| f.ring).collect();
    assert_eq!(used, [Ring::slot(0).ring, Ring::slot(1).ring]);
}

#[test]
fn a_process_stopped_before_it_committed_an_entry() {
    let mut memory = FakeMemory::cuda();
    memory.submit_many(Ring::slot(0), 700);
    memory.submit_many(Ring::slot(1), 2000);
    for slot in 0..2 {
        let ring = Ring::slot(slot);
        let last = memory.word(ring.userd + GP_GET).unwrap() >> 32;
        let newest = memory.word(ring.ring + 8 * (last - 1)).unwrap();
        memory.put_word(ring.ring + 8 * last, newest + 20);
    }
    let found = searched(&memory, Effort::Usual).found;
    assert_eq!(found.iter().filter(|f| f.used).count(), 2);
}

#[test]
fn rings_in_system_memory_that_the_process_addresses_otherwise() {
    let mut memory = FakeMemory::graphics();
    let rings = memory.graphics_rings(4);
    for ring in &rings {
        memory.submit_many(*ring, 40);
    }
    let found = searched(&memory, Effort::Usual);
    assert_eq!(
        found
            .found
            .iter()
            .map(|f| (f.ring, f.userd, f.put))
            .collect::<Vec<_>>(),
        rings
            .iter()
            .map(|r| (r.ring, r.userd, 40))
            .collect::<Vec<_>>()
    );
    assert!(
        found
            .found
            .iter()
            .all(|f| f.proof.target == Target::Elsewhere)
    );
}

#[test]
fn nothing_is_found_where_nothing_is() {
    let mut memory = FakeMemory::cuda();
    assert!(searched(&memory, Effort::Thorough).found.is_empty());
    // Words that look like positions, with no ring that fits.
    memory.put_word(memory.rings_at() + 0x7088, 12 << 32 | 7);
    memory.put_word(memory.rings_at() + 0x9088, 900 << 32 | 7);
    let search = searched(&memory, Effort::Usual);
    assert!(search.found.is_empty());
    assert!(
        search.notes[0].contains("look like USERD"),
        "{:?}",
        search.notes
    );
}

#[test]
fn memory_that_goes_away_at_any_moment_is_no_panic() {
    for reads in 0..400 {
        let mut memory = FakeMemory::cuda();
        for slot in 0..6 {
            memory.submit_many(Ring::slot(slot), 3 + slot * 300);
        }
        memory.fail_after(reads);
        let found = searched(&memory, Effort::Usual).found;
        assert!(found.iter().filter(|f| f.used).count() <= 6);
    }
}
