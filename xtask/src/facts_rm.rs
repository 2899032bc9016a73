//! Turns the tables of `facts/rm` into `nvcap/facts/rm.bin`, the form the library embeds.
//!
//! The form is described in `docs/driver-model.md`; its reader is `nvcap/src/driver/facts.rs`. The same tables
//! always give the same bytes: rows are sorted by key, strings by their text. Knows nothing of the library.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::paths;

const MAGIC: &[u8; 4] = b"NVRM";
const FORMAT: u32 = 1;

/// Writes `nvcap/facts/rm.bin`; with `check`, only compares it with what would be written.
pub fn run(check: bool) -> Result<()> {
    let facts = paths::facts().join("rm");
    let out = paths::root().join("nvcap/facts/rm.bin");
    let bytes = build(&facts)?;
    if check {
        let have = fs::read(&out)
            .with_context(|| format!("{}: not readable; run `cargo xtask facts`", out.display()))?;
        ensure!(
            have == bytes,
            "{} is not what {} gives; run `cargo xtask facts` and commit it",
            out.display(),
            facts.display()
        );
        println!("{}: up to date ({} bytes)", out.display(), bytes.len());
    } else {
        if let Some(folder) = out.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&out, &bytes).with_context(|| format!("writing {}", out.display()))?;
        println!("{}: {} bytes", out.display(), bytes.len());
    }
    Ok(())
}

type Tag = (u16, u16, u16);

/// A TSV file by column name.
struct Table {
    path: PathBuf,
    columns: BTreeMap<String, usize>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn read(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(name);
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut lines = text.lines();
        let head = lines
            .next()
            .with_context(|| format!("{}: empty", path.display()))?;
        let columns = head
            .split('\t')
            .enumerate()
            .map(|(i, c)| (c.to_owned(), i))
            .collect();
        let rows = lines
            .filter(|l| !l.is_empty())
            .map(|l| l.split('\t').map(str::to_owned).collect())
            .collect();
        Ok(Self {
            path,
            columns,
            rows,
        })
    }

    fn get<'a>(&self, row: &'a [String], column: &str) -> Result<&'a str> {
        let index = *self
            .columns
            .get(column)
            .with_context(|| format!("{}: no column {column}", self.path.display()))?;
        Ok(row.get(index).map_or("", String::as_str))
    }

    fn number(&self, row: &[String], column: &str) -> Result<u32> {
        let text = self.get(row, column)?;
        parse_number(text).with_context(|| {
            format!(
                "{}: column {column}: `{text}` is not a number",
                self.path.display()
            )
        })
    }

    fn tags(&self, row: &[String]) -> Result<(Tag, Tag)> {
        // A name that no release tag has (it is in NVIDIA/open-gpu-doc only) holds for every version.
        if self.get(row, "first_tag")? == "open-gpu-doc" {
            return Ok(((0, 0, 0), (u16::MAX, 0, 0)));
        }
        Ok((
            parse_tag(self.get(row, "first_tag")?)?,
            parse_tag(self.get(row, "last_tag")?)?,
        ))
    }
}

fn parse_number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn parse_tag(text: &str) -> Result<Tag> {
    let mut parts = text.split('.');
    let mut next = |optional: bool| -> Result<u16> {
        match parts.next() {
            Some(p) => p.parse().with_context(|| format!("tag `{text}`")),
            None if optional => Ok(0),
            None => bail!("tag `{text}`: too short"),
        }
    };
    Ok((next(false)?, next(false)?, next(true)?))
}

/// Rows of one section before strings and tags are known by number.
#[derive(Default)]
struct Section {
    rows: Vec<Vec<Cell>>,
}

#[derive(Clone)]
enum Cell {
    U8(u8),
    U16(u16),
    U32(u32),
    Text(String),
    Tag(Tag),
}

fn text(s: &str) -> Cell {
    Cell::Text(s.to_owned())
}

fn build(folder: &Path) -> Result<Vec<u8>> {
    let sections = [
        controls(folder)?,
        classes(folder)?,
        allocations(folder)?,
        numbered(folder, "escapes.tsv")?,
        numbered(folder, "uvm.tsv")?,
        status(folder)?,
    ];
    let (layouts, fields) = structures(folder)?;
    let chips = chips(folder)?;
    let mut all: Vec<Section> = sections.into();
    all.extend([layouts, fields, chips]);
    encode(&all)
}

fn controls(folder: &Path) -> Result<Section> {
    let table = Table::read(folder, "controls.tsv")?;
    let mut rows = Vec::new();
    for row in &table.rows {
        let (first, last) = table.tags(row)?;
        let size = parse_number(table.get(row, "params_size_595")?).unwrap_or(0);
        rows.push((
            table.number(row, "cmd_hex")?,
            vec![
                text(table.get(row, "name")?),
                text(table.get(row, "params_struct")?),
                Cell::U32(size),
                Cell::Tag(first),
                Cell::Tag(last),
                Cell::U16(0),
            ],
        ));
    }
    Ok(keyed(rows))
}

/// Every class number with its names; the name RM's own resource list uses comes first.
fn classes(folder: &Path) -> Result<Section> {
    let preferred: BTreeMap<u32, String> = {
        let table = Table::read(folder, "alloc_params.tsv")?;
        let mut map = BTreeMap::new();
        for row in &table.rows {
            map.insert(
                table.number(row, "class_hex")?,
                table.get(row, "name")?.to_owned(),
            );
        }
        map
    };
    let mut rows = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for (file, order) in [("classes.tsv", 1u8), ("alloc_params.tsv", 2)] {
        let table = Table::read(folder, file)?;
        for row in &table.rows {
            let class = table.number(row, "class_hex")?;
            let name = table.get(row, "name")?;
            let (first, last) = table.tags(row)?;
            if !seen.insert((class, name.to_owned())) {
                continue;
            }
            let rank = if preferred.get(&class).is_some_and(|p| p == name) {
                0
            } else {
                order
            };
            rows.push((class, rank, name.to_owned(), first, last));
        }
    }
    rows.sort_by_key(|r| (r.0, r.1));
    Ok(Section {
        rows: rows
            .into_iter()
            .map(|(class, _, name, first, last)| {
                vec![
                    Cell::U32(class),
                    Cell::Text(name),
                    Cell::Tag(first),
                    Cell::Tag(last),
                    Cell::U16(0),
                ]
            })
            .collect(),
    })
}

fn allocations(folder: &Path) -> Result<Section> {
    let table = Table::read(folder, "alloc_params.tsv")?;
    let mut rows = Vec::new();
    for row in &table.rows {
        let (first, last) = table.tags(row)?;
        let size = parse_number(table.get(row, "size_595")?).unwrap_or(0);
        let need = match table.get(row, "param_need")? {
            "required" => 2,
            "optional" => 1,
            _ => 0,
        };
        rows.push((
            table.number(row, "class_hex")?,
            vec![
                text(table.get(row, "params_struct")?),
                Cell::U32(size),
                Cell::Tag(first),
                Cell::Tag(last),
                Cell::U8(need),
                Cell::U8(0),
            ],
        ));
    }
    Ok(keyed(rows))
}

fn numbered(folder: &Path, file: &str) -> Result<Section> {
    let table = Table::read(folder, file)?;
    let mut rows = Vec::new();
    for row in &table.rows {
        let (first, last) = table.tags(row)?;
        // "NAME (layout not listed)" names a structure that the headers do not have.
        let structure = table
            .get(row, "params_struct")?
            .split(" (")
            .next()
            .unwrap_or("");
        rows.push((
            table.number(row, "nr_hex")?,
            vec![
                text(table.get(row, "name")?),
                text(structure),
                Cell::Tag(first),
                Cell::Tag(last),
                Cell::U16(0),
            ],
        ));
    }
    Ok(keyed(rows))
}

fn status(folder: &Path) -> Result<Section> {
    let table = Table::read(folder, "status.tsv")?;
    let mut rows = Vec::new();
    for row in &table.rows {
        let (first, last) = table.tags(row)?;
        rows.push((
            table.number(row, "code_hex")?,
            vec![
                text(table.get(row, "name")?),
                Cell::Tag(first),
                Cell::Tag(last),
                Cell::U16(0),
            ],
        ));
    }
    Ok(keyed(rows))
}

/// Structure layouts, one a (structure, size, first tag), and their fields in the order of the table.
fn structures(folder: &Path) -> Result<(Section, Section)> {
    struct Field {
        offset: u32,
        size: u32,
        name: String,
        kind: String,
    }
    let table = Table::read(folder, "params.tsv")?;
    let mut layouts: BTreeMap<(String, Tag, Tag, u32), Vec<Field>> = BTreeMap::new();
    for row in &table.rows {
        let (first, last) = table.tags(row)?;
        let key = (
            table.get(row, "struct")?.to_owned(),
            first,
            last,
            table.number(row, "total_size")?,
        );
        layouts.entry(key).or_default().push(Field {
            offset: table.number(row, "offset")?,
            size: table.number(row, "size")?,
            name: table.get(row, "field")?.to_owned(),
            kind: table.get(row, "type")?.to_owned(),
        });
    }
    let mut heads = Section::default();
    let mut fields = Section::default();
    for ((name, first, last, total), mut list) in layouts {
        // A field that is itself a structure listed field by field says nothing of its own.
        let parents: Vec<bool> = list
            .iter()
            .map(|f| {
                let inside = format!("{}.", f.name);
                list.iter().any(|g| g.name.starts_with(&inside))
            })
            .collect();
        let mut keep = parents.iter().map(|p| !p);
        list.retain(|_| keep.next().unwrap_or(true));
        let start = u32::try_from(fields.rows.len())?;
        heads.rows.push(vec![
            Cell::Text(name),
            Cell::U32(total),
            Cell::U32(start),
            Cell::U16(u16::try_from(list.len())?),
            Cell::Tag(first),
            Cell::Tag(last),
        ]);
        for f in list {
            fields.rows.push(vec![
                Cell::U32(f.offset),
                Cell::U32(f.size),
                Cell::Text(f.name),
                Cell::Text(f.kind),
            ]);
        }
    }
    Ok((heads, fields))
}

fn chips(folder: &Path) -> Result<Section> {
    let table = Table::read(folder, "chip_classes.tsv")?;
    let mut rows = Vec::new();
    for row in &table.rows {
        rows.push((
            table.get(row, "chip")?.to_owned(),
            table.number(row, "class_hex")?,
            table.get(row, "engines")?.to_owned(),
        ));
    }
    rows.sort();
    Ok(Section {
        rows: rows
            .into_iter()
            .map(|(chip, class, engines)| {
                vec![Cell::Text(chip), Cell::U32(class), Cell::Text(engines)]
            })
            .collect(),
    })
}

/// Sorts rows by their number, keeping the table's order among equals.
fn keyed(mut rows: Vec<(u32, Vec<Cell>)>) -> Section {
    rows.sort_by_key(|r| r.0);
    Section {
        rows: rows
            .into_iter()
            .map(|(key, mut cells)| {
                cells.insert(0, Cell::U32(key));
                cells
            })
            .collect(),
    }
}

fn encode(sections: &[Section]) -> Result<Vec<u8>> {
    let cells = || sections.iter().flat_map(|s| s.rows.iter().flatten());
    let mut strings: BTreeMap<&str, u32> = BTreeMap::new();
    let mut tags: BTreeMap<Tag, u8> = BTreeMap::new();
    strings.insert("", 0);
    for cell in cells() {
        match cell {
            Cell::Text(t) => {
                strings.insert(t, 0);
            }
            Cell::Tag(t) => {
                tags.insert(*t, 0);
            }
            _ => {}
        }
    }
    let mut pool = Vec::new();
    for (string, at) in &mut strings {
        *at = u32::try_from(pool.len())?;
        pool.push(u8::try_from(string.len()).with_context(|| format!("`{string}`: too long"))?);
        pool.extend_from_slice(string.as_bytes());
    }
    let mut tag_rows = Vec::new();
    for (number, (tag, at)) in tags.iter_mut().enumerate() {
        *at = u8::try_from(number).context("more than 256 release tags")?;
        for part in [tag.0, tag.1, tag.2] {
            tag_rows.extend_from_slice(&part.to_le_bytes());
        }
    }

    // Every section's place and number of rows; the string pool counts bytes.
    let mut bodies = vec![(pool.len(), pool), (tags.len(), tag_rows)];
    for section in sections {
        let mut body = Vec::new();
        for cell in section.rows.iter().flatten() {
            match cell {
                Cell::U8(v) => body.push(*v),
                Cell::U16(v) => body.extend_from_slice(&v.to_le_bytes()),
                Cell::U32(v) => body.extend_from_slice(&v.to_le_bytes()),
                Cell::Text(t) => body.extend_from_slice(&strings[t.as_str()].to_le_bytes()),
                Cell::Tag(t) => body.push(tags[t]),
            }
        }
        bodies.push((section.rows.len(), body));
    }
    let mut out = Vec::new();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    let mut at = 8 + bodies.len() * 8;
    for (count, body) in &bodies {
        out.extend_from_slice(&u32::try_from(at)?.to_le_bytes());
        out.extend_from_slice(&u32::try_from(*count)?.to_le_bytes());
        at += body.len();
    }
    for (_, body) in &bodies {
        out.extend_from_slice(body);
    }
    Ok(out)
}
