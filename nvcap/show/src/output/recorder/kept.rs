//! Records without which later ones cannot be understood (processes, driver calls, mappings, channels). They are repeated at the beginning of each
//! further file.

use std::collections::VecDeque;

use nvcap_decode::record::{Life, Process, Record};

/// Records of processes that live, the oldest first.
pub(super) struct Kept {
    records: VecDeque<Record>,
    bytes: usize,
    most_bytes: usize,
    left_out: u64,
}

impl Kept {
    /// Keeps records of `most_bytes` at most. If there is no room, the oldest driver calls are given up first.
    pub(super) fn within(most_bytes: usize) -> Self {
        Self {
            records: VecDeque::new(),
            bytes: 0,
            most_bytes,
            left_out: 0,
        }
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    /// Returns the number of records that were given up for lack of room.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    pub(super) fn note(&mut self, record: &Record) {
        match record {
            Record::Submission(_)
            | Record::Stack(_)
            | Record::Stamps(_)
            | Record::Snapshot(_)
            | Record::Skipped(_)
            | Record::Fault(_)
            | Record::Samples(_)
            | Record::Switches(_)
            | Record::Loss(_) => {
                return;
            }
            Record::Process(Process {
                at,
                life: Life::Exit { process: true },
            }) => {
                self.forget(|r| r.at().pid == at.pid);
                return;
            }
            Record::Process(Process {
                at,
                life: Life::Exit { process: false },
            }) => {
                // No record of a thread comes after its end, so the record of its start is not needed any more.
                let is_of_thread = |r: &Record| match r {
                    Record::Process(Process {
                        life: Life::Thread { child },
                        ..
                    }) => *child == at.tid,
                    _ => false,
                };
                self.forget(is_of_thread);
                return;
            }
            // exec ends all that the process had, such as channels and mappings. Its process records stay: they say who started it.
            Record::Process(Process {
                at,
                life: Life::Exec { .. },
            }) => self.forget(|r| r.at().pid == at.pid && !matches!(r, Record::Process(_))),
            _ => {}
        }
        self.bytes += record.size();
        self.records.push_back(record.clone());
        while self.bytes > self.most_bytes && self.give_one_up() {}
    }

    fn forget(&mut self, gone: impl Fn(&Record) -> bool) {
        let bytes = &mut self.bytes;
        self.records.retain(|r| {
            let is_gone = gone(r);
            *bytes -= if is_gone { r.size() } else { 0 };
            !is_gone
        });
    }

    /// Gives up the oldest driver call, or the oldest record if there is no driver call. Returns false if no record is left.
    fn give_one_up(&mut self) -> bool {
        let is_call = |r: &Record| matches!(r, Record::Ioctl(_));
        let oldest = self.records.iter().position(is_call).unwrap_or(0);
        let Some(record) = self.records.remove(oldest) else {
            return false;
        };
        self.bytes -= record.size();
        self.left_out += 1;
        true
    }
}
