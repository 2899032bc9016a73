//! News of the GPUs as records of a trace.

use std::collections::{BTreeMap, BTreeSet};

use super::Share;
use nvcap_decode::record::{At, MOST_TOLD, Record, Switches};
use nvcap_decode::switches::{Reading, Scope, Told, Who};
use nvcap_process::rm::Error;

/// The most processes that are remembered as told of.
const MOST_NAMED: usize = 1 << 16;

/// News of a GPU since the last window.
struct Gpu {
    scope: Scope,
    from: Reading,
    told: Vec<Told>,
    /// Processes that were told of, with their starts.
    named: BTreeSet<(u32, Option<u64>)>,
}

/// Context switches in windows.
pub struct Windows {
    share: Share,
    gpus: BTreeMap<u32, Gpu>,
}

impl Windows {
    /// Begins the windows now.
    ///
    /// # Errors
    /// When the driver does not tell a GPU's time.
    pub fn new(share: Share) -> Result<Self, Error> {
        let mut gpus = BTreeMap::new();
        for (number, scope) in share.gpus() {
            let gpu = Gpu {
                scope,
                from: share.reading(number)?,
                told: Vec::new(),
                named: BTreeSet::new(),
            };
            gpus.insert(number, gpu);
        }
        Ok(Self { share, gpus })
    }

    /// Reads what the driver has recorded. Returns true where there is so much that a window should be taken soon.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn poll(&mut self) -> Result<bool, Error> {
        let gpus = &mut self.gpus;
        self.share.poll_each(|number, told| {
            if let Some(gpu) = gpus.get_mut(&number) {
                gpu.told.push(told);
            }
        })?;
        // As much again may come until the next time.
        Ok(gpus.values().any(|gpu| gpu.told.len() > MOST_TOLD / 4))
    }

    /// Returns the windows that end now, one of each GPU. Polls. `is_last`: what the driver dropped behind its last record is missing in these.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn take(&mut self, is_last: bool) -> Result<Vec<Record>, Error> {
        let mut ends = BTreeMap::new();
        for number in self.gpus.keys() {
            ends.insert(*number, self.share.reading(*number)?);
        }
        self.poll()?;
        let mut records = Vec::new();
        for (number, gpu) in &mut self.gpus {
            let to = ends[number];
            if gpu.named.len() > MOST_NAMED {
                gpu.named.clear();
            }
            let mut told = std::mem::take(&mut gpu.told);
            let share = &self.share;
            // A record holds no more: what is beyond is lost.
            let beyond = told.len().saturating_sub(MOST_TOLD - 1);
            told.truncate(MOST_TOLD - 1);
            let dropped = if is_last {
                share.source.dropped(*number)
            } else {
                0
            };
            let missing = dropped.saturating_add(beyond as u64);
            if missing > 0 {
                told.push(Told::Missing(missing));
            }
            let processes = { told.iter() }
                .filter_map(|told| match told {
                    Told::Switch(switch) => Some(switch.who()),
                    _ => None,
                })
                .filter_map(|who| {
                    let Who::Process(pid) = who else { return None };
                    let known = share.known.get(&pid);
                    let is_new = gpu.named.insert((pid, known.and_then(|known| known.start)));
                    is_new.then(|| (pid, known.and_then(|known| known.who.clone())))
                })
                .collect();
            let from = std::mem::replace(&mut gpu.from, to);
            records.push(Record::Switches(Box::new(Switches {
                at: At {
                    time_ns: to.host_ns,
                    ..At::default()
                },
                gpu: *number,
                scope: gpu.scope,
                from,
                to,
                told,
                processes,
            })));
        }
        Ok(records)
    }
}
