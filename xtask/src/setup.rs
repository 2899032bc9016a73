//! `cargo xtask setup`: shows what this machine has, installs what a build lacks.

use anyhow::Result;

use crate::toolchain::Toolchain;

/// Installs the BPF toolchain if missing; `check` only looks.
pub fn run(check: bool) -> Result<()> {
    let found = if check {
        Toolchain::find()
    } else {
        Some(Toolchain::get()?)
    };
    match found {
        Some(toolchain) => {
            println!("BPF compiler  {}", toolchain.compiler.name);
            println!("              {}", toolchain.compiler.rustc.display());
            println!("BPF linker    {}", toolchain.linker.display());
            println!("Ready. Next: cargo xtask build --release, or cargo xtask run");
            Ok(())
        }
        None => anyhow::bail!("the BPF toolchain is not complete; type: cargo xtask setup"),
    }
}
