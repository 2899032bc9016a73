//! `nvcap serve --shares`: who had the GPUs, by the driver's record of context switches, beside the counts.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use nvcap_monitor::counts::view::Shares;
use nvcap_monitor::share::Share;
use nvcap_process::clock;
use nvcap_process::rm::{Error, Kernel};
use nvcap_show::output::message::tell;

use super::{Live, locked};
use crate::cli::share::{POLL, refused, tell_of_limits};
use crate::cli::target;

/// Time between two sums.
const PART: Duration = Duration::from_secs(1);

/// Reads the record from now on, in a thread of its own. Where the driver refuses, that is told, and the metrics are absent.
pub(super) fn begin(live: Arc<Live>, host_root: &Path, by_process: bool) -> io::Result<()> {
    let host_root = host_root.to_owned();
    let thread = thread::Builder::new().name("nvcap-shares".into());
    thread.spawn(move || {
        let Err(why) = read(&live, &host_root, by_process);
        *locked(&live.shares) = None;
        tell(format_args!("no shares of the GPUs from now on: {why}"));
    })?;
    Ok(())
}

fn read(
    live: &Live,
    host_root: &PathBuf,
    by_process: bool,
) -> Result<std::convert::Infallible, Error> {
    let version = target::running_driver();
    let (share, refusals) = Share::open(Rc::new(Kernel), version, &[], host_root)?;
    for refusal in &refusals {
        tell(refused(refusal));
    }
    let mut share = share.of_parts_alone();
    tell_of_limits(&share.gpus().collect::<Vec<_>>());
    *locked(&live.shares) = Some(Shares::default());
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
        if let Some(shares) = &mut *locked(&live.shares) {
            share.add(&part, by_process, shares);
        }
        // It is not counting's, whose budget it would use up.
        let used = clock::thread_cpu();
        locked(&live.host).forgive(used.saturating_sub(spent));
        spent = used;
    }
}
