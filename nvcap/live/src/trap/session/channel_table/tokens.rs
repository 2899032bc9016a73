//! Tokens that ring the channels: told, concluded, guessed, doubted; and the part of this knowledge that the BPF programs
//! need.
//!
//! Invariant: the entries of a channel in TOKENS are those that [`ChannelTable::token_keys`] gives for it.

use nvcap_common::{TokenKey, TokenValue, trust};

use super::{ChannelTable, LearntToken};
use crate::trap::{
    session::{bpf_maps::BpfMaps, outbox::Outbox, token_evidence::Candidate},
    space::{ChannelState, may_be_same},
};
use nvcap_decode::record::Record;
use nvcap_process::error::Result;

impl ChannelTable {
    /// Returns the doorbells at which a channel's token may be rung, each with the certainty of that.
    fn token_keys(&self, index: u32) -> Vec<(TokenKey, u32)> {
        let channel = &self[index];
        let token = channel.token.or(channel.guess);
        let (Some(token), Some(space)) = (token, self.spaces.get(&channel.space)) else {
            return Vec::new();
        };
        // What may be rung for this channel is not, where it is certainly rung for another.
        let another_s = |gpu: Option<u32>| {
            let mut others = self.in_space(channel.space).filter(|(i, _)| *i != index);
            gpu.is_some() && others.any(|(_, o)| o.live && o.token == Some(token) && o.gpu == gpu)
        };
        let mine = space.doorbells.of_channel(channel.gpu);
        let mine = mine
            .filter(|(doorbell, certain)| *certain || !another_s(space.doorbells.gpu(*doorbell)));
        mine.map(|(doorbell, certain)| {
            let key = TokenKey {
                doorbell,
                space: channel.space,
                token,
            };
            let trust = if channel.token.is_none() || channel.token_doubted {
                trust::GUESS
            } else if !certain {
                trust::MAYBE
            } else if channel.token_certain {
                trust::TOLD
            } else {
                trust::CONCLUDED
            };
            (key, trust)
        })
        .collect()
    }

    /// Publishes to the BPF programs the doorbells and the token that ring a channel.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub(in super::super) fn publish_token(
        &self,
        index: u32,
        maps: &mut impl BpfMaps,
    ) -> Result<()> {
        if !self[index].live {
            return Ok(());
        }
        let mut owned = false;
        for (key, trust) in self.token_keys(index) {
            let value = TokenValue {
                channel: index,
                trust,
                misses: 0,
            };
            maps.set_token(key, value)?;
            owned |= matches!(trust, trust::TOLD | trust::CONCLUDED);
        }
        self.shared.own(index, owned);
        Ok(())
    }

    /// Makes the BPF programs forget the channel's token.
    pub(in super::super) fn forget_tokens(&self, index: u32, maps: &mut impl BpfMaps) {
        for (key, _) in self.token_keys(index) {
            maps.forget_token(key);
        }
    }

    /// Takes a channel's token, if it is better known than the earlier one.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub(in super::super) fn learn_token(
        &mut self,
        index: u32,
        learnt: LearntToken,
        maps: &mut impl BpfMaps,
        out: &mut Outbox,
    ) -> Result<()> {
        let LearntToken {
            token,
            told,
            time_ns,
        } = learnt;
        let channel = &self[index];
        if channel.token_certain && (channel.token == Some(token) || !told) {
            return Ok(());
        }
        if channel.token == Some(token) && !told {
            // Concluded again.
            self.channels[index as usize].token_doubted = false;
            return self.publish_token(index, maps);
        }
        self.forget_tokens(index, maps);
        if !told {
            self.shared.distrust(index);
        }
        let channel = &mut self.channels[index as usize];
        channel.token = Some(token);
        channel.token_certain = told;
        channel.token_doubted = false;
        channel.guess = None;
        channel.announced.token = Some(token);
        if channel.id.is_some() {
            channel.announced.at.time_ns = time_ns;
            let again = channel.announced.clone();
            out.push(Record::Channel(Box::new(again)));
        }
        self.publish_token(index, maps)
    }

    /// Takes note that a token was concluded to be channel `index`'s. Channels of the same GPU for which it was concluded
    /// before lose it.
    pub(in super::super) fn withdraw_from_others(&mut self, token: u32, index: u32) {
        let (space, gpu) = (self[index].space, self[index].gpu);
        for (o, i) in self.channels.iter_mut().zip(0..) {
            let same = o.space == space && o.gpu == gpu;
            if i == index || !same || o.token_certain {
                continue;
            }
            if o.token == Some(token) {
                (o.token, o.announced.token) = (None, None);
                self.shared.own(i, false);
            }
            o.guess = o.guess.filter(|g| *g != token);
        }
    }

    /// Takes a guess of a channel's token, if none is known. Doorbells with the token look at the channel first.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub(in super::super) fn guess_token(
        &mut self,
        index: u32,
        token: u32,
        maps: &mut impl BpfMaps,
    ) -> Result<()> {
        let channel = &self[index];
        let (space, gpu) = (channel.space, channel.gpu);
        let is_another_s = |(_, o): (u32, &ChannelState)| {
            let is_it = o.token == Some(token) || o.guess == Some(token);
            is_it && o.live && may_be_same(o.gpu, gpu)
        };
        if channel.token.is_some() || self.in_space(space).any(is_another_s) {
            return Ok(());
        }
        self.forget_tokens(index, maps);
        self.channels[index as usize].guess = Some(token);
        self.publish_token(index, maps)
    }

    /// Takes note that doorbells with a token that was concluded to be a channel's found nothing new there.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub(in super::super) fn doubt(
        &mut self,
        key: &TokenKey,
        maps: &mut impl BpfMaps,
    ) -> Result<()> {
        let all: Vec<u32> = self.with_token(key).map(|(index, _)| index).collect();
        for index in all {
            let channel = &mut self.channels[index as usize];
            if channel.live && !channel.token_certain && !channel.token_doubted {
                channel.token_doubted = true;
                self.publish_token(index, maps)?;
            }
        }
        Ok(())
    }

    /// True if the token's channel is known and not in doubt.
    pub(in super::super) fn is_settled(&self, key: &TokenKey) -> bool {
        let mut all = self.with_token(key);
        all.any(|(_, ch)| ch.live && !ch.token_doubted)
    }

    /// Returns the channels that a token may ring: channels of the doorbell's GPU, without a token that the driver or the
    /// user told.
    pub(in super::super) fn candidates(&self, key: &TokenKey) -> Vec<Candidate> {
        let gpu = self.doorbells(key.space);
        let gpu = gpu.and_then(|d| d.gpu(key.doorbell));
        let all = self.in_space(key.space).filter(|(_, ch)| {
            ch.live && !(ch.token_certain && ch.token.is_some()) && may_be_same(ch.gpu, gpu)
        });
        let candidate = |(index, ch): (u32, &ChannelState)| Candidate {
            index,
            entries: ch.entries,
            start: ch.index(ch.start),
            has: ch.token.filter(|_| !ch.token_doubted),
            guess: ch.guess,
        };
        all.map(candidate).collect()
    }
}
