//! The names of kernels, found in the process's own memory: no injection, no restart, nothing of CUPTI.
//!
//! libcuda keeps a record of each function, which holds the program's address and a pointer to the function's name; the name
//! lies in the cubin image of the function's module, which libcuda keeps too. [`layout`] learns where in a record the pointer
//! is; [`images`] reads images; [`scan`] searches memory; [`resolver`] puts them together for one process; [`programs`] finds
//! programs in submissions as they come; [`named`] adds the names to a live source.

mod images;
mod layout;
#[cfg(feature = "trap")]
pub(crate) mod named;
mod programs;
pub(crate) mod resolver;
mod scan;

#[cfg(test)]
mod tests;
