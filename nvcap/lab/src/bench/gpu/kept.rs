//! Submissions that are kept: the bytes that a tracer of this program must see.

use std::{cell::RefCell, rc::Rc};

/// A submission as it lay in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The channel's work-submit token.
    pub token: u32,
    /// The ring entry.
    pub entry: u64,
    /// The pushbuffer.
    pub words: Vec<u32>,
}

/// The submissions of all channels, in order, if they are kept.
pub(crate) type Kept = Rc<RefCell<Vec<Submission>>>;
