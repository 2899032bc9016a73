//! Tests of the channel of an error notifier.

use super::*;
use nvcap_decode::record::FaultSource;
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
        let all = noticed(7, channels, all, &new, None, Instant::now());
        let faults: Vec<Fault> = all.into_iter().map(Noticed::fault).collect();
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

/// Two GPUs of one process that fault with the same number are two faults. Each gets the message about its GPU.
#[test]
fn faults_of_two_gpus_are_two() {
    let (kernel, mut messages) = made_up_log();
    let mut known = channels(&[(0, Some(0xa), true), (1, Some(0x1_000b), true)]);
    known.get_mut(&ChannelId(1)).unwrap().gpu = Some(1);
    let all = [notifier(0, 0xa, Some(31)), notifier(1, 0x1_000b, Some(31))];
    let now = Instant::now();
    let process = Watched {
        channels: known.clone(),
        ..Watched::default()
    };
    let processes = BTreeMap::from([(NOBODY, process)]);
    let line = format!("3,1,10,-;NVRM: Xid (PCI:0000:35:00): 31, pid={NOBODY}, name=bad, a word\n");
    kernel.send(line.as_bytes()).unwrap();
    take(&mut messages, &processes, now);
    assert!(messages.has_waiting());
    let new = noticed(NOBODY, &known, &all, &all, None, now);
    let mut told = messages.join(new, now, |_| true);
    told.sort_by_key(|f| f.channel);
    let of = |f: &Fault| (f.channel.map(|c| c.0), f.group.len(), f.message.is_some());
    let told: Vec<_> = told.iter().map(of).collect();
    assert_eq!(told, [(Some(0), 0, true), (Some(1), 0, false)]);
    assert!(!messages.has_waiting());
}

/// A message about another GPU is not taken for a repetition of a reported fault.
#[test]
fn a_message_of_another_gpu_is_another_fault() {
    let (kernel, mut messages) = made_up_log();
    let known = channels(&[(0, Some(0xa), true)]);
    let all = [notifier(0, 0xa, Some(31))];
    let now = Instant::now();
    let process = Watched {
        channels: known.clone(),
        ..Watched::default()
    };
    let processes = BTreeMap::from([(NOBODY, process)]);
    let new = noticed(NOBODY, &known, &all, &all, None, now);
    assert_eq!(messages.join(new, now, |_| true).len(), 1);
    let mut repeated = |slot: u32| {
        let line = format!(
            "3,1,10,-;NVRM: Xid (PCI:0000:{slot}:00): 31, pid={NOBODY}, name=bad, a word\n"
        );
        kernel.send(line.as_bytes()).unwrap();
        take(&mut messages, &processes, now);
        assert!(messages.join(Vec::new(), now, |_| true).is_empty());
        messages.alone(&processes, now, |_| true).len()
    };
    assert_eq!((repeated(35), repeated(36)), (0, 1));
}

/// A made-up kernel log, and the end to which the kernel writes.
fn made_up_log() -> (std::os::unix::net::UnixDatagram, Messages) {
    use nvcap_process::{procfs::kernel_log::KernelLog, xids::Xids};
    use std::fs::File;
    use std::os::{fd::OwnedFd, unix::net::UnixDatagram};

    let (kernel, log) = UnixDatagram::pair().unwrap();
    log.set_nonblocking(true).unwrap();
    let log = KernelLog::of(File::from(OwnedFd::from(log)));
    let gpus = [("0000:35:00", 0), ("0000:36:00", 1)].map(|(at, gpu)| (at.to_owned(), gpu));
    let xids = Xids::of(log, gpus.into());
    (kernel, Messages::of(xids))
}

fn take(messages: &mut Messages, processes: &BTreeMap<u32, Watched>, now: Instant) {
    messages.take(&processes.iter().collect::<Vec<_>>(), now);
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
    take(&mut messages, &processes, now);
    assert!(messages.join(Vec::new(), now, |_| false).is_empty());
    assert!(messages.alone(&processes, now, |_| false).is_empty());
    let new = noticed(NOBODY, &known, &all, &all[1..], None, now);
    let told = messages.join(new, now, |_| false);
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
    take(&mut messages, &processes, later);
    assert!(messages.join(Vec::new(), later, |_| false).is_empty());
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
    take(&mut messages, &processes, later);
    assert!(messages.alone(&processes, later, |_| true).is_empty());
    // Without a process it is that which has the channel.
    say("31, pid='<unknown>', name=<unknown>, Ch 0000000a");
    take(&mut messages, &processes, later);
    let alone = messages.alone(&processes, later, |_| true);
    assert_eq!(alone.len(), 1);
}

/// Exceptions of an SM whose process the driver did not log are the GPU's, where a traced process uses it.
#[test]
fn an_exception_of_no_known_process_is_its_gpu_s() {
    let (kernel, mut messages) = made_up_log();
    let say = |slot: u32, rest: &str| {
        let line = format!("3,1,10,-;NVRM: Xid (PCI:0000:{slot}:00): 13, {rest}\n");
        kernel.send(line.as_bytes()).unwrap();
    };
    let except = |slot| {
        say(
            slot,
            "Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Illegal Instruction Parameter",
        );
        say(slot, "Graphics Exception: ESR 0x504730=0x2 0x504734=0x0");
    };
    let known = channels(&[(0, Some(0xa), true)]);
    let process = Watched {
        channels: known.clone(),
        ..Watched::default()
    };
    let processes = BTreeMap::from([(NOBODY, process)]);
    let begin = Instant::now();
    let look = |messages: &mut Messages, new: Vec<Noticed>, ms: u64| {
        let at = begin + Duration::from_millis(ms);
        take(messages, &processes, at);
        let mut all = messages.join(new, at, |_| false);
        all.extend(messages.alone(&processes, at, |_| false));
        all
    };
    except(35);
    // No traced process uses this one.
    except(36);
    assert!(look(&mut messages, Vec::new(), 0).is_empty());
    assert!(messages.has_waiting(), "for its process");
    assert!(look(&mut messages, Vec::new(), 400).is_empty());
    assert!(messages.has_waiting(), "for a notifier");
    let told = look(&mut messages, Vec::new(), 2000);
    let [fault] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((fault.at.pid, fault.code, fault.channel), (0, 13, None));
    assert_eq!(fault.of_gpu(), Some("0000:35:00"));
    assert!(!fault.only_these && fault.suspects.is_empty());
    let text = fault.message.as_ref().map_or("", |m| &m.text);
    assert!(text.contains("Illegal") && text.contains("ESR"), "{text}");
    assert!(!messages.has_waiting());

    // The notifier of a traced process has it.
    except(35);
    assert!(look(&mut messages, Vec::new(), 20_000).is_empty());
    assert!(look(&mut messages, Vec::new(), 20_400).is_empty());
    let all = [notifier(0, 0xa, Some(13))];
    let at = begin + Duration::from_millis(20_500);
    let new = noticed(NOBODY, &known, &all, &all, None, at);
    assert!(look(&mut messages, new, 20_500).is_empty(), "it waits, too");
    let told = look(&mut messages, Vec::new(), 22_500);
    let pids: Vec<u32> = told.iter().map(|f| f.at.pid).collect();
    assert_eq!(pids, [NOBODY]);
    assert!(!messages.has_waiting());

    // Nothing is waited for at the end of the trace.
    except(35);
    messages.end();
    let told = look(&mut messages, Vec::new(), 40_000);
    assert_eq!(told.iter().map(|f| f.at.pid).collect::<Vec<_>>(), [0]);
}

#[test]
fn the_removal_of_a_channel_is_no_fault() {
    // As at the end of every process on an H100: the driver writes it into the notifiers of channels that are left.
    let told =
        [None, Some(45), Some(31), Some(43)].map(|error| notifier(0, 0xa, error).fault().is_some());
    assert_eq!(told, [false, false, true, true]);
}

#[test]
fn the_channels_of_a_group_are_one_fault_that_waits_for_its_messages() {
    let (kernel, mut messages) = made_up_log();
    let say = |rest: &str| {
        let line = format!("3,1,10,-;NVRM: Xid (PCI:0000:35:00): 13, {rest}\n");
        kernel.send(line.as_bytes()).unwrap();
    };
    let known = channels(&[
        (0, Some(0xa), true),
        (1, Some(0xb), true),
        (2, Some(0xc), true),
    ]);
    let all = [0xa, 0xb, 0xc].map(|token| notifier(token.into(), token, Some(13)));
    let process = Watched {
        channels: known.clone(),
        ..Watched::default()
    };
    let processes = BTreeMap::from([(NOBODY, process)]);
    let begun = Instant::now();
    let new = || noticed(NOBODY, &known, &all, &all, None, begun);
    assert!(
        messages.join(new(), begun, |_| false).is_empty(),
        "it waits"
    );

    // Three messages, of which the last names the process and the channel: all are of the one fault. Those about another GPU are not.
    say("Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Misaligned Address");
    kernel
        .send(b"3,1,10,-;NVRM: Xid (PCI:0000:36:00): 13, Graphics Exception: ESR 0x1=0x2\n")
        .unwrap();
    say("Graphics Exception: ESR 0x517730=0x501000f");
    say(&format!(
        "pid={NOBODY}, name=bad, Graphics Exception: ChID 000b, Class 0000cbc0"
    ));
    let now = begun + Duration::from_millis(10);
    take(&mut messages, &processes, now);
    let told = messages.join(Vec::new(), now, |_| false);
    let [fault] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(
        (fault.channel, &fault.group[..]),
        (Some(ChannelId(1)), &[ChannelId(0), ChannelId(2)][..])
    );
    assert_eq!((fault.token, fault.assumed), (Some(0xb), false));
    assert_eq!(
        fault.message.as_ref().map_or("", |m| &m.text),
        "Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Misaligned Address; Graphics Exception: ESR 0x517730=0x501000f; \
         Graphics Exception: ChID 000b, Class 0000cbc0"
    );
    // What comes later is of the same fault.
    say(&format!(
        "pid={NOBODY}, name=bad, Graphics Exception: ESR 0x504730=0x14"
    ));
    take(&mut messages, &processes, now);
    assert!(messages.join(Vec::new(), now, |_| false).is_empty());
    assert!(
        messages
            .alone(&processes, begun + Duration::from_secs(1), |_| true)
            .is_empty()
    );

    // Without a message it is told after a moment, and at once where the process ends.
    let (_kernel, mut messages) = made_up_log();
    assert!(messages.join(new(), begun, |_| false).is_empty());
    assert_eq!(
        messages
            .join(Vec::new(), begun + Duration::from_secs(1), |_| false)
            .len(),
        1
    );
    let (_kernel, mut messages) = made_up_log();
    assert_eq!(messages.join(new(), begun, |pid| pid == NOBODY).len(), 1);
}

/// A process that executes another program loses its channels' memory. Its faults are reported then, even if their messages were not read
/// yet.
#[test]
fn faults_are_told_when_another_program_is_executed() {
    let (kernel, messages) = made_up_log();
    let mut watch = Watch::of(messages);
    let process = Watched {
        channels: channels(&[(0, Some(0xa), true)]),
        ..Watched::default()
    };
    watch.processes.insert(NOBODY, process);
    let say = |code: u32| {
        let rest = format!("{code}, pid={NOBODY}, name=bad, Ch 0000000a, a word");
        let line = format!("3,1,10,-;NVRM: Xid (PCI:0000:35:00): {rest}\n");
        kernel.send(line.as_bytes()).unwrap();
    };
    say(31);
    let told = watch.look(Pace::Works, true).faults;
    assert!(told.is_empty(), "it waits for its notifier: {told:?}");
    say(13);
    watch.note(Note::Exec(NOBODY));
    let told = watch.look(Pace::Works, false).faults;
    let told: Vec<_> = told.iter().map(|f| (f.code, f.channel)).collect();
    assert_eq!(told, [(31, Some(ChannelId(0))), (13, Some(ChannelId(0)))]);
    // Nothing of it is left for the next program.
    say(31);
    assert!(watch.look(Pace::Works, true).faults.is_empty());
    assert!(!watch.messages.has_waiting());
}

/// A message about an error of a GPU is no reason to wait for the next look that is due.
#[test]
fn a_message_makes_a_look_due() {
    use crate::faults::bell::Bell;
    let (kernel, messages) = made_up_log();
    let mut watch = Watch::of(messages);
    watch.processes.insert(NOBODY, Watched::default());
    watch.look(Pace::Rests, false);
    let bell = Bell::new().unwrap();
    let comes = |watch: &mut Watch, text: &str| {
        let line = format!("3,1,10,-;{text}\n");
        kernel.send(line.as_bytes()).unwrap();
        assert!(bell.wait(watch.log(), Duration::from_secs(600)));
        // The next look is far off, however long this takes.
        watch.next = Instant::now() + Duration::from_secs(3600);
        watch.read_log();
        watch.next <= Instant::now()
    };
    assert!(!comes(&mut watch, "eth0: link up"));
    let text = format!("NVRM: Xid (PCI:0000:35:00): 43, pid={NOBODY}, name=a, Ch 0000000a");
    assert!(comes(&mut watch, &text));
    let ended = watch.look(Pace::AtEnd, false).faults;
    assert_eq!(ended.iter().map(|f| f.code).collect::<Vec<_>>(), [43]);
}

/// A process that has ended before its notifiers were read may have had a fault. The kernel log tells of it where it has the driver's messages.
#[test]
fn ends_whose_notifiers_were_not_read_are_told() {
    let end = |messages: Messages, process: Watched| {
        let mut watch = Watch::of(messages);
        watch.processes.insert(NOBODY, process);
        watch.note(Note::Exit(NOBODY));
        let looked = watch.look(Pace::Works, false);
        assert_eq!(looked.ended, [NOBODY]);
        looked.unread
    };
    let process = |at_end: Option<Duration>| Watched {
        channels: channels(&[(0, Some(0xa), true), (1, Some(0xb), true)]),
        at_end: at_end.and_then(|before| Instant::now().checked_sub(before)),
        ..Watched::default()
    };
    let unread = [(NOBODY, 2)];
    assert_eq!(end(Messages::default(), process(None)), unread);
    let before = |ms| process(Some(Duration::from_millis(ms)));
    assert_eq!(end(Messages::default(), before(300)), []);
    assert_eq!(end(Messages::default(), before(5000)), unread);
    assert_eq!(end(made_up_log().1, process(None)), []);
    // Its memory has none.
    let own = std::process::id();
    let without = Watched {
        memory: Some(Memory::open(own).unwrap()),
        ..process(None)
    };
    assert_eq!(end(Messages::default(), without), []);
}
