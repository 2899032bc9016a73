//! Options that capture only a part of the doorbells, for a lower cost.

use std::time::Duration;

use super::values::{ADVANCED, CAPTURE, parse_time_share};

/// The most doorbells of a batch: GP_PUT counts as plausible up to this distance.
const MOST: i64 = 64;

/// Choice of the doorbells that are captured.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct ThinningArgs {
    /// Read a channel's ring once for N doorbells (2 to 64), or for those within --batch-time
    ///
    /// Each doorbell still traps, and nothing is left out; but the time of a submission is that of the reading, and its thread that of the
    /// last doorbell (`how` is batched). nvcap itself reads what no later doorbell reads, when its time has come.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(2..=MOST),
        conflicts_with_all = ["count", "duty", "stacks"],
        help_heading = ADVANCED
    )]
    pub batch: Option<u32>,

    /// With --batch: the longest time that a submission waits to be read, microseconds
    #[arg(
        long,
        value_name = "MICROSECONDS",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(10..=1_000_000),
        requires = "batch",
        help_heading = ADVANCED
    )]
    pub batch_time: u32,

    /// Count doorbells, and capture nothing of them
    ///
    /// Once a second a line tells how many came on each channel; the ledger has the sums. Where a channel is not known (nvcap -p), its
    /// doorbells are captured until it is.
    #[arg(long, conflicts_with_all = ["duty", "stacks", "precommit"], help_heading = CAPTURE)]
    pub count: bool,

    /// Watch doorbells for PERCENT of the time, such as 10%
    ///
    /// In windows of 5 ms and more at random times; between them the program runs without a trap, and what it submits is left out. The
    /// ledger says how long doorbells were watched, and estimates all submissions and bytes, with the interval that contains the true
    /// number with 95 % confidence.
    #[arg(long, value_name = "PERCENT", value_parser = parse_time_share, help_heading = CAPTURE)]
    pub duty: Option<f64>,
}

impl ThinningArgs {
    pub(super) fn mode(&self) -> nvcap_live::trap::session::Mode {
        use nvcap_live::trap::session::Mode;

        match (self.batch, self.count, self.duty) {
            (Some(doorbells), _, _) => Mode::Batch {
                doorbells,
                within: Duration::from_micros(self.batch_time.into()),
            },
            (None, true, _) => Mode::Count,
            (None, false, Some(share)) => Mode::Duty { share },
            (None, false, None) => Mode::Each,
        }
    }
}
