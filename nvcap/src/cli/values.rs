//! Words of options that several commands have.

use clap::ValueEnum;
use nvcap_show::output::units;

/// Heading of the options that determine how submissions are captured.
pub(super) const CAPTURE: &str = "Capture";

/// Heading of the options that few users need. They come last.
pub(super) const ADVANCED: &str = "Advanced";

/// Heading of the options that determine what is shown.
pub(super) const SHOWN: &str = "What to show";

/// Heading of the options that determine the form and the place of the output.
pub(super) const OUTPUT: &str = "Output";
/// Heading of the filters of `-a`.
pub(super) const WHOM: &str = "Which processes (-a)";

/// Option by which an output replaces the contents of a file.
#[derive(clap::Args, Debug, Clone, Copy, Default)]
#[group(skip)]
pub(super) struct Force {
    /// Write over FILE where there is something in it; without this option nvcap leaves it as it is, and ends
    #[arg(long)]
    pub force: bool,
}

/// Returns a command without those options of others that have no meaning for it. They are hidden, not refused.
pub(super) fn without(command: clap::Command, useless: &[&'static str]) -> clap::Command {
    { useless.iter() }.fold(command, |command, id| {
        command.mut_arg(*id, |arg| arg.hide(true))
    })
}

/// Returns a command with other help texts for options that it shares. `words` are pairs of an option's id and its text.
pub(super) fn saying(
    command: clap::Command,
    words: &[(&'static str, &'static str)],
) -> clap::Command {
    { words.iter() }.fold(command, |command, (id, help)| {
        command.mut_arg(*id, |arg| arg.help(*help).long_help(None))
    })
}

/// Values of `--discover`.
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

impl Discover {
    /// Returns the way; `None` means all in turn.
    pub(super) fn way(self) -> Option<nvcap_live::trap::discover::Way> {
        use nvcap_live::trap::discover::Way;

        match self {
            Discover::Auto => None,
            Discover::Kprobe => Some(Way::Kprobe),
            Discover::Fentry => Some(Way::Fentry),
            Discover::Tracepoint => Some(Way::Tracepoint),
        }
    }
}

/// Parses `-p` of one process.
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

/// Parses a time with its unit (200ms, 60s, 5m, 1.5h), in seconds if there is none.
pub(super) fn parse_time(text: &str) -> Result<std::time::Duration, String> {
    let (number, unit) = match text.chars().last() {
        Some('s') if text.ends_with("ms") => (text.strip_suffix("ms"), 0.001),
        Some('s') => (text.strip_suffix('s'), 1.0),
        Some('m') => (text.strip_suffix('m'), 60.0),
        Some('h') => (text.strip_suffix('h'), 3600.0),
        _ => (Some(text), 1.0),
    };
    number
        .and_then(|n| n.parse::<f64>().ok())
        .filter(|n| *n > 0.0)
        .and_then(|n| std::time::Duration::try_from_secs_f64(n * unit).ok())
        .ok_or_else(|| {
            format!("'{text}' is no time: give one above 0, such as 200ms, 60s, 5m or 1.5h")
        })
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

/// Parses a share of a core, or of several.
pub(super) fn parse_share(text: &str) -> Result<f64, String> {
    let digits = text.strip_suffix('%').unwrap_or(text);
    digits
        .parse::<f64>()
        .ok()
        .filter(|p| (0.01..=10_000.0).contains(p))
        .map(|p| p / 100.0)
        .ok_or_else(|| {
            format!("'{text}' is no share of a core: give percent from 0.01 to 10000, such as 5%")
        })
}

/// Parses a share of one core, for the work of one thread, which cannot take more.
pub(super) fn parse_core(text: &str) -> Result<f64, String> {
    let share = parse_share(text).ok().filter(|share| *share <= 1.0);
    share.ok_or_else(|| {
        format!("'{text}' is no share of one core: give percent from 0.01 to 100, such as 0.5%")
    })
}

/// Parses a share of the time.
pub(super) fn parse_time_share(text: &str) -> Result<f64, String> {
    let digits = text.strip_suffix('%').unwrap_or(text);
    let percent = digits.parse::<f64>().ok();
    percent
        .filter(|p| (0.1..100.0).contains(p))
        .map(|p| p / 100.0)
        .ok_or_else(|| {
            format!("'{text}' is no share of the time: give percent from 0.1 to less than 100, such as 10%")
        })
}

/// Parses a share of one core, since one thread cannot take more.
pub(super) fn parse_part(text: &str) -> Result<f64, String> {
    let share = parse_share(text)?;
    if share > 1.0 {
        return Err(format!(
            "time stamps are read by one thread, which takes no more than one processor: give percent from 0.01 to 100 instead of '{text}', \
             such as 5%, or leave the option out to read without a pause"
        ));
    }
    Ok(share)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_share_of_one_core_is_no_more_than_the_whole() {
        assert_eq!(super::parse_core("100%"), Ok(1.0));
        assert_eq!(super::parse_core("0.5"), Ok(0.005));
        for wrong in ["200", "100.1%", "0", "-1", "x"] {
            let said = super::parse_core(wrong).unwrap_err();
            assert!(said.contains("from 0.01 to 100,"), "{said}");
        }
        assert_eq!(super::parse_share("200%"), Ok(2.0));
    }

    #[test]
    fn times_with_units() {
        let seconds = |text| super::parse_time(text).map(|d| d.as_secs_f64());
        assert_eq!(seconds("60s"), Ok(60.0));
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert_eq!(seconds("5m"), Ok(300.0));
        assert_eq!(seconds("1.5h"), Ok(5400.0));
        for wrong in ["", "s", "-1s", "0", "1d", "nan", "inf", "1e300h"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
