//! Work-submit tokens of a process's channels, for a source that follows the channels by other means.

use std::time::Instant;

use super::{
    find::Effort,
    maps::Area,
    process::Peek,
    snapshot::{self, Options},
};

/// Entries of each channel that are looked at: which engine it feeds must agree with its token.
const LAST: u32 = 8;

/// The tokens, each with the address of its channel's ring, as far as the order of channels and error notifiers tells
/// them (`notifier`): of all channels that lie as libcuda lays them out, or of none.
pub fn tokens(memory: &impl Peek, areas: &[Area]) -> Vec<(u64, u32)> {
    let options = Options {
        last: LAST,
        before: 0,
        effort: Effort::Habit,
        given: &[],
    };
    let name = String::new();
    let seen = snapshot::of(memory, 0, name, areas.to_vec(), 0, options, Instant::now());
    let token = |s: &snapshot::Seen| Some((s.found.ring, s.channel.token?));
    seen.channels.iter().filter_map(token).collect()
}
