//! Files with submissions: recordings of nvcap (pcapng files of records), captures, and logs of the driver's calls.
//!
//! [`file`] reads each of them, compressed or not, as [`nvcap_decode::record::Record`]s. [`capture`] writes and reads recordings
//! without any I/O of its own; [`pcapng`] knows the blocks of such a file.
//!
//! | feature | meaning |
//! | --- | --- |
//! | `xz`, `zstd` | files that are compressed so (gzip needs no feature) |

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod blocked_write;
pub mod capture;
pub mod file;
pub mod pcapng;
pub mod read_ahead;
