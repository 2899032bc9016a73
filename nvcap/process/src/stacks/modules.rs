//! Executable mappings of a process's files: the executable lines of `/proc/PID/maps`.

use std::sync::Arc;

use crate::procfs::{
    has_ended,
    maps::{Line, each_line},
    of_process as path_of, program_as,
};

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Offset in the file.
    pub offset: u64,
    /// File; `None` for code without one.
    pub file: Option<MappedFile>,
    /// Name as the kernel shows it: the path, `[vdso]`, or nothing.
    pub name: Arc<str>,
}

/// Identity of a mapped file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MappedFile {
    /// Device of the file system, as the kernel shows it.
    pub device: Box<str>,
    /// Inode of the file on that device.
    pub inode: u64,
}

impl Mapped {
    fn of(line: &Line<'_>) -> Option<Self> {
        line.execute().then(|| Self {
            start: line.start,
            end: line.end,
            offset: line.offset,
            file: (line.inode != 0).then(|| MappedFile {
                device: line.device.into(),
                inode: line.inode,
            }),
            name: line
                .path
                .strip_suffix(" (deleted)")
                .unwrap_or(line.path)
                .into(),
        })
    }

    /// Returns the paths by which the mapping's file may be opened, the most reliable first, each with whether the opened file must be
    /// checked to be the mapped one.
    pub(super) fn paths(&self, pid: u32) -> Vec<(String, bool)> {
        let range = format!("map_files/{:x}-{:x}", self.start, self.end);
        let mut paths = vec![(path_of(pid, &range), false)];
        // This path also works if the previous one is refused (it needs CAP_CHECKPOINT_RESTORE) and the file was deleted or lies in a
        // memfd.
        paths.extend(program_as(pid, &self.name).map(|path| (path, true)));
        paths.push((path_of(pid, &format!("root{}", self.name)), true));
        // For a process that is gone.
        paths.push((self.name.to_string(), true));
        paths
    }
}

/// Returns the reason why none of the paths leads to a file.
pub(super) fn not_opened(pid: u32) -> &'static str {
    match has_ended(pid) {
        true => "mapped files of a process that has ended, which are not there any more",
        false => {
            "mapped files that cannot be opened: deleted or replaced ones need root or cap_checkpoint_restore beside the capabilities of \
             tracing"
        }
    }
}

/// Returns the executable mappings of a process, by address; empty if the process is gone or cannot be read.
pub(super) fn of_process(pid: u32) -> Vec<Mapped> {
    let mut mapped = Vec::new();
    let read = each_line(pid, &mut || {}, &mut |line| {
        mapped.extend(Mapped::of(&line))
    });
    if let Err(e) = read {
        log::debug!("mappings of process {pid} for its stacks: {e}");
    }
    mapped
}

/// Returns the mapping that contains an address.
pub(super) fn at(mapped: &[Mapped], address: u64) -> Option<&Mapped> {
    let behind = mapped.partition_point(|m| m.start <= address);
    mapped[..behind].last().filter(|m| address < m.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test of opening a program whose file is deleted, without the path that needs a capability of its own.
    #[test]
    fn a_deleted_program_is_opened() {
        use std::os::unix::fs::MetadataExt as _;

        let name = format!("nvcap-deleted-{}", std::process::id());
        let path = std::env::temp_dir().canonicalize().unwrap().join(name);
        let sleep = ["/usr/bin/sleep", "/bin/sleep"];
        let sleep = sleep.iter().find(|s| std::path::Path::new(s).exists());
        // Another program copies it: a file that is open for writing, even in a fork of this program, cannot be executed.
        let copied = std::process::Command::new("cp")
            .arg(sleep.unwrap())
            .arg(&path)
            .status();
        assert!(copied.unwrap().success());
        let child = std::process::Command::new(&path).arg("3600").spawn();
        let child = nvcap_waiting::Sleeper(child.unwrap());
        std::fs::remove_file(&path).unwrap();
        let is_program = |m: &&Mapped| *m.name == *path.to_str().unwrap();
        nvcap_waiting::until("its code is mapped", || {
            of_process(child.id()).iter().any(|m| is_program(&m))
        });
        let mapped = of_process(child.id());
        let program = mapped.iter().find(is_program).expect("its code is mapped");
        let ways = program.paths(child.id());
        let opened = ways
            .iter()
            .filter(|(_, check)| *check)
            .find_map(|(path, _)| crate::procfs::open_regular(path, |_| true));
        let inode = opened.expect("by another way").metadata().unwrap().ino();
        assert_eq!(inode, program.file.as_ref().unwrap().inode);
        let other = mapped.iter().find(|m| m.file.is_some() && !is_program(m));
        if let Some(library) = other {
            let ways = library.paths(child.id());
            assert!(ways.iter().all(|(path, _)| !path.ends_with("/exe")));
        }
    }

    #[test]
    fn code_of_this_process_is_found() {
        let mapped = of_process(std::process::id());
        let here = code_of_this_process_is_found as *const () as u64;
        let found = at(&mapped, here).expect("this function is mapped");
        assert!(found.file.is_some() && found.name.starts_with('/'));
        assert_eq!(at(&mapped, 0), None);
        let stack = 0u8;
        assert_eq!(at(&mapped, &raw const stack as u64), None, "no code");
    }
}
