//! What tests of several parts use.

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "output")]
pub mod events;
#[cfg(all(feature = "cli", feature = "zstd"))]
pub mod fat;
pub mod files;
#[cfg(feature = "output")]
pub mod schema;
#[cfg(feature = "cli")]
pub mod training;
#[cfg(feature = "cli")]
pub mod tshark;
