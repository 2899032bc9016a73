//! `cargo xtask vm`: the tests on stock Debian kernels under QEMU, with the stand-in for nvidia.ko.
//!
//! Boots for each kernel of the matrix (see `matrix`) and runs its cells one after the other; two machines at a time for each
//! processor, since a machine sleeps nearly half of its time. Where a kernel has more than its part of the tests, two machines share its cells.
//! Everything fetched and built is in target/vm; a second run needs no network. Nothing on the host is installed or
//! changed. Knows what is run in which order; each step is a module.

mod apt;
mod bzimage;
mod cpio;
mod emulator;
mod fetch;
mod guest;
mod matrix;
mod module;
mod qemu;
mod report;
mod shell;

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{arch::Arch, build::Profile};
use emulator::Emulator;
use guest::Programs;
use matrix::{Cell, Way};
use qemu::Planned;
use report::{Outcome, Report};

/// Selection of machines and tests.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    cargo xtask vm                                      the whole matrix\n  \
    cargo xtask vm --kernel 6.1 --way fentry            one kernel, one way of discovery\n  \
    cargo xtask vm --kernel 6.12 --way kprobe -- fork   one test there\n  \
    cargo xtask vm --cell 6.12-kprobe-550               one cell by its name (--list names them)\n  \
    cargo xtask vm --cell 6.12-aarch64-kprobe           Linux 6.12 on an emulated Arm machine\n  \
    cargo xtask vm --table                              the whole matrix, then docs/kernels.md")]
pub struct Args {
    /// Only these kernel series
    #[arg(long, value_name = "SERIES")]
    kernel: Vec<String>,
    /// Only these ways of discovery
    #[arg(long, value_enum)]
    way: Vec<Way>,
    /// Only the cells with these names
    #[arg(long, value_name = "NAME")]
    cell: Vec<String>,
    /// Also the machines with another processor (aarch64): programs are built for it, and its emulation is slow
    #[arg(long)]
    foreign: bool,
    /// All tests of each cell, as nightly: the gate leaves out what other cells of the same kernel or the same way show
    #[arg(long)]
    all: bool,
    /// Name the cells and their tests, and end
    #[arg(long)]
    list: bool,
    /// Write docs/kernels.md from the results when done
    #[arg(long)]
    table: bool,
    /// Virtual machines at a time [default: two for each processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// The nvcap to test (static) [default: built from this checkout]
    #[arg(long, value_name = "FILE")]
    nvcap: Option<PathBuf>,
    /// Build the programs by the development profile: sooner after a change, slower in the machine
    #[arg(long)]
    dev: bool,
    /// Only the bed's own tests, without nvcap
    #[arg(long)]
    bed: bool,
    /// Print all of each guest's console
    #[arg(long, short)]
    verbose: bool,
    /// Each machine so many times: does it pass every time?
    #[arg(long, value_name = "N", default_value_t = 1)]
    times: usize,
    /// Only these tests; `capture::` stands for all of the cell's whose names begin so
    #[arg(last = true, value_name = "TEST")]
    tests: Vec<String>,
}

/// Runs the selection in `args`; an error if a test failed or a machine died.
pub fn run(args: Args) -> Result<()> {
    let cells = chosen(&args)?;
    if args.list {
        for cell in &cells {
            println!("{}: {}", cell.name(), cell.tests(args.all).join(" "));
        }
        return Ok(());
    }
    let beds = beds(&cells, &args)?;
    // The build's time belongs to the change, not to the matrix.
    let start = Instant::now();
    let jobs = args
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()) * 2);
    let boots = matrix::boots(&cells, jobs, args.all);
    let (each, all) = (boots.len(), boots.into_iter().cycle());
    let queue: VecDeque<Vec<Cell>> = all.take(each * args.times).collect();
    let machines = AtomicUsize::new(0);
    let queue = Mutex::new(queue);
    let reports = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let Some(cells) = queue.lock().ok().and_then(|mut q| q.pop_front()) else {
                        return;
                    };
                    let ended = machine(&beds, &cells, &args, &machines);
                    if let Ok(mut all) = reports.lock() {
                        all.extend(ended);
                    }
                }
            });
        }
    });
    let reports = reports.into_inner().unwrap_or_default();
    // Some of a cell's tests are no result for the cell.
    if args.tests.is_empty() {
        for report in &reports {
            report.store()?;
        }
    }
    if args.table {
        report::table()?;
    }
    let count = |wanted: &dyn Fn(&Outcome) -> bool| -> usize {
        reports
            .iter()
            .flat_map(|r| &r.tests)
            .filter(|t| wanted(&t.outcome))
            .count()
    };
    let failed = count(&|o| matches!(o, Outcome::Failed(_)))
        + reports.iter().filter(|r| r.machine.is_some()).count();
    // In the format of Rust's test harness, which `cargo xtask test` reads.
    println!(
        "test result: {}. {} passed; {failed} failed; {} ignored; {} cells, {} boots of QEMU (TCG) in {:.1} s, {:.0} s of processor time",
        if failed == 0 { "ok" } else { "FAILED" },
        count(&|o| matches!(o, Outcome::Ok)),
        count(&|o| matches!(o, Outcome::NotRun(_))),
        reports.len(),
        machines.into_inner(),
        start.elapsed().as_secs_f64(),
        reports.iter().map(|r| r.cpu).sum::<f64>()
    );
    if failed > 0 {
        bail!("{failed} failed: run one again with `cargo xtask vm --cell CELL -- TEST`");
    }
    Ok(())
}

/// Fetches the emulator and the kernels of the matrix, for a run that needs them later: what cannot be had is said by whoever needs it.
pub fn fetch() {
    _ = Emulator::get(Arch::HOST);
    let kernels: BTreeSet<&str> = matrix::all().iter().map(|cell| cell.kernel).collect();
    for kernel in kernels {
        _ = fetch::kernel(kernel);
    }
}

/// Parts that all machines with a processor have in common.
struct Bed {
    emulator: Emulator,
    programs: Programs,
}

/// The emulator and the programs for each processor of the cells.
fn beds(cells: &[Cell], args: &Args) -> Result<Vec<Bed>> {
    let mut beds: Vec<Bed> = Vec::new();
    for cell in cells {
        let arch = fetch::series(cell.kernel)?.arch;
        if beds.iter().any(|bed| bed.emulator.arch == arch) {
            continue;
        }
        let profile = match args.dev && arch == Arch::HOST {
            true => Profile::DEVELOPMENT,
            false => Profile {
                release: !args.dev,
                ..Profile::RELEASE.on(arch)
            },
        };
        beds.push(Bed {
            emulator: Emulator::get(arch)?,
            programs: guest::build(args.nvcap.as_deref(), args.bed, profile)?,
        });
    }
    Ok(beds)
}

/// The tests of a cell that `args` select.
fn selected(cell: &Cell, args: &Args) -> Vec<String> {
    let mut tests: Vec<String> = if args.tests.is_empty() {
        let these = cell.tests(args.all);
        these.iter().map(|t| t.to_string()).collect()
    } else {
        let group = |t: &String| {
            let all = cell.tests(true).into_iter().map(String::from);
            match t.ends_with("::") {
                true => all.filter(|n| n.starts_with(t.as_str())).collect(),
                false => vec![t.clone()],
            }
        };
        args.tests.iter().flat_map(group).collect()
    };
    if args.bed {
        tests.retain(|t| t.starts_with("bed-"));
    }
    tests
}

/// Runs the cells of one kernel, from its image to their reports. `machines` counts the boots: after a machine that ended early, the
/// cells that it had not begun get another one, so that each cell's verdict is its own.
fn machine(beds: &[Bed], cells: &[Cell], args: &Args, machines: &AtomicUsize) -> Vec<Report> {
    let planned: Vec<Planned> = cells
        .iter()
        .map(|cell| Planned {
            cell: cell.clone(),
            tests: selected(cell, args),
        })
        .collect();
    let boot = |rest: &[Planned]| {
        let kernel = fetch::kernel(rest[0].cell.kernel)?;
        let bed = beds.iter().find(|b| b.emulator.arch == kernel.arch);
        let Bed { emulator, programs } = bed.context("there is no bed for its processor")?;
        machines.fetch_add(1, Ordering::Relaxed);
        qemu::boot(emulator, &kernel, rest, programs, args.verbose)
    };
    let mut reports = Vec::new();
    while let Some(rest) = planned.get(reports.len()..).filter(|rest| !rest.is_empty()) {
        match boot(rest) {
            Ok(ended) => reports.extend(ended),
            Err(e) => {
                let why = format!("{e:#}");
                for Planned { cell, tests } in rest {
                    let report = Report::died(cell, tests, why.clone());
                    report.print();
                    reports.push(report);
                }
            }
        }
    }
    reports
}

fn chosen(args: &Args) -> Result<Vec<Cell>> {
    let mut cells = matrix::all();
    let named = |cell: &Cell| {
        args.kernel.iter().any(|k| k == cell.kernel) || args.cell.contains(&cell.name())
    };
    let foreign = matrix::foreign().into_iter();
    cells.extend(foreign.filter(|cell| args.foreign || args.list || named(cell)));
    cells.retain(|cell| {
        (args.kernel.is_empty() || args.kernel.iter().any(|k| k == cell.kernel))
            && (args.way.is_empty() || args.way.contains(&cell.way))
            && (args.cell.is_empty() || args.cell.contains(&cell.name()))
    });
    if cells.is_empty() {
        bail!("no cell of the matrix is that: `cargo xtask vm --list` names them all");
    }
    Ok(cells)
}
