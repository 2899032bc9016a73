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
            true => ask(pid, &Asked::Memory(pid, &file, portion[0].0), to),
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
    let n = ask(pid, &Asked::File(&maps), &mut to).unwrap();
    assert!(n == 16 && ask(pid, &Asked::File(&maps), &mut to).is_ok());
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
    let its = std::thread::spawn(|| {
        let byte = read_a_byte().unwrap();
        let pid = own_errand();
        // It is no process that a trace follows or lists.
        assert!(pid.is_some_and(|pid| is_errand(pid) && crate::procfs::exists(pid)));
        assert!(pid.is_some_and(|pid| !crate::procfs::processes().contains(&pid)));
        (byte, pid)
    });
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

/// A child whose page is never brought: nobody answers for its memory (userfaultfd, as a file of FUSE). Its id, and the page's address.
fn child_that_does_not_answer() -> Option<(i32, u64)> {
    /// Requests of linux/userfaultfd.h.
    const API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
    const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
    const LEN: usize = 64 << 10;
    // SAFETY: new memory, which is touched by the child alone, and a pair of descriptors of this test's own.
    let (at, mut ends) = unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), LEN, prot, flags, -1, 0);
        let mut ends = [0; 2];
        assert!(at != libc::MAP_FAILED && libc::pipe(ends.as_mut_ptr()) == 0);
        (at as u64, ends)
    };
    // SAFETY: the child makes system calls alone.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut api = [0xaa_u64, 0, 0];
        // Where, how long, and that missing pages are asked for.
        let mut register = [at, LEN as u64, 1, 0];
        // SAFETY: as above; the structures are as long as the requests say.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
            let is_set = fd >= 0
                && libc::ioctl(fd, API, api.as_mut_ptr()) == 0
                && libc::ioctl(fd, REGISTER, register.as_mut_ptr()) == 0;
            let word = [u8::from(is_set)];
            libc::write(ends[1], word.as_ptr().cast(), 1);
            loop {
                libc::pause();
            }
        }
    }
    let mut word = [0u8];
    // SAFETY: the pair from above, and room for a byte.
    unsafe {
        libc::close(ends[1]);
        libc::read(ends[0], word.as_mut_ptr().cast(), 1);
        libc::close(ends[0]);
    }
    ends.fill(-1);
    if word[0] == 1 {
        return Some((child, at));
    }
    end(child);
    None
}

fn end(child: i32) {
    // SAFETY: a child of this test's own.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

/// Memory that does not answer is given up, and told; others are read on; and it is read again once it has answered.
#[test]
#[ignore = "needs root: userfaultfd"]
fn memory_that_does_not_answer_is_given_up() {
    let Some((child, at)) = child_that_does_not_answer() else {
        println!(
            "NOT RUN memory_that_does_not_answer_is_given_up: no userfaultfd for faults of the kernel"
        );
        return;
    };
    let pid = child.cast_unsigned();
    let mut to = [0; 8];
    let range = [(at, 8)];
    let mut read = |asked: &Asked<'_>| ask(pid, asked, &mut to).map_err(|e| e.kind());
    let told = given_up(0).len();
    assert_eq!(
        read(&Asked::Thread(pid, &range)),
        Err(io::ErrorKind::TimedOut)
    );
    assert!(is_silent(pid) && given_up(told) == [pid]);
    // Not tried again, by the ways that all reads go.
    let kind = |read: io::Result<usize>| read.map_err(|e| e.kind());
    let again = read_ranges(pid, pid, range.into_iter(), &mut [0; 8]).map(kind);
    assert_eq!(again, Some(Err(io::ErrorKind::TimedOut)));
    assert_eq!(read_a_byte().unwrap(), 7);
    // By the file of its memory, too, whose errand is another.
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    assert!(read(&Asked::Memory(pid, &memory, at)).is_err());
    assert!(is_silent(pid));
    end(child);
    nvcap_waiting::until("the reads end", || !is_silent(pid));
}
