//! Images, and the places of their bytes: in a process, in a file, or compressed in a fat binary within a file.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use nvcap_decode::cubin::fatbin::{self, Content, Entry, NotUnpacked, Room};
use nvcap_decode::cubin::{Cubin, Function, beginnings};
use nvcap_decode::wire::read_memory::ReadMemory;

/// The most bytes of one image, compressed or not.
const MOST_IMAGE: u64 = 1 << 30;

/// Images of one architecture or of all.
pub struct CodeImages<'m, M: ?Sized> {
    memory: &'m M,
    /// Images that were asked for: of one architecture, or of all.
    pub images: Vec<Cubin>,
    /// Architectures of all images, also of those that were not asked for.
    pub architectures: BTreeSet<u32>,
    /// Number of images that could not be unpacked, and the reason for the first.
    pub not_unpacked: Option<(usize, NotUnpacked)>,
    /// True if there is PTX, which the driver compiles.
    pub has_ptx: bool,
    /// Compressed images, by the place of their bytes. [`Cubin::at`] is that place.
    packed: BTreeMap<u64, Entry>,
    /// Image that was unpacked last, with the place of its compressed bytes.
    last: RefCell<Option<(u64, Rc<Vec<u8>>)>>,
}

impl<'m> CodeImages<'m, [u8]> {
    /// Images of a file: those that lie in it at offsets divisible by 8, and compressed ones of the fat binaries in it.
    pub fn of_file(bytes: &'m [u8], sm: Option<u32>) -> Self {
        let plain = beginnings(bytes).filter_map(|at| Cubin::read(bytes, at as u64));
        let mut held = Self::of_memory(bytes, plain.collect(), sm);
        let mut room = Room::default();
        for entry in fatbin::entries(bytes, 0..bytes.len() as u64) {
            held.has_ptx |= entry.content == Content::Ptx;
            if !entry.is_packed_image() {
                continue;
            }
            held.architectures.insert(entry.sm);
            if sm.is_some_and(|sm| entry.sm != sm) {
                continue;
            }
            let unpacked = match room.take(&entry) {
                true => entry.unpack(bytes, MOST_IMAGE),
                false => Err(NotUnpacked::TooLarge),
            };
            let image = unpacked
                .and_then(|image| Cubin::read(image.as_slice(), 0).ok_or(NotUnpacked::Damaged));
            match image {
                Ok(mut image) => {
                    image.at = entry.at;
                    held.images.push(image);
                    held.packed.insert(entry.at, entry);
                }
                Err(why) => held.not_unpacked.get_or_insert((0, why)).0 += 1,
            }
        }
        held.images.sort_by_key(|image| image.at);
        held
    }
}

impl<'m, M: ReadMemory + ?Sized> CodeImages<'m, M> {
    /// Images that lie in memory as they are.
    pub fn of_memory(memory: &'m M, images: Vec<Cubin>, sm: Option<u32>) -> Self {
        let architectures = images.iter().map(|image| image.sm).collect();
        let fits = |image: &Cubin| sm.is_none_or(|sm| image.sm == sm);
        Self {
            memory,
            images: images.into_iter().filter(fits).collect(),
            architectures,
            not_unpacked: None,
            has_ptx: false,
            packed: BTreeMap::new(),
            last: RefCell::default(),
        }
    }

    /// Bytes of an image; none if they cannot be read, or are more than `most`.
    pub fn bytes(&self, image: &Cubin, range: Range<u64>, most: u64) -> Option<Vec<u8>> {
        let len = range.end.checked_sub(range.start)?;
        if len > most {
            return None;
        }
        let len = usize::try_from(len).ok()?;
        if let Some(entry) = self.packed.get(&image.at) {
            let unpacked = self.unpacked(entry)?;
            let from = usize::try_from(range.start).ok()?;
            return Some(unpacked.get(from..from.checked_add(len)?)?.to_vec());
        }
        let at = image.at.checked_add(range.start)?;
        // The end first: a length that is made up takes no memory.
        let last = at.checked_add((len as u64).checked_sub(1)?)?;
        self.memory.read_bytes(last, &mut [0]).ok()?;
        let mut bytes = vec![0; len];
        self.memory.read_bytes(at, &mut bytes).ok()?;
        Some(bytes)
    }

    /// The code of a function, at most `most` bytes.
    pub fn code(&self, image: &Cubin, function: &Function, most: u64) -> Option<Vec<u8>> {
        self.bytes(image, function.code.clone(), most)
    }

    fn unpacked(&self, entry: &Entry) -> Option<Rc<Vec<u8>>> {
        let mut last = self.last.borrow_mut();
        match &*last {
            Some((at, bytes)) if *at == entry.at => Some(bytes.clone()),
            _ => {
                let bytes = Rc::new(entry.unpack(self.memory, MOST_IMAGE).ok()?);
                *last = Some((entry.at, bytes.clone()));
                Some(bytes)
            }
        }
    }
}
