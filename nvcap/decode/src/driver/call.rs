//! One ioctl, read through the tables: its name, the structures that it carries, and its success.
//!
//! This module knows layouts and keeps no state. The model acts on a [`Call`]; the printer shows its fields.

use super::{
    facts::{self, Layout},
    names,
    version::Version,
};
use crate::record::{Bytes, Device, Ioctl};

use std::borrow::Cow;

/// Type of RM ioctls, which are `_IOWR('F', nr, size)`.
const RM_TYPE: u32 = b'F' as u32;

/// Escape numbers (NV_ESC_*) that the model acts on.
pub(crate) mod esc {
    pub(crate) const ALLOC_MEMORY: u32 = 0x27;
    pub(crate) const ALLOC_OBJECT: u32 = 0x28;
    pub(crate) const FREE: u32 = 0x29;
    pub(crate) const CONTROL: u32 = 0x2a;
    pub(crate) const ALLOC: u32 = 0x2b;
    pub(crate) const DUP_OBJECT: u32 = 0x34;
    pub(crate) const VID_HEAP_CONTROL: u32 = 0x4a;
    pub(crate) const MAP_MEMORY: u32 = 0x4e;
    pub(crate) const UNMAP_MEMORY: u32 = 0x4f;
    pub(crate) const MAP_MEMORY_DMA: u32 = 0x57;
    pub(crate) const UNMAP_MEMORY_DMA: u32 = 0x58;
    pub(crate) const CARD_INFO: u32 = 0xc8;
    pub(crate) const CHECK_VERSION_STR: u32 = 0xd2;
    pub(crate) const XFER_CMD: u32 = 0xd3;
}

/// UVM ioctl numbers that the model acts on.
pub(crate) mod uvm {
    pub(crate) const MAP_EXTERNAL_ALLOCATION: u32 = 0x21;
    pub(crate) const FREE: u32 = 0x22;
    pub(crate) const UNMAP_EXTERNAL: u32 = 0x42;
    pub(crate) const ALLOC_SEMAPHORE_POOL: u32 = 0x44;
    pub(crate) const CREATE_EXTERNAL_RANGE: u32 = 0x49;
}

/// Kernel module to which a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// nvidia.ko.
    Rm,
    /// nvidia-uvm.ko.
    Uvm,
    /// A request of neither form.
    Unknown,
}

/// A structure before and after a call, read through its layout.
#[derive(Clone, Copy, Debug)]
pub struct Structure<'a> {
    /// Layout of the structure, if the tables have one.
    pub layout: Option<Layout>,
    /// True if the layout is that of an older release: the driver may have moved fields since, and nothing in the call shows it.
    pub is_guess: bool,
    /// Bytes before the call.
    pub input: &'a Bytes,
    /// Bytes after the call.
    pub output: &'a Bytes,
}

impl Structure<'_> {
    /// Returns a field of at most 8 bytes after the call. If the bytes after the call were not captured, it is the value before.
    #[must_use]
    pub fn get(&self, field: &str) -> Option<u64> {
        let f = self.layout?.field(field)?;
        self.number_at(f.offset, f.size)
    }

    /// Returns a field of at most 8 bytes before the call.
    #[must_use]
    pub fn get_input(&self, field: &str) -> Option<u64> {
        let f = self.layout?.field(field)?;
        number(&self.input.data, f.offset, f.size)
    }

    pub(crate) fn u32(&self, field: &str) -> Option<u32> {
        self.get(field).map(low)
    }

    /// Returns a number at an offset that is the same in all releases.
    pub(crate) fn u32_at(&self, offset: usize) -> Option<u32> {
        self.number_at(offset, 4).map(low)
    }

    /// Returns a number of `size` bytes at an offset, after the call or before it.
    pub(crate) fn number_at(&self, offset: usize, size: usize) -> Option<u64> {
        number(&self.output.data, offset, size).or_else(|| number(&self.input.data, offset, size))
    }

    /// Returns the bytes of a field after the call.
    pub(crate) fn bytes(&self, field: &str) -> Option<&[u8]> {
        let f = self.layout?.field(field)?;
        self.output
            .data
            .get(f.offset..f.offset.checked_add(f.size)?)
    }
}

#[allow(clippy::cast_possible_truncation)] // Fields of four bytes are read as such.
fn low(v: u64) -> u32 {
    v as u32
}

/// Reads a little-endian number of 1 to 8 bytes; `None` if the bytes end before it does.
#[must_use]
pub fn number(data: &[u8], offset: usize, size: usize) -> Option<u64> {
    if size == 0 || size > 8 {
        return None;
    }
    let bytes = data.get(offset..offset.checked_add(size)?)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |value, b| value << 8 | u64::from(*b)),
    )
}

/// Subject of an ioctl, which determines the structure of its nested parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// No known subject.
    None,
    /// A control command.
    Control(u32),
    /// Allocation of an object of a class.
    Class(u32),
}

/// An interpreted ioctl.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// Record of the ioctl.
    pub ioctl: &'a Ioctl,
    /// Kernel module to which the request goes.
    pub family: Family,
    /// Escape number (RM) or request number (UVM).
    pub nr: u32,
    /// Argument of the ioctl.
    pub arg: Structure<'a>,
    /// Nested parameters of the ioctl.
    pub nested: Option<Structure<'a>>,
    /// Command or class that the ioctl concerns.
    pub subject: Subject,
    /// NV_STATUS that the driver wrote back; `None` if the argument has none or it was not captured.
    pub status: Option<u32>,
}

impl<'a> Call<'a> {
    /// Reads an ioctl. Layouts are chosen by the sizes in it and by `version`, if known.
    #[must_use]
    pub fn read(ioctl: &'a Ioctl, version: Option<Version>) -> Self {
        let (family, nr, size) = split(ioctl);
        match family {
            Family::Rm => Self::read_rm(ioctl, nr, size, version),
            Family::Uvm | Family::Unknown => {
                let named = facts::uvm(nr, version).filter(|_| family == Family::Uvm);
                let layout = named.and_then(|n| facts::layout(n.structure, version, None));
                let mut call = Self::bare(ioctl, family, nr);
                call.arg.layout = layout;
                if version.is_some() || layout.is_some_and(|l| l.is_only()) {
                    call.status = call.arg.u32("rmStatus");
                }
                call
            }
        }
    }

    fn bare(ioctl: &'a Ioctl, family: Family, nr: u32) -> Self {
        Self {
            ioctl,
            family,
            nr,
            arg: Structure {
                layout: None,
                is_guess: false,
                input: &ioctl.input,
                output: &ioctl.output,
            },
            nested: None,
            subject: Subject::None,
            status: None,
        }
    }

    fn read_rm(ioctl: &'a Ioctl, nr: u32, size: usize, version: Option<Version>) -> Self {
        let mut call = Self::bare(ioctl, Family::Rm, nr);
        let (mut nr, mut size) = (nr, size);
        let mut nested = ioctl.nested.as_ref();
        if nr == esc::XFER_CMD
            && let (Some(real), Some(len), Some(n)) =
                (call.arg.u32_at(0), call.arg.u32_at(4), nested)
        {
            // The argument lies elsewhere, and this one points to it.
            (nr, size) = (real, len as usize);
            call.nr = nr;
            call.arg.input = &n.input;
            call.arg.output = &n.output;
            nested = None;
        }
        let structure = match (nr, size) {
            (esc::ALLOC, 32) => "NVOS21_PARAMETERS",
            (esc::ALLOC, _) => "NVOS64_PARAMETERS",
            _ => facts::escape(nr, version).map_or("", |n| n.structure),
        };
        call.arg.layout = match structure.strip_suffix("[]") {
            // The structure is an array; its reader knows the number of elements.
            Some(_) => None,
            None => facts::layout(structure, version, Some(size)),
        };
        call.subject = match nr {
            esc::CONTROL => call.arg.u32("cmd").map_or(Subject::None, Subject::Control),
            esc::ALLOC | esc::ALLOC_MEMORY | esc::ALLOC_OBJECT => {
                call.arg.u32("hClass").map_or(Subject::None, Subject::Class)
            }
            _ => Subject::None,
        };
        // If an allocation names no size, as libcuda's do not, as many bytes of its parameters were captured as any release may have.
        let is_class = matches!(call.subject, Subject::Class(_));
        let names_size = !is_class || call.arg.get_input("paramsSize").is_some_and(|s| s != 0);
        call.nested = nested.map(|n| {
            let layout = call.nested_layout((n.input.full_len, names_size), version);
            Structure {
                layout,
                is_guess: layout.is_some() && !names_size && version.is_some_and(facts::is_newer),
                input: &n.input,
                output: &n.output,
            }
        });
        call.status = call.read_status(structure, version);
        call
    }

    /// Returns the layout of the nested parameters of an allocation or a control.
    fn nested_layout(
        &self,
        (len, names_size): (u64, bool),
        version: Option<Version>,
    ) -> Option<Layout> {
        let size = usize::try_from(len).ok();
        match self.subject {
            Subject::Control(command) => {
                let named = facts::control(command, version)?;
                facts::layout(named.structure, version, size)
            }
            Subject::Class(class) => {
                let structure = facts::allocation(class, version)?;
                let layout = |size| facts::layout(structure, version, size);
                layout(size).or_else(|| (!names_size).then(|| layout(None))?)
            }
            Subject::None => None,
        }
    }

    /// Reads NV_STATUS, whose place moved twice in NVOS21 and NVOS64 without a change of size.
    fn read_status(&self, structure: &str, version: Option<Version>) -> Option<u32> {
        let field = |l: &Layout| l.field("status").or_else(|| l.field("Status"));
        let layout = self.arg.layout?;
        if version.is_none() {
            // Of the possible places, the one that the call changed is taken.
            let size = layout.size();
            for other in facts::layouts(structure).filter(|l| l.size() == size) {
                let Some(f) = field(&other) else { continue };
                let after = number(&self.arg.output.data, f.offset, f.size);
                if after.is_some() && after != number(&self.arg.input.data, f.offset, f.size) {
                    return after.map(low);
                }
            }
        }
        let f = field(&layout)?;
        number(&self.arg.output.data, f.offset, f.size).map(low)
    }

    /// Returns the name of the escape or UVM ioctl.
    #[must_use]
    pub fn name(&self, version: Option<Version>) -> Cow<'static, str> {
        match self.family {
            Family::Rm => names::escape(self.nr, version),
            Family::Uvm => names::uvm(self.nr, version),
            Family::Unknown => format!("{:#x}", self.ioctl.request).into(),
        }
    }

    /// Tells whether the driver carried out the call: neither the system call's result nor the status shows an error. One that was not seen
    /// counts as good.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.ioctl.result.is_none_or(|r| r >= 0) && self.status.is_none_or(|s| s == 0)
    }
}

/// Returns family, number and size of a request.
fn split(ioctl: &Ioctl) -> (Family, u32, usize) {
    let request = ioctl.request;
    let size = (request >> 16 & 0x3fff) as usize;
    match ioctl.device {
        Device::Uvm => (Family::Uvm, request, 0),
        _ if request >> 8 & 0xff == RM_TYPE => (Family::Rm, request & 0xff, size),
        _ => (Family::Unknown, request, size),
    }
}

/// Returns the request number of an RM escape, as a process passes it to ioctl(2).
#[must_use]
pub const fn rm_request(nr: u8, size: u16) -> u32 {
    0xc000_0000 | (size as u32 & 0x3fff) << 16 | RM_TYPE << 8 | nr as u32
}

/// Returns the size of a UVM ioctl's argument, bytes; `None` for an unknown request. UVM requests do not carry their size.
#[must_use]
pub fn uvm_argument_size(request: u32, version: Option<Version>) -> Option<usize> {
    let named = facts::uvm(request, version)?;
    facts::layout(named.structure, version, None).map(|l| l.size())
}

/// Returns the request numbers of the UVM ioctls that have an argument, each with the argument's size in the newest release, bytes. (For
/// only three ioctls, of the tools interface, an older release has a larger one.)
pub fn uvm_argument_sizes() -> impl Iterator<Item = (u32, u32)> {
    facts::uvm_requests().filter_map(|request| {
        Some((
            request,
            u32::try_from(uvm_argument_size(request, None)?).ok()?,
        ))
    })
}

/// Returns the size of the allocation parameters of `class`, bytes. RM takes this many, whatever size the caller gives.
#[must_use]
pub fn allocation_size(class: u32, version: Option<Version>) -> Option<usize> {
    facts::layout(facts::allocation(class, version)?, version, None).map(|l| l.size())
}
