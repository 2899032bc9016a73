//! Stores that ring doorbells, as processes of this trace and of earlier ones taught them: where they are in their files (libcuda), so
//! that the next process with the same file is stopped at them from its first doorbell on.
//!
//! Nothing here is believed: of each process the bytes at the place are compared and decoded anew, and the file's build id, before a
//! breakpoint is set there ([`found_in`]). What is not as it was taught is not used; what is and never stops is given up
//! (`session/taught_stores.rs`).
//!
//! The table is that of one trace, which serves all its processes (`-a`); a file that root alone owns and writes ([`Cache`]) hands it to
//! the next one. There is no list made beforehand of stores in releases of libcuda: it would be out of date with each of them, and one trace
//! of a second teaches the same. Users other than root have no file: with file capabilities nvcap would read and write a path of
//! theirs with rights that they do not have.

mod cache;
mod file_id;
mod mapped;
mod store;
mod table;

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use self::store::tests;
pub(crate) use self::{
    cache::Cache,
    file_id::FileId,
    mapped::{file_of, found_in, pieces},
    store::KnownStore,
    table::KnownStores,
};
