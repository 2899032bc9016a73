//! The contexts of a process: a profiler object is bound to a client and one of its channel groups, by their handles.
//!
//! libcuda keeps the handles in its ordinary memory. A client's handle is 0xc1d00000 or above (RS_CLIENT_HANDLE_BASE of the driver); in many of
//! libcuda's structures the next word is the handle of the device. libcuda chooses the handles below the client itself: consecutive numbers from
//! 0x5c000000 on. A handle that is found so is only a candidate, because any process can write another's handle into its memory. So the driver is
//! asked, through the files that the process itself has open ([`Owner`]), whether one of them made the client, and for the client's objects. A
//! context is a channel group with a channel that has an object of a compute class.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;

use super::context::Context;
use super::error::Error;
use crate::enrich::names::scan::{self, Ordinary, Space};
use nvcap_decode::driver::Version;
use nvcap_process::rm::{Client, Os, OwnClient, Owner};

/// The constant bits of a client's handle.
const CLIENT: u32 = 0xc1d0_0000;
const CLIENT_MASK: u32 = 0xfff0_0000;

/// The constant bits of a handle that libcuda chose.
const OBJECT: u32 = 0x5c00_0000;
const OBJECT_MASK: u32 = 0xffff_0000;

/// Least number of structures with the pair of client and device. libcuda has some fifty.
const LEAST_PAIRS: u32 = 8;

/// The most clients about which the driver is asked: the most frequent ones. libcuda has one.
const MOST_CLIENTS: usize = 256;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// Classes of RM objects (cl2080.h, cla06c.h).
const SUBDEVICE: u32 = 0x2080;
const CHANNEL_GROUP: u32 = 0xa06c;

/// Finds the contexts of a process, in the order in which they were made.
///
/// # Errors
/// When memory or files of the process may not be read, when the handles in its memory do not belong to its own clients, and when the driver does
/// not tell whose they are.
pub fn contexts(
    os: &Rc<dyn Os>,
    version: Option<Version>,
    pid: u32,
) -> Result<Vec<Context>, Error> {
    let found = candidates(pid).map_err(|error| Error::Memory(pid, error))?;
    of_candidates(os, version, pid, &found)
}

/// Finds the contexts among the candidates from a process's memory.
///
/// # Errors
/// As [`contexts`].
pub fn of_candidates(
    os: &Rc<dyn Os>,
    version: Option<Version>,
    pid: u32,
    found: &Candidates,
) -> Result<Vec<Context>, Error> {
    if found.clients.is_empty() {
        return Ok(Vec::new());
    }
    let own = Client::new(Rc::clone(os), version)?;
    let owner = owner(os, version, pid)?;
    let mut all = Vec::new();
    let mut theirs = 0;
    for client in &found.clients {
        match checked(&own, &owner, *client)? {
            Some((client, own)) => all.extend(groups(client, &own, &found.objects)),
            None => theirs += 1,
        }
    }
    log::debug!(
        "process {pid}: {} clients in its memory, {theirs} of them not its own by its {} files of the driver; {} contexts",
        found.clients.len(),
        owner.files(),
        all.len()
    );
    if theirs == found.clients.len() {
        return Err(Error::NotItsOwn(pid));
    }
    Ok(all)
}

/// Returns the files through which a process calls the driver.
pub(super) fn owner(os: &Rc<dyn Os>, version: Option<Version>, pid: u32) -> Result<Owner, Error> {
    Owner::of(Rc::clone(os), version, pid).map_err(|error| Error::Files(pid, error))
}

/// Tells whether a context belongs to the process that has these files.
pub(super) fn is_of(own: &Client, owner: &Owner, context: Context) -> Result<bool, Error> {
    let client = checked(own, owner, context.client)?;
    Ok(client.is_some_and(|(_, client)| client.class(context.group) == Some(CHANNEL_GROUP)))
}

/// Returns the client, if one of those files made it. The driver must refuse it through nvcap's own file: otherwise its answer proves nothing.
fn checked<'a>(
    own: &Client,
    owner: &'a Owner,
    client: u32,
) -> Result<Option<(u32, OwnClient<'a>)>, Error> {
    let Some(theirs) = owner.client(client) else {
        return Ok(None);
    };
    match own.may_use(client) {
        true => Err(Error::Unchecked),
        false => Ok(Some((client, theirs))),
    }
}

/// Returns the channel groups that compute.
fn groups(client: u32, own: &OwnClient<'_>, objects: &BTreeSet<u32>) -> Vec<Context> {
    let mut classes: BTreeMap<u32, u32> = BTreeMap::new();
    for object in objects {
        if let Some(class) = own.class(*object) {
            classes.insert(*object, class);
        }
    }
    let of = |wanted: fn(u32) -> bool| {
        let all = classes.iter().filter(move |(_, class)| wanted(**class));
        all.map(|(object, _)| *object)
    };
    let group = |object| {
        let group = own.parent(own.parent(object)?)?;
        (classes.get(&group) == Some(&CHANNEL_GROUP)).then_some(group)
    };
    let computing: BTreeSet<u32> = of(computes).filter_map(group).collect();
    // Group and subdevice have the same device above them.
    let device: BTreeMap<u32, u32> = { of(|class| class == SUBDEVICE) }
        .filter_map(|subdevice| Some((own.parent(subdevice)?, subdevice)))
        .collect();
    let gpu = |group| own.gpu(*device.get(&own.parent(group)?)?);
    let context = |group| Context {
        client,
        group,
        gpu: gpu(group),
    };
    computing.into_iter().map(context).collect()
}

/// Tells whether a class is a compute class: 90c0, of Fermi, and the compute classes of all later chips end in the same digits.
fn computes(class: u32) -> bool {
    class & 0xff == 0xc0 && class >= 0x90c0
}

/// Possible handles in a process's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// Clients, the most frequent first.
    pub clients: Vec<u32>,
    /// Objects.
    pub objects: BTreeSet<u32>,
}

/// Finds possible handles in a process's memory.
fn candidates(pid: u32) -> io::Result<Candidates> {
    let memory = Ordinary::open(pid)?;
    let mut found = Found::default();
    let mut buffer = vec![0; CHUNK];
    for run in scan::runs(pid)? {
        let mut at = run.start;
        found.gap();
        while at < run.end {
            let len = (run.end - at).min(CHUNK as u64) as usize;
            let part = buffer.get_mut(..len).unwrap_or_default();
            let read = memory.read_some(at, part);
            found.take(part.get(..read).unwrap_or_default());
            if read < len {
                found.gap();
            }
            at += len as u64;
        }
    }
    Ok(found.candidates())
}

#[derive(Default)]
struct Found {
    /// The word before the next one, where it is known.
    last: Option<u32>,
    /// Clients whose handle was before an object's, with counts; a million at most.
    clients: BTreeMap<u32, u32>,
    /// Objects: 65,536 at most.
    objects: BTreeSet<u32>,
}

impl Found {
    /// Takes note that the next words do not follow the words before.
    fn gap(&mut self) {
        self.last = None;
    }

    fn take(&mut self, bytes: &[u8]) {
        for word in bytes.as_chunks::<4>().0 {
            let word = u32::from_le_bytes(*word);
            if word & OBJECT_MASK == OBJECT {
                self.objects.insert(word);
                if let Some(client) = self.last.filter(|last| last & CLIENT_MASK == CLIENT) {
                    let count = self.clients.entry(client).or_default();
                    *count = count.saturating_add(1);
                }
            }
            self.last = Some(word);
        }
    }

    fn candidates(self) -> Candidates {
        let mut clients: Vec<(u32, u32)> = self.clients.into_iter().collect();
        clients.retain(|(_, count)| *count >= LEAST_PAIRS);
        clients.sort_by_key(|(client, count)| (std::cmp::Reverse(*count), *client));
        clients.truncate(MOST_CLIENTS);
        Candidates {
            clients: clients.into_iter().map(|(client, _)| client).collect(),
            objects: self.objects,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(words: &[u32]) -> Candidates {
        let mut found = Found::default();
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        for part in bytes.chunks(64) {
            found.take(part);
        }
        found.candidates()
    }

    #[test]
    fn the_client_is_the_one_whose_device_stands_beside_it() {
        let mut words = Vec::new();
        for i in 0..20u32 {
            words.extend([0xc1d0_0040, 0x5c00_0002, 7, i]);
        }
        words.extend([0x5c00_0015, 0x5c00_0016, 0, 0x5c00_0015, 0x5c01_003e]);
        // Words of other data.
        words.extend([0xc1de_c6d9, 1, 0xc1de_c6d9, 0x5c00_0002]);
        let expected = Candidates {
            clients: vec![0xc1d0_0040],
            objects: BTreeSet::from([0x5c00_0002, 0x5c00_0015, 0x5c00_0016]),
        };
        assert_eq!(found(&words), expected);
        assert_eq!(found(&words[80..]).clients, [0; 0]);
    }

    #[test]
    fn words_on_both_sides_of_a_gap_are_no_pair() {
        let mut found = Found::default();
        for _ in 0..20 {
            found.take(&0xc1d0_0040_u32.to_le_bytes());
            found.gap();
            found.take(&0x5c00_0002_u32.to_le_bytes());
        }
        assert_eq!(found.candidates().clients, [0; 0]);
    }

    #[test]
    fn classes_for_computing_are_those_of_the_tables() {
        for class in [0x90c0, 0xa1c0, 0xc3c0, 0xc9c0, 0xcbc0, 0xcdc0] {
            assert!(computes(class), "{class:#x}");
        }
        for class in [0x50c0, 0xa06c, 0xc86f, 0xc8b5, 0xcb97, 0x2080] {
            assert!(!computes(class), "{class:#x}");
        }
    }
}
