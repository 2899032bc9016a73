//! The form in which names of kernels are compared. Each demangler writes a name in its own way: `scale<4, float>(float*)`, `scale<(int)4, float>(float *)`,
//! `scale<4ul, float>`.

use crate::output::kernel_name::demangled;

/// The form of a name that all demanglers' texts have in common: without blanks that mean nothing, and literals without their types.
pub(super) fn form(name: &str) -> String {
    let text = demangled(name);
    // nvcap's mark behind a name that it guessed.
    let text = text.strip_suffix('?').unwrap_or(&text);
    let text = text.replace("<unnamed>", "(anonymous namespace)");
    let mut form = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(c) = rest.chars().next() {
        if c.is_whitespace() {
            rest = rest.trim_start();
            let parts_words = form.ends_with(is_word) && rest.starts_with(is_word);
            form.extend(parts_words.then_some(' '));
        } else if let Some((literal, behind)) = literal(&form, rest) {
            form.push_str(literal);
            rest = behind;
        } else if is_word(c) {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            if !is_inner_result(&form, word, behind) {
                form.push_str(word);
            }
            rest = behind;
        } else {
            form.push(c);
            rest = rest.get(c.len_utf8()..).unwrap_or_default();
        }
    }
    form
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Tells whether a word is the result of a function within whose name a type lies: some demanglers write `void` in `k<void f<int>(int)::{lambda}>`,
/// others do not. `before`, `behind`: what stands there.
fn is_inner_result(before: &str, word: &str, behind: &str) -> bool {
    let next = behind.trim_start();
    let is_name = next.len() < behind.len() && next.starts_with(is_word);
    let qualifies = ["const", "volatile"].iter().any(|q| {
        next.strip_prefix(q)
            .is_some_and(|rest| !rest.starts_with(is_word))
    });
    word == "void" && before.ends_with(['<', ',', '(']) && is_name && !qualifies
}

/// A literal at the begin of a template argument, without its type: `(int)4`, `4ul`. `before`: what stands before it.
fn literal<'a>(before: &str, text: &'a str) -> Option<(&'a str, &'a str)> {
    if !before.ends_with(['<', ',']) {
        return None;
    }
    let (of, number) = match text.strip_prefix('(') {
        None => ("", text),
        Some(inner) => {
            let end = inner.find(')')?;
            (inner.get(..end)?.trim(), inner.get(end + 1..)?)
        }
    };
    let sign = usize::from(number.starts_with('-'));
    let digits = number.get(sign..)?;
    let digits = digits.len()
        - digits
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .len();
    let (value, behind) = number
        .split_at_checked(sign + digits)
        .filter(|_| digits > 0)?;
    let behind = behind.trim_start_matches(['u', 'l', 'U', 'L']);
    if behind.starts_with(|c| is_word(c) || c == '.') {
        return None;
    }
    Some(match (of, value) {
        ("bool", "0") => ("false", behind),
        ("bool", "1") => ("true", behind),
        _ => (value, behind),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_one_form_whoever_wrote_its_name() {
        const MANGLED: &str = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_";
        for text in [
            MANGLED,
            // As nvcap, the GNU library and NVIDIA write it.
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1> >(int, at::native::FillFunctor<float>, std::array<char*, 1>)",
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, std::array<char *, (unsigned long)1>>(int, at::native::FillFunctor<float>, std::array<char *, (unsigned long)1>)",
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1> >(int, at::native::FillFunctor<float>, std::array<char*, 1>)?",
        ] {
            assert_eq!(
                form(text),
                "void at::native::vectorized_elementwise_kernel<4,at::native::FillFunctor<float>,std::array<char*,1>>(int,at::native::FillFunctor<float>,std::array<char*,1>)",
            );
        }
        let softmax = "_ZN43_GLOBAL__N__b6de9c8c_10_SoftMax_cu_9f978f6320softmax_warp_forwardIfffLi10ELb0ELb1EEEvPT0_PKT_iiiPKbib";
        assert_eq!(
            form(
                "void <unnamed>::softmax_warp_forward<float, float, float, (int)10, (bool)0, (bool)1>(float *, float const *, int, int, int, bool const *, int, bool)"
            ),
            form(softmax)
        );
        assert_eq!(form("k<(Kind)-3, -3l>"), "k<-3,-3>");
        // As torch.profiler has it, and as nvcap has it (seen on an H200).
        let lambda = "at::native::gpu_kernel_impl_nocast<F>(at::TensorIteratorBase&, F const&)::{lambda(int)#1}";
        assert_eq!(
            form(&format!("void k<128, void {lambda}>(int, void {lambda})")),
            form(&format!("void k<128, {lambda}>(int, {lambda})")),
        );
        assert_eq!(
            form("void k<void>(void const*, void (*)(int))"),
            "void k<void>(void const*,void(*)(int))"
        );
    }

    #[test]
    fn other_kernels_have_other_forms() {
        for (one, other) in [
            ("scale<4>", "scale<5>"),
            ("scale<float>(float*)", "scale<float>(double*)"),
            ("k<true>", "k<1>"),
            ("unsigned int f", "unsignedint f"),
            ("k<4x>", "k<4>"),
            ("k<1.5>", "k<1>"),
            ("f(void (*)(int))", "f(void (*)(long))"),
            ("k1ul", "k1"),
        ] {
            assert_ne!(form(one), form(other));
        }
        for same in [
            "",
            "a",
            "triton_poi_fused_add_0",
            "k<(",
            "k<(int)",
            "k<(int)-",
            "k,(\u{e9}",
        ] {
            assert_eq!(form(same), same);
        }
    }
}
