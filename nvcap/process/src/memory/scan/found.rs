//! Result of a search: rings, each with what was proven of it and what assumed.

use nvcap_decode::record::{At, Channel, ChannelId, CpuVa, Origin};

/// GP_GET in USERD; GP_PUT follows.
pub const GP_GET: u64 = 0x88;

/// A ring that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRing {
    /// GPU by device file minor number, where that is known.
    pub gpu: Option<u32>,
    /// Address of the ring.
    pub ring: u64,
    /// Entries.
    pub entries: u32,
    /// Address of USERD.
    pub userd: u64,
    /// GP_GET when found.
    pub get: u32,
    /// GP_PUT when found.
    pub put: u32,
    /// It has been used: its last entry was checked.
    pub used: bool,
    /// Evidence for the ring.
    pub proof: Proof,
}

impl FoundRing {
    /// Returns it as a channel: what is known of it.
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
    /// Place as with another channel of the process.
    Alike,
    /// Searched for.
    Sought,
    /// The user named it.
    Given,
}

/// Evidence for a ring's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// libcuda's habit, and what it says fits: USERD lies right behind the ring.
    #[default]
    Habit,
    /// Proven: the ring has gone round, and its last entry is followed by its first.
    Wrapped,
    /// Assumed: all the room there is, a power of two.
    Room,
}

/// State of the memory that the entries point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Nothing: the ring was never used.
    #[default]
    Unused,
    /// Mapped, readable, and what lies there parses as methods.
    Parses,
    /// Mapped and readable; what lies there does not parse (overwritten since, or no pushbuffer).
    Readable,
    /// The addresses are not the process's: entries follow one another as those of a pushbuffer, no more.
    Elsewhere,
}

/// Evidence for a found channel: what was proven and what was assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
pub struct Proof {
    /// The ring's place.
    pub place: Place,
    /// The ring's size.
    pub size: Size,
    /// Memory that entries point to.
    pub target: Target,
    /// GP_GET or GP_PUT was seen moving.
    pub moved: bool,
}

/// Amount of memory that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Effort {
    /// libcuda's habit alone.
    Habit,
    /// And every page of mappings of up to 8 MiB.
    #[default]
    Usual,
    /// And every 512 bytes of them, and the pages of mappings of up to 256 MiB.
    Thorough,
}

/// Result of a search.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The rings, by address of USERD.
    pub found: Vec<FoundRing>,
    /// Notes of what was left out or could not be resolved, in words.
    pub notes: Vec<String>,
}
