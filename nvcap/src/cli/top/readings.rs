//! The thread that reads the counts, so that keys never wait for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::bail;

use super::running::Running;
use super::shares;
use nvcap_monitor::counts::host::{Host, HostOptions};
use nvcap_monitor::counts::pace::rest;
use nvcap_monitor::counts::system::Machine;
use nvcap_monitor::counts::view::{ProcessView, View};
use nvcap_monitor::top::live::{Reading, Who};
use nvcap_process::host::{self, Uses, choice::Whom};

/// See the module. It ends when this is dropped.
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

    /// The newest reading, once.
    ///
    /// # Errors
    /// When there will be none any more.
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

/// Share of a core that looking at what the GPUs do may take.
const LOOKS: f64 = 0.005;

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
        let reading = Reading {
            channels,
            who,
            shares: shares.take(uses_gpu, interval, &root),
            is_over: host.is_over(),
            view,
        };
        *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        rest(wait, || {
            (!stop.load(Ordering::SeqCst))
                .then(|| host.moment())
                .flatten()
        });
    }
}

/// Users of processes, looked up once each.
struct Known {
    host: host::Host,
    /// By process: when it began, and its user.
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
