//! nvcap's BPF programs, one file a concern:
//!
//! - `doorbell`: what a hit on the doorbell breakpoint starts.
//! - `capture`: walks a channel's ring and copies entries and pushbuffer bytes.
//! - `ioctl`, `mmap`, `process`: what the driver model is made from.
//! - `fentry`: another way into `ioctl` and `mmap`.
//! - `read`: reading the traced process's memory, video memory above all.
//! - `own`: the process's own copy of GP_PUT, which costs less to read.
//! - `table`: changes maps for the user program.
//! - `kernel`: reading kernel structures by offsets found in BTF.
//!
//! Nothing here decides what a byte means. All state that outlives a program run is in the maps of `maps`.
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
mod maps;
mod mmap;
mod process;
mod read;
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
