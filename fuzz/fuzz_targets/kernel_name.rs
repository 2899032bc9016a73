//! Names of kernels: any text is demangled or stays as it is.
//!
//! Input: the name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::record::{At, Kernel};
use nvcap_show::output::kernel_name::{demangled, parameters, short};
use nvcap_show::output::kernels;

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
    // The name that text shows, of which the second look tells the same.
    let kernel = Kernel::called(At::default(), 1, name);
    let shown = kernels::name(&kernel).shown.clone();
    assert_eq!(kernels::name(&kernel).shown, shown);
    assert_eq!(shown.is_empty(), name.is_empty());
});
