//! Register programmes that were learnt: a file for each GPU, in root's cache.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use nvcap_decode::samples::Programme;

/// The most bytes of a file.
const MOST: u64 = 16 << 20;

fn folder() -> PathBuf {
    let named = std::env::var_os("NVCAP_SAMPLE_PROGRAMMES").filter(|path| !path.is_empty());
    named.map_or_else(|| "/var/cache/nvcap/sample".into(), PathBuf::from)
}

fn path(gpu: &str) -> PathBuf {
    // It should be a UUID, but the text is the driver's.
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    folder().join(format!(
        "{}.programme",
        gpu.chars().map(plain).collect::<String>()
    ))
}

const LEARN: &str = "type `sudo nvcap sample --learn` (once; it takes some seconds and needs CUDA's CUPTI, libcupti.so)";

/// Reads the programme that was learnt on this GPU with this driver.
pub(super) fn read(gpu: &str, driver: &str) -> anyhow::Result<Programme> {
    let path = path(gpu);
    let shown = path.display();
    let text = match text(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
            "nvcap has not learnt yet how this GPU is told to sample ({shown} is not there): {LEARN}"
        ),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {shown}: {LEARN}"));
        }
    };
    let programme = Programme::read(&text);
    let programme = programme.with_context(|| format!("{shown} is no programme: {LEARN}"))?;
    if programme.gpu != gpu || programme.driver != driver {
        bail!(
            "what nvcap has learnt is of GPU {} and driver {}, and this is {gpu} with {driver}: {LEARN}",
            programme.gpu,
            programme.driver
        );
    }
    Ok(programme)
}

fn text(path: &std::path::Path) -> io::Result<String> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let about = file.metadata()?;
    // SAFETY: reads an id.
    let user = unsafe { libc::geteuid() };
    // The file's words go into registers of the GPU.
    if !about.is_file() || about.uid() != user || about.mode() & 0o022 != 0 {
        return Err(io::Error::other(
            "it is another user's, or others may write it: remove it",
        ));
    }
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

/// Keeps a programme. Returns the place of the file.
pub(super) fn write(programme: &Programme) -> anyhow::Result<PathBuf> {
    let path = path(&programme.gpu);
    let written = try_write(&path, &programme.text());
    written.with_context(|| {
        format!(
            "cannot write {} (NVCAP_SAMPLE_PROGRAMMES names another folder)",
            path.display()
        )
    })?;
    Ok(path)
}

fn try_write(path: &std::path::Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
    }
    let beside = path.with_extension(format!("{}", std::process::id()));
    // A process that was killed may have left it.
    let _ = fs::remove_file(&beside);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.custom_flags(libc::O_NOFOLLOW).open(&beside)?;
    let written = { file.write_all(text.as_bytes()) }.and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Returns the driver's release, by which a programme is kept.
pub(super) fn driver() -> anyhow::Result<String> {
    let path = "/sys/module/nvidia/version";
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read the driver's release from {path}"))?;
    Ok(text.trim().to_owned())
}
