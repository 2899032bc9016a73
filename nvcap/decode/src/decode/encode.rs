//! The decoder's inverse: forms valid method headers, method writes, QMDs and ring entries.
//!
//! Used by round-trip tests, by programs that submit without a GPU, and to form pushbuffers for trying a decoder. It knows forms and names,
//! but not how a driver would use them.
//!
//! ```
//! use nvcap_decode::decode::encode::Pushbuffer;
//! let mut p = Pushbuffer::new();
//! p.bind(4, 0xc8b5);
//! p.named(4, 0xc8b5, "OFFSET_IN_UPPER", &[0x7f4f, 0x2800_0000, 0x7f4f, 0x2400_0000]).expect("a method of the class");
//! p.named(4, 0xc8b5, "LINE_LENGTH_IN", &[28_672]).expect("a method of the class");
//! p.named(4, 0xc8b5, "LAUNCH_DMA", &[0x182]).expect("a method of the class");
//! assert_eq!(p.words().len(), 11);
//! ```

use crate::wire::header::{self, MAX_COUNT, MAX_COUNT_OLD};
use std::{cell::RefCell, collections::HashMap};

use super::{classes, qmd, view::View};
use crate::record::Segment;
use crate::wire::GpuVa;
use crate::wire::{
    entry,
    header::{Header, Step},
};

/// Error: the tables do not have a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{class:#06x} has no {name}: look at its methods with `nvcap explain {class:x}`")]
pub struct Unnamed {
    /// The class or QMD version that was asked.
    pub class: u32,
    /// The name that the tables do not have.
    pub name: String,
}

/// Pushbuffer words under construction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushbuffer {
    words: Vec<u32>,
}

impl Pushbuffer {
    /// Makes an empty pushbuffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the words so far.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Returns the words as bytes, as they lie in memory.
    pub fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    /// Returns a segment: a ring entry for these words at `address`, with the words.
    pub fn segment(&self, address: GpuVa) -> Segment {
        let bytes = self.bytes();
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Segment {
            entry: entry::segment(address, len, false, false, false),
            bytes,
            holes: Vec::new(),
        }
    }

    /// Appends a raw word.
    pub fn raw(&mut self, word: u32) -> &mut Self {
        self.words.push(word);
        self
    }

    /// Appends a header that is not a method's.
    pub fn control(&mut self, control: Header) -> &mut Self {
        self.words.extend(control.word());
        self
    }

    /// Appends a method with its data, in as many headers as it needs (an immediate takes the low 13 bits of one word).
    pub fn method(&mut self, step: Step, subchannel: u8, address: u16, data: &[u32]) -> &mut Self {
        if step == Step::Immediate {
            let data = data.first().copied().unwrap_or(0);
            return self.control(Header::Method {
                step,
                count: 0,
                subchannel,
                address,
                data,
            });
        }
        let (mut address, mut step) = (address, step);
        for part in data.chunks(MAX_COUNT) {
            let count = part.len() as u16;
            self.control(Header::Method {
                step,
                count,
                subchannel,
                address,
                data: 0,
            });
            self.words.extend_from_slice(part);
            // Address of the method at which the next header continues.
            match step {
                Step::Increment => address = address.wrapping_add(count.wrapping_mul(4)) & 0x3ffc,
                Step::Once => (address, step) = (address.wrapping_add(4) & 0x3ffc, Step::Same),
                Step::Same | Step::Immediate => {}
            }
        }
        self
    }

    /// Appends a run in an old form, with at most [`MAX_COUNT_OLD`] of the words.
    pub fn old(
        &mut self,
        increment: bool,
        subchannel: u8,
        address: u16,
        data: &[u32],
    ) -> &mut Self {
        let data = data.get(..MAX_COUNT_OLD).unwrap_or(data);
        self.words.push(header::old_word(
            increment,
            data.len() as u16,
            subchannel,
            address,
        ));
        self.words.extend_from_slice(data);
        self
    }

    /// Appends data for consecutive methods, beginning with the method `name` of `class`.
    ///
    /// # Errors
    /// When the class has no such method.
    pub fn named(
        &mut self,
        subchannel: u8,
        class: u32,
        name: &str,
        data: &[u32],
    ) -> Result<&mut Self, Unnamed> {
        let address = address_of(class, name)?;
        Ok(self.method(Step::Increment, subchannel, address, data))
    }

    /// Appends SET_OBJECT.
    pub fn bind(&mut self, subchannel: u8, class: u32) -> &mut Self {
        self.method(Step::Increment, subchannel, 0, &[class])
    }

    /// Appends an inline write as libcuda forms it: OFFSET_OUT, LINE_LENGTH_IN, LAUNCH_DMA, then the data.
    ///
    /// # Errors
    /// When the class takes no inline data.
    pub fn inline(
        &mut self,
        subchannel: u8,
        class: u32,
        dst: GpuVa,
        data: &[u8],
    ) -> Result<&mut Self, Unnamed> {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let words: Vec<u32> = data
            .chunks(4)
            .map(|c| c.iter().rev().fold(0, |word, b| word << 8 | u32::from(*b)))
            .collect();
        let load = address_of(class, "LOAD_INLINE_DATA")?;
        self.named(subchannel, class, "OFFSET_OUT_UPPER", &upper_lower(dst))?;
        self.named(subchannel, class, "LINE_LENGTH_IN", &[len, 1])?;
        self.named(subchannel, class, "LAUNCH_DMA", &[0x41])?;
        Ok(self.method(Step::Same, subchannel, load, &words))
    }

    /// Appends a linear copy by a copy class.
    ///
    /// # Errors
    /// When the class is no copy class.
    pub fn copy(
        &mut self,
        subchannel: u8,
        class: u32,
        src: GpuVa,
        dst: GpuVa,
        bytes: u32,
    ) -> Result<&mut Self, Unnamed> {
        let address = [upper_lower(src), upper_lower(dst)].concat();
        self.named(subchannel, class, "OFFSET_IN_UPPER", &address)?;
        self.named(subchannel, class, "LINE_LENGTH_IN", &[bytes])?;
        self.named(subchannel, class, "LAUNCH_DMA", &[0x182])
    }

    /// Appends a semaphore release by a compute or 3D class.
    ///
    /// # Errors
    /// When the class has no report semaphore.
    pub fn release(
        &mut self,
        subchannel: u8,
        class: u32,
        address: GpuVa,
        payload: u32,
    ) -> Result<&mut Self, Unnamed> {
        let [upper, lower] = upper_lower(address);
        let data = [upper, lower, payload, 0];
        self.named(subchannel, class, "SET_REPORT_SEMAPHORE_A", &data)
    }

    /// Appends a launch of the QMD at `qmd` (256-byte aligned), as libcuda commands it on Hopper.
    ///
    /// # Errors
    /// When the class has no SEND_SIGNALING_PCAS2_B.
    pub fn pcas(&mut self, subchannel: u8, class: u32, qmd: GpuVa) -> Result<&mut Self, Unnamed> {
        self.named(subchannel, class, "SEND_PCAS_A", &[(qmd.0 >> 8) as u32])?;
        self.named(subchannel, class, "SEND_SIGNALING_PCAS2_B", &[0x0a])
    }
}

/// Returns an address in two words, as the methods ..._UPPER and ..._LOWER take it.
fn upper_lower(address: GpuVa) -> [u32; 2] {
    [(address.0 >> 32) as u32, address.0 as u32]
}

/// First addresses of the methods of a class, by name.
type Names = HashMap<&'static str, u16>;

thread_local! {
    // The tables are sorted by address. This index spares a program that submits all the time the search for each name.
    static NAMES: RefCell<HashMap<u32, Names>> = RefCell::default();
}

fn address_of(class: u32, name: &str) -> Result<u16, Unnamed> {
    let found = NAMES.with_borrow_mut(|all| {
        let names = all.entry(class).or_insert_with(|| names_of(class));
        names.get(name).copied()
    });
    found.ok_or_else(|| Unnamed {
        class,
        name: name.to_owned(),
    })
}

/// Returns the method names of a class, with its parents' for those that it does not have itself.
fn names_of(class: u32) -> Names {
    let mut names = Names::new();
    let mut next = classes::class(class);
    while let Some(class) = next {
        for method in class.methods() {
            names.entry(method.name()).or_insert(method.base());
        }
        next = class.parent().and_then(|p| classes::class(p.class));
    }
    names
}

/// Fields of a layout, by name.
type Fields = HashMap<&'static str, qmd::Field>;

thread_local! {
    static FIELDS: RefCell<HashMap<(u8, u8), Fields>> = RefCell::default();
}

fn fields_of(version: (u8, u8)) -> Fields {
    let mut fields = Fields::new();
    for field in qmd::layout(version).into_iter().flat_map(|l| l.fields()) {
        fields.entry(field.name()).or_insert(field);
    }
    fields
}

/// A QMD under construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qmd {
    version: (u8, u8),
    bytes: Vec<u8>,
}

impl Qmd {
    /// Makes an empty QMD of a version, with its version bits set; `None` if there is no such layout.
    pub fn new(version: (u8, u8)) -> Option<Self> {
        let layout = qmd::layout(version)?;
        let mut qmd = Self {
            version,
            bytes: vec![0; layout.bytes()],
        };
        qmd.set("QMD_MAJOR_VERSION", 0, u64::from(version.0)).ok()?;
        let minor = ["QMD_MINOR_VERSION", "QMD_VERSION"];
        minor
            .iter()
            .find_map(|name| qmd.set(name, 0, u64::from(version.1)).ok())?;
        Some(qmd)
    }

    /// Makes a QMD of a version (04_00 to 05_00) for the launch in `view`: grid, block, registers, shared and local memory, barriers,
    /// program, constant banks, releases, dependents with their actions, dependence counter. Cooperative launches are not supported.
    ///
    /// # Errors
    /// When the version has no such layout or has other names for fields.
    pub fn of(view: &View) -> Result<Self, Unnamed> {
        let version = u32::from(view.version.0) << 8 | u32::from(view.version.1);
        let mut qmd = Self::new(view.version).ok_or(Unnamed {
            class: version,
            name: "QMD layout".into(),
        })?;
        let kind = if view.queue {
            0
        } else if view.null {
            1
        } else if view.cluster.is_some() {
            3
        } else {
            2
        };
        // The layout counts clusters if the launch has them.
        let each = view.cluster.unwrap_or([1; 3]);
        let grid: [u32; 3] = std::array::from_fn(|i| view.grid[i] / each[i].max(1));
        qmd.set("QMD_TYPE", 0, kind)?;
        for (name, value) in ["GRID_WIDTH", "GRID_HEIGHT", "GRID_DEPTH"]
            .into_iter()
            .zip(grid)
        {
            qmd.set(name, 0, value.into())?;
        }
        for (i, value) in view.block.into_iter().enumerate() {
            qmd.set(&format!("CTA_THREAD_DIMENSION{i}"), 0, value.into())?;
        }
        qmd.set("REGISTER_COUNT", 0, view.registers.into())?;
        qmd.set("BARRIER_COUNT", 0, view.barriers.into())?;
        qmd.set_scaled("SHARED_MEMORY_SIZE", 0, view.shared_bytes.into())?;
        qmd.set_scaled("SHADER_LOCAL_MEMORY_LOW_SIZE", 0, view.local_bytes.into())?;
        qmd.set_address("PROGRAM_ADDRESS", 0, view.program.0)?;
        for bank in &view.constant_banks {
            let i = bank.index as u16;
            qmd.set("CONSTANT_BUFFER_VALID", i, 1)?;
            qmd.set_address("CONSTANT_BUFFER_ADDR", i, bank.address.0)?;
            qmd.set_scaled("CONSTANT_BUFFER_SIZE", i, bank.size.into())?;
        }
        for (i, release) in view.releases.iter().enumerate() {
            qmd.set("RELEASE_ENABLE", i as u16, 1)?;
            qmd.set_address(&format!("RELEASE_SEMAPHORE{i}_ADDR"), 0, release.address.0)?;
            qmd.set_address(&format!("RELEASE_SEMAPHORE{i}_PAYLOAD"), 0, release.payload)?;
        }
        for (i, next) in view.dependents.iter().enumerate() {
            qmd.set("DEPENDENT_QMD_ENABLE", i as u16, 1)?;
            let action = next.action.number();
            qmd.set("DEPENDENT_QMD_ACTION", i as u16, action.into())?;
            qmd.set(&format!("DEPENDENT_QMD{i}_POINTER"), 0, next.address.0 >> 8)?;
        }
        qmd.set("DEPENDENCE_COUNTER", 0, view.dependence.into())?;
        qmd.set("REQUIRE_SCHEDULING_PCAS", 0, view.requires_pcas.into())?;
        if let Some(cluster) = view.cluster {
            for (name, value) in ["GPC_CGA_WIDTH", "GPC_CGA_HEIGHT", "GPC_CGA_DEPTH"]
                .into_iter()
                .zip(cluster)
            {
                qmd.set(name, 0, value.into())?;
            }
        }
        Ok(qmd)
    }

    /// Sets element `i` of the field `name` (0 if it is no array). Excess bits of the value are cut off.
    ///
    /// # Errors
    /// When the layout has no such field or element.
    pub fn set(&mut self, name: &str, i: u16, value: u64) -> Result<(), Unnamed> {
        let version = u32::from(self.version.0) << 8 | u32::from(self.version.1);
        let unnamed = || Unnamed {
            class: version,
            name: name.to_owned(),
        };
        let field = FIELDS.with_borrow_mut(|all| {
            let fields = all
                .entry(self.version)
                .or_insert_with(|| fields_of(self.version));
            fields.get(name).copied()
        });
        let field = field.filter(|f| i < f.count()[0]).ok_or_else(unnamed)?;
        if field.set(&mut self.bytes, i, 0, value) {
            Ok(())
        } else {
            Err(unnamed())
        }
    }

    /// Sets `name`, or the field of that name that holds the value shifted right.
    fn set_scaled(&mut self, name: &str, i: u16, value: u64) -> Result<(), Unnamed> {
        if self.set(name, i, value).is_ok() {
            return Ok(());
        }
        for shift in [4, 6, 7, 8] {
            if self
                .set(&format!("{name}_SHIFTED{shift}"), i, value >> shift)
                .is_ok()
            {
                return Ok(());
            }
        }
        self.set(name, i, value)
    }

    /// Sets the lower and upper half of `name`, shifted if the layout has it so.
    fn set_address(&mut self, name: &str, i: u16, value: u64) -> Result<(), Unnamed> {
        for (suffix, shift) in [("", 0), ("_SHIFTED4", 4), ("_SHIFTED6", 6)] {
            let value = value >> shift;
            let lower = format!("{name}_LOWER{suffix}");
            if self.set(&lower, i, value & 0xffff_ffff).is_ok() {
                return self.set(&format!("{name}_UPPER{suffix}"), i, value >> 32);
            }
        }
        self.set(&format!("{name}_LOWER"), i, value)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
