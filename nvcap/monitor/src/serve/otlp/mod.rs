//! The metrics for an OpenTelemetry collector, which are sent to it: OTLP over HTTP (`nvcap serve --otlp`).
//!
//! - [`request`]: the counts as OTLP's messages. Pure.
//! - [`target`]: where they go, and with what: the URL, the variables `OTEL_...`. Pure.
//! - [`push`]: sending them, again where the collector is busy.

pub mod push;
pub mod request;
pub mod target;
#[cfg(test)]
mod tests;
