//! `--otlp`: metrics sent to an OpenTelemetry collector.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use tokio::time::Instant;

use super::super::values::parse_time;
use nvcap_monitor::serve::otlp::push::Sender;
use nvcap_monitor::serve::otlp::target::{self, LOCAL, Target};
use nvcap_show::output::message::tell;

/// Options of OTLP: where to send, and how often.
#[derive(clap::Args, Debug)]
#[group(skip)]
pub(super) struct OtlpArgs {
    /// Send the metrics to an OpenTelemetry collector, too, by OTLP over HTTP
    ///
    /// Without URL to that of OTEL_EXPORTER_OTLP_ENDPOINT, or to http://127.0.0.1:4318. /v1/metrics is added. A token goes into
    /// OTEL_EXPORTER_OTLP_HEADERS (authorization=Bearer%20TOKEN), what else describes this host into OTEL_RESOURCE_ATTRIBUTES
    /// (k8s.cluster.name=a); sudo passes them on with sudo --preserve-env=OTEL_EXPORTER_OTLP_HEADERS.
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "", help_heading = HEADING)]
    otlp: Option<String>,

    /// How often metrics are sent. Each request has all counts, so a lost request loses no count
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_interval, requires = "otlp", help_heading = HEADING)]
    otlp_interval: Duration,

    /// A PEM file with the certificates that the collector is trusted by; default: OTEL_EXPORTER_OTLP_CERTIFICATE, or this machine's
    #[arg(long, value_name = "FILE", requires = "otlp", help_heading = HEADING)]
    otlp_ca: Option<PathBuf>,
}

const HEADING: &str = "OpenTelemetry";
/// Shortest time between two requests.
const LEAST: Duration = Duration::from_secs(1);

fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_time(text)? {
        short if short < LEAST => Err("at least 1s".to_owned()),
        time => Ok(time),
    }
}

/// Receiver of the metrics, and the attributes of this host.
pub(super) struct Otlp {
    pub sender: Sender,
    pub interval: Duration,
    pub resource: Vec<(String, String)>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl OtlpArgs {
    /// Returns the sender, interval and resource that are asked for, if any.
    pub(super) fn otlp(&self, version: &str) -> anyhow::Result<Option<Otlp>> {
        let Some(url) = &self.otlp else {
            return Ok(None);
        };
        let url = Some(url.clone()).filter(|url| !url.is_empty());
        let url = url
            .or_else(|| variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"))
            .or_else(|| variable("OTEL_EXPORTER_OTLP_ENDPOINT"));
        let headers = variable("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default();
        let target = Target::new(url.as_deref().unwrap_or(LOCAL), &headers);
        let target = target.map_err(anyhow::Error::msg)?;
        let certificate = || variable("OTEL_EXPORTER_OTLP_CERTIFICATE").map(PathBuf::from);
        let authorities = self.otlp_ca.clone().or_else(certificate);
        let sender = Sender::new(target, authorities.as_deref(), version)
            .map_err(anyhow::Error::msg)
            .context("metrics cannot be sent to the collector")?;
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let resource = target::resource(
            version,
            read("/proc/sys/kernel/hostname").as_deref(),
            read("/etc/machine-id").as_deref(),
            &variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default(),
        );
        Ok(Some(Otlp {
            sender,
            interval: self.otlp_interval,
            resource: resource.map_err(anyhow::Error::msg)?,
        }))
    }
}

/// Time for which the last request is retried; a single try may take nearly as long.
const LAST: Duration = Duration::from_secs(12);

/// Reads all counts once more (`last`) at SIGTERM, SIGINT or SIGHUP, and sends them before nvcap ends, so that nothing counted since the
/// last request is lost. The first signal then no longer ends nvcap immediately (`at_once`); a second one does.
pub(super) fn send_at_end(
    sender: &Arc<Sender>,
    last: impl FnOnce() -> Option<ExportMetricsServiceRequest> + Send + 'static,
    at_once: &AtomicBool,
) -> anyhow::Result<()> {
    let say = "cannot wait for signals";
    let (mut woken, waker) = UnixStream::pair().context(say)?;
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // The order matters: the first signal sets the condition for which the second one is tested.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&is_second))
            .context(say)?;
        signal_hook::flag::register(signal, Arc::clone(&is_second)).context(say)?;
        let waker = waker.try_clone().context(say)?;
        signal_hook::low_level::pipe::register(signal, waker).context(say)?;
    }
    let sender = Arc::clone(sender);
    let at_end = move || {
        let _ = woken.read_exact(&mut [0]);
        let sent = match last() {
            Some(request) => { runtime() }
                .map_err(|e| e.to_string())
                .and_then(|r| r.block_on(sender.send(&request, Instant::now() + LAST))),
            // Nothing was read yet.
            None => Ok(None),
        };
        if let Err(why) = sent {
            tell(format_args!(
                "{} did not take the last counts ({why})",
                sender.url()
            ));
        }
        std::process::exit(0);
    };
    std::thread::Builder::new()
        .name("nvcap-end".into())
        .spawn(at_end)
        .map_err(|e| nvcap_process::error::no_thread(&e))?;
    at_once.store(false, Ordering::SeqCst);
    Ok(())
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}
