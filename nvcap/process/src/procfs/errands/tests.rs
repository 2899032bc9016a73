use super::*;

#[test]
fn portions_have_room() {
    let (full, half) = (MOST_BYTES, MOST_BYTES / 2);
    let cut = |ranges: &[Range]| portions(ranges.iter().copied());
    assert_eq!(cut(&[(5, 0)]), Vec::<Vec<Range>>::new());
    assert_eq!(
        cut(&[(0, half), (1, full), (9, 4)]),
        [
            vec![(0, half), (1, half)],
            vec![(1 + half as u64, half), (9, 4)]
        ]
    );
    let many = cut(&vec![(0, 1); MOST_RANGES + 1]);
    assert_eq!(
        many.iter().map(Vec::len).collect::<Vec<_>>(),
        [MOST_RANGES, 1]
    );
}

/// This process's own memory, by an errand, directly and by its file.
#[test]
fn an_errand_reads() {
    let pid = std::process::id();
    let bytes: Vec<u8> = (0..MOST_BYTES * 2 + 5).map(|i| (i % 251) as u8).collect();
    let at = bytes.as_ptr() as u64;
    let file = File::open("/proc/self/mem").unwrap();
    let read = |ranges: &[Range], to: &mut [u8], by_file: bool| {
        let portions = portions(ranges.iter().copied());
        in_turn(&portions, to, |portion, to| match by_file {
            true => ask(pid, &Asked::File(&file, Some(portion[0].0)), to),
            false => ask(pid, &Asked::Thread(pid, portion), to),
        })
    };
    for by_file in [false, true] {
        let mut to = vec![0; bytes.len()];
        let n = read(&[(at, bytes.len())], &mut to, by_file).unwrap();
        assert!(n == to.len() && to == bytes, "{n}");
        // Nothing is at 16.
        assert!(read(&[(16, 8)], &mut to[..8], by_file).is_err());
    }
    let mut to = [0; 16];
    assert_eq!(read(&[(at, 8), (16, 8)], &mut to, false).unwrap(), 8);
    assert_eq!(to[..8], bytes[..8]);
    let maps = File::open("/proc/self/maps").unwrap();
    let n = ask(pid, &Asked::File(&maps, None), &mut to).unwrap();
    assert!(n == 16 && ask(pid, &Asked::File(&maps, None), &mut to).is_ok());
}

fn read_a_byte() -> io::Result<u8> {
    let (byte, pid) = (7u8, std::process::id());
    let range = [(&raw const byte as u64, 1)];
    let mut to = [0];
    ask(pid, &Asked::Thread(pid, &range), &mut to).map(|_| to[0])
}

fn own_errand() -> Option<u32> {
    OWN.with(|own| own.borrow().as_ref().map(|e| e.pid))
}

/// Threads end their errands, whose desks are unmapped.
#[test]
fn an_errand_ends_with_its_thread() {
    let its = std::thread::spawn(|| (read_a_byte().unwrap(), own_errand()));
    let (byte, pid) = its.join().unwrap();
    let pid = pid.unwrap();
    assert_eq!(byte, 7);
    nvcap_waiting::until("the errand ends", || !crate::procfs::exists(pid));
}

#[test]
fn a_killed_errand_is_followed_by_another() {
    assert_eq!(read_a_byte().unwrap(), 7);
    let pid = own_errand().unwrap();
    // SAFETY: kills a process of this test's own.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
    nvcap_waiting::until("another reads", || {
        read_a_byte().is_ok_and(|byte| byte == 7) && own_errand() != Some(pid)
    });
}

#[test]
fn each_process_of_a_user_is_waited_for_half_as_long() {
    let mut all = GivenUp::default();
    assert_eq!(all.patience("1001"), PATIENCE);
    all.of_user.insert("1001".into(), 1);
    assert_eq!(all.patience("1001"), PATIENCE / 2);
    all.of_user.insert("1001".into(), 99);
    assert_eq!(all.patience("1001"), LEAST_PATIENCE);
    assert_eq!(all.patience("0"), PATIENCE);
}
