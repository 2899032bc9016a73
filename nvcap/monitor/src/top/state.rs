//! State of the display: what the user sees and has asked for. Keys change it; it does nothing itself.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::table::{Order, Row, RowId, Table};

/// A second, ns.
pub const SECOND: u64 = 1_000_000_000;

/// The screens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Screen {
    /// Processes.
    #[default]
    Processes,
    /// Channels.
    Channels,
    /// Kernels, by GPU time.
    Kernels,
    /// Copies.
    Copies,
}

impl Screen {
    /// All screens.
    pub(crate) const ALL: [Self; 4] =
        [Self::Processes, Self::Channels, Self::Kernels, Self::Copies];

    /// Its word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Channels => "channels",
            Self::Kernels => "kernels",
            Self::Copies => "copies",
        }
    }

    /// Tells whether the screen needs a trace: the counts do not tell its content.
    pub fn is_of_works(self) -> bool {
        matches!(self, Self::Kernels | Self::Copies)
    }
}

/// Action that the caller has to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing but drawing.
    Draw,
    /// End.
    Quit,
    /// Stop, as a shell's Ctrl-Z does.
    Suspend,
}

/// Shown moment of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Length of the recording, ns.
    pub length_ns: u64,
    /// The moment, from its beginning, ns.
    pub at_ns: u64,
}

/// State of the display: what the user sees and has asked for.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The screen.
    pub screen: Screen,
    /// The process that was chosen, and its name.
    pub of: Option<(u32, String)>,
    /// Text that rows must have.
    pub filter: String,
    /// True while the filter is being written.
    pub is_writing: bool,
    /// True if help is shown.
    pub helps: bool,
    /// True if nothing new is shown; a recording is paused.
    pub is_paused: bool,
    /// True if rows that may hang come first.
    pub suspects_first: bool,
    /// Moment of the recording that is shown; none of running processes.
    pub replay: Option<Replay>,
    /// True if sums are of the last `last_ns`, else they are of all from the beginning.
    pub is_of_last: bool,
    /// The length of that time, ns.
    pub last_ns: u64,
    /// True if the GPU's times are known: kernels are sorted by them.
    pub has_times: bool,
    /// Order of each screen's rows, where the user has chosen it.
    orders: [Option<Order>; 4],
    chosen: [Option<RowId>; 4],
    /// The first row on the screen; the drawing sets it.
    pub first: usize,
    /// Number of rows that fit on the screen; the drawing sets it.
    pub page: usize,
}

impl State {
    /// Creates the state for the counts (no length) or for a recording, whose end is shown first.
    pub fn new(length_ns: Option<u64>, last_ns: u64) -> Self {
        let replay = length_ns.map(|length_ns| Replay {
            length_ns,
            at_ns: length_ns,
        });
        Self {
            is_paused: replay.is_some(),
            replay,
            last_ns,
            page: 1,
            has_times: true,
            ..Self::default()
        }
    }

    /// Returns the order of this screen's rows.
    pub(crate) fn order(&self) -> Order {
        let order = self.orders.get(self.screen as usize).copied().flatten();
        order.unwrap_or(Order {
            column: match (self.screen, self.replay.is_some()) {
                (Screen::Processes, false) => 6,
                (Screen::Processes, true) => 5,
                (Screen::Channels, false) => 3,
                (Screen::Channels, true) => 4,
                (Screen::Kernels | Screen::Copies, _) if self.has_times => 0,
                (Screen::Kernels, _) => 2,
                (Screen::Copies, _) => 1,
            },
            reversed: false,
        })
    }

    fn set_order(&mut self, order: Order) {
        if let Some(of) = self.orders.get_mut(self.screen as usize) {
            *of = Some(order);
        }
        self.first = 0;
    }

    /// The rows of this screen.
    pub(crate) fn rows<'t>(&self, table: &'t Table) -> Vec<&'t Row> {
        table.arranged(self.order(), self.suspects_first, &self.filter)
    }

    /// Returns the index of the chosen row.
    pub(crate) fn chosen(&self, rows: &[&Row]) -> usize {
        let id = self.chosen.get(self.screen as usize).copied().flatten();
        let at = rows.iter().position(|row| Some(row.id) == id);
        at.unwrap_or(0)
    }

    fn choose(&mut self, rows: &[&Row], at: usize) {
        let row = rows.get(at.min(rows.len().saturating_sub(1)));
        if let (Some(of), Some(row)) = (self.chosen.get_mut(self.screen as usize), row) {
            *of = Some(row.id);
        }
    }

    /// Returns the part of the trace that sums are of, from its beginning, ns. `newest`: how long it lasts until now.
    pub fn span(&self, newest: u64) -> (u64, u64) {
        let to = self.replay.map_or(newest, |r| r.at_ns);
        match self.is_of_last {
            true => (to.saturating_sub(self.last_ns), to),
            false => (0, to),
        }
    }

    /// Lets time pass: a recording that plays goes on.
    pub fn passed(&mut self, ns: u64) {
        if let (Some(replay), false) = (&mut self.replay, self.is_paused) {
            replay.at_ns = replay.at_ns.saturating_add(ns).min(replay.length_ns);
            self.is_paused = replay.at_ns == replay.length_ns;
        }
    }

    fn go(&mut self, ns: i64) {
        if let Some(replay) = &mut self.replay {
            let at = replay.at_ns.saturating_add_signed(ns);
            replay.at_ns = at.min(replay.length_ns);
        }
    }

    fn show(&mut self, screen: Screen) {
        self.screen = screen;
        self.first = 0;
    }

    /// Goes to a screen. From the screen of processes, that becomes the screen of the chosen row's process.
    fn show_of_row(&mut self, screen: Screen, rows: &[&Row]) {
        if self.screen == Screen::Processes {
            let row = rows.get(self.chosen(rows));
            self.of = row.map(|row| (row.pid, row.name.clone()));
            self.filter.clear();
        }
        self.show(screen);
    }

    fn back(&mut self) {
        if !self.filter.is_empty() {
            self.filter.clear();
            return;
        }
        let screen = match self.screen {
            Screen::Kernels | Screen::Copies if self.replay.is_none() => Screen::Channels,
            _ => Screen::Processes,
        };
        self.show(screen);
        if screen == Screen::Processes {
            self.of = None;
        }
    }

    /// Takes a key. `table` is what is on the screen.
    pub fn key(&mut self, key: KeyEvent, table: &Table) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                _ => Action::Draw,
            };
        }
        if self.is_writing {
            self.write(key.code);
            return Action::Draw;
        }
        if self.helps {
            self.helps = false;
            return match key.code {
                KeyCode::Char('q') | KeyCode::F(10) => Action::Quit,
                _ => Action::Draw,
            };
        }
        let rows = self.rows(table);
        if self.moves(key.code, &rows) || self.travels(key) || self.sorts(key.code, table) {
            return Action::Draw;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::F(10) => return Action::Quit,
            KeyCode::Char('?') | KeyCode::F(1) => self.helps = true,
            KeyCode::Char('/' | 'F') | KeyCode::F(3 | 4) => self.is_writing = true,
            KeyCode::Char(' ') => self.pause(),
            KeyCode::Char('t') => self.is_of_last = !self.is_of_last,
            KeyCode::Char('h') => self.suspects_first = !self.suspects_first,
            KeyCode::Enter if self.screen == Screen::Processes && rows.is_empty() => {}
            KeyCode::Enter if self.screen == Screen::Processes => {
                self.show_of_row(Screen::Channels, &rows);
            }
            KeyCode::Char('k') if self.may_show_works(&rows) => {
                self.show_of_row(Screen::Kernels, &rows);
            }
            KeyCode::Char('m') if self.may_show_works(&rows) => {
                self.show_of_row(Screen::Copies, &rows);
            }
            KeyCode::Char('c') => self.show(Screen::Channels),
            KeyCode::Char('p') => {
                self.of = None;
                self.show(Screen::Processes);
            }
            KeyCode::Tab => self.next_screen(),
            KeyCode::Esc | KeyCode::Backspace => self.back(),
            _ => {}
        }
        Action::Draw
    }

    /// Tells whether kernels and copies can be shown: always of a recording, else only of one process, which is observed for it.
    fn may_show_works(&self, rows: &[&Row]) -> bool {
        let has_row = self.screen == Screen::Processes && !rows.is_empty();
        self.replay.is_some() || self.of.is_some() || has_row
    }

    fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        if let (Some(replay), false) = (&mut self.replay, self.is_paused)
            && replay.at_ns == replay.length_ns
        {
            replay.at_ns = 0;
        }
    }

    fn next_screen(&mut self) {
        let works = self.replay.is_some() || self.of.is_some();
        let screens = if works { Screen::ALL.len() } else { 2 };
        let next = (self.screen as usize + 1) % screens;
        self.show(Screen::ALL.get(next).copied().unwrap_or_default());
    }

    /// Takes a key while the user types the filter.
    fn write(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_writing = false,
            KeyCode::Esc => {
                self.is_writing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if self.filter.len() < 256 => self.filter.push(c),
            _ => {}
        }
    }

    /// Takes a key that moves up or down in the table; false if it is none.
    fn moves(&mut self, code: KeyCode, rows: &[&Row]) -> bool {
        let at = self.chosen(rows);
        let to = match code {
            KeyCode::Up => at.saturating_sub(1),
            KeyCode::Down => at + 1,
            KeyCode::PageUp => at.saturating_sub(self.page.max(1)),
            KeyCode::PageDown => at + self.page.max(1),
            KeyCode::Home => 0,
            KeyCode::End => usize::MAX,
            _ => return false,
        };
        self.choose(rows, to);
        true
    }

    /// Takes a key that moves forward or back in a recording; false if it is none.
    fn travels(&mut self, key: KeyEvent) -> bool {
        let far = key.modifiers.contains(KeyModifiers::SHIFT);
        let seconds = match key.code {
            KeyCode::Left if far => -10,
            KeyCode::Right if far => 10,
            KeyCode::Left => -1,
            KeyCode::Right => 1,
            KeyCode::Char('[') => -10,
            KeyCode::Char(']') => 10,
            _ => return false,
        };
        self.go(seconds * SECOND as i64);
        true
    }

    /// Takes a key that sorts by another column, or the other way round; false if it is none.
    fn sorts(&mut self, code: KeyCode, table: &Table) -> bool {
        let order = self.order();
        let columns = table.columns.len().max(1);
        let column = match code {
            KeyCode::Char('<' | ',') => (order.column + columns - 1) % columns,
            KeyCode::Char('>' | '.') | KeyCode::F(6) => (order.column + 1) % columns,
            KeyCode::Char(digit @ '1'..='9') => (digit as usize - '1' as usize).min(columns - 1),
            KeyCode::Char('r' | 'I') => {
                self.set_order(Order {
                    reversed: !order.reversed,
                    ..order
                });
                return true;
            }
            _ => return false,
        };
        self.set_order(Order {
            column,
            reversed: false,
        });
        true
    }
}
