//! Processes whose memory changes between searches.

use super::*;

/// Memory that changes while it is searched.
#[derive(Clone)]
struct Shared(Arc<std::sync::Mutex<Fake>>);

impl Shared {
    fn new(fake: Fake) -> Self {
        Self(Arc::new(std::sync::Mutex::new(fake)))
    }

    fn change(&self, by: impl FnOnce(&mut Fake)) {
        by(&mut self.0.lock().unwrap());
    }

    fn resolver(&self) -> Resolver {
        Resolver::of(PID, Box::new(self.clone()), WHOLE).by(CLOCKS)
    }
}

impl ReadMemory for Shared {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.0.lock().unwrap().read_bytes(at, to)
    }
}

impl Space for Shared {
    fn read_some(&self, at: u64, to: &mut [u8]) -> usize {
        self.0.lock().unwrap().read_some(at, to)
    }
}

#[test]
fn a_function_that_is_loaded_later_is_found_without_a_search() {
    let functions = many(12);
    let memory = Shared::new(process(&functions, HOPPER, 4));
    let mut resolver = memory.resolver();
    let asks: Vec<Ask> = (0..4).map(|i| ask(i, &functions[i])).collect();
    assert_eq!(resolver.resolve(&asks).len(), 4);
    let searched = resolver.cost().bytes;
    memory.change(|m| m.put(record(9), PROGRAM + 9 * 0x1000));
    let found = resolver.resolve(&[ask(9, &functions[9])]);
    assert_eq!(
        names(&found),
        [(PROGRAM + 9 * 0x1000, functions[9].name.as_str(), true)]
    );
    assert_eq!(resolver.cost().bytes, searched, "nothing was searched");
}

#[test]
fn programs_seen_beside_the_first_one_are_found_without_a_search() {
    let functions = many(12);
    let mut fake = process(&functions, HOPPER, 8);
    for i in 0..functions.len() {
        // Each in a module of its own: no links lead from one to the other.
        let link = record(i).wrapping_add_signed(HOPPER.next);
        fake.put(link, record_of_link(i));
    }
    let memory = Shared::new(fake);
    let mut resolver = memory.resolver();
    let first = resolver.resolve(&[ask(0, &functions[0])]);
    assert_eq!(names(&first), [(PROGRAM, functions[0].name.as_str(), true)]);
    let bytes = resolver.cost().bytes;
    // Another program's address stands now where the last one's was.
    memory.change(|m| m.put(record(7), PROGRAM + 0x77_0000));
    let asks: Vec<Ask> = (1..7).map(|i| ask(i, &functions[i])).collect();
    let found = resolver.resolve(&asks);
    assert_eq!(names(&found).len(), 6, "{found:?}");
    let right = |k: &Kernel| k.name == functions[(k.program.0 - PROGRAM) as usize / 0x1000].name;
    assert!(found.iter().all(|k| k.certain && right(k)), "{found:?}");
    assert_eq!(resolver.cost().bytes, bytes);
    assert_eq!(resolver.resolve(&[ask(7, &functions[7])]), []);
    assert!(resolver.cost().bytes > bytes);
}

#[test]
fn a_wrong_place_of_the_registers_is_given_up() {
    let functions = many(14);
    let memory = Shared::new(process(&functions, HOPPER, 14));
    memory.change(|m| {
        // For the first programs another number is that of the registers, and for one of them the right one is not.
        for (i, f) in functions.iter().enumerate().take(8) {
            let other = record(i).wrapping_add_signed(-36);
            m.write(other, &f.registers.to_le_bytes());
        }
        m.write(
            record(2).wrapping_add_signed(HOPPER.registers),
            &[0xff, 0, 0, 0],
        );
    });
    let mut resolver = memory.resolver();
    let asks: Vec<Ask> = (0..14).map(|i| ask(i, &functions[i])).collect();
    assert_eq!(resolver.resolve(&asks[..8]).len(), 8);
    let has = |r: &Resolver, text: &str| assert!(r.learnt().contains(text), "{}", r.learnt());
    has(&resolver, "registers at Some(-36)");
    assert_eq!(resolver.resolve(&asks[8..]).len(), 6);
    has(&resolver, "registers at Some(288)");
}

/// Adds a module of one function to memory: its record at `record`, its image at `at`.
fn load(memory: &mut Fake, i: usize, f: &Function, record: u64, at: u64) {
    let (bytes, names) = image(std::slice::from_ref(f));
    memory.write(at, &bytes);
    memory.put(record, PROGRAM + i as u64 * 0x1000);
    memory.put(record.wrapping_add_signed(HOPPER.name), at + names[0]);
    let registers = record.wrapping_add_signed(HOPPER.registers);
    memory.write(registers, &f.registers.to_le_bytes());
    // Its own neighbour.
    memory.put(record.wrapping_add_signed(HOPPER.next), record - 0x68);
}

#[test]
fn a_new_module_is_found_near_the_last_finds_and_its_image_by_the_record() {
    let functions = many(16);
    let memory = Shared::new(process(&functions[..12], HOPPER, 8));
    let mut resolver = memory.resolver();
    let asks: Vec<Ask> = (0..8).map(|i| ask(i, &functions[i])).collect();
    assert_eq!(resolver.resolve(&asks).len(), 8);
    for (i, at) in [
        // The image is far from everything that is known.
        (12, BASE + 0x7f_0000),
        (13, BASE + 0x70_0000),
    ] {
        let (f, place) = (&functions[i], record(11) + 0x8680 * (i as u64 - 11));
        memory.change(|m| load(m, i, f, place, at));
        let before = resolver.cost();
        let found = resolver.resolve(&[ask(i, f)]);
        let program = PROGRAM + i as u64 * 0x1000;
        assert_eq!(names(&found), [(program, f.name.as_str(), true)]);
        assert_eq!(resolver.image_of(GpuVa(program)), Some(at));
        let after = resolver.cost();
        assert_eq!(after.whole, before.whole, "it was found near the others");
        assert!(after.bytes - before.bytes < 4 << 20, "{after:?}");
    }
}

#[test]
fn a_new_module_anywhere_is_found_while_there_is_time() {
    let functions = many(14);
    let memory = Shared::new(process(&functions[..12], HOPPER, 8));
    let mut resolver = memory.resolver();
    let asks: Vec<Ask> = (0..8).map(|i| ask(i, &functions[i])).collect();
    assert_eq!(resolver.resolve(&asks).len(), 8);
    let f = &functions[12];
    // Farther than what is searched near others.
    memory.change(|m| load(m, 12, f, BASE + 0x79_0000, BASE + 0x7c_0000));
    let found = resolver.resolve(&[ask(12, f)]);
    assert_eq!(
        names(&found),
        [(PROGRAM + 12 * 0x1000, f.name.as_str(), true)]
    );
    assert_eq!(resolver.cost().whole, 1);
    // One that is nowhere is looked for, and left, until no processor time is left for it; and again when there is some.
    TICK.set(Duration::from_millis(20));
    for round in 0..2 {
        let mut left = 0;
        loop {
            assert_eq!(resolver.resolve(&[ask(13, &functions[13])]), []);
            if !resolver.has_left() {
                break;
            }
            left += 1;
            assert!(left < 200, "the time is not limited");
        }
        assert!(left > 0, "{round}");
        PASSED.set(PASSED.get() + Duration::from_secs(1000));
    }
}

#[test]
fn what_is_looked_for_again_yields_to_requests() {
    let functions = many(14);
    let memory = Shared::new(process(&functions[..12], HOPPER, 8));
    let waiting = Arc::new(AtomicUsize::new(1));
    let mut resolver = memory.resolver().that_yields_to(&waiting);
    let asks: Vec<Ask> = (0..8).map(|i| ask(i, &functions[i])).collect();
    assert_eq!(resolver.resolve(&asks).len(), 8);
    let f = &functions[12];
    assert_eq!(resolver.resolve(&[ask(12, f)]), []);
    memory.change(|m| load(m, 12, f, BASE + 0x79_0000, BASE + 0x7c_0000));
    assert_eq!(resolver.resolve(&[]), [], "a request waits");
    waiting.store(0, Ordering::SeqCst);
    assert_eq!(resolver.resolve(&[]).len(), 1);
}

#[test]
fn a_record_that_is_left_over_gives_no_certain_name() {
    let functions = many(14);
    let memory = Shared::new(process(&functions[..12], HOPPER, 8));
    let mut resolver = memory.resolver();
    let asks: Vec<Ask> = (0..8).map(|i| ask(i, &functions[i])).collect();
    assert_eq!(resolver.resolve(&asks).len(), 8);
    // The program's address is used again, by another function whose record lies elsewhere; its code was seen.
    let other = Function {
        registers: functions[3].registers,
        ..functions[13].clone()
    };
    memory.change(|m| load(m, 3, &other, record(11) + 0x8680, BASE + 0x70_0000));
    let again = Ask {
        code: Some(other.code.clone()),
        ..ask(3, &other)
    };
    let found = resolver.resolve(std::slice::from_ref(&again));
    assert_eq!(
        names(&found),
        [(PROGRAM + 3 * 0x1000, other.name.as_str(), true)]
    );
    assert_eq!(found[0].by, NamedBy::RecordAndCode);
    // Of code that no record leads to, what the left-over one says is uncertain.
    let neither = Ask {
        code: Some(vec![7; 4096]),
        ..again
    };
    let found = resolver.resolve(&[neither]);
    assert!(found.iter().all(|k| !k.certain), "{found:?}");
}

#[test]
fn a_record_that_is_found_later_tells_functions_of_the_same_code_apart() {
    let mut functions = many(10);
    functions[4].code = functions[0].code.clone();
    functions[4].registers = functions[0].registers;
    let memory = Shared::new(process(&functions, HOPPER, 10));
    memory.change(|m| m.put(record(0), 0));
    let mut resolver = memory.resolver();
    let first = Ask {
        code: Some(functions[0].code.clone()),
        ..ask(0, &functions[0])
    };
    let found = resolver.resolve(std::slice::from_ref(&first));
    assert_eq!(found.iter().map(|k| k.certain).collect::<Vec<_>>(), [false]);
    memory.change(|m| m.put(record(0), first.program.0));
    let others: Vec<Ask> = (5..10).map(|i| ask(i, &functions[i])).collect();
    let found = resolver.resolve(&others);
    assert_eq!(found.len(), 6);
    let again = found.iter().find(|k| k.program == first.program).unwrap();
    assert_eq!(
        (again.name.as_str(), again.by, again.certain),
        (functions[0].name.as_str(), NamedBy::RecordAndCode, true)
    );
    assert_eq!(resolver.resolve(&others[..1]).len(), 1, "told once");
}
