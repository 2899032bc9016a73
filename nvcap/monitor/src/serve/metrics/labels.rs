//! The labels that a metric has, and what never changes while nvcap runs.

use std::collections::BTreeMap;

use crate::counts::view::Key;

pub(super) const NS: f64 = 1e-9;

/// A GPU of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuName {
    /// Its UUID: `GPU-...`.
    pub uuid: String,
    /// The model's name.
    pub model: String,
    /// Its PCI address.
    pub bus: String,
}

/// Facts that do not change while nvcap runs.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    /// GPUs by minor number.
    pub gpus: BTreeMap<u32, GpuName>,
    /// nvcap's version.
    pub version: String,
    /// Time at which nvcap began, seconds since the epoch.
    pub began: f64,
}

#[cfg(test)]
impl Constants {
    /// Makes up the constants of a machine with one GPU.
    pub(in crate::serve) fn made_up() -> Self {
        let gpu = GpuName {
            uuid: "GPU-1".to_owned(),
            model: "NVIDIA H200".to_owned(),
            bus: "0000:c1:00.0".to_owned(),
        };
        Self {
            gpus: [(0, gpu)].into(),
            version: "1".to_owned(),
            began: 1.7e9,
        }
    }
}

/// The labels of a key, as they are written.
pub(super) struct Of<'a> {
    gpu: String,
    instance: String,
    pid: String,
    uuid: &'a str,
    key: &'a Key,
}

impl<'a> Of<'a> {
    pub(super) fn new(key: &'a Key, constants: &'a Constants) -> Self {
        let name = key.gpu.and_then(|gpu| constants.gpus.get(&gpu));
        Self {
            gpu: key.gpu.map_or(String::new(), |gpu| gpu.to_string()),
            instance: key
                .instance
                .map_or(String::new(), |instance| instance.to_string()),
            pid: key
                .process
                .as_ref()
                .map_or(String::new(), |p| p.pid.to_string()),
            uuid: name.map_or("", |name| &name.uuid),
            key,
        }
    }

    pub(super) fn labels<'b>(&'b self, more: &[(&'b str, &'b str)]) -> Vec<(&'b str, &'b str)> {
        let owner = &self.key.owner;
        let comm = self.key.process.as_ref().map_or("", |p| &p.name);
        let own = [
            ("UUID", self.uuid),
            ("gpu", &self.gpu),
            ("GPU_I_ID", &self.instance),
            ("namespace", &owner.namespace),
            ("pod", &owner.pod),
            ("container", &owner.container),
            ("pid", &self.pid),
            ("comm", comm),
        ];
        own.into_iter().chain(more.iter().copied()).collect()
    }
}
