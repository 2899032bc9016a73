//! `nvcap serve`: the counts as metrics over HTTP.
//!
//! - [`open_metrics`]: the text of OpenMetrics; [`metrics`]: the counts in it. Pure.
//! - [`http`]: the server, its routes, and who may ask for what; [`tls`]: certificates.
//! - [`last_alive`]: a file by which the next nvcap knows for how long none ran.

pub(crate) mod http;
pub(crate) mod last_alive;
pub(crate) mod metrics;
mod open_metrics;
pub(crate) mod tls;
