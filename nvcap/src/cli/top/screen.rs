//! The terminal: it is taken, and given back as it was, whatever ends the program.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::{execute, terminal};
use ratatui::{DefaultTerminal, Frame};

use crate::output::message;

/// See the module.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    /// A signal has come.
    ended: Arc<AtomicBool>,
    /// As far as those are concerned that a trace takes.
    signals: u32,
}

/// That there is a terminal to draw on.
///
/// # Errors
/// When standard output is none.
pub(super) fn need() -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        bail!(
            "nvcap top draws on a terminal, and standard output is none: nvcap counts -a writes the same numbers as lines, nvcap stats \
             FILE those of a recording"
        );
    }
    Ok(())
}

/// Signals that a live trace takes; such a trace runs while kernels are shown.
fn traced_signals() -> u32 {
    #[cfg(feature = "trap")]
    {
        crate::source::signals::count()
    }
    #[cfg(not(feature = "trap"))]
    {
        0
    }
}

fn take() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), terminal::EnterAlternateScreen)
}

impl Screen {
    /// Takes the terminal. A panic gives it back, too.
    ///
    /// # Errors
    /// When it cannot be set up.
    pub(super) fn open() -> anyhow::Result<Self> {
        let ended = Arc::new(AtomicBool::new(false));
        let signals = traced_signals();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            signal_hook::flag::register(signal, ended.clone())
                .context("cannot prepare for signals; raise the limit on open files (ulimit -n)")?;
        }
        message::hold();
        let terminal = ratatui::try_init();
        let terminal = terminal.inspect_err(|_| give_back()).context(
            "cannot set up the terminal for nvcap top; nvcap counts writes the same numbers as lines",
        )?;
        Ok(Self {
            terminal,
            ended,
            signals,
        })
    }

    /// Draws.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn draw(&mut self, what: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        let drawn = self.terminal.draw(what).map(|_| ());
        drawn.context("cannot write to the terminal")
    }

    /// A key, or another size; none when none has come for so long.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn event(&mut self, wait: Duration) -> anyhow::Result<Option<Event>> {
        let read = event::poll(wait).and_then(|is_there| is_there.then(event::read).transpose());
        match read {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
            read => read.context("cannot read the terminal"),
        }
    }

    /// Stops the program as Ctrl-Z does elsewhere, and draws all when it goes on.
    ///
    /// # Errors
    /// When the terminal is gone meanwhile.
    pub(super) fn suspend(&mut self) -> anyhow::Result<()> {
        let _ = ratatui::try_restore();
        // SAFETY: stops this process; it goes on here.
        unsafe { libc::raise(libc::SIGTSTP) };
        take()
            .and_then(|()| self.terminal.clear())
            .context("cannot set up the terminal again")
    }

    /// A signal asks for the end.
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
