//! View of a recording at a moment that the user chooses.

use std::path::Path;

use super::shown::Shown;
use nvcap_monitor::top::state::{SECOND, State};
use nvcap_monitor::top::table::Table;
use nvcap_monitor::top::tally::Tally;
use nvcap_monitor::top::view::Around;
use nvcap_monitor::top::works;
use nvcap_show::output::plural::plural_of;

/// View of a recording, at a moment that the user chooses.
pub(super) struct Recorded {
    tally: Tally,
    name: String,
    /// Number that is added to the recording's times to get the time of day, ns; 0 if it is not known.
    offset: u64,
}

impl Recorded {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn of(
        file: &Path,
        read: impl FnOnce(&Path) -> anyhow::Result<(Tally, u64)>,
    ) -> anyhow::Result<Self> {
        let (tally, offset) = read(file)?;
        let name = file.file_name().unwrap_or(file.as_os_str());
        Ok(Self {
            tally,
            name: name.to_string_lossy().into_owned(),
            offset,
        })
    }

    /// Returns the length of the recording, ns.
    pub(super) fn length_ns(&self) -> u64 {
        self.tally.length_ns()
    }

    /// Tells whether the recording has the GPU's times.
    pub(super) fn has_times(&self) -> bool {
        self.tally.has_times()
    }
}

impl Shown for Recorded {
    fn step(&mut self, _state: &mut State) -> anyhow::Result<bool> {
        Ok(false)
    }

    fn table(&self, state: &State) -> Table {
        let pid = state.of.as_ref().map(|(pid, _)| *pid);
        let span = state.span(self.tally.length_ns());
        works::table(&self.tally, state.screen, pid, span, None)
    }

    fn around(&self, state: &State) -> Around {
        let at = state.span(self.tally.length_ns()).1;
        let seconds = |ns: u64| ns as f64 / SECOND as f64;
        let mut head = format!(
            "{}: {:.1} s of {:.1} s",
            self.name,
            seconds(at),
            seconds(self.length_ns())
        );
        if self.offset > 0 {
            let second = (self.tally.origin() + at + self.offset) / SECOND % 86_400;
            head += &format!(
                ", {:02}:{:02}:{:02} UTC",
                second / 3600,
                second / 60 % 60,
                second % 60
            );
        }
        let processes = self.tally.processes().len() as u64;
        head += &format!("  {}", plural_of(processes, "process", "processes"));
        let about = match self.has_times() {
            true => String::new(),
            false => "no times of the GPU (nvcap record --gpu-time records them)".to_owned(),
        };
        Around {
            head,
            about,
            faults: self.tally.faults(at, self.offset).lines(),
            ..Around::default()
        }
    }
}
