//! Replacement of users' data by its length and a short hash (`--redact`).
//!
//! What counts as users' data: the bytes of inline writes, kernel arguments, fill patterns, the data words of
//! methods that carry such bytes, and all raw pushbuffer bytes. Addresses, sizes, geometry, semaphore payloads and names
//! are shown. The hash has a new key in each run: within one trace equal data has equal hashes, and nobody can find data
//! by comparing hashes of guessed values.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Replaces users' data, with one key for the whole run.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    key: RandomState,
}

/// Replacement of hidden bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Redacted {
    /// Number of bytes that are hidden.
    #[serde(rename = "redacted_bytes")]
    pub bytes: u64,
    /// Hash of the bytes: within a run the same for the same bytes.
    #[serde(serialize_with = "hash_hex")]
    pub hash: u32,
}

impl fmt::Display for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} B #{:08x}>", self.bytes, self.hash)
    }
}

fn hash_hex<S: serde::Serializer>(hash: &u32, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&format_args!("{hash:08x}"))
}

impl Redactor {
    /// Hides `bytes`.
    #[must_use]
    pub fn hide(&self, bytes: &[u8]) -> Redacted {
        let mut hasher = self.key.build_hasher();
        hasher.write(bytes);
        Redacted {
            bytes: bytes.len() as u64,
            hash: (hasher.finish() >> 32) as u32,
        }
    }
}

/// Tells whether a method of this name carries users' data in its data word.
#[must_use]
pub(crate) fn carries_data(method_name: &str) -> bool {
    const CARRIERS: [&str; 8] = [
        "LOAD_INLINE_DATA",
        "LOAD_INLINE_QMD_DATA",
        "LOAD_CONSTANT_BUFFER",
        "SET_REMAP_CONST_A",
        "SET_REMAP_CONST_B",
        "LOAD_ROOT_TABLE",
        "LOAD_ROOT_TABLE_OFFSET",
        "PIXELS_FROM_MEMORY_DATA",
    ];
    // Array elements are spelled NAME(i).
    let base = method_name.split(['(', '[']).next().unwrap_or(method_name);
    CARRIERS.contains(&base) || base.ends_with("_DATA") && base.contains("LOAD")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_data_is_equal_within_a_run_and_not_across_runs() {
        let a = Redactor::default();
        let b = Redactor::default();
        assert_eq!(a.hide(b"secret"), a.hide(b"secret"));
        assert_ne!(a.hide(b"secret"), a.hide(b"secres"));
        assert_ne!(a.hide(b"secret"), b.hide(b"secret"));
        assert_eq!(a.hide(b"secret").bytes, 6);
    }

    #[test]
    fn the_methods_that_carry_data_are_known() {
        assert!(carries_data("LOAD_INLINE_DATA"));
        assert!(carries_data("LOAD_INLINE_QMD_DATA(3)"));
        assert!(carries_data("LOAD_CONSTANT_BUFFER(15)"));
        assert!(!carries_data("SEND_PCAS_A"));
        assert!(!carries_data("OFFSET_IN_UPPER"));
    }
}
