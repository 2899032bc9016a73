//! Channels, parsed from the oracle's output.

use std::collections::HashMap;

use nvcap_decode::record::{At, Channel, ChannelId, CpuVa, Origin};
use nvcap_decode::wire::GpuVa;

/// Channels that the oracle prints to its standard error (`[oracle] channel ...`, `[oracle] token ...`).
#[derive(Clone, Debug, Default)]
pub struct Channels {
    list: Vec<(u32, Channel)>,
}

impl Channels {
    /// Reads the lines of known form, and skips others.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut by_handle: HashMap<u64, Channel> = HashMap::new();
        let mut list = Vec::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let hex = |s: &&str| u64::from_str_radix(s.trim_start_matches("0x"), 16).ok();
            let after = |name: &str| {
                let at = words.iter().position(|w| *w == name)?;
                words.get(at + 1)
            };
            match words.as_slice() {
                ["[oracle]", "channel", handle, ..] => {
                    let Some(handle) = hex(handle) else { continue };
                    let mut channel = unknown(At::default());
                    channel.class = after("cls").and_then(hex).map(|n| n as u32);
                    channel.ring_gpu = after("gpfifo").and_then(hex).map(GpuVa);
                    channel.entries = after("entries").and_then(|n| n.parse().ok());
                    let put = after("put").and_then(hex);
                    channel.userd = put.and_then(|p| p.checked_sub(0x8c)).map(CpuVa);
                    by_handle.insert(handle, channel);
                }
                ["[oracle]", "token", "ch", handle, "=", token] => {
                    let (Some(handle), Some(token)) = (hex(handle), hex(token)) else {
                        continue;
                    };
                    if let Some(channel) = by_handle.get(&handle) {
                        list.push((token as u32, channel.clone()));
                    }
                }
                _ => {}
            }
        }
        Self { list }
    }

    pub(super) fn of(&self, token: u32, at: At) -> Channel {
        let known = self.list.iter().find(|(t, _)| *t == token);
        let channel = known.map_or_else(|| unknown(at), |(_, c)| c.clone());
        Channel {
            at,
            token: Some(token),
            ..channel
        }
    }
}

fn unknown(at: At) -> Channel {
    Channel::bare(at, ChannelId(0), Origin::Recorded)
}
