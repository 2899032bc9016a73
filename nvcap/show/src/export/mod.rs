//! Files that other programs open: each format is a sink in a module of its own.

#[cfg(test)]
mod browser;
mod facts;
pub mod kineto;
#[cfg(test)]
pub(crate) mod made;
#[cfg(feature = "sqlite")]
pub mod nsys;
pub mod perfetto;
pub mod report;
mod rows;
pub mod tables;
pub(crate) mod works;
