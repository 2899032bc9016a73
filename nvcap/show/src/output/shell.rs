//! Words as a user types them to a shell, so that the commands in messages can be typed as they are.

use std::fmt::Write as _;
use std::path::Path;

/// Returns a path as one word of a shell's command line, which is no option. Quoted only where that is needed.
pub fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    match text.starts_with('-') && text.len() > 1 {
        true => word(&format!("./{text}")),
        false => word(&text),
    }
}

/// Returns a text as one word of a shell's command line.
pub fn word(text: &str) -> String {
    let is_plain = |c: char| {
        c.is_alphanumeric()
            || matches!(c, '_' | '-' | '.' | '/' | ':' | '=' | '@' | '%' | '+' | ',')
    };
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if !text.chars().any(char::is_control) {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut quoted = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            c if c.is_control() => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(quoted, "\\{byte:03o}");
                }
            }
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word() {
        for (path, typed) in [
            ("run.2.pcapng", "run.2.pcapng"),
            ("/a b/it's", r"'/a b/it'\''s'"),
            ("a;b", "'a;b'"),
            ("", "''"),
            ("-", "-"),
            ("-o", "./-o"),
            ("~", "'~'"),
            ("a\nb'c", r"$'a\012b\'c'"),
            ("ü", "ü"),
        ] {
            assert_eq!(quoted(Path::new(path)), typed);
        }
    }
}
