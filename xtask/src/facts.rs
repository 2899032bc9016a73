//! `cargo xtask facts`: from the TSV files in `facts/` to the compact tables that the library embeds (`nvcap/decode/facts/*.bin`).
//!
//! The output depends on the input alone (no time, no path, no hash order), so `--check` can compare the committed bytes
//! with newly made ones.

mod classes;
mod rm;
mod tables;
mod tsv;

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::paths;

/// Builds the tables; with `check`, compares them with the committed ones instead of writing them.
pub fn run(check: bool) -> Result<()> {
    let (folder, facts) = (paths::root().join("nvcap/decode/facts"), paths::facts());
    let tables = [
        ("classes.bin", classes::classes(&facts)?),
        ("qmd.bin", classes::qmd(&facts.join("qmd"))?),
        ("rm.bin", rm::rm(&facts.join("rm"))?),
    ];
    for (name, bytes) in tables {
        let path = folder.join(name);
        if check {
            let committed =
                fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            ensure!(
                committed == bytes,
                "{name} is not what the facts give: run `cargo xtask facts` and commit it"
            );
            println!("facts: {name} is up to date ({} bytes)", bytes.len());
        } else {
            fs::create_dir_all(&folder)?;
            fs::write(&path, &bytes).with_context(|| format!("writing {}", path.display()))?;
            println!("facts: wrote {name} ({} bytes)", bytes.len());
        }
    }
    Ok(())
}
