//! Files that other programs open: each format is a sink in a module of its own.

#[cfg(test)]
mod browser;
#[cfg(test)]
mod made;
pub mod perfetto;
pub mod report;
pub mod tables;
