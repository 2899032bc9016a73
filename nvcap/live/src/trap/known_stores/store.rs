//! A store that rings doorbells: its place in its file, and its line in the text that is kept.

use std::fmt::Write as _;

use nvcap_common::{CODE, REGS, WINDOW};

use super::{
    super::{cached_put::Place, doorbell_store},
    file_id::{self, FileId},
};

/// The most stores that are kept: those of some releases of libcuda, and of other drivers.
pub(super) const MOST: usize = 64;

/// First line of the text: the format, and the processor whose registers are numbered. A text with another first line is not read.
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
    /// Offset of the byte behind the store, in the file.
    pub end: u64,
    /// Bytes before that place. They end with the store.
    pub code: [u8; CODE],
    /// The decoded store. Its address is made of one register.
    pub store: doorbell_store::Store,
    /// The doorbell's offset in its page of 4 KiB.
    pub doorbell: u32,
    /// Place of the process's own copy of GP_PUT, where one was found.
    pub copy: Option<Place>,
}

impl KnownStore {
    /// Tells whether the bytes are those of the store, and decode to the same.
    pub(super) fn is_at(&self, before: &[u8; CODE]) -> bool {
        *before == self.code && doorbell_store::is_store(before, self.store, self.doorbell)
    }

    /// Formats the store as a line of the text.
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

    /// Reads a line; none where it is no store that could have been learnt.
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
            code: file_id::bytes(code)?.try_into().ok()?,
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

/// Reads a text of stores. Invalid lines are left out; a text of another format is ignored.
pub(super) fn parse(text: &str) -> Vec<KnownStore> {
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

/// Formats the text of stores.
pub(super) fn text(stores: &[KnownStore]) -> String {
    let lines = stores.iter().map(|known| known.line() + "\n");
    [FORM.to_owned(), "\n".to_owned()]
        .into_iter()
        .chain(lines)
        .collect()
}

/// Adds a store, in the place of an earlier one there. The oldest one is dropped where there are too many. False if the store was known.
pub(super) fn merge(all: &mut Vec<KnownStore>, new: KnownStore) -> bool {
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

    /// Makes the store `mov %ecx,(%rax)` behind other instructions, at an offset in a file.
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
    fn another_reading_of_the_bytes_is_no_store() {
        let of = known("b01", 1);
        assert!(of.is_at(&of.code));
        // mov %r9d,(%rax): its last two bytes are mov %ecx,(%rax).
        let mut longer = of.code;
        longer[CODE - 3] = 0x44;
        assert!(!of.is_at(&longer));
    }
}
