//! The list of modes.

use anyhow::Result;

use crate::bed::Bed;
use crate::{ends, files, floods, mappings, names, rings, served, signals, streams};

/// One kind of behaviour of the target.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// `group::what`.
    pub name: &'static str,
    /// Runs it. The counts are printed afterwards, unless the mode prints them itself because it does not return.
    pub run: fn(&Bed) -> Result<()>,
    /// Entries of each ring.
    pub entries: u32,
    /// Every entry is counted. Otherwise the mode submits things that cannot be counted, such as a random GP_PUT.
    pub exact: bool,
}

macro_rules! modes {
    ($($group:ident: $($name:ident $(of $entries:literal)? $(is $vague:ident)?),*;)*) => {
        &[$($(Mode {
            name: concat!(stringify!($group), "::", stringify!($name)),
            run: $group::$name,
            entries: modes!(@entries $($entries)?),
            exact: modes!(@exact $($vague)?),
        },)*)*]
    };
    (@entries) => { softgpu::layout::ENTRIES };
    (@entries $n:literal) => { $n };
    (@exact) => { true };
    (@exact vague) => { false };
}

/// All modes.
pub const MODES: &[Mode] = modes! {
    ends: left_mapped, unmapped, sigkill, sigsegv, sigabrt, exit_group_elsewhere, first_thread_ends, daemon, spawn, exec_at_once,
        child_outlives, lingers, daemon_executes, daemons_late, own_rings, short_forks, threads, undumpable, traced, closed;
    names: of_threads, false_devices, of_mappings;
    rings: put_jumps is vague, put_backwards is vague, put_beyond is vague, entries_nowhere is vague, mapped_again is vague,
        moved is vague, protected, userd_random is vague, of_two of 2, of_65536 of 65536, idle_doorbells, all_at_once, storm;
    streams: random_words, cut_method, nops, odd_qmds, inline_beyond, semaphores;
    mappings: many, made_and_undone, sparse;
    files: environment, fifos, sections, long_names;
    floods: programs, semaphores, threads, notifiers;
    served: pushbuffers is vague, ring is vague, faults is vague;
    signals: stopped, trap_handler, storm, timers, other_stack, blocked;
};

/// The mode of this name.
pub fn find(name: &str) -> Option<&'static Mode> {
    MODES.iter().find(|m| m.name == name)
}
