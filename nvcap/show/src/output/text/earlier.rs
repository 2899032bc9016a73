//! The line that stands for what was in a ring before.

use std::io;

use nvcap_decode::decode::event::Context;

use super::{Formatter, Role, Text, plural_of};

impl Text {
    /// Writes the line that stands for earlier entries, at the beginning of their submission.
    pub(super) fn begin_history(&mut self, c: &Context) -> io::Result<()> {
        let Some(earlier) = self.history.begin(c) else {
            return Ok(());
        };
        if self.options.history || self.shows_all() {
            return Ok(());
        }
        self.end_repeats()?;
        self.needed_by(c)?;
        let prefix = self.columns.submission(c);
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line(prefix, 0, Some(Role::Dim));
        let entries = plural_of(earlier.into(), "earlier entry", "earlier entries");
        f.text(format_args!("{entries} in the ring: --history shows them"));
        f.end();
        self.out.end_object()
    }
}
