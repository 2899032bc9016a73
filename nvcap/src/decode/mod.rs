//! The decoder: bytes in, values out. No I/O, no clock, no kernel, no panic on any input.

pub mod event;
