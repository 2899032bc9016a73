//! The cubin images that libcuda keeps in a process's memory, and the functions whose names lie in them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use super::scan::{self, Run, Space};
use nvcap_decode::cubin::{self, Cubin, Function};
use nvcap_decode::record::Variable;
use nvcap_decode::wire::words::{u16_at, u64_at};

/// The most bytes of a name. Those of template instances have several thousand.
const MOST_NAME: usize = 64 << 10;
/// The most bytes of an image.
const MOST_IMAGE: u64 = 1 << 30;
/// Longest distance between a name and the beginning of its image, as far as it is searched, B.
const MOST_SOUGHT: u64 = 8 << 20;

/// An image. It is read when it is first needed.
enum Known {
    /// An image of which only the end is known.
    End(u64),
    Read(Box<Read>),
    /// No image, or no image any more.
    None,
}

struct Read {
    end: u64,
    image: Cubin,
    /// Indices of the image's functions by name.
    by_name: HashMap<String, usize>,
    /// Index of the function that the image's variables are told with.
    tells: Option<usize>,
}

/// The cubin images in a process's memory, by address.
#[derive(Default)]
pub(super) struct Images {
    all: BTreeMap<u64, Known>,
    first: u64,
    end: u64,
}

/// A function by its place: the image's address, and the function's index in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Named {
    pub(super) image: u64,
    pub(super) index: usize,
}

impl Images {
    /// Adds images by their addresses. Facts about earlier images in the same memory are forgotten.
    pub(super) fn add(&mut self, space: &dyn Space, heads: &[u64]) {
        for &at in heads {
            let Some(end) = end(space, at) else {
                continue;
            };
            let same = match self.all.get(&at) {
                Some(Known::End(known)) => *known == end,
                Some(Known::Read(read)) => read.end == end,
                Some(Known::None) | None => false,
            };
            if !same {
                self.all.insert(at, Known::End(end));
            }
            if self.first == 0 || at < self.first {
                self.first = at;
            }
            self.end = self.end.max(end);
        }
    }

    /// Returns the beginnings of the images, in order.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> {
        self.all.keys().copied()
    }

    /// Tells whether an address lies in a known image.
    pub(super) fn holds(&self, at: u64) -> bool {
        let last = self.all.range(..=at).next_back();
        last.is_some_and(|(_, known)| match known {
            Known::End(end) => at < *end,
            Known::Read(read) => at < read.end,
            Known::None => false,
        })
    }

    /// Looks for the image that contains a name, from the name down to `from`. Returns the image's beginning. (The names are in
    /// the first part of an image.)
    pub(super) fn seek(&mut self, space: &dyn Space, at: u64, from: u64) -> Option<u64> {
        if !string(space, at).is_some_and(|name| is_identifier(&name)) {
            return None;
        }
        let (mut end, mut step) = (at & !7, 64 << 10);
        let lowest = from.max(at.saturating_sub(MOST_SOUGHT));
        while end > lowest {
            let start = lowest.max(end.saturating_sub(step)) & !7;
            let found = scan::search(space, &[Run { start, end }], &[]);
            for &head in found.images.iter().rev() {
                self.add(space, &[head]);
                if self.all.contains_key(&head) && self.holds(at) {
                    return Some(head);
                }
            }
            (end, step) = (start, step * 4);
        }
        None
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Tells whether an address may lie in an image.
    #[inline]
    pub(super) fn may_hold(&self, at: u64) -> bool {
        at.wrapping_sub(self.first) < self.end.wrapping_sub(self.first)
    }

    /// The function whose name begins at an address.
    pub(super) fn named_at(&mut self, space: &dyn Space, at: u64) -> Option<Named> {
        if !self.may_hold(at) {
            return None;
        }
        let (&image, known) = self.all.range_mut(..=at).next_back()?;
        let end = match known {
            Known::End(end) => *end,
            Known::Read(read) => read.end,
            Known::None => return None,
        };
        if at >= end {
            return None;
        }
        read(space, image, known);
        let Known::Read(read) = known else {
            return None;
        };
        let name = string(space, at)?;
        let index = *read.by_name.get(&name)?;
        Some(Named { image, index })
    }

    pub(super) fn function(&self, of: Named) -> Option<&Function> {
        match self.all.get(&of.image)? {
            Known::Read(read) => read.image.functions.get(of.index),
            _ => None,
        }
    }

    /// Returns the variables of a function's image, if the function is the first of the image of which they are asked for.
    pub(super) fn variables(&mut self, space: &dyn Space, of: Named) -> Vec<Variable> {
        let Some(Known::Read(read)) = self.all.get_mut(&of.image) else {
            return Vec::new();
        };
        match *read.tells.get_or_insert(of.index) == of.index {
            true => cubin::variables(space, of.image).unwrap_or_default(),
            false => Vec::new(),
        }
    }

    /// The code of a function; none where it is not all there.
    pub(super) fn code(&self, space: &dyn Space, of: Named) -> Option<Vec<u8>> {
        let range = self.function(of)?.code.clone();
        let mut bytes = vec![0; usize::try_from(range.end.checked_sub(range.start)?).ok()?];
        space
            .read_bytes(of.image.checked_add(range.start)?, &mut bytes)
            .ok()?;
        Some(bytes)
    }

    /// Tells whether a function is one of the driver's own kernels. Its own name must be one of theirs, and so must the names of
    /// most functions of its image.
    pub(super) fn is_driver_s(&self, of: Named) -> bool {
        let Some(Known::Read(read)) = self.all.get(&of.image) else {
            return false;
        };
        let function = read.image.functions.get(of.index);
        function.is_some_and(|f| is_driver_s_in(&read.image, f))
    }

    /// The architectures of the images that were read; where none was read, of the first image.
    pub(super) fn architectures(&mut self, space: &dyn Space) -> BTreeSet<u32> {
        let of = |known: &Known| match known {
            Known::Read(read) => Some(read.image.sm),
            Known::End(_) | Known::None => None,
        };
        let mut all: BTreeSet<u32> = self.all.values().filter_map(of).collect();
        if all.is_empty() {
            all.extend(self.all.iter_mut().find_map(|(&at, known)| {
                read(space, at, known);
                of(known)
            }));
        }
        all
    }

    /// The functions whose code has one of these sizes, in one image or in all.
    pub(super) fn with_code_size(
        &mut self,
        space: &dyn Space,
        sizes: &RangeInclusive<u64>,
        of: Option<u64>,
    ) -> Vec<Named> {
        let mut found = Vec::new();
        let images = of.map_or(0..=u64::MAX, |image| image..=image);
        for (&image, known) in self.all.range_mut(images) {
            read(space, image, known);
            if let Known::Read(read) = known {
                let fits = read.image.functions.iter().enumerate();
                let fits = fits.filter(|(_, f)| sizes.contains(&(f.code.end - f.code.start)));
                found.extend(fits.map(|(index, _)| Named { image, index }));
            }
        }
        found
    }
}

fn read(space: &dyn Space, at: u64, known: &mut Known) {
    let Known::End(end) = *known else {
        return;
    };
    *known = match Cubin::read(space, at) {
        Some(image) => {
            let names = image.functions.iter().enumerate();
            let by_name = names.map(|(i, f)| (f.name.clone(), i)).collect();
            Known::Read(Box::new(Read {
                end,
                image,
                by_name,
                tells: None,
            }))
        }
        None => Known::None,
    };
}

/// The end of the image at an address: the end of its table of sections, which linkers write last.
fn end(space: &dyn Space, at: u64) -> Option<u64> {
    let mut head = [0; 64];
    space.read_bytes(at, &mut head).ok()?;
    // EM_CUDA.
    (u16_at(&head, 18)? == 190).then_some(())?;
    let table = u64_at(&head, 40)?;
    let size = u64::from(u16_at(&head, 58)?) * u64::from(u16_at(&head, 60)?);
    let segments = u64_at(&head, 32)?
        .checked_add(u64::from(u16_at(&head, 54)?) * u64::from(u16_at(&head, 56)?))?;
    let len = table.checked_add(size)?.max(segments);
    (len <= MOST_IMAGE).then(|| at.checked_add(len))?
}

/// The NUL-ended text at an address.
pub(super) fn string(space: &dyn Space, at: u64) -> Option<String> {
    let mut all = Vec::new();
    let mut step = 64;
    while all.len() < MOST_NAME {
        let mut part = vec![0; step];
        // Up to the end of a page first: the next one may not be there.
        let n = space.read_some(at.checked_add(all.len() as u64)?, &mut part);
        let part = part.get(..n).filter(|p| !p.is_empty())?;
        if let Some(end) = part.iter().position(|b| *b == 0) {
            all.extend_from_slice(part.get(..end)?);
            return String::from_utf8(all).ok();
        }
        all.extend_from_slice(part);
        step = (step * 4).min(4096);
    }
    None
}

/// Tells whether a text can be the name of a function.
pub(super) fn is_identifier(name: &str) -> bool {
    let first = name.bytes().next();
    name.len() >= 3
        && first.is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'.'))
}

/// Tells whether a function is one of the driver's own kernels. Its own name must be one of theirs, and so must the names of most
/// functions of its image.
pub(super) fn is_driver_s_in(image: &Cubin, function: &Function) -> bool {
    let own = image.functions.iter().filter(|f| is_driver_s(&f.name));
    is_driver_s(&function.name) && own.count() * 2 > image.functions.len()
}

/// Tells whether a name is that of a kernel in libcuda's own images, as seen in processes on an H200 under 580.159.04
/// (docs/decoding.md).
fn is_driver_s(name: &str) -> bool {
    let sized = |head: &str| {
        name.strip_prefix(head)
            .is_some_and(|rest| matches!(rest, "8" | "16" | "32" | "64" | "128"))
    };
    sized("memset")
        || name.starts_with("memset") && name.contains("aligned")
        || sized("memcpy")
        || name == "memcpy128_unaligned"
        || name == "memcpy_pre_post"
        || name.starts_with("memcpy") && name.contains("_post")
        || ["memcpyA2D", "memcpyA3D", "memcpyD3D", "memcpyDtoD"]
            .iter()
            .any(|head| name.starts_with(head))
        || ["CharAligned_", "ShortAligned_", "IntAligned_"]
            .iter()
            .any(|head| name.starts_with(head))
        || name.ends_with("Scheduler")
        || name.starts_with("cnp")
}
