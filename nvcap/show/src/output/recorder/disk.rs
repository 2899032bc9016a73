//! Thread that brings recordings to the disk: what is only in the system's memory is gone when a machine loses its power.
//!
//! A disk may take seconds, and the recorder must not wait: a thread of its own asks the system.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::output::message::tell;

/// Time after which the file that is written is brought to the disk again.
const EVERY: Duration = Duration::from_secs(5);
/// The most requests that wait. When the disk is that far behind, the system itself brings the rest.
const WAITING: usize = 16;

/// A file that is to be on the disk, with its path; of a folder the names of its files.
pub(super) struct Request {
    pub file: File,
    pub path: PathBuf,
}

/// Asks the system and waits for its answer.
type Call = Box<dyn Fn(&Request) -> io::Result<()> + Send>;

/// The thread that brings files to the disk.
pub(super) struct Disk {
    /// Requests to the thread; none once it is to end.
    queue: Option<SyncSender<Request>>,
    thread: Option<JoinHandle<()>>,
    waiting: Arc<AtomicUsize>,
    every: Duration,
    last: Instant,
}

impl Disk {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there are no more threads.
    pub(super) fn new() -> io::Result<Self> {
        Self::with(EVERY, Box::new(|r| r.file.sync_data()))
    }

    /// Starts the thread as [`Disk::new`] does, with another time and another call.
    pub(super) fn with(every: Duration, call: Call) -> io::Result<Self> {
        let (queue, requests) = sync_channel(WAITING);
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        let thread = std::thread::Builder::new()
            .name("nvcap-disk".into())
            .spawn(move || bring(&requests, &call, &left))?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            waiting,
            every,
            last: Instant::now(),
        })
    }

    /// Tells whether the file that is written should be brought to the disk again. Not while earlier requests wait.
    pub(super) fn is_due(&self) -> bool {
        self.last.elapsed() >= self.every && self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Brings a file to the disk, and its name.
    pub(super) fn bring(&mut self, request: Request) {
        self.last = Instant::now();
        let folder = request.path.parent().map(Path::to_owned);
        self.send(request);
        if let Some(folder) = folder {
            self.bring_names(&folder);
        }
    }

    /// Brings the names of a folder's files to the disk.
    pub(super) fn bring_names(&self, folder: &Path) {
        let folder = match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        if let Ok(file) = File::open(folder) {
            self.send(Request {
                file,
                path: folder.to_owned(),
            });
        }
    }

    fn send(&self, request: Request) {
        let Some(queue) = &self.queue else {
            return;
        };
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if queue.try_send(request).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits until all is on the disk, the last request too: nothing is left to be written meanwhile.
    pub(super) fn end(&mut self, last: Option<Request>) {
        let queue = self.queue.take();
        if let (Some(queue), Some(last)) = (queue, last) {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let _ = queue.send(last);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn bring(requests: &Receiver<Request>, call: &Call, waiting: &AtomicUsize) {
    let mut told = false;
    for request in requests {
        if let Err(e) = call(&request)
            && !told
            && !is_refused(&e)
        {
            told = true;
            tell(format_args!(
                "{} may not be on the disk: {e}; if the machine loses its power, some of it may be missing",
                request.path.display()
            ));
        }
        waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells whether a file system cannot be asked (EINVAL). Such a one has nothing that a loss of power would take.
fn is_refused(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}
