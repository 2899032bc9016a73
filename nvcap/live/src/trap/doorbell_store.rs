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
