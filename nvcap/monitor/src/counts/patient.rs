//! Memory that is read by a thread of its own, and given up where that lasts too long: a process can map memory that never answers (a
//! file of FUSE), and nobody else is to wait for it.
//!
//! A read that hangs in the kernel can only be left alone. Its thread stays with it, others are read by a new one, and the process is
//! refused until the read has ended.
//!
//! Handing over costs two switches of threads, many times what a read costs: so what reads often is handed over as a whole
//! (`Lends::lend`), with all that it needs. How long that takes does not matter, only how long one of its reads does.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::source::Lends;
use nvcap_process::procfs::{mem::ReadMemory, stat::Stat};

/// Time that a read of a process's memory may last.
pub const PATIENCE: Duration = Duration::from_secs(4);
/// Number of looks at whether reads go on, in the time of [`PATIENCE`].
const LOOKS: u32 = 8;

/// States of a process's reads.
const ANSWERED: u8 = 0;
const ASKED: u8 = 1;
const GIVEN_UP: u8 = 2;

/// State of a process's reads.
#[derive(Default)]
struct State {
    is: AtomicU8,
    /// Reads that have begun, and those that have ended: odd while one lasts.
    reads: AtomicU64,
    /// The thread that reads.
    tid: AtomicU32,
}

impl State {
    /// Does what reads once.
    fn reading<T>(&self, read: impl FnOnce() -> T) -> T {
        self.reads.fetch_add(1, Ordering::AcqRel);
        let answer = read();
        self.reads.fetch_add(1, Ordering::AcqRel);
        answer
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// Threads that read the memory of all processes. Clones are the same ones.
#[derive(Clone)]
pub struct Readers(Arc<Inner>);

struct Inner {
    patience: Duration,
    /// The thread that reads, unless it was given up.
    thread: Mutex<Option<Sender<Work>>>,
    /// Processes that were opened, by id: when they began, and what became of the last read.
    opened: Mutex<BTreeMap<u32, (u64, Arc<State>)>>,
}

/// Tells whether a thread of this process waits for nothing but a processor.
fn wants_processor(tid: u32) -> bool {
    Stat::of_thread(std::process::id(), tid).is_ok_and(|stat| stat.state == 'R')
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of a process. After a read was given up, none is tried any more.
#[derive(Clone)]
pub struct Patient<M> {
    memory: Arc<M>,
    /// Threads that read, and the state of this process's reads; none where each read is waited for.
    readers: Option<(Readers, Arc<State>)>,
}

/// Memory of a process, read by the thread that may be given up.
pub struct Lent<M> {
    memory: Arc<M>,
    state: Option<Arc<State>>,
}

impl Readers {
    /// Makes readers that are waited for this long.
    pub fn new(patience: Duration) -> Self {
        Self(Arc::new(Inner {
            patience,
            thread: Mutex::default(),
            opened: Mutex::default(),
        }))
    }

    /// The memory of a process that began at this time (in any unit).
    ///
    /// # Errors
    /// Where a read of it was given up and has not ended.
    pub(crate) fn open<M>(&self, pid: u32, began: u64, memory: M) -> io::Result<Patient<M>> {
        let mut opened = locked(&self.0.opened);
        let state = match opened.get(&pid) {
            Some((known, state)) if *known == began => {
                if state.is.load(Ordering::Acquire) != ANSWERED {
                    return Err(self.gave_up());
                }
                Arc::clone(state)
            }
            _ => Arc::default(),
        };
        opened.insert(pid, (began, Arc::clone(&state)));
        Ok(Patient {
            memory: Arc::new(memory),
            readers: Some((self.clone(), state)),
        })
    }

    /// Does other work that asks the kernel about a process: where a read of its memory hangs, that may have to wait for it, too.
    ///
    /// # Errors
    /// Where it lasted too long, or a read was given up and has not ended.
    pub(crate) fn about<T: Send + 'static>(
        &self,
        pid: u32,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let state = locked(&self.0.opened)
            .get(&pid)
            .map(|(_, state)| Arc::clone(state));
        match state {
            Some(state) => {
                let its = Arc::clone(&state);
                self.run(&state, move || its.reading(work))
            }
            None => Ok(work()),
        }
    }

    /// Forgets a process that has ended.
    pub(crate) fn forget(&self, pid: u32) {
        locked(&self.0.opened).remove(&pid);
    }

    fn gave_up(&self) -> io::Error {
        let seconds = self.0.patience.as_secs_f64();
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "its memory did not answer within {seconds} s and was given up until it does (a file of FUSE, or of a file server that is \
                 gone, may be mapped there)"
            ),
        )
    }

    /// Gives work to the thread; a new one where there is none.
    fn give(&self, work: Work) -> io::Result<()> {
        let mut thread = locked(&self.0.thread);
        let mut work = work;
        if let Some(to) = &*thread {
            match to.send(work) {
                Ok(()) => return Ok(()),
                // It has panicked.
                Err(back) => work = back.0,
            }
        }
        let (to, from): (Sender<Work>, Receiver<Work>) = channel();
        thread::Builder::new()
            .name("nvcap-reads".into())
            .spawn(move || from.into_iter().for_each(|work| work()))?;
        // The thread has just begun to wait for it.
        let _ = to.send(work);
        *thread = Some(to);
        Ok(())
    }

    /// Does work that reads of a process, and gives it up where a read lasts too long.
    fn run<T: Send + 'static>(
        &self,
        state: &Arc<State>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        if state.is.load(Ordering::Acquire) == GIVEN_UP {
            return Err(self.gave_up());
        }
        let (to, from): (SyncSender<T>, Receiver<T>) = sync_channel(1);
        state.is.store(ASKED, Ordering::Release);
        let its = Arc::clone(state);
        let given = self.give(Box::new(move || {
            // SAFETY: reads an id.
            its.tid
                .store(unsafe { libc::gettid() } as u32, Ordering::Release);
            let answer = work();
            // Before the state is another: whoever sees that finds the answer.
            let _ = to.send(answer);
            its.is.store(ANSWERED, Ordering::Release);
        }));
        if let Err(e) = given {
            state.is.store(ANSWERED, Ordering::Release);
            return Err(e);
        }
        match self.wait(state, &from) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => {
                // In the middle of a read, perhaps.
                state.reads.fetch_and(!1, Ordering::AcqRel);
                state.is.store(ANSWERED, Ordering::Release);
                return Err(io::Error::other("the thread that reads has panicked"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let is = &state.is;
        let gave_up = is.compare_exchange(ASKED, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
        match gave_up {
            Ok(_) => {
                // Its thread ends with the work.
                *locked(&self.0.thread) = None;
                Err(self.gave_up())
            }
            // It has answered just now.
            Err(_) => from.try_recv().map_err(io::Error::other),
        }
    }

    /// Waits for the answer; `Timeout` where one read lasts too long.
    fn wait<T>(&self, state: &State, from: &Receiver<T>) -> Result<T, RecvTimeoutError> {
        let reads = || state.reads.load(Ordering::Acquire);
        let (mut known, mut since) = (reads(), Instant::now());
        loop {
            match from.recv_timeout(self.0.patience / LOOKS) {
                Err(RecvTimeoutError::Timeout) => {}
                answer => return answer,
            }
            let now = reads();
            if now % 2 == 0 || now != known || wants_processor(state.tid.load(Ordering::Acquire)) {
                (known, since) = (now, Instant::now());
            } else if since.elapsed() >= self.0.patience {
                return Err(RecvTimeoutError::Timeout);
            }
        }
    }
}

impl<M> Patient<M> {
    /// Memory whose reads are waited for.
    pub(crate) fn waiting(memory: M) -> Self {
        Self {
            memory: Arc::new(memory),
            readers: None,
        }
    }
}

impl<M: ReadMemory> ReadMemory for Lent<M> {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        match &self.state {
            Some(state) => state.reading(|| self.memory.read_bytes(at, to)),
            None => self.memory.read_bytes(at, to),
        }
    }
}

impl<M: ReadMemory + Send + Sync + 'static> Lends for Patient<M> {
    type Lent = Lent<M>;

    fn lend<T, W>(&self, work: W) -> io::Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Lent<M>) -> T + Send + 'static,
    {
        let state = self.readers.as_ref().map(|(_, state)| Arc::clone(state));
        let memory = Arc::clone(&self.memory);
        let lent = Lent { memory, state };
        match &self.readers {
            Some((readers, state)) => readers.run(state, move || work(&lent)),
            None => Ok(work(&lent)),
        }
    }
}

impl<M: ReadMemory + Send + Sync + 'static> ReadMemory for Patient<M> {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        if self.readers.is_none() {
            return self.memory.read_bytes(at, to);
        }
        let mut bytes = vec![0; to.len()];
        let read = self.lend(move |memory| {
            memory.read_bytes(at, &mut bytes)?;
            io::Result::Ok(bytes)
        });
        to.copy_from_slice(&read??);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_waiting::until;
    use std::sync::Condvar;

    /// Memory whose reads from this address on wait for a word.
    #[derive(Clone, Default)]
    struct Stuck(Arc<(Mutex<bool>, Condvar)>);

    const STUCK: u64 = 0x1000;

    impl Stuck {
        fn let_go(&self) {
            *self.0.0.lock().unwrap() = true;
            self.0.1.notify_all();
        }
    }

    impl ReadMemory for Stuck {
        fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            if at >= STUCK {
                let may = self.0.0.lock().unwrap();
                drop(self.0.1.wait_while(may, |may| !*may).unwrap());
            }
            to.fill(at as u8);
            Ok(())
        }
    }

    fn read(of: &Patient<Stuck>, at: u64) -> io::Result<u64> {
        of.word(at)
    }

    /// One process's memory does not answer: the read is given up, others are read on, and it is refused until the read has ended.
    #[test]
    fn memory_that_does_not_answer_is_given_up() {
        let never = Readers::new(Duration::from_millis(20));
        let (stuck, fine) = (Stuck::default(), Stuck::default());
        let its = never.open(1, 7, stuck.clone()).unwrap();
        assert!(read(&its, STUCK).is_err(), "it never answers");
        // Others have all the time that they need: the machine may be busy.
        let readers = Readers(Arc::new(Inner {
            patience: nvcap_waiting::GUARD,
            thread: Mutex::new(locked(&never.0.thread).take()),
            opened: Mutex::new(locked(&never.0.opened).clone()),
        }));
        let other = readers.open(2, 7, fine).unwrap();
        assert_eq!(read(&other, 1).unwrap(), 0x0101_0101_0101_0101);
        assert!(never.about(1, || ()).is_err() && readers.about(2, || 3).is_ok_and(|n| n == 3));
        // Not tried again, also where it would answer; and not opened again.
        let again = read(&its, 1).unwrap_err();
        assert!(again.to_string().contains("did not answer"), "{again}");
        assert!(readers.open(1, 7, Stuck::default()).is_err());
        // Another process with its number is another.
        assert!(readers.open(1, 8, Stuck::default()).is_ok());
        locked(&readers.0.opened).clone_from(&locked(&never.0.opened));
        stuck.let_go();
        until("the read ends", || {
            readers.open(1, 7, Stuck::default()).is_ok()
        });
        let open = readers.open(1, 7, stuck).unwrap();
        assert_eq!(read(&open, STUCK).unwrap(), 0);
        readers.forget(1);
        assert!(locked(&readers.0.opened).is_empty());
    }

    /// Work may last as long as it needs, a read may not.
    #[test]
    fn a_read_is_waited_for_and_not_the_work() {
        let readers = Readers::new(Duration::from_millis(1));
        let state = State::default();
        let (to, from) = sync_channel(1);
        let works = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            to.send(3)
        });
        assert_eq!(readers.wait(&state, &from), Ok(3));
        works.join().unwrap().unwrap();
        let (_to, from) = sync_channel::<u32>(1);
        let waited = state.reading(|| readers.wait(&state, &from));
        assert_eq!(waited, Err(RecvTimeoutError::Timeout));
    }

    #[test]
    fn a_thread_that_has_panicked_is_followed_by_another() {
        struct Panics;
        impl ReadMemory for Panics {
            fn read_bytes(&self, at: u64, _: &mut [u8]) -> io::Result<()> {
                assert!(at != 0, "a test of what follows a panic");
                Ok(())
            }
        }
        let readers = Readers::new(nvcap_waiting::GUARD);
        let memory = readers.open(1, 1, Panics).unwrap();
        assert!(memory.word(0).is_err());
        until("another thread reads", || memory.word(1).is_ok());
    }
}
