//! Rows as CSV (RFC 4180, lines end with a line feed): a line with the names of the columns, then a line a row. What is missing is an empty
//! field; addresses are decimal, as in JSON; bytes are hexadecimal digits. A text that a spreadsheet would take for a formula has a ' before it, and ? stands for each
//! character that a terminal would act on: the program that is traced has chosen its name.

use csv_core::{WriteResult, Writer};

use super::schema::{Column, Value};
use crate::output::style::Plain;

/// Appends the line with the names.
pub(super) fn names(out: &mut Vec<u8>, columns: &[&'static Column]) {
    line(out, columns.iter().map(|c| Value::from(c.name)));
}

/// Appends a row.
pub(super) fn line<'a>(out: &mut Vec<u8>, values: impl Iterator<Item = Value<'a>>) {
    let mut writer = Writer::new();
    for (nth, value) in values.enumerate() {
        if nth > 0 {
            append(out, |to| {
                let (result, written) = writer.delimiter(to);
                (result, 0, written)
            });
        }
        match value {
            Value::Null => {}
            Value::Number(n) => field(out, &mut writer, n.to_string().as_bytes()),
            Value::Signed(n) => field(out, &mut writer, n.to_string().as_bytes()),
            Value::Bool(true) => field(out, &mut writer, b"true"),
            Value::Bool(false) => field(out, &mut writer, b"false"),
            Value::Text(text) => {
                let mark = if is_formula(&text) { "'" } else { "" };
                field(
                    out,
                    &mut writer,
                    format!("{mark}{}", Plain(&text)).as_bytes(),
                );
            }
            Value::Bytes(bytes) => {
                let digits: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
                field(out, &mut writer, digits.as_bytes());
            }
        }
    }
    append(out, |to| {
        let (result, written) = writer.terminator(to);
        (result, 0, written)
    });
}

/// Tells whether a spreadsheet would calculate a text, which may be a name that a program chose for itself.
fn is_formula(text: &str) -> bool {
    text.starts_with(['=', '+', '-', '@', '\t', '\r'])
}

fn field(out: &mut Vec<u8>, writer: &mut Writer, text: &[u8]) {
    let mut rest = text;
    append(out, |to| {
        let (result, read, written) = writer.field(rest, to);
        rest = &rest[read..];
        (result, read, written)
    });
}

/// Appends what `write` puts into a buffer, again and again until all is there.
fn append(out: &mut Vec<u8>, mut write: impl FnMut(&mut [u8]) -> (WriteResult, usize, usize)) {
    let mut buffer = [0; 256];
    loop {
        let (result, _, written) = write(&mut buffer);
        out.extend_from_slice(&buffer[..written]);
        if result == WriteResult::InputEmpty {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_formula_and_nothing_that_a_terminal_acts_on() {
        let mut out = Vec::new();
        let names = [
            "=cmd|' /C calc'!A0",
            "+1",
            "-1",
            "@SUM(A1)",
            "\tx",
            "a=b",
            "e\u{1b}[2J\u{7}\nf\u{9b}\u{202e}g",
        ];
        line(&mut out, names.into_iter().map(Value::from));
        let expected = "'=cmd|' /C calc'!A0,'+1,'-1,'@SUM(A1),'?x,a=b,e?[2J??f??g\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn a_line_has_every_field_and_quotes_those_that_need_it() {
        let long = "x,".repeat(300);
        let values = [
            Value::Null,
            Value::Number(u64::MAX),
            Value::Signed(-1),
            Value::Bool(true),
            Value::from("plain"),
            Value::from("a,\"b\"c"),
            Value::Bytes(vec![0, 255].into()),
            Value::from(long.as_str()),
            Value::Null,
        ];
        let mut out = Vec::new();
        line(&mut out, values.into_iter());
        let expected =
            format!(",18446744073709551615,-1,true,plain,\"a,\"\"b\"\"c\",00ff,\"{long}\",\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
