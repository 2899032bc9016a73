//! Xid messages of the kernel log, and the processes and channels that they are about.

use std::time::Instant;

use nvcap_decode::hang::{ChannelState, Xid};
use nvcap_process::clock;
use nvcap_process::procfs::stat::Stat;
use nvcap_process::xids::Exceptions;
pub use nvcap_process::xids::Xids;

/// Nanoseconds of a clock tick (USER_HZ is 100).
const TICK_NS: u64 = 10_000_000;
/// Longest time between the begins of the kernel's clocks, ns.
const BEGIN_NS: u64 = 2_000_000_000;
/// Divisor of a time that gives the most by which the kernel's other clocks are set right in it (500 ppm); the log's clock is not set.
const DRIFT: u64 = 2000;
/// Begin of a process, by the kernel log's clock. That clock stands still while the machine sleeps, and drifts; a process's
/// start is counted by one that does neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Began {
    /// Earliest time at which the process can have begun, ns.
    earliest: u64,
    /// Latest time at which the process can have begun, but for the drift, ns.
    latest: u64,
}

impl Began {
    /// Makes the begin of a process from its start, where `boottime` and `monotonic` are the kernel's clocks now. Their difference is the time that
    /// the machine slept; it is not known how much of that was before the start.
    fn new(start_ticks: u64, boottime: u64, monotonic: u64) -> Self {
        let latest = start_ticks.saturating_mul(TICK_NS);
        let slept = boottime.saturating_sub(monotonic);
        let apart = BEGIN_NS.saturating_add(monotonic / DRIFT);
        Self {
            earliest: latest.saturating_sub(slept).saturating_sub(apart),
            latest: latest.saturating_sub(TICK_NS),
        }
    }

    fn of_process(pid: u32) -> Self {
        let start = Stat::of_process(pid).ok().and_then(|s| s.start);
        let clock = |id| clock::read(id).unwrap_or(0);
        Self::new(
            start.unwrap_or(0),
            clock(libc::CLOCK_BOOTTIME),
            clock(libc::CLOCK_MONOTONIC),
        )
    }
}

/// Returns the messages of the log, an exception's with the texts of those before it that name no process; one of which no message names the
/// process is there, too.
pub(super) fn of_log(log: &mut Xids) -> Vec<Xid> {
    let mut exceptions = Exceptions::default();
    let (mut all, now) = (Vec::new(), Instant::now());
    for xid in log.take() {
        let named = exceptions.joined(xid, now);
        all.extend(exceptions.without_process(Some(now)));
        all.extend(named);
    }
    all.extend(exceptions.without_process(None));
    all.sort_by_key(|xid| xid.time_ns);
    all
}

/// Returns the messages about a process with these channels, each with the channels that it may be about, and a note where one may be from before the
/// process began. A message that surely is from before is left out: it is about another process that had the same id or GPU.
pub(super) fn of_process(
    all: &[Xid],
    pid: u32,
    channels: &[ChannelState],
) -> (Vec<Xid>, Option<String>) {
    since(all, pid, channels, Began::of_process(pid))
}

fn since(
    all: &[Xid],
    pid: u32,
    channels: &[ChannelState],
    began: Began,
) -> (Vec<Xid>, Option<String>) {
    let mine: Vec<&ChannelState> = channels.iter().filter(|c| c.pid == pid).collect();
    let recent = all.iter().filter(|xid| xid.time_ns >= began.earliest);
    let found: Vec<Xid> = recent.filter_map(|xid| about(xid, pid, &mine)).collect();
    let mut doubtful = found.iter().filter(|xid| xid.time_ns < began.latest);
    let note = doubtful.next_back().map(|xid| {
        format!(
            "Xid messages until {:.1} s of the kernel log may be from before the process began: the log's clock drifts, and stands \
             still while the machine sleeps",
            xid.time_ns as f64 / 1e9
        )
    });
    (found, note)
}

/// Returns the message with the channels that it may be about, where it is about the process that has `mine`. A message about the whole GPU, or one that
/// does not tell whom it is about, is about every process of that GPU; any other, about the process that it names, else about the one that has the channel.
fn about(xid: &Xid, pid: u32, mine: &[&ChannelState]) -> Option<Xid> {
    let mut xid = xid.clone();
    // Without the driver's list of GPUs, the process's id must do.
    let named = xid.pid == Some(pid);
    let channel = |c: &&&ChannelState| {
        let gpu = xid.gpu.is_none() && named || xid.gpu == c.gpu;
        gpu && c.token.is_some_and(|token| xid.may_be_of(token))
    };
    xid.channels = mine.iter().filter(channel).map(|c| c.id).collect();
    let uses_gpu = || xid.gpu.is_some() && mine.iter().any(|c| c.gpu.is_none() || c.gpu == xid.gpu);
    let is = match xid.process() {
        _ if xid.is_of_whole_gpu() => named || uses_gpu(),
        _ if xid.is_of_unknown_process() => uses_gpu(),
        Some(_) => named,
        None => !xid.channels.is_empty(),
    };
    is.then_some(xid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::ChannelId;
    use nvcap_process::procfs::kernel_log::KernelLog;

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
            let (found, _) = of_process(&[xid], me, &channels);
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

    fn channel(id: u32, pid: u32, gpu: Option<u32>, token: u32) -> ChannelState {
        let mut c = ChannelState::new(ChannelId(id), pid, 0, 0, 1024);
        (c.gpu, c.token) = (gpu, Some(token));
        c
    }

    const ALWAYS: Began = Began {
        earliest: 0,
        latest: 0,
    };

    #[test]
    fn runlists_and_whole_gpus() {
        let channels = [
            channel(0, 7, Some(0), 0x1_0012),
            channel(1, 7, Some(0), 0x2_0012),
            channel(2, 8, Some(0), 0x2_0012),
            channel(3, 9, Some(1), 0x1_0012),
            channel(4, 10, None, 0x1_0012),
        ];
        let pids = |gpu: Option<u32>, rest: &str| {
            let mut xid = Xid::parse(&format!("NVRM: Xid (PCI:0000:35:00): {rest}")).unwrap();
            xid.gpu = gpu;
            (7..=10)
                .filter_map(|pid| {
                    let (found, _) = since(&[xid.clone()], pid, &channels, ALWAYS);
                    let ids = found.first()?.channels.iter().map(|c| c.0).collect();
                    Some((pid, ids))
                })
                .collect::<Vec<(u32, Vec<u32>)>>()
        };
        assert_eq!(
            pids(Some(0), "31, pid=7, name=x, Ch 01000012"),
            [(7, vec![0])]
        );
        assert_eq!(
            pids(Some(0), "31, pid='<unknown>', name=<unknown>, Ch 02000012"),
            [(7, vec![1]), (8, vec![2])]
        );
        let every = [(7, vec![]), (8, vec![]), (10, vec![])];
        for rest in [
            "79, GPU has fallen off the bus.",
            "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "119, pid=999, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
            "95, pid=8, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
            "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        ] {
            assert_eq!(pids(Some(0), rest), every, "{rest}");
        }
        // A GPU that is not known is nobody's, but for the process that is named.
        assert_eq!(pids(None, "79, GPU has fallen off the bus."), []);
        assert_eq!(pids(None, "79, pid=8, name=x, a"), [(8, vec![])]);
        // A contained error is its process's; an engine's number is no channel.
        assert_eq!(
            pids(
                Some(0),
                "94, pid=8, Contained: CE User Channel (0x9). RST: No, D-RST: No"
            ),
            [(8, vec![])]
        );
    }

    /// Clocks of a machine that has been awake for an hour and has slept for eight; the process began when it had been awake for 50 minutes.
    #[test]
    fn a_sleep_between() {
        const SECOND: u64 = 1_000_000_000;
        let (awake, slept) = (3600 * SECOND, 8 * 3600 * SECOND);
        let shown = |ticks: u64, slept: u64, at: u64| {
            let mut xid = Xid::parse("NVRM: Xid (PCI:0000:35:00): 31, pid=7, name=x").unwrap();
            xid.time_ns = at * SECOND;
            let began = Began::new(ticks, awake + slept, awake);
            let (found, note) = since(&[xid], 7, &[], began);
            (found.len(), note.is_some())
        };
        // Slept before: the start by the clock that goes on is far ahead of the log's.
        let late = (3000 + 8 * 3600) * 100;
        assert_eq!(shown(late, slept, 3100), (1, true));
        // Slept after.
        assert_eq!(shown(3000 * 100, slept, 3100), (1, false));
        // Never slept: what was before is another's; what was just before may be this one's.
        assert_eq!(shown(3000 * 100, 0, 3100), (1, false));
        assert_eq!(shown(3000 * 100, 0, 2999), (1, true));
        assert_eq!(shown(3000 * 100, 0, 2900), (0, false));
        assert_eq!(Began::new(u64::MAX, 0, 0).latest, u64::MAX - TICK_NS);
    }

    #[test]
    fn gpus_of_divided_ones_and_lines_that_are_not_read() {
        use std::fs::File;
        use std::os::{fd::OwnedFd, unix::net::UnixDatagram};
        let (kernel, log) = UnixDatagram::pair().unwrap();
        log.set_nonblocking(true).unwrap();
        let log = KernelLog::of(File::from(OwnedFd::from(log)));
        let mut xids = Xids::of(log, [("0000:35:00".to_owned(), 3)].into());
        for line in [
            r"NVRM: Xid (PCI:0000:35:00 GPU-I:01 GPU-CI:02): 31, pid=7, name=\x5ca\x09, Ch 01000012",
            "NVRM: Xid of a driver to come",
            "NVRM: loading",
            "NVRM: Xid (PCI:0000:35:00): 13, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter",
            "NVRM: Xid (PCI:0000:35:00): 13, pid=8, name=b, Graphics Exception: channel 0x00000012, Class 0000cbc0",
        ] {
            kernel
                .send(format!("3,1,10,-;{line}\n").as_bytes())
                .unwrap();
        }
        // Nobody's.
        kernel
            .send(b"3,1,900000,-;NVRM: Xid (PCI:0000:35:00): 13, Graphics Exception: ESR 0x504730=0x20\n")
            .unwrap();
        let all = of_log(&mut xids);
        let [xid, exception, nobodys] = &all[..] else {
            panic!("{all:?}")
        };
        assert!(nobodys.is_of_unknown_process() && nobodys.text.contains("ESR"));
        // It is told with each process of its GPU, and with no other.
        let channels = [channel(0, 7, Some(3), 1), channel(1, 8, Some(2), 1)];
        let told = |pid| {
            since(std::slice::from_ref(nobodys), pid, &channels, ALWAYS)
                .0
                .len()
        };
        assert_eq!((told(7), told(8)), (1, 0));
        // What the exception was is in a message that names no process.
        assert!(
            exception.pid == Some(8) && exception.text.contains("Illegal Instruction Parameter; "),
            "{exception:?}"
        );
        assert_eq!((xid.gpu, xid.time_ns), (Some(3), 10_000));
        assert_eq!(xid.name.as_deref(), Some("\\a\t"));
        let notes: Vec<String> = xids.unread().collect();
        assert!(
            matches!(&notes[..], [one] if one.ends_with(": NVRM: Xid of a driver to come")),
            "{notes:?}"
        );
        assert_eq!(xids.unread().count(), 0);
    }
}
