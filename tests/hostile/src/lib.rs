//! A target that does what no program should, in many modes. It counts its submissions, so that a trace can be compared
//! with them: the last lines of a run give the number of entries of each channel, and a checksum of them.

pub mod bed;
pub mod ends;
pub mod files;
pub mod floods;
pub mod mappings;
pub mod mode;
pub mod names;
pub mod process;
pub mod rings;
pub mod served;
pub mod signals;
pub mod streams;
