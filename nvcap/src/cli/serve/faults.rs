//! `nvcap serve --faults`: each error of the driver as a line of JSON, with the kernel that had not ended.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use nvcap_monitor::dump::xids::Xids;
use nvcap_monitor::watch::{Finding, Watch};
use nvcap_process::host::choice::Whom;
use nvcap_show::output::json::text_of;
use nvcap_show::output::message::tell;
use nvcap_show::output::plural::plural_of;
use nvcap_show::output::style::Plain;

use crate::cli::said::Said;

/// Time between two readings of the notifiers; the kernel's log wakes the watch sooner.
const PAUSE: Duration = Duration::from_secs(1);
/// Time between two readings of the notifiers without the kernel's log.
const PAUSE_WITHOUT_LOG: Duration = Duration::from_millis(200);

/// Begins to watch the host for errors, on a thread of its own, so that no process can hold up the counting. Without the kernel's log,
/// these are also the errors that are counted: `count` is called.
///
/// # Errors
/// The errors of starting a thread.
pub(super) fn begin(whom: Whom, count: impl Fn(&Finding) + Send + 'static) -> io::Result<()> {
    let log = Xids::open().ok();
    let (pause, counts) = match log.is_some() {
        true => (PAUSE, false),
        false => (PAUSE_WITHOUT_LOG, true),
    };
    let options = crate::cli::usual_look::options(20, false);
    let mut watch = Watch::new(whom, None, options, log);
    let run = move || {
        let mut out = Some(io::stdout());
        let mut begins = true;
        loop {
            if let Err((pid, e)) = watch.round(Instant::now()) {
                log::info!("process {pid} cannot be watched: {e}");
            }
            while let Some(finding) = watch.next_finding() {
                if counts {
                    count(&finding);
                }
                say(&mut out, finding);
            }
            if std::mem::take(&mut begins) {
                let all = plural_of(watch.len() as u64, "process", "processes");
                tell(format_args!(
                    "watching {all} and those to come for errors of the driver"
                ));
            }
            watch.wait(pause);
        }
    };
    std::thread::Builder::new()
        .name("nvcap-fault".into())
        .spawn(run)
        .map(drop)
}

/// Writes the line. If that fails, reports it once and is silent from then on.
fn say(out: &mut Option<io::Stdout>, finding: Finding) {
    let said = Said::of(&finding);
    // The process may end now.
    drop(finding.hold);
    let Some(stdout) = out else { return };
    let line = text_of(&said.json(None)) + "\n";
    let written = stdout
        .write_all(line.as_bytes())
        .and_then(|()| stdout.flush());
    if let Err(e) = written {
        tell(format_args!(
            "errors of the driver cannot be told on standard output any more ({e}); the last: {}",
            Plain(&said.text())
        ));
        *out = None;
    }
}
