//! Decoder for bare pushbuffer bytes, without a capture around them.

use super::{
    classes::{Family, family},
    decoder::{DecodeOptions, Decoder},
    event::{Body, MethodWrite, Operation, Stop},
    wants::Wants,
};
use crate::record::{At, Channel, ChannelId, How, Origin, Segment, Submission};
use crate::wire::{
    GpuVa,
    entry::{self, MAX_LEN},
    stream::StopReason,
};

/// An item that [`pushbuffer`] finds in the bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// A method write.
    Method(MethodWrite),
    /// The operation that the preceding method writes make up.
    Operation(Operation),
    /// The place from which on the bytes could not be read.
    Stop(Stop),
}

/// Decodes a pushbuffer into its method writes, in order, each followed by the operation that it triggers.
///
/// `class` determines how the methods of a subchannel are read until a `SET_OBJECT` in the bytes binds another class to it:
///
/// - An engine's class, such as `0xc8b5` (`HOPPER_DMA_COPY_A`): every subchannel is bound to it.
/// - A channel's class, such as `0xc86f` (`HOPPER_CHANNEL_GPFIFO_A`): every subchannel is bound to the class that the driver usually binds
///   to it, on a chip with channels of that class ([`Chip::subchannel`](super::defaults::Chip::subchannel)).
/// - 0: the chip is inferred from the bytes themselves, where possible.
///
/// A class that the tables do not have is no error: its method writes are given with their addresses and data, without operations. Any
/// bytes are accepted. If they are no methods, a [`Decoded::Stop`] gives the offset and the reason. If they end within a method's data, the
/// writes that are present are given, because in a ring the rest may be in the next entry.
///
/// Bytes beyond the reach of one ring entry ([`MAX_LEN`], 8 MiB less one word) are read as several consecutive entries;
/// [`MethodWrite::entry`] says to which of them an offset belongs.
///
/// For more than bare bytes (several channels, memory that earlier submissions wrote, graphs), use the [`Decoder`].
///
/// ```
/// use nvcap_decode::decode::{Decoded, event::Operation, pushbuffer};
///
/// // A copy of 256 bytes: OFFSET_IN and OFFSET_OUT, LINE_LENGTH_IN, LAUNCH_DMA, all on subchannel 4.
/// let words: [u32; 9] = [
///     0x2004_8100, 0x7f4f, 0x2800_0000, 0x7f4f, 0x2400_0000,
///     0x2001_8106, 256,
///     0x2001_80c0, 0x182,
/// ];
/// let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
///
/// let mut names = Vec::new();
/// let mut copied = Vec::new();
/// for found in pushbuffer(&bytes, 0xc8b5) {
///     match found {
///         Decoded::Method(write) => names.push(write.id().to_string()),
///         Decoded::Operation(Operation::Copy(copy)) => copied.push((copy.src, copy.dst, copy.bytes)),
///         other => panic!("{other:?}"),
///     }
/// }
/// assert_eq!(
///     names,
///     ["OFFSET_IN_UPPER", "OFFSET_IN_LOWER", "OFFSET_OUT_UPPER", "OFFSET_OUT_LOWER", "LINE_LENGTH_IN", "LAUNCH_DMA"]
/// );
/// let at = |address| Some(nvcap_decode::wire::GpuVa(address));
/// assert_eq!(copied, [(at(0x7f4f_2800_0000), at(0x7f4f_2400_0000), 256)]);
/// ```
#[must_use]
pub fn pushbuffer(bytes: &[u8], class: u32) -> Vec<Decoded> {
    const CHANNEL: ChannelId = ChannelId(0);
    let mut decoder = Decoder::new(DecodeOptions {
        wants: Wants {
            entries: false,
            ..Wants::default()
        },
        ..DecodeOptions::default()
    });
    match (class, family(class)) {
        (0, _) => {}
        (_, Family::Host) => decoder.channel(&channel(CHANNEL, class)),
        _ => (0..8).for_each(|subchannel| decoder.bind(CHANNEL, subchannel, class)),
    }
    let submission = Submission {
        absent_ns: None,
        at: At::default(),
        channel: CHANNEL,
        token: None,
        position: 0,
        gp_get: None,
        prev_put: 0,
        gp_put: 0,
        ip: None,
        doorbell: None,
        how: How::Recorded,
        late: false,
        thread: None,
        segments: bytes.chunks(MAX_LEN as usize).map(segment).collect(),
    };
    let context = decoder.context(&submission, 0);
    let mut found = Vec::new();
    let mut take = |event: &super::event::Event<'_>| match event.body {
        Body::Method(write) => found.push(Decoded::Method(write)),
        Body::Operation(operation) => found.push(Decoded::Operation(operation.clone())),
        Body::Stop(stop) => found.push(Decoded::Stop(in_words(stop))),
        Body::Submission(_) | Body::Entry(_) | Body::Chip(_) => {}
    };
    decoder.submission(&submission, &context, &(), &mut take);
    decoder.end(None, &mut take);
    found
}

/// Returns a channel of which only the class is known.
fn channel(id: ChannelId, class: u32) -> Channel {
    Channel {
        class: Some(class),
        ..Channel::bare(At::default(), id, Origin::Given)
    }
}

/// Returns the bytes with a ring entry that points to them.
fn segment(bytes: &[u8]) -> Segment {
    // A chunk is no longer than the length that an entry can hold.
    let len = (bytes.len() as u32).next_multiple_of(4);
    Segment {
        entry: entry::segment(GpuVa(0), len, false, false, false),
        bytes: bytes.to_vec(),
        holes: Vec::new(),
    }
}

/// Corrects a stop at the end of the bytes. An entry counts words, so a last word that is incomplete is reported as cut, not as short.
fn in_words(stop: Stop) -> Stop {
    let why = match stop.why {
        StopReason::Short { needs } => StopReason::Cut { needs },
        why => why,
    };
    Stop { why, ..stop }
}
