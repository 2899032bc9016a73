//! Events in the life of processes and threads.

use super::Identity;

/// An event in the life of a process or thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// The process existed, or became traced, under this command name.
    Present {
        /// Command name of the process.
        name: String,
    },
    /// The process made a child process, which is now traced, too.
    Fork {
        /// Process id of the child.
        child: u32,
    },
    /// The process made a thread.
    Thread {
        /// Thread id.
        child: u32,
    },
    /// The process executed a new program, so all its mappings are gone.
    Exec {
        /// The new command name.
        name: String,
    },
    /// Identity of the process: its user, container and pod. It is recorded if several processes are traced; a later one replaces it.
    Identity(Box<Identity>),
    /// The thread `tid` ended; `process` is true if it was the last.
    Exit {
        /// True if the whole process ended.
        process: bool,
    },
}

impl Life {
    /// Tells whether the work of the process ends with this event: nothing of its memory is left.
    #[must_use]
    pub fn ends_work(&self) -> bool {
        matches!(self, Self::Exec { .. } | Self::Exit { process: true })
    }
}
