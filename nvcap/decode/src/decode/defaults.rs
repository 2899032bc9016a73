//! Classes of subchannels whose SET_OBJECT was not seen, because nvcap attached in the middle of a process's life.
//!
//! On a graphics runlist subchannels have fixed meanings (0 3D, 1 compute, 2 inline to memory, 3 2D, 4 copy); other engines have one class
//! whatever the subchannel. The class number depends on the chip. The chip comes from the caller, from any class that was bound on the same
//! GPU, or from the host class. The host class alone is the weakest evidence, because a chip also accepts the host classes of older chips.

use super::event::Engine;

/// The engine classes of a chip, or of several chips with the same classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chip {
    /// Names of the chips.
    pub names: &'static [&'static str],
    /// Newest host class that the chip accepts.
    pub host: u32,
    /// 3D.
    pub graphics: u32,
    /// Compute.
    pub compute: u32,
    /// Inline to memory.
    pub inline: u32,
    /// Copy engine.
    pub copy: u32,
    /// Video decoder; 0 for none.
    pub nvdec: u32,
    /// Video encoder; 0 for none.
    pub nvenc: u32,
    /// JPEG decoder; 0 for none.
    pub nvjpg: u32,
    /// Optical flow; 0 for none.
    pub ofa: u32,
}

macro_rules! chips {
    ($([$($name:literal)*] $host:literal $g:literal $c:literal $i:literal $b:literal $d:literal $e:literal $j:literal $o:literal;)*) => {
        &[$(Chip {
            names: &[$($name),*], host: $host, graphics: $g, compute: $c, inline: $i, copy: $b, nvdec: $d, nvenc: $e,
            nvjpg: $j, ofa: $o,
        }),*]
    };
}

/// Chips, Volta to Blackwell (facts/rm/chip_classes.tsv; GV100 from its class headers). Among chips with the same newest host class and
/// compute class, the data-centre chip comes first.
pub const CHIPS: &[Chip] = chips! {
    ["GV100"] 0xc36f 0xc397 0xc3c0 0xa140 0xc3b5 0 0 0 0;
    ["TU102" "TU104" "TU106" "TU116"] 0xc46f 0xc597 0xc5c0 0xa140 0xc5b5 0xc4b0 0xc4b7 0 0;
    ["TU117"] 0xc46f 0xc597 0xc5c0 0xa140 0xc5b5 0xc4b0 0xb4b7 0 0;
    ["GA100"] 0xc56f 0xc697 0xc6c0 0xa140 0xc6b5 0xc6b0 0 0xc4d1 0xc6fa;
    ["GA102" "GA103" "GA104" "GA106" "GA107"] 0xc56f 0xc797 0xc7c0 0xa140 0xc7b5 0xc7b0 0xc7b7 0 0xc7fa;
    ["AD102" "AD103" "AD104" "AD106" "AD107"] 0xc56f 0xc997 0xc9c0 0xa140 0xc7b5 0xc9b0 0xc9b7 0xc9d1 0xc9fa;
    ["GH100"] 0xc86f 0xcb97 0xcbc0 0xa140 0xc8b5 0xb8b0 0 0xb8d1 0xb8fa;
    ["GB100" "GB102" "GB110" "GB112"] 0xc96f 0xcd97 0xcdc0 0xcd40 0xc9b5 0xcdb0 0 0xcdd1 0xcdfa;
    ["GB10B"] 0xc96f 0xcd97 0xcdc0 0xcd40 0xc9b5 0xceb0 0xceb7 0xced0 0xcefa;
    ["GB202" "GB203" "GB205" "GB206" "GB207"] 0xca6f 0xce97 0xcec0 0xcd40 0xcab5 0xcfb0 0xcfb7 0xcfd1 0xcffa;
    ["GB20B" "GB20C"] 0xca6f 0xce97 0xcec0 0xcd40 0xcab5 0xd1b0 0xd1b7 0xced0 0xd1fa;
};

impl Chip {
    /// Returns the chip with this name (`GH100`).
    pub fn named(name: &str) -> Option<&'static Self> {
        CHIPS
            .iter()
            .find(|c| c.names.iter().any(|n| n.eq_ignore_ascii_case(name)))
    }

    /// Returns the chip that has `class` as its 3D, compute, copy or video class. Inline, 2D and host classes are no evidence, because
    /// several generations share them.
    pub fn with_class(class: u32) -> Option<&'static Self> {
        if class == 0 {
            return None;
        }
        let exact = |f: fn(&Self) -> u32| CHIPS.iter().find(move |c| f(c) == class);
        exact(|c| c.compute)
            .or_else(|| exact(|c| c.graphics))
            .or_else(|| exact(|c| c.copy))
            .or_else(|| exact(|c| c.nvdec))
    }

    /// Returns the chip with this newest host class.
    pub fn with_host(class: u32) -> Option<&'static Self> {
        CHIPS.iter().find(|c| c.host == class)
    }

    /// Tells whether the chip comes after another one in [`CHIPS`].
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        let place = |chip| CHIPS.iter().position(|c| c == chip);
        place(self) > place(other)
    }

    /// Returns the chip of a PCI device id (vendor 10de), by the ranges that the public PCI id list gives each chip.
    pub fn with_pci_device(id: u16) -> Option<&'static Self> {
        Self::named(match id {
            0x1d80..=0x1dff => "GV100",
            0x1e00..=0x1e7f => "TU102",
            0x1e80..=0x1eff => "TU104",
            0x1f00..=0x1f7f => "TU106",
            0x1f80..=0x1fff => "TU117",
            0x2080..=0x20ff => "GA100",
            0x2180..=0x21ff => "TU116",
            0x2200..=0x227f => "GA102",
            0x2300..=0x23ff => "GH100",
            0x2400..=0x247f => "GA103",
            0x2480..=0x24ff => "GA104",
            0x2500..=0x257f => "GA106",
            0x2580..=0x25ff => "GA107",
            0x2680..=0x26ff => "AD102",
            0x2700..=0x277f => "AD103",
            0x2780..=0x27ff => "AD104",
            0x2800..=0x287f => "AD106",
            0x2880..=0x28ff => "AD107",
            0x2900..=0x29ff => "GB100",
            0x2b80..=0x2bff => "GB202",
            0x2c00..=0x2c7f => "GB203",
            0x2d00..=0x2d7f => "GB206",
            0x2d80..=0x2dff => "GB207",
            0x2f00..=0x2f7f => "GB205",
            _ => return None,
        })
    }

    /// Returns the class that `subchannel` of a channel on `engine` has by convention; 0 if there is none.
    pub fn subchannel(&self, engine: Engine, subchannel: u8) -> u32 {
        match engine {
            Engine::Copy(_) => self.copy,
            Engine::Nvdec(_) => self.nvdec,
            Engine::Nvenc(_) => self.nvenc,
            Engine::Nvjpg(_) => self.nvjpg,
            Engine::Ofa(_) => self.ofa,
            Engine::Graphics | Engine::Unknown | Engine::Other(_) | Engine::Sec2 => {
                match subchannel {
                    0 => self.graphics,
                    1 => self.compute,
                    2 => self.inline,
                    3 => 0x902d,
                    4 => self.copy,
                    _ => 0,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::classes;

    #[test]
    fn every_class_is_known_to_the_tables() {
        for c in CHIPS {
            for class in [
                c.host, c.graphics, c.compute, c.inline, c.copy, c.nvdec, c.nvenc, c.nvjpg, c.ofa,
            ] {
                assert!(class == 0 || classes::class(class).is_some(), "{class:x}");
            }
        }
        assert_eq!(Chip::with_class(0xcbc0), Chip::named("gh100"));
        assert_eq!(
            Chip::named("GH100").map(|c| c.subchannel(Engine::Unknown, 4)),
            Some(0xc8b5)
        );
        assert_eq!(Chip::with_class(0xa140), None);
        // NVIDIA H200, A100 SXM4, T4.
        for (id, name) in [(0x2335, "GH100"), (0x20b0, "GA100"), (0x1eb8, "TU104")] {
            assert_eq!(Chip::with_pci_device(id), Chip::named(name));
        }
        assert_eq!(Chip::with_pci_device(0x0fff), None);
    }
}
