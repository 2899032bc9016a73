//! Search for a process's CPython: its version and its place.

use std::fmt;
use std::fs;

use super::elf::MappedElf;
use super::offsets::{self, DEBUG_BYTES};
use super::{Python, Types, Version};
use crate::procfs::{maps, mem::ReadMemory, of_process, served::Served};

/// Reason why the Python frames of a process cannot be read.
#[derive(Debug)]
pub enum FindError {
    /// The process's mappings cannot be read.
    Maps(std::io::Error),
    /// The process runs a CPython whose structures are not known.
    Unknown {
        /// Version, as far as CPython shows it.
        version: String,
    },
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Maps(e) => write!(f, "its mappings cannot be read: {e}"),
            Self::Unknown { version } => write!(
                f,
                "it runs Python {version}, and frames of CPython 3.10 to 3.14 are all that is known here"
            ),
        }
    }
}

/// Tells whether a file's name is that of a Python program or library. (The name of an extension module,
/// `x.cpython-311-x86_64-linux-gnu.so`, is not.)
fn is_python(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.starts_with("python") || name.starts_with("libpython")
}

/// Returns the first addresses of the images that may contain a CPython. The program's own image is first, as in the dynamic linker's
/// search.
pub(super) fn candidates(pid: u32) -> std::io::Result<Vec<u64>> {
    let program = fs::read_link(of_process(pid, "exe")).ok();
    let program = program.as_deref().and_then(|p| p.to_str());
    let (mut first, mut others) = (Vec::new(), Vec::new());
    let served = Served::of(pid);
    maps::each_line(pid, &mut || (), &mut |line| {
        if line.offset != 0
            || !line.read()
            || !line.path.starts_with('/')
            || served.has(line.device)
        {
            return;
        }
        if Some(line.path) == program {
            first.push(line.start);
        } else if is_python(line.path) {
            others.push(line.start);
        }
    })?;
    first.extend(others);
    Ok(first)
}

impl Python {
    /// Finds the CPython of a process; `None` if the process has none.
    ///
    /// # Errors
    /// When the process's mappings cannot be read, or the structures of its CPython are not known.
    pub fn find<M: ReadMemory + ?Sized>(pid: u32, memory: &M) -> Result<Option<Self>, FindError> {
        for start in candidates(pid).map_err(FindError::Maps)? {
            if let Some(python) = Self::at(memory, start)? {
                return Ok(Some(python));
            }
        }
        Ok(None)
    }

    /// Finds the CPython in the image that is mapped at `start`.
    pub(super) fn at<M: ReadMemory + ?Sized>(
        memory: &M,
        start: u64,
    ) -> Result<Option<Self>, FindError> {
        let Some(image) = MappedElf::at(memory, start) else {
            return Ok(None);
        };
        let symbols = || {
            let types = Types {
                code: image.symbol("PyCode_Type")?,
                unicode: image.symbol("PyUnicode_Type")?,
                bytes: image.symbol("PyBytes_Type")?,
            };
            Some((image.symbol("_PyRuntime")?, types))
        };
        let Some((runtime, types)) = symbols() else {
            return Ok(None);
        };
        let mut head = vec![0; DEBUG_BYTES];
        let debug = memory.read_bytes(runtime, &mut head).ok();
        let debug = debug.and_then(|()| offsets::debug_head(&head));
        let (hex, free_threaded) = match debug {
            Some(debug) => (Some(debug.version), debug.free_threaded),
            None => {
                // 3.11 was the first to export its version, as a constant.
                let version = image.symbol("Py_Version");
                let version = version.and_then(|at| memory.word(at).ok());
                (version.map(|v| v as u32), false)
            }
        };
        let version = match hex {
            Some(hex) => Version {
                major: (hex >> 24) as u8,
                minor: (hex >> 16) as u8,
                patch: Some((hex >> 8) as u8),
                free_threaded,
            },
            // 3.10 added this function.
            None if image.symbol("Py_NewRef").is_some() => Version {
                major: 3,
                minor: 10,
                patch: None,
                free_threaded,
            },
            None => {
                return Err(FindError::Unknown {
                    version: "3.9 or older".to_owned(),
                });
            }
        };
        let offsets = match (debug, version.major) {
            (Some(_), _) => offsets::from_debug(&head),
            (None, 3) => offsets::built_in(version.minor),
            (None, _) => None,
        };
        let offsets = offsets.ok_or_else(|| FindError::Unknown {
            version: version.to_string(),
        })?;
        Ok(Some(Self {
            version,
            runtime,
            types,
            offsets,
        }))
    }
}
