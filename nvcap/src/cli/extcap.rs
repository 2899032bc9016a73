//! `nvcap extcap`: live capture for Wireshark and tshark, by their extcap interface. The calls are those of the script that `nvcap
//! wireshark install` writes. Messages that Wireshark shows as errors go to standard error.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use super::usage::bail_usage;
use super::way_options::HowArg;
use super::{trace, trace_run, version};
use nvcap_show::output::writer::Output;

/// Name of the interface, as tshark's `-i` takes it.
const INTERFACE: &str = "nvcap";

/// Arguments that Wireshark gives.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// List the interfaces
    #[arg(long)]
    pub extcap_interfaces: bool,
    /// The version of the caller
    #[arg(long, value_name = "VERSION")]
    pub extcap_version: Option<String>,
    /// List the link types of an interface
    #[arg(long)]
    pub extcap_dlts: bool,
    /// List the options of an interface
    #[arg(long)]
    pub extcap_config: bool,
    /// List the values of one option anew
    #[arg(long, value_name = "OPTION")]
    pub extcap_reload_option: Option<String>,
    /// Which interface
    #[arg(long, value_name = "NAME")]
    pub extcap_interface: Option<String>,
    /// Not used: nvcap has display filters only
    #[arg(long, value_name = "FILTER")]
    pub extcap_capture_filter: Option<String>,
    /// Capture into --fifo
    #[arg(long, requires = "fifo")]
    pub capture: bool,
    /// Pipe for the packets
    #[arg(long, value_name = "FILE")]
    pub fifo: Option<PathBuf>,
    /// The process, of those that use a GPU
    #[arg(long, value_name = "PID")]
    pub process: Option<String>,
    /// The process, by its id
    #[arg(long, value_name = "PID")]
    pub pid: Option<String>,
    /// How submissions are seen, as nvcap's option --how
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub how: HowArg,
    /// Read the GPU's time stamps: when it began and ended each submission
    #[arg(long)]
    pub gpu_time: bool,
}

/// Answers Wireshark's question, or captures.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(interface) = args.extcap_interface.as_deref()
        && interface != INTERFACE
    {
        bail_usage!("there is no interface {interface}: nvcap has one, {INTERFACE}");
    }
    if args.capture {
        return capture(args);
    }
    let mut out = Output::stdout();
    out.object().extend_from_slice(answer(args).as_bytes());
    out.answer()?;
    Ok(ExitCode::SUCCESS)
}

fn answer(args: &Args) -> String {
    let mut text = String::new();
    if args.extcap_interfaces {
        text += &format!(
            "extcap {{version={}}}{{display=nvcap}}\n\
             interface {{value={INTERFACE}}}{{display=NVIDIA GPU submissions}}\n",
            version::short()
        );
    }
    if args.extcap_dlts {
        text += "dlt {number=147}{name=USER0}{display=nvcap}\n";
    }
    if args.extcap_config {
        text += "arg {number=0}{call=--process}{display=Process}{type=selector}{reload=true}{placeholder=Look again}\
                 {tooltip=The process whose submissions are captured: those that use a GPU and that you may look into}\n\
                 arg {number=1}{call=--pid}{display=Or its id}{type=unsigned}{tooltip=The id of a process}\n\
                 arg {number=2}{call=--how}{display=How submissions are seen}{type=selector}\
                 {tooltip=trap sees each one when it is made and costs the process a trap for it; observe reads the rings, and costs it nothing}\n\
                 arg {number=3}{call=--gpu-time}{display=Times of the GPU}{type=boolflag}{default=false}\
                 {tooltip=Read all the time when the GPU worked on what, on a processor of its own}\n";
        for (way, of, default) in [
            ("trap", "in the trap, whole and at once", true),
            ("observe", "observing, at the process's full speed", false),
            ("auto", "in the trap where that is allowed", false),
        ] {
            let _ = writeln!(
                text,
                "value {{arg=2}}{{value={way}}}{{display={of}}}{{default={default}}}"
            );
        }
    }
    if args.extcap_config || args.extcap_reload_option.as_deref() == Some("process") {
        for (pid, name) in processes() {
            let _ = writeln!(
                text,
                "value {{arg=0}}{{value={pid}}}{{display={pid} {name}}}"
            );
        }
    }
    text
}

/// Returns the processes that use a GPU, as far as this user may know.
fn processes() -> Vec<(u32, String)> {
    let name = |pid| {
        let name = nvcap_process::procfs::name(pid, None).unwrap_or_default();
        let is_plain = |c: &char| !c.is_control() && !matches!(c, '{' | '}');
        name.chars().filter(is_plain).collect()
    };
    let found = nvcap_process::host::gpu_processes();
    found.mapped().map(|pid| (pid, name(pid))).collect()
}

/// Options of a trace, with their defaults.
#[derive(Parser, Debug)]
struct Trace {
    #[command(flatten)]
    args: trace::Args,
}

fn capture(args: &Args) -> anyhow::Result<ExitCode> {
    use anyhow::Context as _;

    use super::{pids, recorder, target};
    use nvcap_show::output::recorder::Files;
    use nvcap_show::output::wireshark::Packets;
    use nvcap_show::pipeline::{Pipeline, PipelineOptions};

    let fifo = args.fifo.as_deref().context("--capture needs --fifo")?;
    let given = [&args.pid, &args.process].into_iter().flatten();
    let Some(pid) = given.map(|pid| pid.trim()).find(|pid| !pid.is_empty()) else {
        bail_usage!(
            "no process is chosen: name one in the options of the interface (the wheel beside its name), or for tshark with \
             -o extcap.nvcap.pid:PID"
        );
    };
    let mut trace = Trace::parse_from(["nvcap", "--quiet"]).args;
    trace.pid = pids::of_word(pid).map_err(anyhow::Error::msg)?;
    trace.how = args.how;
    trace.gpu_time = args.gpu_time;
    let out = target::open(Some(fifo), false, false, &[])?;
    let fifo = fifo.to_owned();
    let driver = target::running_driver();
    trace_run::run_into(
        trace,
        |trace| {
            let how = match trace.how {
                HowArg::Observe => "observe",
                HowArg::Auto | HowArg::Trap => "trap",
            };
            let recorder = recorder::of_trace(Files::one(out, false), &trace.recorded(how))?;
            let sink = Packets::new(recorder, driver, Box::new(move || is_read(&fifo)));
            let options = PipelineOptions {
                driver_version: driver,
                ..PipelineOptions::default()
            };
            Ok(Pipeline::new(options, vec![Box::new(sink)]))
        },
        |pipeline| Ok(pipeline.finish()?),
    )?;
    // The exit status does not reflect losses; Wireshark shows them as packets.
    Ok(ExitCode::SUCCESS)
}

/// Tells whether some program has the pipe open for reading. Without a reader it cannot be opened for writing.
fn is_read(fifo: &std::path::Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt as _;

    let mut open = std::fs::OpenOptions::new();
    let opened = open.write(true).custom_flags(libc::O_NONBLOCK).open(fifo);
    opened.is_ok_and(|_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn asked(line: &str) -> String {
        let words = ["nvcap"].into_iter().chain(line.split_whitespace());
        answer(&Line::try_parse_from(words).expect(line).args)
    }

    #[test]
    fn what_wireshark_asks_is_answered() {
        let interfaces = asked("--extcap-interfaces --extcap-version=4.0");
        assert!(
            interfaces.contains("interface {value=nvcap}"),
            "{interfaces}"
        );
        let dlts = asked("--extcap-dlts --extcap-interface nvcap");
        assert_eq!(dlts, "dlt {number=147}{name=USER0}{display=nvcap}\n");
        let config = asked("--extcap-config --extcap-interface nvcap");
        for option in ["--process", "--pid", "--how", "--gpu-time"] {
            assert!(config.contains(&format!("{{call={option}}}")), "{config}");
        }
        let open = config.matches('{').count();
        assert_eq!(open, config.matches('}').count());
        assert!(
            config
                .lines()
                .all(|l| l.starts_with("arg {") || l.starts_with("value {"))
        );
        assert!(
            !asked("--extcap-config --extcap-interface nvcap --extcap-reload-option process")
                .is_empty()
        );
    }
}
