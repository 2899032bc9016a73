//! Fills in a row that differ only in their address become two lines: libcuda's set-up of a context has 65 such fills.

use nvcap_decode::decode::event::{Context, Copy, Operation};

/// The last fill that was shown, and how many like it followed.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    shown: Option<(Context, Copy)>,
    more: u64,
}

impl Repeats {
    /// Takes an operation that is shown: the following ones may be like it.
    pub(super) fn begin(&mut self, c: &Context, op: &Operation) {
        self.shown = match op {
            Operation::Copy(copy) if copy.src.is_none() && copy.dst.is_some() => {
                Some((c.clone(), (**copy).clone()))
            }
            _ => None,
        };
        self.more = 0;
    }

    /// Tells whether an operation is like the one shown: then it is counted instead of shown.
    pub(super) fn take(&mut self, c: &Context, op: &Operation) -> bool {
        let (Some((context, shown)), Operation::Copy(copy)) = (&mut self.shown, op) else {
            return false;
        };
        let alike = context.channel == c.channel
            && context.phase == c.phase
            && copy.src.is_none()
            && copy.bytes == shown.bytes
            && (copy.lines, copy.mode, copy.physical) == (shown.lines, shown.mode, shown.physical)
            && copy.pattern == shown.pattern;
        if alike {
            (*context, *shown) = (c.clone(), (**copy).clone());
            self.more += 1;
        }
        alike
    }

    /// Ends the row. Returns the last fill that was counted, and the number of those; `None` if none was.
    pub(super) fn end(&mut self) -> Option<(Context, Operation, u64)> {
        let more = std::mem::take(&mut self.more);
        let (context, copy) = self.shown.take()?;
        (more > 0).then(|| (context, Operation::Copy(Box::new(copy)), more))
    }
}
