//! The machines of the matrix, and the tests that each runs.

use clap::ValueEnum;

/// Way in which nvcap finds mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// A kprobe on nvidia_mmap.
    Kprobe,
    /// fentry through the module's BTF.
    Fentry,
    /// Raw tracepoints of system calls.
    Tracepoint,
}

impl Way {
    /// Its name in nvcap's `--discover`.
    pub fn name(self) -> &'static str {
        match self {
            Way::Kprobe => "kprobe",
            Way::Fentry => "fentry",
            Way::Tracepoint => "tracepoint",
        }
    }
}

/// One machine.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Kernel series.
    pub kernel: &'static str,
    /// Way in which nvcap finds mappings.
    pub way: Way,
    /// Driver branch of the stand-in.
    pub branch: u32,
    /// GPUs.
    pub gpus: usize,
    /// The modules have BTF.
    pub btf: bool,
    /// `none` or `integrity`.
    pub lockdown: &'static str,
    /// kptr_restrict.
    pub kptr: u32,
    /// nvcap runs as a user with capabilities.
    pub user: bool,
}

/// The usual machine: one GPU (see QEMU's watchpoints in tests/vm/README.md), branch 580, BTF, nothing locked.
const USUAL: Cell = Cell {
    kernel: "",
    way: Way::Kprobe,
    branch: 580,
    gpus: 1,
    btf: true,
    lockdown: "none",
    kptr: 0,
    user: false,
};

/// Tests that prove the bed on each kernel.
const BED: &[&str] = &[
    "bed-life",
    "bed-escapes",
    "bed-maps",
    "bed-revoke",
    "bed-kprobe",
    "bed-hung",
    "bed-reload",
];

/// Every end-to-end test of the live trace (tests/live), except the refusals that are the same everywhere.
const ALL: &[&str] = &[
    "capture::one_thread",
    "capture::eight_threads",
    "capture::ring_wrap",
    "capture::big_entries",
    "capture::bursts",
    "capture::wide_bursts",
    "capture::without_bpf_loop",
    "capture::thread_churn",
    "capture::shared_channels",
    "capture::late_doorbells",
    "capture::cached_put",
    "capture::both_pages",
    "capture::fork_shared",
    "capture::fork_own",
    "capture::fork_and_exec",
    "capture::exec",
    "capture::exec_from_thread",
    "capture::many_events",
    "capture::operations",
    "attach::waiting_process",
    "attach::running_process",
    "attach::first_submissions",
    "attach::exec_afterwards",
    "attach::fork_afterwards",
    "attach::two_processes",
    "attach::exits_meanwhile",
    "bench::on_the_device",
    "registers::precommit",
    "registers::precommit_attached",
    "death::kill_nvcap_attached",
    "death::kill_nvcap_parent",
    "death::kill_target",
    "death::interrupt_nvcap",
    "death::terminate_nvcap",
];

/// Tests the doorbell program that kernels before 5.17 take.
const OLD_KERNELS: &str = "capture::without_bpf_loop";

/// Tests that only the stand-in allows.
const STAND_IN: &[&str] = &[
    "trace",
    "revoked",
    "no-peeks",
    "driver-commands",
    "container",
    "in-container",
    "reload",
    "reload-at-once",
];

/// The tests in which it matters how mappings are found: the gate runs them by each way, and on each long-term kernel.
const OF_THE_WAY: &[&str] = &[
    "capture::one_thread",
    "capture::eight_threads",
    "capture::shared_channels",
    "capture::fork_own",
    "capture::fork_and_exec",
    "capture::exec",
    "attach::waiting_process",
    "attach::first_submissions",
    "attach::exec_afterwards",
    "attach::fork_afterwards",
    "attach::two_processes",
    "death::kill_nvcap_attached",
];

/// The tests of the stand-in in which it matters how mappings are found.
const STAND_IN_OF_THE_WAY: &[&str] = &["trace", "revoked", "reload", "reload-at-once"];

/// One test of each kind: run by a cell that differs in one thing. `capture::exec` begins as `capture::one_thread` does, and goes on.
const FEW: &[&str] = &["capture::exec", "attach::waiting_process"];
/// Test that such a cell runs in the nightly form beside [`FEW`].
const NIGHTLY_TOO: &str = "capture::one_thread";

impl Cell {
    /// Its name: the kernel, the way, and its differences from the usual machine.
    pub fn name(&self) -> String {
        let mut name = format!("{}-{}", self.kernel, self.way.name());
        if self.branch != USUAL.branch {
            name.push_str(&format!("-{}", self.branch));
        }
        if self.gpus != USUAL.gpus {
            name.push_str(&format!("-{}gpu", self.gpus));
        }
        if !self.btf && self.kernel != "5.10" && !self.is_foreign() {
            name.push_str("-nobtf");
        }
        if self.lockdown != "none" {
            name.push_str(&format!("-{}", self.lockdown));
        }
        if self.kptr != 0 {
            name.push_str(&format!("-kptr{}", self.kptr));
        }
        if self.user {
            name.push_str("-user");
        }
        name
    }

    /// Tells whether the machine has another processor than the hosts of the matrix.
    pub fn is_foreign(&self) -> bool {
        self.kernel.ends_with("-aarch64")
    }

    /// True if it differs from the usual machine only in its kernel and its way.
    fn usual(&self) -> bool {
        self.branch == USUAL.branch
            && self.gpus == USUAL.gpus
            && self.btf
            && self.lockdown == "none"
            && self.kptr == 0
            && !self.user
    }

    /// The tests it runs: `all` of them, as nightly, or those of the gate.
    pub fn tests(&self, all: bool) -> Vec<&'static str> {
        let mut tests = Vec::new();
        if self.gpus == 0 {
            return vec!["bed-none", "no-gpu"];
        }
        if self.is_foreign() {
            return match self.kernel.starts_with("6.12") {
                true => [BED, ALL, STAND_IN].concat(),
                false => [BED, FEW, &[NIGHTLY_TOO]].concat(),
            };
        }
        let restricted = self.lockdown != "none" || self.kptr != 0 || self.user;
        // The bed depends on the kernel and the module, not on nvcap's way.
        if self.way == Way::Kprobe && !restricted && (self.btf || self.kernel == "5.10") {
            // On 5.10 nvcap only refuses to run.
            let needed = if all || self.btf { BED } else { &["bed-life"] };
            tests.extend(needed);
        }
        let long_term = matches!(self.kernel, "6.1" | "6.12");
        if self.usual() && long_term && self.way != Way::Tracepoint {
            // The doorbell program for kernels before 5.17 is tested on the older of these kernels.
            let old = self.kernel == "6.1";
            // In the gate one way is tested on each of these kernels, the other one is tried; the live tests run on the kernel of the gate.
            let of_the_way = old == (self.way == Way::Kprobe);
            if all {
                tests.extend(ALL.iter().filter(|t| old || **t != OLD_KERNELS));
            } else if of_the_way {
                tests.extend(OF_THE_WAY);
                tests.extend(old.then_some(OLD_KERNELS));
            } else {
                tests.extend(FEW);
            }
            match (old, self.way) {
                (true, _) => {}
                (false, Way::Fentry) if !all => tests.extend(STAND_IN_OF_THE_WAY),
                (false, _) => tests.extend(STAND_IN),
            }
        } else if self.kernel == "5.10" {
            tests.push("old-kernel");
        } else if self.user && self.way == Way::Fentry {
            // Without CAP_SYS_ADMIN the kernel gives nobody a module's BTF.
            tests.push("fentry-refused");
        } else if self.gpus == USUAL.gpus {
            tests.extend(FEW);
            tests.extend(all.then_some(NIGHTLY_TOO));
        } else {
            tests.extend(["trace", "revoked", "no-peeks"]);
            // Two pages of two GPUs take all four debug registers: a child has only those that it inherits.
            tests.push("attach::fork_afterwards");
        }
        tests
    }
}

/// Every cell of the matrix, those with most tests first. A cell that differs in one thing is on one kernel only.
pub fn all() -> Vec<Cell> {
    let cell = |kernel, way| Cell {
        kernel,
        way,
        ..USUAL
    };
    let mut cells = Vec::new();
    for way in [Way::Kprobe, Way::Fentry] {
        for kernel in ["6.12", "6.1"] {
            cells.push(cell(kernel, way));
        }
    }
    for kernel in ["6.12", "6.1"] {
        cells.push(cell(kernel, Way::Tracepoint));
    }
    for way in [Way::Kprobe, Way::Fentry] {
        cells.push(cell("backports", way));
        cells.push(Cell {
            lockdown: "integrity",
            kptr: 2,
            ..cell("6.12", way)
        });
        cells.push(Cell {
            user: true,
            ..cell("6.12", way)
        });
    }
    for (kernel, branch) in [("6.1", 535), ("6.12", 550)] {
        cells.push(Cell {
            branch,
            ..cell(kernel, Way::Kprobe)
        });
    }
    for (kernel, gpus) in [("6.1", 2), ("6.12", 0)] {
        cells.push(Cell {
            gpus,
            ..cell(kernel, Way::Kprobe)
        });
    }
    // 5.10 does not support BTF of modules.
    for kernel in ["6.1", "5.10"] {
        cells.push(Cell {
            btf: false,
            ..cell(kernel, Way::Kprobe)
        });
    }
    cells
}

/// The cells of each boot, in order: one boot a kernel, the one with the most tests first. A boot with more than its part of the tests, where
/// `jobs` machines run at a time, is shared between two.
pub fn boots(cells: &[Cell], jobs: usize, all: bool) -> Vec<Vec<Cell>> {
    let mut boots: Vec<Vec<Cell>> = Vec::new();
    for cell in cells {
        match boots.iter_mut().find(|b| b[0].kernel == cell.kernel) {
            Some(boot) => boot.push(cell.clone()),
            None => boots.push(vec![cell.clone()]),
        }
    }
    let weight = |cells: &[Cell]| -> usize { cells.iter().map(|c| c.tests(all).len()).sum() };
    let part = weight(cells) / jobs.max(1);
    loop {
        let several = boots.iter_mut().filter(|b| b.len() > 1);
        let largest = several.max_by_key(|b| weight(b));
        let Some(largest) = largest.filter(|b| weight(b) > part) else {
            break;
        };
        let (mut one, mut other) = (Vec::new(), Vec::new());
        for cell in largest.drain(..) {
            let lighter = match weight(&one) <= weight(&other) {
                true => &mut one,
                false => &mut other,
            };
            lighter.push(cell);
        }
        *largest = one;
        boots.push(other);
    }
    for boot in &mut boots {
        // Lockdown cannot be undone in a running kernel, and does not let unsigned modules be loaded again.
        boot.sort_by_key(|cell| cell.lockdown != "none");
    }
    boots.sort_by_key(|boot| std::cmp::Reverse(weight(boot)));
    boots
}

/// Machines with another processor, which no x86-64 host runs in the time of the gate: only where they are asked for.
pub fn foreign() -> Vec<Cell> {
    ["6.12-aarch64", "6.1-aarch64"]
        .map(|kernel| Cell {
            kernel,
            btf: false,
            ..USUAL
        })
        .into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kernel_boots_once_and_locked_cells_come_last() {
        let boots = boots(&all(), 1, false);
        let kernels: Vec<_> = boots.iter().map(|b| b[0].kernel).collect();
        assert_eq!(kernels, ["6.12", "6.1", "backports", "5.10"]);
        for boot in &boots {
            let locked: Vec<_> = boot.iter().map(|c| c.lockdown != "none").collect();
            assert!(locked.is_sorted(), "{boot:?}");
            // Those that are locked need the same modules: they cannot be loaded any more.
            let mut modules: Vec<_> = boot.iter().filter(|c| c.lockdown != "none").collect();
            modules.dedup_by_key(|c| (c.branch, c.btf, c.gpus));
            assert!(modules.len() <= 1);
        }
    }

    #[test]
    fn more_processors_take_more_boots_and_no_cell_is_lost() {
        for jobs in [1, 3, 8, 100] {
            let boots = boots(&all(), jobs, true);
            let mut names: Vec<_> = boots.iter().flatten().map(Cell::name).collect();
            let mut wanted: Vec<_> = all().iter().map(Cell::name).collect();
            names.sort();
            wanted.sort();
            assert_eq!(names, wanted);
            let weight = |cells: &[Cell]| cells.iter().map(|c| c.tests(true).len()).sum::<usize>();
            let part = weight(&all()) / jobs;
            assert!(
                boots.iter().all(|b| b.len() == 1 || weight(b) <= part),
                "{jobs}"
            );
            assert!(boots.len() >= jobs.clamp(4, wanted.len().div_ceil(2)));
            assert!(
                boots
                    .iter()
                    .all(|b| b.iter().all(|c| c.kernel == b[0].kernel))
            );
        }
    }

    #[test]
    fn the_gate_runs_every_test_and_by_each_way_what_depends_on_it() {
        let run = |all: bool, is: &dyn Fn(&Cell) -> bool| -> BTreeSet<&str> {
            let cells = super::all().into_iter().filter(|c| c.usual() && is(c));
            cells.flat_map(|c| c.tests(all)).collect()
        };
        let less = |is: &dyn Fn(&Cell) -> bool| -> BTreeSet<&str> {
            let (gate, nightly) = (run(false, is), run(true, is));
            nightly.difference(&gate).copied().collect()
        };
        // Each test of the stand-in runs, and by each way and on each of the two kernels what depends on the way.
        assert!(less(&|_| true).iter().all(|t| !STAND_IN.contains(t)));
        let needed = |stand_in: bool| -> BTreeSet<&str> {
            let own = if stand_in { STAND_IN_OF_THE_WAY } else { &[] };
            OF_THE_WAY.iter().chain(own).copied().collect()
        };
        for way in [Way::Kprobe, Way::Fentry] {
            assert!(run(false, &|c| c.way == way).is_superset(&needed(true)));
        }
        for kernel in ["6.1", "6.12"] {
            let stand_in = kernel == "6.12";
            assert!(run(false, &|c| c.kernel == kernel).is_superset(&needed(stand_in)));
        }
        // The doorbell program of old kernels runs nowhere else.
        assert!(run(false, &|c| c.kernel == "6.1").contains(OLD_KERNELS));
        for cell in super::all() {
            let nightly = cell.tests(true);
            for test in cell.tests(false) {
                assert!(nightly.contains(&test), "{test} of {}", cell.name());
            }
        }
        for (part, whole) in [
            (OF_THE_WAY, ALL),
            (FEW, ALL),
            (STAND_IN_OF_THE_WAY, STAND_IN),
        ] {
            assert!(part.iter().all(|t| whole.contains(t)), "{part:?}");
        }
    }
}
