//! Tables of the engine classes: the methods with their addresses, and the meaning of the bits of their data.
//!
//! Everything here comes from `nvcap/facts/classes.bin`, which `cargo xtask facts` builds from the facts directory (public
//! class headers, Fermi to Blackwell). A class without a public header falls back on a parent, given in the facts
//! ([`Class::parent`]). A lookup does not show whether it went through the parent: ask [`Method::class`].
//!
//! Numbers print as their names and unknown ones as numbers:
//!
//! ```
//! use nvcap_decode::decode::classes::{ClassId, MethodId};
//! assert_eq!(ClassId(0xc8b5).to_string(), "HOPPER_DMA_COPY_A");
//! assert_eq!(ClassId(0x1234).to_string(), "0x1234");
//! assert_eq!(MethodId { class: 0xc8b5, address: 0x300 }.to_string(), "LAUNCH_DMA");
//! assert_eq!(MethodId { class: 0xcbc0, address: 0x3800 }.to_string(), "CALL_MME_MACRO(0)");
//! assert_eq!(MethodId { class: 0xc8b5, address: 0x3000 }.to_string(), "0x3000");
//! ```

use std::{fmt, sync::OnceLock};

use super::named_values::{Names, Value};
use crate::tables::{File, Run, Table, Text, tables};

static FILE: File = File::new(include_bytes!("../../facts/classes.bin"));

tables! { FILE;
    /// Classes by number. The parent is 0 if there is none.
    CLASSES = "classes": ClassRow {
        number: u32, name: Text, family: u8, relation: u8, confidence: u8, parent: u32,
        methods: Run<IdRow>, constants: Run<Value>,
    }
    /// Row numbers of methods.
    IDS = "method ids": IdRow { method: u16 }
    METHODS = "methods": MethodRow {
        name: Text, address: u16, count: [u16; 2], stride: [u16; 2], flags: u8, fields: Run<FieldRow>,
    }
    FIELDS = "fields": FieldRow { name: Text, high: u8, low: u8, values: Run<Value> }
}
static VALUES: Table<Value> = Table::of(&FILE);

/// Number of method addresses: they have 12 bits and count dwords.
const SLOTS: usize = 0x1000;
/// Upper limit of the number of classes in the tables (checked by a test).
const MAX_CLASSES: usize = 192;

/// Kind of engine or unit that a class drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Family {
    /// 3D.
    Graphics3d,
    /// Compute.
    Compute,
    /// Copy engine.
    Copy,
    /// The channel itself: host methods.
    Host,
    /// Inline to memory.
    Inline,
    /// 2D.
    Graphics2d,
    /// Memory to memory format (Fermi).
    MemoryToMemory,
    /// Video decoder.
    Nvdec,
    /// Video encoder.
    Nvenc,
    /// JPEG decoder.
    Nvjpg,
    /// Optical flow.
    Ofa,
    /// SEC2.
    Sec2,
    /// Software methods.
    Software,
    /// Class that is not in the tables.
    Unknown,
}

impl Family {
    fn from_number(n: u8) -> Self {
        use Family::*;
        [
            Graphics3d,
            Compute,
            Copy,
            Host,
            Inline,
            Graphics2d,
            MemoryToMemory,
            Nvdec,
            Nvenc,
            Nvjpg,
            Ofa,
            Sec2,
            Software,
        ]
        .get(usize::from(n))
        .copied()
        .unwrap_or(Unknown)
    }

    /// Returns a short lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Graphics3d => "3d",
            Self::Compute => "compute",
            Self::Copy => "copy",
            Self::Host => "host",
            Self::Inline => "inline",
            Self::Graphics2d => "2d",
            Self::MemoryToMemory => "m2mf",
            Self::Nvdec => "nvdec",
            Self::Nvenc => "nvenc",
            Self::Nvjpg => "nvjpg",
            Self::Ofa => "ofa",
            Self::Sec2 => "sec2",
            Self::Software => "sw",
            Self::Unknown => "unknown",
        }
    }
}

/// The class to which a class falls back, and the certainty of that relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The parent's number ([`FALCON_COMMON`] for the methods that all Falcon video classes share).
    pub class: u32,
    /// Relation to the parent: `stub`, `partial`, `near identical`, `identical`.
    pub relation: &'static str,
    /// Confidence: `low`, `medium`, `high`.
    pub confidence: &'static str,
}

/// Number under which the tables keep the methods common to all Falcon video classes; no hardware class has it.
pub const FALCON_COMMON: u32 = 0xffff_0000;

/// One class of the tables.
#[derive(Clone, Copy)]
pub struct Class {
    index: usize,
    row: ClassRow,
}

/// Returns the class with this number, if the tables have it.
pub fn class(number: u32) -> Option<Class> {
    let (index, row) = CLASSES.from(number, ClassRow::number).next()?;
    (row.number() == number).then_some(Class { index, row })
}

/// Returns every class of the tables, by number.
pub fn all() -> impl Iterator<Item = Class> {
    let rows = CLASSES.all().enumerate();
    rows.map(|(index, row)| Class { index, row })
}

/// Returns the method at a byte address of a class, including inherited ones.
pub fn method(class_number: u32, address: u16) -> Option<Method> {
    class(class_number)?.method(address)
}

/// Returns the family of a class number; [`Family::Unknown`] if the tables do not have it.
pub fn family(class_number: u32) -> Family {
    class(class_number).map_or(Family::Unknown, Class::family)
}

impl Class {
    /// Returns the class number.
    pub fn number(self) -> u32 {
        self.row.number()
    }

    /// Returns the name in the public headers.
    pub fn name(self) -> &'static str {
        self.row.name()
    }

    /// Returns the kind of engine that the class drives.
    pub fn family(self) -> Family {
        Family::from_number(self.row.family())
    }

    /// Returns the class to which this class falls back.
    pub fn parent(self) -> Option<Parent> {
        let relation = ["stub", "partial", "near identical", "identical"];
        let confidence = ["low", "medium", "high"];
        Some(Parent {
            class: match self.row.parent() {
                0 => return None,
                parent => parent,
            },
            relation: relation.get(usize::from(self.row.relation()).checked_sub(1)?)?,
            confidence: confidence.get(usize::from(self.row.confidence()).checked_sub(1)?)?,
        })
    }

    /// Returns the methods of the class's own table, by address, each array once.
    pub fn methods(self) -> impl Iterator<Item = Method> {
        let class = self.number();
        IDS.run(self.row.methods()).map(move |id| {
            let row = METHODS.row(id.method().into());
            Method {
                class,
                row,
                address: row.address(),
            }
        })
    }

    /// Returns constants that are not methods (error codes of video classes).
    pub fn constants(self) -> Names {
        Names::new(&VALUES, self.row.constants())
    }

    /// Returns the method at this byte address, from this class or else from its parents.
    pub fn method(self, address: u16) -> Option<Method> {
        let slot = usize::from(address >> 2);
        let mut class = self;
        // Inheritance is at most four deep (ca6f, c96f, c86f, c76f).
        for _ in 0..8 {
            let id = class.map().get(slot).copied().unwrap_or(0);
            if let Some(id) = id.checked_sub(1) {
                let row = METHODS.row(id.into());
                return Some(Method {
                    class: class.number(),
                    row,
                    address,
                });
            }
            class = self::class(class.parent()?.class)?;
        }
        None
    }

    /// Returns the row of the method, plus 1, for each address slot; arrays fill a slot for each element.
    fn map(self) -> &'static [u16] {
        static MAPS: [OnceLock<Box<[u16]>>; MAX_CLASSES] = [const { OnceLock::new() }; MAX_CLASSES];
        let Some(map) = MAPS.get(self.index) else {
            return &[];
        };
        map.get_or_init(|| self.spread())
    }

    fn spread(self) -> Box<[u16]> {
        let mut map = vec![0u16; SLOTS].into_boxed_slice();
        let mut ids: Vec<u16> = IDS.run(self.row.methods()).map(IdRow::method).collect();
        // A header that is incomplete has some methods with only a part of their fields and values. Those methods are taken from the
        // parent.
        if let Some(parent) = self.parent().filter(|p| p.relation == "partial")
            && let Some(parent) = self::class(parent.class)
        {
            ids.retain(|id| {
                let row = METHODS.row((*id).into());
                let address = row.address();
                let own = Method {
                    class: self.number(),
                    row,
                    address,
                };
                !parent
                    .method(address)
                    .is_some_and(|m| m.says_more_than(own))
            });
        }
        let mut put = |address: u32, id: u16| {
            if let Some(slot @ 0) = map.get_mut((address >> 2) as usize) {
                *slot = id + 1;
            }
        };
        // A method's own address wins over an element of an array that happens to reach it. Of two arrays, one with a certain count wins
        // over one whose count is only an upper bound.
        for &id in &ids {
            put(METHODS.row(id.into()).address().into(), id);
        }
        for bound in [false, true] {
            for &id in &ids {
                let method = Method {
                    class: 0,
                    row: METHODS.row(id.into()),
                    address: 0,
                };
                let Some(a) = method.array().filter(|a| a.bound == bound) else {
                    continue;
                };
                for i in 0..u32::from(a.count[0]) {
                    for j in 0..u32::from(a.count[1]) {
                        let offset = i * u32::from(a.stride[0]) + j * u32::from(a.stride[1]);
                        put(u32::from(method.base()) + offset, id);
                    }
                }
            }
        }
        map
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x} {}", self.number(), self.name())
    }
}

/// The shape of a method array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Number of elements of each index (the second is 1 if there is only one index).
    pub count: [u16; 2],
    /// Bytes between elements of each index.
    pub stride: [u16; 2],
    /// True if the count is only an upper bound.
    pub bound: bool,
}

/// A method of a class, at one address.
#[derive(Clone, Copy)]
pub struct Method {
    class: u32,
    row: MethodRow,
    address: u16,
}

impl Method {
    /// Returns the number of the class whose table has the method (a parent's number if it was inherited).
    pub fn class(self) -> u32 {
        self.class
    }

    /// Returns the name in the public header, without the class and without an index.
    pub fn name(self) -> &'static str {
        self.row.name()
    }

    /// Returns the byte address of element 0.
    pub fn base(self) -> u16 {
        self.row.address()
    }

    /// Returns the byte address that was looked up.
    pub fn address(self) -> u16 {
        self.address
    }

    /// Returns the array of which the method is an element.
    pub fn array(self) -> Option<Array> {
        let flags = self.row.flags();
        (flags & 1 != 0).then(|| Array {
            count: self.row.count(),
            stride: self.row.stride(),
            bound: flags & 2 != 0,
        })
    }

    /// Returns the method's indexes in the array: one or two.
    pub fn element(self) -> Option<(u16, Option<u16>)> {
        let a = self.array()?;
        let offset = self.address.checked_sub(self.base())?;
        let first = offset.checked_div(a.stride[0])?;
        match a.stride[1] {
            0 => Some((first, None)),
            stride => Some((first, Some((offset % a.stride[0]) / stride))),
        }
    }

    /// Returns the fields of the data word, by bit. Fields of one method may overlap (MEM_OP_*); another field then determines which of
    /// them apply.
    pub fn fields(self) -> impl Iterator<Item = Field> {
        FIELDS.run(self.row.fields()).map(|row| Field { row })
    }

    /// Tells whether this method has all fields and values of `other`, which has the same name and place, and more besides.
    fn says_more_than(self, other: Self) -> bool {
        let is_same = |f: Field| {
            let mine = self.field(f.name());
            mine.filter(|m| (m.high(), m.low()) == (f.high(), f.low()))
        };
        let has = |f: Field| {
            is_same(f).is_some_and(|m| {
                f.names()
                    .iter()
                    .all(|(name, value)| m.names().name_of(value) == Some(name))
            })
        };
        let amount = |m: Self| -> usize { m.fields().map(|f| 1 + f.names().iter().count()).sum() };
        (self.name(), self.base()) == (other.name(), other.base())
            && self.array().is_none()
            && other.array().is_none()
            && other.fields().all(has)
            && amount(self) > amount(other)
    }

    /// Returns the field with this name.
    pub fn field(self, name: &str) -> Option<Field> {
        self.fields().find(|f| f.name() == name)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self.element() {
            None => Ok(()),
            Some((i, None)) => write!(f, "({i})"),
            Some((i, Some(j))) => write!(f, "({i},{j})"),
        }
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x} {:#06x} {self}", self.class, self.address)
    }
}

/// A field of a method's data word.
#[derive(Clone, Copy)]
pub struct Field {
    row: FieldRow,
}

impl Field {
    /// Returns the name in the public header, without class and method.
    pub fn name(self) -> &'static str {
        self.row.name()
    }

    /// Returns the highest bit.
    pub fn high(self) -> u8 {
        self.row.high()
    }

    /// Returns the lowest bit.
    pub fn low(self) -> u8 {
        self.row.low()
    }

    /// Returns the field's value in a data word.
    pub fn value(self, data: u32) -> u32 {
        let (high, low) = (u32::from(self.high()) & 31, u32::from(self.low()) & 31);
        let mask = u32::MAX >> (31 - high.saturating_sub(low));
        (data >> low) & mask
    }

    /// Returns a data word in which this field has `value` and the rest is 0.
    pub fn encode(self, value: u32) -> u32 {
        let (high, low) = (u32::from(self.high()) & 31, u32::from(self.low()) & 31);
        let mask = u32::MAX >> (31 - high.saturating_sub(low));
        (value & mask) << low
    }

    /// Returns the named values.
    pub fn names(self) -> Names {
        Names::new(&VALUES, self.row.values())
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}:{}", self.name(), self.high(), self.low())
    }
}

/// A class number that prints as the class's name, or as a number if the tables do not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u32);

impl fmt::Display for ClassId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match class(self.0) {
            Some(class) => f.pad(class.name()),
            None => f.pad(&format!("{:#06x}", self.0)),
        }
    }
}

/// A method of a class that prints as its name, or as its address if the tables do not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MethodId {
    /// Class number.
    pub class: u32,
    /// Byte address.
    pub address: u16,
}

impl fmt::Display for MethodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match method(self.class, self.address) {
            Some(method) => method.fmt(f),
            None => write!(f, "{:#06x}", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test that `wire`, which has no tables, recognises engines by the last digits of class numbers.
    #[test]
    fn numbers_of_classes_tell_the_engine() {
        use crate::wire::engine::Feeds;
        for class in all() {
            let expected = match class.family() {
                Family::Compute | Family::Graphics3d => Some(Feeds::Graphics),
                Family::Copy => Some(Feeds::Copy),
                _ => None,
            };
            assert_eq!(Feeds::of_class(class.number()), expected, "{class:?}");
        }
    }

    #[test]
    fn methods_that_are_known_by_address() {
        use crate::wire::method::*;
        for (class, address, name) in [
            (0xc86f, SET_OBJECT, "SET_OBJECT"),
            (0xcbc0, OFFSET_OUT_UPPER, "OFFSET_OUT_UPPER"),
            (0xcbc0, LOAD_INLINE_DATA, "LOAD_INLINE_DATA"),
            (0xcbc0, SET_REPORT_SEMAPHORE_A, "SET_REPORT_SEMAPHORE_A"),
            (0xc8b5, COPY_SET_SEMAPHORE_A, "SET_SEMAPHORE_A"),
            (0xc8b5, COPY_LAUNCH_DMA, "LAUNCH_DMA"),
            (0xc9b0, SET_APPLICATION_ID, "SET_APPLICATION_ID"),
        ] {
            let named = method(class, address).map(|m| m.name().to_string());
            assert_eq!(named.as_deref(), Some(name), "{class:#x}");
        }
    }

    #[test]
    fn every_class_has_its_place() {
        assert!(all().count() <= MAX_CLASSES);
        let numbers: Vec<u32> = all().map(Class::number).collect();
        assert!(numbers.is_sorted());
        for class in all() {
            assert!(!class.name().is_empty());
            assert_ne!(class.family(), Family::Unknown);
            if let Some(parent) = class.parent() {
                assert!(super::class(parent.class).is_some(), "{class:?}");
            }
        }
    }

    #[test]
    fn own_addresses_win_over_array_elements() {
        for class in all() {
            for method in class.methods() {
                let found = class.method(method.base()).expect("its own address");
                assert_eq!(
                    found.base(),
                    method.base(),
                    "{class:?} {method:?} is hidden by {found:?}"
                );
            }
        }
    }

    #[test]
    fn interleaved_arrays() {
        let data = method(0xcbc0, 0x3804).expect("named");
        assert_eq!(data.to_string(), "CALL_MME_DATA(0)");
        assert_eq!(
            method(0xcbc0, 0x3ff8).expect("named").to_string(),
            "CALL_MME_MACRO(255)"
        );
        assert_eq!(
            method(0xcbc0, 0x320 + 95 * 4).expect("named").to_string(),
            "LOAD_INLINE_QMD_DATA(95)"
        );
    }

    #[test]
    fn inherited() {
        // cd40 is a stub: the whole table is the parent's.
        assert_eq!(method(0xcd40, 0x1b0).expect("a140's").class(), 0xa140);
        // SEM_EXECUTE is in ca6f's header with two of its eight fields, and two of seven operations.
        let execute = method(0xca6f, 0x6c).expect("c96f's");
        assert_eq!((execute.class(), execute.fields().count()), (0xc96f, 8));
        let operation = execute.field("OPERATION").expect("a field");
        assert_eq!(operation.names().iter().count(), 7);
        // A whole header has its own.
        assert_eq!(method(0xc96f, 0x6c).expect("its own").class(), 0xc96f);
        // ca6f is partial: WFI is not in its header.
        assert_eq!(method(0xca6f, 0x78).expect("c96f's").name(), "WFI");
        // Optical flow: only the methods that all Falcon classes share.
        assert_eq!(method(0xb8fa, 0x300).expect("common").name(), "EXECUTE");
        assert!(method(0xb8fa, 0x700).is_none());
    }

    #[test]
    fn fields_and_names() {
        let launch = method(0xc8b5, 0x300).expect("LAUNCH_DMA");
        let field = launch.field("SRC_MEMORY_LAYOUT").expect("named");
        assert_eq!(field.value(0x182), 1);
        assert_eq!(field.names().name_of(1), Some("PITCH"));
        assert_eq!(field.encode(1), 0x80);
    }
}
