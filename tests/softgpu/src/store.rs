//! The two doorbell stores: real instructions at two distinct places, never inlined, so that a tracer meets exactly two
//! sites. The first is libcuda's; the second has a displacement, like those of other drivers.

/// Store that rings a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// `mov %ecx,(%rax)`: bytes 89 08. On aarch64 `str w1, [x0]`.
    Plain,
    /// `mov %edx,0x90(%r8)`: the page in a register, the word's offset in the instruction. On aarch64 `str w2, [x8, #0x90]`.
    Displaced,
}

/// Offset of libcuda's own copy of GP_PUT from the address in r14 (on aarch64: x20) at the first store.
const CACHED_PUT: u64 = 72;

/// Rings: writes `token` to the doorbell word of the page at `page`. `own` is the address of the copy of GP_PUT; at the
/// plain store a register holds an address near it, as in libcuda.
///
/// # Safety
/// `page` must be mapped writable for at least 0x94 bytes.
pub unsafe fn ring(page: u64, token: u32, site: Site, own: u64) {
    // SAFETY: the caller guarantees that the page is mapped.
    unsafe {
        match site {
            Site::Plain => plain(page + crate::layout::DOORBELL, token, own - CACHED_PUT),
            Site::Displaced => displaced(page, token),
        }
    }
}

/// Only r14 leads to a copy of GP_PUT: other registers that might point at one (this program also counts on its stack) hold
/// 0.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn plain(doorbell: u64, token: u32, near_own: u64) {
    // SAFETY: the caller guarantees the address; the store touches nothing else, and rbx and rbp are restored.
    unsafe {
        core::arch::asm!(
            // Unwind tables that hold at the store, as those of libcuda do.
            ".cfi_remember_state",
            "push %rbx",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset %rbx, 0",
            "push %rbp",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset %rbp, 0",
            "mov $0, %ebx",
            "mov $0, %ebp",
            "mov %ecx, (%rax)",
            "pop %rbp",
            "pop %rbx",
            ".cfi_restore_state",
            in("rax") doorbell,
            in("ecx") token,
            in("r14") near_own,
            in("rdx") 0u64,
            in("rsi") 0u64,
            in("rdi") 0u64,
            in("r8") 0u64,
            in("r9") 0u64,
            in("r10") 0u64,
            in("r11") 0u64,
            in("r12") 0u64,
            in("r13") 0u64,
            in("r15") 0u64,
            options(att_syntax, preserves_flags)
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn displaced(page: u64, token: u32) {
    // SAFETY: the caller guarantees the address; the store touches nothing else.
    unsafe {
        core::arch::asm!("mov %edx, 0x90(%r8)", in("r8") page, in("edx") token, options(att_syntax, nostack, preserves_flags));
    }
}

/// As on x86-64, with x20 in r14's place. The compiler keeps x19 for itself: it holds 0 at the store, and x9 its complement.
#[cfg(target_arch = "aarch64")]
#[inline(never)]
unsafe fn plain(doorbell: u64, token: u32, near_own: u64) {
    // SAFETY: the caller guarantees the address; the store touches nothing else, and x19 is restored.
    unsafe {
        core::arch::asm!(
            "mvn x9, x19",
            "mov x19, xzr",
            "str w1, [x0]",
            "mvn x19, x9",
            in("x0") doorbell,
            in("w1") token,
            in("x20") near_own,
            in("x2") 0u64,
            in("x3") 0u64,
            in("x4") 0u64,
            in("x5") 0u64,
            in("x6") 0u64,
            in("x7") 0u64,
            in("x8") 0u64,
            out("x9") _,
            in("x10") 0u64,
            in("x11") 0u64,
            in("x12") 0u64,
            in("x13") 0u64,
            in("x14") 0u64,
            in("x15") 0u64,
            in("x16") 0u64,
            in("x17") 0u64,
            in("x21") 0u64,
            in("x22") 0u64,
            in("x23") 0u64,
            in("x24") 0u64,
            in("x25") 0u64,
            in("x26") 0u64,
            in("x27") 0u64,
            in("x28") 0u64,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(target_arch = "aarch64")]
#[inline(never)]
unsafe fn displaced(page: u64, token: u32) {
    // SAFETY: the caller guarantees the address; the store touches nothing else.
    unsafe {
        core::arch::asm!("str w2, [x8, #0x90]", in("x8") page, in("w2") token, options(nostack, preserves_flags));
    }
}
