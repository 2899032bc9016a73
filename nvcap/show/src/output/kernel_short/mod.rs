//! Short names of kernels that keep what tells them apart: `reduce<Mean>`, `vectorized_elementwise<addcdiv>`, `cutlass sgemm 64x64 nn`.
//!
//! A demangled name gives several forms, from the shortest to one with more of its template arguments. Of the kernels of a trace each gets the
//! shortest form that no other one has (`Taken`). `rules` has the tables.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parse::{Part, parts};

mod parse;
mod rules;
#[cfg(test)]
mod tests;

/// The most columns of a name that is made shorter. An identifier without arguments is kept, however long.
const MOST_COLUMNS: usize = 60;
/// The most columns of the name of a program's own template that is shown with all its arguments.
const MOST_OF_OWN: usize = 28;
/// The most template arguments of such a name.
const MOST_ARGS_OF_OWN: usize = 4;
/// The deepest nesting of template arguments that is looked into.
const MOST_DEPTH: usize = 16;
/// The most names that are told apart; further kernels are shown with their full names.
const MOST_TAKEN: usize = 1 << 17;
/// The most bytes of these names.
const MOST_BYTES: usize = 16 << 20;
const ANONYMOUS: &str = "(anonymous namespace)";

/// Short names that are in use.
#[derive(Debug, Default)]
pub(super) struct Taken {
    all: HashSet<Arc<str>>,
    /// The short name of each kernel, by a hash of its full name.
    given: HashMap<u64, Arc<str>>,
    /// The next number of each form that several kernels have.
    next: HashMap<String, usize>,
    /// Bytes of all these names.
    bytes: usize,
    hashes: RandomState,
    /// Number of names that were looked for in `all`.
    #[cfg(test)]
    looked: usize,
}

impl Taken {
    /// The short name of a kernel: the first of its `forms` that no other kernel has, or else one with a number.
    pub(super) fn name(&mut self, full: &str, forms: &[String]) -> String {
        let hash = self.hashes.hash_one(full);
        if let Some(given) = self.given.get(&hash) {
            return given.to_string();
        }
        if self.given.len() >= MOST_TAKEN || self.bytes >= MOST_BYTES {
            return full.to_owned();
        }
        if let Some(form) = forms.iter().find(|form| self.is_free(form)) {
            return self.take(form, hash);
        }
        // The second one has the type of its numbers.
        let form = forms.get(1).or(forms.first()).map_or(full, String::as_str);
        let mut n = self.next.get(form).copied().unwrap_or(2);
        let mut numbered = format!("{form}#{n}");
        // Other kernels may be called so themselves: each of these names is passed once.
        while !self.is_free(&numbered) {
            n += 1;
            numbered = format!("{form}#{n}");
        }
        if let Some(next) = self.next.get_mut(form) {
            *next = n + 1;
        } else {
            self.bytes += form.len();
            self.next.insert(form.to_owned(), n + 1);
        }
        self.take(&numbered, hash)
    }

    fn is_free(&mut self, name: &str) -> bool {
        #[cfg(test)]
        {
            self.looked += 1;
        }
        !self.all.contains(name)
    }

    fn take(&mut self, name: &str, hash: u64) -> String {
        let shared = Arc::<str>::from(name);
        self.bytes += name.len();
        self.given.insert(hash, shared.clone());
        self.all.insert(shared);
        name.to_owned()
    }
}

/// The forms of a demangled name, the shortest first; each further one has more in it.
pub(super) fn forms(full: &str) -> Vec<String> {
    let is_cpp = full.contains(['<', '(', ' ']) || full.contains("::");
    let all = match is_cpp {
        true => of_cpp(full, 0),
        false => of_words(full)
            .into_iter()
            .chain([full.to_owned()])
            .collect(),
    };
    let mut fit: Vec<String> = Vec::new();
    for form in &all {
        // An identifier is kept, however long it is.
        let fits = form.chars().count() <= MOST_COLUMNS || !form.contains(['<', ' ']);
        if fits && !form.is_empty() && !fit.contains(form) {
            fit.push(form.clone());
        }
    }
    if fit.is_empty() {
        fit.push(
            all.first()
                .map_or_else(|| full.to_owned(), |form| cut(form)),
        );
    }
    fit
}

/// Cuts the middle out of a form that is too long.
fn cut(form: &str) -> String {
    const END: usize = 16;
    let count = form.chars().count();
    if count <= MOST_COLUMNS {
        return form.to_owned();
    }
    let begin = form.chars().take(MOST_COLUMNS - END - 2);
    let end = form.chars().skip(count - END);
    begin.chain("..".chars()).chain(end).collect()
}

/// The forms of a C++ name.
fn of_cpp(full: &str, depth: usize) -> Vec<String> {
    let parts = parts(full);
    let Some((kernel, before)) = parts.split_last() else {
        return Vec::new();
    };
    if let [first, ..] = kernel.args.as_slice()
        && depth < MOST_DEPTH
        && is_one_of(kernel.name, rules::CARRIERS)
        && !is_number(first)
    {
        let mut forms = of_cpp(first, depth + 1);
        if forms.is_empty() {
            forms.push(kernel.name.to_owned());
        }
        forms.push(simple(full));
        return forms;
    }
    if kernel.args.is_empty()
        && let Some(short) = of_words(kernel.name)
    {
        return vec![short, kernel.name.to_owned()];
    }
    let named: Vec<&Part<'_>> = before.iter().filter(|p| p.name != ANONYMOUS).collect();
    let library = named.first().and_then(|first| {
        let fits = |(name, _): &&(&str, &str)| fits(first.name, name);
        rules::LIBRARIES.iter().find(fits)
    });
    let in_function = before.iter().any(|p| p.function);
    let head = match library {
        Some((_, called)) if !in_function => {
            let name = inner(tidy(kernel.name, &[]));
            match called.is_empty() {
                true => name,
                false => format!("{called}::{name}"),
            }
        }
        _ => {
            let names = named.iter().copied().chain([kernel]);
            let names: Vec<_> = names.map(|p| plain(p.name)).collect();
            names.join("::")
        }
    };
    let with = |all: &[String]| match all.is_empty() {
        true => head.clone(),
        false => format!("{head}<{}>", all.join(",")),
    };
    let mut meant: Vec<String> = Vec::new();
    for meaning in kernel.args.iter().filter_map(|arg| meaning(arg, 0)) {
        if meant.len() < 2 && !meant.contains(&meaning) {
            meant.push(meaning);
        }
    }
    let text: String = kernel.args.join(", ");
    let (types, lambdas) = (types(&text), lambdas(&text));
    let first = types.get(..types.len().min(1)).unwrap_or_default();
    let own: Vec<String> = kernel.args.iter().copied().filter_map(number).collect();
    let inner = numbers(&text);
    let more = |lists: [&[String]; 3]| {
        let lists = lists.into_iter().flatten();
        let all: Vec<String> = meant.iter().chain(lists).cloned().collect();
        with(&all)
    };
    // A program's own kernel with few arguments has them at once: its name does not depend on what came before it.
    let is_own = library.is_none() && !in_function && kernel.args.len() <= MOST_ARGS_OF_OWN;
    let all = is_own.then(|| {
        kernel
            .args
            .iter()
            .map(|arg| argument(arg))
            .collect::<Vec<_>>()
    });
    let all = all.map(|all| with(&all));
    let mut forms = Vec::from_iter(all.filter(|all| all.chars().count() <= MOST_OF_OWN));
    forms.extend([
        with(&meant),
        more([first, &[], &[]]),
        more([&types, &[], &[]]),
        more([first, &[], &lambdas]),
        more([first, &own, &[]]),
        more([first, &inner, &[]]),
        more([&types, &own, &lambdas]),
        more([&types, &inner, &lambdas]),
        simple(full),
    ]);
    forms
}

/// Returns the name of what an argument of a kernel does; `None` where the argument tells nothing.
fn meaning(arg: &str, depth: usize) -> Option<String> {
    let arg = unqualified(arg);
    let nothing = arg.is_empty() || is_type_of_number(arg) || is_number(arg) || is_pointer(arg);
    if depth > MOST_DEPTH || nothing {
        return None;
    }
    if let Some(function) = arg.strip_prefix("&(") {
        return meaning(function.strip_suffix(')').unwrap_or(function), depth + 1);
    }
    let arg = arg.strip_prefix('&').unwrap_or(arg);
    let parts = parts(arg);
    let last = parts.len().checked_sub(1)?;
    let mut before = "";
    for (i, part) in parts.iter().enumerate() {
        if part.name == ANONYMOUS || part.name.starts_with('{') || part.name.starts_with("operator")
        {
            continue;
        }
        let next = parts.get(i + 1).map_or("", |next| next.name);
        let is_namespace = !part.function && part.args.is_empty();
        if i < last && is_namespace && !next.starts_with("operator") {
            before = part.name;
            continue;
        }
        if is_one_of(part.name, rules::WRAPPERS) {
            if let Some(meaning) = part.args.iter().find_map(|arg| meaning(arg, depth + 1)) {
                return Some(meaning);
            }
            if i < last {
                continue;
            }
            return Some(tidy(part.name, rules::OPERATIONS).to_owned());
        }
        if is_one_of(part.name, rules::MEANINGLESS) {
            return None;
        }
        if is_one_of(part.name, rules::NAMELESS) && !before.is_empty() {
            return Some(tidy(before, &[]).to_owned());
        }
        if part.args.is_empty()
            && i == last
            && let Some(short) = of_words(part.name)
        {
            return Some(short);
        }
        return Some(tidy(part.name, rules::OPERATIONS).to_owned());
    }
    None
}

/// A name that is made of words, without those that say little.
fn of_words(name: &str) -> Option<String> {
    let is = |w: &&rules::Words| match w.first {
        true => name.starts_with(w.with),
        false => name.contains(w.with),
    };
    let rule = rules::WORDS.iter().find(is)?;
    let mut tiles = 0;
    let mut words: Vec<&str> = name
        .split('_')
        .filter(|word| {
            if is_one_of(word, rule.without) {
                return false;
            }
            let tile = word
                .split_once('x')
                .is_some_and(|(a, b)| is_digits(a) && is_digits(b));
            tiles += usize::from(tile);
            !(tile && rule.one_tile && tiles > 1)
        })
        .map(|word| word.strip_prefix(rule.bare).unwrap_or(word))
        .collect();
    // Types of operands are named one after the other.
    words.dedup();
    let joined = words.join(&rule.between.to_string());
    Some(format!("{}{joined}", rule.called))
}

/// Returns a name without the words at its ends that every kernel of a library has.
fn tidy<'a>(name: &'a str, also: &[&str]) -> &'a str {
    let mut name = name;
    for prefix in rules::PREFIXES {
        name = name
            .strip_prefix(prefix)
            .filter(|n| !n.is_empty())
            .unwrap_or(name);
    }
    loop {
        let suffixes = rules::SUFFIXES.iter().chain(also);
        let mut shorter = suffixes.filter_map(|suffix| name.strip_suffix(suffix));
        match shorter.find(|n| n.chars().any(char::is_alphanumeric)) {
            Some(shorter) => name = shorter,
            None => return name.trim_end_matches('_'),
        }
    }
}

/// Returns a kernel's name without words in the middle that say nothing.
fn inner(name: &str) -> String {
    let mut name = name.to_owned();
    for word in rules::INNER {
        name = name.replace(word, "_");
    }
    name
}

/// The name of a part, without the tags of an ABI; of a lambda without its parameters.
fn plain(name: &str) -> String {
    let name = name.split("[abi:").next().unwrap_or(name);
    let (open, close) = (name.split_once('('), name.rsplit_once(')'));
    match (name.strip_prefix('{'), open, close) {
        (Some(_), Some((before, _)), Some((_, behind))) => format!("{before}{behind}"),
        _ => name.to_owned(),
    }
}

/// The whole name without return type, parameters, and the namespaces and blanks in it.
fn simple(full: &str) -> String {
    let parts = parts(full);
    let Some(kernel) = parts.last() else {
        return String::new();
    };
    let mut args = kernel.args.join(",");
    for (long, short) in rules::NUMBERS {
        if long.contains(':') || long.contains(' ') {
            args = args.replace(long, short);
        }
    }
    // Words with `::` behind them are namespaces or classes.
    let mut out = String::with_capacity(args.len());
    let args = args
        .replace(ANONYMOUS, "")
        .replace(", ", ",")
        .replace(" >", ">");
    let mut rest = args.as_str();
    while let Some(at) = rest.find("::") {
        let (before, behind) = rest.split_at(at);
        let word = before.rfind(|c: char| !c.is_alphanumeric() && c != '_');
        out.push_str(before.get(..word.map_or(0, |w| w + 1)).unwrap_or_default());
        rest = behind.get(2..).unwrap_or_default();
    }
    out.push_str(rest);
    let name = plain(kernel.name);
    match out.is_empty() {
        true => name,
        false => format!("{name}<{out}>"),
    }
}

/// The types of numbers in a text, each once, in the order in which they stand there, four at most.
fn types(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut at = 0;
    let mut in_word = false;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if !in_word
            && let Some((long, short)) = rules::NUMBERS.iter().find(|(long, _)| begins(rest, long))
        {
            if !all.iter().any(|one| one == short) {
                all.push((*short).to_owned());
            }
            at += long.len();
            if all.len() >= 4 {
                break;
            }
            in_word = false;
            continue;
        }
        let c = rest.chars().next().unwrap_or(' ');
        in_word = c.is_alphanumeric() || c == '_' || c == ':';
        at += c.len_utf8();
    }
    all
}

/// Tells whether a text begins with a whole word.
fn begins(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|rest| {
        !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

/// The numbers of the lambdas in a text, one behind the other: `#1.7.2`.
fn lambdas(text: &str) -> Vec<String> {
    let mut numbers: Vec<&str> = Vec::new();
    for piece in text.split("}").filter_map(|piece| piece.rsplit_once('#')) {
        if is_digits(piece.1) && numbers.len() < 6 {
            numbers.push(piece.1);
        }
    }
    match numbers.is_empty() {
        true => Vec::new(),
        false => vec![format!("#{}", numbers.join("."))],
    }
}

/// A type without `const`, `*` and `&` at its end.
fn unqualified(kind: &str) -> &str {
    let mut kind = kind.trim();
    loop {
        let less = kind.trim_end_matches(['*', '&']).trim_end();
        let less = less.strip_suffix(" const").unwrap_or(less);
        let less = less.strip_suffix(" volatile").unwrap_or(less);
        if less.len() == kind.len() {
            return kind;
        }
        kind = less;
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// A template argument that is a number, a truth value (0 or 1) or a cast of a number; without the letters of its type.
fn number(arg: &str) -> Option<String> {
    match arg {
        "true" => return Some("1".to_owned()),
        "false" => return Some("0".to_owned()),
        _ => {}
    }
    let cast = arg
        .strip_prefix('(')
        .filter(|_| !arg.starts_with(ANONYMOUS));
    let arg = cast
        .and_then(|cast| cast.rsplit_once(')'))
        .map_or(arg, |(_, n)| n);
    let digits = arg.trim_end_matches(['u', 'l']);
    is_digits(digits.strip_prefix('-').unwrap_or(digits)).then(|| digits.to_owned())
}

/// A template argument: a number, or a type without its namespaces.
fn argument(arg: &str) -> String {
    number(arg).unwrap_or_else(|| simple(arg))
}

fn is_number(arg: &str) -> bool {
    number(arg).is_some()
}

/// The numbers and truth values in a text, eight at most.
fn numbers(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '#' | '-'));
    words.filter_map(number).take(8).collect()
}

/// Tells whether a type is a pointer to a function.
fn is_pointer(kind: &str) -> bool {
    kind.split_once("(*)")
        .is_some_and(|(before, _)| before.matches('<').count() == before.matches('>').count())
}

fn is_type_of_number(kind: &str) -> bool {
    kind == "void" || rules::NUMBERS.iter().any(|(long, _)| *long == kind)
}

fn is_one_of(name: &str, all: &[&str]) -> bool {
    all.iter().any(|pattern| fits(name, pattern))
}

/// Tells whether a name fits a pattern of the tables: `*` at an end stands for anything, `#` at the end for digits.
fn fits(name: &str, pattern: &str) -> bool {
    if let Some(begin) = pattern.strip_suffix('#') {
        return name.strip_prefix(begin).is_some_and(is_digits);
    }
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => name.contains(rest.trim_end_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(begin)) => name.starts_with(begin),
        (None, None) => name == pattern,
    }
}
