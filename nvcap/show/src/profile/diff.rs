//! Two files, of which at least one is a profiler's, compared: works by name, their number, their time, and their bytes.

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::about::About;
use super::sums::{Row, Sums};
use super::times::file;
use crate::output::style::{Formatter, Plain, Role};
use crate::output::units::{Bytes, Nanoseconds};

/// The most rows of a kind that text shows, unless all are asked for: those whose time or number differs most.
const SHOWN: usize = 20;

/// Facts of one of the two files beside its sums.
#[derive(Clone, Copy, Debug)]
pub enum Of<'a> {
    /// A recording, with its verdict.
    Recording(&'a str),
    /// The file of a profiler.
    Profile(&'a About),
}

/// One of the two.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Name of the file.
    pub name: &'a str,
    /// Facts of it.
    pub of: Of<'a>,
    /// Its works.
    pub sums: &'a Sums,
}

/// Works of one name in one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    count: u64,
    timed: u64,
    ns: u64,
    bytes: u64,
}

impl Part {
    fn of(row: Option<&Row>) -> Self {
        row.map_or_else(Self::default, |row| Self {
            count: row.count,
            timed: row.durations.count,
            ns: row.durations.sum_ns,
            bytes: row.bytes,
        })
    }

    /// Its time as text: `?` where none is known, and the least that it is where some are not.
    fn time(self) -> String {
        match (self.count, self.timed) {
            (0, _) => "-".to_owned(),
            (_, 0) => "?".to_owned(),
            (count, timed) if timed < count => format!(">={}", Nanoseconds(self.ns)),
            _ => Nanoseconds(self.ns).to_string(),
        }
    }
}

/// Works of one name in both.
#[derive(Clone, Debug)]
struct Pair {
    is_copy: bool,
    text: String,
    a: Part,
    b: Part,
}

impl Pair {
    /// Tells whether number or bytes differ. The time of one work is never that of another.
    fn differs(&self) -> bool {
        (self.a.count, self.a.bytes) != (self.b.count, self.b.bytes)
    }

    /// The name of a row, with the bytes of copies.
    fn title(&self) -> String {
        let bytes = |of: Part| Bytes(of.bytes as f64);
        match (self.is_copy, self.a.bytes == self.b.bytes) {
            (false, _) => self.text.clone(),
            (true, true) => format!("{}, {}", self.text, bytes(self.a)),
            (true, false) => format!("{}, {} and {}", self.text, bytes(self.a), bytes(self.b)),
        }
    }
}

/// The comparison.
#[derive(Debug)]
pub struct Comparison {
    pairs: Vec<Pair>,
}

/// Compares.
#[must_use]
pub fn compare(a: &Sums, b: &Sums) -> Comparison {
    let mut pairs = Vec::new();
    for is_copy in [false, true] {
        let first = a.rows(is_copy).into_iter().map(|row| Pair {
            is_copy,
            text: row.text.clone(),
            a: Part::of(Some(row)),
            b: Part::of(b.row(is_copy, &row.form)),
        });
        let alone = |row: &&Row| a.row(is_copy, &row.form).is_none();
        let second = b.rows(is_copy).into_iter().filter(alone).map(|row| Pair {
            is_copy,
            text: row.text.clone(),
            a: Part::default(),
            b: Part::of(Some(row)),
        });
        pairs.extend(first.chain(second));
    }
    pairs.sort_by_key(|pair| {
        let (ns, count) = (
            pair.a.ns.abs_diff(pair.b.ns),
            pair.a.count.abs_diff(pair.b.count),
        );
        (pair.is_copy, Reverse((ns, count)))
    });
    Comparison { pairs }
}

impl Comparison {
    /// Tells whether the number of works of some name differs, or their bytes.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.pairs.iter().any(Pair::differs)
    }
}

/// Writes the comparison. `all`: all rows, not those alone that differ most.
pub fn text(out: &mut Vec<u8>, color: bool, found: &Comparison, [a, b]: [Side<'_>; 2], all: bool) {
    let mut f = Formatter::new(out, color);
    let mut line = |role: Option<Role>, text: &str| {
        f.line("", 0, role);
        f.text(format_args!("{}", Plain(text)));
        f.end();
    };
    for (is_copy, what) in [(false, "kernel"), (true, "copies")] {
        let pairs: Vec<&Pair> = found
            .pairs
            .iter()
            .filter(|p| p.is_copy == is_copy)
            .collect();
        if pairs.is_empty() {
            continue;
        }
        let head = format!(
            "{:>9} {:>9} {:>9} {:>9} {:>9} {:>10}  {what}",
            "first", "time", "second", "time", "more", "time"
        );
        line(Some(Role::Operation), &head);
        let shown = if all { pairs.len() } else { SHOWN };
        for pair in pairs.iter().take(shown) {
            let role = pair.differs().then_some(Role::Name);
            line(role, &row(pair.a, pair.b, &pair.title()));
        }
        if let Some(more) = pairs.len().checked_sub(shown).filter(|more| *more > 0) {
            let text = format!("{more} more, which differ less (-v shows all)");
            line(Some(Role::Dim), &text);
        }
        let sum = |of: fn(&Pair) -> Part| {
            pairs
                .iter()
                .map(|pair| of(pair))
                .fold(Part::default(), |sum, of| Part {
                    count: sum.count + of.count,
                    timed: sum.timed + of.timed,
                    ns: sum.ns.saturating_add(of.ns),
                    bytes: sum.bytes.saturating_add(of.bytes),
                })
        };
        let sums = row(sum(|pair| pair.a), sum(|pair| pair.b), "all of them");
        line(Some(Role::Operation), &sums);
        line(None, "");
    }
    for side in [a, b] {
        line(None, &format!("{}: {}", side.name, says(side)));
    }
}

fn row(a: Part, b: Part, what: &str) -> String {
    let more = i128::from(b.count) - i128::from(a.count);
    let time = match a.timed > 0 && b.timed > 0 {
        true if a.ns <= b.ns => format!("+{}", Nanoseconds(b.ns - a.ns)),
        true => format!("-{}", Nanoseconds(a.ns - b.ns)),
        false => String::new(),
    };
    format!(
        "{:>9} {:>9} {:>9} {:>9} {more:>+9} {time:>10}  {what}",
        a.count,
        a.time(),
        b.count,
        b.time(),
    )
}

/// Says what one of the two is, and what is missing in it.
fn says(side: Side<'_>) -> String {
    match side.of {
        Of::Profile(about) => about.says(),
        Of::Recording(verdict) => match (side.sums.untimed(), side.sums.works()) {
            (0, _) => format!("a recording, {verdict}"),
            (n, all) if n == all => format!(
                "a recording, {verdict}; it has no times of the GPU (nvcap record --gpu-time has them)"
            ),
            (n, all) => {
                format!("a recording, {verdict}; the times of {n} of {all} works are not known")
            }
        },
    }
}

/// The object of type `profile_diff`.
#[must_use]
pub fn object(found: &Comparison, sides: [Side<'_>; 2]) -> Value {
    let part = |of: Part| {
        json!({
            "count": of.count, "timed": of.timed, "ns": (of.timed > 0).then_some(of.ns), "bytes": of.bytes,
        })
    };
    let rows = found.pairs.iter().map(|pair| {
        let of = if pair.is_copy { "copies" } else { "kernel" };
        json!({"of": of, "name": pair.text, "a": part(pair.a), "b": part(pair.b)})
    });
    let [a, b] = sides.map(|side| match side.of {
        Of::Profile(about) => file(side.name, about),
        Of::Recording(verdict) => json!({
            "file": side.name, "format": "recording", "rank": null, "world_size": null, "cut": null, "verdict": verdict,
            "untimed": side.sums.untimed(),
        }),
    });
    json!({
        "type": "profile_diff", "time_ns": null, "pid": null, "tid": null, "token": null, "differs": found.differs(),
        "a": a, "b": b, "rows": rows.collect::<Value>(),
    })
}
