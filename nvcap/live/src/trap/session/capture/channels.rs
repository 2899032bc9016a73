//! Channels begin and end: channels that the driver reports, that a search finds, and that the user names. Everything that the BPF
//! programs must know of a channel is written before the channel is shared with them.

use std::collections::HashMap;

use super::{
    super::{
        channel_table::{LearntToken, NewChannel, UNNUMBERED},
        outbox::seen_now,
        translations::GpuView,
    },
    Capture,
};
use nvcap_decode::{
    driver::Aperture,
    record::{Channel, ChannelId, CpuVa},
    wire::GpuVa,
};
use nvcap_process::error::Result;
use nvcap_process::memory::{scan, snapshot::RingToken};

impl Capture {
    /// Follows a channel, if that is possible and it is not followed yet.
    ///
    /// # Errors
    /// When there is no room for a further channel, or a map cannot be written.
    pub(in super::super) fn add_channel(&mut self, new: NewChannel) -> Result<Option<u32>> {
        if !self.table.takes(&new.channel, new.model_id) {
            return Ok(None);
        }
        let xlate = self.publish_ranges(new.model_id, new.space)?;
        self.table.add(new, xlate, &mut self.bpf)
    }

    /// Takes note that the driver reported a channel.
    ///
    /// # Errors
    /// As [`Self::add_channel`].
    pub(in super::super) fn install_allocated(&mut self, channel: Channel) -> Result<()> {
        let Some(space) = self.bpf.proc(channel.at.pid).map(|p| p.space) else {
            return Ok(());
        };
        let (model_id, time_ns) = (channel.id, channel.at.time_ns);
        let found = channel
            .ring
            .and_then(|ring| self.table.untold_at(space, ring.0));
        if let Some(index) = found {
            self.table.adopt(index, model_id);
            self.table.announce(index, time_ns, &mut self.out);
            return match channel.token {
                Some(token) => self.told_token(index, token, time_ns),
                None => Ok(()),
            };
        }
        let new = NewChannel {
            space,
            channel,
            // Its ring begins at 0, and nothing of it has been missed, however late this record is read.
            start: 0,
            model_id: Some(model_id),
        };
        if let Some(index) = self.add_channel(new)? {
            self.table.announce(index, time_ns, &mut self.out);
            // The driver gives out the token before anything can be submitted: entries in the ring then have a token.
            self.unpeeked.push(index);
        }
        Ok(())
    }

    /// Takes note that the driver reported the token of a channel that it had reported before.
    ///
    /// # Errors
    /// When the map of tokens cannot be written.
    pub(in super::super) fn token_told(
        &mut self,
        id: ChannelId,
        token: u32,
        time_ns: u64,
    ) -> Result<()> {
        let Some(index) = self.table.of_model(id) else {
            return Ok(());
        };
        self.told_token(index, token, time_ns)?;
        let before = self.unpeeked.len();
        self.unpeeked.retain(|i| *i != index);
        if self.unpeeked.len() < before {
            self.peek(index);
        }
        Ok(())
    }

    fn told_token(&mut self, index: u32, token: u32, time_ns: u64) -> Result<()> {
        let learnt = LearntToken {
            token,
            told: true,
            time_ns,
        };
        self.learn_token(index, learnt)
    }

    /// Takes note of a channel's token.
    ///
    /// # Errors
    /// When the map of tokens cannot be written.
    pub(in super::super) fn learn_token(&mut self, index: u32, learnt: LearntToken) -> Result<()> {
        self.table
            .learn_token(index, learnt, &mut self.bpf, &mut self.out)?;
        self.release_held(index);
        Ok(())
    }

    /// Notes the tokens that error notifiers suggest for channels that were found in memory. They are guesses until doorbells
    /// confirm them.
    ///
    /// # Errors
    /// When the map of tokens cannot be written.
    pub(in super::super) fn guess_tokens(
        &mut self,
        space: u32,
        tokens: Vec<RingToken>,
    ) -> Result<()> {
        for RingToken { ring, token } in tokens {
            if let Some(index) = self.table.untold_at(space, ring.0) {
                log::debug!("token {token:#x} may ring channel {index}, by its error notifier");
                self.table.guess_token(index, token, &mut self.bpf)?;
            }
        }
        Ok(())
    }

    /// Takes note of a ring that was found in memory. `start`: the ring position from which it is followed. The channel is
    /// announced at its first submission, or at once if the ring certainly is a channel's.
    ///
    /// # Errors
    /// As [`Self::add_channel`].
    pub(in super::super) fn install_found(
        &mut self,
        space: u32,
        pid: u32,
        found: &scan::FoundRing,
        start: u32,
    ) -> Result<Option<u32>> {
        if self.table.is_followed(space, found.ring) {
            return Ok(None);
        }
        self.add_channel(NewChannel {
            space,
            channel: found.channel(seen_now(pid), UNNUMBERED),
            start: start.into(),
            model_id: None,
        })
    }

    /// Takes note that the driver reported the end of a channel.
    pub(in super::super) fn retire(&mut self, id: ChannelId) {
        let Some(index) = self.table.of_model(id) else {
            return;
        };
        if !self.table[index].live {
            return;
        }
        // A last look, while its memory may still be there.
        let _ = self.catch_up(index);
        self.table.retire(index);
        self.table.forget_tokens(index, &mut self.bpf);
        self.count_unfetched(index);
    }

    /// Ends the channels of a process whose memory is about to go.
    pub(in super::super) fn end_channels(&mut self, space: u32) {
        for index in self.table.of_space(space) {
            if self.table[index].live {
                self.table.retire(index);
                self.count_unfetched(index);
            }
        }
    }

    /// Passes on the remaining captures of an address space that is gone, and forgets its tokens and translations.
    pub(in super::super) fn leave_space(&mut self, space: u32) {
        let channels = self.table.of_space(space);
        for index in &channels {
            self.flush(*index);
            self.newest.remove(index);
            self.table.forget_tokens(*index, &mut self.bpf);
        }
        self.unpeeked.retain(|i| !channels.contains(i));
        self.tokens.forget_space(space);
        self.evidence.forget_space(space);
        self.rung.forget_space(space);
        self.translations.forget_space(space);
        self.newly_watched.remove(&space);
    }

    /// Returns the process's address of the memory at a GPU address of an announced channel; none for registers, which must not be
    /// read.
    pub(in super::super) fn locate(&self, channel: ChannelId, at: GpuVa) -> Option<CpuVa> {
        let model_id = self.table.announced(channel)?.model_id?;
        let there = self.model.resolve_for(model_id, at)?;
        there
            .cpu
            .filter(|_| there.aperture != Some(Aperture::Registers))
    }

    /// Gives the BPF programs the translation of a channel's GPU addresses. Returns its key; 0 where the process has the same
    /// addresses.
    fn publish_ranges(&mut self, model_id: Option<ChannelId>, space: u32) -> Result<u32> {
        let view = self.view(model_id, space);
        let map = self.addresses(model_id);
        self.translations.publish(view, map, &mut self.bpf)
    }

    fn view(&self, model_id: Option<ChannelId>, space: u32) -> GpuView {
        let of = model_id.and_then(|id| self.model.space_of(id));
        GpuView { space, of }
    }

    /// Gives the BPF programs the changed translations of a process.
    ///
    /// # Errors
    /// When the map of translations cannot be written.
    pub(in super::super) fn retranslate(&mut self, pid: u32) -> Result<()> {
        let Some(space) = self.bpf.proc(pid).map(|p| p.space) else {
            return Ok(());
        };
        let mut done = HashMap::new();
        for index in self.table.of_space(space) {
            let channel = &self.table[index];
            if !channel.live {
                continue;
            }
            let model_id = channel.model_id;
            let view = self.view(model_id, space);
            let number = match done.get(&view) {
                Some(number) => *number,
                None => self.publish_ranges(model_id, space)?,
            };
            done.insert(view, number);
            if number != 0 {
                self.table.shared().translate(index, number);
            }
        }
        Ok(())
    }
}
