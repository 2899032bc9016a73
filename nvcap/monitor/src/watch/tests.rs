//! Looks that are due, errors of processes that are gone, and many errors of one.

use std::{
    fs::File,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
};

use super::*;
use nvcap_process::exit_stop;
use nvcap_process::procfs::kernel_log::KernelLog;

#[test]
fn looks_are_few() {
    let limit = Duration::from_secs(80);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut pace = Pace::new(limit, at(0));
    assert!(!pace.is_due(at(9)));
    assert!(pace.is_due(at(10)), "an eighth of the time");
    pace.looked = Some(at(10));
    assert!(!pace.is_due(at(89)));
    assert!(pace.is_due(at(90)), "the whole time after the first look");
    pace.looked = Some(at(90));
    assert!(!pace.is_due(at(169)) && pace.is_due(at(170)));
    pace.moves(at(171));
    assert!(!pace.is_due(at(180)) && pace.is_due(at(181)));
}

const OPTIONS: DumpOptions = DumpOptions {
    last: 1,
    effort: nvcap_process::memory::scan::Effort::Usual,
    chip: None,
    known_rings: Vec::new(),
    stacks: false,
    kernels: |_, _| Vec::new(),
    qmd_copies: |_| Vec::new(),
};

/// A watch of this process alone, and the kernel's end of the log that it reads.
fn with_log(pid: u32) -> (Watch, UnixDatagram) {
    let (kernel, log) = UnixDatagram::pair().unwrap();
    log.set_nonblocking(true).unwrap();
    let log = KernelLog::of(File::from(OwnedFd::from(log)));
    let xids = Xids::of(log, BTreeMap::new());
    let mut watch = Watch::new(Whom::Named(vec![pid]), None, OPTIONS, Some(xids));
    watch.round(Instant::now()).unwrap();
    assert!(watch.next_finding().is_none());
    (watch, kernel)
}

fn logs(kernel: &UnixDatagram, pid: u32, code: u32) {
    let line = format!("3,1,10,-;NVRM: Xid (PCI:0000:35:00): {code}, pid={pid}, name=bad, a");
    kernel.send(line.as_bytes()).unwrap();
}

/// Ids that no process has.
const NOBODY: u32 = 0x7fff_fff0;
const OTHER: u32 = 0x7fff_fff1;

/// A process that ended before it could be found has an error all the same, by the message that names it; others' are not told.
#[test]
fn one_that_has_ended_is_told() {
    let (mut watch, kernel) = with_log(NOBODY);
    for (pid, code) in [(OTHER, 31), (NOBODY, 45), (NOBODY, 43), (NOBODY, 43)] {
        logs(&kernel, pid, code);
    }
    watch.round(Instant::now()).unwrap();
    let finding = watch.next_finding().unwrap();
    assert_eq!(
        (finding.pid, finding.name.as_deref()),
        (NOBODY, Some("bad"))
    );
    assert!(finding.report.processes.is_empty() && finding.fault.unwrap().code == 43);
    assert!(watch.next_finding().is_none());
}

/// An exception that no message gives a process is an error of its GPU: told once, of no process.
#[test]
fn an_exception_of_nobody_is_told_of_its_gpu() {
    let (mut watch, kernel) = with_log(NOBODY);
    let lines = [
        "Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter",
        "Exception: ESR 0x504730=0x20",
    ];
    let logs_both = || {
        for line in lines {
            let line = format!("3,1,10,-;NVRM: Xid (PCI:0000:35:00): 13, Graphics SM {line}");
            kernel.send(line.as_bytes()).unwrap();
        }
    };
    logs_both();
    let now = Instant::now();
    watch.round(now).unwrap();
    assert!(watch.next_finding().is_none(), "its process may be named");
    watch.round(now + Duration::from_secs(1)).unwrap();
    assert!(
        watch.next_finding().is_none(),
        "no watched process uses the GPU"
    );
    watch.whom = Whom::All(Default::default(), "/".into());
    watch.searched = Some(now);
    logs_both();
    watch.round(now).unwrap();
    watch.round(now + Duration::from_secs(1)).unwrap();
    let finding = watch.next_finding().unwrap();
    let fault = finding.fault.unwrap();
    assert_eq!((finding.pid, fault.at.pid, fault.code), (0, 0, 13));
    let text = &fault.message.unwrap().text;
    assert!(text.contains("Illegal Instruction Parameter; "), "{text}");
    assert!(watch.next_finding().is_none());
}

/// Errors that no message gives a process are bounded, too: whoever makes them has a command of `--exec` run for each that is told.
#[test]
fn errors_of_nobody_are_a_few_at_once() {
    let (mut watch, kernel) = with_log(NOBODY);
    watch.whom = Whom::All(Default::default(), "/".into());
    let mut now = Instant::now();
    let (mut told, mut other) = (0, 0);
    for n in 0..30 {
        let gpu = if n == 29 { "36" } else { "35" };
        let text =
            "Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter";
        let line = format!("3,1,10,-;NVRM: Xid (PCI:0000:{gpu}:00): 13, {text}");
        kernel.send(line.as_bytes()).unwrap();
        for _ in 0..2 {
            watch.searched = Some(now);
            watch.round(now).unwrap();
            now += Duration::from_secs(1);
        }
        while let Some(finding) = watch.next_finding() {
            assert_eq!(finding.pid, 0);
            told += u32::from(n < 29);
            other += u32::from(n == 29);
        }
    }
    // Eight at once, and one a minute; another GPU's is told.
    assert_eq!((told, other), (8, 1));
}

/// Ranks of a job fail together: the end of one that fails while another is looked at is held, and it is looked at next.
#[test]
fn one_that_fails_while_another_is_looked_at_is_held() {
    exit_stop::block_sigchld();
    let mut child = nvcap_waiting::Sleeper::start();
    let pid = child.id();
    let (mut watch, kernel) = with_log(pid);
    let is_held = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let tracer = status.lines().find_map(|l| l.strip_prefix("TracerPid:"));
        tracer.is_some_and(|tracer| tracer.trim() != "0")
    };
    watch.beside(|| {
        logs(&kernel, pid, 31);
        let begun = Instant::now();
        while !is_held() {
            assert!(begun.elapsed().as_secs() < 60, "guard: it is not held");
            thread::sleep(Duration::from_millis(1));
        }
    });
    let finding = watch.next_finding().unwrap();
    assert_eq!((finding.pid, finding.cause), (pid, Cause::Error));
    assert!(finding.hold.is_some());
    drop(finding);
    child.end();
}

/// Errors of one process that are new again and again make few dumps.
#[test]
fn many_errors_of_a_process_are_a_few() {
    let (mut watch, kernel) = with_log(NOBODY);
    for code in 1000..1050 {
        logs(&kernel, NOBODY, code);
    }
    watch.round(Instant::now()).unwrap();
    let told = Vec::from_iter(std::iter::from_fn(|| watch.next_finding()));
    let codes = Vec::from_iter(told.into_iter().map(|f| f.fault.unwrap().code));
    assert_eq!(codes, Vec::from_iter(1000..1008));
}

/// A process without a GPU is waited for; one that is gone is forgotten.
#[test]
fn processes_without_a_gpu_and_ended_ones() {
    let mut child = nvcap_waiting::Sleeper::start();
    let mut watch = Watch::new(
        Whom::Named(vec![child.id()]),
        Some(Duration::from_secs(1)),
        OPTIONS,
        None,
    );
    watch.round(Instant::now()).unwrap();
    assert!(watch.next_finding().is_none() && watch.len() == 0 && !watch.is_over());
    child.end();
    watch.round(Instant::now()).unwrap();
    assert!(watch.is_over() && watch.next_finding().is_none());
}
