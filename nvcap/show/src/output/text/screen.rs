//! Text on a terminal: a head for the columns, and equal lines in a row.

use std::io;

use nvcap_decode::decode::event::{Context, Operation};

use super::{Formatter, Role, Text, brief, gpu_time};

impl Text {
    /// Writes the head of the columns, once, before the first line of an operation.
    pub(super) fn head(&mut self, c: &Context, entry: u32) -> io::Result<()> {
        if !self.options.screen || std::mem::replace(&mut self.headed, true) {
            return Ok(());
        }
        let head = self.columns.head(c, c.gpu_time_of(entry).is_some());
        let mut f = Formatter::new(self.out.object(), self.color);
        if !self.known.is_empty() {
            f.line("", 0, Some(Role::Dim));
            f.text(format_args!("{}", self.known));
            f.end();
        }
        f.line("", 0, Some(Role::Dim));
        f.text(format_args!("{head}"));
        f.end();
        self.out.end_object()
    }

    /// Tells whether sums are shown at the end in the place of the channels' table.
    pub(super) fn sums_up(&self) -> bool {
        let o = &self.options;
        o.screen && !o.quiet && !o.verbose && !o.needed_only
    }

    /// Writes the sums, before the verdict.
    pub(super) fn sums(&mut self) {
        let mut f = Formatter::new(self.out.object(), self.color);
        for line in self.tally.lines() {
            f.line("", 0, None);
            f.text(format_args!("{line}"));
            f.end();
        }
    }

    /// Tells whether an operation has the same line as the one before, and counts it then; else the row before it ends.
    pub(super) fn is_alike(&mut self, c: &Context, entry: u32, op: &Operation) -> io::Result<bool> {
        let waits = matches!(op, Operation::Semaphore(_));
        if !self.options.screen || waits || c.stack.is_some() {
            self.end_repeats()?;
            return Ok(false);
        }
        let mut line = Vec::new();
        let mut f = Formatter::new(&mut line, false).full_names(self.options.full_names);
        let columns = gpu_time::columns("", c, entry, op);
        brief(&mut f, &columns, c, op, None, self.options.redact.as_ref());
        f.end();
        if self.alike.take(c, &line) {
            return Ok(true);
        }
        self.end_repeats()?;
        self.alike.begin(c, line);
        Ok(false)
    }

    /// Says how often the last line came, before anything else is shown.
    pub(super) fn end_alike(&mut self) -> io::Result<()> {
        let Some((c, count)) = self.alike.end() else {
            return Ok(());
        };
        let prefix = self.columns.submission(&c);
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line(prefix, 0, Some(Role::Dim));
        f.text(format_args!("x {count}"));
        f.end();
        self.out.end_object()
    }
}
