//! A trace as the SQLite file that `nsys export --type sqlite` writes, as far as nvcap knows its tables: for scripts that read those.
//! docs/from-nsys.md says what is in it.

mod tables;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;

use rusqlite::{Connection, OpenFlags, params};

use super::facts::Facts;
use super::works::{Kind, Shape, Work, Works};
use crate::output::kernels;
use crate::output::ledger::verdict;
use crate::output::writer::Output;
use crate::output::{Detail, Sink};
use nvcap_decode::decode::event::{Body, Direction, Event};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::Record;

/// Number of rows of one transaction: the file is whole after each.
const ROWS: u64 = 50_000;
/// The most texts whose numbers are remembered, and the most bytes of them. A text that comes after that many others is in the file twice.
const TEXTS: usize = 1 << 16;
const TEXT_BYTES: usize = 16 << 20;

/// Facts of a trace beside its records.
#[derive(Clone, Debug, Default)]
pub struct NsysOptions {
    /// Unix time at which `CLOCK_MONOTONIC` was 0, ns, where that is known.
    pub base_ns: Option<u64>,
    /// The driver's release.
    pub driver: Option<String>,
}

/// Numbers of rows, by what they are of.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    kernels: u64,
    replays: u64,
    copies: u64,
    memsets: u64,
    /// Works whose begin or duration is not known, which are left out.
    untimed: u64,
    /// Bytes that the works without times wrote.
    untimed_bytes: u64,
}

/// The sink.
pub struct NsysSqlite {
    db: Connection,
    /// The file, as it was found or made; SQLite alone writes to it.
    _out: Output,
    options: NsysOptions,
    works: Works,
    strings: HashMap<String, i64>,
    /// Bytes of these.
    string_bytes: usize,
    /// The number of the next text.
    next_string: i64,
    facts: Facts,
    counts: Counts,
    /// Rows since the last transaction.
    rows: u64,
}

/// A number that SQLite has room for; the largest stands for those beyond.
fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A process, and a thread of it, as one number.
fn global(pid: u32, tid: u32) -> i64 {
    (i64::from(pid & 0xff_ffff) << 24) | i64::from(tid & 0xff_ffff)
}

fn failed(e: rusqlite::Error) -> io::Error {
    io::Error::other(format!("SQLite: {e}"))
}

impl NsysSqlite {
    /// Writes into the file of `out`.
    ///
    /// # Errors
    /// When it is no regular file, or cannot be written.
    pub fn new(mut out: Output, options: NsysOptions) -> io::Result<Self> {
        // What was in it goes now: SQLite would take it for a database.
        let place = out.hand_over()?.ok_or_else(|| {
            let words = "SQLite needs a file, not a device or a pipe: name one with -o, such as -o trace.sqlite";
            io::Error::new(io::ErrorKind::InvalidInput, words)
        })?;
        // The path has no links; one that another user puts there now is not followed.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let made = Connection::open_with_flags(&place.path, flags).and_then(|db| {
            // No file beside it, and no wait for the disk.
            db.pragma_update(None, "journal_mode", "MEMORY")?;
            db.pragma_update(None, "synchronous", "OFF")?;
            db.execute_batch(tables::SCHEMA)?;
            db.execute_batch("BEGIN")?;
            Ok(db)
        });
        let db = made.map_err(failed)?;
        if !place.is_there() {
            return Err(io::Error::other("another program has replaced it"));
        }
        Ok(Self {
            db,
            _out: out,
            options,
            works: Works::default(),
            strings: HashMap::new(),
            string_bytes: 0,
            next_string: 0,
            facts: Facts::default(),
            counts: Counts::default(),
            rows: 0,
        })
    }

    /// The number of a text.
    fn string(&mut self, text: &str) -> rusqlite::Result<i64> {
        if let Some(id) = self.strings.get(text) {
            return Ok(*id);
        }
        let id = self.next_string;
        let mut insert = self
            .db
            .prepare_cached("INSERT INTO StringIds VALUES (?1, ?2)")?;
        insert.execute(params![id, text])?;
        self.next_string += 1;
        self.string_bytes += text.len();
        if self.strings.len() >= TEXTS || self.string_bytes > TEXT_BYTES {
            self.strings.clear();
            self.string_bytes = text.len();
        }
        self.strings.insert(text.to_owned(), id);
        Ok(id)
    }

    fn work(&mut self, work: &Work) -> rusqlite::Result<()> {
        let Some(times) = work.times else {
            self.counts.untimed += 1;
            self.counts.untimed_bytes = self.counts.untimed_bytes.saturating_add(work.bytes);
            return Ok(());
        };
        let start = int(times.begin);
        let end = int(times.begin.saturating_add(times.duration));
        let stream = i64::from(work.channel.0) + 1;
        let correlation = int(work.serial + 1);
        let process = (work.pid != 0).then(|| global(work.pid, 0));
        let bytes = int(work.bytes);
        match work.kind {
            Kind::Kernel => {
                self.counts.kernels += 1;
                let shape = work.shape.clone().unwrap_or_default();
                let (demangled, short, mangled) = self.kernel(work, &shape)?;
                let [grid, block, cluster] = [shape.grid, shape.block, shape.cluster]
                    .map(|of| of.map_or([None; 3], |all| all.map(Some)));
                let mut insert = self.db.prepare_cached(tables::KERNEL)?;
                insert.execute(params![
                    start,
                    end,
                    work.gpu,
                    stream,
                    correlation,
                    process,
                    demangled,
                    short,
                    mangled,
                    shape.registers,
                    grid[0],
                    grid[1],
                    grid[2],
                    block[0],
                    block[1],
                    block[2],
                    shape.local_bytes,
                    shape.shared_bytes,
                    cluster[0],
                    cluster[1],
                    cluster[2]
                ])?;
            }
            Kind::Copy(direction) => {
                self.counts.copies += 1;
                let (kind, from, to) = copy(direction);
                let mut insert = self.db.prepare_cached(tables::COPY)?;
                insert.execute(params![
                    start,
                    end,
                    work.gpu,
                    stream,
                    correlation,
                    process,
                    bytes,
                    kind,
                    from,
                    to,
                    int(work.works as u64)
                ])?;
            }
            Kind::Memset => {
                self.counts.memsets += 1;
                let mut insert = self.db.prepare_cached(tables::MEMSET)?;
                insert.execute(params![
                    start,
                    end,
                    work.gpu,
                    stream,
                    correlation,
                    process,
                    bytes
                ])?;
            }
            Kind::Graph => {
                self.counts.replays += 1;
                let mut insert = self.db.prepare_cached(tables::GRAPH)?;
                insert.execute(params![start, end, work.gpu, stream, correlation, process])?;
            }
        }
        self.row()
    }

    /// Counts a row.
    fn row(&mut self) -> rusqlite::Result<()> {
        self.rows += 1;
        if self.rows >= ROWS {
            self.rows = 0;
            self.db.execute_batch("COMMIT; BEGIN")?;
        }
        Ok(())
    }

    /// The names of a kernel: demangled, short, and as the compiler wrote it.
    fn kernel(&mut self, work: &Work, shape: &Shape) -> rusqlite::Result<(i64, i64, Option<i64>)> {
        let demangled = self.string(&work.text)?;
        let Some(kernel) = &shape.kernel else {
            return Ok((demangled, demangled, None));
        };
        let short = self.string(&kernels::bare(kernel))?;
        Ok((demangled, short, Some(self.string(&kernel.name)?)))
    }

    /// Writes the name of a thread, and of its process where it is the first one.
    fn name(&mut self, pid: u32, tid: u32, name: &str) -> rusqlite::Result<()> {
        if pid == tid {
            self.db.execute(
                "INSERT INTO PROCESSES VALUES (?1, ?2, ?3)",
                params![global(pid, 0), pid, name],
            )?;
        }
        let id = self.string(name)?;
        let mut insert = self
            .db
            .prepare_cached("INSERT INTO ThreadNames VALUES (?1, NULL, ?2)")?;
        insert.execute(params![id, global(pid, tid)])?;
        drop(insert);
        self.row()
    }

    fn end(&mut self, ledger: &Ledger) -> rusqlite::Result<()> {
        let facts = std::mem::take(&mut self.facts);
        for (pid, tid, name) in facts.names() {
            self.name(pid, tid, name)?;
        }
        for (gpu, chip) in &facts.gpus {
            self.db.execute(
                "INSERT INTO TARGET_INFO_GPU VALUES (?1, ?2, ?2)",
                params![gpu, chip],
            )?;
        }
        if let Some(base) = self.options.base_ns {
            self.db.execute(
                "INSERT INTO TARGET_INFO_SESSION_START_TIME (utcEpochNs) VALUES (?1)",
                params![int(base)],
            )?;
        }
        self.db.execute(
            "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_NAME', 'nvcap'), ('EXPORT_PRODUCT_VERSION', ?1)",
            params![env!("CARGO_PKG_VERSION")],
        )?;
        let counts = self.counts;
        for (name, value) in [
            ("kernels", counts.kernels),
            ("graph_replays", counts.replays),
            ("copies", counts.copies),
            ("memsets", counts.memsets),
            ("untimed", counts.untimed),
            ("untimed_bytes", counts.untimed_bytes),
            ("exit_status", ledger.exit_status().into()),
        ] {
            self.db.execute(
                "INSERT INTO NVCAP VALUES (?1, ?2)",
                params![name, int(value)],
            )?;
        }
        for (name, value) in [
            ("verdict", Some(verdict(ledger))),
            ("driver", self.options.driver.take()),
        ] {
            self.db
                .execute("INSERT INTO NVCAP VALUES (?1, ?2)", params![name, value])?;
        }
        self.db.execute_batch("COMMIT")
    }
}

/// A copy's number in `ENUM_CUDA_MEMCPY_OPER`, and those of both memories in `ENUM_CUDA_MEM_KIND`.
fn copy(direction: Option<Direction>) -> (u8, u8, u8) {
    const DEVICE: u8 = 2;
    const ARRAY: u8 = 3;
    // Whether memory of the host is pinned is not known.
    const UNKNOWN: u8 = 7;
    match direction {
        None => (0, UNKNOWN, UNKNOWN),
        Some(Direction::HostToDevice) => (1, UNKNOWN, DEVICE),
        Some(Direction::DeviceToHost) => (2, DEVICE, UNKNOWN),
        Some(Direction::HostToArray) => (3, UNKNOWN, ARRAY),
        Some(Direction::ArrayToHost) => (4, ARRAY, UNKNOWN),
        Some(Direction::ArrayToArray) => (5, ARRAY, ARRAY),
        Some(Direction::ArrayToDevice) => (6, ARRAY, DEVICE),
        Some(Direction::DeviceToArray) => (7, DEVICE, ARRAY),
        Some(Direction::DeviceToDevice) => (8, DEVICE, DEVICE),
        Some(Direction::HostToHost) => (9, UNKNOWN, UNKNOWN),
        Some(Direction::PeerToPeer) => (10, DEVICE, DEVICE),
    }
}

impl Sink for NsysSqlite {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn shows_memory(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let c = event.context;
        match &event.body {
            Body::Submission(_) => {
                self.facts.submission(c);
                Ok(())
            }
            Body::Operation(op) => match self.works.operation(c, event.entry, op) {
                Some(work) => self.work(&work).map_err(failed),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        let former = self.facts.record(record).into_iter();
        let mut named = former.map(|(pid, tid, name)| self.name(pid, tid, &name));
        named.try_for_each(|named| named).map_err(failed)
    }

    fn is_for_later(&self) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, ledger: &Ledger, _model: &Model) -> io::Result<()> {
        if let Some(work) = self.works.finish() {
            self.work(&work).map_err(failed)?;
        }
        self.end(ledger).map_err(failed)
    }
}
