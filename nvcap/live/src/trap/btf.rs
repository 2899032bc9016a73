//! The kernel's type information: it has the offsets of structure members, because Rust's BPF programs have no CO-RE relocations.

use nvcap_decode::wire::words::u32_at;
use std::{
    fs::File,
    io::{self, Read},
    ops::Deref,
    os::fd::AsRawFd,
    ptr::NonNull,
};

use nvcap_process::error::{Error, Result};

const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const MODIFIERS: [u32; 5] = [8, 9, 10, 11, 18];
/// The most members and modifiers that the search for one member looks at. The kernel's largest structure has some 300. Without the
/// limit, types that refer to each other in a circle would make the search endless.
const MOST_LOOKS: u32 = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Type {
    kind: u32,
    members: u32,
    bitfields: bool,
    name: u32,
    reference: u32,
    at: usize,
}

impl Type {
    /// Reads the type that begins at `at`.
    fn read(data: &[u8], at: usize) -> Option<Type> {
        let info = u32_at(data, at + 4)?;
        Some(Type {
            kind: info >> 24 & 31,
            members: info & 0xffff,
            bitfields: info >> 31 != 0,
            name: u32_at(data, at)?,
            reference: u32_at(data, at + 8)?,
            at: at + 12,
        })
    }

    /// Returns the offset of the next type.
    fn end(&self) -> usize {
        let n = self.members as usize;
        self.at
            + match self.kind {
                1 | 14 | 17 => 4,
                KIND_ARRAY => 12,
                KIND_STRUCT | KIND_UNION | 15 | 19 => 12 * n,
                6 | KIND_FUNC_PROTO => 8 * n,
                _ => 0,
            }
    }
}

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Number of the function among the types.
    pub id: u32,
    /// Number of arguments of the function.
    pub arguments: u32,
}

/// The bytes of type information.
#[derive(Debug)]
enum Data {
    Read(Vec<u8>),
    /// Mapping of the kernel's own bytes, allowed since Linux 6.16. Nothing is copied, and the kernel never changes the bytes.
    Mapped(NonNull<[u8]>),
}

// SAFETY: the memory is only read, and stays mapped for as long as this is there.
unsafe impl Send for Data {}
// SAFETY: as above.
unsafe impl Sync for Data {}

impl Data {
    fn open(path: &str) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if let Some(mapped) = Self::map(&file) {
            return Ok(mapped);
        }
        let mut data = Vec::with_capacity(file.metadata()?.len() as usize);
        file.read_to_end(&mut data)?;
        Ok(Self::Read(data))
    }

    /// Maps the whole file, if its content does not change.
    fn map(file: &File) -> Option<Self> {
        let len = usize::try_from(file.metadata().ok()?.len()).ok()?;
        // SAFETY: a new mapping that is only read, of a file in which the kernel shows its own memory, which is as long as it says.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        (at != libc::MAP_FAILED)
            .then(|| NonNull::new(at.cast::<u8>()))
            .flatten()
            .map(|at| Self::Mapped(NonNull::slice_from_raw_parts(at, len)))
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Read(data) => data,
            // SAFETY: mapped by `map` for as long as self is there, and never written.
            Self::Mapped(data) => unsafe { data.as_ref() },
        }
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Self::Mapped(data) = self {
            // SAFETY: mapped by `map`, and nothing borrows from it beyond self.
            unsafe { libc::munmap(data.as_ptr().cast(), data.len()) };
        }
    }
}

/// Type information of the kernel, or of a module. A module's adds to the kernel's.
#[derive(Debug)]
pub struct Btf {
    base: Option<Box<Btf>>,
    data: Data,
    strings: std::ops::Range<usize>,
    /// Offset of each type. There are some 150,000 types, of which a trace needs a dozen. So only the offsets are kept, and names are
    /// compared on request.
    types: Vec<u32>,
    /// Indices of the types that are structures.
    structures: Vec<u32>,
}

impl Btf {
    /// Reads the running kernel's type information.
    ///
    /// # Errors
    /// When the kernel has none, or it cannot be read.
    pub(crate) fn kernel() -> Result<Self> {
        Self::load("vmlinux", None)
    }

    /// Reads a loaded module's type information.
    ///
    /// # Errors
    /// When the module has none (because the kernel's was not available at its build).
    pub(crate) fn module(name: &str) -> Result<Self> {
        Self::load(name, Some(Box::new(Self::kernel()?)))
    }

    fn load(name: &str, base: Option<Box<Btf>>) -> Result<Self> {
        let path = format!("/sys/kernel/btf/{name}");
        let wrong = |e: io::Error| {
            Error::new(
                format!("reading {path}"),
                e,
                "nvcap needs a kernel with CONFIG_DEBUG_INFO_BTF=y (any distribution's since 2021)",
            )
        };
        let data = Data::open(&path).map_err(wrong)?;
        Self::of(data, base).ok_or_else(|| {
            Error::new(
                format!("reading {path}"),
                "it is not BTF",
                "please report this kernel's version",
            )
        })
    }

    /// Parses raw BTF. `None` when it is not BTF or is cut.
    pub fn parse(data: Vec<u8>, base: Option<Box<Btf>>) -> Option<Self> {
        Self::of(Data::Read(data), base)
    }

    fn of(data: Data, base: Option<Box<Btf>>) -> Option<Self> {
        let word = |at: usize| u32_at(&data, at);
        if word(0)? & 0xffff != 0xeb9f {
            return None;
        }
        let header = word(4)? as usize;
        let (mut at, end) = (
            header + word(8)? as usize,
            header + word(8)? as usize + word(12)? as usize,
        );
        let strings = header + word(16)? as usize..header + word(16)? as usize + word(20)? as usize;
        data.get(strings.clone())?;
        // A type takes some 20 bytes; no room is reserved for the length in the header, which may be wrong.
        let mut types = Vec::with_capacity(data.len() / 20);
        let mut structures = Vec::new();
        while at < end {
            let t = Type::read(&data, at)?;
            if t.kind == KIND_STRUCT {
                structures.push(types.len() as u32);
            }
            types.push(u32::try_from(at).ok()?);
            at = t.end();
        }
        Some(Self {
            base,
            data,
            strings,
            types,
            structures,
        })
    }

    /// Id of the first type that belongs to this value and not to its base.
    fn first(&self) -> u32 {
        self.base
            .as_ref()
            .map_or(1, |b| b.first() + b.types.len() as u32)
    }

    /// Tells whether the string at `offset` is `text`.
    fn is(&self, offset: u32, text: &str) -> bool {
        let base = self.base.as_ref().map_or(0, |b| b.strings.len() as u32);
        if let (Some(b), true) = (&self.base, offset < base) {
            return b.is(offset, text);
        }
        let at = self.strings.start + (offset - base) as usize;
        let rest = self.data.get(at..self.strings.end).unwrap_or_default();
        rest.strip_prefix(text.as_bytes())
            .is_some_and(|r| r.first() == Some(&0))
    }

    fn structure(&self, name: &str) -> Option<u32> {
        let is = |i: &&u32| {
            let t = self.own(**i);
            t.is_some_and(|t| self.is(t.name, name))
        };
        let own = self.structures.iter().find(is).map(|i| self.first() + i);
        own.or_else(|| self.base.as_ref()?.structure(name))
    }

    /// Finds a function of this module (or kernel) itself, not of its base.
    pub fn function(&self, name: &str) -> Option<Function> {
        let (i, f) = (0..self.types.len() as u32)
            .filter_map(|i| Some((i, self.own(i)?)))
            .find(|(_, t)| t.kind == KIND_FUNC && self.is(t.name, name))?;
        let (_, prototype) = self.at(f.reference)?;
        (prototype.kind == KIND_FUNC_PROTO).then_some(Function {
            id: self.first() + i,
            arguments: prototype.members,
        })
    }

    /// Reads the type with this number among this value's own types (not its base's).
    fn own(&self, i: u32) -> Option<Type> {
        Type::read(&self.data, *self.types.get(i as usize)? as usize)
    }

    fn at(&self, id: u32) -> Option<(&Self, Type)> {
        match id.checked_sub(self.first()) {
            Some(i) => Some((self, self.own(i)?)),
            None => self.base.as_ref()?.at(id),
        }
    }

    /// Returns the byte offset of a structure's member. Anonymous members are searched, too.
    ///
    /// # Errors
    /// When the kernel has no such member.
    pub fn offset(&self, of: &str, member: &str) -> Result<u32> {
        let mut looks = MOST_LOOKS;
        let id = self.structure(of);
        let bits = id.and_then(|id| self.member(id, member, 8, &mut looks));
        bits.map(|b| b / 8).ok_or_else(|| {
            Error::new(
                format!("finding {of}.{member} in the kernel's BTF"),
                "this kernel has no such member",
                "please report this kernel's version",
            )
        })
    }

    fn member(&self, id: u32, wanted: &str, depth: u32, looks: &mut u32) -> Option<u32> {
        let (owner, t) = self.at(id)?;
        for i in 0..t.members as usize {
            *looks = looks.checked_sub(1)?;
            let word = |o: usize| u32_at(&owner.data, t.at + 12 * i + o);
            let (name, mut kind, mut offset) = (word(0)?, word(4)?, word(8)?);
            if t.bitfields {
                offset &= 0xff_ffff;
            }
            if name != 0 {
                if owner.is(name, wanted) {
                    return Some(offset);
                }
                continue;
            }
            while let Some((_, m)) = self.at(kind)
                && MODIFIERS.contains(&m.kind)
            {
                *looks = looks.checked_sub(1)?;
                kind = m.reference;
            }
            if depth > 0
                && matches!(self.at(kind)?.1.kind, KIND_STRUCT | KIND_UNION)
                && let Some(inner) = self.member(kind, wanted, depth - 1, looks)
            {
                return offset.checked_add(inner);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes type information of these strings and of types in these words.
    fn raw(strings: &[u8], types: &[u32]) -> Vec<u8> {
        let len = 4 * types.len() as u32;
        let mut data = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, len, len, strings.len() as u32].iter().chain(types) {
            data.extend(word.to_le_bytes());
        }
        data.extend(strings);
        data
    }

    #[test]
    fn a_modules_function_is_not_its_bases() {
        let int = [1, 1 << 24, 4, 32];
        // int f(int, int), like the kernel's.
        let prototype = [0, 13 << 24 | 2, 1, 0, 1, 0, 1];
        let f = [5, 12 << 24 | 1, 2];
        let kernel = raw(b"\0int\0f\0", &[&int[..], &prototype, &f].concat());
        let kernel = Btf::parse(kernel, None).unwrap();
        let ours = Function {
            id: 3,
            arguments: 2,
        };
        assert_eq!(kernel.function("f"), Some(ours));
        assert_eq!(kernel.function("g"), None);
        // int g(int): its types are numbered on from the kernel's 3, its strings from the kernel's 7 bytes.
        let prototype = [0, 13 << 24 | 1, 1, 0, 1];
        let g = [7, 12 << 24 | 1, 4];
        let module = raw(b"g\0", &[&prototype[..], &g].concat());
        let module = Btf::parse(module, Some(Box::new(kernel))).unwrap();
        let ours = Function {
            id: 5,
            arguments: 1,
        };
        assert_eq!(module.function("g"), Some(ours));
        assert_eq!(module.function("f"), None);
    }

    #[test]
    fn a_member_is_found_through_anonymous_types() {
        // struct s { const (union { int a; }) ; int b; } with b at bit 32.
        let int = [1, 1 << 24, 4, 32];
        let constant = [0, 10 << 24, 3];
        let inner = [0, 5 << 24 | 1, 4, 5, 1, 0];
        let outer = [7, 4 << 24 | 2, 8, 0, 2, 64, 9, 1, 32];
        let types = [&int[..], &constant, &inner, &outer].concat();
        let btf = Btf::parse(raw(b"\0int\0a\0s\0b\0", &types), None).unwrap();
        assert_eq!(btf.offset("s", "a").unwrap(), 8);
        assert_eq!(btf.offset("s", "b").unwrap(), 4);
        assert!(btf.offset("s", "c").is_err());
    }

    #[test]
    fn types_in_a_circle_have_an_end() {
        // struct s { (const of itself); int b; }
        let constant = [0, 10 << 24, 1];
        let outer = [1, 4 << 24 | 1, 8, 0, 1, 0];
        let btf = Btf::parse(raw(b"\0s\0b\0", &[&constant[..], &outer].concat()), None).unwrap();
        assert!(btf.offset("s", "b").is_err());
        // struct s { 40 times (struct s) }: 40 to the power of its depth.
        let mut outer = vec![1, 4 << 24 | 40, 8];
        (0..40).for_each(|_| outer.extend([0, 1, u32::MAX]));
        let btf = Btf::parse(raw(b"\0s\0b\0", &outer), None).unwrap();
        assert!(btf.offset("s", "b").is_err());
    }

    #[test]
    fn garbage_is_refused() {
        assert!(Btf::parse(vec![], None).is_none());
        assert!(
            Btf::parse(
                vec![0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 255, 255, 255, 255],
                None
            )
            .is_none()
        );
    }
}
