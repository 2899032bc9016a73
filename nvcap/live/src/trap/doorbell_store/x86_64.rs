//! The store on x86-64: decoded from the bytes before the trap.
//!
//! x86 cannot be decoded backwards with certainty: `44 89 08` ends in `89 08`. So every length is tried. The store's address,
//! computed from the registers, must be the doorbell. Of the remaining readings, one whose register holds a known token wins;
//! then the one that most decodings from earlier bytes lead to; then the longest.

use nvcap_common::CODE;

use super::store::Store;

/// Registers by the numbers in instructions: rax rcx rdx rbx rsp rbp rsi rdi r8..r15.
const REGISTERS: usize = 16;

/// Decodes as [`super::decode`] does. The bytes end with the store. The registers are those after the store, which changes
/// none.
pub(super) fn decode(
    ip: u64,
    code: &[u8; 2 * CODE],
    regs: &[u64],
    doorbell: u64,
    known: impl Fn(u32) -> bool,
) -> Option<Store> {
    use iced_x86::{Decoder, DecoderOptions, Instruction};

    let regs = regs.first_chunk()?;
    let before = &code[..CODE];
    let decode_at = |start: usize| -> Option<Instruction> {
        let mut decoder = Decoder::with_ip(
            64,
            &before[start..],
            ip - (CODE - start) as u64,
            DecoderOptions::NONE,
        );
        let i = decoder.decode();
        (!i.is_invalid()).then_some(i)
    };
    // How many starting points lead, instruction by instruction, to the one at `start`.
    let paths = |start: usize| {
        (0..start)
            .filter(|from| {
                let mut at = *from;
                while at < start {
                    match decode_at(at) {
                        Some(i) => at += i.len(),
                        None => return false,
                    }
                }
                at == start
            })
            .count()
    };
    let mut best: Option<(bool, usize, Store)> = None;
    for len in 2..=15usize {
        let start = CODE - len;
        let Some(i) = decode_at(start) else { continue };
        if i.len() != len {
            continue;
        }
        let Some((register, address)) = token_register(&i, regs, doorbell) else {
            continue;
        };
        let is_known = known(regs[register as usize] as u32);
        let candidate = (
            is_known,
            paths(start),
            Store {
                register,
                len: len as u32,
                address,
            },
        );
        if best.is_none_or(|b| (candidate.0, candidate.1) >= (b.0, b.1)) {
            best = Some(candidate);
        }
    }
    best.map(|b| b.2)
}

fn token_register(
    i: &iced_x86::Instruction,
    regs: &[u64; REGISTERS],
    doorbell: u64,
) -> Option<(u32, Option<(u32, i64)>)> {
    use iced_x86::{Code, OpKind, Register};

    if i.code() != Code::Mov_rm32_r32
        || i.op0_kind() != OpKind::Memory
        || i.segment_prefix() != Register::None
    {
        return None;
    }
    let address = i.virtual_address(0, 0, |register, _, _| match register {
        // Flat segments have base 0 in 64-bit mode.
        Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
        r if r.is_gpr64() => Some(regs[r.number()]),
        r if r.is_gpr32() => Some(regs[r.number()] & 0xffff_ffff),
        _ => None,
    })?;
    let base = i.memory_base();
    let simple = i.memory_index() == Register::None && base.is_gpr64();
    let made_of = (
        base.number() as u32,
        i.memory_displacement64().cast_signed(),
    );
    let token = i.op1_register().number() as u32;
    (address == doorbell).then(|| (token, simple.then_some(made_of)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: u64 = 0x7f00_0000_1000;
    const DOORBELL: u64 = 0x7f11_2233_0090;

    /// Decodes a case as in libcuda: whole instructions precede the store, so that a linear decoding leads to it.
    fn case(tail: &[u8], set: &[(usize, u64)]) -> Option<Store> {
        let mut code = [0x90; 2 * CODE];
        code[CODE - tail.len()..CODE].copy_from_slice(tail);
        let mut regs = [0x5555_0000_0000; REGISTERS];
        for (r, v) in set {
            regs[*r] = *v;
        }
        decode(IP, &code, &regs, DOORBELL, |t| t == 0x10012)
    }

    #[test]
    fn the_store_of_cuda_13() {
        assert_eq!(
            case(&[0x89, 0x08], &[(0, DOORBELL), (1, 0x10012)]),
            Some(Store {
                register: 1,
                len: 2,
                address: Some((0, 0)),
            })
        );
    }

    #[test]
    fn other_published_encodings() {
        assert_eq!(
            case(&[0x89, 0x10], &[(0, DOORBELL), (2, 0xa)])
                .unwrap()
                .register,
            2
        );
        assert_eq!(
            case(&[0x89, 0x0a], &[(2, DOORBELL), (1, 0xa)])
                .unwrap()
                .register,
            1
        );
        assert_eq!(
            case(&[0x89, 0x01], &[(1, DOORBELL), (0, 0xa)])
                .unwrap()
                .register,
            0
        );
    }

    #[test]
    fn displacement_and_high_registers() {
        // mov %edx,0x90(%r8)
        let store = case(
            &[0x41, 0x89, 0x90, 0x90, 0, 0, 0],
            &[(8, DOORBELL - 0x90), (2, 0x10012)],
        )
        .unwrap();
        assert_eq!(
            store,
            Store {
                register: 2,
                len: 7,
                address: Some((8, 0x90)),
            }
        );
        // mov %r9d,(%rax): the last two bytes alone read as mov %ecx,(%rax).
        let store = case(&[0x44, 0x89, 0x08], &[(0, DOORBELL), (9, 0x10012), (1, 7)]).unwrap();
        assert_eq!(
            store,
            Store {
                register: 9,
                len: 3,
                address: Some((0, 0)),
            }
        );
        // mov %edx,-0x10(%rbx,%rsi,4): an address of two registers; mov %edx,-0x10(%rbx).
        let set = [(3, DOORBELL + 0x10 - 0x40), (6, 0x10), (2, 0x10012)];
        let two = case(&[0x89, 0x54, 0xb3, 0xf0], &set).unwrap();
        assert_eq!((two.register, two.address), (2, None));
        let one = case(&[0x89, 0x53, 0xf0], &[(3, DOORBELL + 0x10), (2, 0x10012)]);
        assert_eq!(one.unwrap().address, Some((3, -0x10)));
        // The same with no known token: more decodings run into the longer one.
        let store = case(&[0x44, 0x89, 0x08], &[(0, DOORBELL), (9, 1), (1, 7)]).unwrap();
        assert_eq!(store.register, 9);
    }

    #[test]
    fn what_is_no_store_to_the_doorbell() {
        assert_eq!(
            case(&[0x89, 0x08], &[(0, DOORBELL + 4), (1, 0x10012)]),
            None
        );
        assert_eq!(case(&[0x8b, 0x08], &[(0, DOORBELL)]), None);
        assert_eq!(case(&[0xff, 0xff, 0xff], &[]), None);
    }
}
