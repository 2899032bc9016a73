//! GPU instance that a process uses on a GPU in MIG mode, found by the capability files that the process has open.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::procfs;

/// The driver's table of capability files, with lines such as `gpu0/gi7/access 66`: one for each possible GPU instance.
const TABLE: &str = "/proc/driver/nvidia-caps/mig-minors";
/// Path of the files, up to their numbers.
const FOLDER: &str = "/dev/nvidia-caps/nvidia-cap";
/// The most open files of a process that are looked at.
const MOST: usize = 1 << 16;

/// Returns the instance of each GPU that a process uses, by the GPU's minor number. Empty without MIG, and if the open files do not show
/// the instance.
pub fn instances(pid: u32) -> BTreeMap<u32, u32> {
    instances_by(Path::new(TABLE), pid)
}

fn instances_by(table: &Path, pid: u32) -> BTreeMap<u32, u32> {
    let Ok(table) = procfs::text(table) else {
        return BTreeMap::new();
    };
    let files = procfs::open_files(pid).into_iter().flatten().take(MOST);
    let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let minors = links.filter_map(|to| to.to_str()?.strip_prefix(FOLDER)?.parse().ok());
    of_files(&table, &minors.collect())
}

/// Returns the instances whose files have these minor numbers.
fn of_files(table: &str, minors: &BTreeSet<u32>) -> BTreeMap<u32, u32> {
    let mut all: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (gpu, instance, minor) in table.lines().filter_map(of_line) {
        if minors.contains(&minor) {
            all.entry(gpu).or_default().insert(instance);
        }
    }
    // A program uses one instance of a GPU. If it has several open, the one that it uses is not known.
    let only =
        |(gpu, of): (u32, BTreeSet<u32>)| (of.len() == 1).then_some((gpu, of.first().copied()?));
    all.into_iter().filter_map(only).collect()
}

/// Parses GPU, GPU instance and minor number of `gpu0/gi7/access 66`, or of one of its compute instances, `gpu0/gi7/ci0/access 67`.
fn of_line(line: &str) -> Option<(u32, u32, u32)> {
    let (path, minor) = line.split_once(' ')?;
    let mut parts = path.strip_suffix("/access")?.split('/');
    let gpu = parts.next()?.strip_prefix("gpu")?.parse().ok()?;
    let instance = parts.next()?.strip_prefix("gi")?.parse().ok()?;
    Some((gpu, instance, minor.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu0/gi7/access 66\ngpu0/gi7/ci1/access 68\ngpu3/gi7/access 471\n";

    #[test]
    fn files_of_instances() {
        let of = |minors: &[u32]| of_files(TABLE, &minors.iter().copied().collect());
        assert_eq!(of(&[66, 68]), [(0, 7)].into());
        assert_eq!(of(&[68, 471, 1, 9999]), [(0, 7), (3, 7)].into());
        assert_eq!(of(&[3]), [(0, 0)].into());
        // With two instances of one GPU open, neither is returned.
        assert_eq!(of(&[3, 66, 471]), [(3, 7)].into());
        assert_eq!(of(&[1, 2]), BTreeMap::new());
        for bad in [
            "",
            "gpu0/gi7 66",
            "gpu0/gi/access 66",
            "gpu/gi7/access 66",
            "gpu0/gi7/access x",
        ] {
            assert_eq!(of_line(bad), None, "{bad}");
        }
    }

    /// Test of this process, which has no such file open, and of a machine without the table.
    #[test]
    fn without_mig() {
        let me = std::process::id();
        let table = std::env::temp_dir().join(format!("nvcap-mig-{me}"));
        fs::write(&table, TABLE).unwrap();
        assert_eq!(instances_by(&table, me), BTreeMap::new());
        fs::remove_file(&table).unwrap();
        assert_eq!(instances_by(&table, me), BTreeMap::new());
    }
}
