//! `nvcap bench`: measurements of the GPU without CUDA.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::bail;

use super::{overwrite, target};
use nvcap_lab::bench;
use nvcap_process::host::uses;
use nvcap_process::procfs;
use nvcap_process::rm::Kernel;
use nvcap_show::output::{message::tell, writer::Output};

pub(super) const EXAMPLES: &str = "\
Examples:
  nvcap bench                            all of it: 29 sizes from 4 B to 1 GiB, 17 s on an H100
  nvcap bench --sizes 4,24K,1M,1G        these sizes alone
  nvcap bench --plots bench.svg          time and bandwidth over size, as a drawing
  nvcap bench --json -o bench.json       every figure
  sudo nvcap -v -- nvcap bench --sizes 4 --passes 1    what it submits

It opens the driver's files itself, as CUDA's library does, but asks for nothing that CUDA asks
for: client, device, address space, memory, one channel for compute and one for each copy engine.
Transfers are measured by the GPU's own clock, between two semaphores that the engine releases in
one submission; the row `nothing` is those two alone. docs/studies.md says what each figure is.

Nobody else should use the GPU meanwhile: where a process that this user may look into has this GPU
open, and a GPU's memory mapped, nvcap refuses.
Whatever ends nvcap, the driver frees all that it had.

Exit status: 0 measured, 1 error, 2 usage.";

/// Arguments of `nvcap bench`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The GPU with this minor number: N of /dev/nvidiaN
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: u32,

    /// Sizes of transfers, separated by commas, such as 4,24K,1M,1G (of 1024); by default the powers of two from 4 B
    /// to 1 GiB. Inline data are measured up to 4 MiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_bytes)]
    sizes: Vec<u64>,

    /// How often everything is measured; of each figure the fastest pass but one counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    passes: u8,

    /// How long each copy engine works before anything is measured, in ms: an idle GPU has low clocks
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(..=60_000))]
    warm_up: u64,

    /// Measure even where another process uses the GPU, and write over files that have something in them
    #[arg(long)]
    force: bool,

    /// Write one JSON object instead of tables
    #[arg(long)]
    json: bool,

    /// Draw time and bandwidth over size into FILE, an SVG
    #[arg(long, value_name = "FILE")]
    plots: Option<PathBuf>,

    /// Write every submission to FILE, a line each: token, ring entry and pushbuffer, hexadecimal. What a tracer must see
    #[arg(long, value_name = "FILE")]
    submissions: Option<PathBuf>,

    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Args {
    /// Returns the reason why measuring must not begin: an output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        let files = overwrite::Files::new(self.force)
            .writes("-o", self.output.as_deref())
            .writes("--plots", self.plots.as_deref())
            .writes("--submissions", self.submissions.as_deref());
        match self.output {
            Some(_) => files.refusal(),
            None => files.shows().refusal(),
        }
    }
}

/// The most bytes of one copy (LINE_LENGTH_IN has 32 bits), in whole pages.
const MOST: u64 = u32::MAX as u64 & !0xfff;

/// Parses a number of bytes, with or without a unit of 1024.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "'{text}' is no size: give bytes from 1 to 4G less a page, such as 24576, 24K, 24KiB, 1M or 1G"
        )
    };
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(wrong)?;
    match bytes {
        1..=MOST => Ok(bytes),
        _ => Err(wrong()),
    }
}

/// Runs `nvcap bench`.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = target::open(args.output.as_deref(), args.force, false, &[])?;
    let others = others(args.gpu);
    if !others.is_empty() && !args.force {
        bail!(
            "GPU {} is used by {}: its work would be measured too, and be slower meanwhile; wait until it has ended, or type \
             --force",
            args.gpu,
            others.join(", ")
        );
    }
    let mut sizes = args.sizes.clone();
    if sizes.is_empty() {
        sizes = bench::usual_sizes();
    }
    sizes.sort_unstable();
    sizes.dedup();
    let driver = target::running_driver();
    let (first, last) = nvcap_decode::driver::releases();
    match driver {
        Some(version) if !(first..=last).contains(&version) => tell(format_args!(
            "driver {version} is outside the releases that nvcap knows ({first} to {last}): the nearest one's structures are taken"
        )),
        Some(_) => {}
        None => tell(
            "the driver's release is not known (/sys/module/nvidia/version): the newest structures are taken",
        ),
    }
    // This comes before anything is measured, because a file that cannot be written would lose the results.
    let mut plots = opened(args.plots.as_deref(), args.force)?;
    let mut submissions = opened(args.submissions.as_deref(), args.force)?;
    let options = bench::Options {
        minor: args.gpu,
        driver,
        sizes,
        passes: args.passes.into(),
        warm_up: Duration::from_millis(args.warm_up),
        keep: args.submissions.is_some(),
    };
    let measured = bench::measure(Rc::new(Kernel), &options, &|what| {
        log::info!("bench: {what}");
    })?;
    tell_of_newcomers(args.gpu, &others);
    if let Some(out) = &mut plots {
        write(out, &bench::plot::svg(&measured))?;
    }
    if let Some(out) = &mut submissions {
        write(out, &bench::report::submissions(&measured))?;
    }
    let text = match args.json {
        true => serde_json::to_string(&measured)? + "\n",
        false => bench::report::text(&measured),
    };
    out.object().extend_from_slice(text.as_bytes());
    target::written(&mut out)?;
    Ok(ExitCode::SUCCESS)
}

/// Reports users of the GPU that were not there `before`: their work may have been measured, too. A user that came and went meanwhile is
/// not seen.
pub(super) fn tell_of_newcomers(minor: u32, before: &[String]) {
    let mut came = others(minor);
    came.retain(|one| !before.contains(one));
    if !came.is_empty() {
        tell(format_args!(
            "GPU {minor} came to be used by {} while it was measured: its work may have been measured too; measure again",
            came.join(", ")
        ));
    }
}

/// Opens a file that is written later.
fn opened(path: Option<&Path>, force: bool) -> anyhow::Result<Option<Output>> {
    path.map(|path| target::open(Some(path), force, false, &[]))
        .transpose()
}

fn write(out: &mut Output, text: &str) -> anyhow::Result<()> {
    out.object().extend_from_slice(text.as_bytes());
    target::written(out)
}

/// Returns the other processes that have the GPU's memory mapped, as far as this user may look. They can submit work.
pub(super) fn others(minor: u32) -> Vec<String> {
    let own = std::process::id();
    let others = procfs::processes().into_iter().filter(|pid| *pid != own);
    let using = others.filter(|pid| {
        let uses = uses::of_process(*pid);
        uses.is_ok_and(|uses| uses.mapped && uses.gpus.contains(&minor))
    });
    using
        .map(|pid| {
            let name = procfs::name(pid, None).unwrap_or_default();
            format!("process {pid} ({name})")
        })
        .collect()
}
