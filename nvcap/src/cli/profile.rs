//! A file of another profiler in place of a recording, shared by `nvcap time` and `nvcap diff`.

use std::io::Read;
use std::path::Path;

use anyhow::{Context as _, bail};
use nvcap_recording::file::kind::{self, Kind};
use nvcap_recording::file::packed;
#[cfg(feature = "sqlite")]
use nvcap_show::profile::nsys::NsysFile;
use nvcap_show::profile::{About, Sums, Work, Works, kineto};

use super::progress::{self, Reading, UntilInterrupted};
use super::recording::{INTERRUPTED, Recording, RecordingArgs};

/// A file that was opened, and of which only the kind is known yet.
pub(super) enum Input<'a> {
    Recording(Box<Recording<'a>>),
    Profile(Profile<'a>),
}

/// A file of another profiler.
pub(super) struct Profile<'a> {
    file: &'a Path,
    of: Of,
    reading: Reading,
}

enum Of {
    Kineto(Box<dyn Read>),
    #[cfg(feature = "sqlite")]
    Nsys(NsysFile),
}

/// Opens a file. If a format was named, or several files were given, they are recordings.
///
/// # Errors
/// When it cannot be read, or is neither.
pub(super) fn open(args: &RecordingArgs) -> anyhow::Result<Input<'_>> {
    if args.from.is_some() || !args.more.is_empty() {
        return Ok(Input::Recording(Box::new(args.open()?)));
    }
    let file = args.file.as_path();
    let opened =
        progress::open(file).and_then(|(reader, reading)| Ok((packed::unpacked(reader)?, reading)));
    let (reader, reading) =
        opened.with_context(|| format!("cannot read the capture {}", file.display()))?;
    let (kind, reader) = kind::of(reader);
    let of = match kind {
        // On a signal, standard input ends by itself.
        Kind::Kineto if file.as_os_str() == "-" => Of::Kineto(reader),
        Kind::Kineto => Of::Kineto(Box::new(UntilInterrupted(reader))),
        Kind::Sqlite => nsys(file)?,
        _ => {
            let recording = args.of_reader((reader, reading), false)?;
            return Ok(Input::Recording(Box::new(recording)));
        }
    };
    Ok(Input::Profile(Profile { file, of, reading }))
}

#[cfg(feature = "sqlite")]
fn nsys(file: &Path) -> anyhow::Result<Of> {
    let name = file.display();
    if !file.is_file() {
        bail!(
            "{name} is an SQLite database, which is read in a file alone, not in a pipe: write it to one"
        );
    }
    let db = NsysFile::open(file).with_context(|| {
        format!("cannot read the SQLite database {name} (a compressed one is decompressed first)")
    })?;
    if !db.is_trace() {
        bail!(
            "{name} is an SQLite database without kernels, copies and memsets of Nsight Systems: nsys export --type sqlite makes one of a report with them"
        );
    }
    Ok(Of::Nsys(db))
}

#[cfg(not(feature = "sqlite"))]
fn nsys(file: &Path) -> anyhow::Result<Of> {
    bail!(
        "{} is an SQLite database, and this nvcap was built without the feature sqlite",
        file.display()
    )
}

/// Counter of works that are passed on, as long as the user wants more of them.
struct Counted<'a> {
    works: &'a mut dyn Works,
    count: u64,
    reading: &'a mut Reading,
}

impl Works for Counted<'_> {
    fn work(&mut self, work: &Work<'_>) {
        self.count += 1;
        self.works.work(work);
    }

    fn goes_on(&mut self) -> bool {
        self.reading.goes_on()
    }
}

impl Profile<'_> {
    /// Reads all works into sums. `output` is the place of the command's output.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn read(self, output: Option<&Path>) -> anyhow::Result<(Sums, About)> {
        let mut sums = Sums::default();
        let about = self.read_into(&mut sums, output)?;
        Ok((sums, about))
    }

    /// Reads as [`Profile::read`] does, and gives each work to `works`.
    ///
    /// # Errors
    /// As for [`Profile::read`].
    pub(super) fn read_into(
        mut self,
        works: &mut dyn Works,
        output: Option<&Path>,
    ) -> anyhow::Result<About> {
        let reading = &mut self.reading;
        match self.of {
            Of::Kineto(_) => reading.show_for(output),
            // SQLite accesses the file in its own way, so the progress is not known.
            #[cfg(feature = "sqlite")]
            Of::Nsys(_) => {}
        }
        reading.begin()?;
        nvcap_process::confine::decoding();
        let mut counted = Counted {
            works,
            count: 0,
            reading,
        };
        let mut about = match self.of {
            Of::Kineto(reader) => kineto::read(reader, &mut counted),
            #[cfg(feature = "sqlite")]
            Of::Nsys(db) => db.read(&mut counted),
        };
        let count = counted.count;
        // The user's signal may have ended the file rather than its events.
        let is_wanted = about.cut.is_none() || self.reading.goes_on();
        if !self.reading.is_whole() || !is_wanted {
            about.cut = Some(INTERRUPTED.to_owned());
        }
        self.reading.end();
        let name = self.file.display();
        match (count, &about.cut) {
            (0, Some(cut)) => bail!("{name} has no whole kernel, copy or memset of a GPU: {cut}"),
            (0, None) => bail!("{name} has no kernel, copy or memset of a GPU"),
            _ => Ok(about),
        }
    }
}
