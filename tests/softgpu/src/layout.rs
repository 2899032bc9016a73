//! The memory layout: the same addresses in every run, so that a channels file can be written before the run.
//!
//! The layout is that of a CUDA 13.0 process on an H200: 20 channels per GPU, all rings in one 2 MiB mapping in slots of
//! 0x3000 with USERD at +0x2000, pushbuffers in another mapping, two doorbell pages of 64 KiB. Tokens are unique on a GPU
//! only, so both GPUs have the same ones.

use std::fmt::Write as _;

/// Channels of one GPU.
pub const CHANNELS: usize = 20;
/// GPUs at most.
pub const GPUS: usize = 8;
/// GPUs where nothing else is said.
pub const USUAL_GPUS: usize = 2;
/// Entries of a ring.
pub const ENTRIES: u32 = 1024;
/// Bytes from one ring to the next.
pub const SLOT: u64 = 0x3000;
/// USERD's offset in a slot.
pub const USERD: u64 = 0x2000;
/// GP_GET's offset in USERD; GP_PUT is the next word.
pub const GP_GET: u64 = 0x88;
/// Bytes of the mapping that holds a GPU's rings.
pub const RINGS_LEN: u64 = 2 << 20;
/// Bytes of a doorbell page.
pub const DOORBELL_PAGE: u64 = 0x10000;
/// The doorbell word's offset in its page.
pub const DOORBELL: u64 = 0x90;
/// Pushbuffer bytes of one channel.
pub const PUSHBUFFER: u64 = 4 << 20;
/// Bytes of the mapping that holds a GPU's pushbuffers.
pub const PUSHBUFFERS_LEN: u64 = PUSHBUFFER * CHANNELS as u64;
/// Bytes of the mapping with locks and counters.
pub const CONTROL_LEN: u64 = 0x40000;

/// Host class of every channel.
pub const HOST_CLASS: u32 = 0xc86f;

const GPU_STRIDE: u64 = 0x4000_0000;

/// First address of a GPU's rings.
pub const fn rings(gpu: usize) -> u64 {
    0x2_0060_0000 + gpu as u64 * GPU_STRIDE
}

/// First address of a GPU's pushbuffers: apart from the QMDs and semaphores that the submissions use.
pub const fn pushbuffers(gpu: usize) -> u64 {
    0x2_1200_0000 + gpu as u64 * GPU_STRIDE
}

/// First address of a GPU's doorbell page: page 0 is mapped and, as on Hopper, not rung; page 1 is rung.
pub const fn doorbell_page(gpu: usize, page: usize) -> u64 {
    0x2_1000_0000 + gpu as u64 * GPU_STRIDE + page as u64 * DOORBELL_PAGE
}

/// Address of the locks and counters that the processes of a run share. A GPU process would not have them.
pub const CONTROL: u64 = 0x2_1100_0000;

/// Address of the mappings of [`crate::memory::Memory::leave_remains`]: apart from everything of both GPUs.
pub const REMAINS: u64 = 0x2_a000_0000;

/// Bytes of a page.
pub const PAGE: u64 = 0x1000;
/// First address of the semaphores that events release and waits acquire.
pub const EVENTS: u64 = 0x2_0480_f000;
/// Size of their memory.
pub const EVENTS_LEN: u64 = PAGE;

/// First address of the words that the launches of a GPU's channels release at their ends: a page, with
/// [`crate::stream::RELEASES`] words of 8 bytes for each channel.
pub const fn releases(gpu: usize) -> u64 {
    0x2_0463_7000 + ((gpu as u64) << 32)
}

/// Address of a channel's error notifier: a page each, in the order of the channels.
pub const fn notifier(channel: Channel) -> u64 {
    0x7fba_165d_e000 + PAGE * (channel.gpu * CHANNELS + channel.index) as u64
}

/// The purpose of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Compute, on the graphics runlist.
    Compute,
    /// A copy engine.
    Copy,
}

/// One channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// Index of the GPU.
    pub gpu: usize,
    /// Index of the channel among those of its GPU.
    pub index: usize,
}

impl Channel {
    /// The first `count` channels of every GPU in turn: channel 0 of each, channel 8 (the first copy channel) of each and
    /// so on, so that a few channels are already of several kinds.
    pub fn first(count: usize, gpus: usize) -> Vec<Channel> {
        const ORDER: [usize; CHANNELS] = [
            0, 8, 12, 1, 2, 9, 16, 3, 4, 13, 5, 10, 6, 7, 11, 14, 15, 17, 18, 19,
        ];
        let mut channels = Vec::new();
        for index in ORDER {
            for gpu in 0..gpus {
                channels.push(Channel { gpu, index });
            }
        }
        channels.truncate(count);
        channels
    }

    /// The work-submit token: channel id in 11:0, runlist in 22:16.
    pub fn token(self) -> u32 {
        let chid = 0xa + self.index as u32;
        self.runlist() << 16 | chid
    }

    /// The runlist.
    pub fn runlist(self) -> u32 {
        match self.index {
            0..8 => 0,
            8..12 => 1,
            12..16 => 3,
            _ => 10,
        }
    }

    /// NV2080_ENGINE_TYPE: GR0, or COPYn with n the runlist's own number.
    pub fn engine(self) -> u32 {
        match self.runlist() {
            0 => 0x01,
            1 => 0x09 + 1,
            3 => 0x09 + 3,
            _ => 0x34,
        }
    }

    /// Its purpose.
    pub fn unit(self) -> Unit {
        if self.runlist() == 0 {
            Unit::Compute
        } else {
            Unit::Copy
        }
    }

    /// First address of its ring.
    pub fn ring(self) -> u64 {
        rings(self.gpu) + self.index as u64 * SLOT
    }

    /// Address of its USERD.
    pub fn userd(self) -> u64 {
        self.ring() + USERD
    }

    /// First address of its pushbuffer memory.
    pub fn pushbuffer(self) -> u64 {
        pushbuffers(self.gpu) + self.index as u64 * PUSHBUFFER
    }

    /// A number that is unique in the run.
    pub fn number(self) -> usize {
        self.gpu * CHANNELS + self.index
    }
}

/// The channels file of `gpus` GPUs, for `nvcap --channels`. Its grammar is in docs/channels-file.md.
pub fn channels_file(gpus: usize) -> String {
    let mut text = String::from("# The software GPU's doorbells and channels.\n");
    for gpu in 0..gpus {
        for page in 0..2 {
            let _ = writeln!(
                text,
                "doorbell addr={:#x} gpu={gpu}",
                doorbell_page(gpu, page) + DOORBELL
            );
        }
        for index in 0..CHANNELS {
            let c = Channel { gpu, index };
            let _ = writeln!(
                text,
                "channel gpu={gpu} token={:#x} class={HOST_CLASS:#x} engine={:#x} ring={:#x} entries={ENTRIES} userd={:#x}",
                c.token(),
                c.engine(),
                c.ring(),
                c.userd()
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_of_an_h200() {
        let tokens: Vec<u32> = (0..CHANNELS)
            .map(|index| Channel { gpu: 1, index }.token())
            .collect();
        let expected: Vec<u32> = (0xa..=0x11)
            .chain(0x10012..=0x10015)
            .chain(0x30016..=0x30019)
            .chain(0xa001a..=0xa001d)
            .collect();
        assert_eq!(tokens, expected);
    }

    #[test]
    fn nothing_overlaps() {
        let mut ranges = vec![(CONTROL, CONTROL_LEN)];
        for gpu in 0..GPUS {
            ranges.push((rings(gpu), RINGS_LEN));
            ranges.push((pushbuffers(gpu), PUSHBUFFERS_LEN));
            ranges.extend((0..2).map(|page| (doorbell_page(gpu, page), DOORBELL_PAGE)));
        }
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?}");
        }
        assert!(SLOT * CHANNELS as u64 <= RINGS_LEN);
        assert!(u64::from(ENTRIES) * 8 <= USERD);
    }

    #[test]
    fn the_first_channels_are_of_all_kinds_and_all_different() {
        let mut all = Channel::first(GPUS * CHANNELS, USUAL_GPUS);
        assert_eq!(all[0].token(), 0xa);
        assert_eq!(all[2].token(), 0x10012);
        all.sort_unstable_by_key(|c| c.number());
        all.dedup();
        assert_eq!(all.len(), USUAL_GPUS * CHANNELS);
    }

    #[test]
    fn the_channels_file_says_it_all() {
        let text = channels_file(2);
        assert_eq!(
            text.lines().filter(|l| l.starts_with("doorbell ")).count(),
            4
        );
        assert_eq!(
            text.lines().filter(|l| l.starts_with("channel ")).count(),
            40
        );
        assert!(text.contains(
            "channel gpu=0 token=0xa class=0xc86f engine=0x1 ring=0x200600000 entries=1024 userd=0x200602000\n"
        ));
        assert!(text.contains("doorbell addr=0x210010090 gpu=0\n"));
    }
}
