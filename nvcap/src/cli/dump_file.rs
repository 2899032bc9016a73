//! `nvcap dump FILE`: the state at the end of a recording, or at some moment in it.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;

use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::Model;
use nvcap_decode::hang::Report;
use nvcap_decode::ledger::{Ledger, STATUS_LOST};
use nvcap_decode::record::Record;
use nvcap_monitor::dump::recorded::Recorded;
use nvcap_show::output::dump::{self, LastEntries, ReportOptions, Shown, Status};
use nvcap_show::output::shell::quoted;
use nvcap_show::output::{Detail, Sink};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

use super::dump::{Args, is_of_a_stream, write};
use super::recording::RecordingArgs;
use super::target;

/// Runs `nvcap dump FILE`.
pub(super) fn run(args: &Args, file: &Path) -> anyhow::Result<ExitCode> {
    if is_of_a_stream(args) {
        return Ok(target::usage());
    }
    if let Some(pid) = meant_process(file) {
        bail!("there is no file {pid}; for the process of that number type: nvcap dump -p {pid}");
    }
    let (report, recording) = report(args, file)?;
    let output = &args.output;
    let mut out = target::open(output.output.as_deref(), output.force, false, &[file])?;
    let shown = Shown {
        report: &report,
        moved: None,
    };
    let options = ReportOptions {
        color: output.color().enabled(out.is_terminal()),
        ..args.shown()
    };
    write(&mut out, output.json, shown, &options)?;
    Ok(ExitCode::from(
        status(dump::status(&shown), &recording).code(),
    ))
}

/// Returns the process id that the user gave instead of a file: a number that is not the name of a file.
fn meant_process(file: &Path) -> Option<u32> {
    let number = file.to_str()?.parse().ok()?;
    (!file.exists()).then_some(number)
}

/// Returns the status of a look or a trace. The state that was seen holds for the whole of it only if the recording lacks nothing.
fn status(seen: Status, recording: &Ledger) -> Status {
    match seen {
        Status::Idle if recording.exit_status() == STATUS_LOST => Status::Unread,
        seen => seen,
    }
}

/// Makes the report, and the account of the recording.
fn report(args: &Args, file: &Path) -> anyhow::Result<(Report, Ledger)> {
    let recording = RecordingArgs::of(file);
    let mut recording = recording.open()?.quiet_until_the_end(None);
    let is_look = recording.trace().is_some_and(|t| t.how == "dump");
    let options = PipelineOptions {
        chip: args.output.chip,
        ..PipelineOptions::default()
    };
    let name = file.display();
    if is_look {
        if args.at.is_some() {
            bail!("{name} is of one moment, a look of nvcap dump --record: leave --at out");
        }
        let mut gathered = Gathered::default();
        let mut pipeline = Pipeline::new(options, vec![Box::new(&mut gathered)]);
        recording.play(&mut pipeline)?;
        let ledger = pipeline.finish()?;
        let report = gathered.0.report(args.output.chip, !args.no_names);
        let Some(mut report) = report else {
            bail!(
                "{name} has entries of rings, and not what nvcap dump saw beside them: it was made by nvcap dump --stream, by an older nvcap, or cut; \
                 nvcap decode {} shows the entries",
                quoted(file)
            );
        };
        if ledger.exit_status() == STATUS_LOST
            && let Some(process) = report.processes.last_mut()
        {
            let verdict = nvcap_show::output::ledger::verdict(&ledger);
            process.notes.push(format!("the recording: {verdict}"));
        }
        return Ok((report, ledger));
    }
    let mut last = LastEntries::new(args.last.unwrap_or(dump::LAST), args.at);
    let mut pipeline = Pipeline::new(options, vec![Box::new(&mut last)]);
    recording.play(&mut pipeline)?;
    let ledger = pipeline.finish()?;
    let report = last.report();
    if report.processes.is_empty() {
        bail!(
            "{name} has no submission: there is no state to show; nvcap decode {} says what it has",
            quoted(file)
        );
    }
    Ok((report, ledger))
}

/// A sink that gathers the records of a recorded look. It can keep all of them, because a look has no more than the rings held.
#[derive(Default)]
struct Gathered(Recorded);

impl Sink for Gathered {
    fn detail(&self) -> Option<Detail> {
        None
    }

    fn event(&mut self, _event: &Event<'_>) -> io::Result<()> {
        Ok(())
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        self.0.put(record);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _ledger: &Ledger, _model: &Model) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_recording_lacks_is_not_hidden_by_status_0() {
        let (whole, mut cut) = (Ledger::new(), Ledger::new());
        cut.add_unshown(1);
        let all = [
            (Status::Idle, Status::Unread),
            (Status::Busy, Status::Busy),
            (Status::Unknown, Status::Unknown),
            (Status::Hang, Status::Hang),
        ];
        for (seen, expected) in all {
            assert_eq!(status(seen, &whole), seen);
            assert_eq!(status(seen, &cut), expected);
        }
    }

    #[test]
    fn a_number_that_is_no_file_is_a_process() {
        assert_eq!(meant_process(Path::new("4711")), Some(4711));
        for file in ["look.pcapng", "4711.pcapng", "-1", "."] {
            assert_eq!(meant_process(Path::new(file)), None, "{file}");
        }
    }
}
