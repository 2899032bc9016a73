//! Functions that a name or a pattern means.

use crate::output::kernel_name::{demangled, short};
use nvcap_decode::cubin::{Cubin, Function};

/// The most names that a message proposes.
const MOST_PROPOSED: usize = 5;

/// A function of an image.
#[derive(Clone, Copy)]
pub struct Choice<'a> {
    /// Image that has the function.
    pub image: &'a Cubin,
    /// Function that was chosen.
    pub function: &'a Function,
}

/// Returns the functions that are meant, in the order of the images. `what` is a mangled name, a demangled one, or a short one, whole or with `*` and
/// `?` for any text and any character.
pub fn chosen<'a>(images: &'a [Cubin], what: &str) -> Vec<Choice<'a>> {
    let all = images.iter().flat_map(|image| {
        let functions = image.functions.iter();
        functions.map(move |function| Choice { image, function })
    });
    let all = all.collect::<Vec<_>>();
    let exact: Vec<_> = all.iter().filter(|c| c.function.name == what).collect();
    if !exact.is_empty() {
        return exact.into_iter().copied().collect();
    }
    all.into_iter()
        .filter(|choice| {
            let name = &choice.function.name;
            is_meant(what, name)
        })
        .collect()
}

/// Names that have the text in them, for a message; the first few, each once.
pub fn proposed(images: &[Cubin], what: &str) -> Vec<String> {
    let what = what.to_lowercase();
    let mut names: Vec<String> = Vec::new();
    for function in images.iter().flat_map(|image| &image.functions) {
        let name = short(&function.name);
        if name.to_lowercase().contains(&what) && !names.contains(&name) {
            names.push(name);
            if names.len() == MOST_PROPOSED {
                break;
            }
        }
    }
    names
}

/// Tells whether a name or a pattern means the function with this mangled name.
pub fn is_meant(what: &str, name: &str) -> bool {
    let full = demangled(name);
    fits(what, name) || fits(what, &short(name)) || fits(what, &full) || fits(what, bare(&full))
}

/// A demangled name without the type that it returns and its parameters: `kernel<1>` of `void kernel<1>(float*)`, as traces show it.
fn bare(full: &str) -> &str {
    let name = full.strip_prefix("void ").unwrap_or(full);
    if !name.ends_with(')') {
        return name;
    }
    let mut open = 0usize;
    for (at, byte) in name.bytes().enumerate().rev() {
        match byte {
            b')' => open += 1,
            b'(' => open = open.saturating_sub(1),
            _ => {}
        }
        if open == 0 {
            return &name[..at];
        }
    }
    name
}

/// Tells whether a text fits a pattern with `*` and `?`. Takes at most the product of both lengths.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Behind the last `*`, and where it ends at present.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                star = Some((p, t));
            }
            Some(byte) if *byte == b'?' || Some(byte) == text.get(t) => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((behind, end)) = star else {
                    return false;
                };
                (p, t) = (behind, end + 1);
                star = Some((behind, t));
            }
        }
    }
    pattern
        .get(p..)
        .is_some_and(|rest| rest.iter().all(|b| *b == b'*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_traces_show_them() {
        for (full, name) in [
            ("void kernel<1>(float*)", "kernel<1>"),
            ("add(int, float (*)(int))", "add"),
            (
                "void a::(anonymous namespace)::k<2>(int)",
                "a::(anonymous namespace)::k<2>",
            ),
            ("memcpy32_post", "memcpy32_post"),
            (")", ")"),
            ("", ""),
        ] {
            assert_eq!(bare(full), name, "{full}");
        }
        assert!(is_meant("kernel<1>", "_Z6kernelILi1EEvPf"));
        assert!(!is_meant("kernel<2>", "_Z6kernelILi1EEvPf"));
    }

    #[test]
    fn patterns() {
        for (pattern, text, is) in [
            ("add", "add", true),
            ("add", "adds", false),
            ("*gemm*", "sm80_xmma_gemm_f32", true),
            ("a?d", "add", true),
            ("a?d", "ad", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("*ab*abc", "abababc", true),
            ("*ab*abd", "abababc", false),
            ("a**", "a", true),
        ] {
            assert_eq!(fits(pattern, text), is, "{pattern} {text}");
        }
        let hostile = "a".repeat(20_000);
        assert!(!fits("*a*a*a*a*a*b", &hostile));
    }
}
