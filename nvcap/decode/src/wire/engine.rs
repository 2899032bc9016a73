//! Engine that a channel feeds, inferred from its methods if the driver's calls did not show it.
//!
//! The classes that a channel binds are the best evidence. A channel that binds a compute or 3D class feeds the graphics engine; one that
//! binds a copy class and neither of those feeds a copy engine. If a channel binds nothing, because its beginning was not seen, the fixed
//! subchannels are the evidence: 0 to 3 exist only on a graphics runlist, and elsewhere libcuda uses 4 for copy engines. A channel that
//! writes SET_APPLICATION_ID on subchannel 4 feeds a video engine.

use super::{
    method::{FIRST_OF_ENGINE, SET_APPLICATION_ID, SET_OBJECT, class_of},
    stream::Run,
};

/// Runlist of graphics and compute channels.
pub(crate) const GRAPHICS_RUNLIST: u32 = 0;
/// Subchannel to which libcuda binds a copy class.
const COPY_SUBCHANNEL: u8 = 4;

/// Kind of engine that a channel feeds, as far as methods show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feeds {
    /// The graphics engine: graphics and compute.
    Graphics,
    /// A copy engine; methods do not show which.
    Copy,
}

impl Feeds {
    /// Returns the engine by the number of a class: NVIDIA gives 3D classes numbers that end with 97, compute classes c0, copy classes b5.
    pub fn of_class(class: u32) -> Option<Self> {
        if !(0x9000..=0xffff).contains(&class) {
            return None;
        }
        match class & 0xff {
            0x97 | 0xc0 => Some(Self::Graphics),
            0xb5 => Some(Self::Copy),
            _ => None,
        }
    }

    /// Returns the engine by the subchannel of an engine's method.
    pub fn of_subchannel(subchannel: u8) -> Option<Self> {
        match subchannel {
            0..COPY_SUBCHANNEL => Some(Self::Graphics),
            COPY_SUBCHANNEL => Some(Self::Copy),
            _ => None,
        }
    }
}

/// Evidence of a channel's engine in its methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineEvidence {
    binds_graphics: bool,
    binds_copy: bool,
    uses_graphics: bool,
    uses_copy: bool,
    /// True if the channel wrote SET_APPLICATION_ID, a video engine's method.
    pub video: bool,
}

impl EngineEvidence {
    /// Takes in a run of methods.
    pub fn take(&mut self, run: &Run<'_>) {
        match run.address {
            SET_OBJECT => match run.word(0).and_then(|data| Feeds::of_class(class_of(data))) {
                Some(Feeds::Graphics) => self.binds_graphics = true,
                Some(Feeds::Copy) => self.binds_copy = true,
                None => {}
            },
            FIRST_OF_ENGINE.. => {
                match Feeds::of_subchannel(run.subchannel) {
                    Some(Feeds::Graphics) => self.uses_graphics = true,
                    Some(Feeds::Copy) => self.uses_copy = true,
                    None => {}
                }
                self.video |=
                    (run.address, run.subchannel) == (SET_APPLICATION_ID, COPY_SUBCHANNEL);
            }
            _ => {}
        }
    }

    /// Returns the engine by the classes that were bound.
    pub fn by_class(&self) -> Option<Feeds> {
        match (self.binds_graphics, self.binds_copy) {
            (true, _) => Some(Feeds::Graphics),
            (false, true) => Some(Feeds::Copy),
            (false, false) => None,
        }
    }

    /// Returns the engine by the subchannels that were used, and by the runlist if known.
    pub fn by_subchannel(&self, runlist: Option<u32>) -> Option<Feeds> {
        let graphics = self.uses_graphics && runlist.is_none_or(|r| r == GRAPHICS_RUNLIST);
        let copy = self.uses_copy && runlist.is_none_or(|r| r != GRAPHICS_RUNLIST);
        match (graphics, copy) {
            (true, _) => Some(Feeds::Graphics),
            (false, true) => Some(Feeds::Copy),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        header::{Header, Step},
        stream::{Item, Stream},
        words::bytes_of,
    };
    use super::*;

    fn evidence(methods: &[(u8, u16, u32)]) -> EngineEvidence {
        let words: Vec<u32> = methods
            .iter()
            .flat_map(|&(subchannel, address, data)| {
                let header = Header::Method {
                    step: Step::Increment,
                    count: 1,
                    subchannel,
                    address,
                    data: 0,
                };
                [header.word().unwrap(), data]
            })
            .collect();
        let (bytes, mut stream) = (bytes_of(&words), Stream::default());
        let mut evidence = EngineEvidence::default();
        for item in stream.runs(&bytes, bytes.len() as u32, &[]) {
            let Item::Run(run) = item else {
                panic!("{item:?}")
            };
            evidence.take(&run);
        }
        evidence
    }

    #[test]
    fn a_class_says_more_than_a_subchannel() {
        let copy = evidence(&[(4, SET_OBJECT, 0xc8b5), (1, 0x300, 0)]);
        assert_eq!(copy.by_class(), Some(Feeds::Copy));
        let both = evidence(&[(4, SET_OBJECT, 0xc8b5), (1, SET_OBJECT, 0xcbc0)]);
        assert_eq!(both.by_class(), Some(Feeds::Graphics));
        assert_eq!(evidence(&[(4, SET_OBJECT, 0xa06f)]).by_class(), None);
    }

    #[test]
    fn subchannels_tell_with_the_runlist() {
        let graphics = evidence(&[(1, 0x300, 0)]);
        assert_eq!(graphics.by_subchannel(None), Some(Feeds::Graphics));
        assert_eq!(graphics.by_subchannel(Some(0)), Some(Feeds::Graphics));
        assert_eq!(graphics.by_subchannel(Some(3)), None);
        let copy = evidence(&[(4, 0x300, 0)]);
        assert_eq!(copy.by_subchannel(None), Some(Feeds::Copy));
        assert_eq!(copy.by_subchannel(Some(3)), Some(Feeds::Copy));
        assert_eq!(copy.by_subchannel(Some(0)), None);
        // The host's own methods go to any subchannel.
        assert_eq!(evidence(&[(1, 0x60, 0)]), EngineEvidence::default());
        assert!(evidence(&[(4, SET_APPLICATION_ID, 1)]).video);
    }
}
