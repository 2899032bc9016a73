//! Tests of the evidence for the beginning of work and for the time in the queue, and of the choice of rules by the kind of GPU.

use super::GpuTimes;
use super::made_up::{
    CLASS, COPIES, COPY_STAMP, KERNEL_STAMP, KERNELS, OFFSET, PID, Writes, copy, end_of, kernel,
    read, submission,
};
use crate::decode::encode::Pushbuffer;
use crate::decode::event::{GpuTime, QueuedBy, StartBy};
use crate::record::{At, Channel, ChannelId, Gpu, How, Origin, Record, Stamps, Submission};

/// PCI device numbers: an H200 (compute class cbc0h), an A100, and one that no chip of the tables has.
const H200: u16 = 0x2335;
const A100: u16 = 0x20b5;
const UNKNOWN: u16 = 0x0fff;

fn gpu(minor: u32, pci_device: u16) -> Record {
    Record::Gpu(Gpu {
        at: At::default(),
        minor,
        pci_device,
    })
}

fn channel(id: ChannelId, gpu: u32) -> Record {
    Record::Channel(Box::new(Channel {
        gpu: Some(gpu),
        ..Channel::bare(At::default(), id, Origin::Given)
    }))
}

fn seen(writes: Writes) -> Record {
    let at = At {
        time_ns: 10_000_000,
        pid: PID,
        tid: 0,
    };
    Record::Stamps(Box::new(Stamps {
        at,
        from_ns: OFFSET,
        reads: 1,
        stamps: read(writes, 1_100, false),
    }))
}

/// Returns the times of submissions, in this order, of a process in which these writes were seen. The GPU's kind is not known.
fn told(of: &[Submission], writes: Writes) -> Vec<GpuTime> {
    let mut times = GpuTimes::default();
    for s in of {
        times.note(&Record::Submission(s.clone()));
    }
    times.note(&seen(writes));
    of.iter().map(|s| times.take(s)[0]).collect()
}

/// Returns the evidence for the start and for the time in the queue, both of which are known.
fn by(time: &GpuTime) -> (StartBy, QueuedBy) {
    assert!(time.start.is_some() && time.queued.is_some(), "{time:?}");
    time.start_by.zip(time.queued_by).expect("both are said")
}

/// Returns copies whose doorbells were rung at these times of the GPU's clock.
fn copies(doorbells: &[u64], how: How) -> Vec<Submission> {
    (0u32..)
        .zip(doorbells)
        .map(|(n, at)| submission(COPIES, n.into(), at + OFFSET, how, &copy(n)))
        .collect()
}

fn copy_ends(at: &[u64]) -> Writes {
    (1u32..)
        .zip(at)
        .map(|(n, end)| (*end, COPY_STAMP, n, true))
        .collect()
}

#[test]
fn a_kernel_s_own_stamp_tells_its_start() {
    let of = |how, late| {
        let mut all: Vec<Submission> = (0..3u32)
            .map(|n| {
                let at = 1_000_000 + u64::from(n) * 50_000 + OFFSET;
                submission(KERNELS, n.into(), at, how, &kernel(n))
            })
            .collect();
        all.iter_mut().for_each(|s| s.late = late);
        let mut writes = Writes::new();
        for n in 0..3u32 {
            let stamp = 1_002_500 + u64::from(n) * 50_000;
            writes.push((stamp, KERNEL_STAMP, n + 1, true));
            writes.push((stamp + 20_000, end_of(n).0, end_of(n).1, false));
        }
        told(&all, writes)
    };
    for time in of(How::Trapped, false) {
        assert_eq!(by(&time), (StartBy::OwnStamp, QueuedBy::Doorbell));
    }
    // For the first entry of a ring, no earlier look is known that did not find it. The time since which it waited is unknown, and no
    // evidence for it is given.
    for all in [of(How::Observed, false), of(How::Trapped, true)] {
        let first = all[0];
        assert_eq!(first.start_by, Some(StartBy::OwnStamp));
        assert_eq!((first.queued, first.queued_by), (None, None));
        for time in &all[1..] {
            assert_eq!(by(time), (StartBy::OwnStamp, QueuedBy::Look));
        }
    }
}

/// Test of a source that tells its previous look: that look bounds the time in the ring, however long nothing had come before.
#[test]
fn the_look_before_tells_since_when_a_kernel_waited() {
    let looked = |n: u32| 1_000_000 + u64::from(n) * 50_000_000 + OFFSET;
    let all: Vec<Submission> = (0..3)
        .map(|n| Submission {
            absent_ns: (n < 2).then_some(looked(n) - 30_000),
            ..submission(KERNELS, n.into(), looked(n), How::Observed, &kernel(n))
        })
        .collect();
    let mut writes = Writes::new();
    for n in 0..3 {
        let stamp = looked(n) - OFFSET + 2_500;
        writes.push((stamp, KERNEL_STAMP, n + 1, true));
        writes.push((stamp + 20_000, end_of(n).0, end_of(n).1, false));
    }
    let all = told(&all, writes);
    for time in &all[..2] {
        assert_eq!(by(time), (StartBy::OwnStamp, QueuedBy::Look));
        let most = time.queued.expect("a time in the queue").1;
        assert!((32_500..40_000).contains(&most), "{most}");
    }
    // If such a source does not tell it, as for entries that one look left to the next, the time is not known.
    assert_eq!((all[2].queued, all[2].queued_by), (None, None));
}

#[test]
fn a_copy_s_start_is_told_by_its_doorbell_or_the_copy_before() {
    // A copy on an idle engine; one behind the copy before; one on an idle engine again.
    let all = told(
        &copies(&[1_000_000, 1_010_000, 1_300_000], How::Trapped),
        copy_ends(&[1_050_000, 1_090_000, 1_350_000]),
    );
    let starts = [StartBy::Doorbell, StartBy::PreviousStamp, StartBy::Doorbell];
    for (time, start) in all.iter().zip(starts) {
        assert_eq!(by(time), (start, QueuedBy::Doorbell));
    }
    // The doorbell was rung shortly before the end of the copy before. That end is later than the doorbell and determines the start. The
    // error contains the time that the engine may take to look at a doorbell.
    let all = told(
        &copies(&[1_000_000, 1_040_000], How::Trapped),
        copy_ends(&[1_050_000, 1_090_000]),
    );
    assert_eq!(by(&all[1]), (StartBy::PreviousStamp, QueuedBy::Doorbell));
    let error = |t: &GpuTime| t.start.expect("a start").gpu_error_ns;
    assert!(error(&all[1]) > 25_000, "{all:?}");
}

#[test]
fn an_observed_copy_s_start_is_told_by_the_copy_before_or_nothing() {
    let all = told(
        &copies(&[1_000_000, 1_020_000, 1_300_000], How::Observed),
        copy_ends(&[1_050_000, 1_090_000, 1_350_000]),
    );
    assert_eq!(by(&all[1]), (StartBy::PreviousStamp, QueuedBy::Look));
    for time in [all[0], all[2]] {
        assert_eq!((time.start, time.start_by), (None, None));
        assert_eq!((time.queued, time.queued_by), (None, None));
    }
}

/// Returns work that waits for a number in a semaphore.
fn behind_a_wait(address: u64, number: u32, work: &Pushbuffer) -> Pushbuffer {
    let mut p = Pushbuffer::new();
    let acquire = [address as u32, (address >> 32) as u32, number, 0, 3];
    p.named(0, 0xc86f, "SEM_ADDR_LO", &acquire)
        .expect("methods");
    for word in work.words() {
        p.raw(*word);
    }
    p
}

#[test]
fn a_copy_s_start_is_told_by_the_release_that_it_waits_for() {
    let waits = |address, number| behind_a_wait(address, number, &copy(0));
    let (word, number) = end_of(0);
    // A stamped semaphore of another channel, and the word that a kernel releases, which has no stamp.
    for (address, number, stamped) in [(KERNEL_STAMP, 2, true), (word, number, false)] {
        let kernels = submission(KERNELS, 0, 1_000_000 + OFFSET, How::Trapped, &kernel(0));
        let of = submission(
            COPIES,
            0,
            1_000_000 + OFFSET,
            How::Trapped,
            &waits(address, number),
        );
        let mut writes = copy_ends(&[1_250_000]);
        writes.push((1_002_500, KERNEL_STAMP, 1, true));
        writes.push((1_200_000, address, number, stamped));
        let all = told(&[kernels, of], writes);
        assert_eq!(by(&all[1]), (StartBy::Release, QueuedBy::Doorbell));
        let start = all[1].start.expect("a start");
        let wrong = start.gpu_ns.abs_diff(1_200_000);
        assert!(wrong <= start.gpu_error_ns, "{start:?}");
    }
}

#[test]
fn a_number_that_was_overwritten_does_not_tell_when_it_was_released() {
    let at = 1_000_000 + OFFSET;
    let first = submission(KERNELS, 0, at, How::Trapped, &kernel(0));
    // The copy waits for 2; the next number read there is 3.
    let waits = behind_a_wait(KERNEL_STAMP, 2, &copy(0));
    let second = submission(COPIES, 0, at, How::Trapped, &waits);
    let mut writes = copy_ends(&[1_250_000]);
    writes.push((1_002_500, KERNEL_STAMP, 1, true));
    writes.push((1_240_000, KERNEL_STAMP, 3, true));
    let all = told(&[first.clone(), second], writes);
    assert_eq!((all[1].start, all[1].wait), (None, None));

    // The kernel waits for 1, and had begun when 2 was read there. It waited from the end of the previous kernel until its own stamp.
    let waits = behind_a_wait(COPY_STAMP, 1, &kernel(1));
    let second = submission(KERNELS, 1, at, How::Trapped, &waits);
    let writes = |with_end: bool| {
        let mut writes = vec![
            (1_002_500, KERNEL_STAMP, 1, true),
            (1_100_000, KERNEL_STAMP, 2, true),
            (1_300_000, COPY_STAMP, 2, true),
        ];
        let (word, number) = end_of(0);
        writes.extend(with_end.then_some((1_022_500, word, number, false)));
        writes
    };
    let all = told(&[first.clone(), second.clone()], writes(true));
    let wait = all[1].wait.expect("a wait").ns;
    assert!((70_000..80_000).contains(&wait), "{wait}");
    // Without that end, the beginning of the wait is not known.
    let all = told(&[first, second], writes(false));
    assert_eq!((all[0].duration, all[1].wait), (None, None));
}

/// Test of the least durations: behind a short kernel the next stamp comes sooner than behind others, and a release may be dated before its
/// kernel's beginning.
#[test]
fn no_kernel_takes_no_time() {
    let at = |n: u32| {
        submission(
            KERNELS,
            n.into(),
            1_000_000 + OFFSET,
            How::Trapped,
            &kernel(n),
        )
    };
    for behind in [600, 1_000, 1_200, 1_400] {
        let stamps = |word: Option<u64>| {
            let mut writes = vec![
                (1_002_500, KERNEL_STAMP, 1, true),
                (1_002_500 + behind, KERNEL_STAMP, 2, true),
            ];
            let (address, number) = end_of(0);
            writes.extend(word.map(|at| (at, address, number, false)));
            writes
        };
        for word in [None, Some(1_002_600)] {
            let time = told(&[at(0), at(1)], stamps(word))[0];
            let duration = time.duration.expect("a duration");
            let executed = time.exec.and_then(|e| e.duration).expect("a duration");
            for told in [duration, executed] {
                assert!(
                    told.ns > 0 && told.error_ns > 0,
                    "{behind} {word:?}: {time:?}"
                );
            }
            // The kernel may have ended at any time until the next kernel's stamp.
            let most = duration.ns + duration.error_ns;
            assert!(most >= behind.min(700), "{behind} {word:?}: {time:?}");
        }
    }
}

#[test]
fn what_is_not_known_has_no_source() {
    let of = copies(&[1_000_000], How::Trapped);
    let all = told(&of, Writes::new());
    assert!(all[0].is_unknown(), "{all:?}");
}

/// Returns the error of a kernel's first instruction on the GPU of its channel; `of` is `None` if the channel's GPU is not known.
fn start_error(gpus: &[(u32, u16)], of: Option<u32>) -> u64 {
    let mut times = GpuTimes::default();
    for (minor, pci_device) in gpus {
        times.note(&gpu(*minor, *pci_device));
    }
    if let Some(of) = of {
        times.note(&channel(KERNELS, of));
    }
    let s = submission(KERNELS, 0, 1_000_000 + OFFSET, How::Trapped, &kernel(0));
    times.note(&Record::Submission(s.clone()));
    times.note(&seen(vec![(1_002_500, KERNEL_STAMP, 1, true)]));
    let time = times.take(&s)[0];
    // The start needs no rule; the first instruction does.
    assert_eq!(time.start.map(|s| s.gpu_error_ns), Some(0));
    time.exec.expect("an execution").start.gpu_error_ns
}

#[test]
fn each_gpu_has_the_rules_of_its_kind() {
    let hopper = super::Rules::of(Some(CLASS)).start_error_ns;
    let other = super::Rules::of(None).start_error_ns;
    assert!(hopper < other);
    for both in [
        [(0, H200), (1, A100)],
        [(1, A100), (0, H200)],
        [(0, H200), (1, UNKNOWN)],
        [(1, UNKNOWN), (0, H200)],
    ] {
        assert_eq!(start_error(&both, Some(0)), hopper, "{both:x?}");
        // On an A100, whose QMDs differ, these bytes are a replay.
        assert!(start_error(&both, Some(1)) >= other, "{both:x?}");
        // With GPUs of two kinds, it is not known which one the channel has.
        assert_eq!(start_error(&both, None), other, "{both:x?}");
        assert_eq!(start_error(&both, Some(7)), other, "{both:x?}");
    }
    let equal = [(0, H200), (1, H200)];
    for of in [None, Some(0), Some(1), Some(7)] {
        assert_eq!(start_error(&equal, of), hopper, "{of:?}");
    }
    assert_eq!(start_error(&[], None), other);
}
