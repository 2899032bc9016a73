//! `classes.bin` and `qmd.bin`: engine classes with their methods, and the layouts of the QMD.

use std::{collections::BTreeMap, path::Path, rc::Rc};

use anyhow::{Context as _, Result, ensure};

use super::{
    tables::{Cell, File, Row, row},
    tsv::{self, Line, hex},
};

/// `NAME=0xvalue;...` as a run of values.
fn enumeration(file: &mut File, text: &str) -> Result<Cell> {
    let mut values = Vec::new();
    for pair in text.split(';').filter(|p| !p.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .with_context(|| format!("no value in {pair}"))?;
        values.push(row![file.text(name)?, hex(value)?]);
    }
    file.run("values", &values)
}

/// An array's shape: counts and strides of up to two indexes; flags: 1 for an array, 2 for a count that is only an upper bound.
fn shape(count: &str, stride: &str) -> Result<([u16; 2], [u16; 2], u8)> {
    if stride.is_empty() {
        ensure!(count.is_empty(), "a count {count} without a stride");
        return Ok(([1, 1], [0, 0], 0));
    }
    let two = |text: &str, default: u16| -> Result<[u16; 2]> {
        let mut parts = text.split(',');
        let mut next = || -> Result<Option<u16>> { Ok(parts.next().map(str::parse).transpose()?) };
        Ok([next()?.context("empty number")?, next()?.unwrap_or(default)])
    };
    let bound = u8::from(count.starts_with("<="));
    let counts = two(count.trim_start_matches("<="), 1)?;
    Ok((counts, two(stride, 0)?, 1 | bound << 1))
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

#[derive(Default)]
struct Class {
    name: String,
    family: u8,
    relation: u8,
    confidence: u8,
    parent: u32,
    ids: Vec<Row>,
    constants: Vec<Row>,
}

/// The line of a method in `methods/*.tsv` and those of its fields.
type Method = Vec<Line>;

/// The name that the tables use, in place of a class number, for methods common to all Falcon video classes.
fn class_number(text: &str) -> Result<u32> {
    match text {
        "falcon_common" => Ok(FALCON_COMMON),
        _ => hex(text),
    }
}

/// Each class's methods in the order of their addresses. A table has the methods of a family, each once, with its classes;
/// the lines after it without classes are its fields.
fn methods_of_classes(dir: &Path) -> Result<BTreeMap<u32, Vec<Rc<Method>>>> {
    let mut of: BTreeMap<u32, Vec<Rc<Method>>> = BTreeMap::new();
    for path in tsv::files_in(dir)? {
        let mut methods: Vec<Method> = Vec::new();
        for line in tsv::read(&path)? {
            if !line.get("classes")?.is_empty() {
                methods.push(Vec::new());
            }
            let method = methods.last_mut();
            let field = || format!("{}: a field before its method", path.display());
            method.with_context(field)?.push(line);
        }
        for method in methods.into_iter().map(Rc::new) {
            for class in method[0].get("classes")?.split(',') {
                let number = class_number(class)?;
                of.entry(number).or_default().push(method.clone());
            }
        }
    }
    Ok(of)
}

/// `classes.bin`.
pub fn classes(facts: &Path) -> Result<Vec<u8>> {
    let dir = facts.join("classes");
    let mut of = methods_of_classes(&facts.join("methods"))?;
    let mut file = File::default();
    let mut all: BTreeMap<u32, Class> = BTreeMap::new();

    let mut constants: BTreeMap<u32, Vec<Row>> = BTreeMap::new();
    for line in tsv::read(&dir.join("constants.tsv"))? {
        let list = constants.entry(hex(line.get("class")?)?).or_default();
        list.push(row![
            file.text(line.get("name")?)?,
            hex(line.get("value_hex")?)?
        ]);
    }

    let mut listed: Vec<(u32, String, String)> =
        vec![(FALCON_COMMON, "FALCON_COMMON".into(), "ofa".into())];
    for line in tsv::read(&dir.join("index.tsv"))? {
        // A header can have two names for a class number (a message id beside the class): the first is the class's.
        let name = line.get("name")?.split('|').next().unwrap_or_default();
        let number = hex(line.get("class")?)?;
        listed.push((number, name.to_owned(), line.get("family")?.to_owned()));
    }
    listed.sort();

    for (number, name, family) in listed {
        let mut ids = Vec::new();
        for own in of.remove(&number).unwrap_or_default() {
            let id = method(&own, &mut file).with_context(|| format!("class {number:04x}"))?;
            ids.push(row![u16::try_from(id)?]);
        }
        let class = Class {
            name,
            family: position(&FAMILIES, &family)?,
            ids,
            constants: constants.remove(&number).unwrap_or_default(),
            ..Class::default()
        };
        all.insert(number, class);
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

    for line in tsv::read(&dir.join("inherits.tsv"))? {
        let number = hex(line.get("class")?)?;
        let name = line.get("name")?;
        let parent = class_number(line.get("parent")?)?;
        let family = if name.contains("OFA") {
            position(&FAMILIES, "ofa")?
        } else {
            all.get(&parent)
                .with_context(|| format!("parent {parent:x} of {number:x} has no table"))?
                .family
        };
        let class = all.entry(number).or_insert_with(|| Class {
            name: name.to_owned(),
            family,
            ..Class::default()
        });
        class.relation = position(&RELATIONS, line.get("relation")?)?;
        class.confidence = position(&CONFIDENCES, line.get("confidence")?)?;
        class.parent = parent;
    }

    let mut rows = Vec::new();
    for (number, class) in &all {
        rows.push(row![
            *number,
            file.text(&class.name)?,
            class.family,
            class.relation,
            class.confidence,
            class.parent,
            file.run("method ids", &class.ids)?,
            file.run("values", &class.constants)?,
        ]);
    }
    file.table("classes", &rows)?;
    file.bytes()
}

/// The row of a method; equal methods of several classes share one.
fn method(lines: &Method, file: &mut File) -> Result<u32> {
    let (head, field_lines) = lines.split_first().context("a method has a line")?;
    let mut fields = Vec::new();
    for line in field_lines {
        let values = enumeration(file, line.get("enum")?)?;
        fields.push(row![
            file.text(line.get("field")?)?,
            line.get("hi")?.parse::<u8>()?,
            line.get("lo")?.parse::<u8>()?,
            values,
        ]);
    }
    let (count, stride, flags) = shape(head.get("array_count")?, head.get("array_stride")?)?;
    let method = row![
        file.text(head.get("method")?)?,
        u16::try_from(hex(head.get("addr_hex")?)?)?,
        count,
        stride,
        flags,
        file.run("fields", &fields)?,
    ];
    file.row("methods", method)
}

/// `qmd.bin`.
pub fn qmd(dir: &Path) -> Result<Vec<u8>> {
    let mut file = File::default();
    let mut layouts = Vec::new();
    for path in tsv::files_in(dir)? {
        let stem = path.file_stem().and_then(|s| s.to_str());
        let version = stem.and_then(|s| s.split_once('_')).context("MM_mm.tsv")?;
        let (major, minor) = (hex(version.0)? as u8, hex(version.1)? as u8);
        let mut fields = Vec::new();
        for line in tsv::read(&path)? {
            let (count, stride, flags) =
                shape(line.get("array_count")?, line.get("array_stride_bits")?)?;
            let values = enumeration(&mut file, line.get("enum")?)?;
            let mut classes = Vec::new();
            for class in line.get("classes")?.split(',').filter(|c| !c.is_empty()) {
                classes.push(row![hex(class)? as u16]);
            }
            fields.push(row![
                file.text(line.get("field")?)?,
                line.get("hi")?.parse::<u16>()?,
                line.get("lo")?.parse::<u16>()?,
                count,
                stride,
                flags,
                values,
                file.run("classes", &classes)?,
            ]);
        }
        let bytes: u16 = if major >= 4 { 384 } else { 256 };
        layouts.push(row![major, minor, bytes, file.run("fields", &fields)?]);
    }
    file.table("layouts", &layouts)?;
    file.bytes()
}
