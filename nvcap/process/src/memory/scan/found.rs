//! Result of a search: rings, each with what was proven of it and what was assumed.

use nvcap_decode::record::{At, Channel, ChannelId, CpuVa, Origin};

/// Offset of GP_GET in USERD. GP_PUT follows it.
pub const GP_GET: u64 = 0x88;

/// A ring that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRing {
    /// GPU by device file minor number, where it is known.
    pub gpu: Option<u32>,
    /// Address of the ring.
    pub ring: u64,
    /// Entries.
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
    /// Returns the ring as a channel, with the facts that are known of it.
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
    /// libcuda's habit.
    #[default]
    Habit,
    /// The same place as with another channel of the process.
    Alike,
    /// Found by a search.
    Sought,
    /// Named by the user.
    Given,
}

/// Evidence for a ring's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// Size of libcuda's habit, which fits: USERD lies right behind the ring.
    #[default]
    Habit,
    /// Proven size: the ring has gone round, and its last entry is followed by its first.
    Wrapped,
    /// Assumed size: all the room there is, a power of two.
    Room,
}

/// State of the memory that the entries point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// No memory: the ring was never used.
    #[default]
    Unused,
    /// Memory that is mapped and readable, and parses as methods.
    Parses,
    /// Memory that is mapped and readable, but does not parse: it was overwritten since, or is no
    /// pushbuffer.
    Readable,
    /// Addresses that are not the process's. It is known only that entries follow one another as those of
    /// a pushbuffer.
    Elsewhere,
}

/// Evidence for a found channel: what was proven and what was assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
pub struct Proof {
    /// The ring's place.
    pub place: Place,
    /// The ring's size.
    pub size: Size,
    /// State of the memory that the entries point to.
    pub target: Target,
    /// True if GP_GET or GP_PUT was seen moving.
    pub moved: bool,
}

/// Amount of memory that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Effort {
    /// libcuda's habit alone.
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
    /// The rings, by address of USERD.
    pub found: Vec<FoundRing>,
    /// Notes of omissions and of what could not be resolved, in words.
    pub notes: Vec<String>,
}
