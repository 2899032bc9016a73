//! Variables of an image: the symbols of the sections that hold them.

use super::elf::{Elf, Section};
use crate::record::Variable;
use crate::wire::read_memory::ReadMemory;
use crate::wire::words::{u16_at, u32_at, u64_at};

/// The most variables of an image, and the most bytes of their names. An image that has more is treated as if it had none.
const MOST: usize = 1 << 10;
const MOST_NAMES: usize = 64 << 10;
/// Section type: symbols.
const SYMBOLS: u32 = 2;
/// Symbol type: an object.
const OBJECT: u8 = 1;

/// A symbol of the table.
struct Symbol {
    name: u32,
    kind: u8,
    section: u16,
    value: u64,
    bytes: u64,
}

impl Symbol {
    fn read(bytes: &[u8], wide: bool) -> Option<Self> {
        let word = |at| u32_at(bytes, at).map(u64::from);
        let (info, section) = if wide { (4, 6) } else { (12, 14) };
        Some(Self {
            name: u32_at(bytes, 0)?,
            kind: bytes.get(info)? & 0xf,
            section: u16_at(bytes, section)?,
            value: if wide { u64_at(bytes, 8) } else { word(4) }?,
            bytes: if wide { u64_at(bytes, 16) } else { word(8) }?,
        })
    }
}

/// Tells whether a section holds constants (true) or variables in global memory (false); `None` for other sections. Of the constant banks
/// only the third holds the program's constants; the others hold arguments, literals and addresses of variables.
fn is_constant(section: &Section) -> Option<bool> {
    match section.name.as_str() {
        ".nv.constant3" => Some(true),
        ".nv.global" | ".nv.global.init" => Some(false),
        _ => None,
    }
}

/// Returns the variables of the image that begins at `at`, constants last, each in the order of its place; `None` if the image cannot be read or
/// has too many.
pub fn variables<M: ReadMemory + ?Sized>(memory: &M, at: u64) -> Option<Vec<Variable>> {
    let mut elf = Elf::read(memory, at)?;
    let sections = std::mem::take(&mut elf.sections);
    if sections.iter().all(|s| is_constant(s).is_none()) {
        return Some(Vec::new());
    }
    let symbols = elf.bytes(sections.iter().find(|s| s.kind == SYMBOLS)?);
    let names = elf.bytes(sections.iter().find(|s| s.name == ".strtab")?);
    let mut all = Vec::new();
    for bytes in symbols.chunks_exact(if elf.wide { 24 } else { 16 }) {
        let symbol = Symbol::read(bytes, elf.wide)?;
        let section = sections.get(usize::from(symbol.section));
        if let Some(constant) = section
            .and_then(is_constant)
            .filter(|_| symbol.kind == OBJECT)
        {
            all.push((constant, symbol.section, symbol.value, symbol));
        }
    }
    if all.len() > MOST {
        return None;
    }
    all.sort_by_key(|(constant, section, value, _)| (*constant, *section, *value));
    let mut left = MOST_NAMES;
    let variable = |(constant, _, _, symbol): (bool, u16, u64, Symbol)| {
        let name = names.get(symbol.name as usize..)?;
        let name = name.split(|b| *b == 0).next()?;
        left = left.checked_sub(name.len())?;
        Some(Variable {
            name: String::from_utf8_lossy(name).into_owned(),
            bytes: symbol.bytes,
            constant,
        })
    };
    all.into_iter().map(variable).collect()
}
