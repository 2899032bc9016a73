//! The built-in class and QMD tables against the facts they were built from (`facts/`). The TSV files are read here by
//! other code than `cargo xtask facts` has.

use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::common::files::facts;
use nvcap_decode::decode::{
    Names,
    classes::{self, Class},
    explain, qmd,
};

/// Rows of a TSV file without its header.
fn rows(path: &PathBuf) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).expect("readable");
    text.lines()
        .skip(1)
        .map(|l| l.split('\t').map(str::to_owned).collect())
        .collect()
}

fn hex(text: &str) -> u32 {
    u32::from_str_radix(text.trim_start_matches("0x"), 16).expect("hex")
}

/// A row of a class: method, address, array count, array stride, field, high, low, values.
type Row = [String; 8];

/// The rows of every class. A table names a method's classes once, and leaves out what a field has of its method.
fn rows_of_classes() -> BTreeMap<String, Vec<Row>> {
    let mut of: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for entry in fs::read_dir(facts("methods")).expect("readable") {
        let (mut classes, mut method) = (Vec::new(), Row::default());
        for cells in rows(&entry.expect("readable").path()) {
            let cell = |i: usize| cells.get(i).cloned().unwrap_or_default();
            let row = if cell(0).is_empty() {
                let [name, address, ..] = method.clone();
                let none = String::new;
                [
                    name,
                    address,
                    none(),
                    none(),
                    cell(5),
                    cell(6),
                    cell(7),
                    cell(8),
                ]
            } else {
                classes = cell(0).split(',').map(str::to_owned).collect();
                method = std::array::from_fn(|i| cell(i + 1));
                method.clone()
            };
            for class in &classes {
                of.entry(class.clone()).or_default().push(row.clone());
            }
        }
    }
    of
}

/// Pseudo-random numbers, the same in every run.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// `NAME=0xvalue;...` as the facts write it.
fn enumeration(names: Names) -> String {
    names
        .iter()
        .map(|(name, value)| format!("{name}={value:#x}"))
        .collect::<Vec<_>>()
        .join(";")
}

#[test]
fn every_class_has_the_methods_and_fields_of_the_facts() {
    let index = facts("classes/index.tsv");
    let mut classes = 0;
    let (mut methods, mut fields, mut values) = (0, 0, 0);
    for row in rows(&index) {
        let class = classes::class(hex(&row[0])).unwrap_or_else(|| panic!("{} is missing", row[0]));
        assert_eq!(class.name(), row[1].split('|').next().expect("a name"));
        assert_eq!(
            class.family().name(),
            if row[2] == "gpfifo" { "host" } else { &row[2] }
        );
        let own: usize = row[3].parse().expect("a number");
        assert_eq!(class.methods().count(), own, "methods of {class:?}");
        let own_fields: usize = class.methods().map(|m| m.fields().count()).sum();
        assert_eq!(
            own_fields,
            row[4].parse::<usize>().expect("a number"),
            "fields of {class:?}"
        );
        let own_values: usize = class
            .methods()
            .flat_map(|m| m.fields())
            .map(|f| f.names().len())
            .sum();
        assert_eq!(
            own_values,
            row[5].parse::<usize>().expect("a number"),
            "values of {class:?}"
        );
        classes += 1;
        methods += own;
        fields += own_fields;
        values += own_values;
    }
    assert_eq!(
        (classes, methods, fields, values),
        (76, 15_717, 24_556, 42_831)
    );
}

#[test]
fn two_hundred_random_rows_of_every_class() {
    let mut random = Lcg(0x5eed);
    let all = rows_of_classes();
    for row in rows(&facts("classes/index.tsv")) {
        let class = classes::class(hex(&row[0])).expect("there");
        let table = &all[&row[0]];
        // What is drawn below is of the class's own: as many methods as the index counts.
        let own = table.iter().filter(|r| r[4].is_empty()).count();
        assert_eq!(own.to_string(), row[3], "{class:?}");
        for _ in 0..200 {
            check(class, &table[random.below(table.len())]);
        }
    }
}

fn check(class: Class, row: &Row) {
    let cell = |i: usize| row[i].as_str();
    let address = hex(cell(1)) as u16;
    let methods: Vec<_> = class
        .methods()
        .filter(|m| m.name() == cell(0) && m.base() == address)
        .collect();
    assert_eq!(methods.len(), 1, "{class:?} {row:?}");
    let method = methods[0];
    // A lookup by address finds it, and prints it by its name.
    let found = class
        .method(address)
        .unwrap_or_else(|| panic!("{class:?} {row:?}"));
    assert_eq!(found.base(), address, "{class:?} {row:?}");
    if cell(4).is_empty() {
        match method.array() {
            None => assert_eq!((cell(2), cell(3)), ("", "")),
            Some(a) => {
                let two = |x: [u16; 2], one: bool| {
                    if one {
                        x[0].to_string()
                    } else {
                        format!("{},{}", x[0], x[1])
                    }
                };
                let one = !cell(3).contains(',');
                let bound = if a.bound { "<=" } else { "" };
                assert_eq!(
                    (format!("{bound}{}", two(a.count, one)), two(a.stride, one)),
                    (cell(2).to_owned(), cell(3).to_owned())
                );
            }
        }
        return;
    }
    // A method can have a field twice under one name (values split over ranges): the bits tell.
    let (high, low): (u8, u8) = (
        cell(5).parse().expect("a bit"),
        cell(6).parse().expect("a bit"),
    );
    let field = method
        .fields()
        .find(|f| f.name() == cell(4) && (f.high(), f.low()) == (high, low));
    let field = field.unwrap_or_else(|| panic!("{class:?} {row:?}"));
    assert_eq!(enumeration(field.names()), cell(7), "{class:?} {row:?}");
    let text = explain::method(class.number(), address, field.encode(1)).expect("explained");
    assert_eq!(text.stray, 0);
}

#[test]
fn every_inheritance_of_the_facts() {
    let path = facts("classes/inherits.tsv");
    let table = rows(&path);
    assert_eq!(table.len(), 44);
    for row in table {
        let class = classes::class(hex(&row[0])).unwrap_or_else(|| panic!("{row:?}"));
        let parent = class.parent().unwrap_or_else(|| panic!("{row:?}"));
        let number = if row[2] == "falcon_common" {
            classes::FALCON_COMMON
        } else {
            hex(&row[2])
        };
        assert_eq!(
            (parent.class, parent.relation, parent.confidence),
            (number, row[3].as_str(), row[4].as_str())
        );
        // Whatever the parent names and the class does not, is named through it.
        for method in classes::class(number)
            .expect("there")
            .methods()
            .filter(|m| m.base() < 0x4000)
        {
            assert!(
                class.method(method.base()).is_some(),
                "{class:?} {method:?}"
            );
        }
    }
}

#[test]
fn every_qmd_field_of_the_facts() {
    let dir = facts("qmd");
    let (mut versions, mut count, mut values) = (0, 0, 0);
    for entry in fs::read_dir(dir).expect("readable") {
        let path = entry.expect("readable").path();
        if path.extension().is_none_or(|e| e != "tsv") {
            continue;
        }
        let stem = path.file_stem().and_then(|s| s.to_str()).expect("a name");
        let (major, minor) = stem.split_once('_').expect("MM_mm");
        let layout =
            qmd::layout((hex(major) as u8, hex(minor) as u8)).unwrap_or_else(|| panic!("{stem}"));
        let table = rows(&path);
        let fields: Vec<_> = layout.fields().collect();
        assert_eq!(fields.len(), table.len(), "{stem}");
        for (field, row) in fields.iter().zip(&table) {
            let cell = |i: usize| row.get(i).map_or("", |s| s.as_str());
            assert_eq!(field.name(), cell(0));
            assert_eq!(
                (field.high().to_string(), field.low().to_string()),
                (cell(1).to_owned(), cell(2).to_owned())
            );
            assert_eq!(field.is_array(), !cell(4).is_empty(), "{stem} {row:?}");
            assert_eq!(field.bound(), cell(3).starts_with("<="));
            assert_eq!(enumeration(field.names()), cell(5));
            let classes: Vec<String> = field.classes().map(|c| format!("{c:04x}")).collect();
            assert_eq!(classes.join(","), cell(6));
            values += field.names().len();
        }
        versions += 1;
        count += table.len();
    }
    assert_eq!((versions, count, values), (13, 1_673, 1_308));
}

#[test]
fn constants_of_the_facts() {
    let path = facts("classes/constants.tsv");
    for row in rows(&path) {
        let class = classes::class(hex(&row[0])).expect("there");
        let found = class
            .constants()
            .iter()
            .any(|(name, value)| name == row[1] && value == hex(&row[2]));
        assert!(found, "{class:?} {row:?}");
    }
}

#[test]
fn the_tables_name_every_method_once() {
    // Without the facts: what is built in is whole.
    let classes: Vec<_> = classes::all().collect();
    assert_eq!(
        classes
            .iter()
            .filter(|c| c.methods().next().is_some())
            .count(),
        76 + 1,
        "and the Falcon common one"
    );
    assert_eq!(
        classes.iter().map(|c| c.methods().count()).sum::<usize>(),
        15_717 + 8
    );
}
