//! Which chip each GPU of this machine is, by what the driver and the PCI bus tell anybody.

use std::fs;

use crate::decode::defaults::Chip;

/// The chips by device file minor number, those that are known.
#[must_use]
pub fn chips() -> Vec<(u32, &'static Chip)> {
    let Ok(gpus) = fs::read_dir("/proc/driver/nvidia/gpus") else {
        return Vec::new();
    };
    gpus.flatten()
        .filter_map(|gpu| {
            let text = fs::read_to_string(gpu.path().join("information")).ok()?;
            let bus = gpu.file_name();
            let id = fs::read_to_string(format!("/sys/bus/pci/devices/{}/device", bus.to_str()?))
                .ok()?;
            Some((minor(&text)?, Chip::with_pci_device(device(&id)?)?))
        })
        .collect()
}

fn minor(information: &str) -> Option<u32> {
    let line = information
        .lines()
        .find_map(|l| l.strip_prefix("Device Minor:"))?;
    line.trim().parse().ok()
}

fn device(id: &str) -> Option<u16> {
    u16::from_str_radix(id.trim().strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_as_the_driver_writes_them() {
        let text = "Model: \t\t NVIDIA H200\nBus Location: \t 0000:00:04.0\nDevice Minor: \t 3\n";
        assert_eq!(super::minor(text), Some(3));
        assert_eq!(super::device("0x2335\n"), Some(0x2335));
    }
}
