// The fingerprint of what the BPF programs are made of, for `build.rs` and `cargo xtask bpf`, which include this file.

/// Files and folders of the BPF programs, from the repository's root.
const BPF_SOURCES: [&str; 6] = [
    "nvcap-common/Cargo.toml",
    "nvcap-common/build.rs",
    "nvcap-common/src",
    "nvcap-ebpf/Cargo.lock",
    "nvcap-ebpf/Cargo.toml",
    "nvcap-ebpf/src",
];

/// The fingerprint of the sources in the checkout at `root` (FNV-1a over names and contents, in the order of names): it says whether the
/// programs in `nvcap-ebpf/prebuilt` are of these sources. None where they are not all there, as in a package of nvcap alone.
fn bpf_fingerprint(root: &std::path::Path) -> Option<String> {
    let mut files = Vec::new();
    for source in BPF_SOURCES {
        let path = root.join(source);
        if path.is_dir() {
            // Both folders are flat.
            for entry in std::fs::read_dir(&path).ok()? {
                let name = entry.ok()?.file_name().into_string().ok()?;
                files.push(format!("{source}/{name}"));
            }
        } else {
            files.push(source.to_owned());
        }
    }
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for name in files {
        let bytes = std::fs::read(root.join(&name)).ok()?;
        for byte in name.bytes().chain([0]).chain(bytes) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Some(format!("{hash:016x}"))
}
