//! GPUs that a process uses: those whose device file the process has open or mapped. All commands find them
//! here.

use std::{collections::BTreeSet, io};

use crate::memory::maps;
use crate::procfs;
use nvcap_decode::record::Device;

/// The most open files of a process that are examined: more than a process may have by default, even as root.
const MOST: usize = 1 << 20;

/// Use of the driver by a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// The GPUs whose device file the process has open or mapped, by minor number.
    pub gpus: BTreeSet<u32>,
    /// True if the process has memory of a GPU mapped with the right to write, and can therefore submit.
    pub mapped: bool,
}

impl Uses {
    /// Tells whether the process uses a GPU.
    pub(crate) fn any(&self) -> bool {
        !self.gpus.is_empty()
    }
}

/// Finds the GPUs that a process uses.
///
/// # Errors
/// The errors of reading its open files and mappings: no such process, or no right to look into it.
pub fn of_process(pid: u32) -> io::Result<Uses> {
    let mut uses = Uses::default();
    let areas = maps::areas(pid)?;
    if areas.is_empty() {
        // This is a thread of the kernel's, or a process that is ending.
        return Ok(uses);
    }
    for area in areas {
        if let Some(minor) = area.gpu() {
            uses.gpus.insert(minor);
            uses.mapped |= area.write;
        }
    }
    // A process opens the file before it maps anything, and memory stays mapped when the file is closed.
    for file in procfs::open_files(pid)?.take(MOST) {
        let path = file?.path();
        if let Some(Device::Gpu(minor)) = maps::device_of_open(&path) {
            uses.gpus.insert(minor);
        }
    }
    Ok(uses)
}
