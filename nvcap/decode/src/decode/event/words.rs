//! Closed sets of words in operations.

use crate::record::named;

named! {
    /// Layout of the bytes of a copy engine's transfer, or the change that the engine makes to them. docs/decoding.md has the rules.
    pub enum CopyMode {
        /// Nothing is transferred.
        None = "none",
        /// Memory is scrubbed.
        Scrub = "scrub",
        /// In place, from compressed memory.
        Decompress = "decompress",
        /// In place, to compressed memory.
        Compress = "compress",
        /// To ciphertext.
        Encrypt = "encrypt",
        /// From ciphertext.
        Decrypt = "decrypt",
        /// A constant, to linear memory.
        Fill = "fill",
        /// A constant, to block-linear memory.
        FillBlockLinear = "fill_block_linear",
        /// Both sides are block-linear.
        BlockLinear = "block_linear",
        /// From block-linear memory to lines.
        BlockLinearToPitch = "block_linear_to_pitch",
        /// From lines to block-linear memory.
        PitchToBlockLinear = "pitch_to_block_linear",
        /// Components of elements are rearranged.
        Remap = "remap",
        /// Several lines.
        Pitch = "pitch",
        /// One run of bytes.
        Linear = "linear",
    }
}

named! {
    /// Operation of a semaphore reduction on the value in memory and the payload. The names are those of the unit's own header. If the
    /// header has both kinds, `i` stands for integers and `f` for floating point.
    pub enum Reduction {
        /// Sum.
        Add = "add",
        /// Minimum.
        Min = "min",
        /// Maximum.
        Max = "max",
        /// Increment, up to the payload.
        Inc = "inc",
        /// Decrement, from the payload.
        Dec = "dec",
        /// Bitwise and.
        And = "and",
        /// Bitwise or.
        Or = "or",
        /// Bitwise exclusive or.
        Xor = "xor",
        /// Minimum of integers.
        IMin = "imin",
        /// Maximum of integers.
        IMax = "imax",
        /// Bitwise exclusive or of integers.
        IXor = "ixor",
        /// Bitwise and of integers.
        IAnd = "iand",
        /// Bitwise or of integers.
        IOr = "ior",
        /// Sum of integers.
        IAdd = "iadd",
        /// Sum of floating-point numbers.
        FAdd = "fadd",
        /// Minimum of floating-point numbers.
        FMin = "fmin",
        /// Maximum of floating-point numbers.
        FMax = "fmax",
        /// A value that the header does not name.
        Invalid = "invalid",
    }
}

/// Engine that runs a copy: in text and JSON `grce`, or `ce` with its number if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyEngine {
    /// Copy engine that a graphics channel drives.
    Graphics,
    /// Copy engine, by its number if known.
    Copy(Option<u32>),
}

impl std::fmt::Display for CopyEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Graphics => f.write_str("grce"),
            Self::Copy(None) => f.write_str("ce"),
            Self::Copy(Some(n)) => write!(f, "ce{n}"),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for CopyEngine {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
