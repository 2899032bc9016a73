//! `cargo xtask facts`: the class and QMD tables, from the TSV files in `facts/` into the compact tables that the
//! library embeds (`nvcap/facts/classes.bin`, `nvcap/facts/qmd.bin`).
//!
//! The output depends on the input alone (no time, no path, no hash order), so `--check` can tell by comparing
//! bytes whether what is committed is what the facts give. The layouts are described in `nvcap/facts/README.md`
//! and read by `nvcap::decode::table`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

use anyhow::{Context, Result, ensure};

use crate::paths;

/// Builds the tables; with `check`, compares them with what is committed instead of writing them.
pub fn run(check: bool) -> Result<()> {
    let (root, facts) = (paths::root(), paths::facts());
    let tables = [
        ("classes.bin", classes(&facts)?),
        ("qmd.bin", qmd(&facts.join("qmd"))?),
    ];
    for (name, bytes) in tables {
        let path = root.join("nvcap/facts").join(name);
        if check {
            let committed =
                fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            ensure!(
                committed == bytes,
                "{name} is not what the facts give: run `cargo xtask facts` and commit it"
            );
            println!("facts: {name} is up to date ({} bytes)", bytes.len());
        } else {
            fs::create_dir_all(root.join("nvcap/facts"))?;
            fs::write(&path, &bytes).with_context(|| format!("writing {}", path.display()))?;
            println!("facts: wrote {name} ({} bytes)", bytes.len());
        }
    }
    Ok(())
}

/// Strings, each once, in the order of first use: u8 length, then the bytes.
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
    seen: BTreeMap<String, u32>,
}

impl Strings {
    fn add(&mut self, text: &str) -> Result<u32> {
        if let Some(&at) = self.seen.get(text) {
            return Ok(at);
        }
        let at = u32::try_from(self.bytes.len())?;
        self.bytes.push(
            u8::try_from(text.len()).with_context(|| format!("name of over 255 bytes: {text}"))?,
        );
        self.bytes.extend_from_slice(text.as_bytes());
        self.seen.insert(text.to_owned(), at);
        Ok(at)
    }
}

/// Rows of fixed size; an equal run of rows is stored once.
struct Rows {
    width: usize,
    bytes: Vec<u8>,
    seen: BTreeMap<Vec<u8>, u32>,
}

impl Rows {
    fn new(width: usize) -> Self {
        Self {
            width,
            bytes: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    fn len(&self) -> usize {
        self.bytes.len() / self.width
    }

    /// Index of the first row of `run`.
    fn add(&mut self, run: &[u8]) -> Result<u32> {
        assert_eq!(run.len() % self.width, 0);
        if run.is_empty() {
            return Ok(0);
        }
        if let Some(&at) = self.seen.get(run) {
            return Ok(at);
        }
        let at = u32::try_from(self.len())?;
        self.bytes.extend_from_slice(run);
        self.seen.insert(run.to_vec(), at);
        Ok(at)
    }
}

/// What both tables share: strings and enumerations.
struct Pool {
    strings: Strings,
    enums: Rows,
}

impl Pool {
    fn new() -> Self {
        Self {
            strings: Strings::default(),
            enums: Rows::new(8),
        }
    }

    /// `NAME=0xvalue;...` to (first row, count).
    fn enumeration(&mut self, text: &str) -> Result<(u32, u16)> {
        let mut run = Vec::new();
        let mut count = 0;
        for pair in text.split(';').filter(|p| !p.is_empty()) {
            let (name, value) = pair
                .split_once('=')
                .with_context(|| format!("no value in {pair}"))?;
            run.extend(self.strings.add(name)?.to_le_bytes());
            run.extend(hex(value)?.to_le_bytes());
            count += 1;
        }
        Ok((self.enums.add(&run)?, count))
    }
}

fn hex(text: &str) -> Result<u32> {
    let digits = text.trim_start_matches("0x");
    u32::from_str_radix(digits, 16).with_context(|| format!("not a hex number: {text}"))
}

/// The lines of a TSV file after its header, each split at tabs and filled up to `columns`.
fn rows(path: &Path, columns: usize) -> Result<Vec<Vec<String>>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    text.lines()
        .skip(1)
        .filter(|l| !l.is_empty())
        .map(|line| {
            let mut row: Vec<String> = line.split('\t').map(str::to_owned).collect();
            ensure!(
                row.len() <= columns,
                "{}: too many columns: {line}",
                path.display()
            );
            row.resize(columns, String::new());
            Ok(row)
        })
        .collect()
}

/// An array's shape: counts and strides of up to two indexes, and whether the count is only an upper bound.
#[derive(Default)]
struct Shape {
    count: [u16; 2],
    stride: [u16; 2],
    bound: bool,
    array: bool,
}

fn shape(count: &str, stride: &str) -> Result<Shape> {
    if stride.is_empty() {
        ensure!(count.is_empty(), "a count {count} without a stride");
        return Ok(Shape {
            count: [1, 1],
            ..Shape::default()
        });
    }
    let two = |text: &str, default: u16| -> Result<[u16; 2]> {
        let mut parts = text.split(',');
        let mut next = || -> Result<Option<u16>> { Ok(parts.next().map(str::parse).transpose()?) };
        Ok([next()?.context("empty number")?, next()?.unwrap_or(default)])
    };
    Ok(Shape {
        count: two(count.trim_start_matches("<="), 1)?,
        stride: two(stride, 0)?,
        bound: count.starts_with("<="),
        array: true,
    })
}

const FAMILIES: [&str; 13] = [
    "3d", "compute", "copy", "gpfifo", "inline", "2d", "m2mf", "nvdec", "nvenc", "nvjpg", "ofa",
    "sec2", "sw",
];
const RELATIONS: [&str; 5] = ["", "stub", "partial", "near identical", "identical"];
const CONFIDENCES: [&str; 4] = ["", "low", "medium", "high"];
/// The number under which the methods common to all Falcon video classes are stored; no hardware class has it.
const FALCON_COMMON: u32 = 0xffff_0000;

fn position(list: &[&str], what: &str) -> Result<u8> {
    list.iter()
        .position(|x| *x == what)
        .map(|i| i as u8)
        .with_context(|| format!("{what:?} is none of {list:?}"))
}

struct ClassRow {
    name: String,
    family: u8,
    relation: u8,
    confidence: u8,
    parent: u32,
    ids: Vec<u16>,
    constants: Vec<u8>,
}

/// A method's row of `methods/*.tsv` and those of its fields.
type Method = Vec<Vec<String>>;

/// How the tables name what all Falcon video classes share, in place of a class number.
fn class_number(text: &str) -> Result<u32> {
    match text {
        "falcon_common" => Ok(FALCON_COMMON),
        _ => hex(text),
    }
}

/// Each class's methods in the order of their addresses. A table has the methods of a family, each once, with the
/// classes that have it; the rows after it that name no class are its fields.
fn methods_of_classes(dir: &Path) -> Result<BTreeMap<u32, Vec<Rc<Method>>>> {
    let mut of: BTreeMap<u32, Vec<Rc<Method>>> = BTreeMap::new();
    for path in tables_in(dir)? {
        let mut table = rows(&path, 9)?.into_iter().peekable();
        while let Some(head) = table.next() {
            ensure!(
                !head[0].is_empty(),
                "{}: a field before its method: {head:?}",
                path.display()
            );
            let classes = head[0].clone();
            let mut method = vec![head];
            while let Some(field) = table.next_if(|row| row[0].is_empty()) {
                method.push(field);
            }
            let method = Rc::new(method);
            for class in classes.split(',') {
                let number = class_number(class)?;
                of.entry(number).or_default().push(method.clone());
            }
        }
    }
    Ok(of)
}

/// The TSV files of a folder, by name.
fn tables_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .with_context(|| format!("reading {}", dir.display()))?
        .map(|e| Ok(e?.path()))
        .collect::<Result<_>>()?;
    files.retain(|p| p.extension().is_some_and(|e| e == "tsv"));
    files.sort();
    Ok(files)
}

fn classes(facts: &Path) -> Result<Vec<u8>> {
    let dir = facts.join("classes");
    let mut of = methods_of_classes(&facts.join("methods"))?;
    let mut pool = Pool::new();
    let mut fields = Rows::new(12);
    let mut methods = Rows::new(24);
    let mut out: BTreeMap<u32, ClassRow> = BTreeMap::new();

    let mut constants: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for row in rows(&dir.join("constants.tsv"), 3)? {
        let list = constants.entry(hex(&row[0])?).or_default();
        list.extend(pool.strings.add(&row[1])?.to_le_bytes());
        list.extend(hex(&row[2])?.to_le_bytes());
    }

    let mut listed: Vec<(u32, String, String)> =
        vec![(FALCON_COMMON, "FALCON_COMMON".into(), "ofa".into())];
    for row in rows(&dir.join("index.tsv"), 7)? {
        // A header can name a class twice (a message id beside the class): the first name is the class's.
        let name = row[1].split('|').next().unwrap_or_default().to_owned();
        listed.push((hex(&row[0])?, name, row[2].clone()));
    }
    listed.sort();

    for (number, name, family) in listed {
        let own = of.remove(&number).unwrap_or_default();
        let ids = class_methods(&own, &mut pool, &mut fields, &mut methods)
            .with_context(|| format!("class {number:04x}"))?;
        out.insert(
            number,
            ClassRow {
                name,
                family: position(&FAMILIES, &family)?,
                relation: 0,
                confidence: 0,
                parent: 0,
                ids,
                constants: constants.remove(&number).unwrap_or_default(),
            },
        );
    }
    ensure!(
        constants.is_empty(),
        "constants of classes without a table: {:x?}",
        constants.keys()
    );

    ensure!(
        of.is_empty(),
        "methods of classes that index.tsv does not list: {:x?}",
        of.keys()
    );

    for row in rows(&dir.join("inherits.tsv"), 6)? {
        let number = hex(&row[0])?;
        let parent = class_number(&row[2])?;
        let family = if row[1].contains("OFA") {
            position(&FAMILIES, "ofa")?
        } else {
            out.get(&parent)
                .with_context(|| format!("parent {parent:x} of {number:x} has no table"))?
                .family
        };
        let class = out.entry(number).or_insert_with(|| ClassRow {
            name: row[1].clone(),
            family,
            relation: 0,
            confidence: 0,
            parent: 0,
            ids: Vec::new(),
            constants: Vec::new(),
        });
        class.relation = position(&RELATIONS, &row[3])?;
        class.confidence = position(&CONFIDENCES, &row[4])?;
        class.parent = parent;
    }

    let mut class_rows = Vec::new();
    let mut ids = Vec::new();
    let mut constant_rows = Vec::new();
    for (number, class) in &out {
        class_rows.extend(number.to_le_bytes());
        class_rows.extend(pool.strings.add(&class.name)?.to_le_bytes());
        class_rows.extend([class.family, class.relation, class.confidence, 0]);
        class_rows.extend(class.parent.to_le_bytes());
        class_rows.extend(u32::try_from(ids.len() / 2)?.to_le_bytes());
        class_rows.extend(u16::try_from(class.ids.len())?.to_le_bytes());
        class_rows.extend(u16::try_from(class.constants.len() / 8)?.to_le_bytes());
        class_rows.extend(u32::try_from(constant_rows.len() / 8)?.to_le_bytes());
        ids.extend(class.ids.iter().flat_map(|id| id.to_le_bytes()));
        constant_rows.extend_from_slice(&class.constants);
    }
    pack(
        b"NVCCLS01",
        &[
            (&class_rows, 28),
            (&ids, 2),
            (&methods.bytes, 24),
            (&fields.bytes, 12),
            (&pool.enums.bytes, 8),
            (&constant_rows, 8),
            (&pool.strings.bytes, 1),
        ],
    )
}

fn class_methods(
    own: &[Rc<Method>],
    pool: &mut Pool,
    fields: &mut Rows,
    methods: &mut Rows,
) -> Result<Vec<u16>> {
    let mut ids = Vec::new();
    for rows in own {
        let (head, field_rows) = rows.split_first().context("a method has a row")?;
        let mut run = Vec::new();
        for row in field_rows {
            let (first, n) = pool.enumeration(&row[8])?;
            run.extend(pool.strings.add(&row[5])?.to_le_bytes());
            run.extend([row[6].parse::<u8>()?, row[7].parse::<u8>()?]);
            run.extend(n.to_le_bytes());
            run.extend(first.to_le_bytes());
        }
        let count = u8::try_from(field_rows.len()).context("over 255 fields")?;
        let shape = shape(&head[3], &head[4])?;
        let first = fields.add(&run)?;
        let mut method = Vec::new();
        method.extend(pool.strings.add(&head[1])?.to_le_bytes());
        method.extend(u16::try_from(hex(&head[2])?)?.to_le_bytes());
        method.extend(shape.count.iter().flat_map(|x| x.to_le_bytes()));
        method.extend(shape.stride.iter().flat_map(|x| x.to_le_bytes()));
        method.extend([count, u8::from(shape.array) | u8::from(shape.bound) << 1]);
        method.extend(first.to_le_bytes());
        method.extend([0; 4]);
        let id = methods.add(&method)?;
        ids.push(u16::try_from(id)?);
    }
    Ok(ids)
}

fn qmd(dir: &Path) -> Result<Vec<u8>> {
    let mut pool = Pool::new();
    let mut lists = Rows::new(2);
    let mut version_rows = Vec::new();
    let mut field_rows: Vec<u8> = Vec::new();
    for path in tables_in(dir)? {
        let stem = path
            .file_stem()
            .and_then(|s| s.to_str())
            .context("file name")?;
        let (major, minor) = stem.split_once('_').context("MM_mm.tsv")?;
        let (major, minor) = (hex(major)? as u8, hex(minor)? as u8);
        let first = field_rows.len() / 32;
        for row in rows(&path, 7)? {
            let shape = shape(&row[3], &row[4])?;
            let (first_enum, enums) = pool.enumeration(&row[5])?;
            let mut list = Vec::new();
            for class in row[6].split(',').filter(|c| !c.is_empty()) {
                list.extend((hex(class)? as u16).to_le_bytes());
            }
            let classes = (list.len() / 2) as u16;
            field_rows.extend(pool.strings.add(&row[0])?.to_le_bytes());
            field_rows.extend(row[1].parse::<u16>()?.to_le_bytes());
            field_rows.extend(row[2].parse::<u16>()?.to_le_bytes());
            field_rows.extend(shape.count.iter().flat_map(|x| x.to_le_bytes()));
            field_rows.extend(shape.stride.iter().flat_map(|x| x.to_le_bytes()));
            field_rows.extend(enums.to_le_bytes());
            field_rows.extend([u8::from(shape.array) | u8::from(shape.bound) << 1, 0]);
            field_rows.extend(first_enum.to_le_bytes());
            field_rows.extend(lists.add(&list)?.to_le_bytes());
            field_rows.extend(classes.to_le_bytes());
            field_rows.extend([0; 2]);
        }
        let bytes: u16 = if major >= 4 { 384 } else { 256 };
        version_rows.extend([major, minor]);
        version_rows.extend(bytes.to_le_bytes());
        version_rows.extend(u32::try_from(first)?.to_le_bytes());
        version_rows.extend(u32::try_from(field_rows.len() / 32 - first)?.to_le_bytes());
    }
    pack(
        b"NVCQMD01",
        &[
            (&version_rows, 12),
            (&field_rows, 32),
            (&pool.enums.bytes, 8),
            (&lists.bytes, 2),
            (&pool.strings.bytes, 1),
        ],
    )
}

/// Magic, then per section its number of rows (u32), then the sections, each padded to 4 bytes.
fn pack(magic: &[u8; 8], sections: &[(&[u8], usize)]) -> Result<Vec<u8>> {
    let mut out = magic.to_vec();
    for (bytes, width) in sections {
        ensure!(bytes.len() % width == 0, "a broken row");
        out.extend(u32::try_from(bytes.len() / width)?.to_le_bytes());
    }
    for (bytes, _) in sections {
        out.extend_from_slice(bytes);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    Ok(out)
}
