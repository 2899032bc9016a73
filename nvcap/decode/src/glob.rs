//! Patterns as the filter language has them.

/// Tells whether all of `text` fits `pattern`: `*` fits any run, `?` any one character; letter case does not matter.
pub fn like(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The last star seen, and how far into the text it reaches.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == b'?' || c.eq_ignore_ascii_case(&text[t]) => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, reach)) => {
                    star = Some((at, reach + 1));
                    p = at + 1;
                    t = reach + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::like;

    #[test]
    fn patterns() {
        for (pattern, text, fits) in [
            ("SEND_*", "SEND_PCAS_A", true),
            ("*pcas*", "SEND_PCAS_A", true),
            ("SEND_????_A", "SEND_PCAS_A", true),
            ("SEND_???_A", "SEND_PCAS_A", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
        ] {
            assert_eq!(
                like(pattern.as_bytes(), text.as_bytes()),
                fits,
                "{pattern} {text}"
            );
        }
    }
}
