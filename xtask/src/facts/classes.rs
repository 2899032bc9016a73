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

/// Number, name and family of a class with a table of its own.
type Listed = (u32, String, String);

/// `classes.bin`.
///
/// Texts and runs lie in the file in the order in which they are first named, so the order of the steps is part of the format.
pub fn classes(facts: &Path) -> Result<Vec<u8>> {
    let dir = facts.join("classes");
    let methods = methods_of_classes(&facts.join("methods"))?;
    let mut file = File::default();
    let constants = constants_of_classes(&dir, &mut file)?;
    let mut all = classes_with_tables(listed(&dir)?, methods, constants, &mut file)?;
    relate_heirs(&dir, &mut all)?;
    let rows = rows(&all, &mut file)?;
    file.table("classes", &rows)?;
    file.bytes()
}

/// Each class's constants, of `constants.tsv`.
fn constants_of_classes(dir: &Path, file: &mut File) -> Result<BTreeMap<u32, Vec<Row>>> {
    let mut constants: BTreeMap<u32, Vec<Row>> = BTreeMap::new();
    for line in tsv::read(&dir.join("constants.tsv"))? {
        let list = constants.entry(hex(line.get("class")?)?).or_default();
        list.push(row![
            file.text(line.get("name")?)?,
            hex(line.get("value_hex")?)?
        ]);
    }
    Ok(constants)
}

/// The classes of `index.tsv`, and the one that all Falcon video classes share, in order.
fn listed(dir: &Path) -> Result<Vec<Listed>> {
    let mut listed = vec![(FALCON_COMMON, "FALCON_COMMON".into(), "ofa".into())];
    for line in tsv::read(&dir.join("index.tsv"))? {
        // A header can have two names for a class number (a message id beside the class): the first is the class's.
        let name = line.get("name")?.split('|').next().unwrap_or_default();
        let number = hex(line.get("class")?)?;
        listed.push((number, name.to_owned(), line.get("family")?.to_owned()));
    }
    listed.sort();
    Ok(listed)
}

/// The listed classes with their methods and constants; an error where some are of a class that is not listed.
fn classes_with_tables(
    listed: Vec<Listed>,
    mut methods: BTreeMap<u32, Vec<Rc<Method>>>,
    mut constants: BTreeMap<u32, Vec<Row>>,
    file: &mut File,
) -> Result<BTreeMap<u32, Class>> {
    let mut all = BTreeMap::new();
    for (number, name, family) in listed {
        let mut ids = Vec::new();
        for own in methods.remove(&number).unwrap_or_default() {
            let id = method(&own, file).with_context(|| format!("class {number:04x}"))?;
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
        methods.is_empty(),
        "methods of classes that index.tsv does not list: {:x?}",
        methods.keys()
    );
    Ok(all)
}

/// Gives each class of `inherits.tsv` its parent and its relation to it. One without a table of its own is added.
fn relate_heirs(dir: &Path, all: &mut BTreeMap<u32, Class>) -> Result<()> {
    for line in tsv::read(&dir.join("inherits.tsv"))? {
        let number = hex(line.get("class")?)?;
        let name = line.get("name")?;
        let parent = class_number(line.get("parent")?)?;
        let family = family_of_heir(name, all.get(&parent))?
            .with_context(|| format!("parent {parent:x} of {number:x} has no table"))?;
        let class = all.entry(number).or_insert_with(|| Class {
            name: name.to_owned(),
            family,
            ..Class::default()
        });
        class.relation = position(&RELATIONS, line.get("relation")?)?;
        class.confidence = position(&CONFIDENCES, line.get("confidence")?)?;
        class.parent = parent;
    }
    Ok(())
}

/// The family of a class that inherits: its parent's, but for the OFA's own; none without a parent.
fn family_of_heir(name: &str, parent: Option<&Class>) -> Result<Option<u8>> {
    if name.contains("OFA") {
        return position(&FAMILIES, "ofa").map(Some);
    }
    Ok(parent.map(|class| class.family))
}

/// The rows of the table, in the order of the classes' numbers.
fn rows(all: &BTreeMap<u32, Class>, file: &mut File) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (number, class) in all {
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
    Ok(rows)
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
