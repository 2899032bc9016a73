//! Errors of a measurement.

use nvcap_process::rm;

/// Error of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] rm::Error),
    /// The GPU lacks a class of a needed engine.
    #[error(
        "this GPU lacks channels with doorbells, compute or copy engines: Volta or newer is needed"
    )]
    Classes,
    /// A submission is longer than a pushbuffer.
    #[error("a submission of {0} bytes is longer than the pushbuffer")]
    TooLong(u64),
    /// A class's table lacks a method.
    #[error(transparent)]
    Unnamed(#[from] nvcap_decode::decode::encode::Unnamed),
    /// Nothing was measured.
    #[error("nothing was measured")]
    Nothing,
    /// The GPU's clock went back.
    #[error("the GPU's time stamps go back from {0} to {1}")]
    Clock(u64, u64),
    /// No kernel can be formed for a class.
    #[error(
        "nvcap forms no kernel for class {0:x}: it does for cbc0 (Hopper), cdc0 and cec0 (Blackwell)"
    )]
    NoKernel(u32),
    /// The GPU did not finish a submission.
    #[error(
        "the GPU did not finish a submission in 10 s (engine {engine:#x}, GP_GET {get}, GP_PUT {put}); `dmesg | grep Xid` tells \
         of faults"
    )]
    Hang {
        /// NV2080_ENGINE_TYPE.
        engine: u32,
        /// Index of the next entry that the GPU takes.
        get: u32,
        /// Index of the next entry that is written.
        put: u32,
    },
}
