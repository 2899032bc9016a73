//! Parquet files, written: rows are gathered into row groups, and each group is written with a footer behind it that lists all
//! groups so far. So a file is whole after each group, whatever happens then: readers look at the last footer alone, and the earlier ones are
//! bytes that nothing points to. The crate `parquet` encodes groups and footers; its writer of whole files would write one footer, at the
//! end. Knows no file.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use parquet::errors::Result;
use parquet::file::metadata::{
    FileMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedColumnWriter, SerializedRowGroupWriter, TrackedWrite};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};

use super::schema::{Column, Kind, Value};

const MAGIC: &[u8; 4] = b"PAR1";
/// About the bytes of rows in a group.
const GROUP: usize = 8 << 20;
/// About the bytes of rows in a group of a long file, so that footers stay a small part of it.
const LONG_GROUP: usize = 32 << 20;
/// Number of groups from which on a file is long.
const LONG: usize = 32;

/// A file that is being written.
pub(super) struct Parquet {
    schema: SchemaDescPtr,
    properties: WriterPropertiesPtr,
    columns: Vec<Gathered>,
    rows: u64,
    bytes: usize,
    groups: Vec<RowGroupMetaData>,
    /// True if the last of `groups` is not known to be in the file.
    is_new: bool,
    /// Bytes in the file.
    written: u64,
    /// True if a footer is there.
    is_whole: bool,
}

impl Parquet {
    /// Begins a file with these columns.
    ///
    /// # Errors
    /// When the columns make no schema of Parquet.
    pub(super) fn new(columns: &[&'static Column]) -> io::Result<Self> {
        Ok(Self {
            schema: Arc::new(schema(columns)?),
            properties: Arc::new(properties()),
            columns: columns.iter().map(|c| Gathered::of(c)).collect(),
            rows: 0,
            bytes: 0,
            groups: Vec::new(),
            is_new: false,
            written: 0,
            is_whole: false,
        })
    }

    /// Adds a row, with a value for each column.
    pub(super) fn row<'a>(&mut self, values: impl Iterator<Item = Value<'a>>) {
        for (column, value) in self.columns.iter_mut().zip(values) {
            self.bytes += column.push(&value);
        }
        self.rows += 1;
    }

    /// Bytes of rows that wait.
    pub(super) const fn waiting(&self) -> usize {
        self.bytes
    }

    /// Tells whether the group has as many rows as a group should have.
    pub(super) fn is_full(&self) -> bool {
        let long = self.groups.len() >= LONG;
        self.bytes >= if long { LONG_GROUP } else { GROUP }
    }

    /// Appends the rows that wait as a group, with a footer behind it, and says how many they are. [`Parquet::written`] or
    /// [`Parquet::refused`] must follow.
    ///
    /// # Errors
    /// When the rows are not what the schema says, which would be a mistake of this program.
    pub(super) fn group(&mut self, out: &mut Vec<u8>) -> io::Result<u64> {
        let begin = out.len();
        if self.written == 0 {
            out.extend_from_slice(MAGIC);
        }
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        self.is_new = rows > 0;
        if rows > 0 {
            let offset = self.written + (out.len() - begin) as u64;
            let group = self.encode(offset, out)?;
            self.groups.push(group);
        }
        self.footer(out)?;
        Ok(rows)
    }

    /// Takes note that the last append, of this number of bytes, is in the file.
    pub(super) const fn written(&mut self, bytes: u64) {
        self.written += bytes;
        self.is_whole = true;
        self.is_new = false;
    }

    /// Takes note that the last append is not in the file.
    pub(super) fn refused(&mut self) {
        if std::mem::take(&mut self.is_new) {
            self.groups.pop();
        }
    }

    /// Tells whether the file lacks something: rows, or its footer.
    pub(super) const fn lacks(&self) -> bool {
        self.rows > 0 || !self.is_whole
    }

    /// Appends the pages of the rows that wait, of which the first begins at `offset` of the file, and forgets the rows.
    fn encode(&mut self, offset: u64, out: &mut Vec<u8>) -> Result<RowGroupMetaData> {
        let mut pages = TrackedWrite::new(out);
        let number = self.groups.len() as i32;
        let (schema, properties) = (self.schema.clone(), self.properties.clone());
        let mut group = SerializedRowGroupWriter::new(schema, properties, &mut pages, number, None);
        for column in &mut self.columns {
            if let Some(writer) = group.next_column()? {
                column.encode(writer)?;
            }
        }
        let group = group.close()?;
        pages.into_inner()?;
        moved(Arc::unwrap_or_clone(group), offset as i64)
    }

    fn footer(&self, out: &mut Vec<u8>) -> Result<()> {
        let rows = self.groups.iter().map(RowGroupMetaData::num_rows).sum();
        let writer = concat!("nvcap version ", env!("CARGO_PKG_VERSION"));
        let schema = self.schema.clone();
        let file = FileMetaData::new(2, rows, Some(writer.into()), None, schema, None);
        let file = ParquetMetaData::new(file, self.groups.clone());
        ParquetMetaDataWriter::new(out, &file).finish()
    }
}

/// Returns the group with its places moved by `offset`.
fn moved(group: RowGroupMetaData, offset: i64) -> Result<RowGroupMetaData> {
    let begin = group.file_offset().map(|at| at + offset);
    let mut group = group.into_builder();
    for column in group.take_columns() {
        let data = column.data_page_offset() + offset;
        let dictionary = column.dictionary_page_offset().map(|at| at + offset);
        let column = { column.into_builder() }
            .set_data_page_offset(data)
            .set_dictionary_page_offset(dictionary);
        group = group.add_column_metadata(column.build()?);
    }
    match begin {
        Some(at) => group.set_file_offset(at).build(),
        None => group.build(),
    }
}

fn properties() -> WriterProperties {
    WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        // A group is about as large as others' pages.
        .set_offset_index_disabled(true)
        .build()
}

/// The columns as Parquet has them.
fn schema(columns: &[&'static Column]) -> Result<SchemaDescriptor> {
    let mut fields = Vec::with_capacity(columns.len());
    for column in columns {
        let (physical, logical) = match column.kind {
            Kind::Int => (Physical::INT64, Some(LogicalType::integer(64, true))),
            Kind::Unsigned => (Physical::INT64, Some(LogicalType::integer(64, false))),
            Kind::Bool => (Physical::BOOLEAN, None),
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Bytes => (Physical::BYTE_ARRAY, None),
        };
        let field = Type::primitive_type_builder(column.name, physical)
            .with_repetition(match column.optional {
                true => Repetition::OPTIONAL,
                false => Repetition::REQUIRED,
            })
            .with_logical_type(logical);
        fields.push(Arc::new(field.build()?));
    }
    let root = Type::group_type_builder("schema").with_fields(fields);
    Ok(SchemaDescriptor::new(Arc::new(root.build()?)))
}

/// The values of a column that wait.
struct Gathered {
    kind: Kind,
    /// Levels of an optional column: for each row 1 where it has a value, else 0.
    levels: Option<Vec<i16>>,
    numbers: Vec<i64>,
    bits: Vec<bool>,
    texts: Texts,
}

/// Texts and bytes, each once, and the index of the one that each row has.
#[derive(Default)]
struct Texts {
    numbers: HashMap<Box<[u8]>, u32>,
    each: Vec<ByteArray>,
    rows: Vec<u32>,
}

impl Gathered {
    fn of(column: &Column) -> Self {
        Self {
            kind: column.kind,
            levels: column.optional.then(Vec::new),
            numbers: Vec::new(),
            bits: Vec::new(),
            texts: Texts::default(),
        }
    }

    /// Adds a value. Returns about how many bytes that takes.
    fn push(&mut self, value: &Value<'_>) -> usize {
        let mut taken = 0;
        if let Some(levels) = &mut self.levels {
            levels.push((*value != Value::Null).into());
            taken += size_of::<i16>();
            if *value == Value::Null {
                return taken;
            }
        }
        taken
            + match self.kind {
                Kind::Int => number(&mut self.numbers, value.as_int().unwrap_or(0)),
                Kind::Unsigned => number(
                    &mut self.numbers,
                    match *value {
                        Value::Number(n) => n.cast_signed(),
                        _ => 0,
                    },
                ),
                Kind::Bool => {
                    self.bits.push(*value == Value::Bool(true));
                    1
                }
                Kind::Text | Kind::Bytes => self.texts.push(match value {
                    Value::Text(text) => text.as_bytes(),
                    Value::Bytes(bytes) => bytes,
                    _ => &[],
                }),
            }
    }

    /// Writes the values, and forgets them.
    fn encode(&mut self, mut writer: SerializedColumnWriter<'_>) -> Result<()> {
        let levels = self.levels.as_mut().map(std::mem::take);
        let levels = levels.as_deref();
        match self.kind {
            Kind::Int | Kind::Unsigned => {
                let values = std::mem::take(&mut self.numbers);
                let writer = writer.typed::<Int64Type>();
                writer.write_batch(&values, levels, None)?;
            }
            Kind::Bool => {
                let values = std::mem::take(&mut self.bits);
                let writer = writer.typed::<BoolType>();
                writer.write_batch(&values, levels, None)?;
            }
            Kind::Text | Kind::Bytes => {
                let texts = std::mem::take(&mut self.texts);
                let text = |number: &u32| texts.each[*number as usize].clone();
                let values: Vec<_> = texts.rows.iter().map(text).collect();
                let writer = writer.typed::<ByteArrayType>();
                writer.write_batch(&values, levels, None)?;
            }
        }
        writer.close()
    }
}

fn number(numbers: &mut Vec<i64>, n: i64) -> usize {
    numbers.push(n);
    size_of::<i64>()
}

impl Texts {
    fn push(&mut self, text: &[u8]) -> usize {
        let mut taken = size_of::<u32>();
        let number = match self.numbers.get(text) {
            Some(number) => *number,
            None => {
                let number = self.each.len() as u32;
                self.numbers.insert(text.into(), number);
                self.each.push(text.into());
                taken += 2 * (text.len() + size_of::<ByteArray>());
                number
            }
        };
        self.rows.push(number);
        taken
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;

    use super::*;
    use crate::export::tables::schema::Source;

    const fn column(name: &'static str, kind: Kind, optional: bool) -> Column {
        Column {
            name,
            kind,
            optional,
            unit: "",
            source: Source::Ring,
            about: "",
            get: |_| Value::Null,
        }
    }

    static COLUMNS: [Column; 3] = [
        column("number", Kind::Int, false),
        column("text", Kind::Text, true),
        column("large", Kind::Unsigned, false),
    ];

    fn rows(file: &mut Parquet, numbers: std::ops::Range<i64>) {
        for n in numbers {
            // Every third text is missing; the others come again and again.
            let text = (n % 3 != 0).then(|| format!("text {}", n % 7));
            let large = u64::MAX - n as u64;
            let values = [Value::from(n), Value::from(text), Value::from(large)];
            file.row(values.into_iter());
        }
    }

    /// The rows of the bytes of a file, which must be those of `rows` up to `count`.
    fn check(bytes: &[u8], count: i64, groups: usize) {
        let name = format!("nvcap-parquet-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).unwrap();
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let reader = reader.unwrap();
        assert_eq!(reader.metadata().num_row_groups(), groups);
        assert_eq!(reader.metadata().file_metadata().num_rows(), count);
        let mut next = 0;
        for row in reader.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            assert_eq!(row.get_long(0).unwrap(), next);
            let text = row.get_string(1).ok().cloned();
            let expected = (next % 3 != 0).then(|| format!("text {}", next % 7));
            assert_eq!(text, expected, "row {next}");
            assert_eq!(row.get_ulong(2).unwrap(), u64::MAX - next as u64);
            next += 1;
        }
        assert_eq!(next, count);
    }

    /// A file is whole after each group, and a group that found no room leaves no trace: what comes behind it has the right places.
    #[test]
    fn a_file_is_whole_after_each_group() {
        let columns: Vec<_> = COLUMNS.iter().collect();
        let mut parquet = Parquet::new(&columns).unwrap();
        let (mut file, mut out) = (Vec::new(), Vec::new());
        assert!(parquet.lacks());
        for (group, numbers) in [(1, 0..1000), (2, 1000..1001), (3, 1001..5000)] {
            let end = numbers.end;
            rows(&mut parquet, 7..9);
            out.clear();
            assert_eq!(parquet.group(&mut out).unwrap(), 2);
            parquet.refused();
            rows(&mut parquet, numbers);
            assert!(parquet.lacks() && parquet.waiting() > 0);
            out.clear();
            parquet.group(&mut out).unwrap();
            file.extend_from_slice(&out);
            parquet.written(out.len() as u64);
            assert!(!parquet.lacks() && parquet.waiting() == 0);
            check(&file, end, group);
        }
    }

    #[test]
    fn a_table_without_rows_is_a_file() {
        let columns: Vec<_> = COLUMNS.iter().collect();
        let mut parquet = Parquet::new(&columns).unwrap();
        let mut out = Vec::new();
        assert_eq!(parquet.group(&mut out).unwrap(), 0);
        parquet.written(out.len() as u64);
        check(&out, 0, 0);
    }

    #[test]
    fn a_group_is_full_by_its_bytes() {
        let columns: Vec<_> = COLUMNS.iter().collect();
        let mut parquet = Parquet::new(&columns).unwrap();
        let text = "x".repeat(1 << 20);
        for n in 0..4 {
            assert!(!parquet.is_full());
            let own = format!("{text}{n}");
            let values = [Value::from(n), Value::from(own), Value::from(0u64)];
            parquet.row(values.into_iter());
        }
        assert!(parquet.is_full());
    }
}
