//! Code of kernels, as `nvcap code` shows it.
//!
//! - [`choose`]: the functions of images that a name or pattern means.
//! - [`images`]: images of a process or a file, and where their bytes are.
//! - [`listing`]: instructions with their control bits, as text and JSON.
//! - [`nvdisasm`]: what NVIDIA's disassembler says of them, where it is installed.

pub mod choose;
pub mod images;
pub mod listing;
#[cfg(target_os = "linux")]
pub mod nvdisasm;
