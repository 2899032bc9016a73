//! nvcap's side: it publishes for the waiting program what nvcap has read.

use std::{collections::HashMap, path::Path, sync::OnceLock};

use super::table::{ARMED, FILE, Kind, Table};
use nvcap_decode::record::{ChannelId, Lost, Record, Submission};

/// Time for which nvcap waits for the times of a submission, ns. It is longer than any load keeps nvcap from its processor, and short
/// enough that the clocks of the submission's time are still known.
pub const PATIENCE_NS: u64 = 5_000_000_000;

/// Returns the table that the environment names.
fn table() -> Option<&'static Table> {
    static TABLE: OnceLock<Option<Table>> = OnceLock::new();
    let open = || {
        // A release ignores the variable, whatever it was built together with.
        let path = std::env::var_os(FILE).filter(|_| cfg!(debug_assertions))?;
        match Table::open(Path::new(&path)) {
            Ok(table) => Some(table),
            Err(e) => {
                log::error!("{}: {e}", path.display());
                None
            }
        }
    };
    TABLE.get_or_init(open).as_ref()
}

/// Opens the table that the environment names. It must be called while files may still be opened.
pub fn begin() {
    let _ = table();
}

/// Publishes the value that was read at an address of a process.
pub fn tell(pid: u32, kind: Kind, address: u64, value: u64) {
    if let Some(table) = table() {
        table.write(std::process::id(), pid, kind, address, value);
    }
}

/// Publishes the number of a process's breakpoints.
pub fn armed(pid: u32, count: usize) {
    tell(pid, Kind::Process, ARMED, count as u64);
}

/// Tells whether tests are in step.
pub fn is_on() -> bool {
    table().is_some()
}

/// Reads a process's memory with none of the process's own writes ([`Table::at_once`]) in between.
pub fn apart<T>(pid: u32, mut read: impl FnMut() -> T) -> T {
    match table() {
        Some(table) => table.apart(pid, read),
        None => read(),
    }
}

/// Publishes that nothing more is read.
pub fn end() {
    if let Some(table) = table() {
        table.ended(std::process::id());
    }
}

/// A ring to which a trace's records belong.
#[derive(Clone, Copy, Debug)]
struct Ring {
    pid: u32,
    address: u64,
    entries: u64,
}

/// Rings to which a trace's records belong; it publishes for the program how far they are read.
#[derive(Default)]
pub struct Rings(HashMap<ChannelId, Ring>);

impl Rings {
    /// Publishes new records, which have been read.
    pub fn tell(&mut self, records: &[Record]) {
        for record in records {
            match record {
                Record::Channel(channel) => {
                    if let Some(ring) = channel.ring {
                        let of = Ring {
                            pid: channel.at.pid,
                            address: ring.0,
                            entries: u64::from(channel.entries.unwrap_or(0)),
                        };
                        self.0.insert(channel.id, of);
                    }
                }
                Record::Submission(s) => {
                    if let Some(ring) = self.0.get(&s.channel) {
                        tell(s.at.pid, Kind::Ring, ring.address, ring.behind(s));
                    }
                }
                // Entries that are counted as lost are no longer waited for.
                Record::Loss(loss) => {
                    let ring = loss.channel.and_then(|id| self.0.get(&id));
                    if let (Some(ring), Lost::Entries { position, count }) = (ring, &loss.what) {
                        tell(ring.pid, Kind::Ring, ring.address, position + count);
                    }
                }
                _ => {}
            }
        }
    }
}

impl Ring {
    /// Returns the position behind a submission.
    fn behind(&self, s: &Submission) -> u64 {
        let (before, put) = (u64::from(s.prev_put), u64::from(s.gp_put));
        if self.entries == 0 || s.position % self.entries != before {
            return put;
        }
        s.position + (self.entries + put - before) % self.entries
    }
}
