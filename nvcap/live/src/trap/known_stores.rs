//! Stores that ring doorbells, as processes of this trace and of earlier ones taught them: where they are in their files (libcuda), so
//! that the next process with the same file is stopped at them from its first doorbell on.
//!
//! Nothing here is believed: of each process the bytes at the place are compared and decoded anew, and the file's build id, before a
//! breakpoint is set there ([`found_in`]). What is not as it was taught is not used; what is and never stops is given up
//! (`session/taught_stores.rs`).
//!
//! The table is that of one trace, which serves all its processes (`-a`); a file that root alone owns and writes ([`Cache`]) hands it to
//! the next one. There is no list made beforehand of stores in releases of libcuda: it would be out of date with each of them, and one trace
//! of a second teaches the same. Users other than root have no file: with file capabilities nvcap would read and write a path of
//! theirs with rights that they do not have.

mod cache;
mod mapped;

use std::fmt::Write as _;

use nvcap_common::{CODE, REGS, WINDOW};

pub(crate) use self::{
    cache::Cache,
    mapped::{FileId, file_of, found_in, pieces},
};
use super::{cached_put::Place, doorbell_store};

/// Stores that are kept: those of some releases of libcuda, and of other drivers.
const MOST: usize = 64;

/// First line of the text: the form, and the processor whose registers are numbered. Another one is not read.
const FORM: &str = if cfg!(target_arch = "aarch64") {
    "nvcap stores 1 aarch64"
} else {
    "nvcap stores 1 x86_64"
};

/// A store in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownStore {
    /// The file.
    pub file: FileId,
    /// Offset in the file of the byte behind the store.
    pub end: u64,
    /// Bytes before that place, of which the last ones are the store.
    pub code: [u8; CODE],
    /// The store; its address is made of one register.
    pub store: doorbell_store::Store,
    /// The doorbell's offset in its page of 4 KiB.
    pub doorbell: u32,
    /// Place of the process's own copy of GP_PUT, where one was found.
    pub copy: Option<Place>,
}

impl KnownStore {
    /// Tells whether the bytes are those of the store, and decode as they did.
    fn is_at(&self, before: &[u8; CODE]) -> bool {
        *before == self.code && doorbell_store::is_store(before, self.store, self.doorbell)
    }

    /// The store as a line of the text.
    fn line(&self) -> String {
        let mut line = format!("{} {:x} ", self.file, self.end);
        for byte in self.code {
            let _ = write!(line, "{byte:02x}");
        }
        let (base, displacement) = self.store.address.unwrap_or_default();
        let _ = write!(
            line,
            " {} {} {base} {displacement} {:x}",
            self.store.register, self.store.len, self.doorbell
        );
        if let Some(copy) = self.copy {
            let _ = write!(line, " {} {}", copy.register, copy.word);
        }
        line
    }

    /// Reads a line; none where it is no store that could have been taught.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let (of_store, of_copy) = words.split_at_checked(8)?;
        let &[file, end, code, register, len, base, displacement, doorbell] = of_store else {
            return None;
        };
        let copy = match of_copy {
            [] => None,
            [register, word] => Some(Place {
                register: register.parse().ok()?,
                word: word.parse().ok()?,
            }),
            _ => return None,
        };
        let known = Self {
            file: FileId::parse(file)?,
            end: u64::from_str_radix(end, 16).ok()?,
            code: mapped::bytes(code)?.try_into().ok()?,
            store: doorbell_store::Store {
                register: register.parse().ok()?,
                len: len.parse().ok()?,
                address: Some((base.parse().ok()?, displacement.parse().ok()?)),
            },
            doorbell: u32::from_str_radix(doorbell, 16).ok()?,
            copy,
        };
        let is_copy =
            |copy: Place| (copy.register as usize) < REGS && (copy.word as usize) < WINDOW;
        let fits = known.doorbell < 0x1000 && known.copy.is_none_or(is_copy);
        (fits && known.is_at(&known.code)).then_some(known)
    }
}

/// Reads a text of stores. Lines that are none are left out; so is all of another form.
fn parse(text: &str) -> Vec<KnownStore> {
    let mut lines = text.lines();
    if lines.next() != Some(FORM) {
        log::debug!("known stores: not of this form");
        return Vec::new();
    }
    let read = |line: &str| {
        let known = KnownStore::parse(line);
        if known.is_none() {
            log::debug!("known stores: a line is no store");
        }
        known
    };
    lines.take(MOST).filter_map(read).collect()
}

/// The text of stores.
fn text(stores: &[KnownStore]) -> String {
    let lines = stores.iter().map(|known| known.line() + "\n");
    [FORM.to_owned(), "\n".to_owned()]
        .into_iter()
        .chain(lines)
        .collect()
}

/// The stores that are known.
#[derive(Debug, Default)]
pub(crate) struct KnownStores {
    all: Vec<KnownStore>,
    cache: Option<Cache>,
    /// How often one was added.
    pub(crate) added: u64,
    /// Something is not in the file yet.
    unsaved: bool,
}

impl KnownStores {
    /// Takes those of a file, if one is given.
    pub(crate) fn new(cache: Option<Cache>) -> Self {
        let all = cache.as_ref().map(Cache::read).unwrap_or_default();
        if !all.is_empty() {
            log::debug!("known stores of earlier traces: {}", all.len());
        }
        Self {
            added: all.len() as u64,
            all,
            cache,
            unsaved: false,
        }
    }

    /// All.
    pub(crate) fn all(&self) -> &[KnownStore] {
        &self.all
    }

    /// A process taught a store. False where it was known.
    pub(crate) fn add(&mut self, new: KnownStore) -> bool {
        let is_new = merge(&mut self.all, new);
        self.added += u64::from(is_new);
        self.unsaved |= is_new;
        is_new
    }

    /// A process taught where the copy of GP_PUT is.
    pub(crate) fn add_copy(&mut self, file: &FileId, end: u64, copy: Option<Place>) {
        let of = |k: &&mut KnownStore| k.file == *file && k.end == end;
        if let Some(known) = self.all.iter_mut().find(of)
            && known.copy != copy
        {
            known.copy = copy;
            self.unsaved = true;
        }
    }

    /// Writes to the file what is not there yet.
    pub(crate) fn save(&mut self) {
        if std::mem::take(&mut self.unsaved)
            && let Some(cache) = &self.cache
        {
            cache.write(&self.all);
        }
    }
}

/// Adds a store to others, in the place of what was known there before. The oldest one goes where there are too many. False where it was
/// known.
fn merge(all: &mut Vec<KnownStore>, new: KnownStore) -> bool {
    let same = |k: &KnownStore| {
        (&k.file, k.end, &k.code, k.store) == (&new.file, new.end, &new.code, new.store)
    };
    let is_new = !all.iter().any(same);
    // The copy of GP_PUT is taken with it, or forgotten.
    all.retain(|k| k.file != new.file || k.end != new.end);
    all.push(new);
    let over = all.len().saturating_sub(MOST);
    all.drain(..over);
    is_new
}

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) mod tests {
    use super::*;

    /// `mov %ecx,(%rax)` behind other instructions, at an offset in a file.
    pub(crate) fn known(file: &str, end: u64) -> KnownStore {
        let mut code = [0x90; CODE];
        code[CODE - 2..].copy_from_slice(&[0x89, 0x08]);
        KnownStore {
            file: FileId::parse(file).unwrap(),
            end,
            code,
            store: doorbell_store::Store {
                register: 1,
                len: 2,
                address: Some((0, 0)),
            },
            doorbell: 0x90,
            copy: None,
        }
    }

    #[test]
    fn stores_are_text_and_back() {
        let mut stores = vec![known("b0011", 0x1234), known("bff", 0x99)];
        stores[1].copy = Some(Place {
            register: 14,
            word: 34,
        });
        // mov %edx,-0x10(%rbx)
        stores[1].code[CODE - 3..].copy_from_slice(&[0x89, 0x53, 0xf0]);
        stores[1].store = doorbell_store::Store {
            register: 2,
            len: 3,
            address: Some((3, -0x10)),
        };
        let whole = text(&stores);
        assert_eq!(parse(&whole), stores);
        assert_eq!(parse(&whole.replace("stores 1", "stores 2")), []);
        assert_eq!(parse(""), []);
    }

    #[test]
    fn what_was_not_taught_is_not_read() {
        let line = known("b0011", 0x1234).line();
        assert!(KnownStore::parse(&line).is_some());
        let wrong = [
            line.replace("b0011", "0011"),
            line.replace(" 1234 ", " x "),
            // Other bytes, other registers, another length than the bytes decode to.
            line.replace("8908", "8b08"),
            line.replace(" 1 2 0 0 90", " 2 2 0 0 90"),
            line.replace(" 1 2 0 0 90", " 1 3 0 0 90"),
            line.replace(" 1 2 0 0 90", " 1 2 1 0 90"),
            line.replace(" 1 2 0 0 90", " 1 2 99 0 90"),
            line.replace(" 1 2 0 0 90", " 1 2 0 0 1090"),
            format!("{line} 99 0"),
            format!("{line} 14 999"),
            format!("{line} 14"),
            format!("{line} 14 3 5"),
            line.split_at(20).0.to_owned(),
        ];
        for line in wrong {
            assert_eq!(KnownStore::parse(&line), None, "{line}");
        }
    }

    #[test]
    fn a_store_is_taught_once_and_the_oldest_goes() {
        let mut all = KnownStores::default();
        assert!(all.add(known("b01", 1)) && !all.add(known("b01", 1)));
        assert!(all.add(known("b01", 2)) && all.add(known("b02", 1)));
        let place = Some(Place {
            register: 14,
            word: 34,
        });
        all.add_copy(&FileId::parse("b02").unwrap(), 1, place);
        assert_eq!((all.all()[2].copy, all.all()[0].copy), (place, None));
        for end in 10..10 + MOST as u64 {
            all.add(known("b03", end));
        }
        assert_eq!((all.all().len(), all.all()[0].end), (MOST, 10));
        assert_eq!(all.added, 3 + MOST as u64);
    }

    #[test]
    fn another_reading_of_the_bytes_is_no_store() {
        let of = known("b01", 1);
        assert!(of.is_at(&of.code));
        // mov %r9d,(%rax): its last two bytes are mov %ecx,(%rax).
        let mut longer = of.code;
        longer[CODE - 3] = 0x44;
        assert!(!of.is_at(&longer));
    }
}
