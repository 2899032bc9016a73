//! Register that holds the token: decodes the doorbell's store from the bytes around a trap.
//!
//! Both processors' decoders are compiled and tested on either: they are functions of bytes and registers alone.

mod aarch64;
mod store;
mod x86_64;

use nvcap_common::{CODE, REGS};

pub(crate) use store::Store;

/// Decodes the store that ends at `ip`, wherever the processor trapped at it ([`nvcap_common::TRAP_TO_END`]).
///
/// `code` holds the bytes from `ip - CODE`, `regs` the registers at the trap, `known` says whether a value is a token of the
/// process.
pub(crate) fn decode(
    ip: u64,
    code: &[u8; 2 * CODE],
    regs: &[u64; REGS],
    doorbell: u64,
    known: impl Fn(u32) -> bool,
) -> Option<Store> {
    match cfg!(target_arch = "aarch64") {
        true => aarch64::decode(code, regs, doorbell),
        false => x86_64::decode(ip, code, regs, doorbell, known),
    }
}

/// Tells whether the instruction that `before` ends in is this store, with these registers: decoded anew, for registers that make its
/// address that of a doorbell at `offset` in its page. A store whose address is not made of one register is none that could be told so.
pub(crate) fn is_store(before: &[u8; CODE], store: Store, offset: u32) -> bool {
    /// A token, and other values that are none and no address.
    const TOKEN: u64 = 0x1_0012;
    const OTHER: u64 = 0x5555_0000_0000;
    const PAGE: u64 = 0x7f00_0000_0000;
    let Some((base, displacement)) = store.address else {
        return false;
    };
    let (base, register) = (base as usize, store.register as usize);
    if base == register || base >= REGS || register >= REGS {
        return false;
    }
    let doorbell = PAGE + u64::from(offset);
    let mut regs = [OTHER; REGS];
    regs[base] = doorbell.wrapping_sub(displacement.cast_unsigned());
    regs[register] = TOKEN;
    let mut code = [0; 2 * CODE];
    code[..CODE].copy_from_slice(before);
    let known = |token| u64::from(token) == TOKEN;
    decode(PAGE, &code, &regs, doorbell, known) == Some(store)
}
