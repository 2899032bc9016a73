//! The two doorbell stores: real instructions at two distinct places, each never inlined, so that a tracer meets
//! exactly two sites. The first is the one libcuda has; the second has a displacement, as other drivers have.

/// Which store rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// `mov %ecx,(%rax)`: bytes 89 08.
    Plain,
    /// `mov %edx,0x90(%r8)`: the page in a register, the word's offset in the instruction.
    Displaced,
}

/// How far behind r14's address libcuda keeps its own copy of GP_PUT at the first store.
const CACHED_PUT: u64 = 72;

/// Rings: writes `token` to the doorbell word of the page at `page`. `own` is where the copy of GP_PUT is; the plain
/// store has an address near it in a register, as libcuda has.
///
/// # Safety
/// `page` must be mapped writable for at least 0x94 bytes.
pub unsafe fn ring(page: u64, token: u32, site: Site, own: u64) {
    // SAFETY: the caller vouches for the page.
    unsafe {
        match site {
            Site::Plain => plain(page + crate::layout::DOORBELL, token, own - CACHED_PUT),
            Site::Displaced => displaced(page, token),
        }
    }
}

/// Only r14 leads to a copy of GP_PUT: what else may point at one (this program counts on its stack, too) holds 0.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn plain(doorbell: u64, token: u32, near_own: u64) {
    // SAFETY: the caller vouches for the address; the store touches nothing else, and rbx and rbp are put back.
    unsafe {
        core::arch::asm!(
            "push %rbx",
            "push %rbp",
            "mov $0, %ebx",
            "mov $0, %ebp",
            "mov %ecx, (%rax)",
            "pop %rbp",
            "pop %rbx",
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
    // SAFETY: the caller vouches for the address; the store touches nothing else.
    unsafe {
        core::arch::asm!("mov %edx, 0x90(%r8)", in("r8") page, in("edx") token, options(att_syntax, nostack, preserves_flags));
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(never)]
unsafe fn plain(doorbell: u64, token: u32, _near_own: u64) {
    // SAFETY: the caller vouches for the address.
    unsafe { core::ptr::write_volatile(doorbell as *mut u32, token) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(never)]
unsafe fn displaced(page: u64, token: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe { core::ptr::write_volatile((page + crate::layout::DOORBELL) as *mut u32, token) }
}
