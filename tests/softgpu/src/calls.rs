//! Functions that call each other before a doorbell is rung: what a tracer that shows stacks must show.

use std::hint::black_box;

/// Bytes that each of them keeps on the stack.
const KEPT: usize = 256;

/// Rings through `depth` calls: `depart` calls `travel`, which calls itself until it calls `arrive`, which rings.
pub fn through(depth: u32, ring: &dyn Fn()) {
    match depth {
        0 => ring(),
        _ => depart(depth, ring),
    }
}

#[inline(never)]
fn depart(depth: u32, ring: &dyn Fn()) {
    let kept = black_box([depth as u8; KEPT]);
    travel(depth - 1, ring);
    black_box(&kept);
}

#[inline(never)]
fn travel(left: u32, ring: &dyn Fn()) {
    let kept = black_box([left as u8; KEPT]);
    match left {
        0 => arrive(ring),
        _ => travel(left - 1, ring),
    }
    black_box(&kept);
}

#[inline(never)]
fn arrive(ring: &dyn Fn()) {
    let kept = black_box([1u8; KEPT]);
    ring();
    black_box(&kept);
}
