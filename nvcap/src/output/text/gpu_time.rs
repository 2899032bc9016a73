//! The column with the GPU's time: how long it worked on what a line shows.

use std::borrow::Cow;

use crate::decode::event::{Context, Operation};
use crate::output::names::is_timed;
use crate::output::units::Nanoseconds;

/// The columns before an operation, with the GPU's time behind them where it is asked for: `?` where it is not known, `*` behind it
/// where it is of several launches or copies together, nothing for what takes no time of its own.
pub(super) fn columns<'a>(
    prefix: &'a str,
    c: &Context,
    entry: u32,
    op: &Operation,
) -> Cow<'a, str> {
    let Some(time) = c.gpu_time_of(entry) else {
        return prefix.into();
    };
    let together = if time.works > 1 { "*" } else { "" };
    let shown = match (is_timed(op), time.duration) {
        (false, _) => String::new(),
        (true, Some(duration)) => format!("{}{together}", Nanoseconds(duration.ns)),
        (true, None) => "?".to_owned(),
    };
    format!("{prefix}{shown:>8}  ").into()
}
