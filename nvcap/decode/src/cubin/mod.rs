//! CUDA ELF images (cubins): functions with their code, registers and parameters, read from any memory at an address.
//!
//! libcuda keeps the images of the modules that it has loaded in the process's own memory. Only the headers, the names of the sections and
//! the attributes (`.nv.info*`) are read, at most [`MOST_READ`] bytes of an image; the caller reads code, if wanted, by a [`Function`]'s
//! range. Any bytes are accepted; what makes no sense is left out.
//!
//! Sources of the facts: the identification and the flags are those of LLVM's `BinaryFormat/ELF.h` (`EM_CUDA`,
//! `EF_CUDA_*`), and what ptxas 12.9.86, 13.0.88 and 13.5.37 wrote for sm_90 to sm_121f; the formats and numbers of attributes (`EIFMT_*`, `EIATTR_*`) are those that `cuobjdump -elf` prints and CuAssembler,
//! cudaparsers and denvdis list; `KPARAM_INFO_V2`'s layout was published with an experiment of nvcc 12.9
//! on a kernel with a parameter of 0x1520 bytes.
//!
//! - [`control`]: the control bits of an instruction.
//! - [`compare`]: comparison of an image's code with code that was seen elsewhere.
//! - `variables`: the symbols of an image's data.
//! - `fatbin`: the containers of images in programs and libraries, and their compressed payloads.

use std::{collections::HashMap, ops::Range};

use crate::wire::read_memory::ReadMemory;
use crate::wire::words::{u32_at, u64_at, u64s};

pub mod compare;
pub mod control;
mod elf;
pub mod fatbin;
mod info;
mod variables;

pub use elf::MOST_READ;
use elf::{Elf, NOBITS, Section};
pub use info::{Bank, Param};
pub use variables::variables;

/// The most relocations that are kept of one image.
const MOST_RELOCATIONS: usize = 1 << 20;
/// Section type: relocations with addends, three words each.
const RELA: u32 = 4;
/// Section type: relocations, two words each.
const REL: u32 = 9;

/// An image, as its headers and attributes describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// Address of the image.
    pub at: u64,
    /// Length in bytes, computed from the headers.
    pub len: u64,
    /// The GPU architecture, as in `sm_90`.
    pub sm: u32,
    /// True if the image runs on this very architecture alone (`sm_90a`).
    pub accelerated: bool,
    /// True if the image runs on the architecture's family (`sm_100f`). Only the assembler's command line in the image says so. The code
    /// itself has no mark, so an image without the command line counts as one of `sm_100`.
    pub family: bool,
    /// True if the image must be linked with others (`nvcc -dc`) before it can be loaded.
    pub relocatable: bool,
    /// Functions, in the order of their sections: kernels, and device functions that have sections of their own.
    pub functions: Vec<Function>,
}

/// A function of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The name, as the compiler mangled it.
    pub name: String,
    /// Index of the section with its code.
    pub section: u32,
    /// Index of the function's symbol, which is how nvdisasm selects functions.
    pub symbol: u32,
    /// Range of the code in the image, bytes.
    pub code: Range<u64>,
    /// Number of registers of a thread.
    pub registers: Option<u32>,
    /// Parameters, in order. Empty if there are none or the attributes list none.
    pub params: Vec<Param>,
    /// Place of the parameters in constant bank 0.
    pub bank: Option<Bank>,
    /// Relocations: offsets within the code at which the loader changes it, in order.
    pub relocations: Vec<u64>,
}

impl Cubin {
    /// Reads the image that begins at `at`; `None` if there is no CUDA ELF header, or its tables cannot be read.
    #[must_use]
    pub fn read<M: ReadMemory + ?Sized>(memory: &M, at: u64) -> Option<Self> {
        let mut elf = Elf::read(memory, at)?;
        let sections = std::mem::take(&mut elf.sections);
        let mut of_image = Functions::of(&sections);
        let mut family = false;
        // The sections are mostly in the order of their places, so that each part of the image is read once.
        for section in &sections {
            match section.name.as_str() {
                ".nv.compat" => elf.accelerated |= info::is_accelerated(&elf.bytes(section)),
                ".note.nv.tkinfo" => family |= info::is_for_family(&elf.bytes(section), elf.sm),
                ".nv.info" => of_image.add_registers(&elf.bytes(section)),
                _ => of_image.describe(&mut elf, section),
            }
        }
        let functions = of_image.in_order();
        Some(Self {
            at,
            len: elf.len(&sections),
            sm: elf.sm,
            accelerated: elf.accelerated,
            family: family && !elf.accelerated,
            relocatable: elf.relocatable,
            functions,
        })
    }

    /// Returns the architecture as toolkits name it: `sm_90`, `sm_100a`, `sm_100f`.
    #[must_use]
    pub fn target(&self) -> String {
        let only = match (self.accelerated, self.family) {
            (true, _) => "a",
            (_, true) => "f",
            _ => "",
        };
        format!("sm_{}{only}", self.sm)
    }

    /// Returns the function with this mangled name.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|f| f.name == name)
    }
}

/// The functions of an image that is being read.
struct Functions {
    functions: Vec<Function>,
    /// Index in `functions`, by the index of the section with the code.
    by_section: HashMap<u32, usize>,
    /// Index of the section with the code, by the index of the symbol.
    by_symbol: HashMap<u32, u32>,
    /// Number of relocations of all functions so far.
    relocations: usize,
}

impl Functions {
    /// Makes a function for each section with code.
    fn of(sections: &[Section]) -> Self {
        let mut functions = Vec::new();
        let mut by_section = HashMap::new();
        for (section, index) in sections.iter().zip(0..) {
            let Some(name) = section.name.strip_prefix(".text.") else {
                continue;
            };
            if section.kind == NOBITS {
                continue;
            }
            by_section.insert(index, functions.len());
            functions.push(Function {
                name: name.to_owned(),
                section: index,
                symbol: section.info & 0xff_ffff,
                code: section.range(),
                registers: match section.info >> 24 {
                    0 => None,
                    registers => Some(registers),
                },
                params: Vec::new(),
                bank: None,
                relocations: Vec::new(),
            });
        }
        Self {
            by_symbol: functions.iter().map(|f| (f.symbol, f.section)).collect(),
            by_section,
            functions,
            relocations: 0,
        }
    }

    /// Takes the registers of functions from the attributes of the image.
    fn add_registers(&mut self, attributes: &[u8]) {
        for (symbol, count) in info::registers(attributes) {
            let section = self.by_symbol.get(&symbol);
            let index = section.and_then(|s| self.by_section.get(s));
            if let Some(function) = index.and_then(|&i| self.functions.get_mut(i)) {
                function.registers = Some(count);
            }
        }
    }

    /// Takes parameters or relocations of a function from a section, if that is what the section has.
    fn describe<M: ReadMemory + ?Sized>(&mut self, elf: &mut Elf<'_, M>, section: &Section) {
        let index = self.by_section.get(&section.info);
        let Some(function) = index.and_then(|&i| self.functions.get_mut(i)) else {
            return;
        };
        let of = |prefix: &str| section.name.strip_prefix(prefix) == Some(&function.name);
        if of(".nv.info.") {
            let found = info::parameters(&elf.bytes(section));
            function.params = found.params;
            function.bank = found.bank;
        } else if (section.kind == REL && of(".rel.text."))
            || (section.kind == RELA && of(".rela.text."))
        {
            let word = if elf.wide { 8 } else { 4 };
            let left = MOST_RELOCATIONS.saturating_sub(self.relocations);
            let bytes = elf.bytes(section);
            self.relocations += function.add_relocations(&bytes, section.kind, word, left);
        }
    }

    /// Returns all functions, each with its relocations in order.
    fn in_order(mut self) -> Vec<Function> {
        for function in &mut self.functions {
            function.relocations.sort_unstable();
            function.relocations.dedup();
        }
        self.functions
    }
}

impl Function {
    /// Adds the relocations of a section of type `kind` ([`REL`] or [`RELA`]) with words of `word` bytes, at most `most` of
    /// them. Returns their number.
    fn add_relocations(&mut self, bytes: &[u8], kind: u32, word: usize, most: usize) -> usize {
        let each = if kind == REL { 2 } else { 3 } * word;
        let places = bytes.chunks_exact(each).filter_map(|r| match word {
            8 => u64_at(r, 0),
            _ => u32_at(r, 0).map(u64::from),
        });
        let len = self.code.end - self.code.start;
        let before = self.relocations.len();
        self.relocations
            .extend(places.filter(|at| *at < len).take(most));
        self.relocations.len() - before
    }
}

/// The first 8 bytes of a CUDA ELF image, as a little-endian word: magic, 64 or 32 bits, little-endian, version 1, and the ABI number. The
/// newer ABI exists with 64 bits only.
pub const HEADS: [u64; 3] = [
    0x3301_0102_464c_457f,
    0x4101_0102_464c_457f,
    0x3301_0101_464c_457f,
];

/// Returns the offsets at which images may begin in bytes that lie at an address divisible by 8. Images begin at such addresses because
/// allocators and the sections of files place them there. [`Cubin::read`] tells whether an offset has an image.
pub fn beginnings(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let words = u64s(bytes).zip((0..).step_by(8));
    words
        .filter(|(word, _)| HEADS.contains(word))
        .map(|(_, at)| at)
}
