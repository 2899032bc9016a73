//! Records from files.

pub mod ioctl_log;
pub mod orc;
