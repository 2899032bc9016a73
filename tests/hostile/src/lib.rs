//! A target that does what no program should, in many modes. What it submits is counted, so that a trace can be held
//! against it: the last lines of a run say how many entries each channel had, and a checksum of them.

pub mod bed;
pub mod ends;
pub mod mappings;
pub mod mode;
pub mod names;
pub mod process;
pub mod rings;
pub mod signals;
pub mod streams;
