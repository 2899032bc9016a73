//! Collectives over ranks: a slice for each rank's part of a call, and arrows from the rank that came last to those that waited for it.

use std::io;

use super::Perfetto;
use super::packets::{Said, Value};
use super::tracks::Track;
use crate::ranks::{Came, Drawn};

impl Perfetto {
    /// Draws all calls to which several ranks came.
    pub(super) fn collectives(&mut self) -> io::Result<()> {
        let analysis = self.collectives.gathered.analysis();
        for call in analysis.calls() {
            self.call(&call);
            self.packets.end()?;
        }
        let left_out = self.collectives.gathered.left_out();
        if left_out > 0 {
            let time = self.packets.now();
            let said = Said {
                name: "calls of collectives that are not drawn",
                category: "collective",
                notes: vec![("calls", Value::Number(left_out))],
                ..Said::default()
            };
            self.instant(Track::Trace, time, &said);
        }
        self.packets.end()
    }

    fn call(&mut self, call: &Drawn) {
        let Some(last) = call.came.last() else { return };
        let alone = { call.came.iter() }.filter(|c| c.is_last).count() == 1;
        let until = last.begin;
        let mut flows = Vec::new();
        for came in &call.came {
            self.packets.at(came.begin);
            self.part(call, came, until);
            // Who is not known to have waited for one rank has no arrow.
            if alone && came.begin < until {
                flows.push((came, self.next_flow()));
            }
        }
        let name = format!("{} has come", last.name);
        for (came, flow) in flows {
            self.packets.at(until);
            let from = Said {
                name: "comes last",
                category: "collective",
                notes: vec![("late_ns", Value::Number(until - came.begin))],
                from: Some(flow),
                ..Said::default()
            };
            self.instant(Track::Collectives(last.gpu, last.pid), until, &from);
            let to = Said {
                name: &name,
                category: "collective",
                notes: vec![("waited_ns", Value::Number(until - came.begin))],
                to: vec![flow],
                ..Said::default()
            };
            self.instant(Track::Collectives(came.gpu, came.pid), until, &to);
        }
    }

    /// One rank's part: where its end is not known, the moment of its arrival.
    fn part(&mut self, call: &Drawn, came: &Came, until: u64) {
        let said = Said {
            name: &call.kind,
            category: "collective",
            notes: vec![
                ("rank", Value::Text(came.name.clone())),
                ("communicator", Value::Number(call.communicator as u64)),
                ("call", Value::Number(call.call)),
                ("waited_ns", Value::Number(until.saturating_sub(came.begin))),
                ("skew_ns", Value::Number(call.skew)),
                ("skew_error_ns", Value::Number(call.error)),
            ],
            ..Said::default()
        };
        let track = Track::Collectives(came.gpu, came.pid);
        let Some(end) = came.end.filter(|end| *end >= came.begin) else {
            self.instant(track, came.begin, &said);
            return;
        };
        let track = self.tracks.of(&mut self.packets, track);
        self.packets.slice(track, (came.begin, end), &said);
    }
}
