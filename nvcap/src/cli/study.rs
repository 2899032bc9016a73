//! `nvcap study`: CUDA's copies and graphs, the submissions that CUDA makes for them, and the GPU's part of the time; also how streams and
//! processes share a GPU.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::output_args::OutputArgs;
use super::recording::RecordingArgs;
use super::{bench as raw, overwrite, target};
use nvcap_lab::bench::{self, Measured};
use nvcap_lab::study::{
    dma, graph, page, sharing,
    work::{self, Said, What, Work},
};
use nvcap_show::output::{
    Sink,
    file::{Obstacle, obstacle},
    ledger::verdict,
    message::tell,
};
use nvcap_show::pipeline::Pipeline;

pub(super) const EXAMPLES: &str = "\
Examples:
  sudo nvcap study dma                   copies of 4 B to 1 GiB, into nvcap-study-dma/
  sudo nvcap study graph                 graphs of 1 to 2,000 nodes, into nvcap-study-graph/
  sudo nvcap study sharing               streams, priorities, processes, in nvcap-study-sharing/
  sudo nvcap study dma --sizes 4K,1M -o here
  nvcap stats here/dma.pcapng --phases here/dma.traced.phases

A small program in Python calls CUDA's driver library (no compiler, no PyTorch): once undisturbed,
for its times, and once in a trace, for what it submits. Beside its copies stands what nvcap bench
measures. The folder has the page (.html), the figures (.json), the recording (.pcapng), its phases,
and the program (work.py, sharing.py). docs/studies.md says what each figure is.

Nobody else should use the GPU meanwhile.
Exit status: 0 done, 1 error, 2 usage.";

/// Extensions of the files that are a study's results. The programs, which are the same each time, are not results.
const RESULTS: [&str; 7] = [
    "html",
    "json",
    "pcapng",
    "alone.json",
    "alone.phases",
    "traced.json",
    "traced.phases",
];

/// Arguments of `nvcap study`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(super) struct Args {
    #[command(subcommand)]
    study: Study,
}

#[derive(clap::Subcommand, Debug)]
enum Study {
    /// Copies: by what means CUDA makes them, and what share of the time is not the engine's
    Dma(Dma),
    /// Graphs: what is submitted to upload and to launch them, and how long that takes
    Graph(Graph),
    /// Streams, priorities, copies and processes: the channel, group and runlist of each, and what waits behind what
    Sharing(Sharing),
}

/// Options of all studies.
#[derive(clap::Args, Debug)]
struct Shared {
    /// The GPU with this minor number: N of /dev/nvidiaN
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: u32,

    /// Python 3, which runs the program that calls CUDA
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,

    /// The folder that everything is written into; by default nvcap-study-dma, -graph or -sharing
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,

    /// Write the figures to standard output as one JSON object instead of tables
    #[arg(long)]
    json: bool,

    /// Measure even where another process uses the GPU, and write over the files of an earlier study in FOLDER
    #[arg(long)]
    force: bool,
}

/// Number of runs.
#[derive(clap::Args, Debug)]
struct Runs {
    /// How often each copy or launch is made
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
}

#[derive(clap::Args, Debug)]
struct Dma {
    #[command(flatten)]
    shared: Shared,

    #[command(flatten)]
    runs: Runs,

    /// Sizes of copies, separated by commas, such as 4,24K,1M,1G (of 1024); by default the powers of two from 4 B to
    /// 1 GiB, and some around 24 KiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = raw::parse_bytes)]
    sizes: Vec<u64>,
}

#[derive(clap::Args, Debug)]
struct Graph {
    #[command(flatten)]
    shared: Shared,

    #[command(flatten)]
    runs: Runs,

    /// Numbers of nodes, separated by commas; graphs with copies have up to 256
    #[arg(long, value_name = "NODES", value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256,512,1000,2000",
        value_parser = clap::value_parser!(u64).range(1..=100_000))]
    nodes: Vec<u64>,
}

#[derive(clap::Args, Debug)]
struct Sharing {
    #[command(flatten)]
    shared: Shared,

    /// Numbers of streams, separated by commas
    #[arg(long, value_name = "STREAMS", value_delimiter = ',', default_value = "1,2,4,8,9,16,32,40",
        value_parser = clap::value_parser!(u64).range(1..=128))]
    streams: Vec<u64>,
}

impl Shared {
    fn folder(&self, what: What) -> PathBuf {
        let folder = self.output.clone();
        folder.unwrap_or_else(|| format!("nvcap-study-{}", what.name()).into())
    }
}

impl Args {
    /// Returns the reason why the study must not begin: it would replace the results of an earlier one.
    pub(super) fn refusal(&self) -> Option<String> {
        let (what, shared) = match &self.study {
            Study::Dma(args) => (What::Dma, &args.shared),
            Study::Graph(args) => (What::Graph, &args.shared),
            Study::Sharing(args) => (What::Sharing, &args.shared),
        };
        let folder = shared.folder(what);
        let results = RESULTS.map(|ending| folder.join(format!("{}.{ending}", what.name())));
        // A program that is unchanged stays; a different file of that name is the user's.
        let programs = work::PROGRAMS.map(|(name, text)| (folder.join(name), text));
        let others = programs.into_iter().filter(|(path, text)| {
            path.is_file() && std::fs::read(path).is_ok_and(|there| there != text.as_bytes())
        });
        let files = results.into_iter().chain(others.map(|(path, _)| path));
        overwrite::Files::new(shared.force)
            .members("-o", files)
            .refusal()
    }
}

/// Runs `nvcap study`.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.study {
        Study::Dma(args) => run_dma(args),
        Study::Graph(args) => run_graph(args),
        Study::Sharing(args) => run_sharing(args),
    }
}

fn run_dma(args: &Dma) -> anyhow::Result<ExitCode> {
    let mut sizes = args.sizes.clone();
    if sizes.is_empty() {
        sizes = bench::usual_sizes();
        // At the sizes where CUDA is known to change its means, steps are 4 KiB.
        sizes.extend((5..=7).map(|n| n << 12));
    }
    sizes.sort_unstable();
    sizes.dedup();
    let work = begin(&args.shared, What::Dma, args.runs.runs, sizes.clone())?;
    tell("without CUDA (nvcap bench)");
    let raw = measure(&args.shared, sizes)?;
    tell("CUDA, undisturbed");
    let said = work.alone::<Said<dma::Timed>>()?;
    let (seen, ledger) = traced(&work)?;
    let study = dma::study(&said, &seen, &raw, ledger);
    let html = page::of_dma(&study, &raw);
    let json = serde_json::to_string(&serde_json::json!({ "study": &study, "bench": &raw }))?;
    end(&args.shared, &work, (&html, &json, &study.text()))
}

fn run_graph(args: &Graph) -> anyhow::Result<ExitCode> {
    let work = begin(
        &args.shared,
        What::Graph,
        args.runs.runs,
        args.nodes.clone(),
    )?;
    tell("CUDA, undisturbed");
    let said = work.alone::<Said<graph::Timed>>()?;
    let (seen, ledger) = traced(&work)?;
    let study = graph::study(&said, &seen, ledger);
    let json = serde_json::to_string(&serde_json::json!({ "study": &study }))?;
    end(
        &args.shared,
        &work,
        (&page::of_graph(&study), &json, &study.text()),
    )
}

fn run_sharing(args: &Sharing) -> anyhow::Result<ExitCode> {
    let work = begin(&args.shared, What::Sharing, 1, args.streams.clone())?;
    let driver = target::running_driver();
    let engines = bench::copy_engines(Rc::new(nvcap_process::rm::Kernel), driver, args.shared.gpu);
    let engines = engines.map_err(|e| e.to_string());
    tell("CUDA, undisturbed");
    let untraced = work.alone::<sharing::told::Told>()?;
    let (seen, ledger) = traced(&work)?;
    let told = work.said::<sharing::told::Told>("traced")?;
    let study = sharing::study(&told, &seen, &untraced, engines, ledger);
    let json = serde_json::to_string(&serde_json::json!({ "study": &study }))?;
    end(
        &args.shared,
        &work,
        (&page::of_sharing(&study), &json, &study.text()),
    )
}

/// Makes the folder, with the programs in it.
fn begin(shared: &Shared, what: What, runs: u32, numbers: Vec<u64>) -> anyhow::Result<Work> {
    let others = raw::others(shared.gpu);
    if !others.is_empty() && !shared.force {
        bail!(
            "GPU {} is used by {}: its work would be measured too; wait until it has ended, or type --force",
            shared.gpu,
            others.join(", ")
        );
    }
    let folder = shared.folder(what);
    std::fs::create_dir_all(&folder).with_context(|| {
        format!(
            "cannot make the folder {} (-o names another)",
            folder.display()
        )
    })?;
    for (name, program) in work::PROGRAMS {
        let path = folder.join(name);
        if !std::fs::read(&path).is_ok_and(|there| there == program.as_bytes()) {
            write(&path, program, shared.force)?;
        }
    }
    let work = Work {
        what,
        gpu: shared.gpu,
        runs,
        numbers,
        python: shared.python.clone(),
        folder,
    };
    // A new recording would get another name, and the study would read the old one.
    let recording = work.file("pcapng");
    if shared.force && obstacle(&recording, false) == Some(Obstacle::Content) {
        std::fs::remove_file(&recording)
            .with_context(|| format!("cannot remove {}", recording.display()))?;
    }
    Ok(work)
}

fn measure(shared: &Shared, sizes: Vec<u64>) -> anyhow::Result<Measured> {
    let options = bench::Options {
        minor: shared.gpu,
        driver: target::running_driver(),
        sizes,
        passes: 5,
        warm_up: Duration::from_millis(500),
        keep: false,
    };
    Ok(bench::measure(
        Rc::new(nvcap_process::rm::Kernel),
        &options,
        &|what| log::info!("bench: {what}"),
    )?)
}

/// Runs the program in a trace. Returns what the recording shows, and its ledger in words.
fn traced<S: Sink + Default>(work: &Work) -> anyhow::Result<(S, String)> {
    tell("CUDA, traced");
    let nvcap = std::env::current_exe().context("cannot tell where nvcap is")?;
    let (recording, phases) = work.traced(&nvcap)?;
    read(&recording, &phases)
}

/// Reads what a recording shows about its phases.
fn read<S: Sink + Default>(recording: &Path, phases: &Path) -> anyhow::Result<(S, String)> {
    let args = RecordingArgs::of(recording);
    let mut recording = args.open()?;
    let shown = OutputArgs {
        phases: Some(phases.to_owned()),
        ..OutputArgs::default()
    };
    let shown = shown.of_recording(recording.trace());
    let options = shown.pipeline_options(false, None)?;
    let mut seen = S::default();
    let mut pipeline = Pipeline::new(options, vec![Box::new(&mut seen)]);
    recording.quiet_until_the_end(None).play(&mut pipeline)?;
    let ledger = pipeline.finish()?;
    Ok((seen, verdict(&ledger)))
}

/// Writes the page and the figures, and shows the tables.
fn end(
    shared: &Shared,
    work: &Work,
    (html, json, text): (&str, &str, &str),
) -> anyhow::Result<ExitCode> {
    let page = work.file("html");
    write(&page, html, shared.force)?;
    write(&work.file("json"), json, shared.force)?;
    let mut out = target::open(None, false, false, &[])?;
    match shared.json {
        true => {
            out.object().extend_from_slice(json.as_bytes());
            out.object().push(b'\n');
        }
        false => out.object().extend_from_slice(text.as_bytes()),
    }
    target::written(&mut out)?;
    if !shared.force {
        raw::tell_of_newcomers(shared.gpu, &[]);
    }
    tell(format_args!("the page is {}", page.display()));
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    let mut out = target::open(Some(path), force, false, &[])?;
    out.object().extend_from_slice(text.as_bytes());
    target::written(&mut out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_lab::study::phases::{Means, PhaseTotals};

    /// Test on the capture of an H200 whose phases are named like those of the study: the means by which CUDA copied, doorbells and bytes.
    #[test]
    fn of_a_capture() {
        let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures");
        let (seen, ledger) = read::<PhaseTotals>(
            &captures.join("h200-mixed.orc.xz"),
            &captures.join("h200-mixed.phases"),
        )
        .unwrap();
        assert!(ledger.starts_with("complete"), "{ledger}");
        let kinds = [
            ("h2d_pinned", 4096),
            ("h2d_pinned", 24576),
            ("h2d_pinned", 28672),
            ("h2d_pinned", 1 << 20),
            ("d2d", 4096),
        ];
        let rows = kinds.map(|(kind, bytes)| dma::Timed {
            kind: kind.to_owned(),
            bytes,
            runs: 1,
            call_ns: 1000.0,
            done_ns: 4000.0,
        });
        let said = Said {
            cuda: 13000,
            empty_call_ns: 100.0,
            rows: rows.to_vec(),
        };
        let raw = made();
        let study = dma::study(&said, &seen, &raw, ledger);
        let [small, most, engine, large, device] = &study.rows[..] else {
            panic!("{:?}", study.rows);
        };
        assert_eq!(
            (&small.means[..], small.submissions),
            (&[Means::Inline][..], 1.0)
        );
        assert_eq!(small.pushbuffer_bytes, 56.0 + 4096.0);
        // 1,000 ns less the 600 ns of an empty measurement.
        assert_eq!(
            (small.engine_ns, small.rest_percent),
            (Some(400.0), Some(90.0))
        );
        assert_eq!(most.means, [Means::Inline]);
        let [Means::Engine(name)] = &engine.means[..] else {
            panic!("{:?}", engine.means);
        };
        assert!(name.starts_with("CE"), "{name}");
        assert_eq!((large.submissions, large.pushbuffer_bytes), (1.0, 60.0));
        assert_eq!(device.means, [Means::Kernel]);
        assert_eq!(device.engine_ns, None);
        let lines: Vec<String> = study.changes.iter().map(dma::Change::line).collect();
        assert_eq!(
            lines,
            [format!(
                "h2d_pinned: inline up to 24576 B, {name} from 28672 B"
            )]
        );
        let text = study.text();
        assert!(text.contains("\nh2d_pinned\nbytes "), "{text}");
        let html = page::of_dma(&study, &raw);
        assert!(html.contains("<td>4 KiB</td><td>inline</td>"), "{html}");
    }

    /// Makes a measurement of 4 KiB of inline data in 1,000 ns.
    fn made() -> Measured {
        use nvcap_lab::bench::measure::{Point, Series, Times, Way};
        let times = Times::one;
        Measured {
            gpu: 0,
            driver: None,
            classes: ["", "", ""].map(str::to_owned),
            latencies: Vec::new(),
            transfers: vec![Series {
                engine: "compute".to_owned(),
                engine_type: 1,
                way: Way::Inline,
                nothing: times(600.0),
                points: vec![Point::new(4096, times(1000.0))],
            }],
            notes: Vec::new(),
            submissions: Vec::new(),
        }
    }

    #[test]
    fn a_graph_s_phases() {
        let mut seen = PhaseTotals::default();
        for (name, submissions, bytes, kernels) in [
            ("chain_upload_8", 1, 9000, 0),
            ("chain_first_8", 1, 92, 8),
            ("chain_later_8", 4, 400, 32),
        ] {
            let phase = nvcap_lab::study::phases::Phase {
                submissions,
                bytes,
                kernels,
                ..Default::default()
            };
            seen.phases.insert(name.to_owned(), phase);
        }
        let row = r#"{"cuda": 12080, "empty_call_ns": 150, "rows": [{"shape": "chain", "nodes": 8, "runs": 4,
            "instantiate": {"call_ns": 5000, "done_ns": 6000}, "upload": {"call_ns": 3000, "done_ns": 9000},
            "first": {"call_ns": 2000, "done_ns": 7000}, "later": {"call_ns": 1900, "done_ns": 6900}}]}"#;
        let said: Said<graph::Timed> = serde_json::from_str(row).unwrap();
        let study = graph::study(&said, &seen, "complete".to_owned());
        let [row] = &study.rows[..] else {
            panic!("{:?}", study.rows);
        };
        assert_eq!(
            (
                row.upload.pushbuffer_bytes,
                row.instantiate.pushbuffer_bytes
            ),
            (9000.0, 0.0)
        );
        let later = &row.later;
        assert_eq!(
            (later.submissions, later.pushbuffer_bytes, later.kernels),
            (1.0, 100.0, 8.0)
        );
        let text = study.text();
        assert!(text.starts_with("CUDA 12.8,"), "{text}");
        assert!(page::of_graph(&study).contains("<h2>chain</h2>"));
    }
}
