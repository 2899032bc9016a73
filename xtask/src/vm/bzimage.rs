//! The ELF kernel out of a packaged bzImage: QEMU starts it directly (PVH), which saves the guest's own unpacking.
//!
//! Layout: the kernel's Documentation/arch/x86/boot.rst. The payload is unpacked by the ordinary command-line tool.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The tool for a compressed payload, by its first bytes, with its Debian package.
fn tool(payload: &[u8]) -> Option<(&'static [&'static str], &'static str)> {
    const TOOLS: &[(&[u8], &[&str], &str)] = &[
        (b"\x28\xb5\x2f\xfd", &["zstd", "-dc"], "zstd"),
        (b"\x02\x21\x4c\x18", &["lz4", "-dc"], "lz4"),
        (b"\xfd7zX", &["xz", "-dc", "--single-stream"], "xz-utils"),
        (b"\x1f\x8b\x08", &["gzip", "-dc"], "gzip"),
    ];
    TOOLS
        .iter()
        .find(|(magic, ..)| payload.starts_with(magic))
        .map(|&(_, command, package)| (command, package))
}

fn u32_at(image: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?))
}

/// The compressed kernel inside a bzImage.
fn payload(image: &[u8]) -> Option<&[u8]> {
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = match image[0x1f1] {
        0 => 4,
        n => usize::from(n),
    };
    let start = (setup_sectors + 1) * 512 + u32_at(image, 0x248)? as usize;
    image.get(start..start + u32_at(image, 0x24c)? as usize)
}

/// Writes the ELF kernel in `image` to `out`.
pub fn extract(image: &Path, out: &Path) -> Result<()> {
    let bytes = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    let payload = payload(&bytes).with_context(|| format!("{} is no bzImage", image.display()))?;
    let Some((command, package)) = tool(payload) else {
        bail!(
            "{}: unknown compression {:02x?}",
            image.display(),
            &payload[..payload.len().min(4)]
        );
    };
    // The last four bytes are the unpacked size, added by the kernel's build; gzip has it anyway.
    let body = if command[0] == "gzip" {
        payload
    } else {
        &payload[..payload.len().saturating_sub(4)]
    };
    super::shell::need(&[(command[0], package)], "unpacking a kernel")?;
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(fs::File::create(out)?)
        .spawn()
        .with_context(|| {
            format!(
                "cannot start {}; type: sudo apt-get install {package}",
                command[0]
            )
        })?;
    let written = child.stdin.take().context("its input")?.write_all(body);
    let status = child.wait()?;
    let mut magic = [0; 4];
    std::io::Read::read_exact(&mut fs::File::open(out)?, &mut magic).ok();
    if written.is_err() || !status.success() || &magic != b"\x7fELF" {
        fs::remove_file(out).ok();
        bail!(
            "{} did not unpack {} to an ELF kernel ({status})",
            command[0],
            image.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_found_and_its_tool_known() {
        let mut image = vec![0u8; 4096];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&0x10u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&0x20u32.to_le_bytes());
        image[1024 + 0x10..][..4].copy_from_slice(b"\x28\xb5\x2f\xfd");
        let p = payload(&image).expect("a bzImage");
        assert_eq!(p.len(), 0x20);
        assert_eq!(tool(p).map(|t| t.1), Some("zstd"));
        assert!(payload(&image[..600]).is_none());
        image[0x202] = 0;
        assert!(payload(&image).is_none());
    }
}
