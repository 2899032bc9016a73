//! Reads demangled names: their parts, template arguments and lists.

/// One part of a qualified name: `name<args>(parameters)`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    /// Its identifier; of a lambda its braces, with what is in them.
    pub name: &'a str,
    /// Its template arguments.
    pub args: Vec<&'a str>,
    /// True if the part has parameters: it is a function, and what follows lies within it.
    pub function: bool,
}

/// The most arguments of a list that are read.
const MOST_ARGS: usize = 64;
/// The most parts of a name that are read.
const MOST_PARTS: usize = 64;

/// Operators whose signs are not brackets, longer ones first.
const OPERATORS: &[&str] = &[
    "<<=", ">>=", "<=>", "->*", "()", "[]", "<<", ">>", "<=", ">=", "->", "<", ">",
];

/// Walks over a text and knows what lies in brackets.
struct Walk<'a> {
    text: &'a str,
    at: usize,
    open: Vec<u8>,
}

impl<'a> Walk<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            open: Vec::new(),
        }
    }
}

impl Iterator for Walk<'_> {
    /// The place of a byte outside of all brackets, the byte, and the place behind what it opens.
    type Item = (usize, u8, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.text.as_bytes();
        let mut began = None;
        while let Some(&byte) = bytes.get(self.at) {
            let at = self.at;
            self.at += 1;
            let rest = bytes.get(at..).unwrap_or_default();
            if rest.starts_with(b"operator") {
                self.at = at + 8;
                let behind = bytes.get(self.at..).unwrap_or_default();
                let sign = OPERATORS
                    .iter()
                    .find(|sign| behind.starts_with(sign.as_bytes()));
                self.at += sign.map_or(0, |sign| sign.len());
                if self.open.is_empty() {
                    return Some((at, byte, self.at));
                }
                continue;
            }
            match byte {
                b'<' | b'(' | b'{' | b'[' => {
                    if self.open.is_empty() {
                        began = Some((at, byte));
                    }
                    self.open.push(byte);
                }
                b'>' if at > 0 && bytes.get(at - 1) == Some(&b'-') => {}
                b'>' => {
                    let _ = self.open.pop_if(|open| *open == b'<');
                }
                b')' | b'}' | b']' => {
                    let opens = match byte {
                        b')' => b'(',
                        b'}' => b'{',
                        _ => b'[',
                    };
                    // A `<` that was a comparison is not closed.
                    if let Some(from) = self.open.iter().rposition(|b| *b == opens) {
                        self.open.truncate(from);
                    }
                }
                _ if self.open.is_empty() => return Some((at, byte, at + 1)),
                _ => {}
            }
            if let Some((at, byte)) = began
                && self.open.is_empty()
            {
                return Some((at, byte, self.at));
            }
        }
        // A bracket that is not closed reaches to the end.
        let (at, byte) = began?;
        self.open.clear();
        Some((at, byte, bytes.len()))
    }
}

/// The members of a list, divided by commas.
pub(super) fn list(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut from = 0;
    for (at, byte, _) in Walk::new(text) {
        if byte == b',' {
            all.push(text.get(from..at).unwrap_or_default().trim());
            from = at + 1;
            if all.len() >= MOST_ARGS {
                return all;
            }
        }
    }
    all.push(text.get(from..).unwrap_or_default().trim());
    all.retain(|one| !one.is_empty());
    all
}

/// The part that is being read.
#[derive(Default)]
struct Reading<'a> {
    /// Its place, and the place behind its identifier.
    from: usize,
    end: Option<usize>,
    args: Vec<&'a str>,
    function: bool,
}

impl<'a> Reading<'a> {
    /// Begins a part at a place.
    fn at(from: usize) -> Self {
        Self {
            from,
            ..Self::default()
        }
    }

    /// Ends the part at a place, and adds it to others.
    fn end(self, text: &'a str, at: usize, all: &mut Vec<Part<'a>>) {
        let name = text.get(self.from..self.end.unwrap_or(at));
        let name = name.unwrap_or_default().trim();
        if !name.is_empty() && all.len() < MOST_PARTS {
            all.push(Part {
                name,
                args: self.args,
                function: self.function,
            });
        }
    }
}

/// The parts of a function's name or a type, without a return type before them and without the parameters behind them.
pub(super) fn parts(text: &str) -> Vec<Part<'_>> {
    let mut all = Vec::new();
    let mut part = Reading::default();
    // A colon was read, the first of two.
    let mut colon = false;
    for (at, byte, behind) in Walk::new(text) {
        let rest = text.get(at..).unwrap_or_default();
        let second = std::mem::take(&mut colon);
        match byte {
            b':' if second => part.from = at + 1,
            b':' => {
                std::mem::take(&mut part).end(text, at, &mut all);
                colon = true;
            }
            b'<' => {
                part.end.get_or_insert(at);
                part.args = list(text.get(at + 1..behind - 1).unwrap_or_default());
            }
            b'(' if rest.starts_with("(anonymous namespace)") => {}
            b'(' => {
                part.end.get_or_insert(at);
                let tail = text.get(behind..).unwrap_or_default();
                if !tail
                    .strip_prefix(" const")
                    .unwrap_or(tail)
                    .starts_with("::")
                {
                    break;
                }
                part.function = true;
            }
            b' ' if rest.starts_with(" const::") || rest.starts_with(" <") => {
                part.end.get_or_insert(at);
            }
            // What was read is a return type.
            b' ' => {
                all.clear();
                part = Reading::at(at + 1);
            }
            _ => {}
        }
    }
    part.end(text, text.len(), &mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&str> {
        parts(text).into_iter().map(|p| p.name).collect()
    }

    #[test]
    fn parts_of_names() {
        assert_eq!(names("vadd"), ["vadd"]);
        assert_eq!(
            names("void (anonymous namespace)::scale<float>(float*, int)"),
            ["(anonymous namespace)", "scale"]
        );
        assert_eq!(
            names("main::{lambda(float*)#1}::operator()(float*) const"),
            ["main", "{lambda(float*)#1}", "operator()"]
        );
        assert_eq!(names("A& A::operator<< <int>(int)"), ["A", "operator<<"]);
        assert_eq!(names("bool A::operator><float>(float)"), ["A", "operator>"]);
        assert_eq!(
            names("n::f(int, a<b>)::{lambda()#1}::operator()() const::{lambda(float)#2}"),
            ["n", "f", "{lambda()#1}", "operator()", "{lambda(float)#2}"]
        );
        assert!(parts("n::f(int)::{lambda()#1}")[1].function);
        assert_eq!(
            parts("void k<4, a::b<float, 2>, (t)2>(int)")[0].args,
            ["4", "a::b<float, 2>", "(t)2"]
        );
    }

    #[test]
    fn broken_names() {
        for text in [
            "", "<", ">", "a<b(c", "a>b)c", "::", "a::", "operator", "((((", "a b c<d>",
        ] {
            let _ = (parts(text), list(text));
        }
        assert_eq!(list("a<b,c>,d"), ["a<b,c>", "d"]);
        assert_eq!(list("(1 > 2), x"), ["(1 > 2)", "x"]);
    }
}
