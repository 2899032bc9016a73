//! GPUs: the facts that ioctls give about each, and the names of its architecture numbers. The module knows no objects.

/// A GPU as the ioctls of the traced processes describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Gpu {
    /// RM's gpuId.
    pub id: u32,
    /// Minor number of the GPU's device file.
    pub minor: Option<u32>,
    /// RM's device instance, to which device objects refer.
    pub instance: Option<u32>,
    /// PCI domain, bus, slot, function.
    pub pci: Option<(u32, u32, u32, u32)>,
    /// PCI device id.
    pub device_id: Option<u32>,
    /// UUID.
    pub uuid: Option<[u8; 16]>,
    /// Architecture and implementation (NV2080_CTRL_MC_GET_ARCH_INFO).
    pub arch: Option<(u32, u32)>,
}

impl Gpu {
    pub(crate) fn new(id: u32) -> Self {
        Self {
            id,
            minor: None,
            instance: None,
            pci: None,
            device_id: None,
            uuid: None,
            arch: None,
        }
    }

    /// Returns the PCI address in the form `0000:00:06.0`.
    #[must_use]
    pub fn pci_address(&self) -> Option<String> {
        let (domain, bus, slot, function) = self.pci?;
        Some(format!("{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"))
    }

    /// Returns the UUID as nvidia-smi prints it: `GPU-ce9418df-f207-9da0-8305-06ca8af10ca9`.
    #[must_use]
    pub fn uuid_text(&self) -> Option<String> {
        let hex: String = self.uuid?.iter().map(|b| format!("{b:02x}")).collect();
        Some(format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        ))
    }

    /// Returns the chip's name, such as `GH100`.
    #[must_use]
    pub fn chip(&self) -> Option<String> {
        let (arch, implementation) = self.arch?;
        chip(arch, implementation)
    }
}

/// Returns a chip by the architecture and implementation numbers of NV2080_CTRL_MC_GET_ARCH_INFO (ctrl2080mc.h).
#[must_use]
pub(super) fn chip(architecture: u32, implementation: u32) -> Option<String> {
    let series = match architecture {
        0x140 => "GV10",
        0x160 => "TU10",
        0x170 => "GA10",
        0x180 => "GH10",
        0x190 => "AD10",
        0x1a0 => "GB10",
        0x1b0 => "GB20",
        _ => return None,
    };
    match (architecture, implementation) {
        (0x160, 8) => Some("TU116".into()),
        (0x160, 7) => Some("TU117".into()),
        (_, 0..=0xf) => Some(format!("{series}{implementation:X}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_have_their_names() {
        assert_eq!(chip(0x180, 0).as_deref(), Some("GH100"));
        assert_eq!(chip(0x160, 6).as_deref(), Some("TU106"));
        assert_eq!(chip(0x160, 7).as_deref(), Some("TU117"));
        assert_eq!(chip(0x170, 0xb).as_deref(), Some("GA10B"));
        assert_eq!(chip(0x1b0, 2).as_deref(), Some("GB202"));
        assert_eq!(chip(0x999, 0), None);
    }
}
