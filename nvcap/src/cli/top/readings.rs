//! Thread that reads the counts, so that keys never wait for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::bail;

use super::super::usual_look;
use super::running::Running;
use super::shares;
use nvcap_monitor::counts::host::{Host, HostOptions};
use nvcap_monitor::counts::pace::rest;
use nvcap_monitor::counts::system::Machine;
use nvcap_monitor::counts::view::{ProcessView, View};
use nvcap_monitor::dump::{self, xids::Xids};
use nvcap_monitor::top::faults::{Faulted, Faults, New, Told};
use nvcap_monitor::top::live::{Reading, Who};
use nvcap_process::host::{self, Uses, choice::Whom};
use nvcap_process::xids::EachOnce;
use nvcap_show::output::dump as dump_text;
use nvcap_show::output::fault;

/// The thread that reads the counts. It ends when this is dropped.
pub(super) struct Readings {
    newest: Arc<Mutex<Option<Reading>>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Readings {
    /// Begins to read.
    ///
    /// # Errors
    /// When there are no more threads.
    pub(super) fn begin(whom: Whom, interval: Duration) -> anyhow::Result<Self> {
        let newest = Arc::new(Mutex::new(None));
        let stop = Arc::new(AtomicBool::new(false));
        let (to, until) = (newest.clone(), stop.clone());
        let thread = thread::Builder::new()
            .name("nvcap-counts".into())
            .spawn(move || read(whom, interval, &to, until))
            .map_err(|e| nvcap_process::error::no_thread(&e))?;
        Ok(Self {
            newest,
            stop,
            thread,
        })
    }

    /// Returns the newest reading, once.
    ///
    /// # Errors
    /// When there will be no more readings.
    pub(super) fn take(&self) -> anyhow::Result<Option<Reading>> {
        if self.thread.is_finished() {
            bail!(
                "the counts are not read any more; please report this, with what was said before"
            );
        }
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(newest.take())
    }
}

impl Drop for Readings {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// Share of a core that looking at the GPUs' work may take.
const LOOKS: f64 = 0.005;

/// The most looks at processes with an error in one reading.
const MOST_LOOKS: usize = 4;

/// Errors of the driver, from the kernel's log and from the notifiers that the counts have read.
struct Errors {
    log: Option<Xids>,
    each: EachOnce,
    told: Told,
}

impl Errors {
    /// Begins with the messages that the log has from now on.
    fn begin(whom: &Whom) -> Self {
        let mut log = Xids::open().inspect_err(|why| log::info!("{why}")).ok();
        if let Some(log) = &mut log {
            log.take();
        }
        Self {
            log,
            each: EachOnce::default(),
            told: Told::new(matches!(whom, Whom::All(choice, _) if choice.is_any())),
        }
    }

    /// Returns the faults since the previous reading. A process that still exists is looked at, to find the kernel that had not ended.
    fn take(&mut self, view: &View) -> Faults {
        let log = self.log.as_mut();
        let messages = log.map(|log| self.each.take(log, Instant::now()));
        let new = self.told.take(view, messages.unwrap_or_default());
        let mut faults = Faults::default();
        for (n, New { pid, code, message }) in new.into_iter().enumerate() {
            let named = message.as_ref().and_then(|m| m.name.clone());
            let gpu = message.as_ref().and_then(|m| m.gpu);
            let pids: Vec<u32> = pid.into_iter().filter(|_| n < MOST_LOOKS).collect();
            let look = dump::look(&pids, &usual_look::options(dump_text::LAST, false));
            let fault = look.fault(pid.unwrap_or(0), code, message);
            let process = view.processes.iter().find(|p| Some(p.pid) == pid);
            faults.add(Faulted {
                time_ns: view.unix_ns,
                of_day: true,
                pid: pid.unwrap_or(0),
                name: process
                    .map(|p| p.name.clone())
                    .or(named)
                    .unwrap_or_default(),
                gpu,
                text: fault::in_short(&fault),
            });
        }
        faults
    }
}

fn read(whom: Whom, interval: Duration, to: &Mutex<Option<Reading>>, stop: Arc<AtomicBool>) {
    let root = match &whom {
        Whom::All(_, root) => root.clone(),
        Whom::Named(_) => PathBuf::from("/"),
    };
    let mut known = Known::of(&root);
    let mut shares = shares::Reader::new(Arc::clone(&stop));
    let options = HostOptions {
        interval,
        sample: Some(LOOKS),
        ..HostOptions::default()
    };
    let mut errors = Errors::begin(&whom);
    let mut host = Host::new(Machine::new(whom), options);
    let mut running = Running::default();
    while !stop.load(Ordering::SeqCst) {
        let wait = host.round();
        let view = host.view();
        let pids: Vec<u32> = view.processes.iter().map(|p| p.pid).collect();
        running.keep(&pids);
        let channels = pids.into_iter().map(|pid| (pid, host.channels(pid)));
        let channels = channels.collect();
        let mut who = known.all(&view);
        for process in &view.processes {
            let of = (process.pid, process.began_unix_ns);
            if let (Some(who), Some(samples)) =
                (who.get_mut(&process.pid), host.samples(process.pid))
            {
                who.running = running.text(of, samples);
            }
        }
        let uses_gpu = view.processes.iter().any(|p| !p.gpus.is_empty());
        let mut reading = Reading {
            faults: errors.take(&view),
            channels,
            who,
            shares: shares.take(uses_gpu, interval, &root),
            is_over: host.is_over(),
            view,
        };
        let mut newest = to.lock().unwrap_or_else(PoisonError::into_inner);
        // Faults of a reading that nobody has taken are reported with the next.
        if let Some(mut before) = newest.take() {
            before.faults.append(reading.faults);
            reading.faults = before.faults;
        }
        *newest = Some(reading);
        drop(newest);
        rest(wait, || {
            (!stop.load(Ordering::SeqCst))
                .then(|| host.moment())
                .flatten()
        });
    }
}

/// Users of processes, each looked up once.
struct Known {
    host: host::Host,
    /// Start and user of each process.
    users: BTreeMap<u32, (u64, String)>,
}

impl Known {
    fn of(root: &Path) -> Self {
        Self {
            host: host::Host::new(root),
            users: BTreeMap::new(),
        }
    }

    fn all(&mut self, view: &View) -> BTreeMap<u32, Who> {
        let before = std::mem::take(&mut self.users);
        for process in &view.processes {
            let (pid, began) = (process.pid, process.began_unix_ns);
            let known = before.get(&pid).filter(|known| known.0 == began);
            let user = known.map_or_else(|| self.user(pid), |known| known.1.clone());
            self.users.insert(pid, (began, user));
        }
        let who = |p: &ProcessView| Who {
            user: self
                .users
                .get(&p.pid)
                .map_or_else(String::new, |u| u.1.clone()),
            container: container(p),
            running: String::new(),
        };
        { view.processes.iter() }.map(|p| (p.pid, who(p))).collect()
    }

    fn user(&mut self, pid: u32) -> String {
        let who = self.host.identity(pid, &Uses::default());
        let Ok(who) = who else { return String::new() };
        let number = who.uid.map(|uid| uid.to_string());
        who.user.or(number).unwrap_or_default()
    }
}

fn container(process: &ProcessView) -> String {
    let owner = &process.owner;
    let parts = [&owner.namespace, &owner.pod, &owner.container];
    let known: Vec<&str> = { parts.into_iter() }
        .map(String::as_str)
        .filter(|part| !part.is_empty())
        .collect();
    known.join("/")
}
