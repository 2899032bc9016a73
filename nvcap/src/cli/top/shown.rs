//! The loop that draws and takes keys, whatever is shown.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::Event;

use super::screen::Screen;
use nvcap_monitor::top::state::{Action, State};
use nvcap_monitor::top::table::Table;
use nvcap_monitor::top::view::{self, Around};
use nvcap_show::output::message;
use nvcap_show::output::style::Color;

/// Contents of the screen.
pub(super) trait Shown {
    /// Takes in new data, and returns whether there was any. It is called several times a second.
    ///
    /// # Errors
    /// When there will be no new data any more.
    fn step(&mut self, state: &mut State) -> anyhow::Result<bool>;
    /// Returns the table on the screen.
    fn table(&self, state: &State) -> Table;
    /// Returns the parts around the table; their notice gives way to messages.
    fn around(&self, state: &State) -> Around;
}

/// Time for which each wait for keys lasts.
const TICK: Duration = Duration::from_millis(100);

/// Draws and takes keys until the user, the terminal or a signal ends it.
///
/// # Errors
/// When there is no new data any more, or if the terminal is gone.
pub(super) fn shown(what: &mut impl Shown, mut state: State) -> anyhow::Result<ExitCode> {
    let color = Color::Auto.enabled(true);
    let mut screen = Screen::open()?;
    let mut then = Instant::now();
    let mut is_new = true;
    // The newest message when the last key was pressed, which the user has therefore seen.
    let mut seen = None;
    loop {
        let passed = then.elapsed();
        then = Instant::now();
        is_new |= state.replay.is_some() && !state.is_paused;
        state.passed(passed.as_nanos() as u64);
        is_new |= what.step(&mut state)?;
        if is_new {
            let table = what.table(&state);
            let around = what.around(&state);
            let said = message::newest_held().filter(|said| Some(said) != seen.as_ref());
            let around = Around {
                color,
                notice: said.or(around.notice),
                ..around
            };
            screen.draw(|frame| view::draw(frame, &mut state, &table, &around))?;
        }
        is_new = false;
        let mut wait = TICK;
        while let Some(event) = screen.event(wait)? {
            is_new = true;
            wait = Duration::ZERO;
            let Event::Key(key) = event else { continue };
            seen = message::newest_held();
            match state.key(key, &what.table(&state)) {
                Action::Draw => {}
                Action::Quit => return Ok(ExitCode::SUCCESS),
                Action::Suspend => screen.suspend()?,
            }
        }
        if screen.is_to_end() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}
