//! Diagnostics on standard error, when `NVCAP_LOG` asks for them (error, warn, info, debug, trace).

use crate::output::message::tell;

struct Stderr;

impl log::Log for Stderr {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("nvcap") || metadata.level() <= log::Level::Info
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            tell(format_args!(
                "{}: {}",
                record.level().as_str().to_lowercase(),
                record.args()
            ));
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
        log::set_max_level(level);
    }
}
