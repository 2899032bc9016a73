//! View of this machine: the counts of all processes and, for one process, the results of observing it.

use std::time::Duration;

use super::observed::Observed;
use super::readings::Readings;
use super::shown::Shown;
use nvcap_monitor::top::live::{Live, Reading};
use nvcap_monitor::top::state::{Screen, State};
use nvcap_monitor::top::table::Table;
use nvcap_monitor::top::view::Around;
use nvcap_process::host::choice::Whom;

/// View of this machine: the counts of all processes and, for one process, the results of observing it.
pub(super) struct Machine {
    readings: Readings,
    live: Live,
    is_named: bool,
    observe_cpu: f64,
    observed: Option<Observed>,
}

impl Machine {
    /// Begins to read the chosen processes.
    ///
    /// # Errors
    /// When there are no more threads.
    pub(super) fn of(
        whom: Whom,
        interval: Duration,
        hang: Duration,
        observe_cpu: f64,
    ) -> anyhow::Result<Self> {
        let is_named = matches!(whom, Whom::Named(_));
        Ok(Self {
            readings: Readings::begin(whom, interval)?,
            live: Live::new(hang.as_nanos() as u64),
            is_named,
            observe_cpu,
            observed: None,
        })
    }

    /// Checks that a process that was named may be read.
    fn check(&self, reading: &Reading) -> anyhow::Result<()> {
        let refused = reading.view.refused.iter().next();
        if let Some((pid, refused)) = refused.filter(|_| self.is_named) {
            return Err(crate::cli::process_filter::cannot_look(*pid, refused));
        }
        Ok(())
    }

    /// Observes the process whose kernels are shown, and no other.
    fn observe(&mut self, state: &State) -> anyhow::Result<()> {
        let pid = state.of.as_ref().map(|(pid, _)| *pid);
        let is_of = |o: &Observed| Some(o.pid()) == pid;
        if !self.observed.as_ref().is_some_and(is_of) {
            self.observed = None;
        }
        match pid {
            Some(pid) if state.screen.is_of_works() && self.observed.is_none() => {
                self.observed = Some(Observed::begin(pid, self.observe_cpu)?);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Shown for Machine {
    fn step(&mut self, state: &mut State) -> anyhow::Result<bool> {
        self.observe(state)?;
        if state.is_paused {
            return Ok(false);
        }
        let shows_works = state.screen.is_of_works() && self.observed.is_some();
        let Some(reading) = self.readings.take()? else {
            return Ok(shows_works);
        };
        self.check(&reading)?;
        self.live.take(reading);
        if let Some(observed) = &mut self.observed {
            observed.take(self.live.submitted(observed.pid()));
        }
        Ok(true)
    }

    fn table(&self, state: &State) -> Table {
        let pid = state.of.as_ref().map(|(pid, _)| *pid);
        match (state.screen, &self.observed) {
            (Screen::Processes, _) => self.live.processes(),
            (Screen::Channels, _) => self.live.channels(pid),
            (screen, Some(observed)) => observed.table(screen, state),
            (_, None) => Table {
                empty: "choose a process first (p, then Enter)".to_owned(),
                ..Table::default()
            },
        }
    }

    fn around(&self, state: &State) -> Around {
        let observed = self.observed.as_ref();
        let observed = observed.map(|o| o.about(self.observe_cpu));
        let about = match state.screen {
            Screen::Processes => Some(self.live.about()),
            _ => observed,
        };
        let over = "all processes that were named have ended (q ends)";
        Around {
            head: self.live.head(),
            about: about.unwrap_or_default(),
            gauges: self.live.gauges(),
            faults: self.live.faults(),
            notice: self.live.is_over().then(|| over.to_owned()),
            ..Around::default()
        }
    }
}
