//! Chips of this machine's GPUs, from the facts that the driver and the PCI bus show to any user.

use std::fs;
use std::path::Path;

use crate::clock;
use nvcap_decode::decode::defaults::Chip;
use nvcap_decode::record::{At, Gpu, Record};

/// The most GPUs that are named. Minor numbers are below 255.
const MOST: usize = 255;

/// Returns the GPUs of this machine that the driver reports.
#[must_use]
pub fn gpus() -> Vec<Gpu> {
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

/// Returns the GPUs' device file minor numbers by PCI address (`0000:c1:00.0`).
#[must_use]
pub fn by_bus() -> Vec<(String, u32)> {
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

/// Names of a GPU, from the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Device file minor number.
    pub minor: u32,
    /// UUID, `GPU-...`; empty if the driver does not give it.
    pub uuid: String,
    /// Name of the model.
    pub model: String,
    /// PCI address.
    pub bus: String,
}

/// Returns the GPUs of this machine by name, in the order of their minor numbers.
#[must_use]
pub fn names() -> Vec<Named> {
    names_in(Path::new("/proc/driver/nvidia/gpus"))
}

/// Returns the GPUs of the host, if its files show more than the container's. (In a container, the runtime hides other containers' GPUs, or
/// all.) `root` is the folder of the host's files.
#[must_use]
pub fn names_of_host(root: &Path) -> Vec<Named> {
    let (own, host) = (names(), names_in(&root.join("proc/driver/nvidia/gpus")));
    if host.len() > own.len() { host } else { own }
}

/// Returns the GPUs in a folder of the form of `/proc/driver/nvidia/gpus`: a folder for each GPU, with a file `information`.
fn names_in(gpus: &Path) -> Vec<Named> {
    let text = |gpu: fs::DirEntry| fs::read_to_string(gpu.path().join("information")).ok();
    let texts = fs::read_dir(gpus).into_iter().flatten().flatten();
    let texts = texts.take(MOST).filter_map(text);
    let mut all: Vec<Named> = texts.filter_map(|text| named(&text)).collect();
    all.sort_by_key(|gpu| gpu.minor);
    all
}

fn named(text: &str) -> Option<Named> {
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let value = lines.find(|(field, _)| field.trim() == name);
        value.map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let uuid = field("GPU UUID");
    Some(Named {
        minor: minor(text)?,
        // The driver writes question marks for a UUID that it does not know.
        uuid: if uuid.contains('?') {
            String::new()
        } else {
            uuid
        },
        model: field("Model"),
        bus: field("Bus Location"),
    })
}

/// Returns the GPUs as records.
pub fn records() -> impl Iterator<Item = Record> {
    gpus().into_iter().map(Record::Gpu)
}

/// Returns the chip of all GPUs of this machine, if they all have the same.
#[must_use]
pub fn only() -> Option<&'static Chip> {
    let mut chips = gpus()
        .into_iter()
        .map(|g| Chip::with_pci_device(g.pci_device));
    let first = chips.next()??;
    chips.all(|c| c == Some(first)).then_some(first)
}

/// Returns the known chips by device file minor number.
#[must_use]
pub fn chips() -> Vec<(u32, &'static Chip)> {
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
    use super::*;

    #[test]
    fn lines_as_the_driver_writes_them() {
        let text = "Model: \t\t NVIDIA H200\nBus Location: \t 0000:00:04.0\nDevice Minor: \t 3\n";
        assert_eq!(minor(text), Some(3));
        assert_eq!(device("0x2335\n"), Some(0x2335));
    }

    /// Test that GPUs are in the order of their numbers. A GPU without a number is not named, and unknown facts are empty.
    #[test]
    fn gpus_by_name() {
        let folder = std::env::temp_dir().join(format!("nvcap-chip-{}", std::process::id()));
        let gpu = |bus: &str, text: &str| {
            std::fs::create_dir_all(folder.join(bus)).unwrap();
            std::fs::write(folder.join(bus).join("information"), text).unwrap();
        };
        assert!(names_in(&folder).is_empty());
        // Text in the form that nv-procfs.c of the open kernel modules writes.
        let text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 112\nGPU UUID: \t GPU-2d0c\nBus Location: \t 0000:0a:00.0\nDevice Minor: \t 3\n";
        gpu("0000:0a:00.0", text);
        let text = "GPU UUID: \t GPU-????\nModel: \t\t Unknown\nDevice Minor: \t 0\n";
        gpu("0000:0b:00.0", text);
        gpu("0000:0c:00.0", "Model: \t\t NVIDIA H200\n");
        let named = |minor, uuid: &str, model: &str, bus: &str| Named {
            minor,
            uuid: uuid.into(),
            model: model.into(),
            bus: bus.into(),
        };
        let wanted = [
            named(0, "", "Unknown", ""),
            named(3, "GPU-2d0c", "NVIDIA H200", "0000:0a:00.0"),
        ];
        assert_eq!(names_in(&folder), wanted);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
