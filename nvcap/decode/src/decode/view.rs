//! The launch that a QMD describes, in bytes, blocks and threads, independent of the layout's names and scales.
//!
//! Every layout names its fields a little differently, and some fields hold a value shifted right by n bits, which is part of the name
//! (`..._SHIFTEDn`). A table (bit, width and shift of each field) is made once for each layout.

use crate::decode::event::{ConstantBank, QmdRelease};
use crate::wire::GpuVa;
use std::sync::OnceLock;

use super::qmd::{self, ByVersion, Layout, bits, one_load};

/// A launch as a QMD describes it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct View {
    /// Version of the layout.
    pub version: (u8, u8),
    /// True if the QMD launches nothing (QMD_TYPE is GRID_NULL).
    pub null: bool,
    /// True if the QMD is a queue, not a grid.
    pub queue: bool,
    /// Blocks in x, y, z. Layouts may count otherwise: a grid of clusters (QMD_TYPE GRID_GPC_CGA) is counted in clusters, and the grid of a
    /// cooperative launch (GRID_GPU_CGA) is one cluster over the whole GPU. In 05_01, in which a QMD holds several grids, this and the
    /// fields below are those of the first grid.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster (GPC_CGA) in x, y, z, if the grid is made of clusters.
    pub cluster: Option<[u32; 3]>,
    /// True if all blocks run at once (a cooperative launch: GRID_GPU_CGA or GRID_GPU_GPC_CGA).
    pub cooperative: bool,
    /// Registers of a thread.
    pub registers: u32,
    /// SHARED_MEMORY_SIZE: shared memory of a block, bytes, including the system's reserve.
    pub shared_bytes: u32,
    /// Local memory of a thread, bytes: the low part, which the compiler determines; the high part is the driver's.
    pub local_bytes: u32,
    /// Barriers of a block.
    pub barriers: u32,
    /// GPU address of the program.
    pub program: GpuVa,
    /// GPU address of the code to prefetch, without its lowest 8 bits; 0 if the layout has no such field. libcuda puts the program's
    /// address there.
    pub prefetch: GpuVa,
    /// True if `program` is an offset from SET_PROGRAM_REGION (layouts before 02_02).
    pub program_relative: bool,
    /// Valid constant banks.
    pub constant_banks: Vec<ConstantBank>,
    /// Enabled semaphore releases.
    pub releases: Vec<QmdRelease>,
    /// Enabled dependent QMDs.
    pub dependents: Vec<Dependent>,
    /// DEPENDENCE_COUNTER: number of decrements for which the QMD waits before it runs.
    pub dependence: u32,
    /// True if a PCAS alone does not start the QMD, and another QMD must schedule it, too (REQUIRE_SCHEDULING_PCAS).
    pub requires_pcas: bool,
}

/// Start conditions of a QMD, without the launch that it describes. They are cheaper to read than a [`View`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// [`View::null`].
    pub null: bool,
    /// [`View::dependence`].
    pub dependence: u32,
    /// [`View::requires_pcas`].
    pub requires_pcas: bool,
}

/// A QMD on which another QMD acts when its grid ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dependent {
    /// GPU address of the QMD.
    pub address: GpuVa,
    /// Action on the QMD.
    pub action: DependentAction,
}

/// Action on a dependent QMD: DEPENDENT_QMD_ACTION.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DependentAction {
    /// QMD_SCHEDULE, QMD_INVALIDATE_COPY_SCHEDULE, or the enable bit in layouts that have no action.
    Schedule,
    /// QMD_DECREMENT_DEPENDENCE.
    DecrementDependence,
    /// QMD_INCREMENT_PUT, or a number that no header names: starts nothing.
    Other(u8),
}

impl DependentAction {
    fn read(value: u64) -> Self {
        match value {
            1 | 3 => Self::Schedule,
            4 => Self::DecrementDependence,
            other => Self::Other(other as u8),
        }
    }

    /// Returns the number in the layouts.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Schedule => 1,
            Self::DecrementDependence => 4,
            Self::Other(n) => n,
        }
    }
}

/// Place of a field, with the scale in its name.
#[derive(Clone, Copy, Default)]
struct Slot {
    low: u32,
    /// Number of bits; 0 if the layout does not have the field.
    width: u32,
    /// Mask of `width` ones.
    mask: u64,
    stride: u32,
    count: u32,
    shift: u32,
}

impl Slot {
    fn get(self, qmd: &[u8]) -> u64 {
        self.at(qmd, 0)
    }

    fn at(self, qmd: &[u8], i: u32) -> u64 {
        self.unshifted(qmd, i) << self.shift
    }

    fn unshifted(self, qmd: &[u8], i: u32) -> u64 {
        let low = (self.low + i * self.stride) as usize;
        let width = self.width as usize;
        one_load(qmd, low, width, self.mask)
            .or_else(|| bits(qmd, low, width))
            .unwrap_or(0)
    }
}

/// The lower and upper half of an address or payload.
#[derive(Clone, Copy, Default)]
struct Pair {
    low: Slot,
    high: Slot,
}

impl Pair {
    /// Returns the value of an address or payload. The halves are parts of one shifted value: they are joined first, then shifted.
    fn at(self, qmd: &[u8], i: u32) -> u64 {
        (self.low.unshifted(qmd, i) | self.high.unshifted(qmd, i) << 32) << self.low.shift
    }
}

#[derive(Default)]
struct Release {
    enable: Slot,
    element: u32,
    address: Pair,
    payload: Pair,
}

impl Release {
    fn is_enabled(&self, qmd: &[u8]) -> bool {
        self.enable.width != 0
            && self.address.low.width != 0
            && self.enable.at(qmd, self.element) != 0
    }
}

#[derive(Default)]
struct QmdFields {
    kind: Slot,
    is_queue: Slot,
    grid: [Slot; 3],
    block: [Slot; 3],
    cluster: [Slot; 3],
    gpu_cluster: [Slot; 3],
    registers: Slot,
    shared: Slot,
    local: Slot,
    barriers: Slot,
    program: Pair,
    prefetch: Pair,
    program_relative: bool,
    bank_valid: Slot,
    bank_address: Pair,
    bank_size: Slot,
    releases: [Release; 3],
    dependents: [Next; 2],
    dependence: Slot,
    requires_pcas: Slot,
}

/// Fields of one of the dependents, each with the element to read.
#[derive(Default)]
struct Next {
    enable: (Slot, u32),
    /// Action, without width if the layout has none: enabled then means schedule.
    action: (Slot, u32),
    pointer: (Slot, u32),
}

impl Slot {
    /// Returns the first of `names` that the layout has; a slot without width if it has none.
    fn named(layout: Layout, names: &[&str]) -> Self {
        let found = names
            .iter()
            .find_map(|name| layout.fields().find(|f| f.name() == *name));
        let Some(f) = found else {
            return Self::default();
        };
        // In an array over the tasks of 05_01 the first index is the task, and the second counts the elements of a task.
        let second = f.stride()[1] != 0;
        let shift = f
            .name()
            .rsplit_once("_SHIFTED")
            .and_then(|(_, n)| n.parse().ok());
        let width = u32::from(f.high() - f.low()) + 1;
        Self {
            low: u32::from(f.low()),
            width,
            mask: u64::MAX >> (64 - width.min(64)),
            stride: u32::from(f.stride()[usize::from(second)]),
            count: u32::from(f.count()[usize::from(second)]),
            shift: shift.unwrap_or(0),
        }
    }
}

/// Spellings of a layout's fields: the newest first, and the task's own field before the array over all tasks.
#[derive(Clone, Copy)]
struct Spelling(Layout);

impl Spelling {
    fn field(self, names: &[&str]) -> Slot {
        Slot::named(self.0, names)
    }

    /// Returns one field for each of three axes.
    fn axes(self, names: [&str; 3]) -> [Slot; 3] {
        names.map(|name| self.field(&[name]))
    }

    fn grid(self, i: usize) -> Slot {
        let new = ["GRID_WIDTH", "GRID_HEIGHT", "GRID_DEPTH"][i];
        let old = ["CTA_RASTER_WIDTH", "CTA_RASTER_HEIGHT", "CTA_RASTER_DEPTH"][i];
        self.field(&[new, old, &format!("SUB_TASK_{new}")])
    }

    fn block(self, i: usize) -> Slot {
        let name = format!("CTA_THREAD_DIMENSION{i}");
        self.field(&[&name, &format!("SUB_TASK_{name}")])
    }

    fn local_memory(self) -> Slot {
        let name = "SHADER_LOCAL_MEMORY_LOW_SIZE";
        self.field(&[
            name,
            &format!("{name}_SHIFTED4"),
            &format!("SUB_TASK_{name}_SHIFTED4"),
        ])
    }

    /// Returns the address of the program, in layouts that do not have its offset from SET_PROGRAM_REGION instead.
    fn program_address(self) -> Pair {
        let half = |half: &str| {
            let name = format!("PROGRAM_ADDRESS_{half}");
            self.field(&[
                &name,
                &format!("{name}_SHIFTED4"),
                &format!("SUB_TASK_{name}_SHIFTED4"),
            ])
        };
        Pair {
            low: half("LOWER"),
            high: half("UPPER"),
        }
    }

    /// Returns a field of the constant banks, as an array over all of them.
    fn bank(self, field: &str) -> Slot {
        let buffer = format!("CONSTANT_BUFFER_{field}");
        let task = format!("SUB_TASK_CONSTANT_BANK_{field}");
        self.field(&[
            &buffer,
            &format!("{buffer}_SHIFTED4"),
            &format!("{buffer}_SHIFTED6"),
            &task,
            &format!("{task}_SHIFTED4"),
            &format!("{task}_SHIFTED6"),
        ])
    }

    /// Returns the fields of release `i`: its own enable bit, or its element of the bits of all releases.
    fn release(self, i: usize) -> Release {
        let own = self.field(&[
            &format!("RELEASE{i}_ENABLE"),
            &format!("SEMAPHORE_RELEASE_ENABLE{i}"),
        ]);
        let (enable, element) = if own.width != 0 {
            (own, 0)
        } else {
            (self.field(&["RELEASE_ENABLE"]), i as u32)
        };
        Release {
            enable,
            element,
            address: self.release_halves(i, "ADDR", "ADDRESS"),
            payload: self.release_halves(i, "PAYLOAD", "PAYLOAD"),
        }
    }

    /// Returns the address or payload of release `i`, given the part of the name that newer and older layouts use for it.
    fn release_halves(self, i: usize, new: &str, old: &str) -> Pair {
        let new = format!("RELEASE_SEMAPHORE{i}_{new}");
        let old = format!("RELEASE{i}_{old}");
        Pair {
            // In the oldest layouts the payload has only 32 bits, and its name has no half.
            low: self.field(&[&format!("{new}_LOWER"), &format!("{old}_LOWER"), &old]),
            high: self.field(&[&format!("{new}_UPPER"), &format!("{old}_UPPER")]),
        }
    }

    /// Returns the fields of dependent `i`.
    fn dependent(self, i: usize) -> Next {
        Next {
            enable: self.own_or_element(
                i,
                &format!("DEPENDENT_QMD{i}_ENABLE"),
                &["DEPENDENT_QMD_ENABLE", "DEPENDENT_QMD_SCHEDULE_ENABLE"],
            ),
            action: self.own_or_element(
                i,
                &format!("DEPENDENT_QMD{i}_ACTION"),
                &["DEPENDENT_QMD_ACTION"],
            ),
            pointer: self.own_or_element(
                i,
                &format!("DEPENDENT_QMD{i}_POINTER"),
                &["DEPENDENT_QMD_POINTER"],
            ),
        }
    }

    /// Returns the field `own`, or else element `i` of the field `array`; a slot without width in layouts with fewer elements.
    fn own_or_element(self, i: usize, own: &str, array: &[&str]) -> (Slot, u32) {
        let (own, array) = (self.field(&[own]), self.field(array));
        match (own.width, array.count as usize) {
            (0, n) if i < n => (array, i as u32),
            (0, _) => (Slot::default(), 0),
            _ => (own, 0),
        }
    }
}

impl QmdFields {
    fn new(layout: Layout) -> Self {
        let of = Spelling(layout);
        let address = of.program_address();
        let relative = address.low.width == 0;
        Self {
            kind: of.field(&["QMD_TYPE"]),
            is_queue: of.field(&["IS_QUEUE"]),
            grid: [of.grid(0), of.grid(1), of.grid(2)],
            block: [of.block(0), of.block(1), of.block(2)],
            cluster: of.axes(["GPC_CGA_WIDTH", "GPC_CGA_HEIGHT", "GPC_CGA_DEPTH"]),
            gpu_cluster: of.axes(["GPU_CGA_WIDTH", "GPU_CGA_HEIGHT", "GPU_CGA_DEPTH"]),
            registers: of.field(&[
                "REGISTER_COUNT_V",
                "REGISTER_COUNT",
                "SUB_TASK_REGISTER_COUNT",
            ]),
            shared: of.field(&[
                "SHARED_MEMORY_SIZE",
                "SHARED_MEMORY_SIZE_SHIFTED7",
                "SUB_TASK_SHARED_MEMORY_SIZE_SHIFTED7",
            ]),
            local: of.local_memory(),
            barriers: of.field(&["BARRIER_COUNT", "SUB_TASK_BARRIER_COUNT"]),
            program: if relative {
                Pair {
                    low: of.field(&["PROGRAM_OFFSET"]),
                    high: Slot::default(),
                }
            } else {
                address
            },
            prefetch: Pair {
                low: of.field(&["PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED"]),
                high: of.field(&["PROGRAM_PREFETCH_ADDR_UPPER_SHIFTED"]),
            },
            program_relative: relative,
            bank_valid: of.bank("VALID"),
            bank_address: Pair {
                low: of.bank("ADDR_LOWER"),
                high: of.bank("ADDR_UPPER"),
            },
            bank_size: of.bank("SIZE"),
            releases: [of.release(0), of.release(1), of.release(2)],
            dependents: [of.dependent(0), of.dependent(1)],
            dependence: of.field(&["DEPENDENCE_COUNTER"]),
            requires_pcas: of.field(&["REQUIRE_SCHEDULING_PCAS"]),
        }
    }
}
/// Returns the fields of a version, made at the first use.
fn plan(version: (u8, u8)) -> Option<&'static QmdFields> {
    static PLANS: OnceLock<ByVersion<Box<QmdFields>>> = OnceLock::new();
    let plans = PLANS.get_or_init(|| ByVersion::new(|l| Box::new(QmdFields::new(l))));
    plans.get(version).map(Box::as_ref)
}

/// QMD_TYPE in 04_00 and later.
const TYPE_QUEUE: u64 = 0;
const TYPE_GRID_NULL: u64 = 1;
const TYPE_GRID_GPC_CGA: u64 = 3;
const TYPE_GRID_GPU_CGA: u64 = 4;
const TYPE_GRID_GPU_GPC_CGA: u64 = 5;

/// Tells whether `qmd` can be a QMD of `class` (0 if unknown): version bits that the class can have and a block that a grid can have. This
/// is cheaper than [`View::of`].
pub(super) fn plausible(class: u32, qmd: &[u8]) -> bool {
    let Some(version) = qmd::version_of(class, qmd) else {
        return false;
    };
    let listed = qmd::versions_of(class);
    if !listed.is_empty() && !listed.contains(&version) {
        return false;
    }
    let Some(p) = plan(version) else { return false };
    let threads: u64 = p.block.iter().map(|s| s.get(qmd)).product();
    // Much other data has the size of a short layout, so more is required of it.
    let runs = || p.program.at(qmd, 0) != 0 && p.grid.iter().all(|s| s.get(qmd) != 0);
    (1..=1024).contains(&threads) && (qmd.len() == qmd::MAX_BYTES || runs())
}

/// Returns the addresses of the words that `qmd` releases, as [`View::of`] gives them, at less cost.
pub(super) fn releases(class: u32, qmd: &[u8]) -> impl Iterator<Item = GpuVa> {
    let plan = qmd::version_of(class, qmd).and_then(plan);
    let all = plan.map_or(&[][..], |p| &p.releases);
    all.iter()
        .filter(|r| r.is_enabled(qmd))
        .map(|r| GpuVa(r.address.at(qmd, 0)))
}

impl Needs {
    /// Reads the start conditions of `qmd` for `class`; `None` if [`View::of`] returns `None`.
    pub(super) fn of(class: u32, qmd: &[u8]) -> Option<Self> {
        plan(qmd::version_of(class, qmd)?).map(|p| Self::by(p, qmd))
    }

    fn by(p: &QmdFields, qmd: &[u8]) -> Self {
        Self {
            // A layout without a type has width 0 here, and so the value is 0.
            null: p.kind.get(qmd) == TYPE_GRID_NULL,
            dependence: p.dependence.get(qmd) as u32,
            requires_pcas: p.requires_pcas.get(qmd) != 0,
        }
    }
}

impl View {
    /// Returns the launch that `qmd` describes for `class` (0 if unknown); `None` if no layout fits its version bits and its length.
    pub fn of(class: u32, qmd: &[u8]) -> Option<Self> {
        let version = qmd::version_of(class, qmd)?;
        let p = plan(version)?;
        let three = |slots: &[Slot; 3]| slots.map(|s| s.get(qmd) as u32);
        let typed = p.kind.width != 0;
        let kind = p.kind.get(qmd);
        let cluster = three(&p.cluster);
        let in_clusters = typed && matches!(kind, TYPE_GRID_GPC_CGA | TYPE_GRID_GPU_GPC_CGA);
        let cooperative = typed && matches!(kind, TYPE_GRID_GPU_CGA | TYPE_GRID_GPU_GPC_CGA);
        let mut grid = three(&p.grid);
        // A dimension that is not set counts as one.
        let times = |grid: [u32; 3], each: [u32; 3]| {
            std::array::from_fn(|i| grid[i].saturating_mul(each[i].max(1)))
        };
        if in_clusters {
            grid = times(grid, cluster);
        }
        if cooperative {
            grid = times(grid, three(&p.gpu_cluster));
        }
        let needs = Needs::by(p, qmd);
        let mut view = Self {
            version,
            null: needs.null,
            queue: if typed {
                kind == TYPE_QUEUE
            } else {
                p.is_queue.get(qmd) != 0
            },
            grid,
            block: three(&p.block),
            cluster: (in_clusters || !typed && cluster.iter().any(|&n| n > 1)).then_some(cluster),
            cooperative,
            dependence: needs.dependence,
            requires_pcas: needs.requires_pcas,
            registers: p.registers.get(qmd) as u32,
            shared_bytes: p.shared.get(qmd) as u32,
            local_bytes: p.local.get(qmd) as u32,
            barriers: p.barriers.get(qmd) as u32,
            program: GpuVa(p.program.at(qmd, 0)),
            prefetch: GpuVa(p.prefetch.at(qmd, 0) << 8),
            program_relative: p.program_relative,
            ..Self::default()
        };
        for i in 0..p.bank_valid.count {
            if p.bank_valid.at(qmd, i) != 0 {
                view.constant_banks.push(ConstantBank {
                    index: i,
                    address: GpuVa(p.bank_address.at(qmd, i)),
                    size: p.bank_size.at(qmd, i) as u32,
                });
            }
        }
        for r in &p.releases {
            if r.is_enabled(qmd) {
                view.releases.push(QmdRelease {
                    address: GpuVa(r.address.at(qmd, 0)),
                    payload: r.payload.at(qmd, 0),
                });
            }
        }
        for next in &p.dependents {
            let field = |(slot, i): (Slot, u32)| slot.at(qmd, i);
            if next.enable.0.width != 0 && next.pointer.0.width != 0 && field(next.enable) != 0 {
                let action = match next.action.0.width {
                    0 => DependentAction::Schedule,
                    _ => DependentAction::read(field(next.action)),
                };
                // The pointer is an address shifted right by 8, as in SEND_PCAS_A.
                let address = GpuVa(field(next.pointer) << 8);
                view.dependents.push(Dependent { address, action });
            }
        }
        Some(view)
    }
}
