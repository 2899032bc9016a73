//! The formatter of all text output. It owns indentation, colours and the width of lines; the code for operations, methods
//! and losses appends its words to it.

use std::fmt::{self, Write as _};

/// Condition on which colour is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set to something or `TERM` is `dumb`.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Not at all.
    Never,
}

impl Color {
    /// Tells whether to colour an output that is or is not a terminal.
    #[must_use]
    pub fn enabled(self, terminal: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                let set = |name| std::env::var_os(name).filter(|v| !v.is_empty());
                terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|t| t != "dumb")
            }
        }
    }
}

/// Role of a piece of text, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Less important text: times, the driver's own launches, raw words.
    Dim,
    /// The word that names the operation.
    Operation,
    /// A name: a method, a field.
    Name,
    /// An address.
    Address,
    /// Text on something that is missing or wrong.
    Alarm,
    /// Text that says that all is well.
    Good,
}

impl Role {
    fn code(self) -> &'static str {
        match self {
            Self::Dim => "\x1b[2m",
            Self::Operation => "\x1b[1m",
            Self::Name => "\x1b[36m",
            Self::Address => "\x1b[33m",
            Self::Alarm => "\x1b[1;31m",
            Self::Good => "\x1b[32m",
        }
    }
}

const RESET: &str = "\x1b[0m";

/// Writes lines with prefix, indentation and colour into a byte buffer.
pub(crate) struct Formatter<'a> {
    out: &'a mut Vec<u8>,
    color: bool,
    /// Role of all of the current line, if it has one.
    line_role: Option<Role>,
    /// Number of columns that lines are cut to.
    width: Option<usize>,
    /// True if names of kernels are shown with template arguments and parameters.
    full_names: bool,
    /// Offset in `out` at which the current line begins.
    begin: usize,
}

impl fmt::Write for Formatter<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.push(s);
        Ok(())
    }
}

impl<'a> Formatter<'a> {
    /// Appends to `out`.
    pub(crate) fn new(out: &'a mut Vec<u8>, color: bool) -> Self {
        Self {
            out,
            color,
            line_role: None,
            width: None,
            full_names: false,
            begin: 0,
        }
    }

    /// Cuts each line to `width` columns, where there is such a limit.
    pub(crate) fn fitted(self, width: Option<usize>) -> Self {
        Self { width, ..self }
    }

    /// Shows names of kernels with template arguments and parameters.
    pub(crate) fn full_names(self, full_names: bool) -> Self {
        Self { full_names, ..self }
    }

    /// Tells whether names of kernels are shown with template arguments and parameters.
    pub(crate) fn has_full_names(&self) -> bool {
        self.full_names
    }

    /// Returns the number of columns that are left on the current line; `None` if lines are not cut.
    pub(crate) fn room(&self) -> Option<usize> {
        let shown = String::from_utf8_lossy(&self.out[self.begin..]);
        self.width
            .map(|width| width.saturating_sub(columns(&shown)))
    }

    /// Appends text, and makes characters harmless that a terminal would act on: all that is shown passes here, names from
    /// outside too.
    fn push(&mut self, text: &str) {
        // Nearly all text is ASCII: this loop has no branch for each byte.
        let odd = |any, b: u8| any | !matches!(b, b' '..=b'~');
        if !text.bytes().fold(false, odd) || !text.chars().any(is_acted_on) {
            self.out.extend_from_slice(text.as_bytes());
            return;
        }
        let harmless = text.chars().map(harmless);
        self.out
            .extend_from_slice(harmless.collect::<String>().as_bytes());
    }

    /// Begins a line with its prefix (the columns that every line has), `depth` steps indented after it.
    pub(crate) fn line(&mut self, prefix: &str, depth: usize, role: Option<Role>) {
        self.line_role = role;
        self.begin = self.out.len();
        if self.color {
            self.out
                .extend_from_slice(role.unwrap_or(Role::Dim).code().as_bytes());
        }
        self.push(prefix);
        if self.color && role.is_none() {
            self.out.extend_from_slice(RESET.as_bytes());
        }
        for _ in 0..depth {
            self.out.extend_from_slice(b"  ");
        }
    }

    /// Appends text of the line's own colour.
    pub(crate) fn text(&mut self, args: fmt::Arguments<'_>) {
        // Writing to a vector does not fail.
        let _ = self.write_fmt(args);
    }

    /// Appends text of a role. In a line that has a role of its own, that role stays.
    pub(crate) fn role(&mut self, role: Role, args: fmt::Arguments<'_>) {
        let paint = self.color && self.line_role.is_none();
        if paint {
            self.out.extend_from_slice(role.code().as_bytes());
        }
        let _ = self.write_fmt(args);
        if paint {
            self.out.extend_from_slice(RESET.as_bytes());
        }
    }

    /// Ends the line.
    pub(crate) fn end(&mut self) {
        if let Some(width) = self.width {
            self.cut(width);
        }
        if self.color && self.line_role.is_some() {
            self.out.extend_from_slice(RESET.as_bytes());
        }
        self.line_role = None;
        self.out.push(b'\n');
    }
}

/// Iterates over the characters of a line: the byte offset of each, and the number of columns that it takes. Sequences that colour take none. From
/// U+1100 on two are assumed: that is right for Chinese, Japanese and Korean, and too many for some others.
fn pieces(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let mut colour = false;
    text.char_indices().map(move |(at, c)| {
        let columns = match c {
            '\x1b' => {
                colour = true;
                0
            }
            'm' if colour => {
                colour = false;
                0
            }
            _ if colour => 0,
            '\u{1100}'.. => 2,
            _ => 1,
        };
        (at, columns)
    })
}

/// Returns the number of columns that a line takes.
fn columns(text: &str) -> usize {
    pieces(text).map(|(_, columns)| columns).sum()
}

impl Formatter<'_> {
    /// Cuts the current line where it has more than `width` columns, with dots in the place of the rest.
    fn cut(&mut self, width: usize) {
        const DOTS: &str = "...";
        // A byte is a column at most.
        if self.out.len() - self.begin <= width {
            return;
        }
        let line = String::from_utf8_lossy(&self.out[self.begin..]);
        let (mut taken, mut keep) = (0, None);
        for (at, columns) in pieces(&line) {
            taken += columns;
            if keep.is_none() && taken > width.saturating_sub(DOTS.len()) {
                keep = Some(at);
            }
        }
        let Some(keep) = keep.filter(|_| taken > width) else {
            return;
        };
        let kept = line[..keep].to_owned();
        self.out.truncate(self.begin);
        self.out.extend_from_slice(kept.as_bytes());
        if self.color {
            self.out.extend_from_slice(RESET.as_bytes());
        }
        self.out.extend_from_slice(DOTS.as_bytes());
    }
}

/// Tells whether a terminal or an editor would act on this character instead of showing it: control characters, line and
/// paragraph separators, changes of the writing direction, joiners, invisible characters.
pub(super) fn is_acted_on(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn harmless(c: char) -> char {
    if is_acted_on(c) { '?' } else { c }
}

/// Makes several lines with names from outside harmless; line ends stay.
#[must_use]
pub fn plain_lines(text: &str) -> String {
    let plain = |c| if c == '\n' { c } else { harmless(c) };
    text.chars().map(plain).collect()
}

/// Makes a line with names from outside harmless, and cuts it to `width` columns, with dots in the place of the rest.
#[must_use]
pub fn plain_line(line: &str, width: Option<usize>) -> String {
    let mut out = Vec::new();
    let mut formatter = Formatter::new(&mut out, false).fitted(width);
    formatter.line(line, 0, None);
    formatter.end();
    out.pop();
    String::from_utf8_lossy(&out).into_owned()
}

/// Text from outside, such as a command name, shown with the characters made harmless that a terminal would act on.
pub struct Plain<'a>(pub &'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.chars().any(is_acted_on) {
            let clean: String = self.0.chars().map(harmless).collect();
            f.pad(&clean)
        } else {
            f.pad(self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_to_its_columns_and_colours_take_none() {
        let long = "abcdefghij".repeat(5);
        for color in [false, true] {
            for (text, width, shown) in [
                (long.as_str(), 50, long.as_str()),
                (&long, 49, &format!("{}...", &long[..46])),
                // A wide character is not cut in two.
                (
                    "\u{6f22}\u{5b57}\u{6f22}\u{5b57}",
                    8,
                    "\u{6f22}\u{5b57}\u{6f22}\u{5b57}",
                ),
                ("\u{6f22}\u{5b57}\u{6f22}\u{5b57}", 7, "\u{6f22}\u{5b57}..."),
                ("\u{6f22}\u{5b57}\u{6f22}\u{5b57}", 6, "\u{6f22}..."),
            ] {
                let mut out = Vec::new();
                let mut f = Formatter::new(&mut out, color).fitted(Some(width));
                f.line("", 0, None);
                f.role(Role::Name, format_args!("{text}"));
                assert_eq!(f.room(), Some(width.saturating_sub(columns(text))));
                f.end();
                let line = String::from_utf8(out).unwrap();
                assert_eq!(columns(line.trim_end()), columns(shown), "{line:?}");
                if color {
                    assert!(line.contains(RESET), "{line:?}");
                } else {
                    assert_eq!(line, format!("{shown}\n"));
                }
            }
        }
    }

    #[test]
    fn whatever_a_line_is_made_of_it_stays_one_line_and_moves_nothing() {
        let evil = "a\u{1b}[2J\nb\u{9b}1m\u{202e}c\u{2028}d\r\u{e4}";
        let mut out = Vec::new();
        let mut f = Formatter::new(&mut out, false);
        f.line(evil, 1, None);
        f.text(format_args!("{evil}"));
        f.role(Role::Name, format_args!("{evil}"));
        f.end();
        let shown = String::from_utf8(out).unwrap();
        let plain = "a?[2J?b?1m?c?d?\u{e4}";
        assert_eq!(shown, format!("{plain}  {plain}{plain}\n"));
        assert_eq!(plain_lines("a\u{1b}\nb\r\n"), "a?\nb?\n");
    }
}
