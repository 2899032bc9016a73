//! Names of kernels as people write them: the compiler's mangled names (C++, Rust) with their signatures, and a short form.
//!
//! A name comes from the traced program and may be anything: what is no mangled name, or is too long, or has too much in
//! it, stays as it is.

use std::fmt;

use cpp_demangle::{BorrowedSymbol, DemangleNodeType, DemangleOptions, DemangleWrite};

/// A longer name is shown as it is. Those of PyTorch and CUTLASS reach some thousand bytes.
const MOST_MANGLED: usize = 16 << 10;
/// The most bytes that are made of a name: substitutions can double it again and again.
const MOST_TEXT: usize = 256 << 10;
/// The most pieces that are made of a name.
const MOST_PIECES: usize = 256 << 10;
const ANONYMOUS: &str = "(anonymous namespace)";

/// The name with its template arguments, parameters and, for templates, return type:
/// `void scale<float>(float*, int)`. The name itself where it is not mangled.
#[must_use]
pub fn demangled(name: &str) -> String {
    let (of_file, mangled) = without_file(name);
    if let Some(text) = rust(mangled) {
        return format!("{text:#}");
    }
    let options = DemangleOptions::new();
    let text = if of_file {
        // The namespace goes before the name, so the return type must go.
        text_of(mangled, &options.no_return_type(), false)
            .map(|text| format!("{ANONYMOUS}::{text}"))
    } else {
        text_of(mangled, &options, false)
    };
    match text {
        Some(text) => without_internal(text),
        None if of_file => format!("{ANONYMOUS}::{mangled}"),
        None => name.to_owned(),
    }
}

/// The name alone, without template arguments, parameters and return type: `at::native::elementwise_kernel`. The name itself
/// where it is not mangled.
#[must_use]
pub fn short(name: &str) -> String {
    let (of_file, mangled) = without_file(name);
    let text = match rust(mangled) {
        Some(text) => Some(format!("{text:#}")),
        None => {
            let options = DemangleOptions::new().no_params().no_return_type();
            text_of(mangled, &options, true).map(|text| without_parameters(&text))
        }
    };
    let text = match text {
        Some(text) => without_internal(text),
        None if of_file => mangled.to_owned(),
        None => return name.to_owned(),
    };
    if of_file {
        return format!("{ANONYMOUS}::{text}");
    }
    text
}

/// The types of the parameters, as the mangled name has them; none where it has none (`extern "C"`, variables) or cannot be read.
#[must_use]
pub fn parameters(name: &str) -> Option<Vec<String>> {
    let (_, mangled) = without_file(name);
    if rust(mangled).is_some() {
        return None;
    }
    let options = DemangleOptions::new().no_return_type();
    let whole = text_of(mangled, &options, false)?;
    let head = text_of(mangled, &options.no_params(), false)?;
    let list = whole.strip_prefix(&head)?.strip_prefix('(')?;
    let list = list.get(..list.rfind(')')?)?;
    if list == "void" || list.is_empty() {
        return Some(Vec::new());
    }
    let mut types = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'(' | b'<' | b'[' | b'{' => depth += 1,
            b')' | b'>' | b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                types.push(list.get(start..at)?.trim().to_owned());
                start = at + 1;
            }
            _ => {}
        }
    }
    types.push(list.get(start..)?.trim().to_owned());
    Some(types)
}

/// A Rust name: `_R...`, or the older form, which ends with a hash.
fn rust(name: &str) -> Option<rustc_demangle::Demangle<'_>> {
    if name.len() > MOST_MANGLED {
        return None;
    }
    let older = || {
        let hash = name.strip_prefix("_ZN")?.strip_suffix('E')?;
        let hash = hash
            .get(hash.len().checked_sub(19)?..)?
            .strip_prefix("17h")?;
        hash.bytes().all(|b| b.is_ascii_hexdigit()).then_some(())
    };
    if !name.starts_with("_R") && older().is_none() {
        return None;
    }
    rustc_demangle::try_demangle(name).ok()
}

/// Without the prefix that nvcc gives what is static in a file: `__nv_static_`, a length, and so many bytes for the file.
/// True where there was one.
fn without_file(name: &str) -> (bool, &str) {
    let rest = || {
        let (len, rest) = name.strip_prefix("__nv_static_")?.split_once('_')?;
        let rest = rest.get(len.parse::<usize>().ok()?..)?;
        rest.strip_prefix('_').filter(|rest| !rest.is_empty())
    };
    rest().map_or((false, name), |rest| (true, rest))
}

/// `_INTERNAL_` and a file with its hash, which nvcc also uses for an anonymous namespace, made readable.
fn without_internal(text: String) -> String {
    const MARK: &str = "_INTERNAL_";
    if !text.contains(MARK) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(MARK) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let end = from.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (word, behind) = from.split_at(end.unwrap_or(from.len()));
        let begins = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let of_file = word.contains("_cu_") || word.contains("_cpp1_ii_");
        out.push_str(if begins && of_file { ANONYMOUS } else { word });
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Removes what is in parentheses but for anonymous namespaces and `operator()`, and what stands behind parameters.
fn without_parameters(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('(') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let kept = [ANONYMOUS, "()"]
            .into_iter()
            .find(|kept| from.starts_with(kept))
            .filter(|kept| *kept == ANONYMOUS || out.ends_with("operator"));
        if let Some(kept) = kept {
            out.push_str(kept);
            rest = from.get(kept.len()..).unwrap_or_default();
            continue;
        }
        let mut depth = 0;
        let end = from.bytes().position(|b| {
            match b {
                b'(' => depth += 1,
                b')' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        rest = end.and_then(|end| from.get(end + 1..)).unwrap_or_default();
        for behind in [" const", " volatile", "&&", "&"] {
            rest = rest.strip_prefix(behind).unwrap_or(rest);
        }
    }
    out.push_str(rest);
    out
}

/// A C++ name; none where it is none, or is too long. What follows a name (`$12` of a clone) is kept.
fn text_of(name: &str, options: &DemangleOptions, short: bool) -> Option<String> {
    // Device functions that are called have names that begin with a `$`.
    let name = name.strip_prefix('$').unwrap_or(name);
    if !name.starts_with("_Z") || name.len() > MOST_MANGLED {
        return None;
    }
    let (symbol, tail) = BorrowedSymbol::with_tail(name.as_bytes()).ok()?;
    if !tail.is_empty() && !matches!(tail.first(), Some(b'$' | b'.' | b'@')) {
        return None;
    }
    let mut text = Text {
        out: String::new(),
        pieces: 0,
        short,
        nodes: Vec::new(),
        within: 0,
        closing: false,
    };
    symbol.structured_demangle(&mut text, options).ok()?;
    if !short {
        text.out.push_str(&String::from_utf8_lossy(tail));
    }
    Some(text.out).filter(|text| !text.is_empty())
}

/// A name that is being written, up to a length; without template arguments if it is to be short.
struct Text {
    out: String,
    pieces: usize,
    short: bool,
    /// Whether each node that was entered is a list of template arguments.
    nodes: Vec<bool>,
    /// Lists of template arguments around.
    within: usize,
    /// A list has just ended; its `>` follows.
    closing: bool,
}

impl DemangleWrite for Text {
    fn push_demangle_node(&mut self, kind: DemangleNodeType) {
        let arguments = self.short && kind == DemangleNodeType::TemplateArgs;
        self.nodes.push(arguments);
        if arguments {
            if self.within == 0 && self.out.ends_with('<') {
                self.out.pop();
            }
            self.within += 1;
        }
    }

    fn write_string(&mut self, piece: &str) -> fmt::Result {
        self.pieces += 1;
        if self.pieces > MOST_PIECES || self.out.len() + piece.len() > MOST_TEXT {
            return Err(fmt::Error);
        }
        if self.within > 0 {
            return Ok(());
        }
        let piece = if std::mem::take(&mut self.closing) {
            piece.strip_prefix('>').unwrap_or(piece)
        } else {
            piece
        };
        // The tags of an inline namespace or a library's ABI are no part of the name.
        let tag = self.short && piece.starts_with("[abi:");
        if !tag {
            self.out.push_str(piece);
        }
        Ok(())
    }

    fn pop_demangle_node(&mut self) {
        if self.nodes.pop() == Some(true) {
            self.within = self.within.saturating_sub(1);
            self.closing = self.within == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zz_corpus() {
        let Ok(all) = std::fs::read("/tmp/h15/names.txt") else {
            return;
        };
        let mut out = String::new();
        let start = std::time::Instant::now();
        for n in String::from_utf8_lossy(&all).lines() {
            out += &format!("{n}\t{}\t{}\t{:?}\n", demangled(n), short(n), parameters(n));
        }
        eprintln!("{:?}", start.elapsed());
        std::fs::write("/tmp/h15/demangled.txt", out).unwrap();
    }
}
