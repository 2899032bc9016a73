//! Compares two traces of the same work: `compare LEFT RIGHT`. Status 0 only when they are equal.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use compare::channels::{Channels, Side};
use compare::read::{Item, Reader};

/// Compares two JSON-lines traces of nvcap (`--json -vv`), channel by channel: every ring entry and every byte.
///
/// Status 0: equal. 1: something is missing, extra, different or unread. 2: a file could not be read.
///
/// Example: nvcap decode --from orc oracle.bin --json -vv > oracle.json; compare nvcap.json oracle.json
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// First trace (- for standard input)
    left: PathBuf,
    /// Second trace
    right: PathBuf,
    /// This side may have begun later and ended earlier: it must be one run of the other's entries in each channel
    #[arg(long, value_enum)]
    part: Option<Part>,
    /// Tell channels of the same token on different GPUs apart (both traces must know the GPU)
    #[arg(long)]
    by_gpu: bool,
    /// Bytes held of what one side has before the other
    #[arg(long, default_value_t = 1 << 30)]
    max_waiting: u64,
    /// Print only the last line
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Part {
    Left,
    Right,
}

fn open(path: &PathBuf, by_gpu: bool) -> Result<Reader<Box<dyn std::io::BufRead>>> {
    let input: Box<dyn std::io::BufRead> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Box::new(BufReader::with_capacity(1 << 20, file))
    };
    Ok(Reader::new(input, by_gpu))
}

fn body() -> Result<bool> {
    let args = Args::parse();
    let paths = [&args.left, &args.right];
    let mut readers = [open(paths[0], args.by_gpu)?, open(paths[1], args.by_gpu)?];
    let part = args.part.map(|p| match p {
        Part::Left => Side::Left,
        Part::Right => Side::Right,
    });
    let mut channels = Channels::new(part, args.max_waiting);
    let mut ended = [false; 2];
    let mut ledgers = [None, None];
    while !(ended[0] && ended[1]) {
        let mut side = channels.hungry();
        if ended[side as usize] {
            side = if side == Side::Left {
                Side::Right
            } else {
                Side::Left
            };
        }
        let i = side as usize;
        match readers[i]
            .next_item()
            .with_context(|| paths[i].display().to_string())?
        {
            None => ended[i] = true,
            Some(Item::Submission(s)) => channels.submission(side, &s),
            Some(Item::Entry(e)) => channels.entry(side, e),
            Some(Item::Ledger(l)) => ledgers[i] = Some(l),
            Some(Item::Other(_)) => {}
        }
    }
    channels.end();
    if !args.quiet {
        print_table(&channels);
        for (path, ledger) in paths.iter().zip(&ledgers) {
            let complete = ledger.as_ref().and_then(|l| l.get("complete"));
            println!(
                "ledger of {}: {}",
                path.display(),
                match (ledger, complete) {
                    (None, _) => "none".to_owned(),
                    (Some(_), None) => "present".to_owned(),
                    (Some(_), Some(c)) => format!("complete: {c}"),
                }
            );
        }
    }
    let equal = channels.equal();
    let (mut entries, mut same, mut bytes) = ([0; 2], 0, [0; 2]);
    for c in channels.channels().values() {
        same += c.equal;
        for i in 0..2 {
            entries[i] += c.sides[i].entries;
            bytes[i] += c.sides[i].bytes;
        }
    }
    println!(
        "{}: {} and {} entries, {} and {} bytes; {same} equal entries",
        match (equal, same) {
            (false, _) => "DIFFERENT",
            // Two empty files are equal, and prove nothing.
            (true, 0) => "NOTHING TO COMPARE",
            (true, _) => "EQUAL",
        },
        entries[0],
        entries[1],
        bytes[0],
        bytes[1],
    );
    Ok(equal && same > 0)
}

fn print_table(channels: &Channels) {
    println!(
        "{:>4} {:>9} | {:>9} {:>9} | {:>9} {:>9} | {:>13} {:>13} | {:>8} {:>8} {:>9} {:>9} {:>6} {:>6} {:>9}",
        "gpu",
        "token",
        "subm L",
        "subm R",
        "entries L",
        "entries R",
        "bytes L",
        "bytes R",
        "missing",
        "extra",
        "differing",
        "bytes",
        "unread",
        "gaps",
        "outside"
    );
    for (key, c) in channels.channels() {
        let [l, r] = &c.sides;
        println!(
            "{:>4} {:>9} | {:>9} {:>9} | {:>9} {:>9} | {:>13} {:>13} | {:>8} {:>8} {:>9} {:>9} {:>6} {:>6} {:>9}",
            key.gpu.map_or("-".into(), |g| g.to_string()),
            key.token.map_or("?".into(), |t| format!("{t:#x}")),
            l.submissions,
            r.submissions,
            l.entries,
            r.entries,
            l.bytes,
            r.bytes,
            l.alone,
            r.alone,
            c.differing,
            c.differing_bytes,
            l.unread + r.unread,
            l.gaps + r.gaps,
            l.outside + r.outside,
        );
        if let Some(first) = &c.first {
            println!("     first difference: {first}");
        }
    }
    println!(
        "L is the first file. missing: entries of L that R has not; extra: of R that L has not."
    );
}

fn main() -> ExitCode {
    match body() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("compare: {e:#}");
            ExitCode::from(2)
        }
    }
}
