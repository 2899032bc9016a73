//! The store instructions that ring doorbells: the register that holds the token, and the register near whose address the process keeps its own
//! copy of GP_PUT.
//!
//! Invariant: a store is either decoded, and its register then never changes, or it has a count of failed tries. Values for
//! the BPF programs are returned, never written here.

use std::collections::HashMap;

use nvcap_common::{self as c, SiteKey, SiteValue};

use super::super::{
    cached_put::{Agreement, CachedPut, Place},
    doorbell_store,
    known_stores::KnownStore,
};

/// Failed tries after which a store is given up.
const SITE_TRIES: u32 = 16;

/// A decoded store.
#[derive(Debug)]
struct Decoded {
    store: doorbell_store::Store,
    /// Doorbell that the store rang first.
    doorbell: u64,
    /// Search for the copy of GP_PUT.
    copy: CachedPut,
    /// True if the store was learnt from an earlier process, and this address space has not trapped there.
    taught: bool,
}

/// Result of a trap at a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trapped {
    /// The token that was rung.
    pub(super) token: Option<u32>,
    /// The new value of the store for the BPF programs.
    pub(super) tell: Option<SiteValue>,
}

/// The stores of all address spaces.
#[derive(Debug)]
pub(super) struct StoreSites {
    decoded: HashMap<SiteKey, Decoded>,
    /// Failed tries to decode a trap.
    undecoded: HashMap<SiteKey, u32>,
    /// True if the copy of GP_PUT is searched for.
    search_copy: bool,
}

/// Makes the key of the store at `ip`.
pub(super) fn key(space: u32, ip: u64) -> SiteKey {
    SiteKey { ip, space, pad: 0 }
}

fn value(
    store: Option<(doorbell_store::Store, u64)>,
    copy: Option<Place>,
    learn: bool,
) -> SiteValue {
    let offset = store.map_or(0, |(_, doorbell)| doorbell as u32 & 0xfff);
    let store = store.map(|(store, _)| store);
    let to_stop_at = store.filter(|s| s.address.is_some());
    let (base, displacement) = to_stop_at.and_then(|s| s.address).unwrap_or_default();
    SiteValue {
        base,
        len: to_stop_at.map_or(0, |s| s.len),
        displacement,
        offset,
        pad: 0,
        register: store.map_or(u32::MAX, |s| s.register),
        own: copy.map_or(c::NO_OWN, |c| c.register),
        word: copy.map_or(0, |c| c.word),
        learn: learn.into(),
    }
}

/// Returns the place of the copy of GP_PUT that a value names.
pub(super) fn place(value: &SiteValue) -> Option<Place> {
    (value.own != c::NO_OWN).then_some(Place {
        register: value.own,
        word: value.word,
    })
}

impl StoreSites {
    /// Makes an empty table. `search_copy`: the process's copy of GP_PUT is searched for.
    pub(super) fn new(search_copy: bool) -> Self {
        Self {
            decoded: HashMap::new(),
            undecoded: HashMap::new(),
            search_copy,
        }
    }

    /// Decodes the store of a trap; `known` says whether a value is a token of the process.
    pub(super) fn trapped(&mut self, r: &c::Site, known: impl Fn(u32) -> bool) -> Trapped {
        let key = key(r.space, r.ip);
        let token = |register: u32| Some(r.regs[register as usize % c::REGS] as u32);
        if let Some(store) = self.decoded.get(&key) {
            // A trap from before the BPF programs had the store.
            return Trapped {
                token: token(store.store.register),
                tell: None,
            };
        }
        if r.code_error != 0 {
            return Trapped {
                token: None,
                tell: None,
            };
        }
        let store = doorbell_store::decode(r.ip, &r.code, &r.regs, r.doorbell, known);
        log::debug!(
            "store at {:#x} in space {}: {store:?}, code {:x?}",
            r.ip,
            r.space,
            &r.code[..c::CODE]
        );
        let Some(store) = store else {
            return Trapped {
                token: None,
                tell: self.not_decoded(key),
            };
        };
        let decoded = Decoded {
            store,
            doorbell: r.doorbell,
            copy: CachedPut::default(),
            taught: false,
        };
        self.decoded.insert(key, decoded);
        Trapped {
            token: token(store.register),
            tell: Some(value(Some((store, r.doorbell)), None, self.search_copy)),
        }
    }

    /// Makes each doorbell of a store that cannot be decoded scan all channels, which is slower, but loses nothing. This happens only after
    /// several tries, because a single trap may have been reported with another instruction's address.
    fn not_decoded(&mut self, key: SiteKey) -> Option<SiteValue> {
        let tries = self.undecoded.entry(key).or_default();
        *tries += 1;
        (*tries >= SITE_TRIES).then(|| value(None, None, false))
    }

    /// Returns where each store of an address space begins at which threads can be stopped. (The address of its doorbell must be in one
    /// register.)
    pub(super) fn to_stop_at(&self, space: u32) -> impl Iterator<Item = u64> + '_ {
        let of = self.decoded.iter().filter(move |(k, _)| k.space == space);
        of.filter(|(_, d)| d.store.address.is_some())
            .map(|(k, d)| k.ip - u64::from(d.store.len))
    }

    /// Takes a store that was learnt from an earlier process and found in this address space. Returns its value for the BPF programs; none where
    /// the store is known here already.
    pub(super) fn taught(&mut self, key: SiteKey, known: &KnownStore) -> Option<SiteValue> {
        if self.decoded.contains_key(&key) {
            return None;
        }
        self.undecoded.remove(&key);
        let copy = known.copy.filter(|_| self.search_copy);
        let doorbell = known.doorbell.into();
        let decoded = Decoded {
            store: known.store,
            doorbell,
            copy: match copy {
                Some(_) => CachedPut::decided(),
                None => CachedPut::default(),
            },
            taught: true,
        };
        self.decoded.insert(key, decoded);
        let learn = self.search_copy && copy.is_none();
        Some(value(Some((known.store, doorbell)), copy, learn))
    }

    /// Forgets the stores of an address space that were learnt from earlier processes. Returns the keys of each, and where it begins.
    pub(super) fn forget_taught(&mut self, space: u32) -> Vec<(Vec<SiteKey>, u64)> {
        let of = |key: &SiteKey, d: &mut Decoded| key.space == space && d.taught;
        let taught = self.decoded.extract_if(of);
        taught
            .map(|(key, d)| {
                let value = value(Some((d.store, d.doorbell)), None, false);
                let begins = key.ip - u64::from(d.store.len);
                (keys(key, value).collect(), begins)
            })
            .collect()
    }

    /// True if at least one store of the space was learnt from an earlier process.
    pub(super) fn has_taught(&self, space: u32) -> bool {
        let mut all = self.decoded.iter();
        all.any(|(key, d)| key.space == space && d.taught)
    }

    /// Learns, from the memory around the registers, where the process keeps its own copy of GP_PUT. Returns the store's new value for the BPF
    /// programs once the place is decided.
    pub(super) fn windows(&mut self, r: &c::Windows) -> Option<SiteValue> {
        let store = self.decoded.get_mut(&key(r.space, r.ip))?;
        let copy = match store.copy.see(r) {
            Agreement::More | Agreement::Told => return None,
            Agreement::Nowhere => None,
            Agreement::At(copy) => Some(copy),
        };
        log::debug!(
            "store at {:#x} in space {}: own copy of GP_PUT: {copy:?}",
            r.ip,
            r.space
        );
        Some(value(Some((store.store, store.doorbell)), copy, false))
    }

    /// Forgets the stores of an address space that is gone, and returns them.
    pub(super) fn forget_space(&mut self, space: u32) -> Vec<SiteKey> {
        let of = |key: &SiteKey| key.space == space;
        let decoded = self.decoded.extract_if(|key, _| of(key));
        let mut gone: Vec<SiteKey> = decoded
            .flat_map(|(key, d)| keys(key, value(Some((d.store, d.doorbell)), None, false)))
            .collect();
        gone.extend(self.undecoded.extract_if(|key, _| of(key)).map(|(k, _)| k));
        gone
    }
}

/// Returns the keys under which the BPF programs find a store: behind it, and at its beginning if threads can be stopped there.
pub(super) fn keys(behind: SiteKey, value: SiteValue) -> impl Iterator<Item = SiteKey> {
    let begins = (value.len > 0).then(|| SiteKey {
        ip: behind.ip.wrapping_sub(value.len.into()),
        ..behind
    });
    [Some(behind), begins].into_iter().flatten()
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{super::super::known_stores::tests::known, *};

    const DOORBELL: u64 = 0x7f11_2233_0090;

    /// A trap behind `mov %ecx,(%rax)`, or behind an instruction that is no store.
    fn trap(space: u32, is_store: bool) -> c::Site {
        let mut code = [0x90; 2 * c::CODE];
        if is_store {
            code[c::CODE - 2..c::CODE].copy_from_slice(&[0x89, 0x08]);
        }
        let mut regs = [0; c::REGS];
        (regs[0], regs[1]) = (DOORBELL, 0x1_0012);
        c::Site {
            header: c::Header::default(),
            ip: 0x1000,
            doorbell: DOORBELL,
            space,
            code_error: 0,
            regs,
            code,
        }
    }

    #[test]
    fn a_store_is_decoded_once() {
        let mut sites = StoreSites::new(true);
        let first = sites.trapped(&trap(1, true), |_| false);
        assert_eq!(first.token, Some(0x1_0012));
        let store = doorbell_store::Store {
            register: 1,
            len: 2,
            address: Some((0, 0)),
        };
        assert_eq!(first.tell, Some(value(Some((store, DOORBELL)), None, true)));
        assert_eq!(Vec::from_iter(sites.to_stop_at(1)), [0x1000 - 2]);
        assert_eq!(sites.to_stop_at(2).count(), 0);
        // The register stays the same, whatever the code looks like later.
        let again = sites.trapped(&trap(1, false), |_| false);
        assert_eq!((again.token, again.tell), (Some(0x1_0012), None));
        assert_eq!(sites.forget_space(2), []);
        assert_eq!(sites.forget_space(1), [key(1, 0x1000), key(1, 0xffe)]);
        assert!(sites.trapped(&trap(1, true), |_| false).tell.is_some());
    }

    #[test]
    fn a_taught_store_is_stopped_at_without_a_trap() {
        let mut sites = StoreSites::new(true);
        let mut known = known("b01", 0x500);
        let place = Place {
            register: 14,
            word: 34,
        };
        known.copy = Some(place);
        let told = sites.taught(key(1, 0x1000), &known);
        assert_eq!(
            told,
            Some(value(Some((known.store, 0x90)), Some(place), false))
        );
        assert!(sites.has_taught(1) && !sites.has_taught(2));
        assert_eq!(Vec::from_iter(sites.to_stop_at(1)), [0xffe]);
        assert_eq!(sites.taught(key(1, 0x1000), &known), None, "known here");
        // Where no copy is known it is searched for, and a trap says nothing new.
        known.copy = None;
        let told = sites.taught(key(2, 0x1000), &known).unwrap();
        assert_eq!((told.learn, told.own), (1, c::NO_OWN));
        assert_eq!(sites.trapped(&trap(2, true), |_| false).tell, None);
        // It never stopped anything: another trap decodes anew.
        let gone = sites.forget_taught(1);
        assert_eq!(gone, [(vec![key(1, 0x1000), key(1, 0xffe)], 0xffe)]);
        assert!(sites.forget_taught(1).is_empty() && !sites.has_taught(1));
        assert!(sites.trapped(&trap(1, true), |_| false).tell.is_some());
        assert!(!sites.has_taught(1) && sites.has_taught(2));
    }

    #[test]
    fn a_store_is_given_up_after_enough_tries() {
        let mut sites = StoreSites::new(true);
        let mut unreadable = trap(1, true);
        unreadable.code_error = 14;
        assert_eq!(sites.trapped(&unreadable, |_| false).tell, None);
        for n in 1..=SITE_TRIES {
            let told = sites.trapped(&trap(1, false), |_| false);
            let expected = (n == SITE_TRIES).then(|| value(None, None, false));
            assert_eq!((told.token, told.tell), (None, expected), "{n}");
        }
        assert_eq!(sites.forget_space(1), [key(1, 0x1000)]);
    }
}
