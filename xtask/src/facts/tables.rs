//! The writer of `nvcap/decode/facts/*.bin`: tables of rows of typed columns, and the texts that they refer to. The format is
//! described in `nvcap/decode/facts/README.md`; its reader is `nvcap/decode/src/tables.rs`. Knows nothing of the rows' meaning.
//!
//! The same rows, in the same order, always give the same bytes.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

const MAGIC: &[u8] = b"NVTABLE1";

/// A number, a text or a run of rows, as stored in a row.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The type of its column.
    code: u8,
    bytes: Vec<u8>,
}

impl From<u8> for Cell {
    fn from(number: u8) -> Self {
        let bytes = vec![number];
        Self { code: b'1', bytes }
    }
}

impl From<u16> for Cell {
    fn from(number: u16) -> Self {
        let bytes = number.to_le_bytes().into();
        Self { code: b'2', bytes }
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        let bytes = number.to_le_bytes().into();
        Self { code: b'4', bytes }
    }
}

impl From<[u16; 2]> for Cell {
    fn from(pair: [u16; 2]) -> Self {
        let bytes = pair.map(u16::to_le_bytes).concat();
        Self { code: b'p', bytes }
    }
}

/// A row: one cell for each column.
pub type Row = Vec<Cell>;

/// A row of these numbers, pairs and cells.
macro_rules! row {
    ($($cell:expr),+ $(,)?) => { vec![$($crate::facts::tables::Cell::from($cell)),+] };
}
pub(crate) use row;

#[derive(Default)]
struct Table {
    name: &'static str,
    columns: Vec<u8>,
    rows: Vec<u8>,
    count: u32,
    /// Runs of rows, and the start of each.
    runs: BTreeMap<Vec<u8>, u32>,
}

/// A file of tables.
#[derive(Default)]
pub struct File {
    tables: Vec<Table>,
    texts: Vec<u8>,
    seen: BTreeMap<String, u32>,
}

impl File {
    /// A text; an equal one is stored once.
    pub fn text(&mut self, text: &str) -> Result<Cell> {
        let at = match self.seen.get(text) {
            Some(at) => *at,
            None => {
                let at = u32::try_from(self.texts.len())?;
                ensure!(text.len() < 128, "over 127 bytes: {text}");
                self.texts.push(text.len() as u8);
                self.texts.extend_from_slice(text.as_bytes());
                self.seen.insert(text.to_owned(), at);
                at
            }
        };
        let bytes = at.to_le_bytes().into();
        Ok(Cell { code: b't', bytes })
    }

    /// Adds rows to a table; equal runs of rows are shared. Returns the cell that refers to them: index of the first, and
    /// count.
    pub fn run(&mut self, table: &'static str, rows: &[Row]) -> Result<Cell> {
        let first = self.first_of(table, rows)?;
        let mut bytes = first.to_le_bytes().to_vec();
        bytes.extend(u16::try_from(rows.len())?.to_le_bytes());
        Ok(Cell { code: b'r', bytes })
    }

    /// Adds a row to a table, unless it is there already, and returns its number.
    pub fn row(&mut self, table: &'static str, row: Row) -> Result<u32> {
        self.first_of(table, &[row])
    }

    /// Adds all rows of a table.
    pub fn table(&mut self, name: &'static str, rows: &[Row]) -> Result<()> {
        ensure!(!self.tables.iter().any(|t| t.name == name), "{name}: twice");
        self.first_of(name, rows).map(|_| ())
    }

    fn first_of(&mut self, name: &'static str, rows: &[Row]) -> Result<u32> {
        let known = self.tables.iter().position(|t| t.name == name);
        let at = known.unwrap_or_else(|| {
            let new = Table::default();
            self.tables.push(Table { name, ..new });
            self.tables.len() - 1
        });
        let (table, mut run) = (&mut self.tables[at], Vec::new());
        for row in rows {
            let columns: Vec<u8> = row.iter().map(|cell| cell.code).collect();
            if table.columns.is_empty() {
                table.columns = columns.clone();
            }
            ensure!(columns == table.columns, "{name}: a row of other columns");
            run.extend(row.iter().flat_map(|cell| &cell.bytes));
        }
        if run.is_empty() {
            return Ok(0);
        }
        if let Some(first) = table.runs.get(&run) {
            return Ok(*first);
        }
        let first = table.count;
        table.count += u32::try_from(rows.len())?;
        table.rows.extend_from_slice(&run);
        table.runs.insert(run, first);
        Ok(first)
    }

    /// The file.
    pub fn bytes(mut self) -> Result<Vec<u8>> {
        self.tables.push(Table {
            name: "texts",
            columns: vec![b'1'],
            count: u32::try_from(self.texts.len())?,
            rows: self.texts,
            ..Table::default()
        });
        let mut heads = Vec::new();
        for table in &self.tables {
            for word in [table.name.as_bytes(), &table.columns] {
                heads.push(u8::try_from(word.len())?);
                heads.extend_from_slice(word);
            }
            heads.extend(table.count.to_le_bytes());
        }
        let rows = u32::try_from(MAGIC.len() + 4 + heads.len())?;
        let mut out = [MAGIC, &rows.to_le_bytes(), &heads].concat();
        for table in &self.tables {
            out.extend_from_slice(&table.rows);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_runs_and_texts_are_stored_once() {
        let mut file = File::default();
        let name = file.text("A").expect("short");
        let pair = [row![name.clone(), 1u32], row![name.clone(), 2u32]];
        let first = file.run("values", &pair).expect("alike");
        let other = file.run("values", &[row![name, 3u32]]).expect("alike");
        let again = file.run("values", &pair).expect("alike");
        assert_eq!(
            (first.bytes, again.bytes),
            (vec![0, 0, 0, 0, 2, 0], vec![0, 0, 0, 0, 2, 0])
        );
        assert_eq!(other.bytes, [2, 0, 0, 0, 1, 0]);
        let bytes = file.bytes().expect("small");
        let heads = b"\x06values\x02t4\x03\0\0\0\x05texts\x011\x02\0\0\0";
        let rows = b"\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x01A";
        let whole = [
            &b"NVTABLE1"[..],
            &[12 + heads.len() as u8, 0, 0, 0],
            heads,
            rows,
        ];
        assert_eq!(bytes, whole.concat());
    }

    #[test]
    fn a_table_has_one_set_of_columns() {
        let mut file = File::default();
        file.row("numbers", row![1u8]).expect("the first");
        assert!(file.row("numbers", row![1u16]).is_err());
        assert!(file.table("numbers", &[]).is_err());
    }
}
