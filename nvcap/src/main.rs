//! The `nvcap` program.
fn main() {}
