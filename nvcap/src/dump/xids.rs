//! Xid messages of the kernel log, and the processes and channels that they are about.

use std::collections::BTreeMap;
use std::io;

use crate::hang::{ChannelState, Xid};
use crate::procfs::{self, kernel_log::KernelLog, stat::Stat};
use crate::source::memory::chip;

/// Bits of a work-submit token that are the channel's number in hardware.
const CHANNEL_BITS: u32 = 0xfff;
/// Nanoseconds of a clock tick (USER_HZ is 100).
const TICK_NS: u64 = 10_000_000;

/// The kernel log's Xid messages.
#[derive(Debug)]
pub(crate) struct Xids {
    log: KernelLog,
    /// GPUs by PCI address without the function.
    gpus: BTreeMap<String, u32>,
}

impl Xids {
    /// Opens the log, at its oldest message.
    ///
    /// # Errors
    /// What is to be told the user: why it cannot be read, and what to type.
    pub(crate) fn open() -> Result<Self, String> {
        Ok(Self {
            log: KernelLog::open().map_err(|e| refusal(&e))?,
            gpus: chip::by_bus()
                .into_iter()
                .map(|(bus, minor)| (without_function(&bus).to_owned(), minor))
                .collect(),
        })
    }

    /// Of a made-up log.
    #[cfg(test)]
    pub(crate) fn of(log: KernelLog, gpus: BTreeMap<String, u32>) -> Self {
        Self { log, gpus }
    }

    /// The messages since the last call.
    pub(crate) fn take(&mut self) -> Vec<Xid> {
        let messages = self.log.messages().unwrap_or_default();
        let xid = |m: procfs::kernel_log::Message| {
            let mut xid = Xid::parse(&m.text)?;
            xid.time_ns = m.time_ns;
            xid.gpu = self.gpus.get(without_function(&xid.pci)).copied();
            Some(xid)
        };
        messages.into_iter().filter_map(xid).collect()
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

/// Those of a process with these channels, each with the channels that it may be about. One from before the process began
/// is another's that had the same id.
pub(super) fn of_process(all: &[Xid], pid: u32, channels: &[ChannelState]) -> Vec<Xid> {
    let began = Stat::of_process(pid).ok().and_then(|s| s.start);
    let began = began.unwrap_or(0).saturating_mul(TICK_NS);
    all.iter()
        .filter(|xid| xid.time_ns.saturating_add(TICK_NS) >= began)
        .filter_map(|xid| {
            let mut xid = xid.clone();
            let same = |c: &&ChannelState| {
                let token = c.token.map(|t| t & CHANNEL_BITS);
                // Without the driver's list of GPUs, the process's id must do.
                let gpu = xid.gpu.is_none() && xid.pid.is_some() || xid.gpu == c.gpu;
                token.is_some() && token == xid.hardware_channel && gpu
            };
            let mine = channels.iter().filter(|c| c.pid == pid);
            xid.channels = mine.filter(same).map(|c| c.id).collect();
            let about = match xid.pid {
                Some(other) => other == pid,
                None => !xid.channels.is_empty(),
            };
            about.then_some(xid)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ChannelId;

    #[test]
    fn process_and_channel() {
        let me = std::process::id();
        let channel = |id: u32, pid: u32, gpu: u32, token: u32| {
            let mut c = ChannelState::new(ChannelId(id), pid, 0, 0, 1024);
            (c.gpu, c.token) = (Some(gpu), Some(token));
            c
        };
        let channels = [
            channel(0, me, 0, 0x0001_000a),
            channel(1, me, 0, 0x0002_000a),
            channel(2, me, 1, 0x0001_000a),
            channel(3, me + 1, 0, 0x0001_000b),
        ];
        let xid = |gpu: Option<u32>, rest: &str| {
            let mut xid = Xid::parse(&format!("NVRM: Xid (PCI:0000:01:00): 31, {rest}")).unwrap();
            (xid.gpu, xid.time_ns) = (gpu, u64::MAX);
            xid
        };
        let of = |xid: Xid| {
            let found = of_process(&[xid], me, &channels);
            found
                .first()
                .map(|x| x.channels.iter().map(|c| c.0).collect::<Vec<_>>())
        };
        let mine = format!("pid={me}, name=x, Ch 0000000a");
        assert_eq!(of(xid(Some(0), &mine)), Some(vec![0, 1]));
        assert_eq!(of(xid(Some(1), &mine)), Some(vec![2]));
        assert_eq!(of(xid(None, &mine)), Some(vec![0, 1, 2]));
        assert_eq!(
            of(xid(Some(0), &format!("pid={me}, name=x, a word"))),
            Some(vec![])
        );
        assert_eq!(
            of(xid(Some(0), "pid='<unknown>', name=<unknown>, Ch 0000000a")),
            Some(vec![0, 1])
        );
        assert_eq!(
            of(xid(Some(0), "pid='<unknown>', name=<unknown>, Ch 0000000b")),
            None
        );
        assert_eq!(
            of(xid(None, "pid='<unknown>', name=<unknown>, Ch 0000000a")),
            None,
            "any GPU's"
        );
        assert_eq!(
            of(xid(
                Some(0),
                &format!("pid={}, name=x, Ch 0000000a", me + 1)
            )),
            None
        );
        // From before this process began.
        let mut old = xid(Some(0), &mine);
        old.time_ns = 1;
        assert_eq!(of(old), None);
    }
}
