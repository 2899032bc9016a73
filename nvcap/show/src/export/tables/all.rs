//! The schema: every table with its columns. All formats, the output of `nvcap schema` and docs/tables.md are made of it.

use super::schema::Column;
use super::{columns, ending, faults, samples, slices};

/// A table.
pub struct Table {
    /// Its name, and that of its file.
    pub name: &'static str,
    /// Description of a row.
    pub about: &'static str,
    /// True if the table grows with the trace.
    pub(super) is_large: bool,
    /// Its columns, in groups that tables share.
    groups: &'static [&'static [Column]],
}

/// All tables.
pub static TABLES: [Table; 10] = [
    Table {
        name: "operations",
        about: "a row for each operation: launch, replay of a graph, copy, fill, inline write, semaphore, barrier",
        is_large: true,
        groups: &[
            columns::EVENT,
            columns::ENTRY,
            columns::OPERATION,
            columns::GPU_TIME,
        ],
    },
    Table {
        name: "submissions",
        about: "a row for each submission: what one doorbell handed to the GPU",
        is_large: true,
        groups: &[columns::EVENT, columns::SUBMISSION, columns::GPU_TIME],
    },
    Table {
        name: "kernels",
        about: "a row for each launch of a kernel, nodes of graph replays included, with all that its QMD says",
        is_large: true,
        groups: &[
            columns::EVENT,
            columns::ENTRY,
            columns::KERNEL,
            columns::GPU_TIME,
        ],
    },
    Table {
        name: "ioctls",
        about: "a row for each ioctl on the driver's files",
        is_large: true,
        groups: &[columns::IOCTL],
    },
    Table {
        name: "channels",
        about: "a row for each channel: what was captured of it, and what is missing",
        is_large: false,
        groups: &[ending::CHANNEL],
    },
    Table {
        name: "losses",
        about: "a row for each thing that is missing or was not understood; none where all is there",
        is_large: false,
        groups: &[ending::LOSS],
    },
    Table {
        name: "faults",
        about: "a row for each error for which the driver stopped a channel, or all of a GPU's; none where there was no such",
        is_large: false,
        groups: &[faults::FAULT],
    },
    Table {
        name: "samples",
        about: "a row for each instruction at which the GPU's sampler found warps in a window of time (record --sample-pc)",
        is_large: true,
        groups: &[samples::SAMPLES],
    },
    Table {
        name: "slices",
        about: "a row for each time that a context had a GPU, as the driver recorded it (record --shares)",
        is_large: true,
        groups: &[slices::SLICES],
    },
    Table {
        name: "ledger",
        about: "one row: the trace as a whole, and the verdict",
        is_large: false,
        groups: &[ending::LEDGER],
    },
];

impl Table {
    /// Its place in [`TABLES`].
    pub fn index(name: &str) -> Option<usize> {
        TABLES.iter().position(|table| table.name == name)
    }

    /// Its columns.
    pub fn columns(&self) -> impl Iterator<Item = &'static Column> + use<> {
        self.groups.iter().copied().flatten()
    }
}
