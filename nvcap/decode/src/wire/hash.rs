//! Maps and sets by numbers (addresses, ids), for the path of every submission.
//!
//! The standard library's hash takes longer than the rest of such a look-up. This one also has a random seed, so a traced program that
//! chooses its addresses cannot choose their places in a map.

use std::collections::{HashMap, HashSet};

/// A map by numbers.
pub type NumberMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
/// A set of numbers.
pub(crate) type NumberSet<K> = HashSet<K, foldhash::fast::RandomState>;
