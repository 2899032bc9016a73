//! Xid messages of the kernel log, each with its GPU.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use nvcap_decode::record::Xid;

use crate::memory::chip;
use crate::procfs::{self, kernel_log::KernelLog};

/// The most lines of unknown form that are kept.
const MOST_UNREAD: usize = 4;

/// Number of the messages about exceptions of an SM.
pub const EXCEPTION: u32 = 13;
/// Number of the messages about a process that the driver has stopped for its own error.
pub const RESET: u32 = 43;
/// Longest time between an exception's first message and the message that names the process, ns; 5 ms were seen.
const EXCEPTION_NS: u64 = 100_000_000;
/// Longest wait for the message that names the process.
const UNNAMED: Duration = Duration::from_millis(300);
/// The most messages that are kept until the process is named; each SM may write some.
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

    /// Makes the messages of a made-up log.
    #[doc(hidden)]
    #[must_use]
    pub fn of(log: KernelLog, gpus: BTreeMap<String, u32>) -> Self {
        Self {
            log,
            gpus,
            unread: Vec::new(),
        }
    }

    /// Tells whether this machine's log has messages of NVIDIA's driver. A machine without the driver's GPUs never reports a fault.
    #[must_use]
    pub fn tells(&self) -> bool {
        !self.gpus.is_empty()
    }

    /// Returns the descriptor that becomes readable when the kernel has logged something.
    pub fn wake(&self) -> RawFd {
        self.log.wake()
    }

    /// Returns the messages since the last call.
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

    /// Returns notes about the lines of unknown form since the last call, one for each of the first such lines.
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
    waiting: Vec<Waiting>,
    /// Messages to which no other message gave a process.
    left: Vec<Xid>,
}

#[derive(Debug)]
struct Waiting {
    xid: Xid,
    came: Instant,
}

/// Returns the part of a GPU that a message is about.
fn place(of: &Xid) -> (&str, Option<u32>, Option<u32>) {
    (&of.pci, of.gpu_instance, of.compute_instance)
}

impl Exceptions {
    /// Keeps a message that names no process, and returns any other message. A message about a process's exception is returned with the texts of the
    /// messages that the driver wrote before it about the same GPU.
    pub fn joined(&mut self, mut xid: Xid, now: Instant) -> Option<Xid> {
        let oldest = xid.time_ns.saturating_sub(EXCEPTION_NS);
        self.leave(|w| w.xid.time_ns < oldest);
        if xid.code == EXCEPTION && xid.pid.is_none() && xid.hardware_channel.is_none() {
            if self.waiting.len() < EXCEPTIONS {
                self.waiting.push(Waiting { xid, came: now });
            }
            return None;
        }
        // The driver writes 43 instead of 13 if it has handled the exception itself, such as a stack overflow. A message that names only a
        // channel is about that channel's process: the messages before it do not belong to the next one.
        let names_one = xid.pid.is_some() || xid.hardware_channel.is_some();
        if !names_one || !matches!(xid.code, EXCEPTION | RESET) {
            return Some(xid);
        }
        let is_of = |w: &mut Waiting| place(&w.xid) == place(&xid);
        let texts = self.waiting.extract_if(.., is_of).map(|w| w.xid.text);
        let mut texts: Vec<String> = texts.collect();
        texts.push(xid.text);
        xid.text = texts.join("; ");
        Some(xid)
    }

    /// Tells whether a message waits for the one that names its process.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.left.is_empty()
    }

    /// Returns the exceptions to which no message gave a process and none will any more, each as one message. If `now` is `None`, all that
    /// have no process are returned.
    pub fn without_process(&mut self, now: Option<Instant>) -> Vec<Xid> {
        let has_waited =
            |w: &Waiting| now.is_none_or(|now| now.saturating_duration_since(w.came) >= UNNAMED);
        self.leave(has_waited);
        std::mem::take(&mut self.left)
    }

    /// Gives up messages, joining those about one exception into one.
    fn leave(&mut self, is_over: impl Fn(&Waiting) -> bool) {
        for Waiting { xid, .. } in self.waiting.extract_if(.., |w| is_over(w)) {
            let is_one = |l: &Xid| {
                place(l) == place(&xid) && xid.time_ns.abs_diff(l.time_ns) <= EXCEPTION_NS
            };
            if let Some(first) = self.left.iter_mut().find(|l| is_one(l)) {
                first.text = format!("{}; {}", first.text, xid.text);
            } else if self.left.len() < EXCEPTIONS {
                self.left.push(xid);
            }
        }
    }
}

/// Messages of the log with each exception once. The driver writes several lines about one exception, with its process in some of them.
#[derive(Debug, Default)]
pub struct EachOnce {
    exceptions: Exceptions,
    /// Exceptions of which a line came a short time ago.
    told: Vec<Xid>,
}

impl EachOnce {
    /// Returns the messages since the last call.
    pub fn take(&mut self, log: &mut Xids, now: Instant) -> Vec<Xid> {
        let mut all = Vec::new();
        for xid in log.take() {
            all.extend(self.exceptions.joined(xid, now));
        }
        all.extend(self.exceptions.without_process(Some(now)));
        all.retain(|xid| xid.code != EXCEPTION || self.is_new(xid));
        all
    }

    /// Tells whether the message is the first about its exception.
    fn is_new(&mut self, xid: &Xid) -> bool {
        let is_near = |t: &Xid| xid.time_ns.abs_diff(t.time_ns) <= EXCEPTION_NS;
        let may_be_of = |t: &Xid| t.pid == xid.pid || t.pid.is_none() || xid.pid.is_none();
        let newest = xid.time_ns.saturating_sub(EXCEPTION_NS);
        self.told.retain(|t| t.time_ns >= newest);
        let is_told = |t: &Xid| place(t) == place(xid) && is_near(t) && may_be_of(t);
        let is_new = !self.told.iter().any(is_told);
        if is_new && self.told.len() < EXCEPTIONS {
            self.told.push(xid.clone());
        }
        is_new
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

    /// Test that the texts of an exception go to the message about its own process, not to the next one's.
    #[test]
    fn exceptions_go_to_their_own_message() {
        let mut all = Exceptions::default();
        let mut joined = |place: &str, rest: &str| {
            let line = format!("NVRM: Xid (PCI:0000:35:00{place}): {rest}");
            let xid = Xid::parse(&line).unwrap();
            all.joined(xid, Instant::now()).map(|xid| xid.text)
        };
        let named = |text: &str| Some(text.to_owned());
        assert_eq!(joined("", "13, of the first"), None);
        // Its process is known only by its channel.
        let first = joined("", "13, pid='<unknown>', name=<unknown>, Ch 0000000a");
        assert_eq!(first, named("of the first; Ch 0000000a"));
        assert_eq!(joined("", "13, of the second"), None);
        assert_eq!(joined("", "45, pid=1, name=a, gone"), named("gone"));
        let second = joined("", "43, pid=2, name=b, Ch 0000000b");
        assert_eq!(second, named("of the second; Ch 0000000b"));
        // Another instance of a divided GPU has its own exceptions.
        assert_eq!(joined(" GPU-I:01", "13, of an instance"), None);
        assert_eq!(joined(" GPU-I:02", "13, pid=3, name=c, own"), named("own"));
        assert_eq!(
            joined(" GPU-I:01", "13, pid=4, name=d, own"),
            named("of an instance; own")
        );
    }

    fn line(at: u64, rest: &str) -> Xid {
        let mut xid = Xid::parse(&format!("NVRM: Xid (PCI:0000:35:00): {rest}")).unwrap();
        xid.time_ns = at;
        xid
    }

    /// Test that an exception to which no message gives a process counts as one, however many lines it has, and is not given up before such
    /// a message can have come.
    #[test]
    fn exceptions_without_a_process_are_left() {
        let mut all = Exceptions::default();
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        for text in ["13, warp", "13, global"] {
            assert_eq!(all.joined(line(0, text), begin), None);
        }
        assert_eq!(all.without_process(Some(at(299))), []);
        let texts = |all: Vec<Xid>| Vec::from_iter(all.into_iter().map(|x| x.text));
        assert_eq!(texts(all.without_process(Some(at(300)))), ["warp; global"]);
        assert_eq!(all.without_process(None), []);
        // By the log's times, the next message is about another exception.
        assert_eq!(all.joined(line(0, "13, first"), begin), None);
        let second = all.joined(line(EXCEPTION_NS + 1, "13, pid=1, name=a, own"), begin);
        assert_eq!(second.unwrap().text, "own");
        assert_eq!(texts(all.without_process(None)), ["first"]);
    }

    /// Test that lines of one exception count once: those before the one that names the process, and those that name it again.
    #[test]
    fn an_exception_is_one() {
        let mut all = EachOnce::default();
        let mut is_new = |at, rest: &str| all.is_new(&line(at, rest));
        assert!(is_new(0, "13, pid=1, name=a, warp"));
        assert!(!is_new(EXCEPTION_NS, "13, pid=1, name=a, Ch 0000000a"));
        assert!(!is_new(
            EXCEPTION_NS,
            "13, Graphics Exception: ChID 000a, Class 0000cbc0"
        ));
        assert!(is_new(EXCEPTION_NS, "13, pid=2, name=b, warp"));
        assert!(is_new(3 * EXCEPTION_NS, "13, pid=1, name=a, warp"));
    }
}
