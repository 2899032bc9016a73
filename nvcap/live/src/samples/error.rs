//! Errors of a sampling.

use std::io;

use super::context::Context;
use nvcap_decode::samples::programme;
use nvcap_process::rm;

/// Error of a sampling.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver refused another call.
    #[error(transparent)]
    Driver(#[from] rm::Error),
    /// The process's memory cannot be read.
    #[error("cannot look for the GPU contexts of process {0} in its memory: {1}")]
    Memory(u32, io::Error),
    /// The process's files of the driver cannot be duplicated.
    #[error(
        "cannot ask the driver whose the clients in the memory of process {0} are: its files cannot be duplicated (pidfd_getfd): {1}"
    )]
    Files(u32, io::Error),
    /// The handles in the process's memory are not those of its own clients.
    #[error(
        "process {0} is not sampled: it has numbers of clients of the driver in its memory, but the driver knows none of them as a client of this process, and another process's would be shown as this one's"
    )]
    NotItsOwn(u32),
    /// The driver takes calls for any client through any file.
    #[error(
        "the driver does not tell whose a client is: it takes calls for one through other files than its own (RmValidateClientData is set so)"
    )]
    Unchecked,
    /// The driver gives no profiler for the context.
    #[error("the driver gives no profiler of {context}: {error}")]
    NoProfiler {
        /// The context.
        context: Context,
        /// The driver's answer.
        error: rm::Error,
    },
    /// Another client has the profiler.
    #[error("another client has the GPU's profiler ({0})")]
    Held(String),
    /// The user may not profile.
    #[error("the driver allows profiling to an administrator alone ({0})")]
    Rights(String),
    /// nvcap's own submission failed.
    #[error("cannot submit the trigger of the samples: {0}")]
    Trigger(String),
    /// The programme lacks something that is needed.
    #[error(transparent)]
    Programme(#[from] programme::NoProgramme),
    /// The driver reports more bytes than the buffer has.
    #[error("the driver says that {0} bytes of samples are there, and the buffer has {1}")]
    Bytes(u64, u64),
}
