//! Reports of a process's work that may have been missed, when the process has given channels up or its memory is gone.

use super::{CONTEXT_NS, Watched, parts::GpuUse};
use crate::observe::followed::{self, Dropped, quiet};

/// Time after the last search for channels from which unmapped channels may not have been all of the process's, ns.
const UNSOUGHT_NS: u64 = 30_000_000;

/// The same time; longer in step, where a program unmaps its channels only after they were read, so that lateness misses nothing.
fn unsought_ns() -> u64 {
    #[cfg(feature = "in-step")]
    if nvcap_process::in_step::is_on() {
        return nvcap_process::in_step::PATIENCE_NS;
    }
    UNSOUGHT_NS
}

impl Watched {
    /// Reports that the process's memory was gone before its channels were found or read, if it could submit. `how`: the way it went, such
    /// as `ended`.
    pub(crate) fn unfound(&self, how: &str) -> Option<String> {
        let doorbell = self.files.seen == GpuUse::Doorbell;
        match self.not_followed.unread.len() {
            0 if doorbell && !self.channels.found => Some(format!(
                "it mapped a doorbell and {how} before any of its channels was found"
            )),
            0 => None,
            n => Some(format!(
                "{n} of its channels could not be read any more when they were found"
            )),
        }
    }

    /// Reports that the process has ended, and may have submitted unseen.
    pub(crate) fn unseen(&self, now: u64) -> Option<String> {
        let unseen_ns = now.saturating_sub(self.mapped_at());
        let ended = self.descent.is_launched() && !self.program.life.is_seen_to_its_end();
        let put_off = self.not_followed.put_off.len();
        let ms = unseen_ns as f64 / 1e6;
        match self.unfound("ended") {
            None if put_off > 0 => Some(format!(
                "it ended before {put_off} of its channels that were found could be looked at"
            )),
            None if self.channels.found => None,
            None if self.files.opened_late => Some(
                "it had a GPU's file open, and may have mapped its memory and given it up between two looks at its mappings".to_owned(),
            ),
            None if ended && (self.parent().is_none() || unseen_ns > CONTEXT_NS) => Some(format!(
                "it ended {ms:.1} ms after the last look at its mappings: whether it used a GPU in that time is not known"
            )),
            unfound => unfound,
        }
    }

    /// Takes note that the process stood still at its end and was looked at for the last time, since `begun`. `mapped_at`: time of the
    /// look at its mappings before that. For a process with a GPU's file open and no doorbell mapped, that earlier look is too old if the
    /// file was opened after it, or if a context could have been made and given up since.
    pub(crate) fn was_seen_to_its_end(&mut self, begun: u64, mapped_at: u64) {
        let unseen_ns = begun.saturating_sub(mapped_at);
        self.files.opened_late = match self.files.seen {
            GpuUse::FileOpen { since } => since >= begun || unseen_ns > CONTEXT_NS,
            GpuUse::Unseen | GpuUse::Doorbell => false,
        };
        self.program.life.see_to_its_end();
    }

    /// Takes note of a channel of the process that no process has any more.
    pub(crate) fn drop_channel(&mut self, dropped: Dropped) {
        self.given_up.add(dropped, self.search.sought_at);
    }

    /// True if the process's memory or some of its channels are gone, and nothing was reported of it yet.
    pub(crate) fn has_lost(&self) -> bool {
        let gone = self.program.life.is_memory_gone();
        self.suspect || gone || !self.given_up.channels.is_empty()
    }

    /// Reports what may have been missed of dropped channels of a process that lives on. `active`: time of the last news on any channel
    /// that it has, ns; `None` where nothing ever came.
    pub(crate) fn unmapped(&mut self, active: Option<u64>) -> Option<String> {
        let active = active.max(self.given_up.moved);
        if self.program.life.is_memory_gone() {
            // It is ending, or executing another program: the next look tells which.
            return None;
        }
        let mut dropped = std::mem::take(&mut self.given_up.channels);
        // The making of a context submits: where nothing ever came, something was missed.
        let silent = self.descent.is_launched() && active.is_none();
        let idle_ns = |d: &Dropped| d.looked.saturating_sub(active.unwrap_or(0));
        dropped.retain(|d| silent || d.hot || d.busy || d.long_ago || idle_ns(d) < quiet(0));
        let unsought = self.given_up.unsought.take();
        followed::unmapped(&dropped).or_else(|| {
            let unsought = unsought.filter(|ns| *ns > unsought_ns())?;
            let ms = unsought as f64 / 1e6;
            Some(format!(
                "it unmapped channels {ms:.1} ms after channels had last been looked for: whether one was used for the first time in between is not known"
            ))
        })
    }

    /// Takes note that all memory of the process is gone. Returns the time since the last look at one of its channels, ns, if it had any
    /// and did not stand at its end: however quiet they were, it may have submitted since.
    pub(crate) fn ended_unseen(&mut self) -> Option<u64> {
        let dropped = std::mem::take(&mut self.given_up.channels);
        let unseen = dropped.iter().map(|d| d.now.saturating_sub(d.looked));
        unseen
            .max()
            .filter(|_| !self.program.life.is_seen_to_its_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::channel::Begin;
    use nvcap_decode::record::ChannelId;

    const MS: u64 = 1_000_000;

    /// Makes a channel that was looked at a ms before it was unmapped.
    fn dropped(channel: u32, moved: u64) -> Dropped {
        Dropped {
            hot: false,
            channel: ChannelId(channel),
            now: 1000 * MS,
            looked: 999 * MS,
            moved,
            busy: false,
            long_ago: false,
        }
    }

    #[test]
    fn a_process_that_used_one_channel_unmaps_them_one_after_another() {
        let mut process = Watched::open(std::process::id(), Begin::First).unwrap();
        process.drop_channel(dropped(0, 700 * MS));
        assert_eq!(process.unmapped(None), None);
        // The one that was used is followed no longer when the others go.
        process.drop_channel(dropped(1, 0));
        assert_eq!(process.unmapped(None), None);
        assert_eq!(process.ended_unseen(), None);
    }

    #[test]
    fn a_process_that_ends_with_channels_may_have_submitted_since_the_last_look() {
        for moved in [0, MS] {
            let mut process = Watched::open(std::process::id(), Begin::Here).unwrap();
            assert_eq!(process.ended_unseen(), None);
            process.drop_channel(dropped(0, moved));
            assert_eq!(process.ended_unseen(), Some(MS));
            // What the kernel stopped at its end was looked at then.
            process.drop_channel(dropped(1, moved));
            process.program.life.see_to_its_end();
            assert_eq!(process.ended_unseen(), None);
        }
    }

    #[test]
    fn channels_that_were_not_looked_for_of_late_may_have_been_more() {
        // It was quiet for long when it was looked at, 1 ms before.
        for (sought_ms, said) in [(0, false), (900, true), (975, false), (999, false)] {
            let mut process = Watched::open(std::process::id(), Begin::Here).unwrap();
            process.search.sought_at = Some(sought_ms * MS).filter(|at| *at > 0);
            process.drop_channel(dropped(0, 100 * MS));
            let why = process.unmapped(None);
            assert_eq!(why.is_some(), said, "{sought_ms} ms: {why:?}");
            // Once.
            assert_eq!(process.unmapped(None), None);
        }
    }

    #[test]
    fn a_command_of_which_nothing_was_seen_missed_something() {
        let mut process = Watched::open(std::process::id(), Begin::First).unwrap();
        process.drop_channel(dropped(0, 0));
        assert!(process.unmapped(None).is_some());
    }
}
