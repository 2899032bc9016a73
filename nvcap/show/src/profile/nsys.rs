//! The SQLite file of Nsight Systems (`nsys export --type sqlite`, `nvcap export nsys-sqlite`), read row by row.
//!
//! Tables and columns are those that NVIDIA's documentation names. Which of them are there depends on what was recorded, and on the release: what is
//! missing counts as not known. Nothing but plain tables is read, so that a file brings no code of its own.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row};

use super::Works;
use super::about::{About, Format, Own};
use super::work::{What, Work};
use nvcap_decode::decode::event::Direction;

/// The most bytes of a text.
const MOST_TEXT: u32 = 1 << 20;
/// The most bytes of texts that are kept beside their numbers; then all are read again.
const MOST_BYTES: usize = 64 << 20;
/// Number of rows between two questions whether reading goes on.
const ROWS: u64 = 1 << 10;
/// Name of the replays of graphs, which have no name of their own, as `nvcap time` has it.
const REPLAY: &str = "graph replay (all its kernels)";

/// Tables that have works: a file without any of them is no trace.
const TABLES: [&str; 4] = [
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
];

/// Reason for which the reading of rows ended.
enum Ended {
    Stopped,
    /// There are more rows than the file has room for.
    Damaged,
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for Ended {
    fn from(e: rusqlite::Error) -> Self {
        Self::Failed(e)
    }
}

/// A file that is open.
pub struct NsysFile {
    db: Connection,
    bytes: u64,
}

/// The address of a file that nothing writes to meanwhile, so that neither locks nor logs beside it are looked for.
fn address(path: &Path) -> String {
    let mut address = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                address.push(char::from(*byte));
            }
            _ => {
                let _ = write!(address, "%{byte:02x}");
            }
        }
    }
    address + "?immutable=1"
}

impl NsysFile {
    /// Opens a file.
    ///
    /// # Errors
    /// When it cannot be read, or is no database.
    pub fn open(path: &Path) -> io::Result<Self> {
        let bytes = path.metadata()?.len();
        // A path that is not absolute may not begin as an address.
        let path = std::path::absolute(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(address(&path), flags).and_then(|db| {
            db.pragma_update(None, "trusted_schema", "OFF")?;
            db.pragma_update(None, "cell_size_check", "ON")?;
            db.pragma_update(None, "temp_store", "MEMORY")?;
            // Reads the file's head.
            db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
            Ok(db)
        });
        let db = opened.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
        Ok(Self { db, bytes })
    }

    /// Tells whether the file has a table of works.
    #[must_use]
    pub fn is_trace(&self) -> bool {
        TABLES.iter().any(|table| self.columns(table).is_some())
    }

    /// The columns of a table; `None` where there is no such table in the file itself.
    fn columns(&self, table: &str) -> Option<HashSet<String>> {
        // A view or a virtual table has no root page.
        let is_there =
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 AND rootpage > 0";
        let row = self.db.query_row(is_there, [table], |_| Ok(()));
        row.optional().ok()??;
        let mut columns = self
            .db
            .prepare("SELECT name FROM pragma_table_info(?1)")
            .ok()?;
        let names = columns.query_map([table], |row| row.get(0)).ok()?;
        names.collect::<Result<_, _>>().ok()
    }

    /// Reads all works, up to the end or to where the file cannot be read: then the facts say so.
    pub fn read(&self, works: &mut dyn Works) -> About {
        let mut about = About::new(Format::Nsys);
        // They are of no use for sums: a file without them is one without names.
        let _ = self.gpus(&mut about);
        about.own = self.own();
        let mut reading = Reading {
            file: self,
            texts: HashMap::new(),
            bytes: 0,
            rows: 0,
            works,
        };
        about.cut = match reading.all() {
            Ok(()) => None,
            Err(Ended::Stopped) => Some("reading was interrupted".to_owned()),
            Err(Ended::Damaged) => Some("it has more rows than it has room for".to_owned()),
            Err(Ended::Failed(e)) => Some(format!("SQLite: {e}")),
        };
        about
    }

    fn gpus(&self, about: &mut About) -> rusqlite::Result<()> {
        let Some(_) = self.columns("TARGET_INFO_GPU") else {
            return Ok(());
        };
        let sql = format!(
            "SELECT id, name FROM TARGET_INFO_GPU WHERE octet_length(name) <= {MOST_TEXT} LIMIT 1024"
        );
        let mut all = self.db.prepare(&sql)?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            about.gpu(row.get(0)?, row.get(1)?);
        }
        Ok(())
    }

    /// The words of nvcap's own, where it wrote the file.
    fn own(&self) -> Option<Own> {
        self.columns("NVCAP")?;
        let sql = format!(
            "SELECT value FROM NVCAP WHERE name = ?1 AND octet_length(value) <= {MOST_TEXT}"
        );
        let number =
            |name: &str| -> Option<i64> { self.db.query_row(&sql, [name], |row| row.get(0)).ok() };
        let verdict = self.db.query_row(&sql, ["verdict"], |row| row.get(0));
        Some(Own {
            verdict: verdict.ok(),
            status: number("exit_status").and_then(|n| u8::try_from(n).ok()),
            untimed: number("untimed")
                .and_then(|n| u64::try_from(n).ok())
                .unwrap_or(0),
        })
    }
}

/// A file that is being read.
struct Reading<'a> {
    file: &'a NsysFile,
    /// Texts by their numbers, and the bytes of them.
    texts: HashMap<i64, String>,
    bytes: usize,
    rows: u64,
    works: &'a mut dyn Works,
}

impl Reading<'_> {
    fn all(&mut self) -> Result<(), Ended> {
        let [kernels, copies, memsets, replays] = TABLES;
        // The name that the compiler wrote is demangled here, as that of a recording is.
        self.table(
            kernels,
            ["mangledName", "demangledName", "shortName"],
            Self::kernel,
        )?;
        self.table(copies, ["copyKind", "bytes"], |reading, of| {
            let [kind, bytes] = of.more;
            let what = What::Copy(kind.and_then(direction));
            reading.give(&of.work(what, bytes));
            Ok(())
        })?;
        self.table(memsets, ["bytes"], |reading, of| {
            let [bytes] = of.more;
            reading.give(&of.work(What::Memset, bytes));
            Ok(())
        })?;
        self.table(replays, [], |reading, of| {
            reading.give(&of.work(What::Kernel(REPLAY), None));
            Ok(())
        })
    }

    fn give(&mut self, work: &Work<'_>) {
        self.works.work(work);
    }

    fn kernel(&mut self, of: &Activity<3>) -> Result<(), Ended> {
        let name = { of.more.into_iter().flatten() }.find_map(|id| {
            let known = self.text(id).transpose()?;
            Some(known.map(|()| id))
        });
        let name = name.transpose()?.and_then(|id| self.texts.get(&id));
        let what = What::Kernel(name.map_or("", |name| name));
        self.works.work(&of.work(what, None));
        Ok(())
    }

    /// Sees to it that a text is kept; `None` where there is none, or an empty one.
    fn text(&mut self, id: i64) -> Result<Option<()>, Ended> {
        if self.texts.contains_key(&id) {
            return Ok(Some(()));
        }
        let sql =
            "SELECT value FROM StringIds WHERE id = ?1 AND octet_length(value) BETWEEN 1 AND ?2";
        let mut of = self.file.db.prepare_cached(sql)?;
        let text: Option<String> = of.query_row((id, MOST_TEXT), |row| row.get(0)).optional()?;
        let Some(text) = text else { return Ok(None) };
        if self.bytes + text.len() > MOST_BYTES {
            self.texts.clear();
            self.bytes = 0;
        }
        self.bytes += text.len();
        self.texts.insert(id, text);
        Ok(Some(()))
    }

    /// Gives each row of a table to `each`, with the columns `more`; those that are not there are NULL.
    fn table<const N: usize>(
        &mut self,
        table: &str,
        more: [&str; N],
        mut each: impl FnMut(&mut Self, &Activity<N>) -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        let Some(columns) = self.file.columns(table) else {
            return Ok(());
        };
        let all = ["start", "end", "deviceId"].into_iter().chain(more);
        let all: Vec<String> = { all }
            .map(|column| match columns.contains(column) {
                // Text that stands for a number counts as none.
                true => format!("CASE typeof({column}) WHEN 'integer' THEN {column} END"),
                false => "NULL".to_owned(),
            })
            .collect();
        let sql = format!("SELECT {} FROM {table}", all.join(", "));
        let file = self.file;
        let mut statement = file.db.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            self.rows += 1;
            // A row has at least two bytes.
            if self.rows > file.bytes / 2 {
                return Err(Ended::Damaged);
            }
            if self.rows.is_multiple_of(ROWS) && !self.works.goes_on() {
                return Err(Ended::Stopped);
            }
            each(self, &Activity::of(row)?)?;
        }
        Ok(())
    }
}

/// A row of one of the tables.
struct Activity<const N: usize> {
    times: Option<(u64, u64)>,
    gpu: Option<u32>,
    more: [Option<i64>; N],
}

impl<const N: usize> Activity<N> {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let int = |at: usize| row.get::<_, Option<i64>>(at);
        let ns = |at: usize| Ok::<_, rusqlite::Error>(int(at)?.and_then(|n| u64::try_from(n).ok()));
        let mut more = [None; N];
        for (n, value) in more.iter_mut().enumerate() {
            *value = int(3 + n)?;
        }
        Ok(Self {
            times: ns(0)?
                .zip(ns(1)?)
                .map(|(begin, end)| (begin, end.saturating_sub(begin))),
            gpu: int(2)?.and_then(|n| u32::try_from(n).ok()),
            more,
        })
    }

    fn work<'n>(&self, what: What<'n>, bytes: Option<i64>) -> Work<'n> {
        Work {
            what,
            gpu: self.gpu,
            stream: None,
            times: self.times,
            errors: (0, 0),
            bytes: bytes.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
        }
    }
}

/// The direction of a copy by its number in `ENUM_CUDA_MEMCPY_OPER`.
fn direction(kind: i64) -> Option<Direction> {
    Some(match kind {
        1 => Direction::HostToDevice,
        2 => Direction::DeviceToHost,
        3 => Direction::HostToArray,
        4 => Direction::ArrayToHost,
        5 => Direction::ArrayToArray,
        6 => Direction::ArrayToDevice,
        7 => Direction::DeviceToArray,
        8 => Direction::DeviceToDevice,
        9 => Direction::HostToHost,
        10 => Direction::PeerToPeer,
        _ => return None,
    })
}
