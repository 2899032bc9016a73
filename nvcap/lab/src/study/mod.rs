//! `nvcap study`: the GPU's part of the time of CUDA's copies and graphs, the submissions that CUDA makes for them, and the sharing of a GPU
//! by streams and processes. CUDA runs twice: once undisturbed, for its times, and once in a trace, for its submissions. The study of copies
//! also has the measurements of `nvcap bench`, which need no CUDA.
//!
//! [`work`] is the program that calls CUDA; [`phases`] is the content of a recording of it; [`dma`], [`graph`] and [`sharing`] join the two
//! and have the tables; [`page`] makes a page of them.

pub mod dma;
pub mod graph;
pub mod page;
pub mod phases;
pub mod sharing;
pub mod work;

/// The rest of a whole without a part, as a share in percent.
fn rest_of(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| 100.0 * (1.0 - part / whole))
}

/// The line above all tables.
fn versions(cuda: u32, empty_call_ns: f64) -> String {
    format!(
        "CUDA {}.{}, libcuda called from Python: a call that does nothing takes {} ns there\n",
        cuda / 1000,
        cuda % 1000 / 10,
        grouped(empty_call_ns)
    )
}

/// Formats a number with a comma between thousands.
fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if number <= -0.5 {
        out.insert(0, '-');
    }
    out
}

/// Formats nanoseconds as milliseconds.
fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// Formats a study as text: a first line, sections with their headings, and the account of what is missing in the trace.
fn report(first: String, sections: &[(String, String)], ledger: &str) -> String {
    let mut out = first;
    for (head, body) in sections {
        out += &format!("\n{head}\n{body}");
    }
    out + &format!("\nthe trace: {ledger}\n")
}

/// Formats a table of text: the first column is left-aligned, the others are right-aligned.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widest.max(head.get(column).map_or(0, |h| h.chars().count()))
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).enumerate();
        let cells = cells.map(|(i, (cell, &width))| match i {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        let line: Vec<String> = cells.collect();
        line.join("  ").trim_end().to_owned() + "\n"
    };
    let mut out = line(&mut head.iter().copied());
    for row in rows {
        out += &line(&mut row.iter().map(String::as_str));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_tables() {
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(grouped(-1000.0), "-1,000");
        assert_eq!((grouped(0.0), grouped(999.6)), ("0".into(), "1,000".into()));
        assert_eq!(rest_of(1.0, 4.0), Some(75.0));
        assert_eq!(rest_of(1.0, 0.0), None);
        let rows = [
            vec!["a".to_owned(), "10".to_owned()],
            vec!["bcd".to_owned(), "7".to_owned()],
        ];
        assert_eq!(table(&["x", "of"], &rows), "x    of\na    10\nbcd   7\n");
    }
}
