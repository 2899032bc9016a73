//! `nvcap serve`: the counts as metrics over HTTP.
//!
//! - [`metrics`]: the counts as metrics; `writer`: what formats have in common; `open_metrics`: the text of OpenMetrics;
//!   `protobuf`: Prometheus's own format. Pure.
//! - [`http`]: the server, its routes, and who may ask for what; `connections`: their bounds; [`tls`]: certificates.
//! - [`otlp`]: the same metrics for an OpenTelemetry collector.
//! - [`last_alive`]: a file by which the next nvcap knows for how long none ran.

mod connections;
pub mod http;
pub mod last_alive;
pub mod metrics;
mod open_metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
mod protobuf;
pub mod tls;
mod writer;
