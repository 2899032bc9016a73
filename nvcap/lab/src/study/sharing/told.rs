//! Account that the program (`sharing.py`) gives of its scenes. Times are those of the GPU's clock, ns.

use serde::{Deserialize, Serialize};

/// All that it says.
#[derive(Clone, Debug, Deserialize)]
pub struct Told {
    pub device: Device,
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
    /// Blocks of 512 threads that run at once.
    pub fill_blocks: u64,
    pub least_priority: i32,
    /// The number of the most urgent one, which is the least number.
    pub greatest_priority: i32,
}

/// Work of some processes at the same time.
#[derive(Clone, Debug, Deserialize)]
pub struct Scene {
    /// `streams_8`.
    pub name: String,
    /// `CUDA_DEVICE_MAX_CONNECTIONS`, where it was set.
    pub connections: Option<u32>,
    pub processes: Vec<Process>,
}

/// One process's part.
#[derive(Clone, Debug, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// By how much times of the processor may be wrong on the GPU's clock.
    pub clock_error: u64,
    pub kernels: Vec<Kernel>,
    pub copies: Vec<Copies>,
}

/// A kernel, in the order of launches.
#[derive(Clone, Debug, Deserialize)]
pub struct Kernel {
    pub stream: String,
    pub priority: i32,
    /// Its first argument's lower half: unique in a run.
    pub number: u32,
    /// For how long each block was asked to last.
    pub ns: u64,
    /// When the launch was called, and when that returned.
    pub called: u64,
    pub returned: u64,
    pub start: u64,
    pub end: u64,
    /// When each block started, sorted.
    pub starts: Vec<u64>,
    /// On how many SMs its blocks were.
    pub sms: u64,
    /// When its first block stood still.
    pub pauses: Vec<(u64, u64)>,
}

/// Copies of the same size, one after the other.
#[derive(Clone, Debug, Deserialize)]
pub struct Copies {
    pub stream: String,
    /// `h2d` or `d2h`.
    pub way: String,
    /// Bytes of each: unique in a run.
    pub bytes: u64,
    /// When each had ended.
    pub ends: Vec<u64>,
}
