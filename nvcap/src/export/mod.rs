//! Files that other programs open: each format is a sink in a room of its own.

#[cfg(test)]
mod browser;
#[cfg(test)]
mod made;
pub(crate) mod perfetto;
pub(crate) mod report;
pub(crate) mod tables;
