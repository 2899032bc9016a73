//! Context switches of a GPU: a slice for each time that a context had an engine.

use super::Perfetto;
use super::packets::{Said, Value};
use super::tracks::Track;
use crate::shares::{Holders, unnamed};
use nvcap_decode::record::Switches;
use nvcap_decode::switches::{Slice, Who};

impl Perfetto {
    /// Writes the slices that end in a window.
    pub(super) fn switches(&mut self, window: &Switches) {
        for (pid, who) in &window.processes {
            let name = |holders: &Holders| Some(holders.identity(*pid)?.comm.clone());
            let before = name(&self.holders);
            self.holders.tell(*pid, who.as_ref());
            match (before, name(&self.holders)) {
                (None, Some(name)) => self.tracks.name_if_new(*pid, *pid, &name),
                // Another process has the number now.
                (Some(before), Some(name)) if before != name => {
                    self.tracks.name(*pid, *pid, &name);
                }
                _ => {}
            }
        }
        let mut slices = std::mem::take(&mut self.slices);
        slices.window(window, |slice| self.slice(&slice));
        self.slices = slices;
    }

    /// Writes the slices that have not ended.
    pub(super) fn last_slices(&mut self) {
        let slices = std::mem::take(&mut self.slices);
        slices.finish(|slice| self.slice(&slice));
    }

    /// Writes a slice; where its begin or end was not recorded, the moment that is known.
    fn slice(&mut self, slice: &Slice) {
        let name = match slice.who {
            Who::Process(pid) => self.tracks.process_title(pid),
            who => unnamed(who).unwrap_or_default().to_owned(),
        };
        let mut notes = vec![("context", Value::Text(format!("{:#x}", slice.context)))];
        if let Who::Process(pid) = slice.who {
            notes.insert(0, ("pid", Value::Number(pid.into())));
        }
        let (begin, end) = (slice.begin, slice.end);
        if let (Some(begin), Some(end)) = (begin, end) {
            let ns = end.gpu_ns.saturating_sub(begin.gpu_ns);
            notes.push(("gpu_ns", Value::Number(ns)));
        }
        let track = Track::Contexts(slice.gpu, slice.instance);
        let mut said = Said {
            name: &name,
            category: "context",
            notes,
            ..Said::default()
        };
        let alone = match (begin, end) {
            (Some(begin), Some(end)) if end.host_ns >= begin.host_ns => {
                let track = self.tracks.of(&mut self.packets, track);
                let times = (begin.host_ns, end.host_ns);
                self.packets.slice(track, times, &said);
                return;
            }
            (None, Some(end)) => (end, format!("{name} ends; its begin was not recorded")),
            (Some(begin), _) => (begin, format!("{name} begins; its end was not recorded")),
            (None, None) => return,
        };
        said.name = &alone.1;
        self.instant(track, alone.0.host_ns, &said);
    }
}
