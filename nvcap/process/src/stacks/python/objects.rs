//! Code objects and strings of CPython.

use super::offsets::NONE;
use super::{Python, lines};
use crate::procfs::{budget::Budget, mem::ReadMemory};

/// The most characters of a name that are read.
const MOST_CHARACTERS: u64 = 4096;
/// The most bytes of a table of lines.
const MOST_TABLE: u64 = 1 << 22;
/// The most copies of a function's instructions: one for each thread.
const MOST_COPIES: u64 = 4096;

/// Place of a frame in the source: function, file and line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Name of the function; from 3.11 on with the names of the class and functions around it.
    pub function: String,
    /// Name of the file, from the code object.
    pub file: String,
    /// Line; `None` if the table has none for the instruction.
    pub line: Option<u32>,
}

impl Python {
    fn word<M: ReadMemory + ?Sized>(&self, memory: &M, at: u64, offset: u32) -> Option<u64> {
        memory.word(at.checked_add(offset.into())?).ok()
    }

    fn has_type<M: ReadMemory + ?Sized>(&self, memory: &M, object: u64, of: u64) -> bool {
        object != 0 && self.word(memory, object, self.offsets.walk.object_type) == Some(of)
    }

    /// Tells whether a code object is at an address.
    pub(super) fn is_code<M: ReadMemory + ?Sized>(&self, memory: &M, at: u64) -> bool {
        self.has_type(memory, at, self.types.code)
    }

    /// Returns function, file and line of a frame's code and instruction. `None` if the memory is not a code object (any more), or if the
    /// budget does not suffice for the names. There is no line if the budget does not suffice for the table of lines.
    pub fn resolve<M: ReadMemory + ?Sized>(
        &self,
        memory: &M,
        code: u64,
        instruction: u64,
        budget: &Budget,
    ) -> Option<Location> {
        if !self.is_code(memory, code) {
            return None;
        }
        let o = &self.offsets;
        let function = self.string(memory, self.word(memory, code, o.function)?, budget)?;
        let file = self.string(memory, self.word(memory, code, o.file)?, budget)?;
        let line = self.line(memory, code, instruction, budget);
        // The code object may have gone meanwhile.
        self.is_code(memory, code).then_some(Location {
            function,
            file,
            line,
        })
    }

    fn line<M: ReadMemory + ?Sized>(
        &self,
        memory: &M,
        code: u64,
        instruction: u64,
        budget: &Budget,
    ) -> Option<u32> {
        let o = &self.offsets;
        let first = self.word(memory, code, o.first_line)? as u32;
        let table = self.word(memory, code, o.line_table)?;
        let table = self.bytes(memory, table, budget)?;
        if o.minor < 11 {
            // The position counts instructions; -1 means before the first.
            let index = instruction as u32 as i32;
            return match u64::try_from(index) {
                Ok(index) => lines::pairs(&table, first, 2 * index),
                Err(_) => Some(first),
            };
        }
        let size = 2 * self.word(memory, code, o.var_size)?;
        let own = code.checked_add(o.instructions.into())?;
        let within = |start: u64| {
            let position = instruction.wrapping_sub(start);
            (position < size).then_some(position)
        };
        // 3.11 and 3.12 keep the last instruction that ran. Before the first instruction, it is the place just before that one.
        if instruction == own.wrapping_sub(2) {
            return Some(first);
        }
        let position = within(own).or_else(|| {
            let copies = self.copies(memory, code, budget)?;
            copies.into_iter().find_map(within)
        })?;
        lines::locations(&table, first, position)
    }

    /// Returns the addresses of the copies of a code object's instructions that belong to single threads (`_PyCodeArray`: a count, then
    /// pointers).
    fn copies<M: ReadMemory + ?Sized>(
        &self,
        memory: &M,
        code: u64,
        budget: &Budget,
    ) -> Option<Vec<u64>> {
        if self.offsets.thread_copies == NONE {
            return None;
        }
        let array = self
            .word(memory, code, self.offsets.thread_copies)
            .filter(|a| *a != 0)?;
        let all = memory.word(array).ok()?;
        let count = all.min(MOST_COPIES);
        if all > count {
            budget.refuse();
        }
        budget.take(8 * count).then_some(())?;
        let mut bytes = vec![0; 8 * count as usize];
        memory.read_bytes(array.checked_add(8)?, &mut bytes).ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        Some(
            words
                .iter()
                .map(|w| u64::from_le_bytes(*w))
                .filter(|a| *a != 0)
                .collect(),
        )
    }

    fn bytes<M: ReadMemory + ?Sized>(
        &self,
        memory: &M,
        object: u64,
        budget: &Budget,
    ) -> Option<Vec<u8>> {
        if !self.has_type(memory, object, self.types.bytes) {
            return None;
        }
        let len = self.word(memory, object, self.offsets.var_size)?;
        if len > MOST_TABLE {
            budget.refuse();
            return None;
        }
        budget.take(len).then_some(())?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        let at = object.checked_add(self.offsets.bytes_data.into())?;
        memory.read_bytes(at, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns a string's characters (PEP 393), with control characters unchanged.
    fn string<M: ReadMemory + ?Sized>(
        &self,
        memory: &M,
        object: u64,
        budget: &Budget,
    ) -> Option<String> {
        if !self.has_type(memory, object, self.types.unicode) {
            return None;
        }
        let o = &self.offsets;
        let len = self.word(memory, object, o.string_length)?;
        let state = self.word(memory, object, o.string_state)? >> o.string_kind_shift;
        let (kind, compact, ascii) = (state & 7, state & 8 != 0, state & 16 != 0);
        if !compact || !matches!(kind, 1 | 2 | 4) || ascii && kind != 1 {
            return None;
        }
        if len > MOST_CHARACTERS {
            budget.refuse();
            return None;
        }
        budget.take(len * kind).then_some(())?;
        let data = if ascii { o.ascii_data } else { o.compact_data };
        let mut bytes = vec![0; (len * kind) as usize];
        let at = object.checked_add(data.into())?;
        memory.read_bytes(at, &mut bytes).ok()?;
        let character = |bytes: &[u8]| {
            let mut word = [0; 4];
            word.get_mut(..bytes.len())?.copy_from_slice(bytes);
            let word = u32::from_le_bytes(word);
            // Surrogates stand for bytes of a file's name that were not UTF-8.
            Some(char::from_u32(word).unwrap_or(char::REPLACEMENT_CHARACTER))
        };
        bytes.chunks_exact(kind as usize).map(character).collect()
    }
}
