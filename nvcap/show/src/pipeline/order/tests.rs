//! Records that come in another order than theirs.

use proptest::prelude::*;

use super::*;
use nvcap_decode::decode::encode::Pushbuffer;
use nvcap_decode::gpu_time::made_up;
use nvcap_decode::record::{At, Channel, How, Loss, Lost, Origin, QmdCopy, Submission};
use nvcap_decode::wire::GpuVa;

fn submission(time_ns: u64, channel: u32, position: u64) -> Record {
    Record::Submission(Submission {
        at: At::of_process(time_ns, 1),
        segments: Vec::new(),
        ..made_up::submission(
            ChannelId(channel),
            position,
            time_ns,
            How::Trapped,
            &Pushbuffer::new(),
        )
    })
}

fn life(time_ns: u64, life: Life) -> Record {
    Record::Process(Process {
        at: At::of_process(time_ns, 1),
        life,
    })
}

fn announced(time_ns: u64, channel: u32) -> Record {
    Record::Channel(Box::new(Channel::bare(
        At::of_process(time_ns, 1),
        ChannelId(channel),
        Origin::Found,
    )))
}

/// All records in the order of leaving: first while they come, then the rest.
fn ordered(records: impl IntoIterator<Item = Record>, order: &mut Order) -> Vec<Record> {
    let mut all = Vec::new();
    for record in records {
        order.put(record);
        all.extend(std::iter::from_fn(|| order.take(|_| false)));
    }
    all.extend(std::iter::from_fn(|| order.take_all()));
    assert!(order.held.first().is_none() && order.first.is_empty());
    assert_eq!(order.held_bytes, 0);
    all
}

fn times(records: &[Record]) -> Vec<u64> {
    records.iter().map(|r| r.at().time_ns).collect()
}

#[test]
fn records_of_several_processors_leave_by_time() {
    let came = [
        submission(40, 0, 0),
        submission(2, 1, 0),
        submission(41, 1, 1),
        submission(30, 2, 0),
    ];
    let all = ordered(came, &mut Order::new(100, MOST_BYTES));
    assert_eq!(times(&all), [2, 30, 40, 41]);
}

#[test]
fn records_leave_after_the_window_or_beyond_the_byte_limit() {
    let mut order = Order::new(100, MOST_BYTES);
    order.put(submission(1000, 0, 0));
    order.put(submission(1099, 0, 1));
    assert!(order.take(|_| false).is_none());
    order.put(submission(1100, 0, 2));
    assert_eq!(times(&Vec::from_iter(order.take(|_| false))), [1000]);
    assert!(order.take(|_| false).is_none());
    let mut small = Order::new(100, 600);
    for position in 0..3 {
        small.put(submission(1000, 0, position));
    }
    assert!(small.take(|_| false).is_some(), "600 bytes are two records");
    assert!(small.take(|_| false).is_none());
}

#[test]
fn records_at_the_beginning_of_an_attached_trace_wait_as_long_as_it_is_old() {
    let ms = |n: u64| 1_000 + n * 1_000_000;
    let left = |first: Option<Record>, window| {
        let mut order = Order::within(window, 0);
        order.put(Record::Gpu(nvcap_decode::record::Gpu {
            at: At::of_process(ms(0), 0),
            minor: 0,
            pci_device: 0x2330,
        }));
        first.into_iter().for_each(|r| order.put(r));
        for time in [5, 15, 16, 60, 100] {
            order.put(submission(ms(time), 0, time));
        }
        let left: Vec<_> = std::iter::from_fn(|| order.take(|_| false)).collect();
        left.iter()
            .filter(|r| matches!(r, Record::Submission(_)))
            .count()
    };
    let name = String::new();
    let present = || Some(life(ms(0), Life::Present { name: name.clone() }));
    // Those of 5, 15 and 16 ms have waited 95, 85 and 84 ms; that of 60 ms only 40.
    assert_eq!(left(present(), WINDOW_NS), 3);
    assert_eq!(left(None, WINDOW_NS), 0);
    assert_eq!(left(present(), GPU_TIME_WINDOW_NS), 0);
}

#[test]
fn a_process_s_end_comes_behind_what_came_before_it() {
    let came = [
        life(10, Life::Present { name: "a".into() }),
        submission(90, 0, 0),
        life(50, Life::Exit { process: true }),
    ];
    let all = ordered(came, &mut Order::new(100, MOST_BYTES));
    assert_eq!(times(&all), [10, 90, 50]);
    // Records behind an exec belong to the new program.
    let came = [
        life(50, Life::Exec { name: "b".into() }),
        submission(40, 0, 0),
    ];
    let all = ordered(came, &mut Order::new(100, MOST_BYTES));
    assert_eq!(times(&all), [50, 40]);
}

#[test]
fn a_channel_is_announced_before_it_is_used() {
    let came = [announced(60, 3), submission(50, 3, 0), submission(55, 4, 0)];
    let all = ordered(came, &mut Order::new(100, MOST_BYTES));
    assert_eq!(times(&all), [55, 60, 50]);
}

#[test]
fn images_leave_first_and_untimed_records_keep_their_place() {
    let image = Record::QmdCopy(Box::new(QmdCopy {
        at: At::of_process(900, 1),
        address: GpuVa(0),
        bytes: vec![0; 8],
        found: nvcap_decode::record::CpuVa(0),
    }));
    let loss = Record::Loss(Loss {
        at: At::default(),
        channel: None,
        what: Lost::Records {
            kind: nvcap_decode::record::RecordKind::Driver,
            count: 1,
        },
    });
    let came = [
        submission(20, 0, 0),
        image,
        submission(30, 0, 1),
        loss,
        submission(40, 0, 2),
    ];
    let all = ordered(came, &mut Order::new(100, MOST_BYTES));
    assert_eq!(times(&all), [900, 20, 30, 0, 40]);
}

/// Memory of the later process must not be forgotten with the earlier one.
#[test]
fn images_of_a_number_that_is_used_again_leave_behind_the_first_end() {
    let image = |time| {
        Record::QmdCopy(Box::new(QmdCopy {
            at: At::of_process(time, 1),
            address: GpuVa(0),
            bytes: vec![0; 8],
            found: nvcap_decode::record::CpuVa(0),
        }))
    };
    let came = [
        submission(10, 0, 0),
        life(20, Life::Exit { process: true }),
        submission(50, 1, 0),
        image(40),
        image(15),
    ];
    let all = ordered(came, &mut Order::new(100, MOST_BYTES));
    assert_eq!(times(&all), [15, 10, 20, 40, 50]);
}

#[test]
fn nothing_is_held_where_nothing_is_left() {
    let mut order = Order::within(10, 1000);
    order.put(submission(10, 0, 0));
    order.put(submission(100, 0, 1));
    assert!(order.take(|_| true).is_none() && order.is_held());
    while order.take_all().is_some() {}
    assert!(order.take(|_| true).is_none() && !order.is_held());
}

#[test]
fn channels_and_processes_that_are_gone_are_forgotten() {
    let mut order = Order::new(100, MOST_BYTES);
    for i in 0..100_000u32 {
        order.put(submission(u64::from(i) * 1000, i, 0));
        while order.take(|_| false).is_some() {}
    }
    assert!(order.channels.len() <= MOST_REMEMBERED + 1);
}

/// All processes have records that wait: none can be forgotten, and they are not looked through at each record.
#[test]
fn many_processes_are_not_looked_through_again_and_again() {
    let mut order = Order::new(100, MOST_BYTES);
    let (mut looks, mut before) = (0, order.most_remembered);
    for pid in 0..100_000 {
        let at = At {
            pid,
            tid: pid,
            time_ns: 1000,
        };
        let life = Life::Exit { process: true };
        order.put(Record::Process(Process { at, life }));
        looks += u32::from(order.most_remembered != before);
        before = order.most_remembered;
        assert!(order.processes.len() <= order.most_remembered);
    }
    assert_eq!(order.processes.len(), 100_000);
    assert!((1..10).contains(&looks), "{looks}");
}

/// Records of a source: submissions of a few channels, each with the delay of its arrival.
fn arrivals() -> impl Strategy<Value = Vec<(u64, u32, u64)>> {
    prop::collection::vec((0u64..50, 0u32..4, 0u64..200), 1..200)
}

proptest! {
    #[test]
    fn every_record_leaves_once_in_its_channel_s_order(steps in arrivals(), bytes in 0usize..20_000) {
        let mut order = Order::new(100, bytes);
        let mut now = 1;
        let mut next = [0u64; 4];
        let mut came = Vec::new();
        for (pause, channel, back) in steps {
            now += pause;
            came.push(submission(now.saturating_sub(back).max(1), channel, next[channel as usize]));
            next[channel as usize] += 1;
        }
        let all = ordered(came.clone(), &mut order);
        prop_assert_eq!(all.len(), came.len());
        let mut seen = [0u64; 4];
        for record in &all {
            let Record::Submission(s) = record else { panic!("{record:?}") };
            prop_assert_eq!(s.position, seen[s.channel.0 as usize]);
            seen[s.channel.0 as usize] += 1;
        }
    }

    #[test]
    fn records_within_the_window_leave_by_time(steps in arrivals()) {
        // As kernels give them: each channel's times rise, and a record comes less than a window after its time.
        let mut now = 1000;
        let mut last = [1u64; 4];
        let mut next = [0u64; 4];
        let mut came = Vec::new();
        for (pause, channel, back) in steps {
            now += pause;
            let of = channel as usize;
            let time = (now - back % 100).max(last[of]);
            came.push(submission(time, channel, next[of]));
            last[of] = time;
            next[of] += 1;
        }
        let all = ordered(came, &mut Order::new(100, MOST_BYTES));
        prop_assert!(times(&all).is_sorted());
    }
}
