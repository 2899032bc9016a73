//! The `nvcap` program: see `cli` in the library.

fn main() -> std::process::ExitCode {
    nvcap::main()
}
