//! The documents' links lead somewhere, and the index names every page. A test, and nothing else.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::paths;

/// The targets of a Markdown text's links to files, without their fragments.
fn links(text: &str) -> Vec<&str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|link| !link.contains("://") && !link.starts_with('#') && !link.contains(' '))
        .filter_map(|link| link.split('#').next())
        .collect()
}

fn pages(dir: &Path) -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.sort();
    pages
}

#[test]
fn links_are_read_from_markdown() {
    assert_eq!(
        links("see [a](docs/a.md#x), [b](https://b/) and [c](#c), x](y z)"),
        ["docs/a.md"]
    );
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let root = paths::root();
    let mut seen = 0;
    for page in pages(&root).into_iter().chain(pages(&root.join("docs"))) {
        let text = fs::read_to_string(&page).expect("a page is text");
        for link in links(&text) {
            let target = page.parent().expect("a page is in a folder").join(link);
            assert!(
                target.exists(),
                "{}: the link {link} leads nowhere",
                page.display()
            );
            seen += 1;
        }
    }
    assert!(seen > 0, "no link was found at all");
}

#[test]
fn the_index_names_every_page() {
    let docs = paths::root().join("docs");
    let index = fs::read_to_string(docs.join("README.md")).expect("docs/README.md is the index");
    let named = links(&index);
    for page in pages(&docs) {
        let name = page
            .file_name()
            .expect("a page has a name")
            .to_string_lossy()
            .into_owned();
        assert!(
            name == "README.md" || named.contains(&name.as_str()),
            "docs/README.md does not link {name}"
        );
    }
}
