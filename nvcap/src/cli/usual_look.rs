//! Options for a look at processes that several commands share.

use nvcap_monitor::dump::DumpOptions;
use nvcap_process::memory::scan::Effort;
use nvcap_show::output::gpu_time::earlier::MOST;
use nvcap_show::output::message::tell;

/// Returns the processes that are looked at, those of `first` before others, and reports how many are not.
pub(super) fn few(mut pids: Vec<u32>, first: &[u32]) -> Vec<u32> {
    pids.sort_unstable_by_key(|pid| (!first.contains(pid), *pid));
    pids.dedup();
    let left = pids.len().saturating_sub(MOST);
    if left > 0 {
        tell(format_args!(
            "{} of {} processes are not looked at: too many",
            left,
            pids.len()
        ));
    }
    pids.truncate(MOST);
    pids
}

/// Returns the options of a look with names: `last` entries of each channel, and stacks if they are wanted.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_looked_at_and_the_named_ones_first() {
        assert_eq!(few(vec![5, 3, 5], &[]), [3, 5]);
        let many = few((0..1000).rev().collect(), &[999, 7]);
        assert_eq!((many.len(), &many[..4]), (MOST, &[7, 999, 0, 1][..]));
    }
}
