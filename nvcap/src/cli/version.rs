//! Texts of `-V` and `--version`: the identity of this nvcap, and its abilities.

use std::fmt::Write as _;
use std::sync::OnceLock;

/// Commit from which nvcap was built; `unknown` if that was no git checkout.
const COMMIT: &str = env!("NVCAP_COMMIT");

/// Returns the short text: `0.1.0 (commit)`.
pub(super) fn short() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("{} (commit {COMMIT})", env!("CARGO_PKG_VERSION")))
}

/// Returns the text of `--version`: the short form, and the parts that were built in.
pub(super) fn long() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = format!("{}\ncommit: {COMMIT}\n", env!("CARGO_PKG_VERSION"));
        let (first, last) = nvcap_decode::driver::releases();
        // Writing to a string does not fail.
        let _ = writeln!(text, "live tracing: {}", bpf());
        let _ = writeln!(
            text,
            "driver branches: {} to {} ({first} to {last})",
            first.major, last.major
        );
        let _ = write!(text, "files: plain or compressed by {}", compressions());
        text
    })
}

/// Returns the forms of the doorbell program that were built in, by the kernels that accept them.
fn bpf() -> String {
    use nvcap_live::trap::load::doorbell_programs;

    let forms: Vec<&str> = doorbell_programs()
        .map(|name| match name {
            "doorbell_loop" => "bpf_loop (Linux 5.17 on)",
            "doorbell_tail" => "tail calls (Linux 5.15 on)",
            other => other,
        })
        .collect();
    match forms.is_empty() {
        true => "without BPF, --how observe alone".to_owned(),
        false => format!("BPF with {}; --how observe", forms.join(" and with ")),
    }
}

fn compressions() -> String {
    let known = [
        ("gzip", true),
        ("xz", cfg!(feature = "xz")),
        ("zstd", cfg!(feature = "zstd")),
    ];
    let known = known.iter().filter(|(_, has)| *has).map(|(name, _)| *name);
    known.collect::<Vec<_>>().join(", ")
}
