//! Computation of return addresses from registers and bytes of a stack, by the unwind tables of mapped files.

use std::sync::Arc;

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{
    CacheAarch64 as Cache, UnwindRegsAarch64 as Registers, UnwinderAarch64 as Tables,
};
#[cfg(target_arch = "x86_64")]
use framehop::x86_64::{
    CacheX86_64 as Cache, UnwindRegsX86_64 as Registers, UnwinderX86_64 as Tables,
};
use framehop::{Error, ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};

use super::{elf::Elf, guard::guarded, left_out::Room, modules::Mapped, queue::RawStack};
use nvcap_decode::record::StackEnd;

/// The most frames of a stack.
pub(super) const MOST_FRAMES: usize = 192;

/// Kind of code at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// Code of a file whose tables have been added ([`Unwinder::add`]), or that has no tables.
    OfFile,
    /// Code without a file.
    Other,
    /// No code: no function can return to the address.
    None,
}

/// Unwind tables of an address space.
pub(super) struct Unwinder {
    tables: Tables<Arc<[u8]>>,
    cache: Cache,
}

impl Default for Unwinder {
    fn default() -> Self {
        Self {
            tables: Tables::new(),
            cache: Cache::new(),
        }
    }
}

impl Unwinder {
    /// Adds the tables of a file, for one of its mappings.
    pub(super) fn add(&mut self, mapped: &Mapped, elf: &Elf, bias: u64, room: &Room) {
        let Some((section, eh_frame)) = elf.plain(".eh_frame", room) else {
            return;
        };
        let range = |s: &super::elf::Section| s.address..s.address.saturating_add(s.size);
        let index = elf.plain(".eh_frame_hdr", room);
        let base = elf.base();
        let sections = ExplicitModuleSectionInfo {
            base_svma: base,
            text_svma: elf.section(".text").as_ref().map(range),
            got_svma: elf.section(".got").as_ref().map(range),
            eh_frame_svma: Some(range(&section)),
            eh_frame: Some(eh_frame),
            eh_frame_hdr_svma: index.as_ref().map(|(s, _)| range(s)),
            eh_frame_hdr: index.map(|(_, bytes)| bytes),
            ..Default::default()
        };
        let name = mapped.name.to_string();
        let (range, base) = (mapped.start..mapped.end, bias.wrapping_add(base));
        if let Some(module) = guarded(|| Module::new(name, range, base, sections)) {
            self.tables.add_module(module);
        }
    }

    /// Returns the addresses of a stack: the instruction after the doorbell's store, then the return addresses; and the end of the stack.
    /// `code` returns the kind of code at an address, after it has added the tables of the address's file.
    pub(super) fn unwind(
        &mut self,
        stack: &RawStack,
        mut code: impl FnMut(&mut Self, u64) -> Code,
    ) -> (Vec<u64>, StackEnd) {
        let mut registers = registers(stack);
        let mut read = |address: u64| {
            let at = address.checked_sub(stack.sp).ok_or(())?;
            let at = usize::try_from(at).map_err(|_| ())?;
            nvcap_decode::wire::words::u64_at(&stack.bytes, at).ok_or(())
        };
        let mut addresses = Vec::new();
        let mut address = FrameAddress::from_instruction_pointer(stack.ip);
        loop {
            match code(self, address.address_for_lookup()) {
                // The first address comes from the processor itself.
                Code::None if !addresses.is_empty() => return (addresses, StackEnd::NoTable),
                Code::None | Code::Other => {
                    addresses.push(address.address());
                    return (addresses, StackEnd::NoFile);
                }
                Code::OfFile => addresses.push(address.address()),
            }
            if addresses.len() == MOST_FRAMES {
                return (addresses, StackEnd::Deep);
            }
            let (tables, cache) = (&self.tables, &mut self.cache);
            let next = guarded(|| tables.unwind_frame(address, &mut registers, cache, &mut read));
            let Some(next) = next else {
                return (addresses, StackEnd::NoTable);
            };
            let next = match next {
                Ok(next) => next,
                Err(Error::CouldNotReadStack(at)) if is_behind(stack, at) => {
                    return (addresses, StackEnd::Cut);
                }
                // A thread's first function returns to 0.
                Err(Error::ReturnAddressIsNull) => None,
                Err(_) => return (addresses, StackEnd::NoTable),
            };
            match next.and_then(FrameAddress::from_return_address) {
                Some(next) => address = next,
                None => return (addresses, StackEnd::Whole),
            }
        }
    }
}

/// Tells whether a failed read was beyond the copied bytes of a stack that continues behind them.
fn is_behind(stack: &RawStack, address: u64) -> bool {
    stack.cut
        && address
            >= stack
                .sp
                .saturating_add(stack.bytes.len() as u64)
                .saturating_sub(7)
}

#[cfg(target_arch = "x86_64")]
fn registers(stack: &RawStack) -> Registers {
    Registers::new(stack.ip, stack.sp, stack.fp)
}

#[cfg(target_arch = "aarch64")]
fn registers(stack: &RawStack) -> Registers {
    Registers::new(stack.lr, stack.sp, stack.fp)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::stacks::modules::of_process;
    use nvcap_decode::record::At;

    /// Test of the tables of the C library with bytes changed at random, and of stacks full of its addresses.
    #[test]
    #[cfg_attr(
        target_feature = "crt-static",
        ignore = "this program has no C library as a file"
    )]
    fn tables_of_any_bytes() {
        let mapped = of_process(std::process::id());
        let libc = mapped.iter().find(|m| m.name.contains("libc.so"));
        let libc = libc.expect("the C library as a file");
        let whole = std::fs::read(&*libc.name).unwrap();
        let sections = Elf::of_bytes(whole.clone()).unwrap();
        let parts = [".eh_frame", ".eh_frame_hdr"].map(|name| sections.section(name).unwrap());
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (seed >> 20) % below
        };
        let mut frames = 0;
        for round in 0..20 {
            let mut bytes = whole.clone();
            for part in parts.iter().filter(|_| round > 0) {
                for _ in 0..next(4000) {
                    let at = (part.offset + next(part.size)) as usize;
                    bytes[at] = next(256) as u8;
                }
            }
            let elf = Elf::of_bytes(bytes).unwrap();
            let mut unwinder = Unwinder::default();
            unwinder.add(libc, &elf, elf.bias(libc).unwrap(), &Room::default());
            for _ in 0..200 {
                let mut address = || libc.start + next(libc.end - libc.start);
                let ip = address();
                let stack: Vec<u8> = (0..256).flat_map(|_| address().to_le_bytes()).collect();
                let sp = 0x7000_0000;
                let raw = RawStack {
                    at: At::default(),
                    space: 1,
                    ip,
                    sp,
                    fp: sp + 8 * next(200),
                    lr: 0,
                    bytes: stack,
                    cut: true,
                    python: Vec::new(),
                };
                let (found, _) =
                    unwinder.unwind(&raw, |_, at| match (libc.start..libc.end).contains(&at) {
                        true => Code::OfFile,
                        false => Code::None,
                    });
                assert!((1..=MOST_FRAMES).contains(&found.len()));
                frames += found.len();
            }
        }
        assert!(frames > 20 * 200, "no stack had a second frame");
    }
}
