use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use clap::Parser as _;

use super::*;
use nvcap_process::procfs::kernel_log::KernelLog;

/// Returns the series of a metric with these words among its labels.
fn series<'a>(text: &'a str, name: &str, words: &[&str]) -> Vec<&'a str> {
    let begins = format!("{name}{{");
    let of =
        |line: &&str| line.starts_with(&begins) && words.iter().all(|word| line.contains(word));
    text.lines().filter(of).collect()
}

/// Test that `--by process` means the same as in other commands.
#[test]
fn series_of_processes_are_asked_for_in_two_ways() {
    #[derive(clap::Parser)]
    struct Typed {
        #[command(flatten)]
        args: Args,
    }
    for (words, is) in [("", false), ("--by-process", true), ("--by process", true)] {
        let typed = ["serve"].into_iter().chain(words.split_whitespace());
        assert_eq!(Typed::parse_from(typed).args.is_by_process(), is, "{words}");
    }
}

/// Test that lines of the kernel's log become series of the processes and GPUs that they name.
#[test]
fn xids_of_the_kernel_log() {
    let me = std::process::id();
    let options = HostOptions {
        by_process: true,
        ..HostOptions::default()
    };
    let mut host = Host::new(Machine::new(Whom::Named(vec![me])), options);
    host.round();
    assert!(host.has(me));
    let live = Arc::new(Live {
        host: Mutex::new(host),
        constants: Constants::default(),
        errors: Some(Mutex::default()),
        shares: Arc::default(),
        due: AtomicU64::new(1),
    });
    // As in /dev/kmsg, each read gives one record.
    let (kernel, log) = UnixDatagram::pair().unwrap();
    log.set_nonblocking(true).unwrap();
    let log = KernelLog::of(File::from(OwnedFd::from(log)));
    let mut xids = Xids::of(log, [("0000:c1:00".to_owned(), 3)].into());
    let mut errors = EachOnce::default();
    let answers = Counting(Arc::clone(&live));
    let name = "nvcap_channel_errors_total";
    assert_eq!(series(&answers.metrics(), name, &[]).len(), 0);
    for record in [
        format!("3,1,10,-;NVRM: Xid (PCI:0000:c1:00): 31, pid={me}, name=x, Ch 00000008, intr 0")
            .as_str(),
        format!("3,2,20,-;NVRM: Xid (PCI:0000:c1:00): 31, pid={me}, name=x, Ch 00000009, intr 0")
            .as_str(),
        "3,3,30,-;NVRM: Xid (PCI:0000:c1:00.0): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        // The process in the message is one of those that the error affects.
        format!("3,3,31,-;NVRM: Xid (PCI:0000:c1:00): 119, pid={me}, name=x, Timeout after 6s of waiting for RPC response").as_str(),
        // One exception in four lines.
        "3,4,32,-;NVRM: Xid (PCI:0000:c1:00): 13, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Out Of Range Address",
        "3,4,33,-;NVRM: Xid (PCI:0000:c1:00): 13, Graphics Exception: ESR 0x504730=0x20",
        format!("3,4,34,-;NVRM: Xid (PCI:0000:c1:00): 13, pid={me}, name=x, Graphics Exception: channel 0x00000008").as_str(),
        format!("3,4,35,-;NVRM: Xid (PCI:0000:c1:00): 13, pid={me}, name=x, Graphics Exception: ESR 0x504730=0x20").as_str(),
        "6,4,40,-;usb 1-1: new device",
        // A line that a program wrote.
        "12,5,50,-;NVRM: Xid (PCI:0000:c1:00): 13, pid=1, name=x",
    ] {
        kernel.send(record.as_bytes()).unwrap();
    }
    live.take_errors(&mut xids, &mut errors);
    let text = answers.metrics();
    let pid = format!("pid=\"{me}\"");
    let own = series(&text, name, &["gpu=\"3\"", &pid, "xid=\"31\""]);
    assert!(matches!(&own[..], [one] if one.ends_with("} 2")), "{own:?}");
    let lost = series(&text, name, &["gpu=\"3\"", "xid=\"79\""]);
    assert!(
        matches!(&lost[..], [one] if one.ends_with("} 1") && !one.contains("pid=")),
        "{lost:?}"
    );
    let silent = series(&text, name, &["gpu=\"3\"", "xid=\"119\""]);
    assert!(
        matches!(&silent[..], [one] if one.ends_with("} 1") && !one.contains("pid=")),
        "{silent:?}"
    );
    let exception = series(&text, name, &["gpu=\"3\"", &pid, "xid=\"13\""]);
    assert!(
        matches!(&exception[..], [one] if one.ends_with("} 1")),
        "{exception:?}"
    );
    assert_eq!(series(&text, name, &[]).len(), 4, "{text}");
    // Further messages add to the series.
    let more = format!("3,6,60,-;NVRM: Xid (PCI:0000:c1:00): 31, pid={me}, name=x, Ch 00000008");
    kernel.send(more.as_bytes()).unwrap();
    live.take_errors(&mut xids, &mut errors);
    let text = answers.metrics();
    let own = series(&text, name, &[&pid, "xid=\"31\""]);
    assert!(matches!(&own[..], [one] if one.ends_with("} 3")), "{own:?}");
}

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// Test that each filter of -a is also one of serve.
#[test]
fn filters() {
    let of = |words: &[&str]| {
        let all = ["serve"].iter().chain(words);
        Line::try_parse_from(all).unwrap().args.filters.choice()
    };
    assert!(of(&[]).is_any());
    let choice = of(&[
        "--user=7",
        "--cgroup=/a/*",
        "--comm=python*",
        "--comm=b",
        "--gpu=3",
        "--container=w",
        "--pod=ml/*",
    ]);
    let text = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    assert_eq!(choice.user, text(&["7"]));
    assert_eq!(choice.cgroup, text(&["/a/*"]));
    assert_eq!(choice.comm, text(&["python*", "b"]));
    assert_eq!(choice.gpu, text(&["3"]));
    assert_eq!(choice.container, text(&["w"]));
    assert_eq!(choice.pod, text(&["ml/*"]));
}
