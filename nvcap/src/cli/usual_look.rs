//! Options of a look at processes that several commands take.

use nvcap_monitor::dump::DumpOptions;
use nvcap_process::memory::scan::Effort;

/// Returns the options of a look with names: `last` entries of each channel, and stacks where they are wanted.
pub(super) fn options(last: u32, stacks: bool) -> DumpOptions {
    DumpOptions {
        last,
        effort: Effort::Usual,
        chip: None,
        known_rings: Vec::new(),
        stacks,
        qmd_copies: nvcap_live::enrich::graph_qmds::of,
        kernels: nvcap_live::enrich::names::of,
    }
}
