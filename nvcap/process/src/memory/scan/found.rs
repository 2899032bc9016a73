//! Result of a search: rings, each with the proven and the assumed facts about it.

use nvcap_decode::record::{At, Channel, ChannelId, CpuVa, Origin};

/// Offset of GP_GET in USERD. GP_PUT follows it.
pub const GP_GET: u64 = 0x88;

/// A ring that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRing {
    /// GPU by device file minor number, if known.
    pub gpu: Option<u32>,
    /// Address of the ring.
    pub ring: u64,
    /// Number of entries.
    pub entries: u32,
    /// Address of USERD.
    pub userd: u64,
    /// GP_GET when the ring was found.
    pub get: u32,
    /// GP_PUT when the ring was found.
    pub put: u32,
    /// True if the ring was used: its last entry was checked.
    pub used: bool,
    /// Evidence for the ring.
    pub proof: Proof,
}

impl FoundRing {
    /// Returns the ring as a channel, with its known facts.
    #[must_use]
    pub fn channel(&self, at: At, id: ChannelId) -> Channel {
        Channel {
            gpu: self.gpu,
            ring: Some(CpuVa(self.ring)),
            entries: Some(self.entries),
            userd: Some(CpuVa(self.userd)),
            ..Channel::bare(at, id, Origin::Found)
        }
    }
}

/// Evidence for a ring's place relative to its USERD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// libcuda's usual place.
    #[default]
    Habit,
    /// The same place as for another channel of the process.
    Alike,
    /// A search.
    Sought,
    /// The user, who named it.
    Given,
}

/// Evidence for a ring's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// The size that libcuda usually uses, which fits: USERD lies right behind the ring.
    #[default]
    Habit,
    /// Proven size: the ring has wrapped, and its last entry is followed by its first.
    Wrapped,
    /// Assumed size: all the room there is, a power of two.
    Room,
}

/// State of the memory to which the entries point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// No memory: the ring was never used.
    #[default]
    Unused,
    /// Memory that is mapped and readable, and parses as methods.
    Parses,
    /// Memory that is mapped, but does not parse: it was overwritten since, is no pushbuffer, or is not read because another program
    /// serves it.
    Readable,
    /// Addresses that are not the process's. It is only known that the entries follow one another like those of a pushbuffer.
    Elsewhere,
}

/// Evidence for a found channel: the proven and the assumed facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
pub struct Proof {
    /// Evidence for the ring's place.
    pub place: Place,
    /// Evidence for the ring's size.
    pub size: Size,
    /// State of the memory to which the entries point.
    pub target: Target,
    /// True if GP_GET or GP_PUT was seen moving.
    pub moved: bool,
}

/// Amount of memory that is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Effort {
    /// Only libcuda's usual places.
    Habit,
    /// Also every page of mappings of up to 8 MiB.
    #[default]
    Usual,
    /// Also every 512 bytes of those mappings, and the pages of mappings of up to 256 MiB.
    Thorough,
}

/// Result of a search.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Rings, by address of USERD.
    pub found: Vec<FoundRing>,
    /// Notes, in words, on omissions and on parts that could not be resolved.
    pub notes: Vec<String>,
}
