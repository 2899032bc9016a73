//! QMDs: every layout is read from any bytes, and a field that is set reads back.
//!
//! Input: u8 that chooses a class, then the QMD.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::decode::{explain, qmd, view::View};

const CLASSES: [u32; 10] = [
    0, 0xa0c0, 0xb1c0, 0xc1c0, 0xc3c0, 0xc5c0, 0xc6c0, 0xc9c0, 0xcbc0, 0xcdc0,
];

fuzz_target!(|data: &[u8]| {
    let [class, bytes @ ..] = data else { return };
    let class = CLASSES[usize::from(*class) % CLASSES.len()];
    let version = qmd::version_of(class, bytes);
    let view = View::of(class, bytes);
    assert_eq!(view.as_ref().map(|v| v.version), version);
    let text = explain::qmd(class, bytes);
    assert_eq!(text.as_ref().map(|t| t.version), version);
    let (Some(version), Some(text)) = (version, text) else {
        return;
    };
    assert!(
        text.bytes <= bytes.len()
            && qmd::versions_of(class)
                .first()
                .is_none_or(|v| (v.0 >= 5) == (version.0 >= 5)
                    || qmd::versions_of(class).contains(&version))
    );
    let layout = qmd::layout(version).expect("the one it was read by");
    let mut copy = bytes.to_vec();
    for field in layout.fields() {
        let value = field.value(bytes, 0, 0).expect("within the layout");
        assert!(field.set(&mut copy, 0, 0, !value));
        assert!(field.set(&mut copy, 0, 0, value));
    }
    assert_eq!(copy, bytes);
});
