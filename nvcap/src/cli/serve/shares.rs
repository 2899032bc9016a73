//! `nvcap serve --shares`: the holders of the GPUs, by the driver's record of context switches, besides the counts.

use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use nvcap_monitor::counts::view::Shares;
use nvcap_monitor::share::Share;
use nvcap_process::clock;
use nvcap_process::rm::{Error, Kernel};
use nvcap_show::output::message::tell;

use crate::cli::share::{POLL, refused, tell_of_limits};
use crate::cli::target;

/// Time between two sums.
const PART: Duration = Duration::from_secs(1);

/// The sums; `None` if the driver refuses.
pub(super) type Sums = Mutex<Option<Shares>>;

fn locked(sums: &Sums) -> MutexGuard<'_, Option<Shares>> {
    sums.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the record from now on, in a thread of its own. If the driver refuses, that is reported, and the metrics are absent. `forgive`
/// receives the processor time that this takes, ns.
pub(super) fn begin(
    sums: Arc<Sums>,
    host_root: &Path,
    by_process: bool,
    forgive: impl Fn(u64) + Send + 'static,
) -> io::Result<()> {
    let host_root = host_root.to_owned();
    let thread = thread::Builder::new().name("nvcap-shares".into());
    thread.spawn(move || {
        let Err(why) = read(&sums, &host_root, by_process, forgive);
        *locked(&sums) = None;
        tell(format_args!("no shares of the GPUs from now on: {why}"));
    })?;
    Ok(())
}

fn read(
    sums: &Sums,
    host_root: &Path,
    by_process: bool,
    forgive: impl Fn(u64),
) -> Result<std::convert::Infallible, Error> {
    let version = target::running_driver();
    let (share, refusals) = Share::open(Rc::new(Kernel), version, &[], host_root)?;
    for refusal in &refusals {
        tell(refused(refusal));
    }
    let mut share = share.of_parts_alone();
    tell_of_limits(&share.gpus().collect::<Vec<_>>());
    *locked(sums) = Some(Shares::default());
    let (mut due, mut spent) = (Instant::now() + PART, clock::thread_cpu());
    loop {
        thread::sleep(POLL);
        let now = Instant::now();
        if now < due {
            share.poll()?;
            continue;
        }
        due = now + PART;
        let part = share.part()?;
        if let Some(shares) = &mut *locked(sums) {
            share.add(&part, by_process, shares);
        }
        // The time does not belong to counting, whose budget it would use up.
        let used = clock::thread_cpu();
        forgive(used.saturating_sub(spent));
        spent = used;
    }
}
