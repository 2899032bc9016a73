//! Tests of outputs.

use std::sync::{Arc, Mutex};

use super::*;

/// Writer that takes `room` bytes, then refuses with `kind`.
struct Small {
    taken: Arc<Mutex<Vec<u8>>>,
    room: Arc<Mutex<usize>>,
    kind: io::ErrorKind,
}

impl Write for Small {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut room = self.room.lock().unwrap();
        let n = bytes.len().min(*room);
        if n == 0 {
            return Err(self.kind.into());
        }
        *room -= n;
        self.taken.lock().unwrap().extend_from_slice(&bytes[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Ends {
    taken: Arc<Mutex<Vec<u8>>>,
    room: Arc<Mutex<usize>>,
}

fn small(room: usize, kind: io::ErrorKind) -> (Output, Ends) {
    let ends = Ends {
        taken: Arc::default(),
        room: Arc::new(Mutex::new(room)),
    };
    let writer = Small {
        taken: ends.taken.clone(),
        room: ends.room.clone(),
        kind,
    };
    (Output::to(Box::new(writer)), ends)
}

fn put(o: &mut Output, text: &str) {
    o.object().extend_from_slice(text.as_bytes());
    o.end_object().unwrap();
}

#[test]
fn a_full_disk_is_counted_and_writing_goes_on_after_it() {
    let (mut o, ends) = small(10, io::ErrorKind::StorageFull);
    o.told = true;
    put(&mut o, "12345\n");
    put(&mut o, "67890\n");
    put(&mut o, "abcde\n");
    o.flush().unwrap();
    assert_eq!(o.unshown(), 2, "the second is torn, the third is lost");
    *ends.room.lock().unwrap() = 100;
    put(&mut o, "after\n");
    o.flush().unwrap();
    assert_eq!(o.unshown(), 2);
    assert_eq!(
        ends.taken.lock().unwrap().as_slice(),
        b"12345\n6789\nafter\n"
    );
}

#[test]
fn an_answer_that_does_not_fit_is_an_error_with_its_remedy() {
    for (kind, says) in [
        (io::ErrorKind::StorageFull, "free some room"),
        (io::ErrorKind::FileTooLarge, "ulimit -f"),
    ] {
        let (mut o, _) = small(3, kind);
        o.object().extend_from_slice(b"12345\n");
        let said = o.answer().unwrap_err().to_string();
        assert!(said.contains(says) && !said.contains("trace"), "{said}");
    }
    let (mut o, ends) = small(100, io::ErrorKind::StorageFull);
    o.object().extend_from_slice(b"12345\n");
    o.answer().unwrap();
    assert_eq!(ends.taken.lock().unwrap().as_slice(), b"12345\n");
}

#[test]
fn a_reader_that_went_away_is_an_error() {
    let (mut o, _) = small(3, io::ErrorKind::BrokenPipe);
    put(&mut o, "12345\n");
    assert_eq!(o.flush().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert!(o.flush().is_ok(), "and is told once");
}

#[test]
fn a_directory_is_refused() {
    let dir = std::env::temp_dir();
    assert!(Output::file(&dir).is_err());
}
