//! `nvcap record --rotate --tables`: tables of each finished file of a recording. Each export is a process of its own (`nvcap export
//! partitions`), so neither its memory nor a crash of it burdens the trace.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use nvcap_live::enrich;
use nvcap_show::export::tables::partitions;
use nvcap_show::output::message::tell;

/// The most files that wait. Each is open, and occupies its room on the disk even if it was removed.
const WAITING: usize = 4;

/// A complete file, with its name at that time.
type Whole = (PathBuf, File);

/// Exporter of finished files, one after another, on a thread. Dropping it waits for the last export.
pub(super) struct Exporter {
    /// Queue of files for the thread; `None` once the exporter is being dropped. The thread ends when the queue is empty.
    queue: Option<SyncSender<Whole>>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Begins to export into `folder`, which is made.
    ///
    /// # Errors
    /// When that is not possible, or there are no more threads.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        partitions::make_root(folder)?;
        // The command may change its folder. The resolved name means the same folder in both processes.
        let folder = folder.canonicalize()?;
        let (queue, files) = sync_channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("nvcap-tables".into())
            .spawn(move || export_each(&files, &folder))?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Queues a finished file. The file is opened at once, because it may be renamed or removed later.
    pub(super) fn whole(&self, path: &Path) {
        let Some(queue) = &self.queue else {
            return;
        };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) => {
                return tell(format_args!("no tables of {}: {e}", path.display()));
            }
        };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            queue.try_send((path.to_owned(), file))
        {
            tell(format_args!(
                "no tables of {}: those of files before it are not written yet; nvcap export partitions writes them, if the file is kept",
                path.display()
            ));
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn export_each(files: &Receiver<Whole>, folder: &Path) {
    // The processes have this thread's niceness.
    enrich::set_niceness(enrich::SEARCHES);
    for (path, file) in files {
        if let Err(why) = export(file, folder) {
            tell(format_args!("no tables of {}: {why}", path.display()));
        }
    }
}

fn export(file: File, folder: &Path) -> Result<(), String> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["export", "partitions", "--quiet", "--force", "-o"])
        .arg(folder)
        .arg("-")
        .stdin(file)
        .stdout(Stdio::null());
    // The user's Ctrl-C is meant for the trace. The export of its last file must survive it, so that the export has its own process group.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("nvcap export partitions: {status}")),
        Err(e) => Err(format!("nvcap export partitions cannot be started: {e}")),
    }
}
