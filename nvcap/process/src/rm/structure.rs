//! A structure of the driver's interface, laid out for the driver's release (`driver::layout`). The module makes no call.

use nvcap_decode::driver::{Layout, Version, layout};

use super::Error;

/// Bytes of a structure, accessed by the names of its fields.
#[derive(Clone, Debug)]
pub struct Structure {
    layout: Layout,
    /// Bytes of the structure, and [`SLACK`] bytes behind them.
    bytes: Vec<u8>,
}

/// Number of bytes behind a structure. A driver that is newer than nvcap's tables may have a longer structure, and writes all of it back.
const SLACK: usize = 4096;

impl Structure {
    /// Makes the structure `name` with these fields set and all others zero. For an array, the first element is set.
    pub fn of(
        name: &'static str,
        version: Option<Version>,
        fields: &[(&'static str, u64)],
    ) -> Result<Self, Error> {
        let layout = layout(name, version, None).ok_or(Error::Structure(name))?;
        let mut structure = Self {
            bytes: vec![0; layout.size() + SLACK],
            layout,
        };
        for (field, value) in fields {
            structure.set(field, 0, *value)?;
        }
        Ok(structure)
    }

    /// Sets element `i` of a field, or the field itself if it is no array.
    pub fn set(&mut self, field: &'static str, i: usize, value: u64) -> Result<(), Error> {
        let at = self.place(field, i)?;
        for (byte, value) in self.bytes[at].iter_mut().zip(value.to_le_bytes()) {
            *byte = value;
        }
        Ok(())
    }

    /// Returns element `i` of a field.
    pub fn element(&self, field: &'static str, i: usize) -> Result<u64, Error> {
        let at = self.place(field, i)?;
        let bytes = self.bytes[at].iter().rev();
        Ok(bytes.fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Returns a field that is no array.
    pub fn get(&self, field: &'static str) -> Result<u64, Error> {
        self.element(field, 0)
    }

    /// Returns the number of elements that a field has.
    pub fn count(&self, field: &'static str) -> Result<usize, Error> {
        let field = self.layout.field(field).ok_or(self.unknown(field))?;
        Ok(elements(field.kind))
    }

    /// Returns the byte range of element `i` of a field; the element has at most 8 bytes.
    fn place(&self, name: &'static str, i: usize) -> Result<std::ops::Range<usize>, Error> {
        let field = self.layout.field(name).ok_or(self.unknown(name))?;
        let count = elements(field.kind);
        let size = field.size / count;
        if i >= count || size > 8 {
            return Err(self.unknown(name));
        }
        let start = field.offset + i * size;
        Ok(start..start + size)
    }

    fn unknown(&self, field: &'static str) -> Error {
        Error::Field {
            structure: self.layout.name(),
            field,
        }
    }

    /// Returns the structure's bytes, for the driver.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let size = self.layout.size();
        &mut self.bytes[..size]
    }
}

/// Returns the number of elements of a C type: `n` of `T[n]`, else one.
fn elements(kind: &str) -> usize {
    let count = kind.split_once('[').and_then(|(_, n)| n.strip_suffix(']'));
    count.and_then(|n| n.parse().ok()).unwrap_or(1).max(1)
}
