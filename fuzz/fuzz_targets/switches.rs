//! The driver's records of context switches: any bytes, any order; the times of an engine add up.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::switches::{RECORD_LEN, Residence, Sequence, Switch};

fuzz_target!(|data: &[u8]| {
    let (mut residence, mut sequence) = (Residence::new(0), Sequence::default());
    let mut last = 0;
    for bytes in data.chunks(RECORD_LEN) {
        let Some(switch) = Switch::read(bytes) else {
            continue;
        };
        // Sums of 64 bits hold the times of no machine that goes on for 292 years.
        let time_ns = switch.time_ns >> 1;
        let switch = Switch { time_ns, ..switch };
        if sequence.missing(switch.sequence, 0) > 0x8000 {
            residence.lost();
        }
        residence.take(&switch);
        last = last.max(time_ns);
        assert_eq!(
            Switch::read(&switch.bytes()).map(|s| s.who()),
            Some(switch.who())
        );
    }
    for engine in residence.sums(last) {
        let held: u64 = engine.holders.values().map(|h| h.resident_ns).sum();
        let all = held + engine.switch_ns + engine.nobody_ns + engine.unknown_ns;
        assert_eq!(all, engine.ns);
    }
});
