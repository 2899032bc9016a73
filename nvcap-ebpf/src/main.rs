//! nvcap's BPF programs, one file a concern:
//!
//! - `doorbell`: the programs that a hit on the doorbell breakpoint runs.
//! - `capture`: walks a channel's ring and copies entries and pushbuffer bytes; `walk` holds its state from step to step.
//! - `ioctl`, `mmap`, `process`: the calls and processes from which the driver model is made.
//! - `fentry`: another way into `ioctl` and `mmap`.
//! - `read`: reads of the traced process's memory, mainly of video memory.
//! - `stack`: the user stack of the thread that rang, if stacks are taken.
//! - `python`: the Python frames of that thread.
//! - `cached_put`: the process's own copy of GP_PUT, which is cheaper to read.
//! - `table`: changes maps on behalf of the user program.
//! - `kernel`: reading kernel structures by offsets found in BTF.
//!
//! Nothing here interprets a byte. All state that outlives a program run is in the maps of `maps`.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
// Atomic addition has no stable form for this target (it has no compare-and-swap before BPF v3).
#![allow(internal_features)]

mod cached_put;
mod capture;
mod doorbell;
mod fentry;
mod ioctl;
mod kernel;
mod known;
mod maps;
mod mmap;
mod mode;
mod process;
mod python;
mod read;
mod scan;
mod stack;
mod table;
mod walk;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Architecture whose registers the programs read. nvcap's build script refuses programs for another one.
#[unsafe(link_section = "nvcap_arch")]
#[unsafe(no_mangle)]
static NVCAP_ARCH: [u8; 18] = if cfg!(bpf_target_arch = "aarch64") {
    *b"nvcap for aarch64\0"
} else {
    *b"nvcap for x86_64\0\0"
};
