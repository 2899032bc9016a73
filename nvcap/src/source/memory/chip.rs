//! Which chip each GPU of this machine is, by what the driver and the PCI bus tell anybody.

use std::fs;

use crate::decode::defaults::Chip;
use crate::record::{At, Gpu, Record};
use crate::source::clock;

/// The GPUs of this machine that the driver tells of.
#[must_use]
pub(crate) fn gpus() -> Vec<Gpu> {
    let Ok(gpus) = fs::read_dir("/proc/driver/nvidia/gpus") else {
        return Vec::new();
    };
    let at = At {
        time_ns: clock::now(),
        ..At::default()
    };
    let mut gpus: Vec<Gpu> = gpus
        .flatten()
        .filter_map(|gpu| {
            let text = fs::read_to_string(gpu.path().join("information")).ok()?;
            let bus = gpu.file_name();
            let id = fs::read_to_string(format!("/sys/bus/pci/devices/{}/device", bus.to_str()?))
                .ok()?;
            Some(Gpu {
                at,
                minor: minor(&text)?,
                pci_device: device(&id)?,
            })
        })
        .collect();
    gpus.sort_by_key(|g| g.minor);
    gpus
}

/// The GPUs' device file minor numbers by PCI address (`0000:c1:00.0`).
#[must_use]
pub(crate) fn by_bus() -> Vec<(String, u32)> {
    let gpus = fs::read_dir("/proc/driver/nvidia/gpus");
    let gpu = |gpu: fs::DirEntry| {
        let text = fs::read_to_string(gpu.path().join("information")).ok()?;
        Some((gpu.file_name().to_str()?.to_owned(), minor(&text)?))
    };
    gpus.into_iter()
        .flatten()
        .flatten()
        .filter_map(gpu)
        .collect()
}

/// What the driver tells of a GPU.
#[cfg(any(test, feature = "serve"))]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// Its device file's minor number.
    pub minor: u32,
    /// `GPU-...`; empty where it is not told.
    pub uuid: String,
    /// The model's name.
    pub model: String,
    /// Its PCI address.
    pub bus: String,
}

/// The GPUs of this machine by name.
#[cfg(feature = "serve")]
#[must_use]
pub(crate) fn names() -> Vec<Named> {
    let gpus = fs::read_dir("/proc/driver/nvidia/gpus");
    let text = |gpu: fs::DirEntry| fs::read_to_string(gpu.path().join("information")).ok();
    let texts = gpus.into_iter().flatten().flatten().filter_map(text);
    texts.filter_map(|text| named(&text)).collect()
}

#[cfg(any(test, feature = "serve"))]
fn named(text: &str) -> Option<Named> {
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let value = lines.find(|(field, _)| field.trim() == name);
        value.map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let uuid = field("GPU UUID");
    Some(Named {
        minor: minor(text)?,
        // The driver writes question marks where it does not know it.
        uuid: if uuid.contains('?') {
            String::new()
        } else {
            uuid
        },
        model: field("Model"),
        bus: field("Bus Location"),
    })
}

/// The GPUs as records.
pub(crate) fn records() -> impl Iterator<Item = Record> {
    gpus().into_iter().map(Record::Gpu)
}

/// The chip of all GPUs of this machine, where they are alike.
#[must_use]
pub(crate) fn only() -> Option<&'static Chip> {
    let mut chips = gpus()
        .into_iter()
        .map(|g| Chip::with_pci_device(g.pci_device));
    let first = chips.next()??;
    chips.all(|c| c == Some(first)).then_some(first)
}

/// The chips by device file minor number, those that are known.
#[must_use]
pub(crate) fn chips() -> Vec<(u32, &'static Chip)> {
    let known = |g: &Gpu| Some((g.minor, Chip::with_pci_device(g.pci_device)?));
    gpus().iter().filter_map(known).collect()
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
