//! Facts about an entry that concern its times: the semaphores that show them. They are read before the entry is decoded, without the
//! channel's state.

use super::pair::Pair;
use super::words::Value;
use crate::decode::{qmd_copy, view::View};
use crate::wire::GpuVa;
use crate::wire::method::{COPY_LAUNCH_DMA, SEM_ADDR_LO, SEM_EXECUTE, SEND_PCAS_A};
use crate::wire::release::{self, HostRelease};
use crate::wire::stream::{Item, Stream};
use crate::wire::words::u32_at;

/// The subchannels of the copy classes (docs/decoding.md); libcuda uses subchannel 4.
const COPY_SUBCHANNEL: u8 = 4;
/// DATA_TRANSFER_TYPE of LAUNCH_DMA: something is copied.
const COPIES: u32 = 3;
/// Mask of SEM_EXECUTE's operation, and the operations that wait for a number.
const OPERATION: u32 = 7;
const WAITS: [u32; 3] = [0, 2, 3];
/// The most words of a QMD.
const QMD_WORDS: u16 = 96;
/// Compute classes with different layouts of QMDs, which are tried if the chip is not known.
const CLASSES: [u32; 4] = [0xcbc0, 0xcdc0, 0xc6c0, 0xc3c0];

/// Place of a stamp in an entry, which determines when the stamp is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Written as soon as the commands before it have passed the front end, which is when kernels begin.
    FrontEnd,
    /// Written when the work before it has ended.
    Behind,
}

/// Semaphores and work of an entry, as far as its times are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Stamp with which the entry ends.
    pub stamp: Option<(Value, Place)>,
    /// Semaphore values that the entry's kernels release at their ends.
    pub ends: Vec<Value>,
    /// Semaphores for which the entry waits before its stamp.
    pub waits: Vec<Value>,
    /// True if the entry launches kernels or copies.
    pub works: bool,
    /// Number of launches and copies; a graph counts as one.
    pub count: u32,
    /// True if the entry launches QMDs that are in memory already: a graph.
    pub replays: bool,
    /// Stamps around the submission, if the entry stands for the whole submission.
    pub pair: Option<Pair>,
}

impl Unit {
    /// Reads the unit from an entry's bytes. `class` is the compute class of the GPU, if known.
    pub fn of(bytes: &[u8], class: Option<u32>) -> Self {
        let mut unit = Self::default();
        let mut host = [0u32; 4];
        let (mut stamp, mut qmd) = (None, false);
        let mut stream = Stream::default();
        for item in stream.runs(bytes, bytes.len() as u32, &[]) {
            let run = match item {
                Item::Run(run) => run,
                Item::Stop(..) => break,
                _ => continue,
            };
            if run.masked || run.len() > 64 {
                continue;
            }
            for write in run.writes() {
                match write.address {
                    SEM_EXECUTE => {
                        let value = Value {
                            address: GpuVa(
                                u64::from(host[1] & 0x1ff_ffff) << 32 | u64::from(host[0] & !3),
                            ),
                            payload: host[2],
                        };
                        match HostRelease::of(write.data) {
                            Some(r) if r.stamped => {
                                let place = match r.waits {
                                    true => Place::Behind,
                                    false => Place::FrontEnd,
                                };
                                stamp = Some((value, place));
                            }
                            None if WAITS.contains(&(write.data & OPERATION)) => {
                                unit.waits.push(value);
                            }
                            _ => {}
                        }
                    }
                    SEM_ADDR_LO..SEM_EXECUTE => {
                        let index = usize::from(write.address - SEM_ADDR_LO) / 4;
                        if let Some(word) = host.get_mut(index) {
                            *word = write.data;
                        }
                    }
                    COPY_LAUNCH_DMA if run.subchannel == COPY_SUBCHANNEL => {
                        unit.works |= write.data & COPIES != 0;
                        unit.count += u32::from(write.data & COPIES != 0);
                    }
                    SEND_PCAS_A if run.subchannel != COPY_SUBCHANNEL => {
                        unit.works = true;
                        qmd = true;
                    }
                    _ => {}
                }
            }
        }
        unit.stamp = match release::at_end(bytes) {
            Some(r) if r.stamped => {
                let place = match r.by_copy {
                    true => Place::Behind,
                    false => Place::FrontEnd,
                };
                let value = Value {
                    address: r.address,
                    payload: r.payload,
                };
                Some((value, place))
            }
            _ => stamp,
        };
        if qmd {
            let kernels;
            (unit.ends, kernels) = ends(bytes, class);
            unit.replays = kernels.is_none();
            unit.count += kernels.unwrap_or(1);
        }
        unit
    }
}

/// Returns the semaphore values that kernels release at their ends, and the number of these kernels: those whose QMDs these bytes write.
/// The kernels of a graph count as one. The number is `None` if the bytes have no QMDs. Empty grids, which libcuda puts before kernels, do
/// not count. The QMDs of a graph are in memory already. They are recognised because libcuda writes, before a graph as before each kernel,
/// the number that precedes the one they release.
fn ends(bytes: &[u8], class: Option<u32>) -> (Vec<Value>, Option<u32>) {
    let classes = class.map_or(CLASSES.to_vec(), |c| vec![c]);
    let (mut all, mut prepared) = (Vec::new(), Vec::new());
    let (mut uploaded, mut leads, mut kernels) = (false, false, 0);
    for upload in qmd_copy::uploads(bytes, QMD_WORDS) {
        if let (4, Some(number)) = (upload.data.len(), u32_at(upload.data, 0)) {
            prepared.push(Value {
                address: upload.address,
                payload: number.wrapping_add(1),
            });
        }
        let view = classes.iter().find_map(|class| {
            let fits = upload.data.len() == qmd_copy::size(*class);
            (fits && qmd_copy::is_node(*class, upload.data))
                .then(|| View::of(*class, upload.data))?
        });
        uploaded |= view.is_some();
        if let Some(view) = &view {
            // An empty grid with which a graph begins; it begins others, or is begun by them.
            let is_root = view.grid.contains(&0);
            let is_begun = view.requires_pcas || view.dependence > 0;
            leads |= is_root || is_begun || !view.dependents.is_empty();
            kernels += u32::from(!is_root);
        }
        for release in view.iter().flat_map(|v| &v.releases) {
            all.push(Value {
                address: release.address,
                payload: release.payload as u32,
            });
        }
    }
    let ends = if all.is_empty() { prepared } else { all };
    let kernels = if leads { 1 } else { kernels };
    (ends, uploaded.then_some(kernels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::encode::{Pushbuffer, Qmd};
    use crate::decode::event::QmdRelease;

    const CLASS: u32 = 0xcbc0;

    fn value(address: u64, payload: u32) -> Value {
        Value {
            address: GpuVa(address),
            payload,
        }
    }

    #[test]
    fn a_launch_has_a_stamp_at_its_begin_and_a_release_at_its_end() {
        let view = View {
            version: (4, 0),
            grid: [4, 1, 1],
            block: [64, 1, 1],
            registers: 24,
            program: GpuVa(0x7f00_0000_0000),
            releases: vec![QmdRelease {
                address: GpuVa(0x2_0463_7000),
                payload: 9,
            }],
            ..View::default()
        };
        let qmd = Qmd::of(&view).expect("a layout");
        let mut p = Pushbuffer::new();
        p.named(0, 0xc86f, "SEM_ADDR_LO", &[0x0460_fee0, 2, 41, 0, 3])
            .expect("methods");
        p.inline(1, CLASS, GpuVa(0x2_04c0_0000), qmd.bytes())
            .expect("inline data");
        p.named(1, CLASS, "SEND_PCAS_A", &[0x0204_c000])
            .expect("a method");
        p.named(1, CLASS, "SET_REPORT_SEMAPHORE_A", &[2, 0x0460_fff0, 77, 0])
            .expect("methods");
        let expected = Unit {
            stamp: Some((value(0x2_0460_fff0, 77), Place::FrontEnd)),
            ends: vec![value(0x2_0463_7000, 9)],
            waits: vec![value(0x2_0460_fee0, 41)],
            works: true,
            count: 1,
            replays: false,
            pair: None,
        };
        assert_eq!(Unit::of(&p.bytes(), Some(CLASS)), expected);
        assert_eq!(Unit::of(&p.bytes(), None), expected);
        for cut in 0..p.bytes().len() {
            let _ = Unit::of(&p.bytes()[..cut], None);
        }
    }

    /// Test of a replay as libcuda 580 submits it: first QMD, the number before the last kernel's release, first node.
    #[test]
    fn a_replay_s_end_is_the_number_behind_the_prepared_one() {
        let mut p = Pushbuffer::new();
        let word = GpuVa(0x2_0462_7efc);
        p.named(0, 0xc86f, "SEM_ADDR_LO", &[0x0462_7efc, 2, 0x28e, 0, 3])
            .expect("methods");
        p.named(1, CLASS, "SEND_PCAS_A", &[0x0204_c000])
            .expect("a method");
        p.inline(1, CLASS, word, &0x291u32.to_le_bytes())
            .expect("inline data");
        p.named(1, CLASS, "SEND_PCAS_A", &[0x0204_c024])
            .expect("a method");
        p.named(1, CLASS, "SET_REPORT_SEMAPHORE_A", &[2, 0x0460_ffe0, 77, 0])
            .expect("methods");
        let unit = Unit::of(&p.bytes(), Some(CLASS));
        assert_eq!(unit.ends, [value(word.0, 0x292)]);
        assert_eq!(unit.waits, [value(word.0, 0x28e)]);
        assert!(unit.works && unit.replays && unit.count == 1);
    }

    #[test]
    fn a_copy_has_its_stamp_behind_it() {
        let mut p = Pushbuffer::new();
        p.named(4, 0xc8b5, "LAUNCH_DMA", &[0x182])
            .expect("a method");
        p.named(4, 0xc8b5, "SET_SEMAPHORE_A", &[2, 0x0460_ffe0, 5])
            .expect("methods");
        p.named(4, 0xc8b5, "LAUNCH_DMA", &[0x14]).expect("a method");
        let unit = Unit::of(&p.bytes(), Some(CLASS));
        assert_eq!(unit.stamp, Some((value(0x2_0460_ffe0, 5), Place::Behind)));
        assert!(unit.works && unit.ends.is_empty() && unit.waits.is_empty());
    }

    #[test]
    fn a_release_by_the_host_stamps_too() {
        let mut p = Pushbuffer::new();
        let execute = 1 | 1 << 20 | 1 << 25;
        p.named(0, 0xc86f, "SEM_ADDR_LO", &[0x1000, 3, 6, 0, execute])
            .expect("methods");
        let unit = Unit::of(&p.bytes(), None);
        assert_eq!(unit.stamp, Some((value(0x3_0000_1000, 6), Place::Behind)));
        assert!(!unit.works);
    }
}
