//! `cargo xtask api`: the public interfaces of the crates that others link, as lists (`nvcap/decode/api.txt`), from the pages that rustdoc makes.
//!
//! `all.html` names every public item; the page of an item names its fields, variants and methods. Methods of traits
//! (`Debug`, `Clone`, those that every type has) are left out, and so are items hidden from the documentation.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::{build, paths};

const HEAD: &str = "\
# The public interface of the crate: `cargo xtask api` writes this file, and the gate compares it.
# A line is a path below the crate and what it names.
";

/// The crates with such a list.
const LISTED: [&str; 2] = ["nvcap-decode", "nvcap-recording"];

/// The committed list of a crate.
fn list_of(name: &str) -> PathBuf {
    let folder = build::crate_folder(name);
    paths::root().join(folder).join("api.txt")
}

/// Writes the list; with `check`, compares it with the committed one instead.
pub fn run(check: bool) -> Result<()> {
    document()?;
    if check {
        return compare(&paths::target());
    }
    for name in LISTED {
        let file = list_of(name);
        let items = listing(&pages(&paths::target(), name))?;
        fs::write(&file, HEAD.to_owned() + &lines(&items))
            .with_context(|| file.display().to_string())?;
        println!("api: wrote that of {name} ({} lines)", items.len());
    }
    Ok(())
}

/// The folder of rustdoc's pages of a crate.
fn pages(target: &Path, name: &str) -> PathBuf {
    target.join("doc").join(name.replace('-', "_"))
}

/// Lets rustdoc write the pages.
fn document() -> Result<()> {
    build::host_cargo()
        .args(["doc", "--no-deps", "--lib", "--locked"])
        .args(LISTED.iter().flat_map(|name| ["-p", name]))
        .run()
}

/// Compares the pages in a target folder with the committed lists.
pub fn compare(target: &Path) -> Result<()> {
    let mut news = String::new();
    for name in LISTED {
        let committed = fs::read_to_string(list_of(name)).unwrap_or_default();
        let is = listing(&pages(target, name))?;
        let was: BTreeSet<String> = committed
            .lines()
            .filter(|l| !l.starts_with('#'))
            .map(str::to_owned)
            .collect();
        let differ = differences(&was, &is);
        if !differ.is_empty() {
            news += &format!("{name}:\n{differ}");
        }
    }
    ensure!(
        news.is_empty(),
        "the interface is not what api.txt says; where the change is meant, type `cargo xtask api` and commit the file:\n{news}"
    );
    println!("api: the interfaces are what api.txt says");
    Ok(())
}

/// Added (`+`) and removed (`-`) lines, one line each.
fn differences(was: &BTreeSet<String>, is: &BTreeSet<String>) -> String {
    let came = is.difference(was).map(|l| format!("+ {l}\n"));
    let went = was.difference(is).map(|l| format!("- {l}\n"));
    came.chain(went).collect()
}

fn lines(items: &BTreeSet<String>) -> String {
    items.iter().map(|i| format!("{i}\n")).collect()
}

/// Every public path below `pages`, rustdoc's folder of the crate, with its kind.
fn listing(pages: &Path) -> Result<BTreeSet<String>> {
    let all = pages.join("all.html");
    let all = fs::read_to_string(&all).with_context(|| all.display().to_string())?;
    let mut found = BTreeSet::new();
    for (page, path) in items(&all) {
        let kind = page.rsplit('/').next().and_then(|f| f.split('.').next());
        let kind = kind.context("a page without a name")?;
        let kind = if kind == "type" { "type alias" } else { kind };
        found.insert(format!("{path} {kind}"));
        let text = fs::read_to_string(pages.join(page)).with_context(|| page.to_owned())?;
        for (part, kind) in parts(&text) {
            found.insert(format!("{path}::{part} {kind}"));
        }
    }
    ensure!(
        found.len() > 50,
        "rustdoc's all.html names {} items: its form is not understood",
        found.len()
    );
    Ok(found)
}

/// The items of `all.html`: the page of each and its path.
fn items(all: &str) -> impl Iterator<Item = (&str, &str)> {
    all.split("<li><a href=\"").skip(1).filter_map(|rest| {
        let (page, rest) = rest.split_once("\">")?;
        let (path, _) = rest.split_once("</a>")?;
        (page.ends_with(".html") && !page.starts_with("../")).then_some((page, path))
    })
}

/// The fields, variants, constants and methods of an item, from the anchors of its page.
fn parts(page: &str) -> BTreeSet<(String, &'static str)> {
    // Behind these headings are methods of traits, and implementors.
    let ends = [
        "trait-implementations",
        "synthetic-implementations",
        "blanket-implementations",
        "foreign-impls",
        "implementors",
    ];
    let end = ends
        .iter()
        .filter_map(|id| page.find(&format!("id=\"{id}\"")))
        .min();
    let own = page.get(..end.unwrap_or(page.len())).unwrap_or(page);
    own.split("id=\"")
        .skip(1)
        .filter_map(|rest| part(rest.split('"').next()?))
        .collect()
}

/// The item that an anchor such as `variant.Entries.field.count` stands for.
fn part(anchor: &str) -> Option<(String, &'static str)> {
    let words: Vec<&str> = anchor.split('.').collect();
    match words[..] {
        ["structfield", name] => Some((name.to_owned(), "field")),
        ["variant", name] => Some((name.to_owned(), "variant")),
        ["variant", of, "field", name] => Some((format!("{of}::{name}"), "field")),
        ["method", name] => Some((name.to_owned(), "method")),
        ["tymethod", name] => Some((name.to_owned(), "required method")),
        ["associatedconstant", name] => Some((name.to_owned(), "constant")),
        ["associatedtype", name] => Some((name.to_owned(), "type")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_and_their_parts_are_found() {
        let all = r##"<li><a href="#structs">Structs</a></li><li><a href="../help.html">Help</a></li>
            <ul><li><a href="record/enum.Lost.html">record::Lost</a></li><li><a href="fn.main.html">main</a></li></ul>"##;
        let found: Vec<_> = items(all).collect();
        assert_eq!(
            found,
            [
                ("record/enum.Lost.html", "record::Lost"),
                ("fn.main.html", "main")
            ]
        );
        let page = r#"<section id="variants"><section id="variant.Entries"><div id="variant.Entries.fields">
            <span id="variant.Entries.field.count"><section id="method.name"><h2 id="trait-implementations">
            <section id="method.fmt">"#;
        let found: Vec<_> = parts(page).into_iter().collect();
        let expected = [
            ("Entries", "variant"),
            ("Entries::count", "field"),
            ("name", "method"),
        ];
        assert_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)));
    }

    #[test]
    fn a_difference_is_told() {
        let list = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        let (was, is) = (list(&["a fn", "b fn"]), list(&["b fn", "c fn"]));
        assert_eq!(differences(&was, &is), "+ c fn\n- a fn\n");
        assert_eq!(differences(&is, &is), "");
    }
}
