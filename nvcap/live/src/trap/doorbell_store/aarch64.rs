//! The store on aarch64: the instruction of four bytes at which a trap stops.
//!
//! The registers are those before the store, so that forms which change their base (pre- and post-index) are computed from the
//! base's earlier value. Encodings: Arm Architecture Reference Manual, C4.1 "Loads and Stores". Stores of vector registers, of
//! tags and exclusive stores are not decoded: tokens are not written by them, and a doorbell that is rung so makes all
//! channels be scanned.

use nvcap_common::CODE;

use super::store::Store;

/// Bytes of every instruction.
const LEN: usize = 4;
/// Register number that means the stack pointer as a base, and the constant 0 as a stored register.
const SP_OR_ZERO: u32 = 31;

/// Registers that a store writes, and the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    /// The stored register, and the second one of a pair, which is stored behind it.
    registers: (u32, Option<u32>),
    /// Bytes of each stored register.
    size: u64,
    /// Register with the address's base.
    base: u32,
    /// Offset that is added to the base.
    plus: Plus,
}

/// Offset that is added to a store's base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plus {
    /// A constant.
    Constant(i64),
    /// A register, extended and shifted as the instruction says.
    Register {
        index: u32,
        extend: Extend,
        shift: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extend {
    Unsigned32,
    Signed32,
    None,
}

/// Decodes as [`super::decode`] does: the store is the word before the middle of `code`.
pub(super) fn decode(code: &[u8; 2 * CODE], regs: &[u64], doorbell: u64) -> Option<Store> {
    let bytes = code.get(CODE - LEN..CODE)?.first_chunk()?;
    let store = written(u32::from_le_bytes(*bytes))?;
    let place = doorbell.wrapping_sub(store.address(regs)?);
    let register = match (place / store.size, place % store.size) {
        (0, 0) => store.registers.0,
        (1, 0) => store.registers.1?,
        _ => return None,
    };
    let address = match store.plus {
        Plus::Constant(plus) => Some((store.base, plus.wrapping_add_unsigned(place))),
        Plus::Register { .. } => None,
    };
    (register != SP_OR_ZERO).then_some(Store {
        register,
        len: LEN as u32,
        address,
    })
}

impl Written {
    /// Returns the address of the first byte.
    fn address(&self, regs: &[u64]) -> Option<u64> {
        let base = *regs.get(self.base as usize)?;
        Some(match self.plus {
            Plus::Constant(plus) => base.wrapping_add_signed(plus),
            Plus::Register {
                index: SP_OR_ZERO, ..
            } => base,
            Plus::Register {
                index,
                extend,
                shift,
            } => {
                let index = *regs.get(index as usize)?;
                let index = match extend {
                    Extend::None => index,
                    Extend::Unsigned32 => u64::from(index as u32),
                    Extend::Signed32 => i64::from(index as i32).cast_unsigned(),
                };
                base.wrapping_add(index << shift)
            }
        })
    }
}

/// Returns `count` bits of `word` from `low` on.
fn bits(word: u32, low: u32, count: u32) -> u32 {
    word >> low & ((1 << count) - 1)
}

/// Returns the same bits as a signed number.
fn signed(word: u32, low: u32, count: u32) -> i64 {
    let unused = 32 - count;
    i64::from((bits(word, low, count) << unused) as i32 >> unused)
}

/// Decodes a store of one or two general registers of 32 or 64 bits.
fn written(word: u32) -> Option<Written> {
    pair(word).or_else(|| single(word))
}

/// Decodes STP and STNP: pre-index, post-index, or with an offset.
fn pair(word: u32) -> Option<Written> {
    let wide = match word & 0xfe40_0000 {
        0x2800_0000 => false,
        0xa800_0000 => true,
        _ => return None,
    };
    let size = if wide { 8 } else { 4 };
    let offset = signed(word, 15, 7) * size as i64;
    let post_index = bits(word, 23, 2) == 1;
    Some(Written {
        registers: (bits(word, 0, 5), Some(bits(word, 10, 5))),
        size,
        base: bits(word, 5, 5),
        plus: Plus::Constant(if post_index { 0 } else { offset }),
    })
}

/// Decodes STR, STUR, STTR, STLR, STLUR and STLLR of a word or a doubleword.
fn single(word: u32) -> Option<Written> {
    // The two sizes differ in one bit.
    let wide = bits(word, 30, 1);
    let size = 4 << wide;
    let constant = |plus| Some(Plus::Constant(plus));
    let unscaled = signed(word, 12, 9);
    let plus = match word & !(1 << 30) {
        w if w & 0xffc0_0000 == 0xb900_0000 => {
            constant(i64::from(bits(word, 10, 12)) * size as i64)
        }
        w if w & 0xffe0_0000 == 0xb800_0000 => match bits(word, 10, 2) {
            // Post-index: the base is changed after the store.
            0b01 => constant(0),
            // Unscaled, unprivileged, pre-index.
            _ => constant(unscaled),
        },
        w if w & 0xffe0_0c00 == 0xb820_0800 => indexed(word, wide),
        w if w & 0xffe0_0c00 == 0x9900_0000 => constant(unscaled),
        w if matches!(w & 0xffff_fc00, 0x889f_fc00 | 0x889f_7c00) => constant(0),
        _ => None,
    };
    Some(Written {
        registers: (bits(word, 0, 5), None),
        size,
        base: bits(word, 5, 5),
        plus: plus?,
    })
}

/// Decodes the index register of STR (register).
fn indexed(word: u32, wide: u32) -> Option<Plus> {
    let extend = match bits(word, 13, 3) {
        0b010 => Extend::Unsigned32,
        0b110 => Extend::Signed32,
        0b011 | 0b111 => Extend::None,
        _ => return None,
    };
    Some(Plus::Register {
        index: bits(word, 16, 5),
        extend,
        shift: bits(word, 12, 1) * (2 + wide),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOORBELL: u64 = 0xffff_8011_0090;

    /// Decodes the store `word`, with these registers at its trap. All other registers hold no address near the doorbell.
    fn case(word: u32, set: &[(usize, u64)]) -> Option<Store> {
        let mut code = [0x1f; 2 * CODE];
        code[CODE - LEN..CODE].copy_from_slice(&word.to_le_bytes());
        let mut regs = [0xaaaa_0000_0000; 32];
        for (register, value) in set {
            regs[*register] = *value;
        }
        decode(&code, &regs, DOORBELL)
    }

    fn store(register: u32, address: Option<(u32, i64)>) -> Option<Store> {
        Some(Store {
            register,
            len: 4,
            address,
        })
    }

    /// Words and texts as LLVM's assembler has them (`llvm-mc -triple=aarch64 -mattr=+v8.4a --show-encoding`).
    #[test]
    fn one_register_and_a_constant() {
        for (text, word, register, base, plus) in [
            ("str w1, [x0]", 0xb900_0001, 1, 0, 0),
            ("str w1, [x0, #144]", 0xb900_9001, 1, 0, 144),
            ("str w30, [x8, #16380]", 0xb93f_fd1e, 30, 8, 16380),
            ("str x2, [x3, #144]", 0xf900_4862, 2, 3, 144),
            ("str w7, [sp, #16]", 0xb900_13e7, 7, 31, 16),
            ("stur w1, [x0, #-4]", 0xb81f_c001, 1, 0, -4),
            ("stur w1, [x0, #255]", 0xb80f_f001, 1, 0, 255),
            ("stur x1, [x0, #-4]", 0xf81f_c001, 1, 0, -4),
            ("str w1, [x0], #4", 0xb800_4401, 1, 0, 0),
            ("str w1, [x0, #144]!", 0xb809_0c01, 1, 0, 144),
            ("str w1, [x0, #-16]!", 0xb81f_0c01, 1, 0, -16),
            ("sttr w1, [x0, #4]", 0xb800_4801, 1, 0, 4),
            ("stlr w1, [x0]", 0x889f_fc01, 1, 0, 0),
            ("stlr x1, [x0]", 0xc89f_fc01, 1, 0, 0),
            ("stllr w1, [x0]", 0x889f_7c01, 1, 0, 0),
            ("stlur w1, [x0, #-4]", 0x991f_c001, 1, 0, -4),
            ("stlur x1, [x0, #8]", 0xd900_8001, 1, 0, 8),
        ] {
            let at = DOORBELL.wrapping_sub_signed(plus);
            let found = case(word, &[(base as usize, at)]);
            assert_eq!(found, store(register, Some((base, plus))), "{text}");
            assert_eq!(case(word, &[(base as usize, at + 4)]), None, "{text}");
        }
    }

    #[test]
    fn pairs_by_which_half_is_at_the_doorbell() {
        for (text, word, size, plus) in [
            ("stp w1, w2, [x0]", 0x2900_0801, 4, 0),
            ("stp w1, w2, [x0, #-8]", 0x293f_0801, 4, -8),
            ("stp w1, w2, [x0], #8", 0x2881_0801, 4, 0),
            ("stp w1, w2, [x0, #8]!", 0x2981_0801, 4, 8),
            ("stnp w1, w2, [x0, #8]", 0x2801_0801, 4, 8),
            ("stp x1, x2, [x0, #16]", 0xa901_0801, 8, 16),
        ] {
            let first = DOORBELL.wrapping_sub_signed(plus);
            let found = case(word, &[(0, first)]);
            assert_eq!(found, store(1, Some((0, plus))), "{text}");
            let second = first - size;
            let found = case(word, &[(0, second)]);
            assert_eq!(found, store(2, Some((0, plus + size as i64))), "{text}");
            assert_eq!(case(word, &[(0, second - size)]), None, "{text}");
        }
    }

    #[test]
    fn an_index_register_as_it_is_extended() {
        for (text, word, base, index) in [
            ("str w1, [x2, x3]", 0xb823_6841, 0x1000, DOORBELL - 0x1000),
            ("str w1, [x2, x3, lsl #2]", 0xb823_7841, DOORBELL - 64, 16),
            (
                "str w1, [x2, w3, uxtw]",
                0xb823_4841,
                DOORBELL - 0xffff_fff0,
                0x1_ffff_fff0,
            ),
            (
                "str w1, [x2, w3, sxtw #2]",
                0xb823_d841,
                DOORBELL + 64,
                0xffff_fff0,
            ),
            (
                "str w1, [x2, x3, sxtx]",
                0xb823_e841,
                DOORBELL + 8,
                -8_i64 as u64,
            ),
            (
                "str w1, [x2, x3, sxtx #2]",
                0xb823_f841,
                DOORBELL + 8,
                -2_i64 as u64,
            ),
            ("str x1, [x2, x3, lsl #3]", 0xf823_7841, DOORBELL - 64, 8),
        ] {
            let found = case(word, &[(2, base), (3, index)]);
            assert_eq!(found, store(1, None), "{text}");
            assert_eq!(case(word, &[(2, base), (3, index + 1)]), None, "{text}");
        }
        // xzr as index: str w1, [x2, xzr].
        assert_eq!(case(0xb83f_6841, &[(2, DOORBELL)]), store(1, None));
    }

    #[test]
    fn a_constant_names_no_token() {
        // str wzr, [x0]
        assert_eq!(case(0xb900_001f, &[(0, DOORBELL)]), None);
    }

    #[test]
    fn what_is_no_store_of_a_token() {
        for (text, word) in [
            ("strb w1, [x0]", 0x3900_0001),
            ("strh w1, [x0]", 0x7900_0001),
            ("strb w1, [x0, xzr]", 0x383f_6801),
            ("ldr w1, [x0]", 0xb940_0001),
            ("ldur w1, [x0]", 0xb840_0001),
            ("ldr w1, [x0, xzr]", 0xb87f_6801),
            ("ldp w1, w2, [x0]", 0x2940_0801),
            ("ldar w1, [x0]", 0x88df_fc01),
            ("ldpsw x1, x2, [x0]", 0x6940_0801),
            ("stgp x1, x2, [x0]", 0x6900_0801),
            ("stg x1, [x0]", 0xd920_0801),
            ("str s1, [x0]", 0xbd00_0001),
            ("str q1, [x0]", 0x3d80_0001),
            ("stp d0, d1, [x0]", 0x6d00_0400),
            ("stxr w3, w1, [x0]", 0x8803_7c01),
            ("stlxr w3, w1, [x0]", 0x8803_fc01),
            ("swp w1, w2, [x0]", 0xb821_8002),
            ("stadd w1, [x0]", 0xb821_001f),
            ("st64b x0, [x0]", 0xf83f_9000),
            ("prfm pldl1keep, [x0]", 0xf980_0000),
            ("dmb oshst", 0xd503_32bf),
            ("udf #0", 0),
        ] {
            assert_eq!(case(word, &[(0, DOORBELL)]), None, "{text}");
        }
    }

    /// Any word, with registers that all hold the doorbell's address, causes no panic; an address of one register and a
    /// constant is the doorbell's.
    #[test]
    fn any_word() {
        let mut seed = 1u64;
        let all = std::array::from_fn::<_, 32, _>(|register| (register, DOORBELL));
        let mut stores = 0;
        for _ in 0..1_000_000 {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let word = (seed >> 32) as u32;
            let Some(found) = case(word, &all) else {
                continue;
            };
            stores += 1;
            assert!(found.register < SP_OR_ZERO, "{word:#x}");
            if let Some((_, plus)) = found.address {
                assert_eq!(plus, 0, "{word:#x}");
            }
        }
        assert!(stores > 100, "{stores}");
    }
}
