//! Fat binaries: any bytes have some entries or none, which lie within them, and what is unpacked has the length that was told.
//!
//! Input: the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::cubin::{
    Cubin,
    fatbin::{Packing, entries},
};

/// The most bytes of a payload that is unpacked.
const MOST: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let len = data.len() as u64;
    let mut last = 0;
    for entry in entries(data, 0..len) {
        assert!(entry.at >= last + 64 && entry.at + entry.len <= len);
        last = entry.at + entry.len;
        if let Ok(bytes) = entry.unpack(data, MOST) {
            assert!(entry.len <= MOST && entry.unpacked <= MOST);
            assert_eq!(bytes.len() as u64, entry.unpacked);
            if entry.packing == Packing::None {
                assert_eq!(bytes, data[entry.at as usize..][..bytes.len()]);
            }
            let _ = Cubin::read(bytes.as_slice(), 0);
        }
    }
});
