//! Splits the argument bytes of a launch into arguments. The kernel's image lists each parameter's offset and size; the mangled
//! name gives the types.

use nvcap_decode::cubin::Param;
use nvcap_decode::wire::words::u32s;

/// The most words of a structure that are shown.
const MOST_WORDS: usize = 4;
/// Bound below which an unknown number of 4 or 8 bytes is shown in decimal: it may be a size, a count, an index.
const SMALL: i64 = 1 << 24;

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    /// Its number, from 0.
    pub ordinal: u16,
    /// Its place among the arguments, bytes.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
    /// Its type, where the kernel's name tells.
    pub kind: Option<String>,
    /// Its value as text.
    pub value: String,
    /// True if the argument is a structure, or its type and size are not those of a number: `value` is its first words.
    pub structure: bool,
    /// The address, if the argument is a pointer. Where the type is unknown, a value that looks like an address counts as one.
    pub pointer: Option<u64>,
}

/// Returns the arguments of a kernel, with the types that its mangled name gives.
#[cfg(test)]
fn arguments(name: &str, params: &[Param], bytes: &[u8]) -> Vec<Argument> {
    typed(
        super::kernel_name::parameters(name).as_deref(),
        params,
        bytes,
    )
}

/// Returns the arguments of a kernel, with the types that its name gives, if it gives any. `bytes` are those of constant bank 0 from the
/// first argument on, as many as are known.
pub(super) fn typed(types: Option<&[String]>, params: &[Param], bytes: &[u8]) -> Vec<Argument> {
    let types = types.filter(|types| types.len() == params.len());
    let of = |(param, at): (&Param, usize)| {
        let kind = types.as_ref().and_then(|types| types.get(at)).cloned();
        let (offset, size) = (param.offset as usize, param.size as usize);
        let own = offset
            .checked_add(size)
            .and_then(|end| bytes.get(offset..end));
        let pointer = own.and_then(|own| pointer(kind.as_deref(), own));
        let (value, structure) = match (own, pointer) {
            (None, _) => ("?".to_owned(), false),
            (_, Some(address)) => (format!("{address:#x}"), false),
            (Some(own), None) => match kind.as_deref().and_then(|kind| of_type(kind, own)) {
                Some(known) => (known, false),
                None => (unknown(own), !is_size_of_number(own)),
            },
        };
        Argument {
            ordinal: param.ordinal,
            offset: param.offset,
            size: param.size,
            kind,
            value,
            structure,
            pointer,
        }
    };
    params.iter().zip(0..).map(of).collect()
}

/// The address, where the argument is a pointer.
fn pointer(kind: Option<&str>, bytes: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(bytes.try_into().ok()?);
    let is = match kind {
        Some(kind) => {
            let kind = plain(kind);
            kind.ends_with(['*', '&']) || kind.contains("(*)")
        }
        // Above 4 GiB, below the end of the addresses of a process or a GPU, and aligned as what is allocated is.
        None => (1 << 32..1 << 49).contains(&value) && value.is_multiple_of(4),
    };
    is.then_some(value)
}

/// A type without the qualifiers at its end (`const`, `volatile`, `restrict`), which do not change how a value reads.
fn plain(kind: &str) -> &str {
    let mut kind = kind.trim();
    loop {
        let less = [
            " const",
            " volatile",
            " __restrict__",
            " __restrict",
            " restrict",
        ]
        .iter()
        .find_map(|word| kind.strip_suffix(word));
        match less {
            Some(less) => kind = less.trim_end(),
            None => return kind,
        }
    }
}

/// Returns the value of a number as text, where its type is one that has this size.
fn of_type(kind: &str, bytes: &[u8]) -> Option<String> {
    let signed = |bytes: &[u8]| signed(bytes).map(|n| n.to_string());
    let unsigned = |bytes: &[u8]| unsigned(bytes).map(|n| n.to_string());
    let float = |half: fn(u16) -> f32| -> Option<String> {
        let bits = u16::from_le_bytes(bytes.try_into().ok()?);
        Some(format!("{:?}", half(bits)))
    };
    match (plain(kind), bytes.len()) {
        ("bool", 1) => match bytes {
            [0] => Some("false".to_owned()),
            [1] => Some("true".to_owned()),
            _ => None,
        },
        ("char" | "signed char", 1) | ("short", 2) | ("int", 4) | ("long" | "long long", 8) => {
            signed(bytes)
        }
        ("unsigned char", 1)
        | ("unsigned short", 2)
        | ("unsigned int", 4)
        | ("unsigned long" | "unsigned long long", 8) => unsigned(bytes),
        ("float", 4) => Some(format!("{:?}", f32::from_le_bytes(bytes.try_into().ok()?))),
        ("double", 8) => Some(format!("{:?}", f64::from_le_bytes(bytes.try_into().ok()?))),
        ("__half" | "half" | "c10::Half", 2) => float(half),
        ("__nv_bfloat16" | "c10::BFloat16", 2) => {
            float(|bits| f32::from_bits(u32::from(bits) << 16))
        }
        _ => None,
    }
}

/// A number of any size up to 8 bytes.
fn unsigned(bytes: &[u8]) -> Option<u64> {
    let mut all = [0; 8];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(all))
}

/// Reads a number as [`unsigned`] does, with its sign.
fn signed(bytes: &[u8]) -> Option<i64> {
    let spare = 64_u32.checked_sub(bytes.len() as u32 * 8)?;
    let value = unsigned(bytes)?;
    Some(if spare == 64 {
        0
    } else {
        (value << spare) as i64 >> spare
    })
}

fn is_size_of_number(bytes: &[u8]) -> bool {
    matches!(bytes.len(), 1 | 2 | 4 | 8)
}

/// Returns a value of an unknown type as text: small numbers in decimal, others in hexadecimal, structures as their first words.
fn unknown(bytes: &[u8]) -> String {
    if is_size_of_number(bytes)
        && let (Some(value), Some(raw)) = (signed(bytes), unsigned(bytes))
    {
        return if (-SMALL..SMALL).contains(&value) {
            value.to_string()
        } else {
            format!("{raw:#x}")
        };
    }
    let words: Vec<String> = u32s(bytes)
        .take(MOST_WORDS)
        .map(|w| format!("{w:08x}"))
        .collect();
    let more = if bytes.len() > MOST_WORDS * 4 {
        " ..."
    } else {
        ""
    };
    format!("{{{}{more}}} {} bytes", words.join(" "), bytes.len())
}

/// Returns the value of an IEEE half-precision number.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let fraction = f32::from(bits & 0x3ff);
    match bits >> 10 & 0x1f {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        exponent => sign * (1.0 + fraction / 1024.0) * 2f32.powi(i32::from(exponent) - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(sizes: &[(u32, u32)]) -> Vec<Param> {
        let each = |((offset, size), ordinal): (&(u32, u32), u16)| Param {
            ordinal,
            offset: *offset,
            size: *size,
        };
        sizes.iter().zip(0..).map(each).collect()
    }

    fn values(name: &str, sizes: &[(u32, u32)], bytes: &[u8]) -> Vec<String> {
        let all = arguments(name, &params(sizes), bytes);
        all.into_iter().map(|a| a.value).collect()
    }

    /// `add(float*, int, float)` of tests/gpu/meaning/cuda.cu.
    #[test]
    fn types_of_the_name() {
        let mut bytes = 0x7fe6_7780_0000_u64.to_le_bytes().to_vec();
        bytes.extend((-5_i32).to_le_bytes());
        bytes.extend(1.5_f32.to_le_bytes());
        let all = arguments("_Z3addPfif", &params(&[(0, 8), (8, 4), (12, 4)]), &bytes);
        let kinds: Vec<_> = all.iter().map(|a| a.kind.as_deref().unwrap()).collect();
        assert_eq!(kinds, ["float*", "int", "float"]);
        let values: Vec<_> = all.iter().map(|a| a.value.as_str()).collect();
        assert_eq!(values, ["0x7fe677800000", "-5", "1.5"]);
        assert_eq!(all[0].pointer, Some(0x7fe6_7780_0000));
        assert_eq!((all[1].pointer, all[2].pointer), (None, None));
        assert_eq!((all[2].ordinal, all[2].offset, all[2].size), (2, 12, 4));
    }

    #[test]
    fn all_numbers() {
        let sizes = [
            (0, 1),
            (1, 1),
            (2, 2),
            (4, 2),
            (8, 8),
            (16, 8),
            (24, 4),
            (28, 1),
        ];
        let mut bytes = vec![1, 0xfe, 0x00, 0x3e, 0xc0, 0xff, 0, 0];
        bytes.extend(0.1_f64.to_le_bytes());
        bytes.extend(u64::MAX.to_le_bytes());
        bytes.extend([0xff, 0xff, 0xff, 0xff, 2]);
        assert_eq!(
            values("_Z1fba6__halfsdmjb", &sizes, &bytes),
            [
                "true",
                "-2",
                "1.5",
                "-64",
                "0.1",
                "18446744073709551615",
                "4294967295",
                "2"
            ]
        );
    }

    #[test]
    fn without_types() {
        let mut bytes = 0x7fe6_7780_0000_u64.to_le_bytes().to_vec();
        bytes.extend(1000_u64.to_le_bytes());
        bytes.extend(1.5_f32.to_le_bytes());
        bytes.extend(7_u32.to_le_bytes());
        bytes.extend([0xaa; 24]);
        let sizes = [
            (0, 8),
            (8, 8),
            (16, 4),
            (20, 4),
            (24, 24),
            (48, 4),
            (u32::MAX, 8),
        ];
        let expected = [
            "0x7fe677800000",
            "1000",
            "0x3fc00000",
            "7",
            "{aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa ...} 24 bytes",
            "?",
            "?",
        ];
        assert_eq!(values("scale", &sizes, &bytes), expected);
        // The name has another number of parameters than the image: it does not count.
        let all = arguments("_Z1fPf", &params(&sizes), &bytes);
        assert!(all.iter().all(|a| a.kind.is_none()));
        assert_eq!(values("_Z1fPf", &sizes, &bytes), expected);
    }

    #[test]
    fn sizes_that_no_type_has() {
        assert_eq!(values("_Z1fi", &[(0, 8)], &[1; 8]), ["0x101010101010101"]);
        assert_eq!(values("_Z1fi", &[(0, 0)], &[]), ["{} 0 bytes"]);
        assert_eq!(values("_Z1fPf", &[(0, 3)], &[1; 8]), ["{} 3 bytes"]);
        // A pointer to what may not change, a null pointer, a function's.
        let bytes = [0u8; 24];
        let sizes = [(0, 8), (8, 8), (16, 8)];
        assert_eq!(
            values("_Z1fPKfPiPFvvE", &sizes, &bytes),
            ["0x0", "0x0", "0x0"]
        );
    }

    #[test]
    fn halves() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x0001, 5.960_464_5e-8),
            (0x7bff, 65504.0),
            (0, 0.0),
        ] {
            assert_eq!(half(bits), value);
        }
        assert!(half(0x7c00).is_infinite() && half(0x7e00).is_nan());
    }
}
