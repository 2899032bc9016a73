//! The kernel of a program counter.

use std::collections::HashMap;

use nvcap_decode::record::Kernel;

/// Length that a kernel of unknown length is taken to have, bytes.
const LONGEST_UNKNOWN: u64 = 512 << 10;

/// The most kernels that are kept, of all processes.
const MOST: usize = 1 << 18;

/// The kernel in whose code an instruction lies; `kernels` are in the order of addresses.
#[must_use]
pub fn kernel_at(kernels: &[Kernel], pc: u64) -> Option<&Kernel> {
    let behind = kernels.partition_point(|kernel| kernel.program.0 <= pc);
    let kernel = kernels.get(behind.checked_sub(1)?)?;
    let len = kernel.bytes.unwrap_or(LONGEST_UNKNOWN);
    (!kernel.name.is_empty() && pc - kernel.program.0 < len).then_some(kernel)
}

/// Kernels by process.
#[derive(Debug, Default)]
pub struct Kernels {
    by_process: HashMap<u32, Vec<Kernel>>,
    count: usize,
}

impl Kernels {
    /// Takes a kernel with a name. A certain one replaces one that is not; else the first one stays.
    pub fn add(&mut self, kernel: &Kernel) {
        if !kernel.is_known() || self.count >= MOST {
            return;
        }
        let all = self.by_process.entry(kernel.at.pid).or_default();
        match all.binary_search_by_key(&kernel.program, |k| k.program) {
            Ok(place) => {
                if let Some(known) = all.get_mut(place)
                    && (kernel.certain, kernel.bytes.is_some())
                        > (known.certain, known.bytes.is_some())
                {
                    *known = kernel.clone();
                }
            }
            Err(place) => {
                all.insert(place, kernel.clone());
                self.count += 1;
            }
        }
    }

    /// Forgets the kernels of a process.
    pub fn forget(&mut self, pid: u32) {
        let forgotten = self.by_process.remove(&pid);
        self.count -= forgotten.map_or(0, |kernels| kernels.len());
    }

    /// The kernels of a process, in the order of addresses.
    #[must_use]
    pub fn of(&self, pid: u32) -> &[Kernel] {
        self.by_process.get(&pid).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::At;

    #[test]
    fn a_certain_name_takes_the_place_of_a_guess() {
        let mut kernels = Kernels::default();
        let of = |program, name, certain, bytes| Kernel {
            certain,
            bytes,
            ..Kernel::called(At::of_process(1, 7), program, name)
        };
        for kernel in [
            of(0x2000, "second", true, Some(64)),
            of(0x1000, "guess", false, Some(64)),
            of(0x1000, "first", true, Some(64)),
            of(0x1000, "later", true, Some(64)),
            Kernel::unknown(At::of_process(1, 7), 0x2000),
        ] {
            kernels.add(&kernel);
        }
        let name = |pc| kernel_at(kernels.of(7), pc).map(|k| k.name.as_str());
        assert_eq!(name(0x1030), Some("first"));
        assert_eq!(name(0x1040), None);
        assert_eq!((name(0x2000), name(0xfff)), (Some("second"), None));
        assert!(kernels.of(8).is_empty());
    }
}
