//! Work-submit tokens and channel errors from the error notifiers, which the resource manager writes into memory of
//! the process.
//!
//! A channel's error notifier is an array of 16-byte notifications (time, info32, info16, status): number 0 is the error, number 1 the
//! work-submit token (`NV_CHANNELGPFIFO_NOTIFICATION_TYPE_ERROR`, `..._WORK_SUBMIT_TOKEN`). CUDA gives each channel a page of its own,
//! mapped through nvidiactl, in the order in which it makes the channels. The process's memory does not tell which page belongs to which
//! channel. The order is assumed to tell it, and the assumption is dropped if the token's runlist contradicts the channel's stream.

use super::maps::Area;
use crate::procfs::mem::ReadMemory;
use nvcap_decode::hang::xid::REMOVAL;
use nvcap_decode::record::{Device, Notification};
use nvcap_decode::wire::words::u32_at;

const PAGE: u64 = 0x1000;
/// Mask of the bits that a token has: channel id in 11:0, runlist in 22:16.
const TOKEN: u32 = 0x007f_0fff;

/// One channel's notifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notifier {
    /// Address of the notifier.
    pub address: u64,
    /// Work-submit token.
    pub token: u32,
    /// Code of the error (`ROBUST_CHANNEL_...`, the number of the Xid message), if the channel has one.
    pub error: Option<u32>,
    /// Notification of the error.
    pub notification: Notification,
}

impl Notifier {
    /// Returns the error that the channel caused. The driver also writes the removal of the channel, at the end of its context, at this
    /// place; that is no fault.
    #[must_use]
    pub fn fault(&self) -> Option<u32> {
        self.error.filter(|code| *code != REMOVAL)
    }
}

/// Returns all pages that hold a token, by address.
pub fn notifiers(memory: &impl ReadMemory, areas: &[Area]) -> Vec<Notifier> {
    { pages(areas).into_iter() }
        .filter_map(|at| read(memory, at))
        .collect()
}

/// Returns the addresses of the pages that may hold a notifier, in order.
#[must_use]
pub fn pages(areas: &[Area]) -> Vec<u64> {
    let is_one = |a: &&Area| {
        a.device() == Some(Device::Control) && a.read && a.write && a.end - a.start == PAGE
    };
    let mut all: Vec<u64> = areas.iter().filter(is_one).map(|a| a.start).collect();
    all.sort_unstable();
    all
}

/// Reads the notifier at an address; `None` if there is none, or if it cannot be read.
pub fn read(memory: &impl ReadMemory, address: u64) -> Option<Notifier> {
    let mut b = [0; 32];
    memory.read_bytes(address, &mut b).ok()?;
    parse(address, &b)
}

fn parse(address: u64, b: &[u8; 32]) -> Option<Notifier> {
    // A notification has 16 bytes: info32 at 8, the status in the last 16 bits.
    let info = |at: usize| u32_at(b, at + 8).unwrap_or(0);
    let last = |at: usize| u32_at(b, at + 12).unwrap_or(0);
    let status = |at: usize| last(at) >> 16;
    let token = info(16);
    // A notification that was never written is zero. That of a token is marked as in progress (bit 15).
    if token == 0 || token & !TOKEN != 0 || status(16) & 0x8000 == 0 {
        return None;
    }
    Some(Notifier {
        address,
        token,
        // 0xffff means an error, whose code is in info32.
        error: (status(0) == 0xffff).then(|| info(0)),
        notification: Notification {
            time: u64::from(u32_at(b, 0).unwrap_or(0)) | u64::from(u32_at(b, 4).unwrap_or(0)) << 32,
            info32: info(0),
            info16: last(0) as u16,
            status: status(0) as u16,
        },
    })
}

/// Pairs notifiers with channels. `slots` has the channels' numbers in the order in which they were made, each with whether it feeds the
/// graphics engine (`None` if not known). Nothing is paired if the assumed order cannot be right.
#[must_use]
pub fn pair(notifiers: &[Notifier], slots: &[(usize, Option<bool>)]) -> Vec<Option<Notifier>> {
    let paired: Vec<Option<Notifier>> = slots
        .iter()
        .map(|(slot, _)| notifiers.get(*slot).copied())
        .collect();
    // In CUDA, the channels on runlist 0 are exactly those of the graphics engine.
    let fits = |(n, slot): (&Option<Notifier>, &(usize, Option<bool>))| match (n, slot.1) {
        (Some(n), Some(graphics)) => (n.token >> 16 == 0) == graphics,
        (Some(_), None) => true,
        (None, _) => false,
    };
    let all = paired.iter().zip(slots).all(fits);
    let mut tokens: Vec<u32> = notifiers.iter().map(|n| n.token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    if all && tokens.len() == notifiers.len() {
        paired
    } else {
        vec![None; slots.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notifier(n: u64, token: u32) -> Notifier {
        Notifier {
            address: 0x7000_0000 + n * PAGE,
            token,
            error: None,
            notification: Notification::default(),
        }
    }

    #[test]
    fn a_page() {
        let mut b = [0; 32];
        assert_eq!(parse(1, &b), None);
        b[24..28].copy_from_slice(&0x1_0012_u32.to_le_bytes());
        assert_eq!(parse(1, &b), None, "not marked");
        b[31] = 0x80;
        assert_eq!(
            parse(1, &b).map(|n| (n.token, n.error)),
            Some((0x1_0012, None))
        );
        b[8] = 31;
        b[14..16].fill(0xff);
        assert_eq!(parse(1, &b).and_then(|n| n.error), Some(31));
        b[27] = 1;
        assert_eq!(parse(1, &b), None, "no token has those bits");
    }

    #[test]
    fn the_order_is_believed_until_something_contradicts() {
        let all = [notifier(0, 0xa), notifier(1, 0xb), notifier(2, 0x1_0012)];
        let tokens = |slots: &[(usize, Option<bool>)]| -> Vec<Option<u32>> {
            pair(&all, slots)
                .iter()
                .map(|n| n.map(|n| n.token))
                .collect()
        };
        assert_eq!(
            tokens(&[(0, Some(true)), (2, Some(false))]),
            [Some(0xa), Some(0x1_0012)]
        );
        assert_eq!(tokens(&[(0, Some(true)), (1, Some(false))]), [None, None]);
        assert_eq!(tokens(&[(0, None), (5, None)]), [None, None]);
        let twice = [notifier(0, 0xa), notifier(1, 0xa)];
        assert_eq!(
            pair(&twice, &[(0, None)]),
            [None],
            "two GPUs have the same tokens"
        );
    }
}
