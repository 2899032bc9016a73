//! Reading other processes from outside (Linux): what `/proc` tells, the rings in their memory, their stacks, who they are, and the rights for all that.
//!
//! | module | contents |
//! | --- | --- |
//! | [`procfs`] | `/proc` of processes: state, threads, mappings, memory |
//! | [`memory`] | rings and pushbuffers of a process, read through `/proc/PID/mem`: where they are, what is in them, tokens |
//! | [`host`] | the processes of this host that use a GPU, and who each is: user, container, pod |
//! | [`stacks`] | user stacks, from bytes to frames with names; CPython's frames |
//! | [`command`] | the command that is started for a trace, and as which [`user`] |
//! | [`exit_stop`], [`exit_hold`] | stops of processes at their end, for a last look |
//! | [`channels_file`] | channels that the user names |
//! | [`clock`] | the clock that all times are of |
//! | [`rights`], [`filtered`], [`confine`] | what nvcap may do, what a seccomp filter refuses it, what it gives up |
//! | [`error`] | errors with their remedy |
//! | [`signals`] | signals that end a trace |
//! | `in_step` | for tests alone (feature `in-step`): nvcap tells the software GPU how far it has read |

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod channels_file;
pub mod clock;
pub mod command;
pub mod confine;
pub mod descriptors;
pub mod error;
pub mod exit_hold;
pub mod exit_stop;
pub mod filtered;
pub mod host;
#[cfg(feature = "in-step")]
#[doc(hidden)]
pub mod in_step;
pub mod memory;
pub mod procfs;
pub mod rights;
pub mod signals;
pub mod stacks;
pub mod user;
