//! Samples of made-up processes.

use super::super::fakes::{ENTRIES, Fake, FakeProcess, Fakes, SECOND};
use super::super::host::{Host, HostOptions};
use super::{Doing, Sampled, What};
use nvcap_decode::wire::GpuVa;

fn host(process: FakeProcess) -> (Host<Fakes>, Fake) {
    let options = HostOptions {
        sample: Some(0.01),
        ..HostOptions::default()
    };
    let mut host = Host::new(Fakes::default(), options);
    let memory = process.memory.clone();
    host.system.processes.insert(7, process);
    (host, memory)
}

fn sampled(host: &Host<Fakes>) -> Sampled {
    host.samples(7).unwrap().0.clone()
}

/// 500 submissions a second of 20 to 32 bytes, of which 48 are read: the total is known, and holds the truth.
#[test]
fn totals_are_estimated_from_a_part() {
    let (mut host, memory) = host(FakeProcess::new(1));
    memory.work(0, 1, 1);
    let (mut number, mut bytes) = (1, 0);
    let mut random = fastrand::Rng::with_seed(11);
    for second in 0..60 {
        host.system.now += SECOND;
        host.round();
        if second == 59 {
            break;
        }
        for _ in 0..500 {
            number += 1;
            let more = random.usize(0..=3);
            memory.submit_words(0, number - 1, number as u32, more);
            bytes += 20 + 4 * more as u64;
        }
        memory.done(0, number);
    }
    let sampled = sampled(&host);
    let (all, read) = sampled.submissions;
    assert_eq!(all, 59 * 500);
    assert!((2000..4000).contains(&read), "{read}");
    assert_eq!(sampled.unread, 0);
    let estimate = sampled.sums[&What::PushbufferBytes];
    let off = (estimate.total - bytes as f64).abs();
    // Twice the 95 % interval: missed once in 10,000.
    assert!(off < 2.0 * estimate.error(), "{estimate:?} of {bytes}");
    assert!(estimate.error() < 0.01 * bytes as f64, "{estimate:?}");
}

/// Samples are exact, without an error, where so little is submitted that all is read.
#[test]
fn what_is_read_whole_is_exact() {
    let (mut host, memory) = host(FakeProcess::new(1));
    memory.work(0, 1, 3);
    for number in [20, 37, 60] {
        host.system.now += SECOND;
        host.round();
        memory.work(0, 4, number);
    }
    host.system.now += SECOND;
    host.round();
    let sampled = sampled(&host);
    assert_eq!(sampled.submissions, (57, 57));
    let estimate = sampled.sums[&What::PushbufferBytes];
    assert_eq!((estimate.total, estimate.error()), (57.0 * 20.0, 0.0));
}

#[test]
fn moments_tell_when_there_is_work() {
    let (mut host, memory) = host(FakeProcess::new(1));
    memory.work(0, 1, 10);
    host.system.now += SECOND;
    host.round();
    for n in 0..100_u64 {
        // A quarter of the time there is something to do.
        if n % 4 == 0 {
            memory.submit(0, 11 + n / 4, 11 + n / 4);
        }
        assert!(host.moment().is_some());
        memory.done(0, 11 + n / 4);
    }
    let sampled = sampled(&host);
    assert_eq!(sampled.moments, (100, 25));
    let busy = sampled.busy().unwrap();
    assert!(busy.interval.0 > 0.15 && busy.interval.1 < 0.35, "{busy:?}");
    assert_eq!(sampled.at.get(&Doing::Other), Some(&25.0));
    assert_eq!(sampled.at.len(), 1);
}

/// Bytes that newer submissions have used again are not taken for those that were there.
#[test]
fn used_again_is_not_believed() {
    let (mut host, memory) = host(FakeProcess::new(1));
    memory.work(0, 1, 10);
    host.system.now += SECOND;
    host.round();
    memory.work(0, 11, 600);
    // In the slots of the first 500 lie entries that release other numbers.
    for number in 11..500_u64 {
        let raw = memory.ring_entry(0, number - 1);
        memory.submit_words(0, number - 1, 2000 + (number * 7) as u32, 0);
        memory.set_ring_entry(0, number - 1, raw);
    }
    memory.submit(0, 600, 600);
    host.system.now += SECOND;
    host.round();
    let sampled = sampled(&host);
    let (all, read) = sampled.submissions;
    assert_eq!(all, 590);
    assert!(read <= 24, "{read}");
}

/// Moments of a ring that is full of kernels that are not done are read, to the last of them.
#[test]
fn a_full_ring_s_moments_are_read() {
    let (mut host, memory) = host(FakeProcess::new(1));
    memory.work(0, 1, 10);
    host.system.now += SECOND;
    host.round();
    let (program, word) = (0x7f00_0000_0000, Fake::word_of(0));
    let mut newest = 10 + ENTRIES as u32 - 1;
    for number in 11..=newest {
        memory.submit_work(0, number, Some(program), word);
    }
    for done in 12..62 {
        memory.done(0, done);
        newest += 1;
        memory.submit_work(0, newest, Some(program), word);
        host.moment();
        memory.ended(word, done as u32);
    }
    let sampled = sampled(&host);
    assert_eq!(sampled.moments, (50, 50));
    assert_eq!(sampled.at, [(Doing::Kernel(GpuVa(program)), 50.0)].into());
}

/// Bytes of another submission are not taken for those of the one that the GPU is at.
#[test]
fn a_moment_believes_its_own_number_only() {
    let (mut host, memory) = host(FakeProcess::new(1));
    memory.work(0, 1, 10);
    host.system.now += SECOND;
    host.round();
    memory.submit(0, 11, 20);
    let raw = memory.ring_entry(0, 10);
    memory.submit_words(0, 10, 3000, 0);
    memory.set_ring_entry(0, 10, raw);
    memory.submit(0, 20, 20);
    assert!(host.moment().is_some());
    assert_eq!(sampled(&host).at, [(Doing::Unread, 1.0)].into());
}

/// The stamp comes before the kernel: what the number says is done may run.
#[test]
fn a_moment_is_at_the_kernel_behind_the_newest_stamp() {
    let (mut host, memory) = host(FakeProcess::new(1));
    memory.work(0, 1, 10);
    host.system.now += SECOND;
    host.round();
    let (first, second) = (Fake::word_of(0), Fake::word_of(1));
    let (one, other) = (0x7f00_0000_0000, 0x7f00_0001_0000);
    memory.submit_work(0, 11, Some(one), first);
    memory.submit_work(0, 12, Some(other), second);
    let mut expected = std::collections::BTreeMap::new();
    // Its stamp is not there yet, and nothing runs.
    host.moment();
    expected.insert(Doing::Other, 1.0);
    // Stamped, so that it runs, with another one queued, and without.
    memory.done(0, 11);
    host.moment();
    expected.insert(Doing::Kernel(GpuVa(one)), 1.0);
    memory.ended(first, 11);
    memory.done(0, 12);
    host.moment();
    host.moment();
    expected.insert(Doing::Kernel(GpuVa(other)), 2.0);
    memory.ended(second, 12);
    host.moment();
    // A replay alone, twice.
    memory.submit_work(0, 13, None, first);
    memory.done(0, 13);
    host.moment();
    host.moment();
    expected.insert(Doing::Graph, 2.0);
    memory.ended(first, 13);
    host.moment();
    let sampled = sampled(&host);
    assert_eq!(sampled.at, expected);
    assert_eq!(sampled.moments, (8, 6));
}

/// Submissions that samples miss are counted: those before the first sample, and those that the ring did not hold any more.
#[test]
fn what_is_not_sampled_is_counted() {
    let (mut host, memory) = host(FakeProcess::new(1));
    let mut second = |from: u64, to: u64| {
        memory.work(0, from, to);
        host.system.now += SECOND;
        host.round();
        sampled(&host)
    };
    assert_eq!(second(1, 30).early, 30);
    let all = second(31, 2030);
    let held = ENTRIES - 65;
    assert_eq!((all.early, all.lapped, all.unread), (30, 2000 - held, 0));
    assert_eq!(all.submissions.0, 2000);
    // All of these are in the ring.
    let all = second(2031, 2040);
    assert_eq!((all.lapped, all.submissions.0), (2000 - held, 2010));
}

/// Readings bound how long submissions took; moments between them bound it closer.
#[test]
fn how_long_submissions_took() {
    let (mut host, memory) = host(FakeProcess::new(1));
    memory.work(0, 1, 3);
    let reading = |host: &mut Host<Fakes>| {
        host.system.now += SECOND;
        host.round();
        let delays = sampled(host).delays;
        (delays.count, delays.sum)
    };
    // Nothing is known of what was there before.
    assert_eq!(reading(&mut host), (0, 0.0));
    memory.submit(0, 4, 9);
    memory.done(0, 7);
    assert_eq!(reading(&mut host), (4, 4.0));
    memory.done(0, 9);
    assert_eq!(reading(&mut host), (6, 4.0 + 2.0 * 2.0));
    // Submitted and done between two moments, an eighth of a second apart.
    for number in [10, 11] {
        host.system.now += SECOND / 8;
        host.moment();
        memory.work(0, number, number);
    }
    host.system.now += SECOND / 8;
    host.moment();
    let delays = sampled(&host).delays;
    assert_eq!((delays.count, delays.sum), (8, 8.0 + 0.25));
    assert_eq!((delays.within(-3), delays.within(-4)), (2, 0));
    // What moments found is kept for the sums of all processes, too.
    assert_eq!(reading(&mut host), (8, 8.25));
    let view = host.view();
    let kept: u64 = view.sampled.values().map(|s| s.delays.count).sum();
    assert_eq!(kept, 8);
}
