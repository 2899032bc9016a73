//! An initramfs: the uncompressed "newc" cpio that the kernel unpacks. Needs no root and no cpio(1).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

const DIRECTORY: u32 = 0o040_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// An archive under construction.
pub struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
    folders: BTreeSet<String>,
}

impl Cpio {
    /// An archive with the mount points and a console.
    pub fn new() -> Self {
        let mut cpio = Cpio {
            bytes: Vec::new(),
            inode: 0,
            folders: BTreeSet::new(),
        };
        for folder in ["dev", "proc", "sys", "tmp", "run", "etc", "bin"] {
            cpio.folder(folder);
        }
        cpio.record("dev/console", CHARACTER_DEVICE | 0o600, &[], (5, 1));
        cpio
    }

    fn folder(&mut self, name: &str) {
        if name.is_empty() || self.folders.contains(name) {
            return;
        }
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.folder(parent);
        }
        self.folders.insert(name.to_string());
        self.record(name, DIRECTORY | 0o755, &[], (0, 0));
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }

    fn record(&mut self, name: &str, mode: u32, data: &[u8], device: (u32, u32)) {
        self.inode += 1;
        let fields = [
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            data.len() as u32,
            0,
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    /// Adds a file with these bytes.
    pub fn bytes(&mut self, name: &str, data: &[u8], mode: u32) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.folder(parent);
        }
        self.record(name, REGULAR | mode, data, (0, 0));
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, name: &str, to: &str) {
        self.record(name, LINK | 0o777, to.as_bytes(), (0, 0));
    }

    /// Adds a copy of a host's file with its permissions.
    pub fn file(&mut self, name: &str, from: &Path) -> Result<()> {
        let data = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let mode = fs::metadata(from)?.permissions().mode() & 0o777;
        self.bytes(name, &data, mode);
        Ok(())
    }

    /// The whole archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.record("TRAILER!!!", 0, &[], (0, 0));
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and data of an archive, read back.
    fn read(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut at = 0;
        let mut found = Vec::new();
        loop {
            assert_eq!(&archive[at..at + 6], b"070701");
            let field = |n: usize| {
                let text = std::str::from_utf8(&archive[at + 6 + 8 * n..][..8]).expect("hex");
                usize::from_str_radix(text, 16).expect("hex")
            };
            let (size, name_len) = (field(6), field(11));
            let name = String::from_utf8_lossy(&archive[at + 110..][..name_len - 1]).into_owned();
            let data_at = (at + 110 + name_len).next_multiple_of(4);
            let data = archive[data_at..data_at + size].to_vec();
            at = (data_at + size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                return found;
            }
            found.push((name, data));
        }
    }

    #[test]
    fn what_is_put_in_comes_out_and_folders_come_first() {
        let mut cpio = Cpio::new();
        cpio.bytes("a/b/c", b"seven!!", 0o755);
        cpio.bytes("a/b/d", b"", 0o644);
        let archive = cpio.finish();
        assert_eq!(archive.len() % 512, 0);
        let names: Vec<_> = read(&archive);
        let position = |name: &str| names.iter().position(|(n, _)| n == name).expect(name);
        assert!(position("a") < position("a/b") && position("a/b") < position("a/b/c"));
        assert_eq!(names[position("a/b/c")].1, b"seven!!");
        assert_eq!(names.iter().filter(|(n, _)| n == "a/b").count(), 1);
        position("dev/console");
    }

    #[test]
    fn a_link_holds_the_name_it_leads_to() {
        let mut cpio = Cpio::new();
        cpio.link("bin/other", "/init");
        let found = read(&cpio.finish());
        assert!(found.contains(&("bin/other".into(), b"/init".to_vec())));
    }
}
