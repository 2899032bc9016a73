//! Context switches of a GPU, as its driver recorded them.

use super::{At, Identity};
use crate::switches::{Reading, Scope, Told};

/// The most news items in a record: several times the room in the driver's buffer.
pub const MOST_TOLD: usize = 1 << 18;

/// Context switches of one GPU in a window of time.
///
/// The windows of a GPU follow one another while it is recorded. The news of a window may have GPU times somewhat before it, because the
/// driver takes its records from the GPU some time after they were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    /// End of the window.
    pub at: At,
    /// Number N of the GPU's `/dev/nvidiaN`.
    pub gpu: u32,
    /// Users whose processes the driver reports.
    pub scope: Scope,
    /// Clocks at the window's beginning.
    pub from: Reading,
    /// Clocks at the window's end.
    pub to: Reading,
    /// News, in the order in which they happened.
    pub told: Vec<Told>,
    /// Processes that are in this window and in no earlier one, with their identity if known. An id that now belongs to another process is
    /// given again.
    pub processes: Vec<(u32, Option<Identity>)>,
}

impl Switches {
    /// Returns the length of the window, ns.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.to.host_ns.saturating_sub(self.from.host_ns)
    }

    /// Returns the number of the driver's records in it.
    #[must_use]
    pub fn switches(&self) -> u64 {
        let is_switch = |told: &&Told| matches!(told, Told::Switch(_));
        self.told.iter().filter(is_switch).count() as u64
    }

    /// Returns the host's time for a time of the GPU, ns, by the clocks at the window's beginning and end.
    #[must_use]
    pub fn host_ns(&self, gpu_ns: u64) -> u64 {
        let (from, to) = (self.from, self.to);
        let wide = i128::from;
        let gpu = wide(to.gpu_ns) - wide(from.gpu_ns);
        let host = wide(to.host_ns) - wide(from.host_ns);
        let since = wide(gpu_ns) - wide(from.gpu_ns);
        // Clocks that stand still, or are absurdly far apart, show nothing about their speed.
        let passed = match since.checked_mul(host) {
            Some(scaled) if gpu > 0 && host > 0 => scaled / gpu,
            _ => since,
        };
        (wide(from.host_ns) + passed).clamp(0, wide(u64::MAX)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_gpu_are_times_of_the_host() {
        let reading = |host_ns, gpu_ns| Reading {
            host_ns,
            gpu_ns,
            error_ns: 0,
        };
        let mut window = Switches {
            at: At::default(),
            gpu: 0,
            scope: Scope::AllUsers,
            from: reading(1_000, 50_000),
            to: reading(3_000, 51_000),
            told: Vec::new(),
            processes: Vec::new(),
        };
        let all = [50_000, 50_500, 51_000, 49_900].map(|gpu| window.host_ns(gpu));
        assert_eq!(all, [1_000, 2_000, 3_000, 800]);
        // Clocks that stand still, and times that no clock has.
        window.to = window.from;
        assert_eq!(window.host_ns(50_007), 1_007);
        assert_eq!(
            (window.host_ns(0), window.host_ns(u64::MAX)),
            (0, u64::MAX - 49_000)
        );
        (window.from, window.to) = (reading(0, 0), reading(u64::MAX, 1));
        assert_eq!(window.host_ns(u64::MAX), u64::MAX);
    }
}
