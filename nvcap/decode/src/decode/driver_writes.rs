//! Memory that the driver writes inline on its own account: QMDs, and the words that QMDs release. Also the programs that a profiler puts
//! into QMDs.

use super::{
    event::{InlineContent, Launch},
    ops::launch::program_bytes,
    shadow::{Shadow, Space},
    view,
};
use crate::wire::{
    GpuVa,
    hash::{NumberMap, NumberSet},
    words::u64_at,
};

/// The most addresses that are kept of each kind. libcuda takes both kinds from pools and reuses them.
const MOST: usize = 1 << 16;
/// Alignment of a QMD.
const ALIGN: u64 = 256;
/// The most bytes of constant bank 0 that the driver uses before the arguments.
const DRIVERS_PART: usize = 0x380;
/// Alignment of a program.
const PROGRAM_ALIGN: u64 = 128;

/// Addresses of QMDs and of the words that they release.
#[derive(Debug, Default)]
pub(super) struct DriverWrites {
    qmds: NumberSet<(Space, u64)>,
    releases: NumberSet<(Space, u64)>,
    /// Stand-ins: programs that a profiler has put in the place of others. The value is the offset in the driver's part of constant bank 0
    /// at which the kernel's own program is found, once known.
    stand_ins: NumberMap<(Space, u64), Option<u16>>,
}

impl DriverWrites {
    /// Records a QMD of `class` (0 if unknown) at `address`.
    pub(super) fn qmd(&mut self, space: Space, class: u32, address: u64, qmd: &[u8]) {
        if self.qmds.len() >= MOST {
            self.qmds.clear();
        }
        self.qmds.insert((space, address));
        for word in view::releases(class, qmd) {
            if self.releases.len() >= MOST {
                self.releases.clear();
            }
            self.releases.insert((space, word.0));
        }
    }

    /// Records a launch. If the process was seen to run another kernel through the launch's program, the program is a stand-in. The
    /// launch's constants then hold the kernel's own program, at the offset at which they held it for that other kernel. In a graph, no
    /// launch names its kernel otherwise: a QMD prefetches the program of the kernel that runs next.
    pub(super) fn launch(&mut self, space: Space, launch: &mut Launch, shadow: &mut Shadow) {
        match (launch.stand_in, launch.program) {
            (Some(stand_in), Some(own)) if stand_in != own => {
                let known = self.stand_ins.get(&(space, stand_in.0));
                if known.is_some_and(Option::is_some) {
                    return;
                }
                if self.stand_ins.len() >= MOST {
                    self.stand_ins.clear();
                }
                let place = place_of(launch, own, shadow, space);
                self.stand_ins.insert((space, stand_in.0), place);
            }
            (None, Some(program)) => {
                let Some(place) = self.stand_ins.get(&(space, program.0)) else {
                    return;
                };
                launch.stand_in = Some(program);
                launch.kernel = None;
                let own = place.and_then(|at| own_at(launch, at, shadow, space));
                if let Some(own) = own.filter(|own| *own != program) {
                    launch.program = Some(own);
                    launch.program_bytes = program_bytes(own.0, shadow, space);
                }
            }
            _ => {}
        }
    }

    /// Returns the content of a write of `bytes` bytes to `dst`, if the address tells it.
    pub(super) fn content(&self, space: Space, dst: u64, bytes: u64) -> Option<InlineContent> {
        if matches!(bytes, 4 | 8 | 16) && self.releases.contains(&(space, dst)) {
            return Some(InlineContent::Semaphore);
        }
        // A QMD has up to 384 bytes.
        let begin = dst & !(ALIGN - 1);
        let known = |at: u64| self.qmds.contains(&(space, at));
        let inside =
            known(begin) || begin.checked_sub(ALIGN).is_some_and(known) && dst - begin < 128;
        (inside && bytes < ALIGN).then_some(InlineContent::QmdPart)
    }

    /// Forgets a process's memory.
    pub(super) fn forget(&mut self, space: Space) {
        self.qmds.retain(|a| a.0 != space);
        self.releases.retain(|a| a.0 != space);
        self.stand_ins.retain(|a, _| a.0 != space);
    }
}

/// Returns the address of the driver's part of a launch's constant bank 0.
fn drivers_part(launch: &Launch) -> Option<GpuVa> {
    let bank = launch.constant_banks.iter().find(|b| b.index == 0)?;
    Some(bank.address)
}

/// Returns the offset at which the driver's part of constant bank 0 holds a kernel's own program.
fn place_of(launch: &Launch, own: GpuVa, shadow: &mut Shadow, space: Space) -> Option<u16> {
    let mut bytes = [0; DRIVERS_PART];
    let bank = drivers_part(launch)?;
    let known = shadow.known(space, bank, bytes.len());
    let bytes = bytes.get_mut(..known)?;
    let read = shadow.read(space, bank, bytes);
    let at = read.then_some(bytes)?.chunks_exact(8);
    let at = at.map(|w| u64_at(w, 0)).position(|w| w == Some(own.0))?;
    u16::try_from(at * 8).ok()
}

/// Returns the program at an offset in a launch's constants, if the value may be a program.
fn own_at(launch: &Launch, at: u16, shadow: &mut Shadow, space: Space) -> Option<GpuVa> {
    let mut word = [0; 8];
    let place = drivers_part(launch)?.0.checked_add(u64::from(at))?;
    let read = shadow.read(space, GpuVa(place), &mut word);
    let own = u64::from_le_bytes(read.then_some(word)?);
    let is_program = (0x1_0000..1 << 57).contains(&own) && own.is_multiple_of(PROGRAM_ALIGN);
    is_program.then_some(GpuVa(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::event::{ConstantBank, LaunchHow};
    use crate::decode::ops::launch::unresolved;

    const SPACE: Space = 7;
    const BANK: u64 = 0x7f00_2000_0000;
    const STAND_IN: u64 = 0x7f00_1000_0000;
    const OWN: u64 = 0x7f00_1000_6e00;

    /// Makes a launch by QMD of the stand-in, whose constants have `own` at offset 0x118. `told`: the QMD names the own program by what it
    /// prefetches.
    fn launch(shadow: &mut Shadow, own: u64, told: bool) -> Launch {
        let mut part = vec![0x11; 0x210];
        part[0x118..0x120].copy_from_slice(&own.to_le_bytes());
        shadow.write(SPACE, GpuVa(BANK), &part);
        let mut launch = unresolved(LaunchHow::Dependent, None);
        launch.program = Some(GpuVa(if told { own } else { STAND_IN }));
        launch.stand_in = told.then_some(GpuVa(STAND_IN));
        launch.constant_banks = vec![ConstantBank {
            index: 0,
            address: GpuVa(BANK),
            size: 768,
        }];
        launch
    }

    #[test]
    fn constants_tell_the_program_where_another_kernels_told_it() {
        let mut shadow = Shadow::new(1 << 20);
        let mut writes = DriverWrites::default();
        let mut tell = |own: u64, told: bool| {
            let mut launch = launch(&mut shadow, own, told);
            writes.launch(SPACE, &mut launch, &mut shadow);
            // The launch is recorded again, as happens when it is counted.
            writes.launch(SPACE, &mut launch, &mut shadow);
            (launch.program.map(|p| p.0), launch.stand_in.map(|p| p.0))
        };
        // Nothing shows yet that the program is a stand-in.
        assert_eq!(tell(OWN, false), (Some(STAND_IN), None));
        assert_eq!(tell(OWN, true), (Some(OWN), Some(STAND_IN)));
        assert_eq!(
            tell(OWN + 0x500, false),
            (Some(OWN + 0x500), Some(STAND_IN))
        );
        // A value that cannot be a program is refused; the kernel is then not known.
        for no_program in [0, 0x80, OWN + 4, STAND_IN, u64::MAX] {
            assert_eq!(tell(no_program, false), (Some(STAND_IN), Some(STAND_IN)));
        }
        writes.forget(SPACE);
        let mut later = launch(&mut shadow, OWN, false);
        writes.launch(SPACE, &mut later, &mut shadow);
        assert_eq!(later.stand_in, None);
    }
}
