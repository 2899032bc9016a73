//! Lines that stand once, behind those of a trace.

use nvcap_decode::decode::event::Operation;

use crate::output::plural::{plural, plural_of};
use crate::output::style::{Formatter, Role};

/// Counts of what the lines do not show.
#[derive(Debug, Default)]
pub(super) struct AtEnd {
    /// Operations that were left out because they are the driver's own, or nodes of graphs.
    pub(super) left_out: u64,
    /// Number of launches of a profiler's stand-in that hide the program's own kernel.
    stand_ins: u64,
}

impl AtEnd {
    pub(super) fn take(&mut self, op: &Operation) {
        let Operation::Launch(l) = op else { return };
        self.stand_ins += u64::from(l.stand_in.is_some() && l.stand_in == l.program);
    }

    pub(super) fn text(&self, out: &mut Vec<u8>, color: bool) {
        let mut line = |text: std::fmt::Arguments<'_>| {
            let mut f = Formatter::new(out, color);
            f.line("", 0, Some(Role::Dim));
            f.text(text);
            f.end();
        };
        if self.stand_ins > 0 {
            line(format_args!(
                "{} of a profiler's stand-in: under CUPTI each kernel is run through a program of CUPTI's, and of these nothing that was seen tells which",
                plural_of(self.stand_ins, "launch", "launches")
            ));
        }
        if self.left_out > 0 {
            line(format_args!(
                "{} not shown (the driver's own, nodes of graphs): -v shows them",
                plural(self.left_out, "operation")
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::made;
    use nvcap_decode::decode::event::Launch;
    use nvcap_decode::wire::GpuVa;

    #[test]
    fn a_stand_in_is_said_once_with_the_reason() {
        let mut at_end = AtEnd::default();
        let told = |at_end: &AtEnd| {
            let mut out = Vec::new();
            at_end.text(&mut out, false);
            String::from_utf8(out).unwrap()
        };
        let launch = |program: u64, stand_in: Option<u64>| {
            Operation::Launch(Box::new(Launch {
                program: Some(GpuVa(program)),
                stand_in: stand_in.map(GpuVa),
                ..made::launch()
            }))
        };
        at_end.take(&launch(0x1000, None));
        at_end.take(&launch(0x1000, Some(0x2000)));
        assert_eq!(told(&at_end), "", "the program's own kernel is known");
        for _ in 0..3 {
            at_end.take(&launch(0x2000, Some(0x2000)));
        }
        let said = told(&at_end);
        assert!(
            said.contains("3 launches of a profiler's stand-in: "),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
