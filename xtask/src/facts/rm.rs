//! `rm.bin`: names, structure layouts and chip classes of RM's and UVM's interface, from `facts/rm`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context as _, Result, bail};

use super::{
    tables::{Cell, File, Row, row},
    tsv::{self, Line},
};

/// A driver release.
type Release = (u16, u16, u16);

fn release(text: &str) -> Result<Release> {
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

/// The first and the last release that have a line.
fn range(line: &Line) -> Result<[Release; 2]> {
    // A name without a release tag (from NVIDIA/open-gpu-doc only) holds for every version.
    Ok(match line.get("first_tag")? {
        "open-gpu-doc" => [(0, 0, 0), (u16::MAX, 0, 0)],
        first => [release(first)?, release(line.get("last_tag")?)?],
    })
}

/// The file, and the releases that its rows name.
#[derive(Default)]
struct Facts {
    file: File,
    releases: BTreeMap<Release, u8>,
}

impl Facts {
    /// The cell of a release: its row among the releases.
    fn release(&self, release: Release) -> Result<Cell> {
        let row = self.releases.get(&release);
        Ok((*row.context("a release that was not gathered")?).into())
    }

    /// The tables whose rows name the releases in which they hold.
    fn ranged(&mut self, tables: &[(&'static str, Vec<Line>, &str, &[&str])]) -> Result<()> {
        for (name, lines, key, texts) in tables {
            let mut rows = Vec::new();
            for line in lines {
                let key = line.number(key)?;
                let mut row: Row = row![key];
                for column in *texts {
                    // "NAME (layout not listed)" names a structure that the headers do not have.
                    let text = line.get(column)?.split(" (").next().unwrap_or_default();
                    row.push(self.file.text(text)?);
                }
                for end in range(line)? {
                    row.push(self.release(end)?);
                }
                rows.push((key, row));
            }
            self.file.table(name, &by_key(rows))?;
        }
        Ok(())
    }
}

/// Rows sorted by key; rows with equal keys keep their order.
fn by_key<K: Ord>(mut rows: Vec<(K, Row)>) -> Vec<Row> {
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows.into_iter().map(|(_, row)| row).collect()
}

/// `rm.bin`.
pub fn rm(folder: &Path) -> Result<Vec<u8>> {
    let read = |name: &str| tsv::read(&folder.join(name));
    let named = ["name", "params_struct"];
    let ranged: [(_, _, _, &[&str]); 4] = [
        ("controls", read("controls.tsv")?, "cmd_hex", &named),
        (
            "allocations",
            read("alloc_params.tsv")?,
            "class_hex",
            &named[1..],
        ),
        ("escapes", read("escapes.tsv")?, "nr_hex", &named),
        ("uvm", read("uvm.tsv")?, "nr_hex", &named),
    ];
    let structures = read("params.tsv")?;
    let mut facts = Facts::default();
    for line in ranged.iter().flat_map(|t| &t.1).chain(&structures) {
        facts
            .releases
            .extend(range(line)?.map(|release| (release, 0)));
    }
    let mut rows = Vec::new();
    for (n, (release, row)) in facts.releases.iter_mut().enumerate() {
        *row = u8::try_from(n).context("more than 256 releases")?;
        rows.push(row![release.0, release.1, release.2]);
    }
    facts.file.table("releases", &rows)?;
    facts.ranged(&ranged)?;
    layouts(&mut facts, &structures)?;
    classes(&mut facts.file, &read("classes.tsv")?, &ranged[1].1)?;

    let mut rows = Vec::new();
    for line in read("status.tsv")? {
        let code = line.number("code_hex")?;
        rows.push((code, row![code, facts.file.text(line.get("name")?)?]));
    }
    facts.file.table("status", &by_key(rows))?;

    let mut rows = Vec::new();
    for line in read("chip_classes.tsv")? {
        let (chip, class) = (line.get("chip")?.to_owned(), line.number("class_hex")?);
        let engines = line.get("engines")?.to_owned();
        let row = row![facts.file.text(&chip)?, class, facts.file.text(&engines)?];
        rows.push(((chip, class, engines), row));
    }
    facts.file.table("chips", &by_key(rows))?;
    facts.file.bytes()
}

/// Every class number with its names; the name in RM's own list of resources comes first.
fn classes(file: &mut File, classes: &[Line], allocations: &[Line]) -> Result<()> {
    let mut preferred = BTreeMap::new();
    for line in allocations {
        preferred.insert(line.number("class_hex")?, line.get("name")?);
    }
    let (mut rows, mut seen) = (Vec::new(), BTreeSet::new());
    for (lines, order) in [(classes, 1), (allocations, 2)] {
        for line in lines {
            let class = line.number("class_hex")?;
            let name = line.get("name")?;
            if !seen.insert((class, name)) {
                continue;
            }
            let first = preferred.get(&class).is_some_and(|p| *p == name);
            let rank = if first { 0 } else { order };
            rows.push(((class, rank), row![class, file.text(name)?]));
        }
    }
    file.table("classes", &by_key(rows))
}

/// Structure layouts, one for each (structure, size, first tag), by name, with their fields in the order of the table.
fn layouts(facts: &mut Facts, lines: &[Line]) -> Result<()> {
    let mut layouts: BTreeMap<(&str, [Release; 2], u32), Vec<&Line>> = BTreeMap::new();
    for line in lines {
        let key = (
            line.get("struct")?,
            range(line)?,
            line.number("total_size")?,
        );
        layouts.entry(key).or_default().push(line);
    }
    let mut rows = Vec::new();
    for ((name, [first, last], size), lines) in layouts {
        let mut fields = Vec::new();
        for line in &lines {
            let name = line.get("field")?;
            // A field that is a structure, and whose fields are listed one by one, is redundant.
            let inside = format!("{name}.");
            let mut others = lines.iter().map(|other| other.get("field"));
            if others.any(|other| other.is_ok_and(|o| o.starts_with(&inside))) {
                continue;
            }
            fields.push(row![
                line.number("offset")?,
                line.number("size")?,
                facts.file.text(name)?,
                facts.file.text(line.get("type")?)?,
            ]);
        }
        let row = row![
            facts.file.text(name)?,
            size,
            facts.file.run("fields", &fields)?,
            facts.release(first)?,
            facts.release(last)?,
        ];
        rows.push(row);
    }
    facts.file.table("layouts", &rows)
}
