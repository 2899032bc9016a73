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

/// Test of reading this process's own memory: by an errand, directly, and by its file.
#[test]
fn an_errand_reads() {
    let (pid, user) = (std::process::id(), Some(0));
    let bytes: Vec<u8> = (0..MOST_BYTES * 2 + 5).map(|i| (i % 251) as u8).collect();
    let at = bytes.as_ptr() as u64;
    let file = File::open("/proc/self/mem").unwrap();
    let read = |ranges: &[Range], to: &mut [u8], by_file: bool| {
        let portions = portions(ranges.iter().copied());
        in_turn(&portions, to, |portion, to| match by_file {
            true => ask(pid, user, &Asked::Memory(pid, &file, portion[0].0), to),
            false => ask(pid, user, &Asked::Thread(pid, portion), to),
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
    let n = ask(pid, user, &Asked::File(&maps), &mut to).unwrap();
    assert!(n == 16 && ask(pid, user, &Asked::File(&maps), &mut to).is_ok());
}

/// A shell that executes itself once more after a line of input, at the same addresses. Its standard output has a line from each of the two.
fn executes_itself() -> std::process::Child {
    use std::os::unix::process::CommandExt as _;
    let mut shell = std::process::Command::new("/bin/sh");
    shell
        .args([
            "-c",
            "echo 1; read line; exec /bin/sh -c 'echo 2; read line'",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    // SAFETY: one system call, in the child.
    unsafe {
        shell.pre_exec(|| match libc::personality(libc::ADDR_NO_RANDOMIZE as _) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        })
    };
    shell.spawn().unwrap()
}

/// The memory of a program that a process has executed since is not taken for that of the program whose memory was opened, which has the same
/// addresses.
#[test]
fn memory_of_a_program_that_is_executed_later_is_not_read() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let mut child = executes_itself();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    assert_eq!(line(), "1");
    let pid = child.id();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let at = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
    let open = || File::open(format!("/proc/{pid}/mem")).unwrap();
    let read = |file: &File| {
        let mut to = [0; 4];
        ask(pid, Some(0), &Asked::Memory(pid, file, at), &mut to).map(|n| (n, to))
    };
    let first = open();
    assert_eq!(read(&first).unwrap(), (4, *b"\x7fELF"));
    input.write_all(b"go on\n").unwrap();
    assert_eq!(line(), "2");
    assert_eq!(read(&first).unwrap().0, 0);
    assert_eq!(read(&open()).unwrap(), (4, *b"\x7fELF"));
    drop(input);
    child.wait().unwrap();
}

fn read_a_byte() -> io::Result<u8> {
    let (byte, pid) = (7u8, std::process::id());
    let range = [(&raw const byte as u64, 1)];
    let mut to = [0];
    ask(pid, Some(0), &Asked::Thread(pid, &range), &mut to).map(|_| to[0])
}

fn own_errand() -> Option<u32> {
    OWN.with(|own| own.borrow().as_ref().map(|e| e.pid))
}

/// Test that threads also end their errands when they end, and unmap the errands' desks.
#[test]
fn an_errand_ends_with_its_thread() {
    let its = std::thread::spawn(|| {
        let byte = read_a_byte().unwrap();
        let pid = own_errand();
        // An errand is not among the processes that a trace follows or lists.
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
    let mut all = GivenUp::new();
    let (user, other) = (Some(1001), Some(0));
    assert_eq!(all.patience(user), PATIENCE);
    all.of_user.insert(user, 1);
    assert_eq!(all.patience(user), PATIENCE / 2);
    all.of_user.insert(user, 99);
    assert_eq!(all.patience(user), LEAST_PATIENCE);
    assert_eq!(all.patience(other), PATIENCE);
}

/// Starts a child with a page whose contents never come: nothing answers for it (userfaultfd, which behaves like a FUSE file). Returns the
/// child's id and the page's address.
fn child_that_does_not_answer() -> Option<(i32, u64)> {
    /// Requests of linux/userfaultfd.h.
    const API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
    const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
    const LEN: usize = 64 << 10;
    // SAFETY: new memory, which only the child touches, and a pair of descriptors of this test's own.
    let (at, mut ends) = unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), LEN, prot, flags, -1, 0);
        let mut ends = [0; 2];
        assert!(at != libc::MAP_FAILED && libc::pipe(ends.as_mut_ptr()) == 0);
        (at as u64, ends)
    };
    // SAFETY: the child makes only system calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut api = [0xaa_u64, 0, 0];
        // Start, length, and mode: missing pages are requested.
        let mut register = [at, LEN as u64, 1, 0];
        // SAFETY: as above; the structures have the lengths that the requests name.
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

/// Test that a read of memory that does not answer is given up and reported, that other memory is still read, and that the silent memory is
/// read again once it has answered.
#[test]
#[ignore = "needs root: userfaultfd"]
fn memory_that_does_not_answer_is_given_up() {
    let Some((child, at)) = child_that_does_not_answer() else {
        println!(
            "NOT RUN memory_that_does_not_answer_is_given_up: no userfaultfd for faults of the kernel"
        );
        return;
    };
    let (pid, user) = (child.cast_unsigned(), Some(0));
    let mut to = [0; 8];
    let range = [(at, 8)];
    let mut read = |asked: &Asked<'_>| ask(pid, user, asked, &mut to).map_err(|e| e.kind());
    let told = given_up(0).len();
    assert_eq!(
        read(&Asked::Thread(pid, &range)),
        Err(io::ErrorKind::TimedOut)
    );
    assert!(is_silent(pid) && given_up(told).contains(&(pid, NO_ANSWER)));
    // The read is not tried again by any of the ways in which memory is read.
    let kind = |read: io::Result<usize>| read.map_err(|e| e.kind());
    let again = read_ranges(pid, pid, range.into_iter(), &mut [0; 8]).map(kind);
    assert_eq!(again, Some(Err(io::ErrorKind::TimedOut)));
    assert_eq!(read_a_byte().unwrap(), 7);
    // Reading the file of its memory is refused as well; its errand is another one.
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    assert!(read(&Asked::Memory(pid, &memory, at)).is_err());
    assert!(is_silent(pid));
    end(child);
    nvcap_waiting::until("the reads end", || !is_silent(pid));
}

/// Test that the number of a user's left-alone reads is limited. At the limit no process of that user is read, which is reported once with
/// the reason, until a read ends.
#[test]
#[ignore = "needs root: userfaultfd"]
fn the_reads_that_are_left_alone_are_bounded() {
    let (user, other) = (Some(70_001), Some(70_002));
    let children: Vec<(i32, u64)> = (0..MOST_OF_USER + 4)
        .map_while(|_| child_that_does_not_answer())
        .collect();
    if children.len() < MOST_OF_USER + 4 {
        children.iter().for_each(|(child, _)| end(*child));
        println!(
            "NOT RUN the_reads_that_are_left_alone_are_bounded: no userfaultfd for faults of the kernel"
        );
        return;
    }
    let before = given_up(0).len();
    // Each is read twice, and reported once.
    for (child, at) in children.iter().chain(&children) {
        let pid = child.cast_unsigned();
        if is_silent(pid) {
            continue;
        }
        let read = ask(pid, user, &Asked::Thread(pid, &[(*at, 8)]), &mut [0; 8]);
        assert_eq!(
            read.map_err(|e| e.kind()),
            Err(io::ErrorKind::TimedOut),
            "{pid}"
        );
    }
    let reasons: Vec<&str> = children
        .iter()
        .map(|(child, _)| {
            let told = given_up(before);
            let mut of_it = told.iter().filter(|(pid, _)| *pid == child.cast_unsigned());
            let why = of_it.next().map_or("", |(_, why)| *why);
            assert_eq!(of_it.count(), 0, "told once");
            why
        })
        .collect();
    let (left, beyond) = reasons.split_at(MOST_OF_USER);
    assert_eq!(left, [NO_ANSWER; MOST_OF_USER]);
    assert_eq!(beyond, [TOO_MANY; 4]);
    // Memory that answers is refused for this user, and read for another.
    let (byte, me) = (7u8, std::process::id());
    let range = [(&raw const byte as u64, 1)];
    let read = |user: User| {
        let mut to = [0];
        let read = ask(me, user, &Asked::Thread(me, &range), &mut to);
        read.map(|_| to[0]).map_err(|e| e.kind())
    };
    assert_eq!(read(user), Err(io::ErrorKind::TimedOut));
    assert_eq!(read(other), Ok(7));
    end(children[0].0);
    nvcap_waiting::until("it is read again", || read(user) == Ok(7));
    children[1..].iter().for_each(|(child, _)| end(*child));
    nvcap_waiting::until("the reads end", || {
        let all = children.iter();
        !all.clone()
            .any(|(child, _)| is_silent(child.cast_unsigned()))
    });
}

/// Test that the number of errands of all users together is limited, too.
#[test]
fn the_bound_of_all() {
    let mut all = GivenUp::new();
    for n in 0..MOST_OF_ALL as u32 {
        let user = Some(n / (MOST_OF_USER as u32 - 1));
        assert!(!all.is_full(user) && !all.is_full(Some(99)), "{n}");
        // Errands that wait, kept as if they had been left alone.
        let waiting = Silent {
            began: None,
            user,
            errands: vec![Errand::start().unwrap()],
        };
        all.silent.insert(n, waiting);
    }
    assert!(all.is_full(Some(99)) && all.left(Some(99)) == (0, MOST_OF_ALL));
    all.silent.remove(&0);
    assert!(!all.is_full(Some(99)));
}

/// Test that an empty list of file systems is not read before each of many reads, but again after a moment; and that a list with a
/// stranger's file system is read before each read.
#[test]
fn the_list_is_looked_at_once_in_a_while() {
    let (looked, mut looks) = (AtomicU64::new(0), 0);
    for _ in 0..10_000 {
        assert!(!strangers_may_serve(&looked, || {
            looks += 1;
            false
        }));
    }
    assert!((1..5000).contains(&looks), "{looks}");
    let later = ticks().wrapping_sub(KNOWN_TICKS);
    looked.store(later, Ordering::Relaxed);
    for _ in 0..100 {
        assert!(strangers_may_serve(&looked, || true));
    }
}
