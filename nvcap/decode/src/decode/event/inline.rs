//! Inline writes.

use super::{Direction, Memory};
use crate::wire::GpuVa;

/// The content of inline data, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum InlineContent {
    /// The program's data (a small copy or set).
    Data,
    /// Machine code.
    Code,
    /// A constant bank (launch geometry, arguments).
    ConstantBank,
    /// A QMD.
    Qmd,
    /// A part of a QMD that was written earlier.
    QmdPart,
    /// The value of a word that a kernel will release.
    Semaphore,
    /// Descriptions of textures and surfaces, 32 bytes each, in the pool that the launches use.
    TextureHeader,
}

/// Way in which an inline write's data reaches the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum InlineData {
    /// In the pushbuffer itself.
    Stream,
    /// By a macro of the driver that repeats a word.
    Fill,
    /// By a macro of the driver that fetches the data from memory, so that it is not in the pushbuffer.
    Fetched,
    /// By an unknown macro that makes the data, so that it is not in the pushbuffer.
    Macro,
}

impl InlineData {
    /// Returns words that follow a write's own and say that the data is not in the pushbuffer.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Fetched => ", fetched",
            Self::Macro => ", by an unknown macro",
            Self::Stream | Self::Fill => "",
        }
    }

    /// Tells whether the data is in the pushbuffer, as it usually is.
    #[must_use]
    pub fn is_in_stream(&self) -> bool {
        *self == Self::Stream
    }
}

/// Data carried in the pushbuffer.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Inline {
    /// Destination address.
    pub dst: GpuVa,
    /// Length of a line, bytes.
    pub bytes: u64,
    /// Number of lines.
    pub line_bytes: u32,
    /// Lines.
    pub lines: u32,
    /// Content, if known at the time of the write.
    pub content: Option<InlineContent>,
    /// Way in which the data reaches the engine.
    #[cfg_attr(
        feature = "serde",
        serde(skip_serializing_if = "InlineData::is_in_stream")
    )]
    pub data: InlineData,
    /// Repeated word, if a macro of the driver makes the data: a memset.
    pub fill: Option<u32>,
    /// Source address of data that a macro of the driver fetches from memory.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub src: Option<GpuVa>,
    /// Direction: host to device, unless the places of both addresses say otherwise.
    pub direction: Direction,
    /// First bytes of the data, at most 64.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::hex"))]
    pub head: Vec<u8>,
    /// Memory at the source, if known.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub src_memory: Option<Memory>,
    /// Memory at the destination, if known.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub dst_memory: Option<Memory>,
}
