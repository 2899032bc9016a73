//! `nvcap serve`: the counts of a host as metrics, for Prometheus and others.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};

use nvcap_monitor::counts::host::{Host, HostOptions};
use nvcap_monitor::counts::pace::rest;
use nvcap_monitor::counts::patient::{PATIENCE, Readers};
use nvcap_monitor::counts::system::Machine;
use nvcap_monitor::counts::view::{Key, View};
use nvcap_monitor::dump::{Refused, xids::Xids};
use nvcap_monitor::serve::http::{self, Answers, NoDump, Rights, Token};
use nvcap_monitor::serve::last_alive::LastAlive;
use nvcap_monitor::serve::metrics::{Constants, Errors, GpuName, families, metrics};
use nvcap_monitor::serve::tls;
use nvcap_monitor::watch::Finding;
use nvcap_process::clock;
use nvcap_process::exit_stop;
use nvcap_process::host::choice::Whom;
use nvcap_process::memory::chip;
use nvcap_process::xids::EachOnce;
use nvcap_show::output::dump::{self, ReportOptions, Shown};
use nvcap_show::output::message::tell;
use nvcap_show::output::style::Plain;

use super::usage::{Usage, bail_usage};
use super::values::{parse_core, parse_share, parse_time};
#[cfg(feature = "otlp")]
use nvcap_monitor::serve::otlp::{push::push, request::request};
#[cfg(feature = "otlp")]
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use refusals::Refusals;

mod faults;
#[cfg(feature = "otlp")]
mod otlp;
mod refusals;
mod shares;
#[cfg(test)]
mod tests;

const EXAMPLES: &str = "\
Examples:
  sudo nvcap serve                           http://127.0.0.1:9837/metrics
  sudo nvcap serve --token-file token        and the hang report: /dump?pid=4711
  sudo nvcap serve --listen 0.0.0.0:9837 --tls-cert host.pem --tls-key host.key --token-file token

  curl -s http://127.0.0.1:9837/metrics
  curl -s -H \"Authorization: Bearer $(head -1 token)\" 'http://127.0.0.1:9837/dump?pid=4711'

/metrics  submissions of every process that uses a GPU, each one counted; what is pending, and for
          how long; as text of OpenMetrics (docs/counts.md has the names)
/healthz  whether counting goes on;  /readyz: whether the first reading is over
/dump     the report of nvcap dump about one process; only with a token

Ctrl-C, SIGTERM and SIGHUP end it, with status 0.

It reads numbers that the GPU itself keeps: no breakpoint, no BPF, no stop of any process.";

/// Arguments of `nvcap serve`: the address to listen on, and the rights of those who ask.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The address to listen on; another than this machine's own needs --tls-cert, --tls-key and --token-file
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9837")]
    listen: SocketAddr,

    /// The certificate of this server, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// A file whose first line is the token. Requests for /dump need it; requests for /metrics need it too if --listen is not this
    /// machine's own address
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// How often processes are read
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    interval: Duration,

    /// Use at most SHARE of one core. Processes are read less often if that is needed to stay within it
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = parse_share)]
    budget: f64,

    /// Add estimated metrics from samples (launches, copies, bytes, busy shares). Sampling takes about SHARE of one core, as a part of
    /// --budget
    #[arg(long, value_name = "SHARE", value_parser = parse_core)]
    sample: Option<f64>,

    /// A series for each process, with the labels pid and comm, instead of one for each container (also as --by process)
    #[arg(long)]
    by_process: bool,

    /// The same as other commands have it.
    #[arg(long, value_name = "WHAT", hide = true)]
    by: Option<super::time::By>,

    /// Find the host's files below FOLDER. For nvcap in a container with the host's /proc (hostPID), /etc and /var/log mounted there
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    host_root: PathBuf,

    /// Keep in FILE the time at which nvcap was last alive. After a restart, nvcap_blind_seconds includes the time in which it did not run
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    /// Say each error of the driver (fault, Xid) as a line of JSON on standard output, with the kernel that had not ended (docs/counts.md)
    #[arg(long)]
    faults: bool,

    /// Add who had the GPUs, by the driver's own record of context switches (nvcap share): of all processes, whatever is filtered
    #[arg(long)]
    shares: bool,

    /// Filters of the processes.
    #[command(flatten)]
    filters: super::process_filter::HostFilters,

    #[cfg(feature = "otlp")]
    #[command(flatten)]
    otlp: otlp::OtlpArgs,
}

impl Args {
    fn is_by_process(&self) -> bool {
        self.by_process || self.by.is_some()
    }

    /// Returns the processes that are counted.
    fn whom(&self) -> Whom {
        Whom::All(self.filters.choice(), self.host_root.clone())
    }
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |s| s.as_nanos() as u64)
}

/// Takes a lock, even if a thread panicked while it held it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that the threads share.
struct Live {
    host: Mutex<Host<Machine>>,
    constants: Constants,
    /// Errors that were counted; `None` if the kernel log cannot be read.
    errors: Option<Mutex<Errors>>,
    /// Holders of the GPUs; `None` if they are not asked for, or refused.
    shares: Arc<shares::Sums>,
    /// Time at which the next reading is due, ns; 0 before the first one.
    due: AtomicU64,
}

/// Delay of a reading above which counting is reported as stuck, ns.
const LATE: u64 = 30_000_000_000;
/// The most series of Xids.
const MOST_ERRORS: usize = 200;

impl Live {
    /// Returns the newest counts, and the counts of Xids, from which all metrics are made.
    fn reading(&self) -> (View, Option<Errors>) {
        let mut view = locked(&self.host).view();
        view.shares.clone_from(&locked(&self.shares));
        let errors = self.errors.as_ref().map(|errors| locked(errors).clone());
        (view, errors)
    }

    fn key_of(&self, pid: Option<u32>, gpu: Option<u32>) -> Key {
        let known = pid.and_then(|pid| locked(&self.host).key(pid, gpu));
        known.unwrap_or(Key {
            gpu,
            ..Key::default()
        })
    }

    fn count_error(&self, pid: Option<u32>, gpu: Option<u32>, code: u32) {
        let key = self.key_of(pid, gpu);
        let Some(errors) = &self.errors else {
            return;
        };
        let mut errors = locked(errors);
        let key = match errors.len() < MOST_ERRORS || errors.contains_key(&(key.clone(), code)) {
            true => key,
            false => Key {
                gpu,
                ..Key::default()
            },
        };
        *errors.entry((key, code)).or_default() += 1;
    }

    /// Counts an error that a channel's notifier reported.
    fn count_error_of(&self, finding: &Finding) {
        let Some(fault) = &finding.fault else { return };
        let mut channels = finding.report.rings.channels.iter();
        let channel = channels.find(|c| Some(c.id) == fault.channel);
        self.count_error(Some(finding.pid), channel.and_then(|c| c.gpu), fault.code);
    }

    /// Counts the Xids in those messages of the driver that are new.
    fn take_errors(&self, xids: &mut Xids, errors: &mut EachOnce) {
        for xid in errors.take(xids, Instant::now()) {
            self.count_error(xid.process(), xid.gpu, xid.code);
        }
        for line in xids.unread() {
            tell(format_args!("note: {}", Plain(&line)));
        }
    }
}

#[cfg(feature = "otlp")]
impl Live {
    /// Returns the counts for a collector; `None` before the first reading.
    fn otlp(&self, resource: &[(String, String)]) -> Option<ExportMetricsServiceRequest> {
        (self.due.load(Ordering::Relaxed) > 0).then_some(())?;
        let (view, errors) = self.reading();
        Some(request(&view, errors.as_ref(), &self.constants, resource))
    }
}

/// Access to this process's counts for the server's answers.
struct Counting(Arc<Live>);

impl Answers for Counting {
    fn metrics(&self) -> String {
        let (view, errors) = self.0.reading();
        metrics(&view, errors.as_ref(), &self.0.constants)
    }

    fn families(&self) -> Vec<u8> {
        let (view, errors) = self.0.reading();
        families(&view, errors.as_ref(), &self.0.constants)
    }

    fn health(&self) -> Result<String, String> {
        let late = clock::now().saturating_sub(self.0.due.load(Ordering::Relaxed));
        if self.0.due.load(Ordering::Relaxed) > 0 && late > LATE {
            return Err(format!(
                "the last reading should have been {} s ago",
                late / 1_000_000_000
            ));
        }
        Ok("ok".to_owned())
    }

    fn readiness(&self) -> Result<String, String> {
        if self.0.due.load(Ordering::Relaxed) == 0 {
            return Err("the first reading is not over".to_owned());
        }
        let host = locked(&self.0.host);
        let (counted, refused) = (host.len(), host.refused().len());
        Ok(format!("ready: {counted} counted, {refused} not readable"))
    }

    fn dump(&self, pid: u32, json: bool) -> Result<Vec<u8>, NoDump> {
        // The token does not give access to all processes: only those that use a GPU are shown.
        if !locked(&self.0.host).has(pid) {
            return Err(NoDump::NotThere(format!(
                "process {pid} is none that uses a GPU; nvcap counts -a lists them"
            )));
        }
        let begun = clock::thread_cpu();
        let options = super::usual_look::options(dump::LAST, true);
        let look = nvcap_monitor::dump::look(&[pid], &options);
        // The CPU time of a requested dump does not count in the budget of counting.
        locked(&self.0.host).forgive(clock::thread_cpu().saturating_sub(begun));
        match look.refused.first() {
            Some((_, Refused::NoGpu)) => {
                return Err(NoDump::NotThere("it uses no GPU any more".to_owned()));
            }
            Some((_, Refused::Error(e))) => {
                return Err(NoDump::Failed(format!(
                    "process {pid} cannot be looked at: {e}"
                )));
            }
            None => {}
        }
        let shown = Shown {
            report: &look.report,
            moved: None,
        };
        let options = ReportOptions {
            full_stacks: true,
            ..ReportOptions::default()
        };
        let mut out = Vec::new();
        match json {
            true => dump::json(&mut out, &shown, &options),
            false => dump::text(&mut out, &shown, &options),
        }
        Ok(out)
    }
}

/// Reads the token. A file that others may read is refused, because it is no secret.
fn token(path: &Path) -> anyhow::Result<Token> {
    let say = || format!("cannot use the token file {}", path.display());
    let text = std::fs::read_to_string(path).with_context(say)?;
    let mode = std::fs::metadata(path).with_context(say)?.mode();
    if mode & 0o077 != 0 {
        bail!(
            "{}: others may read it; type: chmod 600 {}",
            say(),
            nvcap_show::output::shell::quoted(path)
        );
    }
    Token::from_text(&text).map_err(|why| anyhow::anyhow!("{}: {why}", say()))
}

/// Returns the rights that requests need, and the TLS of the server. An address that other machines reach needs a token and a certificate.
fn rights(args: &Args) -> anyhow::Result<(Rights, Option<tokio_rustls::TlsAcceptor>)> {
    let is_own = args.listen.ip().is_loopback();
    if !is_own && (args.tls_cert.is_none() || args.token_file.is_none()) {
        bail_usage!(
            "{} can be reached from other machines: give a certificate and a token (--tls-cert FILE --tls-key FILE --token-file FILE), \
             or listen on this machine alone (--listen 127.0.0.1:{})",
            args.listen,
            args.listen.port()
        );
    }
    let acceptor = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            Some(tls::acceptor(certificate, key).map_err(anyhow::Error::msg)?)
        }
        _ => None,
    };
    let rights = Rights {
        token: args.token_file.as_deref().map(token).transpose()?,
        metrics_too: !is_own,
    };
    Ok((rights, acceptor))
}

fn constants(host_root: &Path) -> Constants {
    let names = chip::names_of_host(host_root).into_iter().map(|gpu| {
        let name = GpuName {
            uuid: gpu.uuid,
            model: gpu.model,
            bus: gpu.bus,
        };
        (gpu.minor, name)
    });
    Constants {
        gpus: names.collect::<BTreeMap<_, _>>(),
        version: super::version::short().to_owned(),
        began: unix_ns() as f64 * 1e-9,
    }
}

/// Makes signals end the server with status 0, like a trace: a service manager's `stop` is no failure. They end it immediately while the
/// flag is set; the file of --state is always complete.
fn end_by_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let at_once = Arc::new(AtomicBool::new(true));
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 0, Arc::clone(&at_once))
            .context("cannot prepare for signals; raise the limit on open files (ulimit -n)")?;
    }
    Ok(at_once)
}

/// Makes the counting of this host, and opens the file of `--state`, which shows how long nobody counted.
fn host(args: &Args) -> anyhow::Result<(Host<Machine>, Option<LastAlive>)> {
    let options = HostOptions {
        interval: args.interval,
        budget: Some(args.budget),
        sample: args.sample,
        by_process: args.is_by_process(),
        ..HostOptions::default()
    };
    let machine = Machine::new(args.whom()).patient(Readers::new(PATIENCE));
    let mut host = Host::new(machine, options);
    let Some(path) = &args.state else {
        return Ok((host, None));
    };
    let since_boot = clock::read(libc::CLOCK_BOOTTIME).unwrap_or(0);
    let opened = LastAlive::open(path, unix_ns(), unix_ns().saturating_sub(since_boot));
    let say = || format!("cannot write the file of --state, {}", path.display());
    let (file, gap) = match opened {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(Usage(format!("{}: {e}", say())).into());
        }
        opened => opened.with_context(say)?,
    };
    host.was_blind("not_running", gap.unwrap_or(0));
    Ok((host, Some(file)))
}

/// Returns the errors that the kernel log reports from now on; `None`, and a note, if it cannot be read.
fn errors() -> Option<Xids> {
    match Xids::open() {
        Ok(mut xids) => {
            xids.take();
            Some(xids)
        }
        Err(why) => {
            tell(format_args!("note: {why}"));
            None
        }
    }
}

/// Sends metrics to a collector from now on, and the last ones at the end.
#[cfg(feature = "otlp")]
fn send(
    otlp: otlp::Otlp,
    live: &Arc<Live>,
    runtime: &tokio::runtime::Runtime,
    at_once: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    tell(format_args!(
        "sending metrics to {} every {} s",
        otlp.sender.url(),
        otlp.interval.as_secs()
    ));
    let sender = Arc::new(otlp.sender);
    let (ending, resource) = (Arc::clone(live), otlp.resource.clone());
    let last = move || {
        locked(&ending.host).round();
        ending.otlp(&resource)
    };
    otlp::send_at_end(&sender, last, at_once)?;
    let live = Arc::clone(live);
    let made = move || live.otlp(&otlp.resource);
    let said = |text| tell(format_args!("{text}"));
    runtime.spawn(push(sender, otlp.interval, made, said));
    Ok(())
}

/// Reads the counts repeatedly, until a signal ends the process.
fn count(live: &Live, mut xids: Option<Xids>, mut alive: Option<LastAlive>) -> ! {
    let mut refusals = Refusals::default();
    let mut errors = EachOnce::default();
    loop {
        let wait = locked(&live.host).round();
        let due = clock::now() + wait.as_nanos() as u64;
        live.due.store(due, Ordering::Relaxed);
        if let Some(xids) = &mut xids {
            live.take_errors(xids, &mut errors);
        }
        if let Some(file) = &mut alive
            && let Err(e) = file.still(unix_ns())
        {
            tell(format_args!(
                "the file of --state cannot be written any more: {e}"
            ));
            alive = None;
        }
        let refused = locked(&live.host).refused();
        if let Some(news) = refusals.news(clock::now(), &refused) {
            let remedy = nvcap_process::procfs::mem::remedy();
            tell(format_args!("{}; {remedy}", Plain(&news)));
        }
        rest(wait, || locked(&live.host).moment());
    }
}

/// Runs the server.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.sample.is_some_and(|sample| sample >= args.budget) {
        bail_usage!(
            "--sample must be less than --budget ({} %): the rest is for counting; type a larger --budget, or a smaller --sample",
            100.0 * args.budget
        );
    }
    let at_once = end_by_signals()?;
    let (rights, acceptor) = rights(args)?;
    let scheme = if acceptor.is_some() { "https" } else { "http" };
    let listener = TcpListener::bind(args.listen).with_context(|| {
        format!(
            "cannot listen on {} (another nvcap serve? choose another with --listen ADDRESS:PORT)",
            args.listen
        )
    })?;
    let address = listener.local_addr().unwrap_or(args.listen);
    let (host, alive) = host(args)?;
    let xids = errors();
    if args.faults {
        // For the processes whose ends are held, this must come before threads are started.
        exit_stop::block_sigchld();
    }
    let live = Arc::new(Live {
        host: Mutex::new(host),
        constants: constants(&args.host_root),
        errors: (xids.is_some() || args.faults).then(Mutex::default),
        shares: Arc::default(),
        due: AtomicU64::new(0),
    });
    if args.shares {
        let counting = Arc::clone(&live);
        let forgive = move |ns| locked(&counting.host).forgive(ns);
        let sums = Arc::clone(&live.shares);
        shares::begin(sums, &args.host_root, args.is_by_process(), forgive)
            .map_err(|e| nvcap_process::error::no_thread(&e))?;
    }
    if args.faults {
        let counting = Arc::clone(&live);
        faults::begin(args.whom(), move |finding| counting.count_error_of(finding))
            .map_err(|e| nvcap_process::error::no_thread(&e))?;
    }
    #[cfg(feature = "otlp")]
    let otlp = args.otlp.otlp(&live.constants.version)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(http::THREADS)
        .build()
        .map_err(|e| nvcap_process::error::no_thread(&e))?;
    #[cfg(feature = "otlp")]
    if let Some(otlp) = otlp {
        send(otlp, &live, &runtime, &at_once)?;
    }
    drop(at_once);
    let answers = Counting(Arc::clone(&live));
    std::thread::Builder::new()
        .name("nvcap-http".into())
        .spawn(move || {
            if let Err(e) = runtime.block_on(http::serve(listener, acceptor, rights, answers)) {
                tell(format_args!("the server failed: {e}"));
                std::process::exit(1);
            }
        })
        .context("cannot start the server")?;
    tell(format_args!("serving {scheme}://{address}/metrics"));
    count(&live, xids, alive)
}
