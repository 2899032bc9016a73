#![doc = include_str!("../README.md")]
// An item that no other crate needs is `pub(crate)`.
#![warn(unreachable_pub)]

pub mod cubin;
pub mod decode;
pub mod driver;
pub mod glob;
pub mod gpu_time;
pub mod hang;
pub mod ledger;
pub mod record;
pub mod samples;
pub mod switches;
mod tables;
pub mod wire;
