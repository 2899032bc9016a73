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

/// Rings: writes `token` to the doorbell word of the page at `page`.
///
/// # Safety
/// `page` must be mapped writable for at least 0x94 bytes.
pub unsafe fn ring(page: u64, token: u32, site: Site) {
    // SAFETY: the caller vouches for the page.
    unsafe {
        match site {
            Site::Plain => plain(page + crate::layout::DOORBELL, token),
            Site::Displaced => displaced(page, token),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn plain(doorbell: u64, token: u32) {
    // SAFETY: the caller vouches for the address; the store touches nothing else.
    unsafe {
        core::arch::asm!("mov %ecx, (%rax)", in("rax") doorbell, in("ecx") token, options(att_syntax, nostack, preserves_flags));
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
unsafe fn plain(doorbell: u64, token: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe { core::ptr::write_volatile(doorbell as *mut u32, token) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(never)]
unsafe fn displaced(page: u64, token: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe { core::ptr::write_volatile((page + crate::layout::DOORBELL) as *mut u32, token) }
}
