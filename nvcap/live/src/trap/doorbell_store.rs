//! Finds the register that holds the token, by decoding the doorbell's store from the bytes around a trap.
//!
//! The decoders of both processors are compiled and tested on either one: they depend only on bytes and registers.

mod aarch64;
mod store;
mod x86_64;

use nvcap_common::{CODE, REGS};

pub(crate) use store::Store;

/// Decodes the store that ends at `ip`, whether the processor traps before or behind it ([`nvcap_common::TRAP_TO_END`]).
///
/// `code`: the bytes from `ip - CODE` on. `regs`: the registers at the trap. `known`: tells whether a value is a token of the process.
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

/// Tells whether the instruction at the end of `before` is this store, with these registers. It is decoded anew, with registers that
/// make its address a doorbell's at `offset` in its page. A store whose address is not made of one register cannot be recognized so.
pub(crate) fn is_store(before: &[u8; CODE], store: Store, offset: u32) -> bool {
    /// A token. The other registers hold values that are neither tokens nor addresses.
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
