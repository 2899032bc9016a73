//! Search for the channels of a process, and for signs that it has others than those that are known.

use super::super::channel::From;
use super::super::find::{self, Readable};
use super::super::source::System;
use super::{Host, SECOND};
use nvcap_process::memory::maps::Area;
use nvcap_process::memory::scan::Effort;

/// The part of a core that may be spent on looking for a process's new channels: while it begins, and later.
const SHARE_EARLY: f64 = 0.01;
const SHARE_LATER: f64 = 0.0002;
/// The part of a core that may be spent on finding out whether a process has other mappings of GPUs' memory.
const SHARE_GLANCE: f64 = 0.001;
/// Time for which a process counts as beginning, ns: after its first channels were found, or after it was found itself while it has none.
const EARLY: u64 = 20 * SECOND;
/// The most searches in a row while each may have missed a channel.
const SEARCHES: u32 = 4;

impl<S: System> Host<S> {
    /// Looks for the channels of a process.
    pub(super) fn search(&mut self, pid: u32) {
        let (begun, cpu) = self.system.clocks();
        let Ok(areas) = self.system.areas(pid) else {
            return;
        };
        let pages = self.system.pages(pid);
        let Some(watched) = self.processes.get_mut(&pid) else {
            return;
        };
        let effort = match watched.first_found {
            None => Effort::Usual,
            Some(_) => Effort::Habit,
        };
        let from = match watched.first_found {
            None => watched.from,
            // Whatever the process has made since counts from its beginning.
            Some(_) => From::Beginning,
        };
        let of_gpus = of_gpus(&areas);
        let searched = watched.lend(move |memory, channels, detail| {
            let mut found = find::search(memory, &areas, effort);
            if effort == Effort::Habit {
                channels.keep_others(&mut found, memory);
            }
            let readable = Readable::new(&areas);
            let is_doubtful = channels.found(memory, readable, &found, from, begun);
            if let Some(detail) = detail {
                detail.mapped(memory, &areas);
            }
            (!found.channels.is_empty(), is_doubtful)
        });
        let Some((has_channels, is_doubtful)) = searched else {
            return;
        };
        watched.of_gpus = of_gpus;
        if watched.first_found.is_none() && has_channels {
            watched.first_found = Some(begun);
            // Before anything is summed up under its keys.
            watched.instances = self.system.instances(pid);
        }
        if watched.first_found.is_none() {
            // It had none at the first look: all that it will have is new.
            watched.from = From::Beginning;
        }
        (watched.pages, watched.searched) = (pages, begun);
        watched.doubtful = if is_doubtful { watched.doubtful + 1 } else { 0 };
        // A process may have its mappings for long before it has a channel.
        let none_yet = watched.channels.is_empty() && !watched.of_gpus.is_empty();
        watched.wants_search = none_yet || (1..SEARCHES).contains(&watched.doubtful);
        (watched.has_grown, watched.is_lost) = (false, false);
        let (_, after) = self.system.clocks();
        watched.search_cost = after.saturating_sub(cpu);
    }

    /// Looks whether a process whose size has changed has other mappings of GPUs' memory. Without them it has no other channels than those that are
    /// known and watched.
    pub(super) fn glance_if_due(&mut self, pid: u32, now: u64) {
        let Some(watched) = self.processes.get(&pid).filter(|p| p.has_grown) else {
            return;
        };
        let pause = (watched.glance_cost as f64 / SHARE_GLANCE) as u64;
        if watched.wants_search || now.saturating_sub(watched.glanced) < pause {
            return;
        }
        let (_, cpu) = self.system.clocks();
        let pages = self.system.pages(pid);
        let Ok(areas) = self.system.areas(pid) else {
            return;
        };
        let (_, after) = self.system.clocks();
        let Some(watched) = self.processes.get_mut(&pid) else {
            return;
        };
        (watched.glanced, watched.glance_cost) = (now, after.saturating_sub(cpu));
        watched.pages = pages;
        if of_gpus(&areas) == watched.of_gpus {
            watched.has_grown = false;
            watched.channels.mapped(Readable::new(&areas));
        } else {
            (watched.wants_search, watched.doubtful) = (true, 0);
        }
    }

    /// Looks for new channels of a process if there may be some, and if the last search is long enough ago for its cost.
    pub(super) fn search_if_due(&mut self, pid: u32, now: u64) {
        let Some(watched) = self.processes.get(&pid).filter(|p| p.wants_search) else {
            return;
        };
        let first = watched.first_found.unwrap_or(watched.opened);
        let early = now.saturating_sub(first) < EARLY || watched.is_lost;
        let share = if early { SHARE_EARLY } else { SHARE_LATER };
        let pause = (watched.search_cost as f64 / share) as u64;
        if now.saturating_sub(watched.searched) >= pause.max(SECOND / 2) {
            self.search(pid);
        }
    }
}

/// The mappings of GPUs' memory.
fn of_gpus(areas: &[Area]) -> Vec<(u64, u64)> {
    let of_gpus = areas.iter().filter(|a| a.gpu().is_some());
    of_gpus.map(|a| (a.start, a.end)).collect()
}
