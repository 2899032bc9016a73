//! Imports of each file of a crate, from the sources.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use syn::visit::{self, Visit};

type Error = Box<dyn std::error::Error>;

/// A module's path below the crate's root.
type Module = Vec<String>;

/// One crate's files and what they import.
pub struct Imports {
    files: BTreeMap<String, BTreeSet<String>>,
}

/// One file of a crate.
struct Source {
    /// Its path below the folder of the crate's first file.
    name: String,
    ast: syn::File,
    /// Names that its `pub use` bring, each with the path behind it.
    reexports: HashMap<String, Vec<String>>,
}

impl Imports {
    /// Reads a crate from its first file.
    pub fn of(first: &Path) -> Result<Imports, Error> {
        let folder = first.parent().ok_or("no folder")?;
        let mut sources = BTreeMap::new();
        read(first, folder, Vec::new(), &mut sources)?;
        let mut files = BTreeMap::new();
        for (module, source) in &sources {
            let mut finder = Finder {
                sources: &sources,
                module,
                names: HashMap::new(),
                inline: 0,
                found: BTreeSet::new(),
            };
            // Names first: what follows may use them.
            for item in &source.ast.items {
                if let syn::Item::Use(item) = item
                    && !is_test(&item.attrs)
                {
                    finder.names_of(item);
                }
            }
            finder.visit_file(&source.ast);
            let mut found = finder.found;
            found.remove(&source.name);
            files.insert(source.name.clone(), found);
        }
        Ok(Imports { files })
    }

    /// Each file with those that it imports.
    pub fn files(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.files
    }

    /// The groups of files in which each imports each other one, by whatever way.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            self.files.keys().map(|f| (f, self.reach(f))).collect();
        let mut circles = BTreeSet::new();
        for (file, others) in &reached {
            let circle: Vec<String> = others
                .iter()
                .filter(|o| reached[*o].contains(file))
                .map(|o| (*o).clone())
                .collect();
            if !circle.is_empty() {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    fn reach<'a>(&'a self, from: &str) -> BTreeSet<&'a String> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&String> = self.files[from].iter().collect();
        while let Some(file) = next.pop() {
            if reached.insert(file) {
                next.extend(&self.files[file]);
            }
        }
        reached
    }
}

/// Reads a file and the files of the modules that it declares.
fn read(
    path: &Path,
    folder: &Path,
    module: Module,
    to: &mut BTreeMap<Module, Source>,
) -> Result<(), Error> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let ast = syn::parse_file(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut reexports = HashMap::new();
    for item in &ast.items {
        match item {
            syn::Item::Mod(m) if m.content.is_none() && !is_test(&m.attrs) => {
                let name = m.ident.to_string();
                let below = if module.is_empty() || path.ends_with("mod.rs") {
                    path.with_file_name("")
                } else {
                    path.with_extension("")
                };
                let flat = below.join(&name).with_extension("rs");
                let deep = below.join(&name).join("mod.rs");
                let file = if flat.exists() { flat } else { deep };
                let mut child = module.clone();
                child.push(name);
                if let Some(elsewhere) = path_attribute(&m.attrs) {
                    read(&below.join(elsewhere), folder, child, to)?;
                } else {
                    read(&file, folder, child, to)?;
                }
            }
            syn::Item::Use(u) if !matches!(u.vis, syn::Visibility::Inherited) => {
                each_use(&u.tree, &mut Vec::new(), &mut |path, name| {
                    reexports.insert(name.to_owned(), path.to_vec());
                });
            }
            _ => {}
        }
    }
    let name = path.strip_prefix(folder)?.to_string_lossy().into_owned();
    to.insert(
        module,
        Source {
            name,
            ast,
            reexports,
        },
    );
    Ok(())
}

fn path_attribute(attrs: &[syn::Attribute]) -> Option<String> {
    attrs.iter().find_map(|a| match &a.meta {
        syn::Meta::NameValue(nv) if nv.path.is_ident("path") => match &nv.value {
            syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(s),
                ..
            }) => Some(s.value()),
            _ => None,
        },
        _ => None,
    })
}

/// `#[cfg(test)]`, alone or among others.
fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|a| match &a.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let words: Vec<String> = list
                .tokens
                .clone()
                .into_iter()
                .map(|t| t.to_string())
                .collect();
            words.first().is_some_and(|w| w == "test")
                || words.first().is_some_and(|w| w == "all")
                    && words.iter().any(|w| w.contains("test"))
        }
        _ => a.path().is_ident("test"),
    })
}

/// Calls `each` for every path of a `use` with the name that it gets.
fn each_use(tree: &syn::UseTree, at: &mut Vec<String>, each: &mut dyn FnMut(&[String], &str)) {
    match tree {
        syn::UseTree::Path(p) => {
            at.push(p.ident.to_string());
            each_use(&p.tree, at, each);
            at.pop();
        }
        syn::UseTree::Name(n) if n.ident == "self" => {
            let name = at.last().cloned().unwrap_or_default();
            each(at, &name);
        }
        syn::UseTree::Name(n) => {
            at.push(n.ident.to_string());
            each(at, &n.ident.to_string());
            at.pop();
        }
        syn::UseTree::Rename(r) => {
            if r.ident == "self" {
                each(at, &r.rename.to_string());
                return;
            }
            at.push(r.ident.to_string());
            each(at, &r.rename.to_string());
            at.pop();
        }
        syn::UseTree::Glob(_) => each(at, "*"),
        syn::UseTree::Group(g) => {
            for tree in &g.items {
                each_use(tree, at, each);
            }
        }
    }
}

/// Finds what one file imports.
struct Finder<'a> {
    sources: &'a BTreeMap<Module, Source>,
    module: &'a Module,
    /// Names that the file's own `use` bring, each with the path behind it.
    names: HashMap<String, Vec<String>>,
    /// Depth of the inline module that is being read: `super` leads out of that first.
    inline: usize,
    found: BTreeSet<String>,
}

impl Finder<'_> {
    fn names_of(&mut self, item: &syn::ItemUse) {
        each_use(&item.tree, &mut Vec::new(), &mut |path, name| {
            self.names.insert(name.to_owned(), path.to_vec());
        });
    }

    /// A path as it is written in the file.
    fn path(&mut self, words: &[String]) {
        let out = words.iter().take_while(|w| *w == "super").count();
        if (1..=self.inline).contains(&out) {
            return;
        }
        let words = if out > 0 {
            &words[self.inline..]
        } else {
            words
        };
        if let Some(file) = self.resolve(self.module, words, 0) {
            self.found.insert(file);
        }
    }

    /// The file in which what `words` names in `module` stands; none where that is no part of the crate, or a module.
    fn resolve(&self, module: &[String], words: &[String], depth: u32) -> Option<String> {
        let (first, mut rest) = words.split_first()?;
        let mut at: Module = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => {
                let mut up = module.to_vec();
                up.pop()?;
                while rest.first().is_some_and(|w| w == "super") {
                    rest = &rest[1..];
                    up.pop()?;
                }
                up
            }
            name if depth > 0 || self.is_child(module, name) => {
                rest = words;
                module.to_vec()
            }
            name => {
                // By a name of the file's own.
                let mut path = self.names.get(name)?.clone();
                if path.first().is_some_and(|w| w == name) {
                    // Of another crate, or a child, which was seen above.
                    return None;
                }
                path.extend(rest.iter().cloned());
                return self.resolve(module, &path, depth);
            }
        };
        while let Some((word, more)) = rest.split_first()
            && self.is_child(&at, word)
        {
            at.push(word.clone());
            rest = more;
        }
        let source = self.sources.get(&at)?;
        let item = rest.first()?;
        if depth < 8
            && let Some(path) = source.reexports.get(item)
        {
            // Found behind the re-export; what is of another crate is no import of this one's.
            let inner = match path.first().map(String::as_str) {
                Some("crate" | "self" | "super") => 1,
                Some(name) if self.is_child(&at, name) => 1,
                _ => return None,
            };
            return self.resolve(&at, path, depth + inner);
        }
        Some(source.name.clone())
    }

    fn is_child(&self, module: &[String], name: &str) -> bool {
        let mut child = module.to_vec();
        child.push(name.to_owned());
        self.sources.contains_key(&child)
    }

    /// The paths in a macro's arguments, as far as tokens show them.
    fn tokens(&mut self, tokens: proc_macro2::TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                proc_macro2::TokenTree::Ident(i) => {
                    if colons != 2 {
                        self.end_of_path(&mut path);
                    }
                    path.push(i.to_string());
                    colons = 0;
                }
                proc_macro2::TokenTree::Punct(p) if p.as_char() == ':' => colons += 1,
                other => {
                    self.end_of_path(&mut path);
                    colons = 0;
                    if let proc_macro2::TokenTree::Group(g) = other {
                        self.tokens(g.stream());
                    }
                }
            }
        }
        self.end_of_path(&mut path);
    }

    fn end_of_path(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.path(path);
        }
        path.clear();
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attrs: &[syn::Attribute] = match item {
            syn::Item::Mod(i) => &i.attrs,
            syn::Item::Use(i) => &i.attrs,
            syn::Item::Fn(i) => &i.attrs,
            syn::Item::Impl(i) => &i.attrs,
            syn::Item::Struct(i) => &i.attrs,
            syn::Item::Enum(i) => &i.attrs,
            syn::Item::Const(i) => &i.attrs,
            syn::Item::Static(i) => &i.attrs,
            syn::Item::Type(i) => &i.attrs,
            syn::Item::Trait(i) => &i.attrs,
            _ => &[],
        };
        if !is_test(attrs) {
            let inline = usize::from(matches!(item, syn::Item::Mod(m) if m.content.is_some()));
            self.inline += inline;
            visit::visit_item(self, item);
            self.inline -= inline;
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A re-export is no import.
        if matches!(item.vis, syn::Visibility::Inherited) {
            let mut paths = Vec::new();
            each_use(&item.tree, &mut Vec::new(), &mut |path, name| {
                let mut path = path.to_vec();
                if name == "*" {
                    path.push(name.to_owned());
                }
                paths.push(path);
            });
            for path in paths {
                self.path(&path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if words.len() > 1 && path.leading_colon.is_none() {
            self.path(&words);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.tokens(mac.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}
