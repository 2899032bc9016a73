//! Usual causes of the Xids that users meet, and the places to look at, for `nvcap explain xid`.
//!
//! The causes are those of NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors), in nvcap's own words. The tools that are named here
//! find out which of them applies to a program.

use super::catalogue;

/// The facts about an Xid number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Xid number.
    pub code: u32,
    /// NVIDIA's name for the number.
    pub symbol: &'static str,
    /// Meaning, in one sentence.
    pub meaning: &'static str,
    /// True if the error is about the GPU, and so about every process that uses it.
    pub whole_gpu: bool,
    /// Usual causes, if the table has them.
    pub causes: Option<&'static str>,
    /// Places to look, and commands to type.
    pub look: Option<&'static str>,
}

/// Advice for errors of the program's memory or kernels: the tools that find the line.
const SANITIZER: &str = "nvcap -- COMMAND names the kernel that had not ended; compute-sanitizer COMMAND names the line, and is much slower";
/// Advice for errors of the hardware: the tools that show them, and the people to ask.
const HARDWARE: &str = "nvidia-smi -q (ECC errors, remapped rows, retired pages); the host's provider, where it comes again";
/// Advice for errors of the bus or the power supply.
const BUS: &str = "the host's log around it (PCIe errors, power, temperature); the GPU answers again after a reset or a reboot at best";
/// Advice for errors of the link to other GPUs.
const LINK: &str = "nvidia-smi nvlink -e (errors of each link); the fabric manager's log";
/// Advice for errors of the driver's own firmware.
const FIRMWARE: &str =
    "the kernel log before it; the driver's release notes; nvidia-bug-report.sh for NVIDIA";

/// Causes and places to look, by number.
const ADVICE: &[(u32, &str, &str)] = &[
    (
        13,
        "an instruction that the SM refuses: an address that is not aligned, outside of shared or local memory, an illegal instruction, a stack that overflows",
        SANITIZER,
    ),
    (
        31,
        "a kernel or a copy that reads or writes where nothing is mapped: beyond an allocation, after its free, by a pointer of the host",
        "nvcap -- COMMAND names the kernel, the page and the nearest argument; compute-sanitizer COMMAND names the line, and is much slower",
    ),
    (
        32,
        "a pushbuffer that is not understood: memory that another write has spoilt, a faulty bus, a fault of the driver",
        "nvcap -vv -p PID shows the methods as they were submitted; the host's log (PCIe errors)",
    ),
    (
        43,
        "a program's own error: an assertion of the device, an error that was found and for which the driver stopped the program",
        SANITIZER,
    ),
    (
        45,
        "another error of the same program before it, or its end while work was under way; as such no error",
        "the Xid before it in the kernel log",
    ),
    (48, "a fault of the memory chip", HARDWARE),
    (61, "a fault of the GPU's power management", FIRMWARE),
    (62, "a fault of the GPU or of its firmware", FIRMWARE),
    (
        63,
        "a page or row of memory with errors was taken out of use: it takes effect with the next reset",
        HARDWARE,
    ),
    (
        64,
        "a page or row with errors could not be taken out of use",
        HARDWARE,
    ),
    (
        68,
        "a stream that the video decoder does not understand, or a fault of the driver",
        FIRMWARE,
    ),
    (
        69,
        "a method with a value that the class does not allow: a fault of the driver or of spoilt memory",
        "nvcap -vv -p PID shows the methods as they were submitted",
    ),
    (
        74,
        "a link between GPUs with errors: a cable, a connector, the other GPU",
        LINK,
    ),
    (
        79,
        "the GPU does not answer over PCI Express: power, temperature, a slot, a faulty GPU",
        BUS,
    ),
    (
        92,
        "a memory chip with many errors that were corrected",
        HARDWARE,
    ),
    (
        94,
        "an error of memory that met this program alone: it has to be started again",
        HARDWARE,
    ),
    (
        95,
        "an error of memory that may have met every program on the GPU: it has to be reset",
        HARDWARE,
    ),
    (
        109,
        "a context that could not be switched away from: a kernel that waits without an end, or a fault of the driver",
        "nvcap dump -p PID names the kernel that runs, and what it waits for",
    ),
    (
        119,
        "the GPU's system processor has not answered a call of the driver",
        FIRMWARE,
    ),
    (120, "the GPU's system processor has stopped", FIRMWARE),
    (
        137,
        "an access to another GPU's memory that was refused: a peer's allocation that is gone, a link with errors",
        LINK,
    ),
    (140, "memory errors that were not handled", HARDWARE),
    (145, "a link between GPUs with errors", LINK),
    (149, "a link between GPUs with errors", LINK),
    (
        154,
        "an error before it: the message says what the GPU needs before it works again (a reset, a reboot of the host)",
        "the Xid before it in the kernel log; nvidia-smi -q (GPU Recovery Action)",
    ),
];

/// Returns the facts about a number; `None` if NVIDIA's catalogue does not have it.
pub fn known(code: u32) -> Option<Known> {
    let row = catalogue::find(code)?;
    let advice = ADVICE.iter().find(|(number, ..)| *number == code);
    Some(Known {
        code,
        symbol: row.symbol,
        meaning: row.meaning,
        whole_gpu: row.whole_gpu,
        causes: advice.map(|a| a.1),
        look: advice.map(|a| a.2),
    })
}

/// Returns the numbers of the catalogue, in order.
pub fn numbers() -> impl Iterator<Item = u32> {
    catalogue::ROWS.iter().map(|row| row.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_with_advice_is_in_the_catalogue() {
        assert!(ADVICE.is_sorted_by_key(|a| a.0));
        assert!(
            ADVICE
                .iter()
                .all(|a| known(a.0).is_some_and(|k| k.causes == Some(a.1)))
        );
        assert_eq!(known(31).unwrap().symbol, "FIFO_ERROR_MMU_ERR_FLT");
        assert!(known(1).unwrap().causes.is_none());
        assert!(known(154).unwrap().look.is_some());
        assert_eq!(known(4_000_000), None);
        assert!(numbers().count() > ADVICE.len());
    }
}
