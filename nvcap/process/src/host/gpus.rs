//! The GPUs of the host, from the facts that the driver shows to any user: minor number and UUID.

use std::{collections::BTreeMap, fs, path::Path};

use nvcap_decode::record::UsedGpu;

/// The most GPUs that are taken in. Minor numbers are below 255.
const MOST: usize = 255;

/// Returns UUIDs by minor number, from the first of these folders `.../driver/nvidia/gpus` that lists any GPU. In a container, the toolkit
/// hides the entries of other containers' GPUs.
pub(super) fn uuids<'a>(procs: impl IntoIterator<Item = &'a Path>) -> BTreeMap<u32, String> {
    let mut most = BTreeMap::new();
    for proc in procs {
        let gpus = fs::read_dir(proc.join("driver/nvidia/gpus"));
        let gpus = gpus.into_iter().flatten().flatten().take(MOST);
        let texts = gpus.filter_map(|gpu| fs::read_to_string(gpu.path().join("information")).ok());
        let all: BTreeMap<u32, String> = texts.filter_map(|text| uuid(&text)).collect();
        if all.len() > most.len() {
            most = all;
        }
    }
    most
}

/// Returns minor number and UUID from the text of a GPU's `information`.
fn uuid(text: &str) -> Option<(u32, String)> {
    let value = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name)?.trim_start().strip_prefix(':'))
            .map(str::trim)
    };
    let minor = value("Device Minor")?.parse().ok()?;
    // The driver writes question marks for a UUID that is not known yet.
    let uuid =
        value("GPU UUID").filter(|u| u.starts_with("GPU-") && u.len() <= 64 && !u.contains('?'))?;
    Some((minor, uuid.to_owned()))
}

/// Returns the GPUs with these minor numbers.
pub(super) fn used(
    minors: impl IntoIterator<Item = u32>,
    uuids: &BTreeMap<u32, String>,
) -> Vec<UsedGpu> {
    let gpu = |minor| UsedGpu {
        minor,
        uuid: uuids.get(&minor).cloned(),
    };
    minors.into_iter().map(gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text in the form that nv-procfs.c of the open kernel modules writes.
    const TEXT: &str = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 112\nGPU UUID: \t GPU-2d0c5d5a-6c2f-7a3d-9b4e-0123456789ab\nVideo BIOS: \t 96.00.a5\nDevice Minor: \t 3\nGPU Firmware: \t 580.65.06\n";

    #[test]
    fn uuid_and_minor() {
        let gpu = uuid(TEXT).unwrap();
        assert_eq!(gpu, (3, "GPU-2d0c5d5a-6c2f-7a3d-9b4e-0123456789ab".into()));
        assert_eq!(uuid(&TEXT.replace("2d0c5d5a", "????????")), None);
        assert_eq!(uuid(&TEXT.replace("Minor: \t 3", "Minor: \t x")), None);
        assert_eq!(uuid(""), None);
    }
}
