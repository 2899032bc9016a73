//! Translations of the GPU addresses of a process's channels to the process's own, in the BPF programs' form.
//!
//! Invariant: a GPU address space of a process has one number in XLATE, and keeps it until the process's address space is
//! gone. 0 stands for identical addresses.

use std::collections::HashMap;

use nvcap_common as c;

use super::bpf_maps::BpfMaps;
use nvcap_decode::driver::{self, AddressMap};
use nvcap_process::error::Result;

/// A GPU address space, as seen by one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GpuView {
    pub(super) space: u32,
    /// Number of the GPU address space in the driver model; none where it is unknown.
    pub(super) of: Option<driver::Space>,
}

/// Keys in XLATE.
#[derive(Debug, Default)]
pub(super) struct Translations(HashMap<GpuView, u32>);

impl Translations {
    /// Gives the BPF programs the translation of a channel's GPU addresses. Returns its key; 0 where the process has the
    /// same addresses.
    pub(super) fn publish(
        &mut self,
        view: GpuView,
        mut map: AddressMap,
        maps: &mut impl BpfMaps,
    ) -> Result<u32> {
        let known = self.0.get(&view).copied();
        if map.ranges.is_empty() && known.is_none() {
            return Ok(0);
        }
        if map.ranges.len() > c::RANGES {
            // Memory of ranges that do not fit is fetched from outside, later.
            map.ranges.retain(|t| t.gpu.0 != t.cpu.0);
            map.ranges.truncate(c::RANGES);
        }
        let mut ranges = c::Ranges {
            count: map.ranges.len() as u32,
            complete: map.complete.into(),
            ranges: [c::Range::default(); c::RANGES],
        };
        for (slot, t) in ranges.ranges.iter_mut().zip(&map.ranges) {
            *slot = c::Range {
                gpu: t.gpu.0,
                len: t.len,
                cpu: t.cpu.0,
            };
        }
        // Numbers of address spaces that are gone are free.
        let free = || (1..).find(|n| self.0.values().all(|taken| taken != n));
        let number = known.or_else(free).unwrap_or(u32::MAX);
        maps.set_ranges(number, ranges)?;
        self.0.insert(view, number);
        Ok(number)
    }

    /// Frees the numbers of an address space that is gone.
    pub(super) fn forget_space(&mut self, space: u32) {
        self.0.retain(|view, _| view.space != space);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::bpf_maps::tests::Written, *};
    use nvcap_decode::{driver::Translation, record::CpuVa, wire::GpuVa};

    fn map(n: u64) -> AddressMap {
        let ranges = (0..n).map(|i| Translation {
            gpu: GpuVa(i << 20),
            len: 1 << 20,
            // Every second range is at the same address.
            cpu: CpuVa((i << 20) + (i % 2)),
            space: driver::Space::Uvm { pid: 7 },
        });
        AddressMap {
            ranges: ranges.collect(),
            complete: true,
        }
    }

    fn view(space: u32) -> GpuView {
        GpuView { space, of: None }
    }

    #[test]
    fn a_view_keeps_its_number_until_its_space_is_gone() {
        let (mut all, mut written) = (Translations::default(), Written::default());
        let mut publish = |all: &mut Translations, space, n| {
            all.publish(view(space), map(n), &mut written).unwrap()
        };
        assert_eq!(publish(&mut all, 1, 0), 0, "addresses are the same");
        assert_eq!(publish(&mut all, 1, 1), 1);
        assert_eq!(publish(&mut all, 2, 1), 2);
        assert_eq!(publish(&mut all, 1, 0), 1, "a removed range is published");
        all.forget_space(1);
        assert_eq!(publish(&mut all, 3, 1), 1);
        assert_eq!(written.ranges.len(), 2);
    }

    #[test]
    fn of_too_many_ranges_those_that_differ_are_published() {
        let (mut all, mut written) = (Translations::default(), Written::default());
        let n = c::RANGES as u64 + 2;
        all.publish(view(1), map(n), &mut written).unwrap();
        let told = &written.ranges[&1];
        assert_eq!(u64::from(told.count), n / 2);
        assert!(
            told.ranges[..told.count as usize]
                .iter()
                .all(|r| r.gpu != r.cpu)
        );
    }
}
