//! The fields of a structure as values with a meaning, for printing an ioctl. The module knows layouts and the headers' naming conventions
//! (`hClient` is a handle, `NvP64` an address), but no output format.

use super::{
    call::{Structure, number},
    facts::{self, Field, Layout},
};

/// The meaning of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A count, an index, or anything else.
    Plain,
    /// An object's handle.
    Handle,
    /// An address, an offset or a size in bytes.
    Address,
    /// Flags, bit by bit.
    Flags,
    /// A class number.
    Class,
    /// A number of a control command.
    Command,
    /// NV_STATUS.
    Status,
    /// NV2080_ENGINE_TYPE.
    Engine,
    /// True or false.
    Bool,
}

/// A field's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, not sign-extended.
    Number(u64, Meaning),
    /// A negative number.
    Negative(i64),
    /// Characters up to the first NUL.
    Text(String),
    /// Bytes of an array of bytes (a UUID), or of a type that the tables do not have.
    Bytes(Vec<u8>),
    /// An array of numbers.
    Numbers(Vec<u64>, Meaning),
    /// An array of structures.
    Structures(Vec<Vec<NamedValue>>),
}

impl Value {
    /// Tells whether the value has only zeros.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Number(n, _) => *n == 0,
            Self::Negative(_) => false,
            Self::Text(t) => t.is_empty(),
            Self::Bytes(b) => b.iter().all(|b| *b == 0),
            Self::Numbers(n, _) => n.iter().all(|n| *n == 0),
            Self::Structures(s) => s.iter().flatten().all(|f| f.value.is_zero()),
        }
    }
}

/// A field and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedValue {
    /// Name of the field.
    pub name: &'static str,
    /// Value of the field.
    pub value: Value,
}

/// A field before and after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// Name of the field.
    pub name: &'static str,
    /// Value before the call; `None` if it was not captured.
    pub before: Option<Value>,
    /// Value after the call; `None` if it was not captured.
    pub after: Option<Value>,
}

impl Exchanged {
    /// Tells whether the field is zero before and after, as far as it was captured.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        [&self.before, &self.after]
            .into_iter()
            .flatten()
            .all(Value::is_zero)
    }

    /// Tells whether the call changed the field.
    #[must_use]
    pub fn changed(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(b), Some(a)) => b != a,
            _ => false,
        }
    }
}

/// Returns the fields of a structure before and after a call. Empty if there is no layout.
#[must_use]
pub fn exchanged(structure: &Structure<'_>) -> Vec<Exchanged> {
    let Some(layout) = structure.layout else {
        return Vec::new();
    };
    let member = active_member(&layout, &structure.input.data);
    layout
        .fields()
        .filter(|f| {
            f.name.strip_prefix("data.").is_none_or(|rest| {
                member.is_some_and(|m| rest.strip_prefix(m).is_some_and(|r| r.starts_with('.')))
            }) || layout.name() != HEAP
        })
        .map(|f| Exchanged {
            name: f.name,
            before: value(&f, &structure.input.data),
            after: value(&f, &structure.output.data),
        })
        .filter(|e| e.before.is_some() || e.after.is_some())
        .collect()
}

const HEAP: &str = "NVOS32_PARAMETERS";

/// Returns the member of NVOS32's union that a call uses: NVOS32_FUNCTION_* (nvos.h), `function` at offset 8.
fn active_member(layout: &Layout, data: &[u8]) -> Option<&'static str> {
    if layout.name() != HEAP {
        return None;
    }
    Some(match number(data, 8, 4)? {
        1 => "AllocDepthWidthHeight",
        2 => "AllocSize",
        3 => "Free",
        5 => "Info",
        6 => "AllocTiledPitchHeight",
        11 => "Dump",
        14 => "AllocSizeRange",
        15 => "AllocHintAlignment",
        16 => "HwAlloc",
        _ => return None,
    })
}

/// Returns the value of a field in a structure's bytes; `None` if the bytes end before it.
#[must_use]
pub fn value(field: &Field, data: &[u8]) -> Option<Value> {
    value_at(field, data, 0)
}

fn value_at(field: &Field, data: &[u8], depth: u32) -> Option<Value> {
    let bytes = data.get(field.offset..field.offset.checked_add(field.size)?);
    let array = field
        .kind
        .split_once('[')
        .and_then(|(element, n)| Some((element, n.trim_end_matches(']').parse::<usize>().ok()?)));
    let Some((element, count)) = array.filter(|(_, n)| *n != 0) else {
        let bytes = bytes?;
        if let Some(layout) = structure_of(field.kind, field.size)
            && depth < 2
        {
            return Some(Value::Structures(vec![structure(&layout, bytes, depth)]));
        }
        return match number(bytes, 0, field.size) {
            Some(n) => Some(scalar(field, n)),
            None => Some(Value::Bytes(bytes.to_vec())),
        };
    };
    let size = field.size / count;
    // A truncated array gives its whole elements.
    let start = data.get(field.offset..).filter(|b| !b.is_empty())?;
    let bytes = &start[..start.len().min(field.size)];
    if element == "char" {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        return Some(Value::Text(
            String::from_utf8_lossy(&bytes[..end]).into_owned(),
        ));
    }
    if size == 0 {
        return Some(Value::Bytes(bytes.to_vec()));
    }
    if let Some(layout) = structure_of(element, size)
        && depth < 2
    {
        let elements = bytes
            .chunks_exact(size)
            .map(|b| structure(&layout, b, depth))
            .collect();
        return Some(Value::Structures(elements));
    }
    match size {
        2 | 4 | 8 => Some(Value::Numbers(
            bytes
                .chunks_exact(size)
                .filter_map(|b| number(b, 0, size))
                .collect(),
            meaning(field.name, element),
        )),
        _ => Some(Value::Bytes(bytes.to_vec())),
    }
}

fn structure_of(kind: &str, size: usize) -> Option<Layout> {
    facts::layouts(kind).find(|l| l.size() == size)
}

fn structure(layout: &Layout, bytes: &[u8], depth: u32) -> Vec<NamedValue> {
    layout
        .fields()
        .filter_map(|f| {
            Some(NamedValue {
                name: f.name,
                value: value_at(&f, bytes, depth + 1)?,
            })
        })
        .collect()
}

fn scalar(field: &Field, n: u64) -> Value {
    let signed = matches!(field.kind, "NvS16" | "NvS32" | "int" | "int32_t");
    if signed {
        let value = match field.size {
            2 => i64::from(n as u16 as i16),
            4 => i64::from(n as u32 as i32),
            _ => n as i64,
        };
        if value < 0 {
            return Value::Negative(value);
        }
    }
    Value::Number(n, meaning(field.name, field.kind))
}

fn meaning(name: &str, kind: &str) -> Meaning {
    let last = name.rsplit('.').next().unwrap_or(name);
    match (last, kind) {
        ("cmd", "NvV32") => Meaning::Command,
        ("hClass" | "classID" | "class" | "classList", _) => Meaning::Class,
        ("status" | "rmStatus" | "Status", _) | (_, "NV_STATUS") => Meaning::Status,
        ("engineType" | "engineID" | "engineList", _) => Meaning::Engine,
        ("vendor_id" | "device_id", _) => Meaning::Flags,
        (_, "NvBool") => Meaning::Bool,
        (_, "NvHandle") => Meaning::Handle,
        (_, "NvP64" | "ptr" | "NvU64" | "uint64_t") => Meaning::Address,
        _ if is_handle(last) => Meaning::Handle,
        _ if ["flags", "attr", "mask", "caps"]
            .iter()
            .any(|part| last.to_ascii_lowercase().contains(part)) =>
        {
            Meaning::Flags
        }
        _ => Meaning::Plain,
    }
}

/// Tells whether a name such as `hMemory` has the headers' form for handles.
fn is_handle(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next() == Some('h') && chars.next().is_some_and(char::is_uppercase)
}

/// Returns the elements of an argument that is an array of structures (NV_ESC_CARD_INFO), as far as they were captured.
#[must_use]
pub fn elements(name: &str, data: &[u8]) -> Vec<Vec<NamedValue>> {
    match facts::layout(name, None, None) {
        Some(layout) if layout.size() != 0 => data
            .chunks_exact(layout.size())
            .map(|b| structure(&layout, b, 0))
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Bytes;

    fn bytes(data: Vec<u8>) -> Bytes {
        Bytes {
            full_len: data.len() as u64,
            data,
        }
    }

    fn field<'a>(all: &'a [Exchanged], name: &str) -> &'a Exchanged {
        all.iter().find(|f| f.name == name).expect(name)
    }

    #[test]
    fn numbers_texts_and_arrays() {
        let mut data = vec![0u8; 128];
        data[..4].copy_from_slice(&6u32.to_le_bytes());
        let (input, output) = (bytes(vec![0; 128]), bytes(data));
        let structure = Structure {
            layout: facts::layout("NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS", None, None),
            is_guess: false,
            input: &input,
            output: &output,
        };
        let all = exchanged(&structure);
        let ids = field(&all, "gpuIds");
        assert!(ids.changed());
        let Some(Value::Numbers(ids, _)) = &ids.after else {
            panic!("{ids:?}");
        };
        assert_eq!((ids.len(), ids[0]), (32, 6));
    }

    #[test]
    fn a_union_shows_the_member_in_use() {
        let mut data = vec![0u8; 184];
        data[8] = 2;
        let input = bytes(data);
        let structure = Structure {
            layout: facts::layout(HEAP, None, Some(184)),
            is_guess: false,
            input: &input,
            output: &input,
        };
        let all = exchanged(&structure);
        assert!(all.iter().any(|f| f.name == "data.AllocSize.hMemory"));
        assert!(!all.iter().any(|f| f.name.starts_with("data.Free")));
        assert!(all.iter().any(|f| f.name == "hRoot"));
    }

    #[test]
    fn what_was_not_captured_is_not_said() {
        let input = bytes(vec![1; 64]);
        let structure = Structure {
            layout: facts::layout("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", None, None),
            is_guess: false,
            input: &input,
            output: &input,
        };
        let all = exchanged(&structure);
        assert!(all.iter().any(|f| f.name == "base"));
        assert!(!all.iter().any(|f| f.name == "hMemory"));
        let Some(Value::Structures(gpus)) = &field(&all, "perGpuAttributes").before else {
            panic!();
        };
        assert_eq!(gpus.len(), 1);
    }
}
