//! Xid messages: what the driver writes into the kernel log when a GPU, or a program's work on it, fails.
//!
//! NVIDIA documents them in "XID Errors" and its Xid catalog (docs.nvidia.com/deploy/xid-errors). The words changed over the
//! years; what is read here is what all have: the PCI address, the number, and, where they are there, the process and the channel's number in hardware.

use crate::record::Xid;

impl Xid {
    /// Reads a message of the kernel log, which begins with `NVRM: Xid (`; `None` for any other.
    #[must_use]
    pub fn parse(message: &str) -> Option<Self> {
        let rest = message.trim().strip_prefix("NVRM: Xid (")?;
        let (pci, rest) = rest.split_once("): ")?;
        let pci = pci.strip_prefix("PCI:").unwrap_or(pci);
        let (code, rest) = rest.split_once(',').unwrap_or((rest, ""));
        let mut xid = Self {
            pci: pci.to_owned(),
            code: code.trim().parse().ok()?,
            ..Self::default()
        };
        // `pid=` and `name=` lead what follows, if they are there; a name may have a comma in it.
        let mut rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix("pid=") {
            let (pid, after) = after.split_once(',').unwrap_or((after, ""));
            xid.pid = pid.trim().parse().ok();
            rest = after.trim_start();
        }
        if let Some(after) = rest.strip_prefix("name=") {
            let (name, after) = after.split_once(", ").unwrap_or((after, ""));
            xid.name = Some(name.to_owned()).filter(|n| n != "<unknown>" && !n.is_empty());
            rest = after.trim_start();
        }
        xid.hardware_channel = channel(rest);
        rest.clone_into(&mut xid.text);
        Some(xid)
    }

    /// What its number means, for usual ones.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        meaning(self.code)
    }
}

/// The channel in a message: `Ch 00000010`, `channel 0x0000001a`, `Channel 00000020`, `Channel ID 00000005`, `ChID 0007`; all
/// hexadecimal.
fn channel(text: &str) -> Option<u32> {
    let mut words = text.split([' ', ',', ':']);
    while let Some(word) = words.next() {
        let leads = ["Ch", "ChID", "Channel"]
            .iter()
            .any(|lead| word.eq_ignore_ascii_case(lead));
        if !leads {
            continue;
        }
        let mut number = words.next()?;
        if number.eq_ignore_ascii_case("id") {
            number = words.next()?;
        }
        let digits = number.trim_start_matches("0x");
        if let Ok(number) = u32::from_str_radix(digits, 16) {
            return Some(number);
        }
    }
    None
}

/// What an Xid's number means, for usual ones (the descriptions of NVIDIA's Xid catalog, in other words).
pub(crate) fn meaning(code: u32) -> &'static str {
    match code {
        8 => "the channel stopped (idle timeout)",
        13 => "an exception of the graphics engine",
        31 => "a fault of the memory management unit",
        11 | 32 => "an invalid pushbuffer",
        38 => "a firmware error",
        43 => "a reset by the driver",
        45 => "removed because of another channel's error",
        48 => "a memory error that could not be corrected (double bit)",
        62 => "an internal halt of the microcontroller",
        63 | 64 => "retirement or remapping of a memory page or row",
        69 => "a class error of the graphics engine",
        74 | 144..=150 => "an NVLink error",
        79 => "the GPU has fallen off the bus",
        94 => "a memory error, contained to this program",
        95 => "a memory error that was not contained",
        109 => "a context switch timeout",
        154 => "the GPU needs another way to recover than before",
        119 | 120 => "the GPU's system processor (GSP) does not answer or has failed",
        _ => "see the driver's log (dmesg)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages as users of these drivers published them: the forms of pid, name and channel.
    #[test]
    fn messages() {
        let line = "NVRM: Xid (PCI:0000:c1:00): 31, pid=2646416, name=python, channel 0x0000001a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC10 \
                    GPCCLIENT_T1_5 faulted @ 0x725f_fb800000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ";
        let xid = Xid::parse(line).unwrap();
        assert_eq!(
            (xid.pci.as_str(), xid.code, xid.pid),
            ("0000:c1:00", 31, Some(2_646_416))
        );
        assert_eq!(
            (xid.name.as_deref(), xid.hardware_channel),
            (Some("python"), Some(0x1a))
        );
        assert!(
            xid.text
                .starts_with("channel 0x0000001a, intr 00000000. MMU Fault")
        );

        let channel_of =
            |rest: &str| Xid::parse(&format!("NVRM: Xid (PCI:0000:0a:00): {rest}")).unwrap();
        let unknown = channel_of("45, pid='<unknown>', name=<unknown>, Ch 0000000a");
        assert_eq!(
            (unknown.pid, unknown.name, unknown.hardware_channel),
            (None, None, Some(10))
        );
        let caused =
            channel_of("45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149");
        assert_eq!(
            (caused.pid, caused.hardware_channel),
            (Some(1_818_990), Some(1))
        );
        assert_eq!(
            channel_of("32, Channel ID 00000005 intr 00008000").hardware_channel,
            Some(5)
        );
        assert_eq!(
            channel_of("69, Class Error: ChId 0005, Class 0000a097").hardware_channel,
            Some(5)
        );
        let bus = channel_of("79, pid=7, name=a, b, GPU has fallen off the bus.");
        assert_eq!(
            (bus.code, bus.hardware_channel, bus.meaning()),
            (79, None, "the GPU has fallen off the bus")
        );

        let old = Xid::parse(
            "NVRM: Xid (0000:00:05): 9, Channel 00000020 Instance 00000000 Intr 00100000",
        )
        .unwrap();
        assert_eq!(
            (old.pci.as_str(), old.code, old.hardware_channel),
            ("0000:00:05", 9, Some(0x20))
        );
        let bare = Xid::parse("NVRM: Xid (PCI:0000:01:00): 62").unwrap();
        assert_eq!((bare.code, bare.text.as_str()), (62, ""));
    }

    /// Lines of kernel logs in public reports (issues of the driver's repository and of monitoring tools): number, process, channel.
    #[test]
    fn lines_of_published_logs() {
        for (line, wanted) in [
            (
                "(PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005",
                (109, Some(1_797_828), Some(8)),
            ),
            (
                "(PCI:0000:02:00): 109, pid=8494,   name=RenderThread, channel 0x0000000d, CTX SWITCH TIMEOUT, Info 0x14c011",
                (109, Some(8494), Some(0xd)),
            ),
            (
                "(PCI:0000:07:00): 38, pid=326, name=modprobe, channel 0x00000003 0000c597 00000000 00000000",
                (38, Some(326), Some(3)),
            ),
            (
                "(PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter",
                (13, None, None),
            ),
            (
                "(PCI:0000:43:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x52e7b0=0x101000e 0x52e7b4=0x4",
                (13, None, None),
            ),
            (
                "(PCI:0000:01:00): 31, Ch 00000003, engmask 00000101, intr 10000000",
                (31, None, Some(3)),
            ),
            ("(0000:03:00): 14, Channel 00000001", (14, None, Some(1))),
            (
                "(PCI:0000:01:00): 62, 323f0f30 0000c3d8 00000000 206dae68 206da022",
                (62, None, None),
            ),
            (
                "(PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
                (154, None, None),
            ),
            (
                "(PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)",
                (145, None, None),
            ),
            (
                "(PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error",
                (94, Some(1234), None),
            ),
        ] {
            let xid = Xid::parse(&format!("NVRM: Xid {line}")).unwrap();
            assert_eq!((xid.code, xid.pid, xid.hardware_channel), wanted, "{line}");
        }
    }

    #[test]
    fn what_is_no_xid() {
        for line in [
            "",
            "NVRM: GPU at PCI:0000:01:00: GPU-760d0170-b7c5-6817-9414-6cc7112645de",
            "NVRM: Xid (PCI:0000:01:00): x",
            "NVRM: Xid (PCI:0000:01:00",
            "nvidia: NVRM: Xid (PCI:0000:01:00): 31",
        ] {
            assert_eq!(Xid::parse(line), None, "{line}");
        }
        // Whatever follows is read or left.
        assert_eq!(
            Xid::parse("NVRM: Xid (): 1, Ch").unwrap().hardware_channel,
            None
        );
        assert_eq!(
            Xid::parse("NVRM: Xid (): 1, Ch zz, Ch 3")
                .unwrap()
                .hardware_channel,
            Some(3)
        );
    }
}
