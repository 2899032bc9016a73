//! Names of kernels as people write them: the compiler's mangled names (C++, Rust) with their signatures, and a short form.
//!
//! A name comes from the traced program and may be anything: what is no mangled name, or is too long, or has too much in
//! it, stays as it is, up to 16 KiB.

use std::borrow::Cow;
use std::fmt::{self, Write};

use cpp_demangle::{BorrowedSymbol, DemangleNodeType, DemangleOptions, DemangleWrite};

/// Longest name that is demangled; a longer one is shown as it is. Names of PyTorch and CUTLASS reach some thousand bytes.
const MOST_MANGLED: usize = 16 << 10;
/// The most bytes of a name, and of the text that is made of it: substitutions can double it again and again.
pub(crate) const MOST_TEXT: usize = 16 << 10;
/// The most pieces that are made of a name.
const MOST_PIECES: usize = 64 << 10;
/// The most types of parameters: the most bytes that a kernel's parameters have, each a type of its own.
const MOST_TYPES: usize = 4096;
const ANONYMOUS: &str = "(anonymous namespace)";

/// Returns the name with its template arguments, parameters and, for templates, return type: `void scale<float>(float*, int)`; the name itself where
/// it is not mangled.
#[must_use]
pub fn demangled(name: &str) -> String {
    let (of_file, mangled) = without_file(name);
    if let Some(text) = rust(mangled) {
        return text;
    }
    let options = DemangleOptions::new().hide_expression_literal_types();
    let text = if of_file {
        // The namespace goes before the name, so the return type must go.
        text_of(mangled, &options.no_return_type(), false)
            .map(|text| format!("{ANONYMOUS}::{text}"))
    } else {
        text_of(mangled, &options, false)
    };
    match text {
        Some(text) => without_internal(text),
        None if of_file => within(&format!("{ANONYMOUS}::{}", within(mangled))).into_owned(),
        None => within(name).into_owned(),
    }
}

/// Cuts a name to [`MOST_TEXT`] bytes; a longer one has `…` at its end.
fn within(name: &str) -> Cow<'_, str> {
    const MARK: &str = "…";
    if name.len() <= MOST_TEXT {
        return Cow::Borrowed(name);
    }
    let mut end = MOST_TEXT - MARK.len();
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(name.get(..end).unwrap_or_default().to_owned() + MARK)
}

/// Returns the name alone, without template arguments, parameters and return type: `at::native::elementwise_kernel`; the name itself where it is not
/// mangled.
#[must_use]
pub fn short(name: &str) -> String {
    let (of_file, mangled) = without_file(name);
    let text = match rust(mangled) {
        Some(text) => Some(text),
        None => {
            let options = DemangleOptions::new()
                .hide_expression_literal_types()
                .no_params()
                .no_return_type();
            text_of(mangled, &options, true).map(|text| without_parameters(&text))
        }
    };
    let text = match text {
        Some(text) => without_internal(text),
        None if of_file => within(mangled).into_owned(),
        None => return within(name).into_owned(),
    };
    if of_file {
        return within(&format!("{ANONYMOUS}::{text}")).into_owned();
    }
    text
}

/// Returns the types of the parameters, as the mangled name has them; `None` if the name has no types (`extern "C"`, variables) or cannot be read.
#[must_use]
pub fn parameters(name: &str) -> Option<Vec<String>> {
    let (_, mangled) = without_file(name);
    if rust(mangled).is_some() {
        return None;
    }
    let options = DemangleOptions::new()
        .hide_expression_literal_types()
        .no_return_type();
    let whole = text_of(mangled, &options, false)?;
    let head = text_of(mangled, &options.no_params(), false)?;
    let list = whole.strip_prefix(&head)?.strip_prefix('(')?;
    let list = list.get(..list.rfind(')')?)?;
    let mut types = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'(' | b'<' | b'[' | b'{' => depth += 1,
            b')' | b'>' | b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                types.push(list.get(start..at)?.trim().to_owned());
                start = at + 1;
            }
            _ => {}
        }
    }
    types.push(list.get(start..)?.trim().to_owned());
    // An empty pack of parameters leaves nothing between commas.
    types.retain(|t| !t.is_empty());
    Some(types).filter(|types| types.len() <= MOST_TYPES)
}

/// Returns the text of a Rust name: `_R...`, or the older form, which ends with a hash; the mangled name where the text would be too long.
fn rust(name: &str) -> Option<String> {
    if name.len() > MOST_MANGLED {
        return None;
    }
    let older = || {
        let hash = name.strip_prefix("_ZN")?.strip_suffix('E')?;
        let hash = hash
            .get(hash.len().checked_sub(19)?..)?
            .strip_prefix("17h")?;
        hash.bytes().all(|b| b.is_ascii_hexdigit()).then_some(())
    };
    if !name.starts_with("_R") && older().is_none() {
        return None;
    }
    let parsed = rustc_demangle::try_demangle(name).ok()?;
    let mut text = Bounded::default();
    Some(match write!(text, "{parsed:#}") {
        Ok(()) => text.0,
        Err(fmt::Error) => name.to_owned(),
    })
}

/// Text that is being written, up to [`MOST_TEXT`] bytes.
#[derive(Default)]
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if self.0.len() + piece.len() > MOST_TEXT {
            return Err(fmt::Error);
        }
        self.0.push_str(piece);
        Ok(())
    }
}

/// Removes the prefix that nvcc gives to functions that are static in a file: `__nv_static_`, a length, and as many bytes that name
/// the file. True if there was such a prefix.
fn without_file(name: &str) -> (bool, &str) {
    let rest = || {
        let (len, rest) = name.strip_prefix("__nv_static_")?.split_once('_')?;
        let rest = rest.get(len.parse::<usize>().ok()?..)?;
        rest.strip_prefix('_').filter(|rest| !rest.is_empty())
    };
    rest().map_or((false, name), |rest| (true, rest))
}

/// Makes `_INTERNAL_` and a file with its hash, which nvcc also uses for an anonymous namespace, readable.
fn without_internal(text: String) -> String {
    const MARK: &str = "_INTERNAL_";
    if !text.contains(MARK) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(MARK) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let end = from.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (word, behind) = from.split_at(end.unwrap_or(from.len()));
        let begins = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let of_file = word.contains("_cu_") || word.contains("_cpp1_ii_");
        out.push_str(if begins && of_file { ANONYMOUS } else { word });
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Removes what is in parentheses but for anonymous namespaces and `operator()`, and `const` of the functions.
fn without_parameters(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('(') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let kept = [ANONYMOUS, "()"]
            .into_iter()
            .find(|kept| from.starts_with(kept))
            .filter(|kept| *kept == ANONYMOUS || out.ends_with("operator"));
        if let Some(kept) = kept {
            out.push_str(kept);
            rest = from.get(kept.len()..).unwrap_or_default();
            continue;
        }
        let mut depth = 0;
        let end = from.bytes().position(|b| {
            match b {
                b'(' => depth += 1,
                b')' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        rest = end.and_then(|end| from.get(end + 1..)).unwrap_or_default();
    }
    out.push_str(rest);
    let out = out.replace(" const::", "::");
    out.strip_suffix(" const").unwrap_or(&out).to_owned()
}

/// Demangles a C++ name; `None` if it is no C++ name, or is too long. A suffix behind the name (`$12` of a clone) is kept.
fn text_of(name: &str, options: &DemangleOptions, short: bool) -> Option<String> {
    // Device functions that are called have names that begin with a `$`.
    let name = name.strip_prefix('$').unwrap_or(name);
    if !name.starts_with("_Z") || name.len() > MOST_MANGLED {
        return None;
    }
    let (symbol, tail) = BorrowedSymbol::with_tail(name.as_bytes()).ok()?;
    if !tail.is_empty() && !matches!(tail.first(), Some(b'$' | b'.' | b'@')) {
        return None;
    }
    let mut text = Text {
        out: String::new(),
        pieces: 0,
        short,
        nodes: Vec::new(),
        within: 0,
        closing: false,
        in_tag: false,
    };
    symbol.structured_demangle(&mut text, options).ok()?;
    if !short {
        text.out.push_str(&String::from_utf8_lossy(tail));
    }
    Some(text.out).filter(|text| !text.is_empty())
}

/// A name that is being written, up to a length; without template arguments if it is to be short.
struct Text {
    out: String,
    pieces: usize,
    short: bool,
    /// True for each entered node that is a list of template arguments.
    nodes: Vec<bool>,
    /// Number of lists of template arguments that the current piece lies in.
    within: usize,
    /// True if a list has just ended, and its `>` follows.
    closing: bool,
    /// True while the tag of an ABI is being written, in pieces.
    in_tag: bool,
}

impl DemangleWrite for Text {
    fn push_demangle_node(&mut self, kind: DemangleNodeType) {
        let arguments = self.short && kind == DemangleNodeType::TemplateArgs;
        self.nodes.push(arguments);
        if arguments {
            if self.within == 0 && self.out.ends_with('<') {
                self.out.pop();
                // Behind `operator<`.
                self.out.truncate(self.out.trim_end().len());
            }
            self.within += 1;
        }
    }

    fn write_string(&mut self, piece: &str) -> fmt::Result {
        self.pieces += 1;
        if self.pieces > MOST_PIECES || self.out.len() + piece.len() > MOST_TEXT {
            return Err(fmt::Error);
        }
        if self.within > 0 {
            return Ok(());
        }
        let piece = if std::mem::take(&mut self.closing) {
            piece.strip_prefix('>').unwrap_or(piece)
        } else {
            piece
        };
        // The tags of an inline namespace or a library's ABI are no part of the name.
        self.in_tag |= self.short && piece.starts_with("[abi:");
        if !self.in_tag {
            self.out.push_str(piece);
        }
        self.in_tag &= !piece.ends_with(']');
        Ok(())
    }

    fn pop_demangle_node(&mut self) {
        if self.nodes.pop() == Some(true) {
            self.within = self.within.saturating_sub(1);
            self.closing = self.within == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mangled, demangled, short: names that nvcc, NVRTC, Triton, Numba and rustc made.
    const NAMES: &[(&str, &str, &str)] = &[
        ("_Z3addPfif", "add(float*, int, float)", "add"),
        ("vadd", "vadd", "vadd"),
        ("memcpy32_post", "memcpy32_post", "memcpy32_post"),
        (
            "triton_poi_fused_add_0",
            "triton_poi_fused_add_0",
            "triton_poi_fused_add_0",
        ),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1> >(int, at::native::FillFunctor<float>, std::array<char*, 1>)",
            "at::native::vectorized_elementwise_kernel",
        ),
        (
            "_ZN43_GLOBAL__N__b6de9c8c_10_SoftMax_cu_9f978f6320softmax_warp_forwardIfffLi10ELb0ELb0EEEvPT0_PKT_iiiPKbib",
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*, float const*, int, int, int, bool const*, int, bool)",
            "(anonymous namespace)::softmax_warp_forward",
        ),
        (
            "__nv_static_31__bf1f8e40_12_static_cu_3fa12b44__Z6kernelPf",
            "(anonymous namespace)::kernel(float*)",
            "(anonymous namespace)::kernel",
        ),
        (
            "__nv_static_27__14_coords_cpp1_ii_7126c51d_scale",
            "(anonymous namespace)::scale",
            "(anonymous namespace)::scale",
        ),
        (
            "_ZN38_INTERNAL_0f1a8107_8_Shape_cu_49f7391c4fillEPf",
            "(anonymous namespace)::fill(float*)",
            "(anonymous namespace)::fill",
        ),
        // A lambda within a function, its operator(), and a function object's own operators.
        (
            "_ZZ4mainENKUlPfE_clES_",
            "main::{lambda(float*)#1}::operator()(float*) const",
            "main::{lambda#1}::operator()",
        ),
        (
            "_ZN1AlsIiEERS_T_",
            "A& A::operator<< <int>(int)",
            "A::operator<<",
        ),
        (
            "_ZNK1AltERKS_",
            "A::operator<(A const&) const",
            "A::operator<",
        ),
        (
            "_ZN1AgtIfEEbT_",
            "bool A::operator><float>(float)",
            "A::operator>",
        ),
        // Numba: tags of an ABI, and a type that is no C++ type.
        (
            "_ZN6cudapy8__main__3addB2v1E5ArrayIfLi1E1C7mutable7alignedE",
            "cudapy::__main__::add[abi:v1](Array<float, 1, C, mutable, aligned>)",
            "cudapy::__main__::add",
        ),
        (
            "_RNvCskwGfYPst2Cb_3foo16example_function",
            "foo::example_function",
            "foo::example_function",
        ),
        (
            "_ZN4core3fmt5Write9write_str17h0123456789abcdefE",
            "core::fmt::Write::write_str",
            "core::fmt::Write::write_str",
        ),
        // A clone, and a device function that is called.
        ("$_Z3addPfif$12", "add(float*, int, float)$12", "add"),
        // No mangled names.
        ("_Z", "_Z", "_Z"),
        ("_Zzz", "_Zzz", "_Zzz"),
        (
            "__nv_static_99__x",
            "__nv_static_99__x",
            "__nv_static_99__x",
        ),
        ("", "", ""),
    ];

    #[test]
    fn names() {
        for (mangled, full, brief) in NAMES {
            assert_eq!(demangled(mangled), *full);
            assert_eq!(short(mangled), *brief);
        }
    }

    #[test]
    fn types_of_parameters() {
        let types = |name| parameters(name).map(|all| all.join(" | "));
        assert_eq!(types("_Z3addPfif").unwrap(), "float* | int | float");
        assert_eq!(types("_Z3addv").unwrap(), "");
        assert_eq!(
            types("_Z1fIiEvT_St4pairIS0_fEPFvicE").unwrap(),
            "int | std::pair<int, float> | void (*)(int, char)"
        );
        let of_file = "__nv_static_31__bf1f8e40_12_static_cu_3fa12b44__Z6kernelPf";
        assert_eq!(types(of_file).unwrap(), "float*");
        // An empty pack behind a parameter.
        assert_eq!(types("_Z1fIJEEviDpT_").unwrap(), "int");
        for none in [
            "vadd",
            "_ZN1a1bE",
            "_RNvCskwGfYPst2Cb_3foo16example_function",
            "_Z",
        ] {
            assert_eq!(types(none), None, "{none}");
        }
    }

    /// Names that are made to cost: they are shown as they are, and not after hours.
    #[test]
    fn hostile_names() {
        // Each type has the one before twice.
        let mut doubling = "_Z1f1A1BIS_S_E".to_owned();
        for i in 1..35u32 {
            let digit = |n: u32| char::from_digit(n, 36).unwrap().to_ascii_uppercase();
            doubling += &format!("S0_IS{0}_S{0}_E", digit(i));
        }
        let all = [
            doubling,
            format!("_Z{}", "N".repeat(9000)),
            format!("_Z1f{}i", "P".repeat(9000)),
            format!("_Z1f{}", "IS_E".repeat(3000)),
            format!("_Z1fI{}", "XadL_Z".repeat(2000)),
            format!("_Z1f{}", "DTcl".repeat(3000)),
            format!("_Z3addPf{}", "i".repeat(1 << 20)),
            format!("_R{}", "INtC".repeat(3000)),
            format!("_ZN{}17h0123456789abcdefE", "1a".repeat(30000)),
            "_".repeat(1 << 20),
            "_Z1f\u{fffd}\u{1f980}".to_owned(),
            "__nv_static_18446744073709551615_a_b".to_owned(),
        ];
        nvcap_waiting::ends("names that are made to cost are shown", move || {
            for name in &all {
                assert_eq!(demangled(name), within(name));
                assert!(short(name).len() <= name.len());
                let _ = parameters(name);
            }
        });
    }

    /// Text that is made of a name has a bound, whatever the name is.
    #[test]
    fn names_have_a_bound() {
        // Each type has the one before twice.
        let doubled = |i: usize| format!("S{i:X}_IS{i:X}_S{i:X}_E");
        let cpp = |n: usize| (0..n).fold("_Z1f1A1BIS_S_E".to_owned(), |name, i| name + &doubled(i));
        let mut names: Vec<String> = (1..14).map(cpp).collect();
        // One type, named again and again.
        let (one, again) = ("m".repeat(40), "B7_".repeat(4000));
        names.push(format!("_RINvC1c1fT{one}E{again}E"));
        for len in [MOST_TEXT - 1, MOST_TEXT, MOST_TEXT + 1, 1 << 20] {
            for unit in ["i", "\u{1f980}", "PK"] {
                for prefix in ["", "_Z3addPf", "__nv_static_3_abc_", "_Z1f\u{fffd}"] {
                    names.push(format!("{prefix}{}", unit.repeat(len / unit.len())));
                }
            }
        }
        for name in &names {
            let (full, short) = (demangled(name), short(name));
            let bound = 16 << 10;
            assert!(
                full.len() <= bound && short.len() <= bound,
                "{}",
                &name[..20]
            );
            let types = parameters(name).unwrap_or_default();
            assert!(types.iter().map(String::len).sum::<usize>() <= bound);
            assert!(types.len() <= MOST_TYPES);
        }
        assert!(demangled(&names[3]).starts_with("f(A, "));
        assert_eq!(
            within(&"é".repeat(MOST_TEXT)).chars().next_back(),
            Some('…')
        );
    }
}
