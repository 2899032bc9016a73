//! Parser of expressions: makes a tree of an expression's text.
//!
//! ```text
//! expression := conjunction ( "||" conjunction )*
//! conjunction := term ( "&&" term )*
//! term := "!" term | "(" expression ")" | field | field operator value ( "," value )*
//! operator := "=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~"
//! value := number with an optional unit (`crate::output::units`) | word | "text" | 'text'
//! ```

use std::fmt;

use nvcap_decode::glob::like;

use super::expression::{Compare, Node, Wanted};
use super::fields::{Field, Kind};
use super::near::near;
use crate::output::units::{nanoseconds, number};

/// Deepest nesting of parentheses and negations: a bound of the stack that no user reaches.
const MAX_DEPTH: usize = 64;

/// Reason why an expression was not understood, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The expression.
    pub text: String,
    /// Column of the trouble, characters, from 1.
    pub column: usize,
    /// Error, and what is allowed there.
    pub message: String,
}

/// Number of characters of an expression that are shown with its error.
const SHOWN: usize = 400;

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "column {}: {}", self.column, self.message)?;
        // Of a long expression the part around the place.
        let before = self.column.saturating_sub(SHOWN / 2);
        let shown: String = self.text.chars().skip(before).take(SHOWN).collect();
        writeln!(f, "  {shown}")?;
        write!(f, "  {:>width$}", '^', width = self.column - before)
    }
}

impl std::error::Error for ParseError {}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

pub(super) fn parse(text: &str) -> Result<Node, ParseError> {
    let mut p = Parser {
        text,
        at: 0,
        depth: 0,
    };
    let node = p.expression()?;
    p.space();
    if p.at < text.len() {
        return Err(p.error(p.at, "expected && or || or the end".into()));
    }
    Ok(node)
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn error(&self, at: usize, message: String) -> ParseError {
        ParseError {
            text: self.text.to_owned(),
            column: self.text[..at].chars().count() + 1,
            message,
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        self.space();
        if self.rest().starts_with(token) {
            self.at += token.len();
            return true;
        }
        false
    }

    fn expression(&mut self) -> Result<Node, ParseError> {
        let mut nodes = vec![self.conjunction()?];
        while self.eat("||") {
            nodes.push(self.conjunction()?);
        }
        Ok(if nodes.len() == 1 {
            nodes.remove(0)
        } else {
            Node::Or(nodes)
        })
    }

    fn conjunction(&mut self) -> Result<Node, ParseError> {
        let mut nodes = vec![self.term()?];
        while self.eat("&&") {
            nodes.push(self.term()?);
        }
        Ok(if nodes.len() == 1 {
            nodes.remove(0)
        } else {
            Node::And(nodes)
        })
    }

    fn term(&mut self) -> Result<Node, ParseError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(self.at, format!("nested deeper than {MAX_DEPTH}")));
        }
        let node = if self.eat("!") {
            Node::Not(Box::new(self.term()?))
        } else if self.eat("(") {
            let open = self.at - 1;
            let node = self.expression()?;
            if !self.eat(")") {
                let column = self.text[..open].chars().count() + 1;
                return Err(self.error(
                    self.at,
                    format!("expected ) for the ( at column {column}, or && or ||"),
                ));
            }
            node
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn comparison(&mut self) -> Result<Node, ParseError> {
        self.space();
        let start = self.at;
        let len = self
            .rest()
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'))
            .unwrap_or(self.rest().len());
        let name = &self.text[start..start + len];
        if name.is_empty() {
            return Err(self.error(
                start,
                "expected a field (such as op, bytes, channel, method), ! or (".into(),
            ));
        }
        let Some(field) = Field::by_name(name) else {
            return Err(self.error(start, unknown_field(name)));
        };
        self.at += len;
        let Some(op) = self.operator() else {
            if matches!(
                field.kind(),
                Kind::Flag | Kind::Number | Kind::Time | Kind::Seconds
            ) && self.at_end_of_term()
            {
                return Ok(Node::Is(field));
            }
            return Err(self.error(
                self.at,
                format!("expected =, !=, <, <=, >, >=, ~ or !~ after {name}"),
            ));
        };
        let wanted = self.values(field, op)?;
        let text = self.text[start..self.at].trim_end().to_owned();
        Ok(Node::Compare {
            field,
            op,
            wanted,
            text,
        })
    }

    fn at_end_of_term(&mut self) -> bool {
        self.space();
        let rest = self.rest();
        rest.is_empty() || rest.starts_with(')') || rest.starts_with("&&") || rest.starts_with("||")
    }

    fn operator(&mut self) -> Option<Compare> {
        // Longer ones first.
        const OPERATORS: [(&str, Compare); 9] = [
            ("==", Compare::Equal),
            ("!=", Compare::NotEqual),
            ("!~", Compare::NotLike),
            ("<=", Compare::LessEqual),
            (">=", Compare::GreaterEqual),
            ("=", Compare::Equal),
            ("<", Compare::Less),
            (">", Compare::Greater),
            ("~", Compare::Like),
        ];
        OPERATORS
            .into_iter()
            .find(|(token, _)| self.eat(token))
            .map(|(_, op)| op)
    }

    /// Reads one value as text, with the place where it began. With `templates`, what is between `<` and the `>` that belongs to it is part of a
    /// word: `reduce<Mean>`.
    fn value(&mut self, templates: bool) -> Result<(usize, String), ParseError> {
        self.space();
        let start = self.at;
        let rest = self.rest();
        if let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
            let Some(len) = rest[1..].find(quote) else {
                return Err(self.error(start, format!("no closing {quote}")));
            };
            let text = rest[1..=len].to_owned();
            self.at += len + 2;
            return Ok((start, text));
        }
        let end = |text: &str| {
            text.find(|c: char| c.is_whitespace() || "()&|!=<>,".contains(c))
                .unwrap_or(text.len())
        };
        let mut len = end(rest);
        if len == 0 {
            return Err(self.error(start, "expected a value".into()));
        }
        while templates && let Some(list) = template(&rest[len..]) {
            len += list;
            len += end(&rest[len..]);
        }
        let text = rest[..len].to_owned();
        self.at += len;
        Ok((start, text))
    }

    fn values(&mut self, field: Field, op: Compare) -> Result<Wanted, ParseError> {
        let name = field.name();
        let templates = field.kind() == Kind::Text;
        let (start, first) = self.value(templates)?;
        if matches!(op, Compare::Like | Compare::NotLike) {
            // As grep has it: what has no sign of a pattern may stand anywhere.
            let pattern = match first.contains(['*', '?']) {
                true => first,
                false => format!("*{first}*"),
            };
            let fits = |word: &str| like(pattern.as_bytes(), word.as_bytes());
            let choices = field.choices();
            if op == Compare::Like && !choices.is_empty() && !choices.iter().any(|c| fits(c)) {
                return Err(self.error(start, no_choice(&pattern, field)));
            }
            return Ok(Wanted::Pattern(pattern));
        }
        let mut values = vec![(start, first)];
        while self.eat(",") {
            values.push(self.value(templates)?);
        }
        let ordered = !matches!(op, Compare::Equal | Compare::NotEqual);
        if ordered && values.len() > 1 {
            return Err(self.error(values[1].0, "a list goes with = and != only".into()));
        }
        let as_numbers = |p: &Self| -> Result<Vec<u64>, ParseError> {
            values
                .iter()
                .map(|(at, text)| {
                    let digits = without_prefix(text, field.prefix());
                    number(digits).ok_or_else(|| {
                        p.error(
                            *at,
                            format!(
                                "'{text}' is no number; {name} ({}) takes 0x numbers, and decimal ones with K, KiB, M, MiB, G, GiB (of 1024) or kB, MB, GB (of 1000)",
                                field.about()
                            ),
                        )
                    })
                })
                .collect()
        };
        match field.kind() {
            Kind::Time => values
                .iter()
                .map(|(at, text)| {
                    nanoseconds(text).ok_or_else(|| {
                        let message = format!(
                            "'{text}' is no time; {name} ({}) takes nanoseconds, or numbers with us, ms or s: 1.5ms",
                            field.about()
                        );
                        self.error(*at, message)
                    })
                })
                .collect::<Result<_, _>>()
                .map(Wanted::Numbers),
            Kind::Seconds => values
                .iter()
                .map(|(at, text)| {
                    seconds(text).ok_or_else(|| {
                        let message = format!(
                            "'{text}' is no time; {name} ({}) takes seconds, or numbers with ns, us, ms or s: 0.03, 30ms",
                            field.about()
                        );
                        self.error(*at, message)
                    })
                })
                .collect::<Result<_, _>>()
                .map(Wanted::Numbers),
            Kind::Number => as_numbers(self).map(Wanted::Numbers),
            Kind::Flag => {
                let (at, text) = &values[0];
                match text.as_str() {
                    "true" | "yes" | "1" => Ok(Wanted::Numbers(vec![1])),
                    "false" | "no" | "0" => Ok(Wanted::Numbers(vec![0])),
                    _ => Err(self.error(*at, format!("{name} is true or false"))),
                }
            }
            Kind::Named if ordered || values.iter().all(|(_, t)| number(t).is_some()) => {
                as_numbers(self).map(Wanted::Numbers)
            }
            Kind::Choice | Kind::Text | Kind::Named => {
                if ordered {
                    return Err(self.error(
                        start,
                        format!("{name} is a word: compare it with =, !=, ~ or !~"),
                    ));
                }
                let choices = field.choices();
                if let Some((at, text)) = values
                    .iter()
                    .find(|(_, t)| !choices.is_empty() && !choices.contains(&t.as_str()))
                {
                    return Err(self.error(*at, no_choice(text, field)));
                }
                let odd = |text: &str| field == Field::Engine && !is_engine(text);
                if let Some((at, text)) = values.iter().find(|(_, t)| odd(t)) {
                    let message = format!("'{text}' is no engine; allowed: {ENGINES}");
                    return Err(self.error(*at, message));
                }
                Ok(Wanted::Words(values.into_iter().map(|(_, t)| t).collect()))
            }
        }
    }
}

/// Makes the error for a word that is none of a field's choices.
fn no_choice(text: &str, field: Field) -> String {
    let (name, choices) = (field.name(), field.choices());
    let meant = near(text, choices.iter().copied());
    let meant = meant.map_or_else(String::new, |w| format!(" (did you mean {w}?)"));
    format!(
        "'{text}' is no {name}{meant}; allowed: {}",
        choices.join(", ")
    )
}

/// Returns a number without the letters that text shows before it: `2` of `ch2`.
fn without_prefix<'a>(text: &'a str, prefix: &str) -> &'a str {
    match text.split_at_checked(prefix.len()) {
        Some((letters, digits)) if letters.eq_ignore_ascii_case(prefix) => digits,
        _ => text,
    }
}

/// Reads a time in ns as [`nanoseconds`] does, of which a number without a unit is in seconds.
fn seconds(text: &str) -> Option<u64> {
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'_'));
    match plain {
        true => nanoseconds(&format!("{text}s")),
        false => nanoseconds(text).filter(|_| !text.starts_with('0') || !text.contains(['x', 'X'])),
    }
}

/// The words of engines, for people.
const ENGINES: &str = "gr (graphics, compute), ce (copy), ce0, ce1, ..., grce, nvdec, nvenc, nvjpg, ofa with or without a number, \
                       sec2, eng0x... and unknown";

/// Tells whether a word may be an engine's.
fn is_engine(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let kind = lower.trim_end_matches(|c: char| c.is_ascii_digit());
    matches!(
        lower.as_str(),
        "gr" | "gr0" | "grce" | "graphics" | "compute" | "copy" | "sec2" | "?" | "unknown"
    ) || matches!(kind, "ce" | "nvdec" | "nvenc" | "nvjpg" | "ofa")
        || lower.starts_with("eng0x")
}

/// The length of a list of template arguments at the beginning of a text.
fn template(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return (at > 0).then_some(at + 1);
        }
    }
    None
}

fn unknown_field(name: &str) -> String {
    let all: Vec<&str> = Field::all().map(Field::name).collect();
    // The field that shares the longest beginning with the unknown name, at least two letters.
    let close = all
        .iter()
        .map(|f| {
            let same = f
                .bytes()
                .zip(name.bytes())
                .take_while(|(a, b)| a == b)
                .count();
            (same, f)
        })
        .filter(|(same, _)| *same >= 2)
        .max_by_key(|(same, f)| (*same, usize::MAX - f.len()));
    let hint = close.map_or_else(String::new, |(_, f)| format!(" (did you mean {f}?)"));
    format!(
        "no field is called '{name}'{hint}; allowed: {}",
        all.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_point_at_the_column() {
        for (text, column, says) in [
            ("", 1, "expected a field"),
            ("op=lunch", 4, "allowed: launch, graph, copy"),
            ("op=launch &&", 13, "expected a field"),
            ("op=lunch", 4, "did you mean launch?"),
            ("op=filll", 4, "did you mean fill?"),
            ("op~zzz", 4, "is no op"),
            ("kind~zzz*", 6, "allowed: user"),
            ("engine=gpu", 8, "is no engine; allowed: gr"),
            ("channel=chx", 9, "is no number"),
            ("pid=ch2", 5, "is no number"),
            ("time>soon", 6, "takes seconds"),
            ("time>0x10", 6, "takes seconds"),
            ("time_ns>soon", 9, "takes nanoseconds"),
            ("bytes>big", 7, "is no number"),
            ("gpu_ns>1M", 8, "us, ms or s"),
            ("op=launch && queued_ns<soon", 24, "is no time"),
            ("(op=launch", 11, "expected ) for the ( at column 1"),
            ("op=launch x", 11, "expected && or ||"),
            ("grid.w>1", 1, "did you mean grid"),
            ("mode>linear", 6, "is a word"),
            ("thread='x", 8, "no closing '"),
            ("bytes>1,2", 9, "= and != only"),
            ("op", 3, "expected ="),
            ("é=1", 1, "expected a field"),
        ] {
            let e = parse(text).unwrap_err();
            assert_eq!(e.column, column, "{text}: {e}");
            assert!(e.message.contains(says), "{text}: {e}");
        }
    }

    #[test]
    fn what_text_shows_is_understood() {
        let numbers = |text: &str| match parse(text).unwrap_or_else(|e| panic!("{e}")) {
            Node::Compare {
                wanted: Wanted::Numbers(numbers),
                text: written,
                ..
            } => {
                assert_eq!(written, text);
                numbers
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(numbers("channel=ch2,3"), [2, 3]);
        assert_eq!(numbers("gpu=gpu1"), [1]);
        assert_eq!(numbers("time>0.03"), [30_000_000]);
        assert_eq!(numbers("time>30ms"), [30_000_000]);
        assert_eq!(numbers("time<=500us"), [500_000]);
        assert_eq!(numbers("time=2"), [2_000_000_000]);
        assert_eq!(numbers("time_ns>2"), [2]);
        for word in crate::output::filter::words::ALL {
            assert!(parse(&format!("op={word}")).is_ok(), "{word}");
        }
        for engine in [
            "gr", "gr0", "ce", "ce2", "copy", "grce", "NVDEC0", "ofa", "sec2", "eng0x1f", "?",
        ] {
            assert!(parse(&format!("engine={engine}")).is_ok(), "{engine}");
        }
    }

    /// A format's width is 65,535 at most: an error far behind that is shown with the part of the text around it.
    #[test]
    fn an_error_far_to_the_right_is_shown() {
        for before in [0, 1, 199, 200, 201, 65_535, 70_000] {
            let text = format!("{}op=lunch{}", " ".repeat(before), " ".repeat(before));
            let e = parse(&text).unwrap_err();
            assert_eq!(e.column, before + 4);
            let said = e.to_string();
            let [head, shown, mark] = said.lines().collect::<Vec<_>>()[..] else {
                panic!("three lines: {said}");
            };
            assert!(head.starts_with(&format!("column {}: ", before + 4)));
            assert!(shown.len() <= SHOWN + 2, "{before}: {shown}");
            assert_eq!(shown.find("lunch"), mark.find('^'), "{said}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_and_does_not_overflow() {
        let text = "(".repeat(100_000);
        assert!(parse(&text).unwrap_err().message.contains("deeper"));
        let text = "!".repeat(100_000);
        assert!(parse(&text).unwrap_err().message.contains("deeper"));
    }

    #[test]
    fn and_binds_tighter_than_or() {
        let Node::Or(nodes) = parse("op=copy || op=launch && pid=1").unwrap() else {
            panic!("an or");
        };
        assert!(matches!(nodes[1], Node::And(_)));
    }
}
