//! Stores that ring doorbells, learnt from processes of this trace and of earlier ones. Their places in their files (libcuda) are kept, so
//! that the next process with the same file is stopped at them from its first doorbell on.
//!
//! Nothing is trusted. In each process, the bytes at the place are compared and decoded anew, and the file's build id is compared, before a
//! breakpoint is set there ([`found_in`]). A store that differs from the learnt one is not used; a store that is the same and never stops is
//! given up (`session/taught_stores.rs`).
//!
//! The table belongs to one trace, and serves all its processes (`-a`). A file that only root owns and writes ([`Cache`]) passes it to the
//! next trace. There is no list of stores in releases of libcuda, made beforehand: each release would outdate it, and one trace of a second
//! learns the same. Users other than root have no file: with file capabilities, nvcap would read and write a path of theirs with rights that
//! they do not have.

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
