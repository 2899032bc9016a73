//! Trait for writing maps of the BPF programs. Unit tests have an implementation that remembers all writes.

use nvcap_common::{Ranges, TokenKey, TokenValue};

use super::super::load::Loaded;
use nvcap_process::error::Result;

/// Maps of the BPF programs that the session writes.
pub(super) trait BpfMaps {
    /// Sets the channel that a token names.
    fn set_token(&mut self, key: TokenKey, value: TokenValue) -> Result<()>;
    /// Forgets a token.
    fn forget_token(&mut self, key: TokenKey);
    /// Sets the address translation with this key.
    fn set_ranges(&mut self, key: u32, ranges: Ranges) -> Result<()>;
}

impl BpfMaps for Loaded {
    fn set_token(&mut self, key: TokenKey, value: TokenValue) -> Result<()> {
        Loaded::set_token(self, key, value)
    }

    fn forget_token(&mut self, key: TokenKey) {
        Loaded::forget_token(self, key);
    }

    fn set_ranges(&mut self, key: u32, ranges: Ranges) -> Result<()> {
        Loaded::set_ranges(self, key, ranges)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Content of the maps.
    #[derive(Default)]
    pub(in super::super) struct Written {
        pub(in super::super) tokens: HashMap<TokenKey, TokenValue>,
        pub(in super::super) ranges: HashMap<u32, Ranges>,
    }

    impl BpfMaps for Written {
        fn set_token(&mut self, key: TokenKey, value: TokenValue) -> Result<()> {
            self.tokens.insert(key, value);
            Ok(())
        }

        fn forget_token(&mut self, key: TokenKey) {
            self.tokens.remove(&key);
        }

        fn set_ranges(&mut self, key: u32, ranges: Ranges) -> Result<()> {
            self.ranges.insert(key, ranges);
            Ok(())
        }
    }
}
