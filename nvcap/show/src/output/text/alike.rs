//! Equal lines in a row: on a terminal the second and further ones are counted instead of shown.

use nvcap_decode::decode::event::Context;

/// The line that was shown last, and how often it came.
#[derive(Debug, Default)]
pub(super) struct Alike {
    shown: Option<(Context, Vec<u8>)>,
    /// Context of the last line that was counted instead of shown, and the number of lines with it.
    last: Option<(Context, u64)>,
}

impl Alike {
    /// Tells whether a line, without its columns, is like the one before, of the same channel, thread and phase: then it is counted.
    pub(super) fn take(&mut self, c: &Context, line: &[u8]) -> bool {
        let alike = self.shown.as_ref().is_some_and(|(before, shown)| {
            let of = |c: &Context| (c.channel, c.at.pid, c.at.tid, c.phase.clone());
            shown == line && of(before) == of(c)
        });
        if alike {
            let count = self.last.take().map_or(1, |(_, count)| count);
            self.last = Some((c.clone(), count + 1));
        }
        alike
    }

    /// Takes a line that is shown.
    pub(super) fn begin(&mut self, c: &Context, line: Vec<u8>) {
        self.shown = Some((c.clone(), line));
        self.last = None;
    }

    /// Ends the row: the last line that was counted, and the number of all in it; `None` if none was counted.
    pub(super) fn end(&mut self) -> Option<(Context, u64)> {
        self.shown = None;
        self.last.take()
    }
}
