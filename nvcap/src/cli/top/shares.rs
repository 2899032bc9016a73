//! Thread that reads the driver's record of context switches, so that counting never waits for it.

use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::cli::share::{POLL, refused};
use crate::cli::target;
use nvcap_monitor::share::{Share, has_host_pids};
use nvcap_monitor::top::shares::{Part, Shares};
use nvcap_process::rm::{Kernel, Os};

/// The thread that reads the record. It ends once `stop` is true.
pub(super) struct Reader {
    shares: Arc<Mutex<Shares>>,
    stop: Arc<AtomicBool>,
    has_begun: bool,
}

impl Reader {
    pub(super) fn new(stop: Arc<AtomicBool>) -> Self {
        Self {
            shares: Arc::default(),
            stop,
            has_begun: false,
        }
    }

    /// Returns the shares since the last call. Reading begins once a process uses a GPU; until then nvcap leaves the driver alone.
    pub(super) fn take(&mut self, uses_gpu: bool, interval: Duration, host_root: &Path) -> Shares {
        if uses_gpu && !std::mem::replace(&mut self.has_begun, true) {
            let (to, stop) = (Arc::clone(&self.shares), Arc::clone(&self.stop));
            let root = host_root.to_owned();
            let thread = thread::Builder::new().name("nvcap-shares".into());
            let begun = thread.spawn(move || {
                if let Err(why) = read(Rc::new(Kernel), &root, interval, &to, &stop) {
                    *locked(&to) = Shares::Refused(why.to_string());
                }
            });
            if let Err(why) = begun {
                *locked(&self.shares) = Shares::Refused(why.to_string());
            }
        }
        locked(&self.shares).take()
    }
}

fn locked(shares: &Mutex<Shares>) -> MutexGuard<'_, Shares> {
    shares.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(
    os: Rc<dyn Os>,
    host_root: &Path,
    interval: Duration,
    to: &Mutex<Shares>,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    if !has_host_pids() {
        bail!(
            "the driver tells process ids of the host, and this is a container (a PID namespace)"
        );
    }
    let (share, refusals) = Share::open(os, target::running_driver(), &[], host_root)?;
    if share.gpus().next().is_none() {
        match refusals.first() {
            Some(refusal) => bail!("{}", refused(refusal)),
            None => bail!("there is no GPU"),
        }
    }
    let mut share = share.of_parts_alone();
    *locked(to) = Shares::Of(Part::default());
    // Each reading has several parts.
    let each = (interval / 4).clamp(POLL, Duration::from_millis(250));
    let mut due = Instant::now() + each;
    while !stop.load(Ordering::SeqCst) {
        thread::sleep(POLL);
        if Instant::now() < due {
            share.poll()?;
            continue;
        }
        due = Instant::now() + each;
        let views = share.part()?;
        if let Shares::Of(part) = &mut *locked(to) {
            part.add(&views);
        }
        share.forget(&views);
    }
    Ok(())
}
