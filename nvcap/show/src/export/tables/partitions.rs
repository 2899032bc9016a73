//! Tables of many recordings of many hosts in one folder: `TABLE/date=2026-11-23/hour=12/host=NAME/FILE.parquet`, as Hive, Spark,
//! ClickHouse and DuckDB read them.
//!
//! A recording's tables are written into a folder of their own, whose name begins with a point, and are then renamed to their places, the
//! ledger's last: no table is ever there in part, and of a recording whose ledger is there all tables are.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::files::make_folder;
use super::layout::Format;
use crate::output::file::{lock, rename_to_new};

/// Makes the folder of all tables, for its owner alone.
///
/// # Errors
/// When that is not possible.
pub fn make_root(path: &Path) -> io::Result<()> {
    make_folder(path)
}

/// The tables, in the order in which they come to their places. Calls of the driver are not among them: a rotated recording repeats
/// those of earlier files that it needs, and their sums would be wrong.
pub const PARTITIONED: [&str; 9] = [
    "operations",
    "submissions",
    "kernels",
    "channels",
    "losses",
    "faults",
    "samples",
    "slices",
    "ledger",
];

const NS: u64 = 1_000_000_000;

/// Places of the tables of one recording.
#[derive(Debug)]
pub struct Partition {
    root: PathBuf,
    host: String,
    name: String,
    /// The folder in which the tables are written first, locked.
    lock: RefCell<Option<File>>,
}

/// Returns a host's name as that of a folder, with characters alone that no program takes for others.
pub(crate) fn host_name(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let plain: String = { name.trim().chars() }
        .map(|c| if is_plain(c) { c } else { '_' })
        .collect();
    match plain.trim_start_matches('.') {
        "" => "unknown".to_owned(),
        plain => plain.to_owned(),
    }
}

impl Partition {
    /// Makes the places for file `file` of the trace that began at `began` (ns since 1970) on `host`: the same recording has the same name each time.
    pub fn of(root: &Path, host: &str, began: u64, file: u32) -> Self {
        Self {
            root: root.to_owned(),
            host: host_name(host),
            name: format!("{began}-{file:05}"),
            lock: RefCell::default(),
        }
    }

    /// The folder in which the tables are written first; empty, whatever an interrupted export has left there. It is this export's alone
    /// while the partition is there.
    ///
    /// # Errors
    /// When it cannot be made or emptied; `WouldBlock` where another export of the same recording works in it; where it has other files.
    pub fn folder(&self) -> io::Result<PathBuf> {
        let folder = self.path_of_folder();
        make_folder(&folder)?;
        let opened = File::open(&folder)?;
        // That of an earlier export by this partition.
        self.lock.replace(None);
        if !lock(&opened) {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "another nvcap exports this recording; wait until it has ended",
            ));
        }
        self.lock.replace(Some(opened));
        self.empty();
        match folder.read_dir()?.next() {
            None => Ok(folder),
            Some(_) => Err(io::Error::other(format!(
                "{} has files that are no tables; move it away",
                folder.display()
            ))),
        }
    }

    /// Removes the tables from the folder in which they are written first.
    fn empty(&self) {
        let folder = self.path_of_folder();
        for table in PARTITIONED {
            let path = folder.join(table).with_extension(Format::Parquet.ending());
            let _ = std::fs::remove_file(path);
        }
    }

    fn path_of_folder(&self) -> PathBuf {
        self.root
            .join(format!(".partial-{}-{}", self.host, self.name))
    }

    /// Returns the path of a table, of a recording that holds what happened from `time` on (ns since 1970).
    pub fn place(&self, table: &str, time: u64) -> PathBuf {
        let [year, month, day, hour] = calendar(time / NS);
        let date = format!("date={year:04}-{month:02}-{day:02}");
        let hour = format!("hour={hour:02}");
        self.file_below(&self.root.join(table).join(date).join(hour))
    }

    /// Returns the ledger of an earlier export of this recording, where there is one. Its tables are whole: the ledger comes last.
    pub fn published(&self) -> Option<PathBuf> {
        let below = |folder: &Path| {
            let entries = folder.read_dir().into_iter().flatten().flatten();
            entries.map(|entry| entry.path())
        };
        let hours = below(&self.root.join("ledger")).flat_map(|date| below(&date));
        let ledgers = hours.map(|hour| self.file_below(&hour));
        { ledgers }.find(|ledger| ledger.symlink_metadata().is_ok())
    }

    /// Path of this recording's file below the folder of an hour.
    fn file_below(&self, hour: &Path) -> PathBuf {
        hour.join(format!("host={}", self.host))
            .join(&self.name)
            .with_extension(Format::Parquet.ending())
    }

    /// Brings the tables to their places. A file that is there already, and is another, stays unless `force` is given.
    ///
    /// # Errors
    /// `AlreadyExists`, before anything is done, where there is such a file; when one cannot be written to the disk or renamed. The ledger
    /// is then not there.
    pub fn publish(&self, time: u64, force: bool) -> io::Result<()> {
        let folder = self.path_of_folder();
        let places = PARTITIONED.map(|table| {
            let from = folder.join(table).with_extension(Format::Parquet.ending());
            (from, self.place(table, time))
        });
        let is_taken = |(from, to): &(PathBuf, PathBuf)| !force && !is_same_content(from, to);
        if let Some((_, to)) = places.iter().find(|place| is_taken(place)) {
            return Err(in_the_way(to));
        }
        for (from, to) in places {
            if let Some(parent) = to.parent() {
                make_folder(parent)?;
            }
            File::open(&from)?.sync_all()?;
            match rename_to_new(&from, &to) {
                // An export was interrupted after this table, or it is to be replaced.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    if !force && !is_same_content(&from, &to) {
                        return Err(in_the_way(&to));
                    }
                    std::fs::rename(&from, &to)?;
                }
                renamed => renamed?,
            }
        }
        std::fs::remove_dir(&folder)
    }

    /// Removes what was written, of an export that failed.
    pub fn discard(&self) {
        if self.lock.borrow().is_some() {
            self.empty();
            let _ = std::fs::remove_dir(self.path_of_folder());
        }
    }
}

/// Tells whether a file has the content of another one, or is not there.
fn is_same_content(new: &Path, there: &Path) -> bool {
    let Ok(about) = there.symlink_metadata() else {
        return true;
    };
    let is_as_long = new.metadata().is_ok_and(|m| m.len() == about.len());
    about.is_file()
        && is_as_long
        && matches!((std::fs::read(new), std::fs::read(there)), (Ok(a), Ok(b)) if a == b)
}

/// Makes the error for a file, not of this export, that is where a table is to go.
fn in_the_way(place: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!(
            "{} is there already, and would be lost: move it away, name another folder with -o, or add --force to write over it",
            place.display()
        ),
    )
}

/// Year, month, day and hour of seconds since 1970, UTC.
fn calendar(seconds: u64) -> [u64; 4] {
    // Days since 1 March of year 0: a leap day is then the last of its year, and of its four hundred years.
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = match month {
        0..=9 => (month + 3, 0),
        _ => (month - 9, 1),
    };
    [era * 400 + year + later, month, day, seconds / 3_600 % 24]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_dates() {
        for (seconds, date) in [
            (0, [1970, 1, 1, 0]),
            (951_782_399, [2000, 2, 28, 23]),
            (951_782_400, [2000, 2, 29, 0]),
            (1_795_436_929, [2026, 11, 23, 12]),
            (4_107_542_400, [2100, 3, 1, 0]),
        ] {
            assert_eq!(calendar(seconds), date, "{seconds}");
        }
    }

    #[test]
    fn a_host_is_one_folder() {
        for (name, folder) in [
            ("gpu-1.example.net\n", "gpu-1.example.net"),
            ("../../etc", "_.._etc"),
            ("a/b=c d", "a_b_c_d"),
            ("..", "unknown"),
            ("", "unknown"),
        ] {
            assert_eq!(host_name(name), folder);
        }
    }

    /// Tables come to their places all together, the ledger's last; what is left of an export that was interrupted goes away.
    #[test]
    fn tables_come_to_their_places() {
        let root = std::env::temp_dir().join(format!("nvcap-partitions-{}", std::process::id()));
        let partition = Partition::of(&root, "a", 1_795_436_929 * NS, 3);
        let write = |tables: &[&str]| {
            let folder = partition.folder().unwrap();
            for table in tables {
                std::fs::write(folder.join(format!("{table}.parquet")), table).unwrap();
            }
        };
        let time = 1_795_440_000 * NS;
        let ledger = partition.place("ledger", time);
        let end = "ledger/date=2026-11-23/hour=13/host=a/1795436929000000000-00003.parquet";
        assert_eq!(ledger, root.join(end));
        write(&PARTITIONED[..4]);
        assert!(partition.publish(time, false).is_err() && !ledger.exists());
        assert_eq!(partition.published(), None);
        // Once more, and again over what is there.
        for _ in 0..2 {
            write(&PARTITIONED);
            partition.publish(time, false).unwrap();
            assert_eq!(partition.published().as_ref(), Some(&ledger));
            for table in PARTITIONED {
                let there = std::fs::read_to_string(partition.place(table, time)).unwrap();
                assert_eq!(there, table);
            }
        }
        // Another's file stays, and nothing else is touched.
        let kernels = partition.place("kernels", time);
        std::fs::write(&kernels, "precious").unwrap();
        std::fs::remove_file(&ledger).unwrap();
        write(&PARTITIONED);
        let refused = partition.publish(time, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert!(!ledger.exists());
        assert_eq!(std::fs::read_to_string(&kernels).unwrap(), "precious");
        partition.publish(time, true).unwrap();
        assert_eq!(std::fs::read_to_string(&kernels).unwrap(), "kernels");
        write(&["operations"]);
        partition.discard();
        let hidden = { std::fs::read_dir(&root).unwrap().flatten() }
            .filter(|e| e.file_name().as_encoded_bytes().starts_with(b"."));
        assert_eq!(hidden.count(), 0);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
