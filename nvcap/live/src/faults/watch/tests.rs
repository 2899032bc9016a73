//! The channel of an error notifier.

use super::*;
use nvcap_decode::record::Notification;

fn notifier(n: u64, token: u32, error: Option<u32>) -> Notifier {
    Notifier {
        address: 0x1000 * n,
        token,
        error,
        notification: Notification::default(),
    }
}

fn channels(all: &[(u32, Option<u32>, bool)]) -> BTreeMap<ChannelId, Known> {
    let known = |&(id, token, is_certain): &(u32, Option<u32>, bool)| {
        let known = Known {
            gpu: Some(0),
            token,
            is_certain,
            ring: None,
            userd: None,
            submits: false,
        };
        (ChannelId(id), known)
    };
    all.iter().map(known).collect()
}

#[test]
fn a_channel_is_known_by_its_token() {
    let all = [notifier(0, 0xa, None), notifier(1, 0xb, Some(31))];
    let told = |channels: &BTreeMap<ChannelId, Known>, all: &[Notifier]| {
        let new: Vec<Notifier> = all.iter().filter(|n| n.error.is_some()).copied().collect();
        let faults = faults(7, channels, all, &new, None);
        let of = |f: &Fault| (f.channel.map(|c| c.0), f.assumed, f.code, f.only_these);
        faults.iter().map(of).collect::<Vec<_>>()
    };
    let known = channels(&[(0, Some(0xa), true), (1, Some(0xb), true)]);
    assert_eq!(told(&known, &all), [(Some(1), false, 31, false)]);
    // Tokens that were concluded from the order of channels.
    let guessed = channels(&[(0, Some(0xa), false), (1, Some(0xb), false)]);
    assert_eq!(told(&guessed, &all), [(Some(1), true, 31, false)]);
    // One without a token may be of another notifier.
    let lacks = channels(&[(0, None, true), (1, Some(0xb), true)]);
    assert_eq!(told(&lacks, &all), [(Some(1), true, 31, false)]);
    // Two GPUs have the same tokens.
    let twice = channels(&[(0, Some(0xb), true), (1, Some(0xb), true)]);
    assert_eq!(told(&twice, &all), [(None, false, 31, false)]);
    let both = [notifier(0, 0xb, None), notifier(1, 0xb, Some(13))];
    assert_eq!(told(&known, &both), [(None, false, 13, false)]);
    assert_eq!(told(&BTreeMap::new(), &all), [(None, false, 31, false)]);
}

/// A made-up kernel log, and the end to which the kernel writes.
fn made_up_log() -> (std::os::unix::net::UnixDatagram, Messages) {
    use nvcap_process::{procfs::kernel_log::KernelLog, xids::Xids};
    use std::fs::File;
    use std::os::{fd::OwnedFd, unix::net::UnixDatagram};

    let (kernel, log) = UnixDatagram::pair().unwrap();
    log.set_nonblocking(true).unwrap();
    let log = KernelLog::of(File::from(OwnedFd::from(log)));
    let xids = Xids::of(log, [("0000:35:00".to_owned(), 0)].into());
    (kernel, Messages::of(xids))
}

/// An id that no process has.
const NOBODY: u32 = 0x7fff_fff0;

#[test]
fn the_same_fault_of_both_sources_is_one() {
    let (kernel, mut messages) = made_up_log();
    let say = |rest: &str| {
        let line = format!("3,1,10,-;NVRM: Xid (PCI:0000:35:00): {rest}\n");
        kernel.send(line.as_bytes()).unwrap();
    };
    let known = channels(&[(0, Some(0xa), true), (1, Some(0xb), true)]);
    let all = [notifier(0, 0xa, None), notifier(1, 0xb, Some(31))];
    let process = Watched {
        channels: known.clone(),
        ..Watched::default()
    };
    let processes = BTreeMap::from([(NOBODY, process)]);
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    let mine = format!("31, pid={NOBODY}, name=bad, Ch 0000000b, intr 00000000. MMU Fault");

    // The message comes first, and waits.
    say(&mine);
    messages.take(&processes, now);
    messages.join(&mut Vec::new(), now);
    assert!(messages.alone(&processes, now, |_| false).is_empty());
    let mut told = faults(NOBODY, &known, &all, &all[1..], None);
    messages.join(&mut told, now);
    let [fault] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(
        (fault.source, fault.channel),
        (FaultSource::Both, Some(ChannelId(1)))
    );
    let text = fault.message.as_ref().map(|m| m.text.as_str());
    assert!(text.is_some_and(|t| t.ends_with("MMU Fault")));
    assert!(messages.alone(&processes, later, |_| true).is_empty());

    // It comes again behind the notifier, and is the same fault's; one of another channel is not.
    say(&mine);
    say(&format!("13, pid={NOBODY}, name=bad, Ch 0000000a"));
    messages.take(&processes, later);
    messages.join(&mut Vec::new(), later);
    let alone = messages.alone(&processes, later, |pid| pid == NOBODY);
    let [fault] = &alone[..] else {
        panic!("{alone:?}")
    };
    assert_eq!(
        (fault.source, fault.code, fault.channel, fault.only_these),
        (FaultSource::KernelLog, 13, Some(ChannelId(0)), false)
    );

    // Messages about others, whole GPUs and channels that are removed are none.
    say("31, pid=1, name=init, Ch 0000000b");
    say("31, pid='<unknown>', name=<unknown>, Ch 00000077");
    say("79, GPU has fallen off the bus.");
    say(&format!("45, pid={NOBODY}, name=bad, Ch 0000000b"));
    messages.take(&processes, later);
    assert!(messages.alone(&processes, later, |_| true).is_empty());
    // Without a process it is that which has the channel.
    say("31, pid='<unknown>', name=<unknown>, Ch 0000000a");
    messages.take(&processes, later);
    let alone = messages.alone(&processes, later, |_| true);
    assert_eq!(alone.len(), 1);
}

#[test]
fn the_removal_of_a_channel_is_no_fault() {
    // As at the end of every process on an H100: the driver writes it into the notifiers of channels that are left.
    let told = [None, Some(45), Some(31), Some(43)].map(|error| is_fault(&notifier(0, 0xa, error)));
    assert_eq!(told, [false, false, true, true]);
}
