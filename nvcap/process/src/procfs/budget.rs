//! Limits for reading data that a process controls: its files, and structures in its memory, can have any size.

use std::cell::Cell;

/// Number of bytes that may be read and examined for one process.
#[derive(Debug)]
pub struct Budget {
    left: Cell<u64>,
    is_spent: Cell<bool>,
    refused: Cell<u64>,
}

impl Budget {
    /// Makes a budget of this many bytes.
    pub const fn of(bytes: u64) -> Self {
        Self {
            left: Cell::new(bytes),
            is_spent: Cell::new(false),
            refused: Cell::new(0),
        }
    }

    /// Takes this many bytes. Returns false, and takes nothing, if fewer are left.
    #[must_use]
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let left = self.left.get().checked_sub(bytes);
        match left {
            Some(left) => self.left.set(left),
            None => {
                self.is_spent.set(true);
                self.refuse();
            }
        }
        left.is_some()
    }

    /// Counts a read that is too large for any budget.
    pub(crate) fn refuse(&self) {
        self.refused.set(self.refused.get() + 1);
    }

    /// Returns the number of reads that were not made because of their size.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Returns the number of bytes that are left.
    #[cfg(test)]
    pub(crate) fn left(&self) -> u64 {
        self.left.get()
    }

    /// Tells whether a read has wanted more bytes than were left.
    pub fn is_spent(&self) -> bool {
        self.is_spent.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is() {
        let budget = Budget::of(10);
        assert!(budget.take(7) && !budget.is_spent());
        assert!(!budget.take(4) && budget.is_spent());
        assert!(budget.take(3) && !budget.take(u64::MAX));
        assert_eq!((budget.left(), budget.refused()), (0, 2));
        budget.refuse();
        assert_eq!(budget.refused(), 3);
    }
}
