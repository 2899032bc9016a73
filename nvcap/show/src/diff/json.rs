//! A comparison as one JSON object.

use serde_json::{Value, json};

use crate::output::kernel_name;

use super::align::{Comparison, Edit, lines, number_of};
use super::text::{Shown, shown};

/// The object of type `diff`.
pub fn object(comparison: &Comparison, with: Shown<'_>, verdicts: [&str; 2]) -> Value {
    let sums = comparison.sums.iter().filter(|sum| sum.differs()).map(|sum| {
        let name = match sum.kernel {
            Some(kernel) => kernel_name::demangled(with.words.text(kernel)),
            None => sum.name.clone(),
        };
        json!({
            "of": sum.of, "name": name, "a": sum.a.0, "b": sum.b.0,
            "a_bytes": sum.has_bytes.then_some(sum.a.1), "b_bytes": sum.has_bytes.then_some(sum.b.1),
        })
    });
    let sums = sums.collect::<Value>();
    let channels = comparison.pairs.iter().filter(|pair| !pair.hunks.is_empty()).map(|pair| {
        let (of_a, of_b) = (
            lines(with.a.1, pair.a, comparison.observed),
            lines(with.b.1, pair.b, comparison.observed),
        );
        let hunks = pair.hunks.iter().map(|hunk| {
            let edits = hunk.edits.iter().map(|edit| {
                let (sign, of_second, line) = match *edit {
                    Edit::Both(a, _) => (" ", false, of_a.get(a as usize)),
                    Edit::OnlyA(a) => ("-", false, of_a.get(a as usize)),
                    Edit::OnlyB(b) => ("+", true, of_b.get(b as usize)),
                };
                let recording = if of_second { with.b.1 } else { with.a.1 };
                let text = line.map(|line| {
                    shown(comparison, with.words, recording, of_second, line)
                });
                json!({"sign": sign, "text": text.unwrap_or_default()})
            });
            json!({
                "a_from": hunk.a.0, "a_lines": hunk.a.1, "b_from": hunk.b.0, "b_lines": hunk.b.1,
                "lines": edits.collect::<Value>(),
            })
        });
        let hunks = match with.brief {
            true => json!([]),
            false => hunks.collect::<Value>(),
        };
        json!({
            "a": number_of(with.a.1, pair.a).map(|id| id.0), "b": number_of(with.b.1, pair.b).map(|id| id.0),
            "hunks": hunks,
        })
    });
    let file = |name: &str, verdict: &str, not_compared: u64| json!({"file": name, "verdict": verdict, "not_compared": not_compared});
    json!({
        "type": "diff", "time_ns": null, "pid": null, "tid": null, "token": null,
        "differs": comparison.differs(),
        "a": file(with.a.0, verdicts[0], comparison.not_compared.0),
        "b": file(with.b.0, verdicts[1], comparison.not_compared.1),
        "only_a": comparison.changed.0, "only_b": comparison.changed.1,
        "sums": sums, "channels": channels.collect::<Value>(),
    })
}
