//! Data words that are gathered into one line.

use nvcap_decode::decode::event::{Context, MethodWrite};

/// Consecutive data words to one method.
#[derive(Default)]
pub(super) struct DataRun {
    serial: u64,
    pub(super) first: Option<MethodWrite>,
    pub(super) data: Vec<u8>,
}

impl DataRun {
    /// Tells whether a method write continues the run.
    pub(super) fn takes(&self, c: &Context, m: &MethodWrite) -> bool {
        /// The most bytes of a run, which is kept in memory until it ends: at one MiB it becomes a line, and a new one begins.
        const MOST: usize = 1 << 20;
        self.data.len() < MOST
            && self.serial == c.serial
            && self.first.is_some_and(|f| {
                (f.class, f.method, f.subchannel, f.masked)
                    == (m.class, m.method, m.subchannel, m.masked)
                    && f.entry == m.entry
                    && m.offset == f.offset.wrapping_add(self.data.len() as u32)
            })
    }

    pub(super) fn take(&mut self, c: &Context, m: &MethodWrite) {
        if self.first.is_none() {
            self.first = Some(*m);
            self.serial = c.serial;
            self.data.clear();
        }
        self.data.extend_from_slice(&m.data.to_le_bytes());
    }
}
