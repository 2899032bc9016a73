//! The one formatter of the text output: it owns the columns, the indentation and the colours. What is shown
//! (operations, methods, losses) only appends to it.

use std::fmt::{self, Write as _};

/// When colour is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set to something or `TERM` is `dumb`.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// Whether to colour an output that is or is not a terminal.
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

/// What a piece of text is, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// What matters less: times, driver-internal launches, raw words.
    Dim,
    /// The word that says which operation.
    Operation,
    /// A name: a method, a field.
    Name,
    /// An address.
    Address,
    /// Something is missing or wrong.
    Alarm,
    /// All is well.
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
pub struct Formatter<'a> {
    out: &'a mut Vec<u8>,
    color: bool,
    /// All of the current line is of this role.
    line_role: Option<Role>,
}

impl fmt::Write for Formatter<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.out.extend_from_slice(s.as_bytes());
        Ok(())
    }
}

impl<'a> Formatter<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>, color: bool) -> Self {
        Self {
            out,
            color,
            line_role: None,
        }
    }

    /// Begins a line with its prefix (the columns that every line has), `depth` steps indented after it.
    pub fn line(&mut self, prefix: &str, depth: usize, role: Option<Role>) {
        self.line_role = role;
        if self.color {
            self.out
                .extend_from_slice(role.unwrap_or(Role::Dim).code().as_bytes());
        }
        self.out.extend_from_slice(prefix.as_bytes());
        if self.color && role.is_none() {
            self.out.extend_from_slice(RESET.as_bytes());
        }
        for _ in 0..depth {
            self.out.extend_from_slice(b"  ");
        }
    }

    /// Appends text of the line's own colour.
    pub fn text(&mut self, args: fmt::Arguments<'_>) {
        // Writing to a vector does not fail.
        let _ = self.write_fmt(args);
    }

    /// Appends text of a role. In a line that has a role of its own, that stays.
    pub fn role(&mut self, role: Role, args: fmt::Arguments<'_>) {
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
    pub fn end(&mut self) {
        if self.color && self.line_role.is_some() {
            self.out.extend_from_slice(RESET.as_bytes());
        }
        self.line_role = None;
        self.out.push(b'\n');
    }
}

/// Text that came from outside (a command name), with control characters made harmless to a terminal.
pub struct Plain<'a>(pub &'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.chars().any(char::is_control) {
            let clean: String = self
                .0
                .chars()
                .map(|c| if c.is_control() { '?' } else { c })
                .collect();
            f.pad(&clean)
        } else {
            f.pad(self.0)
        }
    }
}
