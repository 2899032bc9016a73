//! Use counts of the driver's modules. Each open file counts as a use of its module, so a change of the counts shows that a file may have
//! been opened.

use std::{fs::File, os::unix::fs::FileExt};

/// The use counts of the driver's modules.
#[derive(Debug)]
pub(super) struct Opens {
    counts: Vec<File>,
    last: Option<Vec<u8>>,
}

impl Opens {
    /// Opens the counts of this machine's kernel.
    pub(super) fn new() -> Self {
        let open = |module: &str| File::open(format!("/sys/module/{module}/refcnt")).ok();
        Self {
            counts: ["nvidia", "nvidia_uvm"]
                .into_iter()
                .filter_map(open)
                .collect(),
            last: None,
        }
    }

    /// Tells whether a file may have been opened or closed since the last call. This is always true if the kernel does not count uses.
    pub(super) fn may_have_changed(&mut self) -> bool {
        let mut now = Vec::new();
        for count in &self.counts {
            let mut room = [0; 24];
            match count.read_at(&mut room, 0) {
                Ok(len) => now.extend_from_slice(room.get(..len).unwrap_or_default()),
                // The module was unloaded; another may be loaded.
                Err(_) => {
                    *self = Self::new();
                    return true;
                }
            }
        }
        let same = !now.is_empty() && self.last.as_ref() == Some(&now);
        self.last = Some(now);
        !same
    }
}
