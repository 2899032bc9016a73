//! Text of the report of `nvcap doctor --trap`.

use nvcap_live::trap::lost_hits::Measured;
use nvcap_show::output::plural::plural_of;

/// Returns the text of the measured numbers, and of their meaning for a program that is traced.
pub(super) fn report(m: &Measured) -> String {
    let mut text = format!(
        "{} s, {}, {}\n\n",
        m.time.as_secs(),
        plural_of(m.processors as u64, "processor", "processors"),
        plural_of(m.processes as u64, "process", "processes"),
    );
    for (what, count) in [
        ("stores to watched words", m.stores),
        ("hits that the kernel counted", m.hits),
        ("runs of the BPF program", m.runs),
        ("stores without a hit", m.lost()),
        ("SIGTRAPs", m.traps),
        ("  behind a store, no breakpoint named", m.causeless),
    ] {
        text += &format!("{what:<38} {count:>12}\n");
    }
    text += "\n";
    text += &verdict(m);
    if m.without_program() > 0 {
        text += &format!(
            "{} of {} hits ran no program: the processor was in another BPF program. What is rung for then is read from the ring later.\n",
            m.without_program(),
            m.hits
        );
    }
    if let Some(code) = m.other_code {
        text += &format!(
            "The last SIGTRAP of another kind had si_code {code}: it was sent by something else.\n"
        );
    }
    text
}

fn verdict(m: &Measured) -> String {
    let million = |n: f64| n * 1e6 / m.stores.max(1) as f64;
    match (m.lost(), m.causeless) {
        // With no event in N, the frequency is less than 3/N with a confidence of 95 %.
        (0, 0) => format!(
            "No hit was lost: with a confidence of 95 % there are fewer than {:.2} in a million here.\n",
            million(3.0)
        ),
        (lost, 0) => format!(
            "{lost} hits were lost ({:.2} in a million), without a SIGTRAP: doorbells pass unseen here. What they ring for is read from \
             the rings later.\n",
            million(lost as f64)
        ),
        (lost, traps) => format!(
            "{lost} hits were lost ({:.2} in a million), and {traps} of them came to the program as a SIGTRAP: it ends a program that has no \
             handler for it. Trace what must not end with --how observe, which sets no breakpoint.\n",
            million(lost as f64)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const WHOLE: Measured = Measured {
        processors: 2,
        processes: 4,
        time: Duration::from_secs(10),
        stores: 3_000_000,
        hits: 3_000_000,
        runs: 3_000_000,
        traps: 0,
        causeless: 0,
        other_code: None,
    };

    #[test]
    fn the_report_says_what_it_means() {
        let text = report(&WHOLE);
        assert!(
            text.starts_with("10 s, 2 processors, 4 processes\n"),
            "{text}"
        );
        assert!(text.contains("fewer than 1.00 in a million"), "{text}");
        assert!(
            !text.contains("observe") && !text.contains("ran no program"),
            "{text}"
        );
        let lost = Measured {
            hits: 2_999_994,
            runs: 2_999_990,
            traps: 6,
            causeless: 6,
            ..WHOLE
        };
        let text = report(&lost);
        assert!(
            text.contains("6 hits were lost (2.00 in a million), and 6 of them"),
            "{text}"
        );
        assert!(text.contains("--how observe"), "{text}");
        assert!(text.contains("4 of 2999994 hits ran no program"), "{text}");
        let silent = Measured {
            hits: 2_999_999,
            runs: 2_999_999,
            traps: 1,
            other_code: Some(0),
            ..WHOLE
        };
        let text = report(&silent);
        assert!(
            text.contains("without a SIGTRAP") && text.contains("si_code 0"),
            "{text}"
        );
    }
}
