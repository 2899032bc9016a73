//! Explanation of one item in full: a method write with its fields, a QMD with its fields. Used by `nvcap explain`, by the verbose text,
//! and by library users with a word to interpret.
//!
//! ```
//! use nvcap_decode::decode::explain;
//! let write = explain::method(0xc8b5, 0x300, 0x182).expect("a method of the Hopper copy engine");
//! assert_eq!(write.name, "LAUNCH_DMA");
//! let field = write.fields.iter().find(|f| f.name == "DST_MEMORY_LAYOUT").expect("a field");
//! assert_eq!(field.to_string(), "DST_MEMORY_LAYOUT=PITCH");
//! ```

use std::fmt;

use super::{
    classes::{self, Class, Family, Method},
    qmd,
};

/// A field with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Field {
    /// Name, with its index if it is an element of an array (`CONSTANT_BUFFER_VALID(3)`).
    pub name: String,
    /// Highest bit.
    pub high: u32,
    /// Lowest bit.
    pub low: u32,
    /// Value.
    pub value: u64,
    /// Name of the value, if the tables have one.
    pub value_name: Option<&'static str>,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.value_name {
            Some(name) => write!(f, "={name}"),
            None if self.value < 10 => write!(f, "={}", self.value),
            None => write!(f, "={:#x}", self.value),
        }
    }
}

/// A method write with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MethodText {
    /// Class number.
    pub class: u32,
    /// Class name.
    pub class_name: &'static str,
    /// Number of the class whose table has the method: a parent's, if it was inherited.
    pub from_class: u32,
    /// Byte address.
    pub address: u16,
    /// Method name, with its index if it is an element of an array.
    pub name: String,
    /// Data word.
    pub data: u32,
    /// Fields, by bit.
    pub fields: Vec<Field>,
    /// Bits that are set but belong to no field.
    pub stray: u32,
}

/// Explains a method write; `None` if the tables do not have the class or the method.
pub fn method(class: u32, address: u16, data: u32) -> Option<MethodText> {
    let class = classes::class(class)?;
    // Methods lie at multiples of four bytes only.
    let method = address
        .is_multiple_of(4)
        .then(|| class.method(address))
        .flatten()?;
    let fields: Vec<Field> = method.fields().map(|f| field(f, data)).collect();
    let named = method.fields().fold(0, |bits, f| bits | f.encode(u32::MAX));
    // A method without fields in the table takes any data.
    let stray = if fields.is_empty() { 0 } else { data & !named };
    Some(MethodText {
        class: class.number(),
        class_name: class.name(),
        from_class: method.class(),
        address,
        name: method.to_string(),
        data,
        fields: fields
            .into_iter()
            .filter(|f| applies(class, method, f, data))
            .collect(),
        stray,
    })
}

fn field(f: classes::Field, data: u32) -> Field {
    let value = f.value(data);
    Field {
        name: f.name().to_owned(),
        high: f.high().into(),
        low: f.low().into(),
        value: value.into(),
        value_name: f.names().name_of(value),
    }
}

/// Tells whether a field applies. The fields of MEM_OP_D overlap: OPERATION determines which of them do. (Those of MEM_OP_A to C depend on the
/// MEM_OP_D that comes after them, so all are shown.)
fn applies(class: Class, method: Method, f: &Field, data: u32) -> bool {
    if class.family() != Family::Host || method.name() != "MEM_OP_D" {
        return true;
    }
    let operation = method.field("OPERATION").map_or(0, |o| o.value(data));

    match f.name.as_str() {
        name if name.starts_with("TLB_INVALIDATE") => operation == 0x9 || operation == 0xa,
        name if name.starts_with("ACCESS_COUNTER_CLR") => operation == 0x16,
        name if name.starts_with("MMU_OPERATION") => operation == 0xb,
        _ => true,
    }
}

/// A QMD with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct QmdText {
    /// Version of the layout, major and minor.
    pub version: (u8, u8),
    /// Size of the layout in bytes.
    pub bytes: usize,
    /// Fields, by bit. Of an array whose size is only an upper bound, elements that are zero are left out.
    pub fields: Vec<Field>,
}

/// Explains a QMD of `class`; `None` if no layout fits. If the class is unknown (0), only the version bits decide.
pub fn qmd(class: u32, bytes: &[u8]) -> Option<QmdText> {
    let layout = qmd::layout(qmd::version_of(class, bytes)?)?;
    let mut fields = Vec::new();
    for f in layout.fields() {
        // If classes differ in a field, only the one of this class is shown.
        if class != 0
            && f.classes().all(|c| c != class)
            && layout
                .field(f.name(), Some(class))
                .is_some_and(|o| o.low() != f.low())
        {
            continue;
        }
        let width = u32::from(f.high() - f.low());
        for (index, value) in f.values(bytes) {
            if f.bound() && value == 0 {
                continue;
            }
            let (i, j) = match index {
                qmd::Index::None => (0, 0),
                qmd::Index::One(i) => (i, 0),
                qmd::Index::Two(i, j) => (i, j),
            };
            let low = u32::from(f.low())
                + u32::from(i) * u32::from(f.stride()[0])
                + u32::from(j) * u32::from(f.stride()[1]);
            fields.push(Field {
                name: format!("{}{index}", f.name()),
                high: low + width,
                low,
                value,
                value_name: u32::try_from(value).ok().and_then(|v| f.names().name_of(v)),
            });
        }
    }
    fields.sort_by_key(|f| f.low);
    Some(QmdText {
        version: layout.version(),
        bytes: layout.bytes(),
        fields,
    })
}

/// Returns the methods of a class whose names contain `part`, ignoring case.
pub fn search(class: u32, part: &str) -> Vec<Method> {
    let part = part.to_uppercase();
    let mut found: Vec<Method> = Vec::new();
    let mut next = classes::class(class);
    while let Some(class) = next {
        for m in class.methods().filter(|m| m.name().contains(&part)) {
            if !found.iter().any(|f| f.base() == m.base()) {
                found.push(m);
            }
        }
        next = class.parent().and_then(|p| classes::class(p.class));
    }
    found
}
