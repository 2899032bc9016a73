//! CUDA ELF images: any bytes are one or none, and what is found lies within bounds.
//!
//! Input: the image.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::cubin::{Cubin, beginnings, compare, control::Control, variables};

fuzz_target!(|data: &[u8]| {
    assert!(beginnings(data).all(|at| at + 8 <= data.len() && data[at] == 0x7f));
    let Some(image) = Cubin::read(data, 0) else {
        return;
    };
    assert!(image.len >= 64 && image.sm <= 255);
    let variables = variables(data, 0).unwrap_or_default();
    assert!(variables.is_sorted_by_key(|v| v.constant));
    for function in &image.functions {
        assert!(function.code.start <= function.code.end && function.code.end <= image.len);
        let len = function.code.end - function.code.start;
        assert!(function.relocations.is_sorted_by(|a, b| a < b));
        assert!(function.relocations.iter().all(|at| *at < len));
        assert!(function.params.is_sorted_by(|a, b| a.ordinal < b.ordinal));
        let (start, end) = (function.code.start as usize, function.code.end as usize);
        if let Some(code) = data.get(start..end) {
            let likeness = compare::compare(code, &function.relocations, code);
            assert_eq!(likeness.different, 0);
            assert_eq!(likeness.equal + likeness.masked, code.len().div_ceil(16));
            for instruction in code.as_chunks::<16>().0 {
                let control = Control::of(image.sm, instruction);
                assert!(control.is_none_or(|c| c.to_string().len() == 21));
            }
        }
    }
});
