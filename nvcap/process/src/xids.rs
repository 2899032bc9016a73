//! Xid messages of the kernel log, each with its GPU.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;

use nvcap_decode::record::Xid;

use crate::memory::chip;
use crate::procfs::{self, kernel_log::KernelLog};

/// The most lines of unknown form that are kept.
const MOST_UNREAD: usize = 4;

/// Number of the messages about exceptions of an SM.
const EXCEPTION: u32 = 13;
/// Number of the messages about a process that the driver has stopped for its own error.
const RESET: u32 = 43;
/// Longest time between an exception's first message and the message that names the process, ns; 5 ms were seen.
const EXCEPTION_NS: u64 = 100_000_000;
/// The most messages that are kept until the process is named: each SM may write some.
const EXCEPTIONS: usize = 16;

/// The kernel log's Xid messages.
#[derive(Debug)]
pub struct Xids {
    log: KernelLog,
    /// GPUs by PCI address without the function.
    gpus: BTreeMap<String, u32>,
    /// Lines about Xids whose form is not known.
    unread: Vec<String>,
}

impl Xids {
    /// Opens the log, at its oldest message.
    ///
    /// # Errors
    /// Text for the user: why the log cannot be read, and what to type.
    pub fn open() -> Result<Self, String> {
        Ok(Self {
            log: KernelLog::open().map_err(|e| refusal(&e))?,
            gpus: chip::by_bus()
                .into_iter()
                .map(|(bus, minor)| (without_function(&bus).to_owned(), minor))
                .collect(),
            unread: Vec::new(),
        })
    }

    /// Creates the messages of a made-up log.
    #[doc(hidden)]
    #[must_use]
    pub fn of(log: KernelLog, gpus: BTreeMap<String, u32>) -> Self {
        Self {
            log,
            gpus,
            unread: Vec::new(),
        }
    }

    /// Tells whether this machine's log has messages of NVIDIA's driver: one without the driver's GPUs never tells of a fault.
    #[must_use]
    pub fn tells(&self) -> bool {
        !self.gpus.is_empty()
    }

    /// Returns the descriptor that becomes readable when the kernel has logged something.
    pub fn wake(&self) -> RawFd {
        self.log.wake()
    }

    /// The messages since the last call.
    pub fn take(&mut self) -> Vec<Xid> {
        let mut all = Vec::new();
        for message in self.log.messages().unwrap_or_default() {
            let Some(mut xid) = Xid::parse(&message.text) else {
                let is_one = message.text.trim_start().starts_with("NVRM: Xid");
                if is_one && self.unread.len() < MOST_UNREAD {
                    self.unread.push(message.text);
                }
                continue;
            };
            xid.time_ns = message.time_ns;
            xid.gpu = self.gpus.get(without_function(&xid.pci)).copied();
            all.push(xid);
        }
        all
    }

    /// Notes about the lines of unknown form since the last call, one for each of the first such lines.
    pub fn unread(&mut self) -> impl Iterator<Item = String> + use<> {
        let all = std::mem::take(&mut self.unread).into_iter();
        all.map(|line| {
            format!("a line of the kernel log about an Xid has a form that is not known: {line}")
        })
    }
}

/// Messages about exceptions of an SM that name no process. The driver writes them before the message that names the process, about the same GPU or
/// the same instance of it.
#[derive(Debug, Default)]
pub struct Exceptions {
    waiting: Vec<Xid>,
}

impl Exceptions {
    /// Keeps a message that names no process, and returns any other message. A message about a process's exception is returned with the texts of the
    /// messages that the driver wrote before it about the same GPU.
    pub fn joined(&mut self, mut xid: Xid) -> Option<Xid> {
        let oldest = xid.time_ns.saturating_sub(EXCEPTION_NS);
        self.waiting.retain(|w| w.time_ns >= oldest);
        if xid.code == EXCEPTION && xid.pid.is_none() && xid.hardware_channel.is_none() {
            if self.waiting.len() < EXCEPTIONS {
                self.waiting.push(xid);
            }
            return None;
        }
        // The driver writes 43 in place of 13 where it has handled the exception itself, as that of a stack that overflows. One that names a
        // channel alone is about its process: what came before it is not the next one's.
        let names_one = xid.pid.is_some() || xid.hardware_channel.is_some();
        if !names_one || !matches!(xid.code, EXCEPTION | RESET) {
            return Some(xid);
        }
        let place = |of: &Xid| (of.gpu_instance, of.compute_instance);
        let is_of = |w: &mut Xid| w.pci == xid.pci && place(w) == place(&xid);
        let texts = self.waiting.extract_if(.., is_of).map(|w| w.text);
        let mut texts: Vec<String> = texts.collect();
        texts.push(xid.text);
        xid.text = texts.join("; ");
        Some(xid)
    }
}

fn without_function(bus: &str) -> &str {
    bus.split('.').next().unwrap_or(bus)
}

fn refusal(e: &io::Error) -> String {
    let remedy = if procfs::is_root() {
        "a container without cap_syslog: run `dmesg | grep Xid` outside of it"
    } else {
        "run nvcap as root, or `sudo dmesg | grep Xid`"
    };
    format!("Xid messages are not shown: the kernel log cannot be read ({e}); {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of an exception go to the message about its own process, not to the next one's.
    #[test]
    fn exceptions_go_to_their_own_message() {
        let mut all = Exceptions::default();
        let mut joined = |place: &str, rest: &str| {
            let line = format!("NVRM: Xid (PCI:0000:35:00{place}): {rest}");
            let xid = Xid::parse(&line).unwrap();
            all.joined(xid).map(|xid| xid.text)
        };
        let named = |text: &str| Some(text.to_owned());
        assert_eq!(joined("", "13, of the first"), None);
        // Its process is not known, but for its channel.
        let first = joined("", "13, pid='<unknown>', name=<unknown>, Ch 0000000a");
        assert_eq!(first, named("of the first; Ch 0000000a"));
        assert_eq!(joined("", "13, of the second"), None);
        assert_eq!(joined("", "45, pid=1, name=a, gone"), named("gone"));
        let second = joined("", "43, pid=2, name=b, Ch 0000000b");
        assert_eq!(second, named("of the second; Ch 0000000b"));
        // Another instance of a divided GPU is another's.
        assert_eq!(joined(" GPU-I:01", "13, of an instance"), None);
        assert_eq!(joined(" GPU-I:02", "13, pid=3, name=c, own"), named("own"));
        assert_eq!(
            joined(" GPU-I:01", "13, pid=4, name=d, own"),
            named("of an instance; own")
        );
    }
}
