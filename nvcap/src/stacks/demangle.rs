//! Names as the source has them.

/// The longest mangled name that is taken apart: templates of templates grow without bound.
const MOST: usize = 4096;

/// A function's name from its symbol: of Rust without hash, of C++ with parameters, of C as it is.
pub(super) fn demangle(symbol: &str) -> String {
    if symbol.len() > MOST {
        return symbol.to_owned();
    }
    if let Ok(name) = rustc_demangle::try_demangle(symbol) {
        return format!("{name:#}");
    }
    if symbol.starts_with("_Z")
        && let Ok(name) = cpp_demangle::Symbol::new(symbol)
        && let Ok(name) = name.demangle()
    {
        return name;
    }
    symbol.to_owned()
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn names_of_three_languages() {
        assert_eq!(demangle("cuLaunchKernel"), "cuLaunchKernel");
        assert_eq!(
            demangle("_ZN2at6native5relu_ERNS_6TensorE"),
            "at::native::relu_(at::Tensor&)"
        );
        assert_eq!(
            demangle("_ZN7softgpu6memory6Memory4ring17h0123456789abcdefE"),
            "softgpu::memory::Memory::ring"
        );
        assert_eq!(demangle("_Znonsense"), "_Znonsense");
        let long = "_Z".repeat(10_000);
        assert_eq!(demangle(&long), long);
    }
}
