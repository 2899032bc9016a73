//! Records from files.

pub mod ioctl_log;
