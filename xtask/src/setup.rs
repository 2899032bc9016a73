//! `cargo xtask setup`: says what this machine has, installs what it lacks for a build.

use anyhow::Result;

use crate::toolchain::Toolchain;

/// Installs the BPF toolchain where it is lacking; `check` only looks.
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
