//! The terminal, which is taken over, and given back in its former state however the program ends.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::{execute, terminal};
use ratatui::{DefaultTerminal, Frame};

use nvcap_show::output::message;

/// The terminal, which is given back in its former state however the program ends.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    /// File from which keys come.
    keys: File,
    /// True if a signal has come.
    ended: Arc<AtomicBool>,
    /// Number of signals that had come to live traces when the screen was opened.
    signals: u32,
}

/// Checks that standard output is a terminal.
///
/// # Errors
/// When standard output is no terminal.
pub(super) fn need() -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        bail!(
            "nvcap top draws on a terminal, and standard output is none: nvcap counts -a writes the same numbers as lines, nvcap stats \
             FILE those of a recording"
        );
    }
    Ok(())
}

/// Returns the number of signals that have come to live traces so far. Such a trace runs while kernels are shown, and its handlers take
/// the signals.
fn traced_signals() -> u32 {
    nvcap_process::signals::count()
}

/// Opens the terminal from which keys come, as crossterm finds it.
fn keys() -> io::Result<File> {
    let input = io::stdin();
    match input.is_terminal() {
        true => Ok(File::from(input.as_fd().try_clone_to_owned()?)),
        false => File::open("/dev/tty"),
    }
}

/// Time that the end may take after a signal.
const PATIENCE: Duration = Duration::from_secs(2);

/// Starts a thread that ends the program `PATIENCE` after a signal. It is needed if drawing blocks on a terminal that takes no output.
fn watch(ended: Arc<AtomicBool>, signals: u32) -> anyhow::Result<()> {
    let wait = move || {
        while !ended.load(Ordering::SeqCst) && traced_signals() == signals {
            thread::sleep(Duration::from_millis(500));
        }
        thread::sleep(PATIENCE);
        let _ = terminal::disable_raw_mode();
        std::process::exit(1);
    };
    thread::Builder::new()
        .name("nvcap-terminal".into())
        .spawn(wait)
        .map_err(|e| nvcap_process::error::no_thread(&e))?;
    Ok(())
}

fn take() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), terminal::EnterAlternateScreen)
}

impl Screen {
    /// Takes over the terminal. A panic gives it back, too.
    ///
    /// # Errors
    /// When it cannot be set up.
    pub(super) fn open() -> anyhow::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let signals = traced_signals();
        let keys = keys().context("cannot open the terminal for keys (/dev/tty)")?;
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            signal_hook::flag::register(signal, ended.clone())
                .context("cannot prepare for signals; raise the limit on open files (ulimit -n)")?;
        }
        watch(ended.clone(), signals)?;
        message::hold();
        let terminal = ratatui::try_init();
        let terminal = terminal.inspect_err(|_| give_back()).context(
            "cannot set up the terminal for nvcap top; nvcap counts writes the same numbers as lines",
        )?;
        Ok(Self {
            terminal,
            keys,
            ended,
            signals,
        })
    }

    /// Draws the screen.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn draw(&mut self, what: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        let drawn = self.terminal.draw(what).map(|_| ());
        drawn.context("cannot write to the terminal")
    }

    /// Returns the next key or change of size; `None` if nothing comes within `wait`.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn event(&mut self, wait: Duration) -> anyhow::Result<Option<Event>> {
        self.wait(wait)?;
        let is_there = event::poll(Duration::ZERO);
        let read = is_there.and_then(|is_there| is_there.then(event::read).transpose());
        match read {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
            read => read.context("cannot read the terminal"),
        }
    }

    /// Waits for keys or a signal. Fails if the terminal is gone, because crossterm would wait for its keys forever.
    fn wait(&self, wait: Duration) -> anyhow::Result<()> {
        let mut keys = libc::pollfd {
            fd: self.keys.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&mut keys, 1, wait.as_millis() as i32) };
        if keys.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
            bail!("the terminal is gone");
        }
        Ok(())
    }

    /// Stops the program, as Ctrl-Z does in other programs, and draws everything when it goes on.
    ///
    /// # Errors
    /// When the terminal is gone meanwhile.
    pub(super) fn suspend(&mut self) -> anyhow::Result<()> {
        let _ = ratatui::try_restore();
        // SAFETY: stops this process, which continues here.
        unsafe { libc::raise(libc::SIGTSTP) };
        take()
            .and_then(|()| self.terminal.clear())
            .context("cannot set up the terminal again")
    }

    /// Tells whether a signal asks for the end.
    pub(super) fn is_to_end(&self) -> bool {
        self.ended.load(Ordering::SeqCst) || traced_signals() != self.signals
    }
}

fn give_back() {
    let _ = ratatui::try_restore();
    message::release();
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}
