//! Handles of clients of the driver in memory, as libcuda keeps them, and open files with the names of the driver's.

use std::fs::File;
use std::io;
use std::path::Path;

/// Puts the handles of a client with the objects of two contexts into memory that stays. The client stands in front of its device in many structures.
pub fn keep(client: u32) {
    let mut words = Vec::new();
    for i in 0..20u32 {
        words.extend([client, 0x5c00_0002, 7, i]);
    }
    for object in 0x5c00_0000..0x5c00_0100u32 {
        words.extend([object, 1]);
    }
    std::hint::black_box(Vec::leak(words));
}

/// Opens a file as the driver's control device, and one beside it as the GPU's, and leaves them open.
///
/// # Errors
/// Those of opening them.
pub fn open(file: &Path) -> io::Result<()> {
    for name in [file.to_owned(), file.with_file_name("nvidia0")] {
        std::mem::forget(File::create(name)?);
    }
    Ok(())
}
