//! Xid messages: the driver's lines in the kernel log about a failure of a GPU, or of a program's work on it.
//!
//! NVIDIA documents them in "XID Errors" and its Xid catalog (docs.nvidia.com/deploy/xid-errors). The words changed over the years. Only
//! the parts that all versions have are read: the PCI address, the number and, if present, the process and the channel's hardware number.

mod access;
mod advice;
mod catalogue;

pub use access::{Access, AccessKind};
pub use advice::{Known, known, numbers};

use crate::record::Xid;

/// Mask of the channel's hardware number in a work-submit token.
const NUMBER: u32 = 0xfff;
/// Mask of the runlist's number in a token, which begins at bit 16.
const RUNLIST: u32 = 0x7f;
/// Number of the Xid for a channel that the driver removes, as at a process's end or because of another channel's error. It is no fault of
/// the channel's own.
pub const REMOVAL: u32 = 45;
/// Text for a number that the catalogue does not have.
pub const UNKNOWN: &str = "see the driver's log (dmesg)";

impl Xid {
    /// Parses a message of the kernel log that begins with `NVRM: Xid (`; `None` for any other.
    #[must_use]
    pub fn parse(message: &str) -> Option<Self> {
        let rest = message.trim().strip_prefix("NVRM: Xid (")?;
        let (place, rest) = rest.split_once("): ")?;
        let (code, rest) = rest.split_once(',').unwrap_or((rest, ""));
        let mut xid = Self {
            code: code.trim().parse().ok()?,
            ..Self::default()
        };
        // The address; then the part of the GPU, if the GPU is divided (MIG). An unknown word stays in the text.
        let mut words = place.split_whitespace();
        let pci = words.next().unwrap_or_default();
        pci.strip_prefix("PCI:")
            .unwrap_or(pci)
            .clone_into(&mut xid.pci);
        for word in words {
            let number = |lead: &str| word.strip_prefix(lead)?.parse().ok();
            match (number("GPU-I:"), number("GPU-CI:")) {
                (Some(instance), _) => xid.gpu_instance = Some(instance),
                (_, Some(instance)) => xid.compute_instance = Some(instance),
                (None, None) => xid.text += &format!("({word}) "),
            }
        }
        // `pid=` and `name=` come first, if they are present; a name may contain a comma.
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
        xid.hardware_channel = channel(rest).filter(|_| {
            // Errors of the whole GPU may name channels of its memory, which are no program's.
            catalogue::find(xid.code).is_none_or(|row| !row.whole_gpu)
        });
        xid.text += rest;
        Some(xid)
    }

    /// Returns the meaning of the number.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        meaning(self.code)
    }

    /// Returns NVIDIA's name for the number.
    pub fn symbol(&self) -> Option<&'static str> {
        Some(catalogue::find(self.code)?.symbol)
    }

    /// Tells whether the error is about the GPU, and so about every process that uses it. If the message then names a process, it is the
    /// one for which the driver worked when it found the error. If the catalogue does not have the number, the names in the message decide.
    pub fn is_of_whole_gpu(&self) -> bool {
        match catalogue::find(self.code) {
            Some(row) => row.whole_gpu,
            None => self.pid.is_none() && self.hardware_channel.is_none(),
        }
    }

    /// Tells whether the message is about one process's work, and names neither the process nor the channel.
    #[must_use]
    pub fn is_of_unknown_process(&self) -> bool {
        self.pid.is_none() && self.hardware_channel.is_none() && !self.is_of_whole_gpu()
    }

    /// Returns the process that the message is about, if it is about one and names it.
    pub fn process(&self) -> Option<u32> {
        self.pid.filter(|_| !self.is_of_whole_gpu())
    }

    /// Tells whether the channel may be the one with this work-submit token of the GPU. A runlist of 0 may also mean that none is given;
    /// the number alone then decides.
    pub fn may_be_of(&self, token: u32) -> bool {
        self.hardware_channel.is_some_and(|channel| {
            let runlist = channel >> 24 & RUNLIST;
            let same = runlist == 0 || runlist == token >> 16 & RUNLIST;
            same && channel & NUMBER == token & NUMBER
        })
    }
}

/// Returns the channel in a message: `Ch 00000010`, `channel 0x0000001a`, `Channel 00000020`, `Channel ID 00000005`, `ChID 0007`, all
/// hexadecimal. (`CE User Channel (0x9)` of a contained error is no channel: the number is an engine's, `NV2080_ENGINE_TYPE_COPY0`.)
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

/// Returns the meaning of an Xid's number.
pub fn meaning(code: u32) -> &'static str {
    catalogue::find(code).map_or(UNKNOWN, |row| row.meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test of messages as users of these drivers published them: the forms of pid, name and channel.
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

    /// Test of lines of kernel logs in public reports (issues of the driver's repository and of monitoring tools): number, process,
    /// channel.
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
        // Anything that follows is read or left out.
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

    /// Test of a GPU that is divided (MIG), and of contained errors: the forms in the driver's source (kernel_rc.c,
    /// kern_gpu_error_cont_ga100.c).
    #[test]
    fn parts_of_a_gpu() {
        for (line, wanted) in [
            (
                "(PCI:0000:35:00 GPU-I:01 GPU-CI:02): 31, pid=7, name=x, Ch 0100000a, intr 0",
                (
                    Some(1),
                    Some(2),
                    Some(7),
                    Some(0x100_000a),
                    "Ch 0100000a, intr 0",
                ),
            ),
            (
                "(PCI:0000:35:00 GPU-I:05): 94, pid=7194, name=x, Contained: CE User Channel (0x9). RST: No, D-RST: No",
                (
                    Some(5),
                    None,
                    Some(7194),
                    None,
                    "Contained: CE User Channel (0x9). RST: No, D-RST: No",
                ),
            ),
            (
                "(PCI:0000:35:00): 95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
                (
                    None,
                    None,
                    Some(7062),
                    None,
                    "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
                ),
            ),
            (
                "(PCI:0000:35:00 GPU-I:x NEW:3): 13, a",
                (None, None, None, None, "(GPU-I:x) (NEW:3) a"),
            ),
        ] {
            let xid = Xid::parse(&format!("NVRM: Xid {line}")).unwrap();
            let parts = (
                xid.gpu_instance,
                xid.compute_instance,
                xid.pid,
                xid.hardware_channel,
            );
            assert_eq!(xid.pci, "0000:35:00", "{line}");
            assert_eq!(parts, (wanted.0, wanted.1, wanted.2, wanted.3), "{line}");
            assert_eq!(xid.text, wanted.4, "{line}");
        }
    }

    #[test]
    fn runlist_and_number_of_the_channel() {
        let of = |channel: u32, token: u32| {
            let line = format!("NVRM: Xid (PCI:0000:35:00): 31, Ch {channel:08x}, intr 0");
            Xid::parse(&line).unwrap().may_be_of(token)
        };
        assert!(of(0x0100_0012, 0x1_0012) && !of(0x0100_0012, 0x2_0012));
        assert!(!of(0x0100_0012, 0x1_0013) && !of(0x0100_0012, 0x12));
        // The eighth bit does not belong to the runlist.
        assert!(of(0x8100_0012, 0x1_0012));
        // Older drivers do not tell the runlist.
        assert!(of(0x12, 0x12) && of(0x12, 0x1_0012) && !of(0x12, 0x13));
    }

    #[test]
    fn whole_gpus() {
        let of = |rest: &str| Xid::parse(&format!("NVRM: Xid (PCI:0000:35:00): {rest}")).unwrap();
        for rest in [
            "79, pid=7, name=x, GPU has fallen off the bus.",
            "119, pid=8, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
            "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "160, HBM Channel 00000003",
            "999, of a driver to come",
        ] {
            let xid = of(rest);
            let whom = (xid.is_of_whole_gpu(), xid.process(), xid.hardware_channel);
            assert_eq!(whom, (true, None, None), "{rest}");
        }
        assert_eq!(of("31, pid=7, name=x, Ch 8").process(), Some(7));
        assert_eq!(of("999, pid=7, name=x, a").process(), Some(7));
        assert!(!of("13, Graphics Exception").is_of_whole_gpu());
        assert!(!of("999, Ch 00000008").is_of_whole_gpu());
    }

    #[test]
    fn every_number_has_a_name_and_a_sentence() {
        let numbers: Vec<u32> = catalogue::ROWS.iter().map(|row| row.code).collect();
        assert_eq!(numbers, Vec::from_iter(1..=176));
        for row in catalogue::ROWS {
            let upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            assert!(
                !row.symbol.is_empty() && row.symbol.chars().all(upper),
                "{row:?}"
            );
            assert!(row.meaning.len() > 10 && row.meaning.len() < 120, "{row:?}");
            assert_eq!(meaning(row.code), row.meaning);
        }
        assert_eq!((meaning(0), meaning(177)), (UNKNOWN, UNKNOWN));
        let xid = Xid::parse("NVRM: Xid (PCI:0000:01:00): 79").unwrap();
        assert_eq!(xid.symbol(), Some("GPU_HAS_FALLEN_OFF_THE_BUS"));
    }

    /// Test of lines that are cut anywhere, or have other bytes anywhere: they are read or left out, without a panic.
    #[test]
    fn any_bytes() {
        let line = "NVRM: Xid (PCI:0000:35:00 GPU-I:01 GPU-CI:02): 31, pid=7, name=\u{e4}, b, Channel ID 0x0100000a, intr 0";
        for at in 0..line.len() {
            let bytes = line.as_bytes();
            for cut in [&bytes[..at], &bytes[at..]] {
                let _ = Xid::parse(&String::from_utf8_lossy(cut));
            }
            for other in [0, b' ', b',', b':', b')', b'=', b'9', 0xc3, 0xff] {
                let mut bytes = bytes.to_vec();
                bytes[at] = other;
                let _ = Xid::parse(&String::from_utf8_lossy(&bytes));
            }
        }
        let long = "9".repeat(5000);
        assert_eq!(Xid::parse(&format!("NVRM: Xid (): {long}")), None);
        let xid = Xid::parse(&format!("NVRM: Xid (): 31, pid={long}, Ch {long}")).unwrap();
        assert_eq!((xid.pid, xid.hardware_channel), (None, None));
    }
}
