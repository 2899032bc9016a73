//! Patterns of the filter language.

/// Tells whether all of `text` matches `pattern`: `*` matches any run of characters, `?` any one. Letter case does not matter.
pub fn like(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The last star, and the place in the text up to which it has matched.
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
