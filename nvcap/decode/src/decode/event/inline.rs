//! Inline writes.

use super::{Direction, Memory};
use crate::wire::GpuVa;

/// The content of inline data, where known.
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
    /// A part of a QMD that was written before.
    QmdPart,
    /// The value of a word that a kernel will release.
    Semaphore,
    /// Descriptions of textures and surfaces, 32 bytes each, in the pool that the launches use.
    TextureHeader,
}

/// Way of an inline write's data to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum InlineData {
    /// In the pushbuffer.
    Stream,
    /// A macro of the driver repeats a word.
    Fill,
    /// A macro of the driver fetches it from memory: it is not in the pushbuffer.
    Fetched,
    /// An unknown macro makes it: it is not in the pushbuffer.
    Macro,
}

impl InlineData {
    /// Words behind a write's own that tell of data which is not in the pushbuffer.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Fetched => ", fetched",
            Self::Macro => ", by an unknown macro",
            Self::Stream | Self::Fill => "",
        }
    }

    /// True where the data is in the pushbuffer, as it mostly is.
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
    /// Bytes written.
    pub bytes: u64,
    /// Bytes of a line and lines.
    pub line_bytes: u32,
    /// Lines.
    pub lines: u32,
    /// Its content, if known at the time of the write.
    pub content: Option<InlineContent>,
    /// Way that the data comes to the engine.
    #[cfg_attr(
        feature = "serde",
        serde(skip_serializing_if = "InlineData::is_in_stream")
    )]
    pub data: InlineData,
    /// The word that is repeated, if a macro of the driver makes the data: a memset.
    pub fill: Option<u32>,
    /// Source address of data that a macro of the driver fetches from memory.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub src: Option<GpuVa>,
    /// Host to device, unless the places of both addresses say otherwise.
    pub direction: Direction,
    /// The first bytes (at most 64).
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::hex"))]
    pub head: Vec<u8>,
    /// The memory at the source, where known.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub src_memory: Option<Memory>,
    /// The memory at the destination, where known.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub dst_memory: Option<Memory>,
}
