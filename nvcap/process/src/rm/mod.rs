//! A client of the driver's resource manager (RM): objects are allocated, controlled and mapped by ioctls of /dev/nvidiactl.
//!
//! Numbers are those of the public headers (nvos.h, nv-ioctl-numbers.h, cl*.h, ctrl*.h). Structures come from the tables of facts/rm by the
//! driver's release, so that one program works with all releases. The module knows nothing of pushbuffers. It is used by `nvcap bench`,
//! which drives the GPU; by `nvcap share`, which reads the driver's record of context switches; and by `nvcap sample`, which makes the GPU
//! sample program counters.

mod call;
mod client;
mod device;
mod files;
mod os;
mod owner;
mod structure;

pub use client::{Card, Client, Object, gpu_file};
pub use device::Device;
pub use os::{Access, Kernel, Mapping, Os};
pub use owner::{OwnClient, Owner};
pub use structure::Structure;

use std::io;

use nvcap_decode::driver::{Version, names};

/// Returns the release of the driver that this machine runs; `None` if the driver is not loaded, or gives its release in an unknown form.
#[must_use]
pub fn running_version() -> Option<Version> {
    let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    text.trim().parse().ok()
}

/// Error of a driver call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device file cannot be opened.
    #[error("cannot open {path}: {error}{}", hint(error))]
    Open {
        /// Path of the file.
        path: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The kernel refused an ioctl or a mapping.
    #[error("cannot {what}: {error}")]
    System {
        /// Action that was refused, in words.
        what: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The driver refused a call.
    #[error("cannot {what}: the driver says {}", named(*status))]
    Status {
        /// Action that was refused, in words.
        what: String,
        /// NV_STATUS.
        status: u32,
    },
    /// The tables lack this structure.
    #[error("the tables have no {0} for this release of the driver: update nvcap")]
    Structure(&'static str),
    /// The release's structure has no such field.
    #[error("{structure} of this release of the driver has no {field}: update nvcap")]
    Field {
        /// Name of the structure.
        structure: &'static str,
        /// Name of the field.
        field: &'static str,
    },
    /// There is no such GPU.
    #[error("there is no GPU {minor} (/dev/nvidia{minor}): {}", those(there))]
    NoGpu {
        /// The minor number that was asked for.
        minor: u32,
        /// Minor numbers of the existing GPUs.
        there: Vec<u32>,
    },
}

fn named(status: u32) -> String {
    format!("{} ({status:#x})", names::status(status))
}

fn those(there: &[u32]) -> String {
    match there {
        [] => "the driver tells of none".to_owned(),
        there => {
            let all: Vec<String> = there.iter().map(u32::to_string).collect();
            format!("type --gpu with one of {}", all.join(", "))
        }
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; NVIDIA's driver is not loaded, or this container was started without a GPU"
        }
        io::ErrorKind::PermissionDenied => "; run as a user who may use the GPU",
        _ => "",
    }
}
