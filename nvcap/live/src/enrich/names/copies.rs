//! Destinations of copies by the copy engine, found before a submission is decoded, because libcuda uploads modules by such copies.

use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::header::Step;
use nvcap_decode::wire::method::{COPY_LAUNCH_DMA, COPY_LINE_LENGTH_IN, COPY_OFFSET_OUT_UPPER};
use nvcap_decode::wire::stream::{Item, Stream};

/// Returns the address and the number of bytes of each range that the copy engine's copies write, by commands that begin with `bytes`.
/// Finds only copies that set address and length in the same commands, as libcuda does.
pub(super) fn copies(bytes: &[u8]) -> Vec<(GpuVa, u64)> {
    // Of each subchannel: OFFSET_OUT_UPPER, OFFSET_OUT_LOWER, LINE_LENGTH_IN, LINE_COUNT.
    let mut set = [[None; 4]; 8];
    let mut copies = Vec::new();
    let mut stream = Stream::default();
    let announced = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    for item in stream.runs(bytes, announced, &[]) {
        let Item::Run(run) = item else {
            continue;
        };
        // Data for one method, or for others, costs nothing.
        let last = match run.step {
            Step::Increment => run.address_of(run.len().saturating_sub(1)),
            _ => run.address,
        };
        if run.address > COPY_LINE_LENGTH_IN + 4 || last < COPY_LAUNCH_DMA {
            continue;
        }
        let Some(set) = set.get_mut(usize::from(run.subchannel)) else {
            continue;
        };
        for write in run.writes() {
            match (write.address, &mut *set) {
                (COPY_LAUNCH_DMA, [Some(upper), Some(lower), Some(length), lines]) => {
                    let address = u64::from(*upper & 0x1ff_ffff) << 32 | u64::from(*lower);
                    let lines = u64::from(lines.unwrap_or(1).max(1));
                    copies.push((GpuVa(address), u64::from(*length) * lines));
                }
                (at, set) => {
                    let place = [
                        COPY_OFFSET_OUT_UPPER,
                        COPY_OFFSET_OUT_UPPER + 4,
                        COPY_LINE_LENGTH_IN,
                        COPY_LINE_LENGTH_IN + 4,
                    ]
                    .iter()
                    .position(|a| *a == at);
                    if let Some(word) = place.and_then(|i| set.get_mut(i)) {
                        *word = Some(write.data);
                    }
                }
            }
        }
    }
    copies
}
