//! Words of options that several commands have.

use crate::output::units;
use clap::ValueEnum;

/// The heading of the options that say how submissions are captured.
pub(super) const CAPTURE: &str = "Capture";

/// The heading of the options that say what is shown.
pub(super) const SHOWN: &str = "What to show";

/// The heading of the options that say in which form, and where it goes.
pub(super) const OUTPUT: &str = "Output";

/// `--discover`.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Discover {
    /// The first of the others that this machine allows
    #[default]
    Auto,
    /// A kprobe on nvidia.ko's mmap handler
    Kprobe,
    /// fentry and fexit of that handler, which need the module's BTF
    Fentry,
    /// Raw tracepoints on mmap and munmap: works everywhere, and costs each mapping a little
    Tracepoint,
}

#[cfg(feature = "trap")]
impl Discover {
    /// The way; none for all in turn.
    pub(super) fn way(self) -> Option<crate::source::trap::discover::Way> {
        use crate::source::trap::discover::Way;

        match self {
            Discover::Auto => None,
            Discover::Kprobe => Some(Way::Kprobe),
            Discover::Fentry => Some(Way::Fentry),
            Discover::Tracepoint => Some(Way::Tracepoint),
        }
    }
}

/// `-p`.
pub(super) fn parse_pid(text: &str) -> Result<u32, String> {
    let pid = text.parse::<u32>().ok().filter(|pid| *pid != 0);
    pid.ok_or_else(|| format!("'{text}' is no process id: give its number (pgrep, nvidia-smi)"))
}

pub(super) fn parse_seconds(text: &str) -> Result<std::time::Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|s| *s > 0.0)
        .and_then(|s| std::time::Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| format!("'{text}' is no time: give seconds above 0, such as 10 or 0.5"))
}

pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    units::number(text)
        .filter(|n| n.is_power_of_two() && *n >= 64 << 10 && *n <= 2 << 30)
        .ok_or_else(|| {
            format!(
                "'{text}' is no buffer size: give a power of two from 64KiB to 2GiB, such as 64MiB (or 64M)"
            )
        })
}
