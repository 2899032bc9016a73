//! Fat binaries as nvcc writes them, and programs with them.

/// Compression of an entry's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Not,
    Lz4,
    Zstd,
}

/// Kinds of entries.
pub const PTX: u16 = 1;
pub const ELF: u16 = 2;

/// An entry: its header, its payload, and zeros up to a multiple of 8.
pub fn entry(kind: u16, sm: u32, how: How, payload: &[u8]) -> Vec<u8> {
    let (flags, stored) = match how {
        How::Not => (0x11_u64, payload.to_vec()),
        How::Lz4 => (0x2011, lz4_flex::block::compress(payload)),
        How::Zstd => {
            let level = ruzstd::encoding::CompressionLevel::Fastest;
            (0x8011, ruzstd::encoding::compress_to_vec(payload, level))
        }
    };
    let padded = stored.len().next_multiple_of(8);
    let mut all = vec![0; 64];
    all[..2].copy_from_slice(&kind.to_le_bytes());
    all[2..4].copy_from_slice(&[1, 1]);
    all[4..8].copy_from_slice(&64u32.to_le_bytes());
    all[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
    if how != How::Not {
        all[16..20].copy_from_slice(&(stored.len() as u32).to_le_bytes());
        all[56..64].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    }
    all[24..28].copy_from_slice(&[7, 0, 1, 0]);
    all[28..32].copy_from_slice(&sm.to_le_bytes());
    all[40..48].copy_from_slice(&flags.to_le_bytes());
    all.extend(stored);
    all.resize(64 + padded, 0);
    all
}

/// A fat binary.
pub fn fat(entries: &[Vec<u8>]) -> Vec<u8> {
    let entries = entries.concat();
    let mut all = 0x0010_0001_ba55_ed50_u64.to_le_bytes().to_vec();
    all.extend((entries.len() as u64).to_le_bytes());
    all.extend(entries);
    all
}

/// A program (ELF for x86-64, without code) with a section `.nv_fatbin`.
pub fn program(fat: &[u8]) -> Vec<u8> {
    let names = b"\0.shstrtab\0.nv_fatbin\0";
    let mut all = vec![0; 64];
    all[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    all[16..20].copy_from_slice(&[3, 0, 62, 0]);
    let mut table = vec![0; 64];
    for (name, kind, bytes) in [(1u32, 3u32, names.as_slice()), (11, 1, fat)] {
        let at = all.len() as u64;
        all.extend(bytes);
        all.resize(all.len().next_multiple_of(16), 0);
        table.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
        table.extend([0; 16]);
        table.extend(at.to_le_bytes());
        table.extend((bytes.len() as u64).to_le_bytes());
        table.extend([0; 24]);
    }
    let at = all.len() as u64;
    all[40..48].copy_from_slice(&at.to_le_bytes());
    all[58..64].copy_from_slice(&[64, 0, 3, 0, 1, 0]);
    all.extend(table);
    all
}
