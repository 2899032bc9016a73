//! GPFIFO entries: what is read is formed again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::wire::entry::{self, EntryKind};

fuzz_target!(|data: &[u8]| {
    let mut base = 0;
    for raw in entry::iter(data) {
        match entry::read(raw, base) {
            EntryKind::Segment {
                address,
                len,
                conditional,
                subroutine,
                sync,
            } => {
                assert!(len > 0 && len % 4 == 0);
                assert_eq!(address.0 & !0xff_ffff_ffff, base);
                let formed = entry::segment(address, len, conditional, subroutine, sync);
                assert_eq!(entry::read(formed, base), entry::read(raw, base));
            }
            EntryKind::Control {
                opcode,
                operand,
                sync,
            } => {
                let opcode = entry::Opcode(opcode);
                let formed = entry::control(opcode, operand, sync);
                assert_eq!(entry::read(formed, base), entry::read(raw, base));
                if opcode == entry::Opcode::SET_PB_SEGMENT_EXTENDED_BASE {
                    base = entry::extended_base(operand);
                }
            }
        }
    }
});
