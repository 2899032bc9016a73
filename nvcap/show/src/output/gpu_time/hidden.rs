//! Works of which no begin was seen: the time in which they may have run, from the last moment that is known of their channel to the next.
//!
//! The entries of a channel run one after the other. So the time between the end of one and the begin of a later one is no time without work, where
//! works lie between them of which neither is known: nothing tells what part of it they took.

use std::collections::{BTreeSet, HashMap};

use super::intervals::Stretch;
use super::open::End;
use nvcap_decode::decode::event::{Context, Engine, GpuMoment, GpuTime};
use nvcap_decode::record::ChannelId;

/// Longest time that is waited for a later moment of the channel, ns: less than stretches of work are held back for.
const HELD_NS: u64 = 1_500_000_000;

/// Time before an observed entry was seen in which it came, ns, where its source does not tell that. Rings are looked at more often than so; the
/// ledger says how often.
const LOOK_NS: u64 = 100_000_000;

/// A moment on the clocks of GPU and host, ns.
#[derive(Clone, Copy, Debug)]
struct Both {
    gpu: u64,
    host: u64,
}

impl Both {
    fn of(at: GpuMoment) -> Self {
        Self {
            gpu: at.gpu_ns,
            host: at.host_ns,
        }
    }

    /// Returns the GPU's time at a time of the host near this moment, for which the clocks run alike.
    fn gpu_at(self, host: u64) -> u64 {
        let before = self.host.saturating_sub(host);
        let after = host.saturating_sub(self.host);
        self.gpu.saturating_sub(before).saturating_add(after)
    }
}

/// Works of a channel of which no begin was seen.
#[derive(Clone, Copy, Debug)]
struct Works {
    /// Time of the host before which none of them ran, ns.
    earliest: u64,
    /// Times of the host between which the first of them came, ns.
    came: (u64, u64),
    is_copy: bool,
    /// Time that they take if they are like the timed works of their channel, ns; `u64::MAX` where none is timed.
    about: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Channel {
    /// The last moment that is known: what the channel did before has ended, or what it does began.
    last: Option<Both>,
    works: Option<Works>,
}

/// Works whose begins were not seen, by channel.
#[derive(Clone, Debug, Default)]
pub(super) struct Hidden {
    channels: HashMap<ChannelId, Channel>,
    /// Channels with such works, by the time at which the first of them was seen.
    waiting: BTreeSet<(u64, ChannelId)>,
}

impl Hidden {
    /// Takes an entry with works whose begin was not seen. `origin`: the begin of the trace; `about`: the time that the entry takes if it is like the
    /// timed ones of its channel, ns. Returns the time in which its works may have run, where its end is known.
    pub(super) fn hide(
        &mut self,
        c: &Context,
        time: &GpuTime,
        origin: Option<u64>,
        about: u64,
    ) -> Option<Stretch> {
        let channel = self.channels.entry(c.channel).or_default();
        let seen = c.at.time().or(origin)?;
        let before = super::when::absent(c).unwrap_or(seen.saturating_sub(LOOK_NS));
        let came = (before.max(origin.unwrap_or(0)), seen);
        if let Some(works) = &mut channel.works {
            works.about = works.about.saturating_add(about);
        } else {
            channel.works = Some(Works {
                earliest: channel.last.map_or(came.0, |last| last.host.max(came.0)),
                came,
                is_copy: matches!(c.engine, Engine::Copy(_)),
                about,
            });
            self.waiting.insert((seen, c.channel));
        }
        self.reveal(c.channel, time.ended?)
    }

    /// Returns the time in which works of a channel may have run, all of which had ended at a moment.
    pub(super) fn reveal(&mut self, id: ChannelId, at: GpuMoment) -> Option<Stretch> {
        let channel = self.channels.entry(id).or_default();
        let at = Both::of(at);
        channel.last = Some(at);
        let works = channel.works.take()?;
        self.waiting.remove(&(works.came.1, id));
        Some(works.stretch(id, at, End::Before(at.gpu)))
    }

    /// Takes the end of a channel's work, where it is known: `ns` behind the last moment.
    pub(super) fn ended(&mut self, id: ChannelId, ns: u64) {
        if let Some(last) = self.channels.get_mut(&id).and_then(|c| c.last.as_mut()) {
            last.gpu = last.gpu.saturating_add(ns);
            last.host = last.host.saturating_add(ns);
        }
    }

    /// Returns a channel whose works have waited for [`HELD_NS`] at `now`, with the time in which they may have run.
    pub(super) fn held_for_long(&mut self, now: u64) -> Option<(ChannelId, Option<Stretch>)> {
        let (seen, id) = *self.waiting.first()?;
        if seen.saturating_add(HELD_NS) > now {
            return None;
        }
        self.waiting.pop_first();
        let channel = self.channels.get_mut(&id)?;
        let works = channel.works.take();
        let stretch = works.zip(channel.last);
        Some((
            id,
            stretch.map(|(works, last)| works.stretch(id, last, End::Unknown)),
        ))
    }
}

impl Works {
    /// Makes the stretch of these works. `by`: a moment by which the clocks are compared.
    fn stretch(self, channel: ChannelId, by: Both, end: End) -> Stretch {
        let host = match end {
            End::Before(_) => self.earliest.min(by.host),
            End::At(_) | End::Unknown => self.earliest,
        };
        let begin = by.gpu_at(host);
        let came = |at: u64| by.gpu_at(at).min(begin);
        Stretch {
            begin,
            end,
            there: Some((came(self.came.0), came(self.came.1))),
            waited: None,
            host,
            submitted: self.came.1,
            channel,
            is_copy: self.is_copy,
            about: self.about,
        }
    }
}
