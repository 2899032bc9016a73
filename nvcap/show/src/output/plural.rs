//! Numbers with the word for what is counted.

/// `1 thread`, `2 threads`.
#[must_use]
pub fn plural(n: u64, one: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} {one}{s}")
}

/// Counts as [`plural`] does, for a word whose plural is not made by an s.
#[must_use]
pub fn plural_of(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}
