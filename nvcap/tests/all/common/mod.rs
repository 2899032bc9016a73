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
#[cfg(target_os = "linux")]
#[path = "../../../src/waiting.rs"]
#[allow(dead_code, reason = "a part of it is the unit tests' alone")]
pub mod waiting;
