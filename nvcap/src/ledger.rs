//! The ledger: per channel, what was captured and what is known to be missing.
