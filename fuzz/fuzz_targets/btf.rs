//! BTF: any bytes are taken for type information or refused, a search ends, and a module's function is not its kernel's.
//!
//! Input: u16 length of the kernel's type information, then it, then a module's on top of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_live::trap::btf::Btf;

fn search(btf: &Btf) {
    for of in ["s", "task_struct", ""] {
        for member in ["a", "b", "mm", ""] {
            let _ = btf.offset(of, member);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let [low, high, rest @ ..] = data else { return };
    let at = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (kernel, module) = rest.split_at(at);
    let Some(kernel) = Btf::parse(kernel.to_vec(), None) else {
        return;
    };
    search(&kernel);
    let functions = ["f", "g", ""].map(|name| (name, kernel.function(name)));
    let Some(module) = Btf::parse(module.to_vec(), Some(Box::new(kernel))) else {
        return;
    };
    search(&module);
    // A module's types are counted on from the kernel's.
    let last = functions
        .iter()
        .filter_map(|(_, f)| Some(f.as_ref()?.id))
        .max();
    for (name, _) in functions {
        if let Some(own) = module.function(name) {
            assert!(own.id >= 1 && last.is_none_or(|last| own.id > last));
        }
    }
});
