//! `--otlp`: metrics for an OpenTelemetry collector, sent to it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use super::super::values::parse_time;
use crate::serve::otlp::push::Sender;
use crate::serve::otlp::target::{self, LOCAL, Target};

/// Where to, and how often.
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
/// The shortest time between two requests.
const LEAST: Duration = Duration::from_secs(1);

fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_time(text)? {
        short if short < LEAST => Err("at least 1s".to_owned()),
        time => Ok(time),
    }
}

/// To whom metrics are sent, and what describes this host.
pub(super) struct Otlp {
    pub sender: Sender,
    pub interval: Duration,
    pub resource: Vec<(String, String)>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl OtlpArgs {
    /// What is asked for, if anything.
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
