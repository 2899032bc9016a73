//! Without live tracing no process is observed.

use anyhow::bail;

use crate::top::state::{Screen, State};
use crate::top::table::Table;

/// An observed process, of which there is none.
pub(super) enum Observed {}

impl Observed {
    pub(super) fn begin(_pid: u32, _cpu: f64) -> anyhow::Result<Self> {
        bail!(
            "live tracing is not built into this program, so kernels of running processes are not shown; nvcap top FILE shows those of \
             a recording"
        )
    }

    pub(super) fn pid(&self) -> u32 {
        match *self {}
    }

    pub(super) fn take(&mut self) {
        match *self {}
    }

    pub(super) fn table(&self, _screen: Screen, _state: &State) -> Table {
        match *self {}
    }

    pub(super) fn about(&self, _cpu: f64) -> String {
        match *self {}
    }
}
