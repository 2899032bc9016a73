//! The column with the time for which the GPU worked on what a line shows.

use std::borrow::Cow;

use crate::output::gpu_time::told;
use crate::output::names::is_timed;
use crate::output::units::Nanoseconds;
use nvcap_decode::decode::event::{Context, Operation};

/// The columns before an operation, followed by the GPU's time if that was asked for, and by its error where that shows in three digits. `?`
/// stands for a time that is not known, `*` behind a time that several launches or copies share, `<` before the longest that it can be where it is not known well enough to be counted; the column is blank for operations that take no GPU time of their own.
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
    let known = told(time).filter(|_| is_timed(op));
    let error = known.filter(|d| d.error_ns.saturating_mul(100) > d.ns);
    let error = error.map_or_else(String::new, |d| format!(" +-{}", Nanoseconds(d.error_ns)));
    let shown = match (is_timed(op), known, time.duration) {
        (false, _, _) => String::new(),
        (true, Some(duration), _) => format!("{}{together}", Nanoseconds(duration.ns)),
        (true, None, Some(vague)) => {
            let most = vague.ns.saturating_add(vague.error_ns);
            format!("<{}{together}", Nanoseconds(most))
        }
        (true, None, None) => "?".to_owned(),
    };
    format!("{prefix}{shown:>8}{error}  ").into()
}
