//! Mutated inputs of every format that nvcap reads: 10,000 a format, the same ones each time. Each goes through the real
//! reader, the driver model, the decoder and the sinks, and what comes out is held against what must be true of any input:
//!
//! - no panic;
//! - an end, which a guard of 60 s of a processor stands for, a stated number of bytes of memory at once, and a stated number of bytes of output for each byte of
//!   input ([`formats::Format`]);
//! - every line of JSON is JSON;
//! - nothing is passed off as whole that is not: what that means for each format stands beside it.
//!
//! `mutants --format orc --only 4711` makes one of them again.

mod formats;
mod memory;
mod mutate;

use std::cell::RefCell;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;

use formats::Format;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// A guard: a mutant that takes so much processor time is taken to go on for ever. Usual ones take milliseconds; how many differs from machine
/// to machine, and is told, not judged.
const GUARD: Duration = Duration::from_secs(60);
/// The processor time of the slowest mutant of a format, us.
static SLOWEST: AtomicU64 = AtomicU64::new(0);
/// Mutants that a thread takes at a time.
const CHUNK: u64 = 250;

/// Mutates inputs of every format and looks for what must not be.
#[derive(Parser)]
struct Args {
    /// Mutants of each format
    #[arg(long, default_value_t = 10_000)]
    count: u64,

    /// This format alone
    #[arg(long)]
    format: Option<String>,

    /// This mutant alone
    #[arg(long)]
    only: Option<u64>,

    /// Folder of inputs with a finding
    #[arg(long, default_value = "target/mutants")]
    keep: PathBuf,
}

thread_local! {
    /// Place of this thread's last panic.
    static PANICKED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Fault that was found with a mutant.
struct Finding {
    format: &'static str,
    number: u64,
    seed: String,
    what: String,
    input: Vec<u8>,
}

/// Returns the processor time that this thread has taken.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the structure only; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn try_one(format: &Format, number: u64) -> Option<Finding> {
    let seeds: &[Vec<u8>] = &format.seeds.bytes;
    let mutant = mutate::mutant(format.name, number, seeds, format.text);
    let began = processor_time();
    let work = || panic::catch_unwind(AssertUnwindSafe(|| (format.check)(&format.seeds, &mutant)));
    let (outcome, memory) = memory::most_of(work);
    let took = processor_time().saturating_sub(began);
    SLOWEST.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
    let what = match outcome {
        Err(_) => PANICKED.take(),
        Ok(Err(what)) => what,
        Ok(Ok(())) if took > GUARD => format!("guard: it took {took:?} of a processor"),
        Ok(Ok(())) if memory > format.most_memory => format!("it took {memory} B of memory"),
        Ok(Ok(())) => return None,
    };
    Some(Finding {
        format: format.name,
        number,
        seed: format.seeds.names[mutant.seed].clone(),
        what,
        input: mutant.bytes,
    })
}

/// All findings of a format, in order, by as many threads as there are processors.
fn try_all(format: &Format, args: &Args) -> Vec<Finding> {
    if let Some(number) = args.only {
        return try_one(format, number).into_iter().collect();
    }
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut found = Vec::new();
        loop {
            let from = next.fetch_add(1, Ordering::Relaxed) as u64 * CHUNK;
            if from >= args.count {
                return found;
            }
            let numbers = from..args.count.min(from + CHUNK);
            found.extend(numbers.filter_map(|number| try_one(format, number)));
        }
    };
    let mut all: Vec<Finding> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .flat_map(|t| t.join().unwrap_or_default())
            .collect()
    });
    all.sort_by_key(|f| f.number);
    all
}

fn tell(args: &Args, finding: &Finding) -> anyhow::Result<()> {
    let Finding {
        format,
        number,
        seed,
        what,
        input,
    } = finding;
    fs::create_dir_all(&args.keep)?;
    let path = args.keep.join(format!("{format}-{number}"));
    fs::write(&path, input).with_context(|| format!("cannot write {}", path.display()))?;
    println!(
        "FINDING {format} mutant {number} of {seed}: {what}\n  kept as {}; again: mutants --format {format} --only {number}",
        path.display()
    );
    Ok(())
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    panic::set_hook(Box::new(|info| PANICKED.set(format!("panic: {info}"))));
    let mut formats = formats::all()?;
    formats.retain(|f| args.format.as_ref().is_none_or(|name| name == f.name));
    anyhow::ensure!(!formats.is_empty(), "no format is called so");
    let (mut passed, mut failed) = (0, 0);
    for format in &formats {
        let began = Instant::now();
        SLOWEST.store(0, Ordering::Relaxed);
        let found = try_all(format, &args);
        for finding in found.iter().take(20) {
            tell(&args, finding)?;
        }
        let count = args.only.map_or(args.count, |_| 1);
        println!(
            "{}: {count} mutants of {} seeds, {} findings ({:.1} s; the slowest took {:.0} ms)",
            format.name,
            format.seeds.names.len(),
            found.len(),
            began.elapsed().as_secs_f64(),
            SLOWEST.load(Ordering::Relaxed) as f64 / 1e3
        );
        passed += u32::from(found.is_empty());
        failed += u32::from(!found.is_empty());
    }
    println!("{passed} passed, {failed} failed, 0 skipped");
    Ok(ExitCode::from(u8::from(failed > 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(check: fn(&formats::Seeds, &mutate::Mutant) -> Result<(), String>) -> Format {
        let mut all = formats::all().unwrap();
        let mut format = all.remove(0);
        format.check = check;
        format.most_memory = 1 << 20;
        format
    }

    fn found(check: fn(&formats::Seeds, &mutate::Mutant) -> Result<(), String>) -> Vec<String> {
        let args = Args::parse_from(["mutants", "--count", "500"]);
        let all = try_all(&format(check), &args);
        all.into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn a_panic_a_lie_and_too_much_memory_are_findings() {
        panic::set_hook(Box::new(|info| PANICKED.set(format!("panic: {info}"))));
        assert!(found(|_, _| Ok(())).is_empty());
        let lies = found(|_, m| if m.cut { Err("cut".into()) } else { Ok(()) });
        assert!((20..200).contains(&lies.len()), "{}", lies.len());
        let panics = found(|_, m| {
            assert!(!m.cut, "whole");
            Ok(())
        });
        assert_eq!(panics.len(), lies.len());
        assert!(
            panics[0].starts_with("panic: ") && panics[0].contains("whole"),
            "{}",
            panics[0]
        );
        let memory = found(|_, m| {
            std::hint::black_box(vec![1u8; if m.cut { 2 << 20 } else { 1 << 10 }]);
            Ok(())
        });
        assert_eq!(memory.len(), lies.len());
        assert!(memory[0].contains("B of memory"), "{}", memory[0]);
    }

    #[test]
    fn a_number_gives_the_same_mutant_each_time_and_most_differ() {
        for format in formats::all().unwrap() {
            let of = |n| mutate::mutant(format.name, n, &format.seeds.bytes, format.text);
            let mut distinct = std::collections::HashSet::new();
            for n in 0..500 {
                let mutant = of(n);
                assert_eq!(mutant.bytes, of(n).bytes, "{} {n}", format.name);
                let seed = &format.seeds.bytes[mutant.seed];
                assert!(!mutant.cut || seed.starts_with(&mutant.bytes));
                distinct.insert(mutant.bytes);
            }
            assert!(distinct.len() > 200, "{}: {}", format.name, distinct.len());
        }
    }

    #[test]
    fn the_seeds_are_whole() {
        for format in formats::all().unwrap() {
            for (seed, bytes) in format.seeds.bytes.iter().enumerate() {
                let whole = mutate::Mutant {
                    seed,
                    bytes: bytes.clone(),
                    cut: false,
                };
                let outcome = (format.check)(&format.seeds, &whole);
                assert_eq!(
                    outcome,
                    Ok(()),
                    "{} {}",
                    format.name,
                    format.seeds.names[seed]
                );
                assert!(!bytes.is_empty());
            }
        }
    }
}
