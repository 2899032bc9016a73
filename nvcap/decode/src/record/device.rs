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
    /// Another device file of the driver: major, minor. Major 0 means no device: [`Device::MEMORY`], [`Device::RESERVED`].
    Other(u32, u32),
}

impl Device {
    /// Memory without a named file that several processes could share: libcuda takes pinned memory from it.
    pub const MEMORY: Self = Self::Other(0, 1);

    /// Addresses that a process reserves without any access right, as libcuda does for memory that only the GPU has mapped.
    pub const RESERVED: Self = Self::Other(0, 2);
}
