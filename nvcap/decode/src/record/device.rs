//! Device files of the driver.

/// Kind of NVIDIA device file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// `/dev/nvidiactl`.
    Control,
    /// `/dev/nvidiaN`, by its minor number N.
    Gpu(u32),
    /// `/dev/nvidia-uvm` or `/dev/nvidia-uvm-tools`.
    Uvm,
    /// Another device file of the driver: major, minor. Major 0 is no device: [`Device::MEMORY`], [`Device::RESERVED`].
    Other(u32, u32),
}

impl Device {
    /// Memory of a process's without a file that has a name, from which libcuda takes pinned memory.
    pub const MEMORY: Self = Self::Other(0, 1);

    /// Addresses that a process keeps free, without any right: libcuda does for memory that the GPU alone has mapped.
    pub const RESERVED: Self = Self::Other(0, 2);
}
