//! Options of observing, as the command line gives them.

use nvcap_process::channels_file::ChannelsFile;

/// Options of observing.
#[derive(Clone, Debug, Default)]
pub struct ObserveOptions {
    /// True if children are observed too.
    pub follow: bool,
    /// Channels that the user names. Their doorbells are not needed.
    pub named: ChannelsFile,
    /// Share of one core that this program may use; none for no limit. With a limit there are no readers.
    pub cpu: Option<f64>,
    /// The most threads that look at channels beside the first; none for as many as the processors allow.
    pub readers: Option<usize>,
    /// Processes that are stopped at their end for a last look.
    pub stop_at_exit: StopAtExit,
    /// True if processes that are stopped at their end wait there for [`Source::let_end`](crate::run::Source::let_end), or for a quarter of a
    /// second.
    pub hold_ends: bool,
}

/// Value of `--stop-at-exit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopAtExit {
    /// The command that nvcap starts, and its children, are stopped.
    #[default]
    Command,
    /// Running processes are stopped, too.
    Always,
    /// No process is stopped.
    Never,
}
