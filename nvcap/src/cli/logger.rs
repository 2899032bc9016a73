//! Diagnostics on standard error, if `NVCAP_LOG` asks for them (error, warn, info, debug, trace).

use std::sync::OnceLock;
use std::time::Instant;

use nvcap_show::output::message::tell;

struct Stderr;

/// Moment from which the times of messages at level debug and below are counted.
static STARTED: OnceLock<Instant> = OnceLock::new();

impl log::Log for Stderr {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("nvcap") || metadata.level() <= log::Level::Info
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = record.level().as_str().to_lowercase();
            match STARTED.get() {
                Some(started) if record.level() >= log::Level::Debug => tell(format_args!(
                    "{level}: {:.1} ms: {}",
                    started.elapsed().as_secs_f64() * 1e3,
                    record.args()
                )),
                _ => tell(format_args!("{level}: {}", record.args())),
            }
        }
    }

    fn flush(&self) {}
}

/// Installs the logger, if `NVCAP_LOG` names a level.
pub(super) fn init() {
    let level = std::env::var("NVCAP_LOG").ok().and_then(|l| l.parse().ok());
    if let Some(level) = level
        && log::set_logger(&Stderr).is_ok()
    {
        STARTED.get_or_init(Instant::now);
        log::set_max_level(level);
    }
}
