//! Decides which thread looks at each channel, by the share of a core that the looks take. Pure: gets times, and returns the
//! channels to move.
//!
//! Channels stay with the session's own thread while it has time for them. Else the busiest go to readers. A reader with too much
//! gives another one the smallest channel that relieves it. A channel on which nothing comes any more returns to the session's
//! thread.

use std::{collections::BTreeMap, env, thread};

use nvcap_decode::record::ChannelId;

/// Time between two judgements, ns.
pub(super) const JUDGE_NS: u64 = 10_000_000;
/// Share of a core up to which the session's own thread keeps channels: it also searches processes and asks for names.
const OWN_MOST: f64 = 0.35;
/// Share of a core that stays with the session's own thread once it gives channels away.
const OWN_THEN: f64 = 0.15;
/// Share of a core up to which a reader is given channels.
const READER_FULL: f64 = 0.6;
/// Share of a core above which a reader gives channels to others.
const READER_MOST: f64 = 0.75;
/// Share of a core below which a channel is not worth moving.
const SMALL: f64 = 0.01;
/// Time without news after which a channel returns, ns.
const QUIET_NS: u64 = 1_000_000_000;
/// Weight of the newest measurement.
const NEWEST: f64 = 0.4;

/// The most readers that are started unless the user asks for more.
const MOST_UNASKED: usize = 16;
/// Environment variable of tests that makes every channel go from thread to thread all the time. A release ignores it.
const ROTATE: &str = "NVCAP_OBSERVE_ROTATE";

/// Returns the most readers that a session may have: as many as the user asks for, else less than half the processors. With fewer
/// than four processors there is none.
pub(super) fn most_readers(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        (processors / 2).saturating_sub(1).min(MOST_UNASKED)
    })
}

/// Measurement of one channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Number of the channel.
    pub channel: ChannelId,
    /// Reader that has the channel; none for the session's own thread.
    pub reader: Option<usize>,
    /// Total time of the looks at the channel, ns.
    pub looking_ns: u64,
    /// Time of the last news on the channel, ns.
    pub came_at: u64,
}

/// Decision to let another thread look at a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    /// Number of the channel.
    pub channel: ChannelId,
    /// Reader that gets the channel, which may be a new one; none for the session's own thread.
    pub to: Option<usize>,
}

/// Load of a channel by the measurements so far.
#[derive(Clone, Copy, Debug)]
struct Load {
    looking_ns: u64,
    share: f64,
}

/// Distribution of channels over the threads that look at them.
#[derive(Debug, Default)]
pub(super) struct Balance {
    loads: BTreeMap<ChannelId, Load>,
    judged: u64,
    /// Count of turns, if each judgement moves every channel.
    turns: Option<usize>,
}

/// A channel with its present reader and its share of a core.
#[derive(Clone, Copy, Debug)]
struct Placed {
    channel: ChannelId,
    reader: Option<usize>,
    share: f64,
}

impl Balance {
    /// Begins to judge. Where a test asks for it, every channel moves to another thread at each judgement.
    pub(super) fn begin() -> Self {
        let rotates = cfg!(debug_assertions) && env::var_os(ROTATE).is_some();
        Self {
            turns: rotates.then_some(0),
            ..Self::default()
        }
    }

    /// Tells whether it is time for a judgement.
    pub(super) fn is_due(&self, now: u64) -> bool {
        now.saturating_sub(self.judged) >= JUDGE_NS
    }

    /// Judges all channels. `readers`: number of readers. `most`: the most that there may be.
    pub(super) fn judge(
        &mut self,
        now: u64,
        all: &[Measured],
        readers: usize,
        most: usize,
    ) -> Vec<Move> {
        let since = now.saturating_sub(self.judged).max(1) as f64;
        self.judged = now;
        if let Some(turns) = &mut self.turns {
            *turns += 1;
            let threads = most + 1;
            let turn = |(i, m): (usize, &Measured)| Move {
                channel: m.channel,
                to: ((i + *turns) % threads).checked_sub(1),
            };
            return all.iter().enumerate().map(turn).collect();
        }
        let mut loads = BTreeMap::new();
        let mut placed = Vec::new();
        let mut moves = Vec::new();
        for m in all {
            let before = self.loads.get(&m.channel).copied().unwrap_or(Load {
                looking_ns: m.looking_ns,
                share: 0.0,
            });
            let newest = m.looking_ns.saturating_sub(before.looking_ns) as f64 / since;
            let share = before.share + NEWEST * (newest - before.share);
            let load = Load {
                looking_ns: m.looking_ns,
                share,
            };
            loads.insert(m.channel, load);
            let returns = m.reader.is_some() && now.saturating_sub(m.came_at) > QUIET_NS;
            if returns {
                moves.push(Move {
                    channel: m.channel,
                    to: None,
                });
            } else {
                placed.push(Placed {
                    channel: m.channel,
                    reader: m.reader,
                    share,
                });
            }
        }
        self.loads = loads;
        moves.extend(Places::new(placed, readers, most).moves());
        moves
    }
}

/// Channels by the thread that has them.
struct Places {
    /// All channels, the busiest first.
    all: Vec<Placed>,
    /// Share of a core of each reader.
    readers: Vec<f64>,
    most: usize,
}

impl Places {
    fn new(mut all: Vec<Placed>, readers: usize, most: usize) -> Self {
        all.sort_by(|a, b| b.share.total_cmp(&a.share));
        let share = |reader| {
            let its = all.iter().filter(|p| p.reader == Some(reader));
            its.map(|p| p.share).sum()
        };
        let readers = (0..readers).map(share).collect();
        Self { all, readers, most }
    }

    fn moves(mut self) -> Vec<Move> {
        let mut moves = self.relieve_own_thread();
        for reader in 0..self.readers.len() {
            moves.extend(self.relieve_reader(reader));
        }
        moves
    }

    /// Gives away the channels that are too much for the session's own thread.
    fn relieve_own_thread(&mut self) -> Vec<Move> {
        let own: Vec<Placed> = self
            .all
            .iter()
            .filter(|p| p.reader.is_none())
            .copied()
            .collect();
        let mut share: f64 = own.iter().map(|p| p.share).sum();
        let mut moves = Vec::new();
        if share <= OWN_MOST {
            return moves;
        }
        for p in own {
            if share <= OWN_THEN || p.share < SMALL {
                break;
            }
            // Where every reader has enough, the one with the least gets it if it has less than this thread.
            let Some(to) = self.room_for(p.share).or_else(|| self.least_below(share)) else {
                break;
            };
            self.readers[to] += p.share;
            share -= p.share;
            moves.push(Move {
                channel: p.channel,
                to: Some(to),
            });
        }
        moves
    }

    /// Moves the smallest channel whose move relieves an overloaded reader.
    fn relieve_reader(&mut self, reader: usize) -> Option<Move> {
        let share = self.readers[reader];
        let its = |p: &&Placed| p.reader == Some(reader) && p.share >= SMALL;
        // One channel alone cannot be divided.
        if share <= READER_MOST || self.all.iter().filter(its).count() < 2 {
            return None;
        }
        let enough = |p: &&Placed| share - p.share <= READER_FULL;
        let p = self
            .all
            .iter()
            .rev()
            .filter(its)
            .find(enough)
            .or_else(|| self.all.iter().find(its))
            .copied()?;
        let to = self.room_for(p.share).filter(|to| *to != reader)?;
        self.readers[to] += p.share;
        self.readers[reader] -= p.share;
        Some(Move {
            channel: p.channel,
            to: Some(to),
        })
    }

    /// Returns the least loaded reader that has room for this share. Where none has, returns a new one, if one more is allowed.
    fn room_for(&mut self, share: f64) -> Option<usize> {
        let least = self.least();
        let has_room =
            |n: &usize| self.readers[*n] + share <= READER_FULL || self.readers[*n] == 0.0;
        if let Some(n) = least.filter(has_room) {
            return Some(n);
        }
        if self.readers.len() >= self.most {
            return None;
        }
        self.readers.push(0.0);
        Some(self.readers.len() - 1)
    }

    /// Returns the least loaded reader.
    fn least(&self) -> Option<usize> {
        (0..self.readers.len()).min_by(|a, b| self.readers[*a].total_cmp(&self.readers[*b]))
    }

    /// Returns the least loaded reader, if its load is below this share.
    fn least_below(&self, share: f64) -> Option<usize> {
        self.least().filter(|n| self.readers[*n] < share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Channels, each with the share of a core that looking at it takes, and the threads that look at them.
    struct Machine {
        balance: Balance,
        now: u64,
        most: usize,
        readers: usize,
        channels: Vec<(Measured, f64)>,
    }

    impl Machine {
        fn of(shares: &[f64], most: usize) -> Self {
            let channel = |(i, share): (usize, &f64)| {
                let measured = Measured {
                    channel: ChannelId(i as u32),
                    reader: None,
                    looking_ns: 0,
                    came_at: 0,
                };
                (measured, *share)
            };
            Self {
                balance: Balance::default(),
                now: 1_000 * MS,
                most,
                readers: 0,
                channels: shares.iter().enumerate().map(channel).collect(),
            }
        }

        /// Lets time pass and carries out the judgements. Returns the number of moves.
        fn run(&mut self, ms: u64) -> usize {
            let mut count = 0;
            for _ in 0..ms * MS / JUDGE_NS {
                self.now += JUDGE_NS;
                assert!(self.balance.is_due(self.now));
                for (m, share) in &mut self.channels {
                    m.looking_ns += (JUDGE_NS as f64 * *share) as u64;
                    if *share > 0.0 {
                        m.came_at = self.now;
                    }
                }
                let all: Vec<Measured> = self.channels.iter().map(|(m, _)| *m).collect();
                for Move { channel, to } in
                    self.balance.judge(self.now, &all, self.readers, self.most)
                {
                    count += 1;
                    let to = to.map(|to| to.min(self.readers));
                    self.readers = self.readers.max(to.map_or(0, |to| to + 1));
                    assert!(self.readers <= self.most);
                    self.channels[channel.0 as usize].0.reader = to;
                }
            }
            count
        }

        /// Returns the share of a core that one thread needs.
        fn share(&self, reader: Option<usize>) -> f64 {
            let its = self.channels.iter().filter(|(m, _)| m.reader == reader);
            its.map(|(_, share)| share).sum()
        }
    }

    #[test]
    fn what_one_thread_has_time_for_stays_with_it() {
        let mut idle = Machine::of(&[0.1, 0.1, 0.1, 0.02], 8);
        assert_eq!((idle.run(2_000), idle.readers), (0, 0));
        let mut none_allowed = Machine::of(&[0.6, 0.6], 0);
        assert_eq!(none_allowed.run(1_000), 0);
    }

    #[test]
    fn each_busy_channel_finds_a_reader_with_time_for_it() {
        // Eight ranks, each with a busy channel and others.
        let shares: Vec<f64> = (0..32)
            .map(|i| if i % 4 == 0 { 0.3 } else { 0.01 })
            .collect();
        let mut machine = Machine::of(&shares, 16);
        machine.run(500);
        assert!(machine.share(None) <= OWN_MOST, "{}", machine.share(None));
        for reader in 0..machine.readers {
            assert!(machine.share(Some(reader)) <= READER_MOST);
        }
        assert_eq!(machine.run(2_000), 0, "no channel goes to and fro");
    }

    #[test]
    fn the_fastest_channel_has_a_reader_to_itself() {
        let mut machine = Machine::of(&[0.95, 0.3, 0.3, 0.01], 8);
        machine.run(500);
        let reader = machine.channels[0].0.reader;
        assert!(reader.is_some());
        assert!(machine.share(reader) < 0.96, "{}", machine.share(reader));
        assert_eq!(machine.run(2_000), 0);
    }

    #[test]
    fn where_cores_lack_the_readers_share_what_there_is() {
        let mut machine = Machine::of(&[0.5; 8], 2);
        machine.run(1_000);
        let shares = [None, Some(0), Some(1)].map(|r| machine.share(r));
        assert!(shares.iter().all(|s| (1.0..2.1).contains(s)), "{shares:?}");
        assert!(machine.run(2_000) < 3);
    }

    #[test]
    fn load_that_moves_is_followed_and_quiet_channels_return() {
        let mut machine = Machine::of(&[0.5, 0.0, 0.0], 8);
        machine.run(200);
        assert!(machine.channels[0].0.reader.is_some());
        machine.channels[0].1 = 0.0;
        machine.channels[1].1 = 0.5;
        machine.channels[2].1 = 0.5;
        machine.run(2_000);
        let readers = [0, 1, 2].map(|i: usize| machine.channels[i].0.reader);
        assert_eq!(readers[0], None);
        assert!(readers[1] != readers[2], "{readers:?}");
    }
}
