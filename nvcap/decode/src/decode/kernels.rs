//! Kernels at the addresses of programs, from the records that name them.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    event::{Direction, Launch, LaunchKind},
    shadow::Space,
};
use crate::record::{Kernel, NamedBy};
use crate::wire::{GpuVa, hash::NumberMap, words::u64_at};

/// The most programs that are kept of one process. A long-lived process that compiles at run time keeps making new ones.
const MOST: usize = 1 << 20;
/// The most kernels that are kept of one program's address at which code was replaced.
const MOST_OF_ONE: usize = 4;

/// The most times that are kept of one kernel's records.
const MOST_TOLD: usize = 16;

/// A kernel at a program's address. It was there at the time of each of its records, which is the time of a submission that launched it.
#[derive(Debug)]
struct KnownKernel {
    kernel: Arc<Kernel>,
    /// Times of the kernel's records, in order, ns; never empty. Other code may have been there between two of them, with or without a
    /// record.
    told_ns: Vec<u64>,
}

impl KnownKernel {
    /// Returns the time from which the kernel is valid.
    fn since_ns(&self) -> u64 {
        self.told_ns.first().copied().unwrap_or(u64::MAX)
    }

    /// Returns the last record's time, not after `time_ns`, at which the kernel was there.
    fn told_by(&self, time_ns: u64) -> Option<u64> {
        let behind = self.told_ns.partition_point(|told| *told <= time_ns);
        self.told_ns.get(behind.checked_sub(1)?).copied()
    }

    /// Records that the kernel was there at a further time.
    fn tell(&mut self, time_ns: u64) {
        if let Err(place) = self.told_ns.binary_search(&time_ns) {
            self.told_ns.insert(place, time_ns);
        }
        // Any of the times suffices for what comes after it, and the newest is needed longest.
        if self.told_ns.len() > MOST_TOLD {
            self.told_ns.remove(MOST_TOLD - 1);
        }
    }

    /// Records that other code was written at a time. Returns false if no record shows the kernel there again later.
    fn survives(&mut self, written_ns: u64) -> bool {
        self.told_ns.retain(|told| *told >= written_ns);
        !self.told_ns.is_empty()
    }
}

/// Kernels by address space and address of their programs, from their records.
#[derive(Debug, Default)]
pub(super) struct Kernels {
    spaces: NumberMap<Space, BTreeMap<u64, Vec<KnownKernel>>>,
}

impl Kernels {
    /// Adds a kernel.
    pub(super) fn add(&mut self, kernel: Kernel) {
        let space = self.spaces.entry(kernel.at.pid).or_default();
        if space.len() >= MOST {
            space.pop_first();
        }
        let here = space.entry(kernel.program.0).or_default();
        let time_ns = kernel.at.time_ns;
        here.retain(|h| h.since_ns() != time_ns);
        let behind = here.partition_point(|h| h.since_ns() <= time_ns);
        // The same kernel as before, asked for again because its memory may have been written.
        let before = behind.checked_sub(1).and_then(|i| here.get_mut(i));
        if let Some(before) = before.filter(|h| h.kernel.is_same(&kernel)) {
            before.tell(time_ns);
            return;
        }
        here.insert(
            behind,
            KnownKernel {
                kernel: Arc::new(kernel),
                told_ns: vec![time_ns],
            },
        );
        if here.len() > MOST_OF_ONE {
            here.remove(0);
        }
    }

    /// Forgets the kernels whose code begins in a range that was written at a time, except those that came later.
    pub(super) fn written(&mut self, space: Space, at: GpuVa, bytes: u64, time_ns: u64) {
        let Some(known) = self.spaces.get_mut(&space).filter(|k| !k.is_empty()) else {
            return;
        };
        let end = at.0.saturating_add(bytes);
        let mut empty = Vec::new();
        for (program, here) in known.range_mut(at.0..end) {
            here.retain_mut(|h| h.survives(time_ns));
            if here.is_empty() {
                empty.push(*program);
            }
        }
        for program in empty {
            known.remove(&program);
        }
    }

    /// Forgets the kernels of a process from before a time: names of programs that it has run since may already be known. Returns whether
    /// some kernels remain.
    pub(super) fn forget(&mut self, space: Space, before_ns: u64) -> bool {
        let Some(known) = self.spaces.get_mut(&space) else {
            return false;
        };
        known.retain(|_, here| {
            here.retain_mut(|h| h.survives(before_ns));
            !here.is_empty()
        });
        let some = !known.is_empty();
        if !some {
            self.spaces.remove(&space);
        }
        some
    }

    /// Sets the kernel of a launch in a submission at a time.
    pub(super) fn name(&self, space: Space, launch: &mut Launch, time_ns: u64) {
        if launch.kernel.is_some() {
            return;
        }
        if let Some(kernel) = launch.program.and_then(|p| self.at(space, p, time_ns)) {
            launch.set_kernel(kernel);
        }
    }

    /// Returns the kernel that was at a program's address at a time.
    pub(super) fn at(&self, space: Space, program: GpuVa, time_ns: u64) -> Option<&Arc<Kernel>> {
        let here = self.spaces.get(&space)?.get(&program.0)?;
        let told = here.iter().filter_map(|h| Some((h.told_by(time_ns)?, h)));
        let (_, last) = told.max_by_key(|(told, _)| *told)?;
        let kernel = &last.kernel;
        kernel.is_known().then_some(kernel)
    }
}

impl Kernel {
    /// Tells whether two records say the same thing at different times.
    fn is_same(&self, other: &Self) -> bool {
        let at = self.at;
        *self
            == Self {
                at,
                ..other.clone()
            }
    }
}

impl Launch {
    /// Sets the launch's kernel, and the kind that follows from the kernel's name. A program that is named by its code only may launch
    /// others' kernels, as CUPTI's does; then the launch's shape is better evidence of the kind, unless the program is the driver's.
    pub fn set_kernel(&mut self, kernel: &Arc<Kernel>) {
        let tells = kernel.certain && (kernel.driver || kernel.by != NamedBy::Code);
        if tells && !matches!(self.kind, LaunchKind::Companion | LaunchKind::Unresolved) {
            self.kind = kind(kernel);
            if !matches!(self.kind, LaunchKind::DriverMemset | LaunchKind::DriverCopy) {
                self.moves = None;
            }
            self.count_words(kernel);
        }
        self.kernel = Some(kernel.clone());
    }
}

impl Launch {
    /// Returns the direction of a copy by a kernel of the driver's, which moves data within the device. It is to or from arrays if the
    /// kernel's name is certain and says so (`memcpyA2DtoD3D`, `IntAligned_DtoA2D_surf`).
    #[must_use]
    pub fn copy_direction(&self) -> Direction {
        let kernel = self.kernel.as_ref().filter(|k| k.certain && k.driver);
        let sides = kernel.and_then(|k| k.name.split_once("to"));
        let array = |end: Option<char>| end == Some('A');
        match sides.map(|(from, to)| {
            let from = from
                .strip_suffix("2D")
                .or_else(|| from.strip_suffix("3D"))
                .unwrap_or(from);
            (array(from.chars().next_back()), array(to.chars().next()))
        }) {
            Some((true, true)) => Direction::ArrayToArray,
            Some((true, false)) => Direction::ArrayToDevice,
            Some((false, true)) => Direction::DeviceToArray,
            _ => Direction::DeviceToDevice,
        }
    }

    /// Sets the number of bytes of a copy by words, whose launch looks like that of a copy of as many bytes.
    fn count_words(&mut self, kernel: &Kernel) {
        let args = self.args.as_deref().unwrap_or(&[]);
        if let Some(moves) = &mut self.moves
            && moves.bytes.is_none()
            && args.len() == 24
            && kernel.driver
            && kernel.name == "memcpy32_post"
        {
            moves.bytes = u64_at(args, 16).and_then(|words| words.checked_mul(4));
        }
    }
}

/// Returns the kind of a launch by its kernel. The names of the driver's own kernels are in docs/decoding.md, "Kernels of the driver".
fn kind(kernel: &Kernel) -> LaunchKind {
    match (kernel.driver, kernel.name.as_str()) {
        (false, _) => LaunchKind::User,
        (true, name) if name.starts_with("memset") => LaunchKind::DriverMemset,
        (true, name) if name.starts_with("memcpy") || name.contains("Aligned_") => {
            LaunchKind::DriverCopy
        }
        (true, name) if name.ends_with("Scheduler") => LaunchKind::DriverGraph,
        (true, _) => LaunchKind::Driver,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::event::{LaunchHow, Moves};
    use crate::decode::ops::launch::unresolved;
    use crate::record::At;

    fn kernel(program: u64, name: &str, driver: bool) -> Kernel {
        let at = At {
            pid: 7,
            ..At::default()
        };
        Kernel {
            driver,
            ..Kernel::called(at, program, name)
        }
    }

    #[test]
    fn names_tell_copies_of_arrays() {
        use Direction::{ArrayToArray, ArrayToDevice, DeviceToArray, DeviceToDevice};
        for (name, way) in [
            ("IntAligned_AtoA_surf", ArrayToArray),
            ("IntAligned_AtoD2D_surf", ArrayToDevice),
            ("CharAligned_DtoA2DLayered_nosurf", DeviceToArray),
            ("memcpyA2DtoA3D", ArrayToArray),
            ("memcpyA3DtoD3D", ArrayToDevice),
            ("memcpyD3DtoA2D", DeviceToArray),
            ("memcpyDtoD3DAligned", DeviceToDevice),
            ("memcpyDtoD2D_aligned", DeviceToDevice),
            ("memcpy128", DeviceToDevice),
        ] {
            let mut launch = unresolved(LaunchHow::Scheduled, None);
            assert_eq!(launch.copy_direction(), DeviceToDevice);
            launch.kernel = Some(Arc::new(kernel(1, name, true)));
            assert_eq!(launch.copy_direction(), way, "{name}");
        }
    }

    /// Test of 150 words and of 150 bytes, which are both copied by one block of 256 threads: the kernel's name tells them apart.
    #[test]
    fn words_are_told_from_bytes_by_the_name() {
        let bytes = |name: &str| {
            let mut launch = unresolved(LaunchHow::Scheduled, None);
            launch.kind = LaunchKind::DriverCopy;
            launch.args = Some(
                [0x7000_0000, 0x8000_0000, 150u64]
                    .map(u64::to_le_bytes)
                    .concat(),
            );
            launch.moves = Some(Moves {
                dst: Some(GpuVa(0x7000_0000)),
                src: Some(GpuVa(0x8000_0000)),
                bytes: None,
                value: None,
            });
            launch.set_kernel(&Arc::new(kernel(1, name, true)));
            launch.moves.and_then(|m| m.bytes)
        };
        assert_eq!(bytes("memcpy32_post"), Some(600));
        assert_eq!(bytes("memcpy_post"), None);
    }

    #[test]
    fn written_code_has_another_name() {
        let mut kernels = Kernels::default();
        for program in [0x1000, 0x2000, 0x3000] {
            kernels.add(kernel(program, "add", false));
        }
        kernels.written(7, GpuVa(0x1800), 0x1000, 5);
        kernels.written(8, GpuVa(0), u64::MAX, 5);
        let known: Vec<u64> = kernels.spaces[&7].keys().copied().collect();
        assert_eq!(known, [0x1000, 0x3000]);
        kernels.written(7, GpuVa(0x3000), u64::MAX, 5);
        assert_eq!(kernels.spaces[&7].len(), 1);
    }

    #[test]
    fn a_kernel_holds_from_its_first_launch_on() {
        let mut kernels = Kernels::default();
        let named_at = |kernels: &Kernels, time_ns: u64| {
            let mut launch = crate::decode::ops::launch::unresolved(LaunchHow::Scheduled, None);
            launch.program = Some(GpuVa(0x1000));
            kernels.name(7, &mut launch, time_ns);
            launch.kernel.map(|k| k.name.clone())
        };
        for (time_ns, name) in [(20, "second"), (10, "first")] {
            let mut of = kernel(0x1000, name, false);
            of.at.time_ns = time_ns;
            kernels.add(of);
        }
        assert_eq!(named_at(&kernels, 9), None);
        assert_eq!(named_at(&kernels, 10).as_deref(), Some("first"));
        assert_eq!(named_at(&kernels, 25).as_deref(), Some("second"));
        // The kernel is recorded many times, because its memory may have been written: it was there all the time.
        for time_ns in 22..30 {
            let mut of = kernel(0x1000, "second", false);
            of.at.time_ns = time_ns;
            kernels.add(of);
        }
        assert_eq!(named_at(&kernels, 10).as_deref(), Some("first"));
        assert_eq!(named_at(&kernels, 20).as_deref(), Some("second"));
        // The code of the second kernel, whose submission is decoded after its name is known.
        kernels.written(7, GpuVa(0x1000), 64, 20);
        assert_eq!(named_at(&kernels, 15), None);
        assert_eq!(named_at(&kernels, 20).as_deref(), Some("second"));
        kernels.written(7, GpuVa(0x1000), 64, 25);
        assert_eq!(named_at(&kernels, 27).as_deref(), Some("second"));
        kernels.written(7, GpuVa(0x1000), 64, 30);
        assert_eq!(named_at(&kernels, 40), None);
    }

    /// Test of modules that are loaded again and again: the names of two loads are known before the module loaded between them is decoded.
    #[test]
    fn what_lay_there_between_two_loads_of_a_kernel_is_not_it() {
        let mut kernels = Kernels::default();
        let name_at = |kernels: &Kernels, time_ns: u64| {
            let kernel = kernels.at(7, GpuVa(0x1000), time_ns);
            kernel.map(|k| k.name.clone())
        };
        for time_ns in [10, 50] {
            let mut of = kernel(0x1000, "first", false);
            of.at.time_ns = time_ns;
            kernels.add(of);
        }
        kernels.written(7, GpuVa(0x1000), 64, 9);
        assert_eq!(name_at(&kernels, 12).as_deref(), Some("first"));
        kernels.written(7, GpuVa(0x1000), 64, 30);
        assert_eq!(name_at(&kernels, 31), None, "other code, without a record");
        kernels.written(7, GpuVa(0x1000), 64, 49);
        assert_eq!(name_at(&kernels, 50).as_deref(), Some("first"));
        // Another kernel was there in between; its record comes last.
        let mut other = Kernels::default();
        for (time_ns, name) in [(10, "first"), (50, "first"), (30, "second")] {
            let mut of = kernel(0x1000, name, false);
            of.at.time_ns = time_ns;
            other.add(of);
        }
        for (time_ns, name) in [(29, "first"), (49, "second"), (60, "first")] {
            assert_eq!(name_at(&other, time_ns).as_deref(), Some(name), "{time_ns}");
        }
        // However often the kernel is recorded, it is valid at the time of the last record.
        for time_ns in 51..200 {
            let mut of = kernel(0x1000, "first", false);
            of.at.time_ns = time_ns;
            kernels.add(of);
        }
        kernels.written(7, GpuVa(0x1000), 64, 199);
        assert_eq!(name_at(&kernels, 199).as_deref(), Some("first"));
        assert!(kernels.spaces[&7][&0x1000][0].told_ns.len() <= MOST_TOLD);
    }

    #[test]
    fn an_exec_leaves_what_came_after_it() {
        let mut kernels = Kernels::default();
        for (program, time_ns) in [(0x1000, 5), (0x2000, 15)] {
            let mut of = kernel(program, "add", false);
            of.at.time_ns = time_ns;
            kernels.add(of);
        }
        kernels.forget(7, 10);
        let known: Vec<u64> = kernels.spaces[&7].keys().copied().collect();
        assert_eq!(known, [0x2000]);
        kernels.forget(7, u64::MAX);
        assert!(kernels.spaces.is_empty());
    }

    /// Test of CUPTI, which launches every kernel through a program of its own; the program's code names CUPTI's kernel.
    #[test]
    fn a_program_that_its_code_alone_names_does_not_tell_what_is_launched() {
        let mut launch = crate::decode::ops::launch::unresolved(LaunchHow::Scheduled, None);
        launch.kind = LaunchKind::DriverMemset;
        let mut of = kernel(1, "hopperTraceKernel", false);
        of.by = NamedBy::Code;
        launch.set_kernel(&Arc::new(of));
        assert_eq!(launch.kind, LaunchKind::DriverMemset);
        assert!(launch.kernel.is_some());
        launch.set_kernel(&Arc::new(kernel(1, "add", false)));
        assert_eq!(launch.kind, LaunchKind::User);
    }

    #[test]
    fn the_driver_s_kernels_by_name() {
        let kind_of = |name: &str| kind(&kernel(1, name, true));
        assert_eq!(kind_of("memset32"), LaunchKind::DriverMemset);
        assert_eq!(kind_of("memcpy32_post"), LaunchKind::DriverCopy);
        assert_eq!(kind_of("IntAligned_AtoA_surf"), LaunchKind::DriverCopy);
        assert_eq!(kind_of("conditionalScheduler"), LaunchKind::DriverGraph);
        assert_eq!(kind_of("cnpLaunchDeviceV2"), LaunchKind::Driver);
        assert_eq!(kind(&kernel(1, "memset32", false)), LaunchKind::User);
    }
}
