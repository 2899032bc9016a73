//! `nvcap code` for a capture or a recording: names of programs, and code that was uploaded.

use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::cli::progress::{self, Reading};
use crate::cli::recording;
use nvcap_decode::decode::event::{Body, Operation};
use nvcap_decode::decode::{DecodeOptions, Decoder};
use nvcap_decode::record::{Kernel, Record};
use nvcap_decode::wire::GpuVa;
use nvcap_recording::file::packed;
use nvcap_recording::recording::Reader;
use nvcap_show::code::choose::is_meant;
use nvcap_show::output::message::tell;
use nvcap_show::output::shell::{quoted, word};

/// The most bytes of a function's code.
pub(super) const MOST_CODE: u64 = 64 << 20;

/// Opens the file, and tracks how far it is read.
///
/// # Errors
/// When it cannot be read.
pub(super) fn opened(file: &Path) -> anyhow::Result<(Box<dyn Read>, Reading)> {
    let opened = progress::open(file);
    let unpacked = opened.and_then(|(reader, reading)| Ok((packed::unpacked(reader)?, reading)));
    unpacked.with_context(|| format!("cannot read {}", file.display()))
}

/// Gives each of the records to `each` until it wants no more. Progress is shown, since nothing else is shown before the end, and Ctrl-C
/// ends the reading.
///
/// # Errors
/// When the user ended it.
fn read_all<T>(
    records: impl Iterator<Item = T>,
    (name, mut reading): (&str, Reading),
    mut each: impl FnMut(T) -> ControlFlow<()>,
) -> anyhow::Result<()> {
    reading.show_for(None);
    reading.begin()?;
    for record in records {
        if !reading.goes_on() || each(record).is_break() {
            break;
        }
    }
    let is_whole = reading.is_whole();
    reading.end();
    anyhow::ensure!(is_whole, "{name}: {}", recording::INTERRUPTED);
    Ok(())
}

/// Returns the program of the only kernel in a recording that matches the name. The file is read for it, and once more for the code.
///
/// # Errors
/// When there is none, or several, or if the file cannot be read twice.
pub(super) fn program_named(pattern: &str, file: &Path) -> anyhow::Result<GpuVa> {
    let name = file.display().to_string();
    if !file.is_file() {
        bail!(
            "{name} can be read once only, and a kernel's name takes twice: give a program's address, or save the recording in a file"
        );
    }
    let (reader, reading) = opened(file)?;
    let records = recording::records(Reader::new(reader), file);
    let mut found: Vec<Kernel> = Vec::new();
    read_all(records, (&name, reading), |record| {
        if let Record::Kernel(kernel) = record
            && kernel.is_known()
            && is_meant(pattern, &kernel.name)
            && !found.iter().any(|k| k.program == kernel.program)
        {
            found.push(*kernel);
        }
        ControlFlow::Continue(())
    })?;
    match &found[..] {
        [one] => Ok(one.program),
        [] => bail!(
            "{name} has no kernel named {pattern}: `nvcap decode {} -e op=launch` shows the names",
            quoted(file)
        ),
        several => {
            let all = several
                .iter()
                .take(8)
                .map(|k| format!("{} {}", k.program, k.name));
            let all: Vec<String> = all.collect();
            bail!(
                "{name} has {} kernels named {pattern}: give a program's address instead: {}",
                several.len(),
                all.join(", ")
            )
        }
    }
}

/// Returns the code that was uploaded to a program's address, as it was at the program's first launch.
///
/// # Errors
/// When there is none, or the user ended the reading.
pub(super) fn uploaded(
    capture: impl Iterator<Item = Result<Record, impl std::fmt::Display>>,
    program: GpuVa,
    (name, reading): (&str, Reading),
) -> anyhow::Result<Vec<u8>> {
    let mut uploaded = Uploaded::new(program);
    read_all(capture, (name, reading), |record| {
        match record {
            Ok(record) => uploaded.record(&record),
            Err(error) => tell(format_args!("{name}: {error}")),
        }
        match uploaded.code {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    })?;
    match uploaded.code {
        Some(code) => Ok(code),
        None if uploaded.launched => bail!(
            "{name} has launches of {program}, but not the upload of its code: that was before, or by a copy"
        ),
        None => bail!(
            "{name} has no launch of {program}: `nvcap decode {} -e op=launch` shows the programs",
            word(name)
        ),
    }
}

/// Search for the code at a program's address when the program is launched.
struct Uploaded {
    program: GpuVa,
    decoder: Decoder,
    serial: u64,
    launched: bool,
    code: Option<Vec<u8>>,
}

impl Uploaded {
    fn new(program: GpuVa) -> Self {
        Self {
            program,
            decoder: Decoder::new(DecodeOptions::default()),
            serial: 0,
            launched: false,
            code: None,
        }
    }

    fn record(&mut self, record: &Record) {
        let submission = match record {
            Record::Channel(channel) => return self.decoder.channel(channel),
            Record::Submission(submission) => submission,
            _ => return,
        };
        let context = self.decoder.context(submission, self.serial);
        self.serial += 1;
        let (program, mut found) = (self.program, None);
        let launched = &mut self.launched;
        self.decoder
            .submission(submission, &context, &(), &mut |event| {
                if let Body::Operation(Operation::Launch(launch)) = event.body
                    && launch.program == Some(program)
                {
                    *launched = true;
                    found = launch.program_bytes;
                }
            });
        let len = found.unwrap_or(0).min(MOST_CODE) as usize;
        let mut code = vec![0; len];
        let pid = submission.at.pid;
        if len > 0 && self.decoder.shadow().read(pid, program, &mut code) {
            self.code = Some(code);
        }
    }
}
