//! Sizes from which on bytes are moved in another way, as far as the sizes that were seen tell.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::output::style::Plain;

use super::moves::{How, Row, Tally};

/// A size at which the way of moving bytes changes: moves of up to `up_to` bytes were made in the way `below`, moves of `from` bytes and
/// more in the way `above`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Threshold {
    pub series: Option<Arc<str>>,
    pub what: &'static str,
    pub below: How,
    pub up_to: u64,
    pub above: How,
    pub from: u64,
    /// The largest piece of the moves `above`, if some were made in pieces; bytes.
    pub piece: Option<u64>,
    /// True if `up_to` is the largest move of all that were made in the way `below`, and that move is known to be of the same kind of memory as those
    /// `above`.
    pub certain: bool,
}

/// The thresholds that these rows show.
pub(super) fn of(rows: &BTreeMap<Row, Tally>) -> Vec<Threshold> {
    let rows: Vec<_> = rows.iter().collect();
    rows.chunk_by(|(a, _), (b, _)| (&a.0, a.1) == (&b.0, b.1))
        .flat_map(of_group)
        .collect()
}

/// The thresholds in the rows of one series and one direction, or of memsets.
fn of_group(group: &[(&Row, &Tally)]) -> Vec<Threshold> {
    // Some sizes were dropped, perhaps those next to a threshold: nothing can be said.
    if group.iter().any(|(_, tally)| tally.more_sizes) {
        return Vec::new();
    }
    let Some(((series, what, _), _)) = group.first() else {
        return Vec::new();
    };
    let tally = |how| group.iter().find(|(row, _)| row.2 == how).map(|(_, t)| *t);
    let make = |below, up_to, above, of: &Tally, certain| {
        of.least().map(|from| Threshold {
            series: series.clone(),
            what,
            below,
            up_to,
            above,
            from,
            piece: of.piece,
            certain,
        })
    };
    let mut found = Vec::new();
    let (direct, staged) = (tally(How::Engine), tally(How::Staged));
    if let Some(inline) = tally(How::Inline) {
        for (how, this, other) in [
            (How::Engine, direct, staged),
            (How::Staged, staged, direct),
            (How::Kernel, tally(How::Kernel), None),
        ] {
            let Some(this) = this else { continue };
            let Some((from, most)) = this.least().zip(inline.most()) else {
                continue;
            };
            // If a kernel moves smaller sizes than the copy engine does, the kernel is the next way after inline, not the engine.
            let passed = how == How::Engine
                && tally(How::Kernel).is_some_and(|kernel| kernel.least() < Some(from));
            if passed {
                continue;
            }
            // An inline write does not say which kind of host memory its data was in: the kind that is copied directly, or the one that is
            // staged. It was in this kind if moves of the other kind were no longer inline at that size.
            let is_of_this = other
                .and_then(Tally::least)
                .is_none_or(|least| most >= least);
            if let Some(up_to) = inline.below(from) {
                found.extend(make(
                    How::Inline,
                    up_to,
                    how,
                    this,
                    is_of_this && most < from,
                ));
            }
        }
    }
    // Moves within the device, and memsets: by a kernel or by a copy engine.
    for (a, b) in [(How::Kernel, How::Engine), (How::Engine, How::Kernel)] {
        if let (Some(low), Some(high)) = (tally(a), tally(b))
            && let (Some(up_to), Some(from)) = (low.most(), high.least())
            && up_to < from
        {
            found.extend(make(a, up_to, b, high, true));
        }
    }
    found
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(series) = &self.series {
            write!(f, "{}: ", Plain(series))?;
        }
        let (below, above, from) = (self.below, self.above, self.from);
        if self.certain {
            write!(
                f,
                "{} {below} up to {} B, {above} from {from} B",
                self.what, self.up_to
            )?;
        } else {
            write!(
                f,
                "{} {above} from {from} B; {below} below that up to {} B, of this or other memory",
                self.what, self.up_to
            )?;
        }
        match self.piece {
            Some(piece) => write!(f, ", in pieces of {piece} B"),
            None => Ok(()),
        }
    }
}

impl Threshold {
    pub(super) fn json(&self) -> Value {
        json!({
            "series": self.series.as_deref(), "what": self.what, "below": self.below.to_string(), "up_to": self.up_to,
            "above": self.above.to_string(), "from": self.from, "piece_bytes": self.piece, "certain": self.certain,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rows: &[(&'static str, How, &[u64])]) -> Vec<String> {
        let rows: BTreeMap<Row, Tally> = rows
            .iter()
            .map(|(what, how, sizes)| {
                let tally = Tally {
                    sizes: sizes.iter().map(|size| (*size, 1)).collect(),
                    piece: (*how == How::Staged).then_some(1 << 20),
                    ..Tally::default()
                };
                ((None, *what, *how), tally)
            })
            .collect();
        of(&rows).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_kind_of_memory_has_a_certain_threshold() {
        assert_eq!(
            found(&[
                ("h2d", How::Inline, &[4, 24576]),
                ("h2d", How::Engine, &[28672])
            ]),
            ["h2d inline up to 24576 B, copy engine from 28672 B"]
        );
        assert_eq!(
            found(&[
                ("h2d", How::Inline, &[4, 24576]),
                ("h2d", How::Staged, &[28672])
            ]),
            ["h2d inline up to 24576 B, copy engine, staged from 28672 B, in pieces of 1048576 B"]
        );
        // No threshold with one way only, or if no size of the other way is known.
        assert!(found(&[("d2h", How::Engine, &[4])]).is_empty());
        assert!(found(&[("memset", How::Inline, &[4]), ("memset", How::Kernel, &[])]).is_empty());
    }

    #[test]
    fn two_kinds_of_memory_are_told_apart_where_sizes_do() {
        let engine = ("h2d", How::Engine, [28672].as_slice());
        let staged = ("h2d", How::Staged, [262_144].as_slice());
        assert_eq!(
            found(&[("h2d", How::Inline, &[4, 24576, 65536]), engine, staged]),
            [
                "h2d copy engine from 28672 B; inline below that up to 24576 B, of this or other memory",
                "h2d inline up to 65536 B, copy engine, staged from 262144 B, in pieces of 1048576 B",
            ]
        );
        // All inline writes are small: the data of each may have been in either kind of memory.
        let lines = found(&[("h2d", How::Inline, &[4, 4096]), engine, staged]);
        assert_eq!(lines.len(), 2);
        assert!(
            lines.iter().all(|l| l.contains("of this or other memory")),
            "{lines:?}"
        );
    }

    #[test]
    fn the_next_way_is_the_one_with_the_next_size() {
        assert_eq!(
            found(&[
                ("memset", How::Inline, &[4, 4096]),
                ("memset", How::Engine, &[32768]),
                ("memset", How::Kernel, &[8192, 1 << 24]),
            ]),
            ["memset inline up to 4096 B, kernel from 8192 B"]
        );
        assert_eq!(
            found(&[("d2d", How::Kernel, &[8, 64]), ("d2d", How::Engine, &[128])]),
            ["d2d kernel up to 64 B, copy engine from 128 B"]
        );
        // Both ways for the same sizes: no threshold.
        assert!(
            found(&[
                ("d2d", How::Kernel, &[8, 256]),
                ("d2d", How::Engine, &[128])
            ])
            .is_empty()
        );
    }
}
