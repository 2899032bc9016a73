//! A hang in a collective, and those of the watched processes that are missing in it.

use serde_json::Value;

use nvcap_decode::hang::Report;
use nvcap_monitor::watch::{Cause, Finding};
use nvcap_show::output::dump::{self, Collective, Merged, ReportOptions, Shown};

/// Returns the processes of looks, merged.
fn merged(looks: &[&Report]) -> Merged {
    let looks = looks.iter().filter_map(|report| {
        let (mut json, shown) = (
            Vec::new(),
            Shown {
                report,
                moved: None,
            },
        );
        dump::json(&mut json, &shown, &ReportOptions::default());
        let value: Value = serde_json::from_slice(&json).ok()?;
        // These come from no file.
        Some(("process".to_owned(), value))
    });
    dump::merge(&looks.collect::<Vec<_>>())
}

/// Tells whether a process hangs in a collective.
pub(super) fn is_in_one(finding: &Finding) -> bool {
    finding.cause == Cause::Hang && !merged(&[&finding.report]).collectives.is_empty()
}

/// Returns the collective in which a process hangs, using a look at the other watched processes.
pub(super) fn of(finding: &Finding, others: &Report) -> Option<Collective> {
    let all = merged(&[&finding.report, others]).collectives.into_iter();
    let pid = u64::from(finding.pid);
    { all }.find(|c| c.present.iter().any(|p| p.member.pid == pid))
}
