//! Results of a measurement, as text and as a drawing.

use std::fmt::Write as _;

use super::{
    Measured,
    measure::{Series, Way},
};

/// Formats the tables.
pub fn text(measured: &Measured) -> String {
    let mut out = String::new();
    let driver = measured.driver.as_deref().unwrap_or("of unknown release");
    let [channel, compute, copy] = &measured.classes;
    let _ = writeln!(
        out,
        "GPU {}, driver {driver}, classes {channel} (channels), {compute} (compute), {copy} (copies)",
        measured.gpu
    );
    if !measured.latencies.is_empty() {
        let _ = writeln!(
            out,
            "\nLatencies, ns\n{:>10} {:>10} {:>10}",
            "mean", "least", "most"
        );
    }
    for latency in &measured.latencies {
        let times = &latency.times;
        let _ = writeln!(
            out,
            "{:>10.0} {:>10.0} {:>10.0}  {}",
            times.ns, times.min_ns, times.max_ns, latency.what
        );
    }
    for way in [Way::Inline, Way::H2D, Way::D2H, Way::D2D] {
        let series: Vec<&Series> = measured.transfers.iter().filter(|s| s.way == way).collect();
        if !series.is_empty() {
            transfers(&mut out, way, &series);
        }
    }
    for note in &measured.notes {
        let _ = writeln!(out, "\nnot measured: {note}");
    }
    out
}

/// Formats the submissions, a line each: token, ring entry and pushbuffer as it lay in memory, in
/// hexadecimal.
pub fn submissions(measured: &Measured) -> String {
    let mut out = String::new();
    for one in &measured.submissions {
        let _ = write!(out, "{:x} {:016x} ", one.token, one.entry);
        for byte in one.words.iter().flat_map(|word| word.to_le_bytes()) {
            let _ = write!(out, "{byte:02x}");
        }
        out.push('\n');
    }
    out
}

fn transfers(out: &mut String, way: Way, series: &[&Series]) {
    let _ = write!(out, "\n{}\n{:>10}", way.name(), "bytes");
    for one in series {
        let _ = write!(out, " {:>11} ns {:>7}", one.engine, "GB/s");
    }
    let _ = write!(out, "\n{:>10}", "nothing");
    for one in series {
        let _ = write!(out, " {:>14.0} {:>7}", one.nothing.ns, "");
    }
    out.push('\n');
    let rows = series.iter().map(|s| s.points.len()).max().unwrap_or(0);
    for row in 0..rows {
        let bytes = series.iter().find_map(|s| s.points.get(row));
        let _ = write!(
            out,
            "{:>10}",
            bytes.map_or_else(String::new, |p| size(p.bytes))
        );
        for one in series {
            match one.points.get(row) {
                Some(point) => {
                    let _ = write!(out, " {:>14.0} {:>7.2}", point.times.ns, point.gb_per_s);
                }
                None => {
                    let _ = write!(out, " {:>14} {:>7}", "", "");
                }
            }
        }
        out.push('\n');
    }
}

/// A size with the largest unit that divides it.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = units
        .iter()
        .find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    match fits {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let all = [0, 4, 1000, 1024, 1536, 3 << 20, 1 << 30].map(size);
        assert_eq!(
            all,
            ["0 B", "4 B", "1000 B", "1 KiB", "1536 B", "3 MiB", "1 GiB"]
        );
    }
}
