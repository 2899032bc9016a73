use nvcap_common::trust;

use super::{super::bpf_maps::tests::Written, *};
use nvcap_decode::record::{At, CpuVa};

/// A table, the maps that it has written, and the records that it has passed on.
struct Bench {
    table: ChannelTable,
    written: Written,
    out: Outbox,
}

impl Bench {
    /// Makes a table with a doorbell of GPU 0 in address space 1.
    fn new() -> Self {
        let mut table = ChannelTable::new(Shared::in_memory());
        table.add_doorbell(1, 0x90, Some(0));
        Self {
            table,
            written: Written::default(),
            out: Outbox::default(),
        }
    }

    fn add(&mut self, ring: u64, gpu: Option<u32>, token: Option<u32>, origin: Origin) -> u32 {
        let new = NewChannel {
            space: 1,
            channel: channel(ring, gpu, token, origin),
            start: 0,
            model_id: None,
        };
        let index = self.table.add(new, 0, &mut self.written).unwrap();
        index.unwrap()
    }

    fn learn(&mut self, index: u32, token: u32, told: bool) {
        let learnt = LearntToken {
            token,
            told,
            time_ns: 5,
        };
        let table = &mut self.table;
        table
            .learn_token(index, learnt, &mut self.written, &mut self.out)
            .unwrap();
    }

    fn told(&mut self) -> Vec<Record> {
        let mut all = Vec::new();
        self.out.append_to(&mut all);
        all
    }

    /// Returns the channel that a token rings, and the certainty of that.
    fn rings(&self, doorbell: u64, token: u32) -> Option<(u32, u32)> {
        let key = TokenKey {
            doorbell,
            space: 1,
            token,
        };
        let value = self.written.tokens.get(&key);
        value.map(|v| (v.channel, v.trust))
    }
}

fn channel(ring: u64, gpu: Option<u32>, token: Option<u32>, origin: Origin) -> Channel {
    Channel {
        at: At {
            time_ns: 0,
            pid: 7,
            tid: 0,
        },
        id: UNNUMBERED,
        gpu,
        token,
        class: None,
        engine: None,
        handle: None,
        ring_gpu: None,
        ring: Some(CpuVa(ring)),
        entries: Some(8),
        userd: Some(CpuVa(0x4000)),
        origin,
    }
}

#[test]
fn what_the_driver_told_is_better_known_than_what_was_concluded() {
    let mut b = Bench::new();
    let index = b.add(0x1000, Some(0), None, Origin::Allocated);
    assert!(b.written.tokens.is_empty());
    b.learn(index, 9, false);
    assert_eq!(b.rings(0x90, 9), Some((index, trust::CONCLUDED)));
    b.learn(index, 8, true);
    assert_eq!(
        (b.rings(0x90, 9), b.rings(0x90, 8)),
        (None, Some((index, 0)))
    );
    b.learn(index, 9, false);
    assert_eq!(
        (b.rings(0x90, 9), b.rings(0x90, 8)),
        (None, Some((index, 0)))
    );
}

#[test]
fn a_token_is_the_channel_s_whose_gpu_the_doorbell_is_of() {
    let mut b = Bench::new();
    let unknown = b.add(0x1000, None, Some(9), Origin::Given);
    assert_eq!(b.rings(0x90, 9), Some((unknown, trust::MAYBE)));
    let known = b.add(0x2000, Some(0), Some(9), Origin::Allocated);
    assert_eq!(b.rings(0x90, 9), Some((known, 0)));
    b.table.publish_token(unknown, &mut b.written).unwrap();
    assert_eq!(b.rings(0x90, 9), Some((known, 0)), "it is another's");
    assert!(b.table.is_taken(1, 9, known) && !b.table.is_taken(1, 8, known));
}

#[test]
fn numbers_are_given_once_in_the_order_of_becoming_known() {
    let mut b = Bench::new();
    let first = b.add(0x1000, Some(0), None, Origin::Found);
    let second = b.add(0x2000, Some(0), None, Origin::Allocated);
    assert!(!b.table.any_announced());
    assert_eq!(
        b.table.id_of_loss(first, &mut b.out),
        None,
        "it may be no channel"
    );
    assert_eq!(b.table.id_of_loss(second, &mut b.out), Some(ChannelId(0)));
    assert_eq!(b.table.announce(first, 3, &mut b.out), ChannelId(1));
    assert_eq!(b.table.announce(second, 4, &mut b.out), ChannelId(0));
    assert_eq!(b.told().len(), 2);
    // A token that is learnt later is told, too.
    b.learn(first, 9, false);
    assert!(matches!(&b.told()[..], [Record::Channel(c)] if c.token == Some(9)));
}

#[test]
fn what_is_no_channel_is_confirmed_by_nothing_and_dismissed() {
    let mut b = Bench::new();
    let index = b.add(0x1000, Some(0), Some(9), Origin::Found);
    let segment = Segment {
        bytes: vec![0xff; 8],
        ..Segment::default()
    };
    assert!(!b.table.confirms(index, &[segment]) && !b.table.confirms(index, &[]));
    assert!(!b.table.confirms(99, &[]), "no such channel");
    b.table.dismiss(index, &mut b.written);
    assert!(b.written.tokens.is_empty() && !b.table[index].live);
    assert_eq!(b.table.shared().get(index).live, 0);
    assert!(
        b.table.is_followed(1, 0x1000),
        "it is not searched for again"
    );
    assert_eq!(b.table.untold_at(1, 0x1000), None);
}

#[test]
fn a_freed_place_is_another_s() {
    let mut b = Bench::new();
    let index = b.add(0x1000, Some(0), Some(9), Origin::Allocated);
    b.table.adopt(index, ChannelId(3));
    assert_eq!(b.table.of_model(ChannelId(3)), Some(index));
    b.table.forget_tokens(index, &mut b.written);
    b.table.retire(index);
    assert!(b.written.tokens.is_empty());
    b.table.free_space(1);
    assert_eq!(
        (b.table.of_model(ChannelId(3)), b.table.has_space(1)),
        (None, false)
    );
    assert_eq!(b.add(0x2000, None, None, Origin::Given), index);
    assert_eq!(b.table.indexes(), 0..1);
}

#[test]
fn what_was_seen_and_not_fetched_is_lost_once_told() {
    let mut b = Bench::new();
    let index = b.add(0x1000, Some(0), None, Origin::Given);
    b.table.count_unfetched(index, &mut b.out);
    assert!(b.told().is_empty());
    b.table.shared().progress(index, 2, 5, 0);
    // GP_PUT 7, seen by the last patrol from position 5 on.
    let state = b.table.get_mut(index).unwrap();
    (state.ahead, state.patrolled) = (Some(7), (2, 5));
    b.table.count_unfetched(index, &mut b.out);
    let told = b.told();
    let [Record::Channel(_), Record::Loss(loss)] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(
        loss.what,
        Lost::Entries {
            position: 2,
            count: 5
        }
    );
    b.table.lapped(index, 7, &mut b.out);
    assert!(b.told().is_empty());
    b.table.lapped(index, 8, &mut b.out);
    assert_eq!(b.told().len(), 1);
}

#[test]
fn doorbells_at_which_nothing_could_be_read_are_told() {
    let mut b = Bench::new();
    let index = b.add(0x1000, Some(0), None, Origin::Given);
    b.table.shared().add_unread(index, 3);
    b.table.shared().add_unread(index, 1);
    b.table.count_unfetched(index, &mut b.out);
    let told = b.told();
    let [Record::Channel(_), Record::Loss(loss)] = &told[..] else {
        panic!("{told:?}");
    };
    assert!(
        matches!(&loss.what, Lost::Untraced { why } if why.ends_with(": 4")),
        "{loss:?}"
    );
    // What a later look read is known. That GP_PUT was none stays so.
    b.table.shared().progress(index, 0, 0, 0);
    b.table.count_unfetched(index, &mut b.out);
    assert!(b.told().is_empty());
    b.table.get_mut(index).unwrap().beyond = 2;
    b.table.count_unfetched(index, &mut b.out);
    let told = b.told();
    assert!(
        matches!(&told[..], [Record::Loss(l)] if matches!(&l.what, Lost::Untraced { why } if why.contains("8 entries at 2 looks"))),
        "{told:?}"
    );
    // Of what may be no channel nothing is said.
    let found = b.add(0x2000, Some(0), None, Origin::Found);
    b.table.get_mut(found).unwrap().beyond = 2;
    b.table.count_unfetched(found, &mut b.out);
    assert!(b.told().is_empty());
}

#[test]
fn a_token_is_one_gpu_s() {
    let mut b = Bench::new();
    b.table.add_doorbell(1, 0x1090, Some(1));
    let first = b.add(0x1000, Some(0), Some(7), Origin::Given);
    let second = b.add(0x2000, Some(1), Some(7), Origin::Given);
    let rung = |doorbell| TokenKey {
        doorbell,
        space: 1,
        token: 7,
    };
    b.table.get_mut(first).unwrap().looked = true;
    let state = |key: TokenKey| (b.table.is_unseen(&key), b.table.looked_at_with(&key));
    assert_eq!(state(rung(0x90)), (false, Some(first)));
    assert_eq!(state(rung(0x1090)), (true, None));
    // A doorbell of a GPU that is not known may be either's.
    assert_eq!(state(rung(0x5090)), (true, Some(first)));
    b.table.retire(second);
    assert!(!b.table.is_unseen(&rung(0x1090)));
    assert!(b.table.is_known(&rung(0x90)) && !b.table.is_known(&rung(0x1090)));
}

#[test]
fn a_token_is_guessed_concluded_doubted_and_another_s() {
    let mut b = Bench::new();
    let first = b.add(0x1000, Some(0), None, Origin::Found);
    let second = b.add(0x2000, Some(0), None, Origin::Found);
    let told = b.add(0x3000, Some(0), Some(5), Origin::Allocated);
    let key = TokenKey {
        doorbell: 0x90,
        space: 1,
        token: 9,
    };
    let owned = |b: &Bench| [first, second, told].map(|i| b.table.shared().get(i).owned);
    b.table.guess_token(first, 9, &mut b.written).unwrap();
    b.table.guess_token(second, 9, &mut b.written).unwrap();
    b.table.guess_token(second, 5, &mut b.written).unwrap();
    assert_eq!(b.rings(0x90, 9), Some((first, trust::GUESS)));
    assert_eq!(b.rings(0x90, 5), Some((told, trust::TOLD)));
    assert_eq!((b.table[first].token, owned(&b)), (None, [0, 0, 1]));
    let of = |b: &Bench| -> Vec<_> {
        let all = b.table.candidates(&key);
        all.iter().map(|c| (c.index, c.has, c.guess)).collect()
    };
    assert_eq!(of(&b), [(first, None, Some(9)), (second, None, None)]);
    b.learn(first, 9, false);
    assert_eq!(b.rings(0x90, 9), Some((first, trust::CONCLUDED)));
    assert_eq!(owned(&b), [1, 0, 1]);
    assert_eq!(of(&b), [(first, Some(9), None), (second, None, None)]);
    b.table.doubt(&key, &mut b.written).unwrap();
    assert_eq!(b.rings(0x90, 9), Some((first, trust::GUESS)));
    assert_eq!((b.table[first].token, owned(&b)), (Some(9), [0, 0, 1]));
    assert_eq!(of(&b)[0], (first, None, None));
    // It was right.
    b.learn(first, 9, false);
    assert_eq!(b.rings(0x90, 9), Some((first, trust::CONCLUDED)));
    // It was wrong.
    b.table.doubt(&key, &mut b.written).unwrap();
    b.table.withdraw_from_others(9, second);
    b.learn(second, 9, false);
    assert_eq!(b.rings(0x90, 9), Some((second, trust::CONCLUDED)));
    assert_eq!((b.table[first].token, owned(&b)), (None, [0, 1, 1]));
}
