//! Metric of submissions of which something is not known, by reason. Only numbers that are known are in it.

use super::super::writer::{Kind, Writer};
use super::labels::{Constants, NS, Of};
use crate::counts::detail::Sampled;
use crate::counts::view::{Key, View};

/// The metric's name.
pub(super) const NAME: &str = "nvcap_lost_submissions";

/// Submissions that samples do not tell of, by reason.
pub(super) fn of_samples(sampled: &Sampled) -> [(&'static str, u64); 3] {
    [
        ("early", sampled.early),
        ("lapped", sampled.lapped),
        ("unread", sampled.unread),
    ]
}

/// Writes the metric, if there is anything to tell.
pub(super) fn metrics(text: &mut impl Writer, view: &View, constants: &Constants) {
    if view.left.is_empty() && view.sampled.is_empty() {
        return;
    }
    text.family(
        "nvcap_lost_submissions",
        Kind::Count,
        "",
        "Submissions that are counted, and of which it is not known whether they were done, or what they were.",
    );
    let mut write = |key: &Key, reason: &str, count: u64| {
        let created = view.sums.get(key).map(|c| c.created_unix_ns as f64 * NS);
        let of = Of::new(key, constants);
        let labels = of.labels(&[("reason", reason)]);
        text.counter(&labels, count as f64, created.unwrap_or(constants.began));
    };
    for (key, count) in &view.left {
        write(key, "ended", *count);
    }
    for (key, sampled) in &view.sampled {
        for (reason, count) in of_samples(sampled) {
            write(key, reason, count);
        }
    }
}
