//! Account that the program (`sharing.py`) gives of its scenes. Times are of the GPU's clock, ns.

use serde::{Deserialize, Serialize};

/// The whole account.
#[derive(Clone, Debug, Deserialize)]
pub struct Told {
    /// GPU that the scenes were played on.
    pub device: Device,
    /// Scenes that were played, in their order.
    pub scenes: Vec<Scene>,
    /// Notes on what could not be done.
    pub notes: Vec<String>,
}

/// The GPU, as CUDA tells it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Device {
    /// CUDA's version, 13000 for 13.0.
    pub cuda: u32,
    /// Streaming multiprocessors.
    pub sms: u64,
    /// Number of blocks of 512 threads that run at the same time.
    pub fill_blocks: u64,
    /// Number of the least urgent priority of a stream, which is the greatest number.
    pub least_priority: i32,
    /// Number of the most urgent priority, which is the least number.
    pub greatest_priority: i32,
}

/// Work of some processes at the same time.
#[derive(Clone, Debug, Deserialize)]
pub struct Scene {
    /// Name of the scene, such as `streams_8`.
    pub name: String,
    /// `CUDA_DEVICE_MAX_CONNECTIONS`, where it was set.
    pub connections: Option<u32>,
    /// Processes that took part.
    pub processes: Vec<ProcessAccount>,
}

/// One process's part.
#[derive(Clone, Debug, Deserialize)]
pub struct ProcessAccount {
    /// Id of the process.
    pub pid: u32,
    /// Largest error of the processor's times when they are converted to the GPU's clock, ns.
    pub clock_error: u64,
    /// Kernels that it launched, in the order of launches.
    pub kernels: Vec<Kernel>,
    /// Copies that it made, those of one size together.
    pub copies: Vec<Copies>,
}

/// A kernel, in the order of launches.
#[derive(Clone, Debug, Deserialize)]
pub struct Kernel {
    /// Name of its stream in the scene.
    pub stream: String,
    /// Priority of its stream, as CUDA numbers it: a lower number is more urgent.
    pub priority: i32,
    /// Lower half of the kernel's first argument, which is unique in a run.
    pub number: u32,
    /// Time that each block was asked to last, ns.
    pub ns: u64,
    /// Time at which the launch was called, ns.
    pub called: u64,
    /// Time at which the launch returned, ns.
    pub returned: u64,
    /// Time at which the kernel's first block started, ns.
    pub start: u64,
    /// Time at which the kernel's last block ended, ns.
    pub end: u64,
    /// Times at which each block started, sorted, ns.
    pub starts: Vec<u64>,
    /// Number of SMs on which the kernel's blocks ran.
    pub sms: u64,
    /// Pauses of the kernel's first block: begin and end of each, ns.
    pub pauses: Vec<(u64, u64)>,
}

/// Copies of the same size, one after the other.
#[derive(Clone, Debug, Deserialize)]
pub struct Copies {
    /// Name of their stream in the scene.
    pub stream: String,
    /// Direction: `h2d` or `d2h`.
    pub way: String,
    /// Bytes of each copy: a size that is unique in a run.
    pub bytes: u64,
    /// Time at which each copy had ended, ns.
    pub ends: Vec<u64>,
}
