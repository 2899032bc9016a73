//! Names of kernels: any text is demangled or stays as it is.
//!
//! Input: the name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_show::output::kernel_name::{demangled, parameters, short};

fuzz_target!(|data: &[u8]| {
    let Ok(name) = std::str::from_utf8(data) else {
        return;
    };
    let (full, brief) = (demangled(name), short(name));
    assert_eq!(full.is_empty(), name.is_empty());
    assert!(brief.len() <= (512 << 10).max(name.len()));
    if let Some(types) = parameters(name) {
        assert!(types.iter().all(|t| !t.is_empty()));
    }
});
