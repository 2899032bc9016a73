//! Names of functions as written in the source.

use std::fmt;

/// The longest mangled name that is demangled, bytes: templates of templates grow without limit.
const MOST: usize = 4096;
/// The longest text of a frame, in bytes: the name of a function or of a source file. A mangled name of 200 bytes can stand for a
/// name of gigabytes, because each part of it may repeat an earlier part twice.
pub(super) const MOST_TEXT: usize = 16 << 10;
/// The most pieces that form a name; some are empty.
const MOST_PIECES: usize = 64 << 10;

/// Returns a function's name from its symbol: of Rust without hash, of C++ with parameters, of C unchanged. `Err` has the symbol if the
/// name would be longer than [`MOST_TEXT`], or if the symbol is too long to be demangled.
pub(super) fn demangle(symbol: &str) -> Result<String, &str> {
    if symbol.len() > MOST {
        let is_mangled = symbol.starts_with("_Z") || symbol.starts_with("_R");
        return if is_mangled {
            Err(symbol)
        } else {
            Ok(symbol.to_owned())
        };
    }
    if let Ok(name) = rustc_demangle::try_demangle(symbol) {
        return Bounded::of(|to| fmt::Write::write_fmt(to, format_args!("{name:#}")))
            .map_err(|_| symbol);
    }
    if symbol.starts_with("_Z")
        && let Ok(name) = cpp_demangle::Symbol::new(symbol)
    {
        let written =
            Bounded::of(|to| name.structured_demangle(to, &cpp_demangle::DemangleOptions::new()));
        return match written {
            Err(true) => Err(symbol),
            written => Ok(written.unwrap_or_else(|_| symbol.to_owned())),
        };
    }
    Ok(symbol.to_owned())
}

/// Returns text of [`MOST_TEXT`] bytes at most; longer text gets `…` at its end.
pub(super) fn within(text: String) -> String {
    const MARK: &str = "…";
    if text.len() <= MOST_TEXT {
        return text;
    }
    let mut end = MOST_TEXT - MARK.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut text = text;
    text.truncate(end);
    text.push_str(MARK);
    text
}

/// A name that is being written, up to a length and a number of pieces.
#[derive(Default)]
struct Bounded {
    text: String,
    pieces: usize,
    is_over: bool,
}

impl Bounded {
    /// Collects the text that `write` writes. `Err(true)` if the text is too long, `Err(false)` if it cannot be written.
    fn of(write: impl FnOnce(&mut Self) -> fmt::Result) -> Result<String, bool> {
        let mut to = Self::default();
        match write(&mut to) {
            Ok(()) => Ok(to.text),
            Err(fmt::Error) => Err(to.is_over),
        }
    }
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.pieces += 1;
        if self.pieces > MOST_PIECES || self.text.len() + piece.len() > MOST_TEXT {
            self.is_over = true;
            return Err(fmt::Error);
        }
        self.text.push_str(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_TEXT, demangle, within};

    #[test]
    fn names_of_three_languages() {
        for (symbol, name) in [
            ("cuLaunchKernel", "cuLaunchKernel"),
            (
                "_ZN2at6native5relu_ERNS_6TensorE",
                "at::native::relu_(at::Tensor&)",
            ),
            (
                "_ZN7softgpu6memory6Memory4ring17h0123456789abcdefE",
                "softgpu::memory::Memory::ring",
            ),
            ("_Znonsense", "_Znonsense"),
        ] {
            assert_eq!(demangle(symbol).as_deref(), Ok(name));
        }
        let long = "_Z".repeat(10_000);
        assert_eq!(demangle(&long), Err(long.as_str()));
        let long = "c".repeat(10_000);
        assert_eq!(demangle(&long), Ok(long.clone()));
    }

    /// Test of a name of types that each repeat the previous type twice: 193 bytes that stand for 15 MB.
    #[test]
    fn a_name_that_doubles_stays_as_it_is() {
        let mut doubling = "_Z4f000PFviiE".to_owned();
        let number = |n: u32| match n {
            0 => "S_".to_owned(),
            n => {
                let digit = |n: u32| char::from_digit(n, 36).unwrap().to_ascii_uppercase();
                let high = Some((n - 1) / 36).filter(|h| *h > 0).map(digit);
                let low = digit((n - 1) % 36);
                format!("S{}{low}_", high.map_or_else(String::new, String::from))
            }
        };
        for level in 0..18 {
            let before = number(1 + 2 * level);
            doubling += &format!("PFv{before}{before}E");
        }
        assert!(doubling.len() < 256);
        assert_eq!(demangle(&doubling), Err(doubling.as_str()));
        // The form of Rust's names that can refer to an earlier part.
        let tuples = (0..20).fold(String::new(), |text, _| text + "T") + "uE";
        let symbol = format!("_RIC1a{tuples}");
        assert!(demangle(&symbol).is_ok_and(|name| name.len() <= MOST_TEXT));
    }

    #[test]
    fn long_text_is_cut_where_a_character_ends() {
        let long = "é".repeat(MOST_TEXT);
        let cut = within(long.clone());
        assert!(cut.len() <= MOST_TEXT && cut.len() > MOST_TEXT - 8);
        assert!(long.starts_with(cut.strip_suffix('…').unwrap()));
        assert_eq!(within("é".to_owned()), "é");
    }
}
