//! A file while it is read: the progress, shown on a terminal, and the user's Ctrl-C, which ends the reading.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Duration of reading below which no progress is shown.
const LONG: Duration = Duration::from_millis(500);
/// Number of records that are read between two looks at the clock.
const RECORDS: u32 = 64;

/// A file while it is read, with the progress that is shown and the Ctrl-C that ends it.
pub(super) struct Reading {
    /// Number of bytes that were read, and length of the file; `None` if the length is not known.
    read: Arc<AtomicU64>,
    bytes: Option<u64>,
    begun: Instant,
    records: u32,
    /// True if progress may be shown, because the command shows nothing else before the end.
    shown: bool,
    bar: Option<ProgressBar>,
    is_stdin: bool,
    interrupted: bool,
}

/// Opens a file (`-` is standard input), and tracks how far it is read.
///
/// # Errors
/// When it cannot be opened.
pub(super) fn open(path: &Path) -> io::Result<(Box<dyn Read>, Reading)> {
    let (file, bytes): (Box<dyn Read>, _) = match path.as_os_str() == "-" {
        true => (stdin()?, None),
        false => {
            let file = File::open(path)?;
            let known = file.metadata().ok().filter(std::fs::Metadata::is_file);
            (Box::new(file), known.map(|m| m.len()))
        }
    };
    let (reading, counter) = reading(bytes, path.as_os_str() == "-");
    Ok((counter.counted(file), reading))
}

/// Tracks the reading of files of `bytes` in total; the counter gives the progress.
pub(super) fn of_files(bytes: u64) -> (Reading, Counter) {
    reading(Some(bytes), false)
}

fn reading(bytes: Option<u64>, is_stdin: bool) -> (Reading, Counter) {
    let counter = Counter::default();
    let reading = Reading {
        read: counter.0.clone(),
        bytes,
        begun: Instant::now(),
        records: 0,
        shown: false,
        bar: None,
        is_stdin,
        interrupted: false,
    };
    (reading, counter)
}

/// Count of the bytes that were read.
#[derive(Clone, Default)]
pub(super) struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Returns the file, whose bytes are counted as they are read.
    pub(super) fn counted(&self, file: Box<dyn Read>) -> Box<dyn Read> {
        let read = self.0.clone();
        Box::new(Counted { file, read })
    }
}

/// A file that counts the bytes that were read from it.
struct Counted {
    file: Box<dyn Read>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(to)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// A file that ends where the user's Ctrl-C came.
pub(super) struct UntilInterrupted<R>(pub R);

impl<R: Read> Read for UntilInterrupted<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match interrupt::came() {
            true => Ok(0),
            false => self.0.read(to),
        }
    }
}

impl Reading {
    /// Allows progress on standard error, if that is a terminal, because the command shows nothing before the end. `file` is the place of
    /// its output.
    pub(super) fn show_for(&mut self, file: Option<&Path>) {
        let file = file.is_some_and(|path| path.as_os_str() != "-");
        self.shown = file || !output_is_a_pipe();
    }

    /// Makes Ctrl-C end the reading from now on, instead of the program.
    ///
    /// # Errors
    /// When there are no more file descriptors or threads.
    pub(super) fn begin(&mut self) -> anyhow::Result<()> {
        self.begun = Instant::now();
        interrupt::catch()
    }

    /// Records that a record was read. Returns false if the user wants no more.
    pub(super) fn goes_on(&mut self) -> bool {
        self.records = self.records.wrapping_add(1);
        if self.shown && self.records.is_multiple_of(RECORDS) {
            self.progress();
        }
        // After a signal, standard input ends by itself, and the data that was read from it is shown.
        self.interrupted |= !self.is_stdin && interrupt::came();
        !self.interrupted
    }

    /// Tells whether the reading was complete; false if a signal interrupted the wait for more records. It must be called when there are no
    /// more records.
    pub(super) fn is_whole(&mut self) -> bool {
        self.interrupted |= interrupt::cut();
        !self.interrupted
    }

    /// Ends the reading. A signal from now on concerns the output.
    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        interrupt::end();
    }

    fn progress(&mut self) {
        if self.bar.is_none() && self.begun.elapsed() > LONG {
            self.bar = Some(bar(self.bytes));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.read.load(Ordering::Relaxed));
        }
    }
}

/// Makes a bar for a file of a known size, else a count. It is drawn on standard error, and hidden if that is no terminal.
fn bar(bytes: Option<u64>) -> ProgressBar {
    let target = ProgressDrawTarget::stderr();
    let (bar, style) = match bytes {
        Some(bytes) => (
            ProgressBar::with_draw_target(Some(bytes), target),
            "nvcap: reading [{bar:40}] {percent}% of {binary_total_bytes}, {eta} left",
        ),
        None => (
            ProgressBar::with_draw_target(None, target),
            "nvcap: reading {spinner} {binary_bytes}, {binary_bytes_per_sec}",
        ),
    };
    let style =
        ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("=> "))
}

/// Tells whether standard output is a pipe. Its reader, such as a pager, may use the terminal, where progress would be in its way.
fn output_is_a_pipe() -> bool {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd as _;
        use std::os::unix::fs::FileTypeExt as _;

        let output = io::stdout().as_fd().try_clone_to_owned();
        let kind = output.and_then(|fd| File::from(fd).metadata());
        kind.is_ok_and(|m| m.file_type().is_fifo())
    }
    #[cfg(not(unix))]
    {
        true
    }
}

/// Opens standard input. While it has nothing to read, a signal ends the waiting.
fn stdin() -> io::Result<Box<dyn Read>> {
    use std::os::fd::AsFd as _;

    let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(Box::new(interrupt::Awaited::new(file)))
}

/// Handling of the user's signals, as in a live trace.
mod interrupt {
    use std::fs::File;
    use std::io::{self, Read};
    use std::os::fd::AsRawFd as _;
    use std::sync::Once;
    use std::sync::atomic::{AtomicBool, Ordering};

    use nvcap_process::signals;

    pub(super) fn catch() -> anyhow::Result<()> {
        static CAUGHT: Once = Once::new();
        let mut caught = Ok(());
        // SAFETY: reads an id.
        let shows = unsafe { libc::gettid() };
        CAUGHT.call_once(|| caught = signals::catch(shows));
        signals::reads();
        Ok(caught?)
    }

    pub(super) fn came() -> bool {
        signals::is_one()
    }

    pub(super) fn cut() -> bool {
        CUT.load(Ordering::SeqCst)
    }

    pub(super) fn end() {
        signals::traced();
    }

    /// True if a signal ended the wait for standard input.
    static CUT: AtomicBool = AtomicBool::new(false);

    /// The most bytes that are read after a signal: everything that a pipe holds, but not all of an endless input.
    const REST: usize = 1 << 20;

    /// A file, such as a pipe, whose reader waits until data or a signal comes. After a signal it gives the data that is present, and ends.
    pub(super) struct Awaited {
        file: File,
        rest: usize,
    }

    impl Awaited {
        pub(super) fn new(file: File) -> Self {
            Self { file, rest: REST }
        }
    }

    impl Read for Awaited {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let waited = |fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            if let Some(wake) = signals::wake() {
                let mut both = [waited(self.file.as_raw_fd()), waited(wake)];
                // SAFETY: two pollfds. If it fails, only the read waits.
                unsafe { libc::poll(both.as_mut_ptr(), 2, -1) };
            }
            if !signals::is_one() {
                return self.file.read(to);
            }
            let mut own = waited(self.file.as_raw_fd());
            // SAFETY: one pollfd. It does not wait.
            unsafe { libc::poll(&raw mut own, 1, 0) };
            // POLLHUP counts, too: the file then ends by itself, not because of the signal.
            let has_some = own.revents & (libc::POLLIN | libc::POLLHUP) != 0;
            let most = to.len().min(self.rest);
            if has_some && most > 0 {
                let n = self.file.read(&mut to[..most])?;
                self.rest -= n;
                return Ok(n);
            }
            CUT.store(true, Ordering::SeqCst);
            Ok(0)
        }
    }
}
