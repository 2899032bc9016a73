//! The software GPU.
fn main() {}
