//! The memory access that an Xid 31 reports: its address and kind, and the reason why it failed.

use std::fmt;

use crate::record::{Xid, named};

named! {
    /// Kind of an access.
    pub enum AccessKind {
        /// A load.
        Read = "read",
        /// A store.
        Write = "write",
        /// A read and a write in one.
        Atomic = "atomic",
        /// A load ahead of its use.
        Prefetch = "prefetch",
        /// An unknown kind; the message names it.
        Other = "other",
    }
}

/// A failed access to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Address of the page, which is all that the driver gives; the address within the page is not known.
    pub page: u64,
    /// Kind of the access.
    pub kind: AccessKind,
    /// Reason by the driver's name without `FAULT_`, such as PDE.
    pub reason: String,
    /// Unit of the GPU that made the access, such as `GRAPHICS GPC10 GPCCLIENT_T1_5`.
    pub unit: String,
}

impl Xid {
    /// Returns the memory access that the message reports: `ENGINE GRAPHICS GPC10 GPCCLIENT_T1_5 faulted @ 0x725f_fb800000. Fault is of
    /// type FAULT_PDE ACCESS_TYPE_VIRT_READ`.
    #[must_use]
    pub fn access(&self) -> Option<Access> {
        let (before, after) = self.text.split_once(" faulted @ ")?;
        // The next message about the same fault follows a semicolon.
        let after = after.split(';').next()?;
        let is_digit = |c: char| c.is_ascii_hexdigit() || c == '_';
        let number = after.strip_prefix("0x")?;
        let (number, after) =
            number.split_at(number.find(|c| !is_digit(c)).unwrap_or(number.len()));
        let digits = number.replace('_', "");
        let mut words = after.split_whitespace();
        let reason = words.find_map(|w| w.strip_prefix("FAULT_"));
        let kind = words.find_map(|w| w.strip_prefix("ACCESS_TYPE_"));
        Some(Access {
            page: u64::from_str_radix(&digits, 16).ok()?,
            kind: kind.map_or(AccessKind::Other, AccessKind::of),
            reason: reason.unwrap_or_default().to_owned(),
            unit: { before.split_once("ENGINE ") }
                .map_or("", |(_, unit)| unit)
                .to_owned(),
        })
    }
}

impl Xid {
    /// Returns the exception of an SM that the message reports: `Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): Misaligned Address`.
    #[must_use]
    pub fn exception(&self) -> Option<&str> {
        let (_, after) = self.text.split_once("SM Warp Exception on (")?;
        let (_, after) = after.split_once("): ")?;
        let what = after.split(';').next()?.trim();
        (!what.is_empty()).then_some(what)
    }
}

impl AccessKind {
    /// Reads the kind from the driver's name of an access, which older drivers write without `VIRT_`.
    fn of(name: &str) -> Self {
        let name = name.trim_start_matches("VIRT_").trim_start_matches("PHYS_");
        match name.split('_').next() {
            Some("READ") => Self::Read,
            Some("WRITE") => Self::Write,
            Some("ATOMIC") => Self::Atomic,
            Some("PREFETCH") => Self::Prefetch,
            _ => Self::Other,
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Read => "a read of",
            Self::Write => "a write to",
            Self::Atomic => "an atomic operation on",
            Self::Prefetch => "a prefetch of",
            Self::Other => "an access to",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} the page at {:#x}", self.kind.noun(), self.page)?;
        match self.reason.as_str() {
            "PDE" | "PTE" => write!(f, ", where nothing is mapped"),
            "RO_VIOLATION" => write!(f, ", which may only be read"),
            "WO_VIOLATION" => write!(f, ", which may only be written"),
            "ATOMIC_VIOLATION" => write!(f, ", on which the GPU may do no atomic operation"),
            "VA_LIMIT_VIOLATION" => write!(f, ", which is beyond the address space"),
            "" => Ok(()),
            reason => write!(f, " ({reason})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(text: &str) -> Option<Access> {
        let xid = Xid {
            text: text.to_owned(),
            ..Xid::default()
        };
        xid.access()
    }

    #[test]
    fn exceptions() {
        let of = |text: &str| Xid {
            text: text.to_owned(),
            ..Xid::default()
        };
        let line = "Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): Misaligned Address; Graphics Exception: ESR 0x517730=0x501000f";
        assert_eq!(of(line).exception(), Some("Misaligned Address"));
        for none in [
            "",
            "Graphics SM Warp Exception on (GPC",
            "Graphics SM Warp Exception on (GPC 1): ; x",
            "Graphics Exception: ESR 0x1",
        ] {
            assert_eq!(of(none).exception(), None, "{none}");
        }
    }

    #[test]
    fn accesses_of_several_drivers() {
        let said = |text: &str| access(text).map(|a| a.to_string());
        let line = "channel 0x0000001a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC10 GPCCLIENT_T1_5 faulted @ 0x725f_fb800000. \
                    Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ";
        let known = access(line).unwrap();
        assert_eq!(
            (known.page, known.kind),
            (0x725f_fb80_0000, AccessKind::Read)
        );
        assert_eq!(known.unit, "GRAPHICS GPC10 GPCCLIENT_T1_5");
        assert_eq!(
            said(line).unwrap(),
            "a read of the page at 0x725ffb800000, where nothing is mapped"
        );
        // A name without VIRT_, as older drivers write it; an unknown reason; a message that ends early.
        for (text, wanted) in [
            (
                "MMU Fault: ENGINE GRAPHICS faulted @ 0x1_00001000. Fault is of type FAULT_RO_VIOLATION ACCESS_TYPE_WRITE",
                "a write to the page at 0x100001000, which may only be read",
            ),
            (
                "ENGINE CE3 HUBCLIENT_CE1 faulted @ 0x0_00000000. Fault is of type FAULT_POISONED ACCESS_TYPE_PHYS_ATOMIC",
                "an atomic operation on the page at 0x0 (POISONED)",
            ),
            (
                "ENGINE X faulted @ 0x0_00002000",
                "an access to the page at 0x2000",
            ),
        ] {
            assert_eq!(said(text).as_deref(), Some(wanted));
        }
        let twice = "ENGINE X faulted @ 0x0_00002000. Fault is of type FAULT_PTE ACCESS_TYPE_READ; ENGINE X faulted @ 0x0_00003000. Fault";
        assert_eq!(
            said(twice).as_deref(),
            Some("a read of the page at 0x2000, where nothing is mapped")
        );
        let stopped = "ENGINE X faulted @ 0x0_00002000.";
        assert_eq!(
            said(stopped).as_deref(),
            Some("an access to the page at 0x2000")
        );
        for none in [
            "",
            "faulted @ 0x10",
            " faulted @ x. ",
            " faulted @ 0x123456789abcdef01",
        ] {
            assert_eq!(access(none), None, "{none}");
        }
    }
}
