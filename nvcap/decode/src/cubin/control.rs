//! Control bits of an instruction: the assembler's directions to the scheduler.
//!
//! Since sm_70 an instruction has 128 bits, and the control bits begin at bit 105. Sources: Jia, Maggioni, Staiger, Scarpazza, "Dissecting
//! the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018), section 2.1; the wiki of maxas ("Control Codes"); CuAssembler, whose
//! notation is used here.

use std::fmt;

use crate::wire::words::u64_at;

/// Barrier number that means "no barrier".
const NONE: u8 = 7;

/// The control bits of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Cycles until the next instruction of the warp may be issued.
    pub stall: u8,
    /// True if another warp is preferred for the next cycle.
    pub yields: bool,
    /// Barrier that is set until the result has been written.
    pub write_barrier: Option<u8>,
    /// Barrier that is set until the operands have been read.
    pub read_barrier: Option<u8>,
    /// Barriers for which the instruction waits before it is issued: one bit for each of 6.
    pub wait: u8,
    /// Operands whose registers are kept for the next instruction: one bit for each of 4.
    pub reuse: u8,
}

impl Control {
    /// Returns the control bits of the 16 bytes of an instruction of `sm`; `None` before sm_70, where the bits lie elsewhere.
    #[must_use]
    pub fn of(sm: u32, instruction: &[u8]) -> Option<Self> {
        if sm < 70 {
            return None;
        }
        let bits = u64_at(instruction, 8)? >> (105 - 64);
        let barrier = |at: u32| Some((bits >> at & 7) as u8).filter(|n| *n != NONE);
        Some(Self {
            stall: (bits & 0xf) as u8,
            // A set bit means that the same warp goes on.
            yields: bits >> 4 & 1 == 0,
            write_barrier: barrier(5),
            read_barrier: barrier(8),
            wait: (bits >> 11 & 0x3f) as u8,
            reuse: (bits >> 17 & 0xf) as u8,
        })
    }

    /// Returns the numbers of the barriers for which the instruction waits.
    pub fn waits(self) -> impl Iterator<Item = u8> {
        (0..6).filter(move |n| self.wait >> n & 1 != 0)
    }
}

/// Writes the bits in the form `[B0-----:R-:W1:Y:S04]`: the barriers waited for, the read barrier, the write barrier, the yield, the stall
/// count.
impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[B")?;
        for n in 0..6 {
            if self.wait >> n & 1 == 0 {
                f.write_str("-")?;
            } else {
                write!(f, "{n}")?;
            }
        }
        for (letter, barrier) in [('R', self.read_barrier), ('W', self.write_barrier)] {
            match barrier {
                Some(n) => write!(f, ":{letter}{n}")?,
                None => write!(f, ":{letter}-")?,
            }
        }
        let yields = if self.yields { 'Y' } else { '-' };
        write!(f, ":{yields}:S{:02}]", self.stall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of `add` in tests/captures/h200-graphs.cubin.xz, as `nvdisasm -hex` prints them.
    #[test]
    fn of_an_instruction() {
        let of = |low: u64, high: u64| {
            let bytes = [low.to_le_bytes(), high.to_le_bytes()].concat();
            Control::of(90, &bytes).expect("16 bytes")
        };
        // S2R R0, SR_TID.X sets barrier 0; IMAD R5, R5, UR4, R0 waits for it.
        let s2r = of(0x0000_0000_0000_7919, 0x000e_2e00_0000_2100);
        assert_eq!((s2r.write_barrier, s2r.read_barrier), (Some(0), None));
        assert_eq!(s2r.to_string(), "[B------:R-:W0:-:S07]");
        let imad = of(0x0000_0004_0505_7c24, 0x001f_e200_0f8e_0200);
        assert_eq!(imad.waits().collect::<Vec<_>>(), [0]);
        assert_eq!(imad.to_string(), "[B0-----:R-:W-:-:S01]");
        assert_eq!(of(0, u64::MAX).to_string(), "[B012345:R-:W-:-:S15]");
        assert_eq!(of(0, 0).to_string(), "[B------:R0:W0:Y:S00]");
        assert_eq!((of(0, u64::MAX).reuse, of(0, 0).reuse), (15, 0));
        assert!(Control::of(61, &[0; 16]).is_none());
        assert!(Control::of(90, &[0; 15]).is_none());
    }
}
