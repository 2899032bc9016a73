//! A fault that notifiers show, until its message has come.

use std::time::Instant;

use nvcap_decode::record::{ChannelId, Fault, FaultSource, Near, Notification, Suspect, Xid};

/// The most bytes of all messages of one fault together.
const LONGEST: usize = 1024;
/// Farthest distance of a pointer from the address that could not be accessed, bytes.
const FAR: u64 = 1 << 31;
/// Least address of a pointer to memory of the GPU.
const LEAST: u64 = 1 << 12;

/// Work that had not ended, with the bytes of a kernel's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) suspect: Suspect,
    pub(super) args: Vec<u8>,
}

impl Open {
    /// The suspect, with the word of its arguments that is nearest to a page.
    pub(super) fn near(self, page: Option<u64>) -> Suspect {
        Suspect {
            near: page.and_then(|page| nearest(&self.args, page)),
            ..self.suspect
        }
    }
}

/// A channel's notifier with the error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notice {
    pub(super) channel: Option<ChannelId>,
    pub(super) assumed: bool,
    pub(super) token: u32,
    pub(super) notification: Notification,
    pub(super) has_work: bool,
}

/// A fault that notifiers show, until its message has come. For an error of one channel the driver stops all channels of its group: all of these are
/// one fault.
#[derive(Debug)]
pub(super) struct Noticed {
    /// The fault, with the suspects and messages so far.
    fault: Fault,
    /// The GPU of the fault's channels, where it is known.
    gpu: Option<u32>,
    notices: Vec<Notice>,
    /// Arguments of each suspect.
    args: Vec<Vec<u8>>,
    /// Time at which the fault came.
    pub(super) came: Instant,
}

impl Noticed {
    /// Makes a fault without a channel.
    pub(super) fn new(fault: Fault, gpu: Option<u32>, came: Instant) -> Self {
        Self {
            fault,
            gpu,
            notices: Vec::new(),
            args: Vec::new(),
            came,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.fault.at.pid
    }

    pub(super) fn code(&self) -> u32 {
        self.fault.code
    }

    /// Adds a channel that was stopped.
    pub(super) fn add(&mut self, notice: Notice, open: Vec<Open>, only_these: bool) {
        self.fault.only_these &= only_these;
        for one in open {
            if !self.fault.suspects.contains(&one.suspect) {
                self.fault.suspects.push(one.suspect);
                self.args.push(one.args);
            }
        }
        self.notices.push(notice);
    }

    pub(super) fn gpu(&self) -> Option<u32> {
        self.gpu
    }

    /// Tells whether a message about this GPU, where the message names one, can be about the fault.
    pub(super) fn may_be_on(&self, gpu: Option<u32>) -> bool {
        self.gpu.is_none() || gpu.is_none() || self.gpu == gpu
    }

    /// Tells whether a message about this channel, where the message names one, can be about the fault.
    pub(super) fn may_be_of(&self, channel: Option<ChannelId>) -> bool {
        let is = |n: &Notice| n.channel.is_none() || n.channel == channel;
        channel.is_none() || self.notices.iter().any(is)
    }

    pub(super) fn has_message(&self) -> bool {
        self.fault.message.is_some()
    }

    /// Takes a message about the fault. The driver writes several about an exception of an SM.
    pub(super) fn told_by(&mut self, channel: Option<ChannelId>, xid: Xid) {
        self.fault.source = FaultSource::Both;
        match &mut self.fault.message {
            Some(first) if first.text.len() + xid.text.len() <= LONGEST => {
                first.text.push_str("; ");
                first.text.push_str(&xid.text);
            }
            Some(_) => {}
            None => {
                if let Some(access) = xid.access() {
                    for (suspect, args) in self.fault.suspects.iter_mut().zip(&self.args) {
                        suspect.near = nearest(args, access.page);
                    }
                }
                self.fault.message = Some(Box::new(xid));
            }
        }
        // The channel that it names comes first.
        let named = |n: &Notice| n.channel.is_some() && n.channel == channel;
        if let Some(at) = self.notices.iter().position(named) {
            self.notices.swap(0, at);
        }
    }

    /// Returns the fault. Its channel is the one that a message named, else one with work that had not ended.
    pub(super) fn fault(mut self) -> Fault {
        if !self.has_message() {
            let by = |n: &&Notice| n.has_work && n.channel.is_some();
            let first = { self.notices.iter().position(|n| by(&n)) }
                .or_else(|| self.notices.iter().position(|n| n.channel.is_some()));
            if let Some(at) = first {
                self.notices.swap(0, at);
            }
        }
        if let Some(first) = self.notices.first() {
            self.fault.channel = first.channel;
            self.fault.assumed = first.assumed;
            self.fault.token = Some(first.token);
            self.fault.notification = Some(first.notification);
        }
        let mut others: Vec<ChannelId> = { self.notices.iter().skip(1) }
            .filter_map(|n| n.channel)
            .filter(|c| Some(*c) != self.fault.channel)
            .collect();
        others.sort_unstable();
        others.dedup();
        self.fault.group = others;
        self.fault
    }
}

/// The word of a kernel's arguments that is nearest to an address, at a place where a pointer can be; none where another word is about
/// as near.
fn nearest(args: &[u8], address: u64) -> Option<Near> {
    let words = args.chunks_exact(8).enumerate().filter_map(|(n, word)| {
        Some(Near {
            offset: u32::try_from(n * 8).ok()?,
            value: u64::from_le_bytes(word.try_into().ok()?),
        })
    });
    // A null pointer, or an index from one: any number is near.
    if address <= FAR {
        return None;
    }
    let distance = |near: &Near| near.value.abs_diff(address);
    let mut all: Vec<Near> = words
        .filter(|near| near.value >= LEAST && distance(near) <= FAR)
        .collect();
    all.sort_by_key(distance);
    let first = *all.first()?;
    let other = all.iter().find(|near| near.value != first.value);
    // Of two at about the same distance neither is more likely.
    let is_clear = other.is_none_or(|other| distance(other) / 2 >= distance(&first));
    is_clear.then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_told() {
        let args =
            |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
        let of =
            |words: &[u64], address| nearest(&args(words), address).map(|n| (n.offset, n.value));
        let (a, b) = (0x7f00_0000_0000, 0x7f00_0040_0000);
        assert_eq!(of(&[a, b, 7], b + 0x1000), Some((8, b)));
        assert_eq!(of(&[a, b, 7], a - 0x1000), Some((0, a)));
        assert_eq!(of(&[7, u64::MAX, 0], b), None);
        assert_eq!(of(&[0, 1_000_000], 0), None);
        assert_eq!(of(&[0x1_0000, 7], 0x1_0000), None);
        // Beyond both, and between them.
        assert_eq!(of(&[a, b], b + (1 << 30)), None);
        assert_eq!(of(&[a, b], a + 0x1f_0000), None);
        assert_eq!(of(&[a, a, 7], a + (1 << 30)), Some((0, a)));
        assert_eq!(of(&[a], a + (1 << 33)), None);
        assert_eq!(nearest(&args(&[b])[..7], b), None);
        assert_eq!(nearest(&[], b), None);
    }
}
