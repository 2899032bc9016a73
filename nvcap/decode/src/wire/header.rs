//! Method headers: the words of a pushbuffer that name the methods to which the following words go.
//!
//! Layout from the host class manuals (NVC86F_DMA_*): SEC_OP in 31:29, a count or immediate data in 28:16, the subchannel in 15:13, the
//! method's address in dwords in 11:0.

/// The most data words of one header.
pub const MAX_COUNT: usize = 0x1fff;
/// The most data words of one header in the old forms.
pub const MAX_COUNT_OLD: usize = 0x7ff;

/// Rule by which the method address advances within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Each word to the next method (INC_METHOD, and the old incrementing form).
    Increment,
    /// Every word to the same method (NON_INC_METHOD, and the old form).
    Same,
    /// The first word to the method, all others to the one after it (ONE_INC).
    Once,
    /// One value carried in the header (IMMD_DATA_METHOD).
    Immediate,
}

impl Step {
    /// Returns SEC_OP.
    const fn op(self) -> u32 {
        match self {
            Self::Increment => 1,
            Self::Same => 3,
            Self::Immediate => 4,
            Self::Once => 5,
        }
    }
}

/// The kinds of header word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The universal no-operation, or a method header with COUNT 0.
    Nop,
    /// A method with `count` data words after the header (none for immediate data).
    Method {
        /// Rule by which the address advances.
        step: Step,
        /// Number of data words that follow.
        count: u16,
        /// Subchannel.
        subchannel: u8,
        /// Byte address of the first method.
        address: u16,
        /// Immediate data.
        data: u32,
    },
    /// SET_SUBDEVICE_MASK.
    SetSubdeviceMask(u16),
    /// STORE_SUBDEVICE_MASK.
    StoreSubdeviceMask(u16),
    /// USE_SUBDEVICE_MASK.
    UseSubdeviceMask,
    /// END_PB_SEGMENT: the rest of the segment is not decoded.
    EndSegment,
    /// A header that the hardware does not define.
    Illegal,
}

impl Header {
    /// Reads a header word.
    pub fn read(word: u32) -> Self {
        let op = word >> 29;
        let tert = word >> 16 & 3;
        let subchannel = (word >> 13 & 7) as u8;
        let count = (word >> 16 & 0x1fff) as u16;
        let address = (word & 0xfff) as u16 * 4;
        let method = |step, count, address| match count {
            0 => Self::Nop,
            _ => Self::Method {
                step,
                count,
                subchannel,
                address,
                data: 0,
            },
        };
        // The old forms: COUNT_OLD in 28:18, the byte address in 12:2.
        let old = |step| method(step, (word >> 18 & 0x7ff) as u16, (word & 0x1ffc) as u16);
        match (op, tert) {
            (0, 0) => old(Step::Increment),
            (2, 0) => old(Step::Same),
            (0, _) if word >> 18 & 0x7ff == 0 => {
                let mask = (word >> 4 & 0xfff) as u16;
                match tert {
                    1 => Self::SetSubdeviceMask(mask),
                    2 => Self::StoreSubdeviceMask(mask),
                    _ => Self::UseSubdeviceMask,
                }
            }
            (1, _) => method(Step::Increment, count, address),
            (3, _) => method(Step::Same, count, address),
            (5, _) => method(Step::Once, count, address),
            (4, _) => Self::Method {
                step: Step::Immediate,
                count: 0,
                subchannel,
                address,
                data: u32::from(count),
            },
            (7, _) => Self::EndSegment,
            _ => Self::Illegal,
        }
    }

    /// Returns the word; `None` for [`Header::Illegal`], which has many. Values that are too wide are cut off. [`Header::Nop`] gives the
    /// universal no-operation.
    pub fn word(self) -> Option<u32> {
        Some(match self {
            Self::Nop => 0,
            Self::Method {
                step,
                count,
                subchannel,
                address,
                data,
            } => {
                let count = match step {
                    Step::Immediate => data,
                    _ => u32::from(count),
                };
                step.op() << 29
                    | (count & 0x1fff) << 16
                    | place(subchannel)
                    | u32::from(address >> 2) & 0xfff
            }
            Self::SetSubdeviceMask(mask) => 1 << 16 | u32::from(mask & 0xfff) << 4,
            Self::StoreSubdeviceMask(mask) => 2 << 16 | u32::from(mask & 0xfff) << 4,
            Self::UseSubdeviceMask => 3 << 16,
            Self::EndSegment => 7 << 29,
            Self::Illegal => return None,
        })
    }
}

/// Tells whether a word is a header in the new forms for this method, on any subchannel. It is fast, for searches among words of which few
/// are headers.
#[inline]
pub(crate) fn is_for(word: u32, step: Step, address: u16) -> bool {
    let (mask, header) = like(step, address);
    word & mask == header
}

/// Returns the mask and the value of the bits that identify such a header.
#[inline]
pub(crate) fn like(step: Step, address: u16) -> (u32, u32) {
    (0xe000_0fff, step.op() << 29 | u32::from(address >> 2))
}

/// Returns the word of a header in the old forms (SEC_OP 0 if `increment`, else SEC_OP 2).
pub fn old_word(increment: bool, count: u16, subchannel: u8, address: u16) -> u32 {
    let op = if increment { 0 } else { 2 << 29 };
    op | u32::from(count & 0x7ff) << 18 | place(subchannel) | u32::from(address & 0x1ffc)
}

fn place(subchannel: u8) -> u32 {
    u32::from(subchannel & 7) << 13
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_capture() {
        // SET_OBJECT on subchannel 4 and LAUNCH_DMA as immediate data: captures/h200-mixed.
        let set_object = Header::Method {
            step: Step::Increment,
            count: 1,
            subchannel: 4,
            address: 0,
            data: 0,
        };
        let launch = Header::Method {
            step: Step::Immediate,
            count: 0,
            subchannel: 4,
            address: 0x300,
            data: 0x182,
        };
        for (word, header) in [(0x2001_8000, set_object), (0x8182_80c0, launch)] {
            assert_eq!(Header::read(word), header);
            assert_eq!(header.word(), Some(word));
            let Header::Method { step, address, .. } = header else {
                panic!()
            };
            assert!(is_for(word, step, address) && is_for(word ^ 0xe000, step, address));
            assert!(!is_for(word, Step::Once, address) && !is_for(word, step, address + 4));
        }
        assert_eq!(Header::read(0xc000_0000), Header::Illegal);
        assert_eq!(Header::Illegal.word(), None);
    }

    #[test]
    fn old_forms() {
        let word = old_word(false, 3, 2, 0x1800);
        let Header::Method {
            step: Step::Same,
            count: 3,
            subchannel: 2,
            address: 0x1800,
            ..
        } = Header::read(word)
        else {
            panic!("{word:#x}")
        };
    }
}
