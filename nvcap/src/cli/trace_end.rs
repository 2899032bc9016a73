//! Messages at the end of a trace: hits of breakpoints that the machine has lost, and the end of the command.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use nvcap_decode::ledger::{STATUS_COMPLETE, STATUS_FAULTED, STATUS_NO_GPU, Trapped};
use nvcap_decode::record::{At, Loss, Lost, Record};
use nvcap_live::trap::live::End;
use nvcap_show::output::message::tell;

/// Returns the account of the trap, for the ledger.
pub(super) fn account(end: &End) -> Trapped {
    log::info!("{:?}", end.totals);
    let stats = &end.totals.stats;
    Trapped {
        hits: end.totals.kernel_hits,
        runs: stats.hits + stats.again + stats.foreign,
        before: stats.before,
        deferred: stats.deferred,
        put_off: stats.put_off,
        counted: stats.counted,
        stray_traps: stats.stray,
        duty: end.totals.duty,
    }
}

/// Returns a record of the loss if a SIGTRAP ended the command while its doorbells were watched, and the trace does not report the cause of
/// such signals. Some hypervisors lose a hit, and the program gets the trap instead (see `nvcap doctor`).
pub(super) fn lost_trap(child: Option<ExitStatus>, end: &End) -> Option<Record> {
    let trapped = child.is_some_and(|c| c.signal() == Some(libc::SIGTRAP));
    let is_told = end.totals.trap_deaths_are_told;
    (trapped && !is_told && end.totals.kernel_hits > 0).then(|| {
        Record::Loss(Loss {
            at: At::default(),
            channel: None,
            what: Lost::Untraced {
                why: "the command was ended by SIGTRAP: this machine may have lost a hit of nvcap's breakpoint (nvcap doctor --trap), \
                      and with it the command's last submission; --how observe sets no breakpoint"
                    .to_owned(),
            },
        })
    })
}

/// Returns the exit status, after the command's own was reported. `passes_on` is `--exit-with-child`.
pub(super) fn end(passes_on: bool, child: Option<ExitStatus>, status: u8) -> ExitCode {
    let Some(child) = child else {
        return ExitCode::from(status);
    };
    if !child.success() {
        tell(format_args!("the command ended with {child}"));
    }
    let passes_on = passes_on
        && match status {
            STATUS_COMPLETE | STATUS_NO_GPU => true,
            // A command that succeeded has not noticed the fault.
            STATUS_FAULTED => !child.success(),
            _ => false,
        };
    if passes_on {
        // In the form of a shell: 128 plus the signal's number.
        let code = child
            .code()
            .or(child.signal().map(|s| 128 + s))
            .unwrap_or(1);
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    ExitCode::from(status)
}
