//! `softgpu --timed` as another process sees it, which reads the words that a GPU writes: they are those of the truth file.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use softgpu::layout::{Channel, releases};
use softgpu::stream::{RELEASES, released, semaphore};
use softgpu::timed::{DOORBELL_TO_STAMP, END_TO_STAMP, STAMP_TO_START};

const CHANNEL: Channel = Channel { gpu: 0, index: 0 };

/// The members of a flat JSON object; texts without their quotes.
fn members(line: &str) -> HashMap<String, String> {
    let inner = line.trim().trim_matches(['{', '}']);
    let pairs = inner.split(',').filter_map(|m| m.split_once(':'));
    pairs
        .map(|(k, v)| (k.trim_matches('"').into(), v.trim_matches('"').into()))
        .collect()
}

#[derive(Clone, Copy, Debug)]
struct Kernel {
    queued: bool,
    rung: u64,
    stamp: u64,
    stamp_written: u64,
    start: u64,
    end: u64,
    end_host: u64,
    end_written: u64,
}

fn lag(options: &[&str]) -> u64 {
    let given = options
        .iter()
        .find_map(|o| o.strip_prefix("--timed-lag-ns="));
    given.map_or(0, |n| n.parse().expect("a number"))
}

fn kernels(truth: &str) -> Vec<Kernel> {
    let lines = truth.lines().map(members);
    let kernels = lines.filter(|m| m["type"] == "kernel");
    kernels
        .enumerate()
        .map(|(i, m)| {
            let number = |name: &str| m[name].parse::<u64>().expect(name);
            assert_eq!(number("position"), i as u64);
            assert_eq!(number("payload"), i as u64 + 1);
            let (word, payload) = released(CHANNEL, i as u64);
            assert_eq!(number("end_word"), word);
            assert_eq!(number("end_word_payload"), u64::from(payload));
            Kernel {
                queued: m["queued"] == "true",
                rung: number("rung_ns"),
                stamp: number("stamp_gpu_ns"),
                stamp_written: number("stamp_written_ns"),
                start: number("start_gpu_ns"),
                end: number("end_gpu_ns"),
                end_host: number("end_ns"),
                end_written: number("end_written_ns"),
            }
        })
        .collect()
}

/// Payload, stamp, and the words that launches release; none once the process has unmapped them.
fn read(pid: u32) -> Option<(u32, u64, [u64; RELEASES as usize])> {
    let (mut tracking, mut words) = ([0u64; 2], [0u64; RELEASES as usize]);
    let local = [
        libc::iovec {
            iov_base: tracking.as_mut_ptr().cast(),
            iov_len: size_of_val(&tracking),
        },
        libc::iovec {
            iov_base: words.as_mut_ptr().cast(),
            iov_len: size_of_val(&words),
        },
    ];
    let remote = [
        libc::iovec {
            iov_base: semaphore(CHANNEL) as *mut libc::c_void,
            iov_len: size_of_val(&tracking),
        },
        libc::iovec {
            iov_base: releases(0) as *mut libc::c_void,
            iov_len: size_of_val(&words),
        },
    ];
    // SAFETY: the local parts are these arrays, with their lengths; the remote process is another one.
    let got = unsafe {
        libc::process_vm_readv(pid as libc::pid_t, local.as_ptr(), 2, remote.as_ptr(), 2, 0)
    };
    let whole = size_of_val(&tracking) + size_of_val(&words);
    (got == whole as isize).then_some((tracking[0] as u32, tracking[1], words))
}

struct Running(Child, PathBuf);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_file(&self.1);
    }
}

/// Both spin: one test at a time.
static ONE: Mutex<()> = Mutex::new(());

/// After this time a test is taken to hang.
const GUARD: Duration = Duration::from_secs(300);

/// Compares runs until a tenth of the submissions of one was seen in all of them together, and so many kernels were `wanted`: on a busy machine
/// the reader or the GPU's thread has no processor for a while. Each run must be right, however little of it is seen.
fn compare(
    name: &str,
    submissions: u64,
    options: &[&str],
    (least, wanted): (usize, fn(&Kernel) -> bool),
) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = Instant::now();
    let (mut all_seen, mut fit) = (0, 0);
    while 10 * all_seen <= submissions || fit < least {
        assert!(
            begun.elapsed() < GUARD,
            "guard: of {submissions} in each run {all_seen} were seen, and {fit} are as wanted"
        );
        let (kernels, seen) = once(name, submissions, options);
        all_seen += seen;
        fit += kernels.iter().filter(|k| wanted(k)).count();
    }
}

/// Runs it with these options, reads until it has ended, and compares; returns what ran and how many stamps were seen.
fn once(name: &str, submissions: u64, options: &[&str]) -> (Vec<Kernel>, u64) {
    let file = std::env::temp_dir().join(format!("softgpu-{name}-{}", std::process::id()));
    let child = Command::new(env!("CARGO_BIN_EXE_softgpu"))
        .args([
            "--timed",
            "--files",
            "--gpus=1",
            "--channels=1",
            "--threads=1",
        ])
        .args(["--wait-stdin", "--before-wait=0", "--timed-drift-ppm=0"])
        .arg(format!("--submissions={submissions}"))
        .arg(format!("--timed-truth={}", file.display()))
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("softgpu starts");
    let mut running = Running(child, file);
    let mut out = BufReader::new(running.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while line.trim() != "waiting" {
        line.clear();
        assert!(out.read_line(&mut line).expect("a line") > 0, "it ended");
    }
    let mut start = running.0.stdin.take().expect("a pipe");
    start.write_all(b"g").expect("it reads");
    let (mut stamps, mut ends) = (Vec::new(), Vec::new());
    let (mut last, mut last_words) = (0, [0; RELEASES as usize]);
    while let Some((payload, stamp, words)) = read(running.0.id()) {
        if payload != last {
            stamps.push((payload, stamp));
            last = payload;
        }
        let changed = (0..words.len()).filter(|&i| words[i] != last_words[i]);
        ends.extend(changed.map(|i| (i, (words[i] >> 32) as u32)));
        last_words = words;
    }
    assert!(running.0.wait().expect("it ends").success());
    let kernels = kernels(&std::fs::read_to_string(&running.1).expect("a file"));
    assert_eq!(kernels.len() as u64, submissions);

    for &(payload, stamp) in &stamps {
        assert_eq!(stamp, kernels[payload as usize - 1].stamp, "{payload}");
    }
    // Each word at a kernel's end, and one less before.
    let values: HashMap<(usize, u32), u64> = (0..submissions)
        .map(|n| {
            let (word, payload) = released(CHANNEL, n);
            (((word - releases(0)) as usize / 8, payload), n)
        })
        .collect();
    for (i, value) in ends {
        let at_end = values.contains_key(&(i, value));
        assert!(
            at_end || values.contains_key(&(i, value + 1)),
            "{i}: {value}"
        );
    }

    for (i, pair) in kernels.windows(2).enumerate() {
        let [before, k] = pair else { unreachable!() };
        assert!(k.stamp >= before.end + END_TO_STAMP, "{i}: {pair:?}");
        if k.queued {
            assert_eq!(k.stamp, before.end + END_TO_STAMP, "{i}: {pair:?}");
        }
    }
    for k in &kernels {
        assert_eq!(k.start, k.stamp + STAMP_TO_START, "{k:?}");
        assert!(k.end > k.start, "{k:?}");
        assert!(k.end_written >= k.end_host + lag(options), "{k:?}");
        assert!(k.stamp_written > k.rung + DOORBELL_TO_STAMP - 1000, "{k:?}");
    }
    (kernels, stamps.len() as u64)
}

#[test]
fn queued_ahead() {
    let options = ["--timed-kernel-us=20", "--timed-spread=50"];
    // Never shorter than said; longer where the GPU's thread had no processor.
    let queued = |k: &Kernel| {
        assert!(k.end - k.start >= 10_000, "{k:?}");
        k.queued && k.end - k.start < 30_000
    };
    compare("queued", 3000, &options, (1000, queued));
}

#[test]
fn one_at_a_time() {
    let options = [
        "--timed-kernel-us=5",
        "--timed-burst=1",
        "--timed-pause-us=300",
        "--timed-lag-ns=2000",
    ];
    compare("alone", 600, &options, (300, |k| !k.queued));
}
