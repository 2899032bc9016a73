//! The semaphore release that ends a submission, recognised in the last words of a segment.

use super::{
    GpuVa,
    header::{self, Header, Step},
    method::{COPY_LAUNCH_DMA, COPY_SET_SEMAPHORE_A, SET_REPORT_SEMAPHORE_A},
    words::u32s,
};

/// The semaphore release with which a segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Address of the semaphore.
    pub address: GpuVa,
    /// Value that is written.
    pub payload: u32,
    /// True if the GPU's time is written with it: a semaphore of four words.
    pub stamped: bool,
    /// True if the copy engine writes it, after the copies before it.
    pub by_copy: bool,
}

/// STRUCTURE_SIZE of SET_REPORT_SEMAPHORE_D: one word instead of four.
const REPORT_ONE_WORD: u32 = 1 << 28;
/// SEMAPHORE_TYPE of LAUNCH_DMA, and its value for four words.
const COPY_SEMAPHORE: u32 = 3 << 3;
const COPY_FOUR_WORDS: u32 = 2 << 3;

/// Bits of SEM_EXECUTE.
const OPERATION: u32 = 7;
const RELEASE: u32 = 1;
const RELEASE_WFI: u32 = 1 << 20;
const RELEASE_TIMESTAMP: u32 = 1 << 25;
/// OPERATION of SET_REPORT_SEMAPHORE_D, which is 0 for a release.
const REPORT_OPERATION: u32 = 3;

/// A release by the channel itself, as SEM_EXECUTE has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostRelease {
    /// True if the GPU's time is written with it.
    pub stamped: bool,
    /// True if the release is written when the work before it has ended; false if as soon as the commands before it have passed the front
    /// end.
    pub waits: bool,
}

impl HostRelease {
    /// Reads the data of SEM_EXECUTE; `None` if it is no release.
    pub(crate) fn of(execute: u32) -> Option<Self> {
        (execute & OPERATION == RELEASE).then_some(Self {
            stamped: execute & RELEASE_TIMESTAMP != 0,
            waits: execute & RELEASE_WFI != 0,
        })
    }
}

/// Tells whether SET_REPORT_SEMAPHORE_D with this data releases a semaphore of four words.
pub(crate) fn is_stamping_report(data: u32) -> bool {
    data & (REPORT_OPERATION | REPORT_ONE_WORD) == 0
}

/// Tells whether LAUNCH_DMA with this data releases a semaphore of four words.
pub(crate) fn is_stamping_copy(data: u32) -> bool {
    data & COPY_SEMAPHORE == COPY_FOUR_WORDS
}

/// Reads the release at a segment's end in CUDA's form: SET_REPORT_SEMAPHORE_A..D of a compute channel, or SET_SEMAPHORE_A..PAYLOAD and
/// LAUNCH_DMA of a copy channel. Other releases (the host's SEM_EXECUTE) are not recognised.
pub fn at_end(bytes: &[u8]) -> Option<Release> {
    // The last six words, the newest first.
    let mut last = [0; 6];
    let words = u32s(bytes).rev().zip(&mut last);
    let have = words.map(|(word, slot)| *slot = word).count();
    let begins = |from_end: usize, count: u16, address: u16| {
        let word = last.get(from_end - 1).filter(|_| from_end <= have);
        word.is_some_and(|word| increments(*word, count, address))
    };
    let release = |first: usize, stamped: bool, by_copy: bool| Release {
        address: GpuVa(u64::from(last[first - 1]) << 32 | u64::from(last[first - 2])),
        payload: last[first - 3],
        stamped,
        by_copy,
    };
    if begins(5, 4, SET_REPORT_SEMAPHORE_A) {
        return Some(release(4, last[0] & REPORT_ONE_WORD == 0, false));
    }
    if begins(2, 1, COPY_LAUNCH_DMA) && begins(6, 3, COPY_SET_SEMAPHORE_A) {
        let stamped = last[0] & COPY_SEMAPHORE == COPY_FOUR_WORDS;
        return Some(release(5, stamped, true));
    }
    None
}

/// Tells whether a word is a header for `count` consecutive methods from `address` on, on any subchannel. CUDA does not use the old form of
/// such a header.
fn increments(word: u32, count: u16, address: u16) -> bool {
    header::is_for(word, Step::Increment, address)
        && matches!(Header::read(word), Header::Method { count: c, .. } if c == count)
}

#[cfg(test)]
mod tests {
    use super::super::words::bytes_of;
    use super::*;

    #[test]
    fn releases_at_a_segment_s_end() {
        let release = |stamped, by_copy| {
            Some(Release {
                address: GpuVa(0x2_0460_fff0),
                payload: 9,
                stamped,
                by_copy,
            })
        };
        let compute = bytes_of(&[7, 0x2004_26c0, 2, 0x0460_fff0, 9, 0]);
        assert_eq!(at_end(&compute), release(true, false));
        let one_word = bytes_of(&[7, 0x2004_26c0, 2, 0x0460_fff0, 9, 0x1000_0000]);
        assert_eq!(at_end(&one_word), release(false, false));
        let copy = bytes_of(&[0x2003_8090, 2, 0x0460_fff0, 9, 0x2001_80c0, 0x14]);
        assert_eq!(at_end(&copy), release(true, true));
        let one_word = bytes_of(&[0x2003_8090, 2, 0x0460_fff0, 9, 0x2001_80c0, 0xc]);
        assert_eq!(at_end(&one_word), release(false, true));
        for cut in 0..compute.len() - 1 {
            assert_eq!(at_end(&compute[..cut]), None, "{cut}");
        }
        assert_eq!(at_end(&bytes_of(&[0; 12])), None);
        assert_eq!(at_end(&[]), None);
    }
}
