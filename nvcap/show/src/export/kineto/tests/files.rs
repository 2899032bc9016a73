//! Tests of the files of further processes.

use super::*;

/// Works of a process whose file cannot be opened are left out and count as not written; the files of others are whole.
#[test]
fn a_file_that_cannot_be_opened_ends_no_other() {
    let files = Files::default();
    let mut sink = files.sink(false, true);
    let mut open = std::mem::replace(&mut sink.options.more, Box::new(|_| Ok(None)));
    sink.options.more = Box::new(move |pid| match pid {
        9 => Err(io::Error::other("it is another user's file")),
        _ => open(pid),
    });
    for (serial, pid) in [7, 9, 8, 9, 7].into_iter().enumerate() {
        let at = 1_000 * (serial as u64 + 1);
        let c = timed(pid, serial as u64, at, at + 100, 50);
        let c = Context {
            at: At { pid, ..c.at },
            ..c
        };
        give(&mut sink, &c, &launch());
    }
    sink.finish(&Ledger::new(), &model()).unwrap();
    assert_eq!(sink.unshown(), 2);
    let made = files.made.borrow();
    assert_eq!((made.elsewhere, made.refused, made.others), (2, 2, 0));
    let reason = "it is another user's file".to_owned();
    assert_eq!(made.reasons, [(9, reason)]);
    let pids: Vec<u32> = made.files.iter().map(|f| f.pid).collect();
    assert_eq!(pids, [7, 8]);
    assert_eq!(json(&files.first)["nvcap"]["kernels"], 2);
    assert_eq!(json(&files.further.borrow()[&8])["nvcap"]["kernels"], 1);
}

/// An error of one file leaves none of the others without its end.
#[test]
fn an_error_ends_every_file() {
    struct Broken;
    impl io::Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let files = Files::default();
    let mut sink = files.sink(false, true);
    let mut open = std::mem::replace(&mut sink.options.more, Box::new(|_| Ok(None)));
    sink.options.more = Box::new(move |pid| match pid {
        9 => Ok(Some(Output::to(Box::new(Broken)))),
        _ => open(pid),
    });
    for (serial, pid) in [7, 9, 8].into_iter().enumerate() {
        let at = 1_000 * (serial as u64 + 1);
        let c = timed(pid, serial as u64, at, at + 100, 50);
        give(
            &mut sink,
            &Context {
                at: At { pid, ..c.at },
                ..c
            },
            &launch(),
        );
    }
    assert!(sink.finish(&Ledger::new(), &model()).is_err());
    let others = [&files.first, &files.further.borrow()[&8]];
    assert!(
        others
            .iter()
            .all(|place| json(place)["nvcap"]["kernels"] == 1)
    );
}
