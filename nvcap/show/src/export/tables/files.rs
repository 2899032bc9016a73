//! The files of one table: one, or several by the value of a column (`--partition`) and by number of rows (`--part-rows`).
//!
//! What waits in memory is bounded: [`MOST_OPEN`] files of a table are open at once, and whoever owns the tables writes rows out
//! when all that wait become too many ([`Files::largest`]).

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::output::writer::Output;

use super::all::Table;
use super::csv;
use super::layout::{Format, Layout, Opener};
#[cfg(feature = "parquet")]
use super::parquet::Parquet;
use super::schema::{Column, Row, Value};

/// The most files of one table that are open at once.
const MOST_OPEN: usize = 32;

/// Files that the rows of a table go to.
pub(super) struct Files {
    format: Format,
    columns: Vec<&'static Column>,
    /// The table's name.
    name: &'static str,
    /// True once the files of an earlier trace in the folder are gone.
    is_cleared: bool,
    /// The column by whose value rows go to files.
    key: Option<&'static Column>,
    /// Layout of the files; `None` where there is one file alone.
    layout: Option<Layout>,
    folder: PathBuf,
    open: HashMap<Option<u64>, File>,
    /// Number of parts that there were of each value.
    parts: HashMap<Option<u64>, u64>,
    /// Number of rows so far, by which the file that was used least recently is known.
    now: u64,
    lost: u64,
}

struct File {
    out: Output,
    body: Body,
    rows: u64,
    used: u64,
    /// True if nothing more can be written: what follows would not be understood.
    is_dead: bool,
}

enum Body {
    Csv {
        has_names: bool,
    },
    #[cfg(feature = "parquet")]
    Parquet(Box<Parquet>),
}

impl Files {
    /// One file.
    ///
    /// # Errors
    /// When the format cannot have such a table.
    pub(super) fn one(format: Format, table: &'static Table, out: Output) -> io::Result<Self> {
        let mut files = Self::new(format, table, None);
        let file = files.file(out)?;
        files.open.insert(None, file);
        Ok(files)
    }

    /// Files in a folder.
    ///
    /// # Errors
    /// When a table that becomes several files has some already: they would be mixed.
    pub(super) fn several(
        format: Format,
        table: &'static Table,
        layout: Layout,
    ) -> io::Result<Self> {
        if let Some(why) = layout.refusal(table.name) {
            return Err(io::Error::other(why));
        }
        if layout.device.is_none() {
            make_folder(&layout.folder)?;
        }
        Ok(Self::new(format, table, Some(layout)))
    }

    fn new(format: Format, table: &'static Table, layout: Option<Layout>) -> Self {
        let key = layout.as_ref().and_then(|l| l.partition);
        let key = key.filter(|_| table.is_large);
        let key = key.and_then(|key| table.columns().find(|c| c.name == key.column()));
        Self {
            format,
            name: table.name,
            is_cleared: false,
            // The folder's name says it.
            columns: { table.columns() }
                .filter(|c| key.is_none_or(|key| key.name != c.name))
                .collect(),
            key,
            folder: { layout.as_ref() }.map_or_else(PathBuf::new, |l| l.folder.join(table.name)),
            layout,
            open: HashMap::new(),
            parts: HashMap::new(),
            now: 0,
            lost: 0,
        }
    }

    /// Tells whether the table has a folder of its own.
    fn has_folder(&self) -> bool {
        self.layout.as_ref().is_some_and(Layout::has_folders)
    }

    fn file(&self, out: Output) -> io::Result<File> {
        Ok(File {
            out,
            body: match self.format {
                Format::Csv => Body::Csv { has_names: false },
                #[cfg(feature = "parquet")]
                Format::Parquet => Body::Parquet(Box::new(Parquet::new(&self.columns)?)),
            },
            rows: 0,
            used: self.now,
            is_dead: false,
        })
    }

    /// The name of the next file with this value.
    fn path(&mut self, value: Option<u64>) -> io::Result<PathBuf> {
        let ending = self.format.ending();
        if let Some(device) = self.layout.as_ref().and_then(|l| l.device.as_ref()) {
            return Ok(device.clone());
        }
        if !self.has_folder() {
            return Ok(self.folder.with_extension(ending));
        }
        let part = self.parts.entry(value).or_default();
        let name = format!("part-{part}.{ending}");
        *part += 1;
        let folder = match (self.key, value) {
            (None, _) => self.folder.clone(),
            // As Hive names them, which DuckDB, pyarrow and Spark understand.
            (Some(key), Some(n)) => self.folder.join(format!("{}={n}", key.name)),
            (Some(key), None) => {
                let none = format!("{}=__HIVE_DEFAULT_PARTITION__", key.name);
                self.folder.join(none)
            }
        };
        make_folder(&folder)?;
        Ok(folder.join(name))
    }

    /// Writes a row. Returns the number of bytes by which the waiting ones have grown.
    pub(super) fn row(&mut self, row: &Row<'_>, opener: &Opener) -> io::Result<isize> {
        let value = self.key.and_then(|key| match (key.get)(row) {
            Value::Number(n) => Some(n),
            _ => None,
        });
        self.now += 1;
        self.ready(value, opener)?;
        let Some(file) = self.open.get_mut(&value) else {
            return Ok(0);
        };
        file.used = self.now;
        file.rows += 1;
        if file.is_dead {
            self.lost += 1;
            return Ok(0);
        }
        let before = file.waiting();
        self.lost += file.row(self.columns.iter().map(|c| (c.get)(row)), &self.columns)?;
        let after = file.waiting();
        let most = self.layout.as_ref().and_then(|l| l.part_rows);
        if most.is_some_and(|most| file.rows >= most) {
            self.close(value)?;
            return Ok(-before.cast_signed());
        }
        Ok(after.cast_signed() - before.cast_signed())
    }

    /// Opens the file for this value, if it is not open.
    fn ready(&mut self, value: Option<u64>, opener: &Opener) -> io::Result<()> {
        if self.open.contains_key(&value) {
            return Ok(());
        }
        if self.open.len() >= MOST_OPEN {
            let oldest = self.open.iter().min_by_key(|(_, file)| file.used);
            if let Some(oldest) = oldest.map(|(value, _)| *value) {
                self.close(oldest)?;
            }
        }
        self.clear()?;
        let path = self.path(value)?;
        let file = self.file(opener(&path)?)?;
        self.open.insert(value, file);
        Ok(())
    }

    /// Removes what an earlier trace has left in the table's folder, when there is something to write or the trace has ended.
    fn clear(&mut self) -> io::Result<()> {
        match &self.layout {
            Some(layout) if !std::mem::replace(&mut self.is_cleared, true) => {
                layout.clear(self.name)
            }
            _ => Ok(()),
        }
    }

    fn close(&mut self, value: Option<u64>) -> io::Result<()> {
        if let Some(mut file) = self.open.remove(&value) {
            self.lost += file.finish(&self.columns)?;
        }
        Ok(())
    }

    /// The bytes of rows that wait.
    pub(super) fn waiting(&self) -> usize {
        self.open.values().map(File::waiting).sum()
    }

    /// The most bytes of rows that wait for one file.
    pub(super) fn largest(&self) -> usize {
        self.open.values().map(File::waiting).max().unwrap_or(0)
    }

    /// Writes out the rows of the file with the most that wait.
    pub(super) fn write_largest(&mut self) -> io::Result<()> {
        let largest = self.open.values_mut().max_by_key(|file| file.waiting());
        if let Some(file) = largest {
            self.lost += file.write_out()?;
        }
        Ok(())
    }

    /// Writes out what can be written out before a group of rows is full.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        for file in self.open.values_mut() {
            let before = file.out.unshown();
            file.out.flush()?;
            self.lost += file.out.unshown() - before;
        }
        Ok(())
    }

    /// Ends all files. A table without rows has one as well.
    pub(super) fn finish(&mut self, opener: &Opener) -> io::Result<()> {
        self.clear()?;
        if self.now == 0 && self.key.is_none() {
            self.ready(None, opener)?;
        }
        let all: Vec<_> = self.open.keys().copied().collect();
        for value in all {
            self.close(value)?;
        }
        Ok(())
    }

    /// Rows that could not be written.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }
}

impl File {
    fn waiting(&self) -> usize {
        match &self.body {
            Body::Csv { .. } => 0,
            #[cfg(feature = "parquet")]
            Body::Parquet(parquet) => parquet.waiting(),
        }
    }

    /// Writes a row; returns how many rows could not be written.
    fn row<'a>(
        &mut self,
        values: impl Iterator<Item = Value<'a>>,
        columns: &[&'static Column],
    ) -> io::Result<u64> {
        match &mut self.body {
            Body::Csv { .. } => {
                if self.names(columns)? {
                    return Ok(1);
                }
                let before = self.out.unshown();
                csv::line(self.out.object(), values);
                self.out.end_object()?;
                Ok(self.out.unshown() - before)
            }
            #[cfg(feature = "parquet")]
            Body::Parquet(parquet) => {
                parquet.row(values);
                match parquet.is_full() {
                    true => self.write_out(),
                    false => Ok(0),
                }
            }
        }
    }

    /// Writes the names of the columns where they are not there yet. Tells whether that failed: without them nothing is worth writing.
    fn names(&mut self, columns: &[&'static Column]) -> io::Result<bool> {
        if let Body::Csv { has_names } = &mut self.body
            && !std::mem::replace(has_names, true)
        {
            csv::names(self.out.object(), columns);
            self.out.end_object()?;
            self.out.flush()?;
            self.is_dead = self.out.unshown() > 0;
        }
        Ok(self.is_dead)
    }

    /// Writes out the rows that wait; returns how many could not be written.
    fn write_out(&mut self) -> io::Result<u64> {
        match &mut self.body {
            Body::Csv { .. } => Ok(0),
            #[cfg(feature = "parquet")]
            Body::Parquet(parquet) => {
                let before = self.out.unshown();
                let rows = parquet.group(self.out.object())?;
                let bytes = self.out.appended() as u64;
                self.out.end_object()?;
                self.out.flush()?;
                if self.out.unshown() == before {
                    parquet.written(bytes);
                    return Ok(0);
                }
                parquet.refused();
                // Offsets are those of whole groups.
                self.is_dead = !self.out.is_cut_back();
                // A file without rows is missing, too.
                Ok(rows.max(1))
            }
        }
    }

    /// Ends the file; returns how many rows could not be written.
    fn finish(&mut self, columns: &[&'static Column]) -> io::Result<u64> {
        if self.is_dead {
            return Ok(0);
        }
        match &self.body {
            Body::Csv { .. } => {
                if self.names(columns)? {
                    return Ok(1);
                }
                let before = self.out.unshown();
                self.out.flush()?;
                Ok(self.out.unshown() - before)
            }
            #[cfg(feature = "parquet")]
            Body::Parquet(parquet) => match parquet.lacks() {
                true => self.write_out(),
                false => Ok(0),
            },
        }
    }
}

/// Makes a folder that its owner alone may look into, and those above it; one that is there stays as it is.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    crate::output::file::check_folder(path).map_err(|e| {
        let text = format!("cannot make the folder {}: {e}", path.display());
        io::Error::new(e.kind(), text)
    })?;
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path).map_err(|e| {
        let hint = match path.is_file() {
            true => "; it is a file: name a folder",
            false => "",
        };
        let text = format!("cannot make the folder {}: {e}{hint}", path.display());
        io::Error::new(e.kind(), text)
    })
}
